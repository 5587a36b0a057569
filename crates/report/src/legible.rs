//! Finds faults of legibility in a picture: texts outside of it, on each other, or on the data. For
//! the tests of everything that draws.

use svg::node::Attributes;
use svg::parser::Event;

use crate::text::Font;

/// Letters may come this near to a line before they count as covered, in pixels.
const TOLERANCE: f64 = 1.0;

/// Left, top, right, bottom.
type Extent = [f64; 4];

/// A text of a picture.
#[derive(Clone, Debug)]
struct Written {
    text: String,
    extent: Extent,
}

/// What a picture contains, as far as it matters here.
#[derive(Default)]
struct Picture {
    size: (f64, f64),
    texts: Vec<Written>,
    /// Pieces of lines of data.
    pieces: Vec<[f64; 4]>,
    /// Bars.
    boxes: Vec<Extent>,
}

/// All faults, in words; none of a good picture.
pub fn faults(svg: &str) -> Vec<String> {
    let picture = read(svg);
    let mut faults = Vec::new();
    if picture.texts.is_empty() {
        faults.push("it has no text".to_owned());
    }
    for (index, written) in picture.texts.iter().enumerate() {
        let [left, top, right, bottom] = written.extent;
        let text = &written.text;
        if left < 0.0 || top < 0.0 || right > picture.size.0 || bottom > picture.size.1 {
            faults.push(format!("`{text}` leaves the picture"));
        }
        for other in &picture.texts[..index] {
            if overlap(written.extent, other.extent) {
                faults.push(format!("`{text}` lies on `{}`", other.text));
            }
        }
        if picture.boxes.iter().any(|extent| overlap(written.extent, *extent)) {
            faults.push(format!("`{text}` lies on a bar"));
        }
        if picture.pieces.iter().any(|piece| crosses(*piece, written.extent)) {
            faults.push(format!("`{text}` lies on a line"));
        }
    }
    faults
}

/// The texts of a picture, in the order in which they were drawn.
pub fn texts(svg: &str) -> Vec<String> {
    read(svg).texts.into_iter().map(|written| written.text).collect()
}

fn read(svg: &str) -> Picture {
    let mut picture = Picture::default();
    let mut last: Option<Attributes> = None;
    let events = svg::read(svg).into_iter().flatten();
    for event in events {
        match event {
            Event::Tag("svg", _, attributes) if attributes.contains_key("viewBox") => {
                picture.size = (value(&attributes, "width"), value(&attributes, "height"));
            }
            Event::Tag("text", _, attributes) => {
                last = attributes.contains_key("font-size").then_some(attributes);
            }
            Event::Text(text) => {
                if let Some(attributes) = last.take() {
                    picture.texts.push(written(&attributes, text.trim()));
                }
            }
            Event::Tag(name, _, attributes) if is_data(&attributes) => {
                picture.data(name, &attributes);
            }
            _ => {}
        }
    }
    picture
}

fn is_data(attributes: &Attributes) -> bool {
    attributes.get("class").is_some_and(|class| **class == *"data")
}

fn value(attributes: &Attributes, name: &str) -> f64 {
    attributes.get(name).and_then(|value| value.parse().ok()).unwrap_or_default()
}

fn written(attributes: &Attributes, text: &str) -> Written {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let size = value(attributes, "font-size");
    let font = Font { size, bold: attributes.contains_key("font-weight") };
    let width = font.width(&text);
    let anchor: &str = attributes.get("text-anchor").map_or("start", |anchor| anchor);
    let left = value(attributes, "x")
        - match anchor {
            "middle" => width / 2.0,
            "end" => width,
            _ => 0.0,
        };
    // From the top of capitals to a little below the line that letters stand on.
    let line = value(attributes, "y");
    Written { text, extent: [left, line - size * 0.74, left + width, line + size * 0.2] }
}

impl Picture {
    fn data(&mut self, name: &str, attributes: &Attributes) {
        if name == "rect" {
            let (x, y) = (value(attributes, "x"), value(attributes, "y"));
            let (width, height) = (value(attributes, "width"), value(attributes, "height"));
            self.boxes.push([x, y, x + width, y + height]);
        } else if let Some(points) = attributes.get("points") {
            let place = |text: &str| -> Option<(f64, f64)> {
                let (x, y) = text.split_once(',')?;
                Some((x.parse().ok()?, y.parse().ok()?))
            };
            let places: Vec<(f64, f64)> = points.split(' ').filter_map(place).collect();
            let pieces = places.windows(2).map(|pair| [pair[0].0, pair[0].1, pair[1].0, pair[1].1]);
            self.pieces.extend(pieces);
        }
    }
}

fn overlap(one: Extent, other: Extent) -> bool {
    one[0] + TOLERANCE < other[2]
        && other[0] + TOLERANCE < one[2]
        && one[1] + TOLERANCE < other[3]
        && other[1] + TOLERANCE < one[3]
}

/// Whether a piece of a line enters an extent.
fn crosses([x0, y0, x1, y1]: [f64; 4], [left, top, right, bottom]: Extent) -> bool {
    let (mut from, mut to): (f64, f64) = (0.0, 1.0);
    // Cuts the piece by one side after the other; what remains lies inside.
    for (start, change, low, high) in [
        (x0, x1 - x0, left + TOLERANCE, right - TOLERANCE),
        (y0, y1 - y0, top + TOLERANCE, bottom - TOLERANCE),
    ] {
        if change.abs() < 1e-9 {
            if !(low..=high).contains(&start) {
                return false;
            }
            continue;
        }
        let (enter, leave) = ((low - start) / change, (high - start) / change);
        from = from.max(enter.min(leave));
        to = to.min(enter.max(leave));
    }
    from < to
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canvas::{Anchor, Canvas, INK, Stroke};

    fn with(draw: impl FnOnce(&mut Canvas)) -> Vec<String> {
        let mut canvas = Canvas::default();
        canvas.text((50.0, 20.0), "first & last", Font::regular(12.0), INK, Anchor::Start);
        draw(&mut canvas);
        faults(&canvas.finish(200.0, 100.0, "a \"test\""))
    }

    #[test]
    fn each_fault_is_seen_and_a_good_picture_has_none() {
        let text = |canvas: &mut Canvas, at, text: &str| {
            canvas.text(at, text, Font::regular(12.0), INK, Anchor::Start);
        };
        assert_eq!(with(|canvas| text(canvas, (50.0, 60.0), "below")), Vec::<String>::new());
        let faults = with(|canvas| text(canvas, (170.0, 60.0), "too long"));
        assert_eq!(faults, ["`too long` leaves the picture"]);
        let faults = with(|canvas| text(canvas, (60.0, 25.0), "near"));
        assert_eq!(faults, ["`near` lies on `first & last`"]);
        let faults = with(|canvas| canvas.filled((0.0, 0.0), (60.0, 30.0), INK, true));
        assert_eq!(faults, ["`first & last` lies on a bar"]);
        let line = [(0.0, 0.0), (40.0, 19.0), (190.0, 21.0)];
        let faults = with(|canvas| canvas.data(&line, INK, Stroke::Dashed));
        assert_eq!(faults, ["`first & last` lies on a line"]);
        let beside = [(0.0, 60.0), (190.0, 40.0)];
        assert!(with(|canvas| canvas.data(&beside, INK, Stroke::Solid)).is_empty());
        assert_eq!(super::faults("<svg/>"), ["it has no text"]);
    }
}
