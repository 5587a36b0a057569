//! A sheet to draw on, which becomes an SVG. Data carries the class `data`, so that
//! [`crate::legible`] sees what must not be covered.

use svg::Node;
use svg::node::element::{Circle, Line, Polygon, Polyline, Rectangle, SVG, Text};

use crate::text::Font;

/// A colour as red, green and blue.
pub type Colour = [u8; 3];
/// A place in pixels, from the left and from the top.
pub type Place = (f64, f64);

/// Of texts.
pub const INK: Colour = [34, 43, 51];
/// Of texts beside the main thing.
pub const SOFT: Colour = [84, 96, 108];
/// Of lines in the background.
pub const GRID: Colour = [221, 227, 232];
/// Of axes.
pub const EDGE: Colour = [130, 142, 153];

/// Which part of a text lies at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its begin.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// A line.
    Solid,
    /// A dashed line.
    Dashed,
    /// A line with a mark at each point.
    Marked,
}

/// The sheet.
#[derive(Debug, Default)]
pub struct Canvas {
    nodes: Vec<Box<dyn Node>>,
}

/// The colour as SVG writes it.
pub fn hexadecimal([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// A colour for a text that belongs to a line of this colour: dark enough to be read.
pub fn darker(colour: Colour) -> Colour {
    colour.map(|part| (f64::from(part) * 0.75) as u8)
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn points(places: &[Place]) -> String {
    let texts = places.iter().map(|(x, y)| format!("{},{}", rounded(*x), rounded(*y)));
    texts.collect::<Vec<_>>().join(" ")
}

impl Canvas {
    fn add(&mut self, node: impl Into<Box<dyn Node>>) {
        self.nodes.push(node.into());
    }

    /// A line of text whose middle is at the height of `place`.
    pub fn text(&mut self, place: Place, text: &str, font: Font, colour: Colour, anchor: Anchor) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let mut node = Text::new(text)
            .set("x", rounded(place.0))
            .set("y", rounded(place.1 + font.size * 0.36))
            .set("font-size", font.size)
            .set("text-anchor", anchor)
            .set("fill", hexadecimal(colour));
        if font.bold {
            node = node.set("font-weight", "bold");
        }
        self.add(node);
    }

    /// A thin line of the background or of an axis.
    pub fn rule(&mut self, from: Place, to: Place, colour: Colour, width: f64) {
        self.add(self::rule(from, to, colour, width));
    }

    /// The same in dots.
    pub fn dotted_rule(&mut self, from: Place, to: Place, colour: Colour, width: f64) {
        self.add(self::rule(from, to, colour, width).set("stroke-dasharray", "2 4"));
    }

    /// A line of data, with its marks.
    pub fn data(&mut self, places: &[Place], colour: Colour, stroke: Stroke) {
        self.add(path(places, colour, stroke).set("class", "data"));
        if stroke == Stroke::Marked {
            for (x, y) in places {
                let mark = Circle::new().set("cx", rounded(*x)).set("cy", rounded(*y));
                self.add(mark.set("r", 4).set("fill", hexadecimal(colour)));
            }
        }
    }

    /// A short piece of a line of data, for a legend.
    pub fn sample(&mut self, from: Place, to: Place, colour: Colour, stroke: Stroke) {
        self.add(path(&[from, to], colour, stroke));
        if stroke == Stroke::Marked {
            let middle = f64::midpoint(from.0, to.0);
            let mark = Circle::new().set("cx", rounded(middle)).set("cy", rounded(from.1));
            self.add(mark.set("r", 4).set("fill", hexadecimal(colour)));
        }
    }

    /// A filled box between two corners; `is_data` where nothing may cover it.
    pub fn filled(&mut self, one: Place, other: Place, colour: Colour, is_data: bool) {
        let (left, right) = (one.0.min(other.0), one.0.max(other.0));
        let (top, bottom) = (one.1.min(other.1), one.1.max(other.1));
        let mut node = Rectangle::new()
            .set("x", rounded(left))
            .set("y", rounded(top))
            .set("width", rounded(right - left))
            .set("height", rounded(bottom - top))
            .set("fill", hexadecimal(colour));
        if is_data {
            node = node.set("class", "data");
        }
        self.add(node);
    }

    /// A filled polygon with an outline.
    pub fn polygon(&mut self, corners: &[Place], colour: Colour, outline: Colour) {
        let node = Polygon::new()
            .set("class", "data")
            .set("points", points(corners))
            .set("fill", hexadecimal(colour))
            .set("stroke", hexadecimal(outline))
            .set("stroke-width", 0.7)
            .set("stroke-linejoin", "round");
        self.add(node);
    }

    /// The SVG, on white; `title` is read to people who do not see it.
    pub fn finish(self, width: f64, height: f64, title: &str) -> String {
        let (width, height) = (width.ceil(), height.ceil());
        let background = Rectangle::new().set("width", width).set("height", height);
        let document = SVG::new().add(background.set("fill", "#ffffff"));
        let document = self.nodes.into_iter().fold(document, SVG::add);
        let document = document
            .set("xmlns", "http://www.w3.org/2000/svg")
            .set("viewBox", (0.0, 0.0, width, height))
            .set("width", width)
            .set("height", height)
            .set("font-family", "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif")
            .set("role", "img")
            .set("aria-label", title.replace('"', "'"));
        format!("{document}\n")
    }
}

fn rule(from: Place, to: Place, colour: Colour, width: f64) -> Line {
    Line::new()
        .set("x1", rounded(from.0))
        .set("y1", rounded(from.1))
        .set("x2", rounded(to.0))
        .set("y2", rounded(to.1))
        .set("stroke", hexadecimal(colour))
        .set("stroke-width", width)
}

fn path(places: &[Place], colour: Colour, stroke: Stroke) -> Polyline {
    let node = Polyline::new()
        .set("points", points(places))
        .set("fill", "none")
        .set("stroke", hexadecimal(colour))
        .set("stroke-linejoin", "round");
    // A dashed line lets one below it be seen on both sides.
    match stroke {
        Stroke::Dashed => node.set("stroke-width", 1.7).set("stroke-dasharray", "8 5"),
        Stroke::Solid | Stroke::Marked => node.set("stroke-width", 2.5),
    }
}
