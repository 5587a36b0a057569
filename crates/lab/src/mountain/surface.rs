//! The mountain as a surface: data size to the left front, skip to the right, throughput upwards
//! on a logarithmic scale, so that both ridges show. Colours are those of viridis, which rise in
//! lightness with the value and suit all kinds of colour vision.

use tidepool_report::canvas::{Anchor, Canvas, Colour, EDGE, GRID, Place, SOFT};
use tidepool_report::chart::{Heading, MARGIN, Paper};
use tidepool_report::text::number;

/// Viridis, from the lowest to the highest value.
const COLOURS: [Colour; 9] = [
    [68, 1, 84],
    [71, 44, 122],
    [59, 81, 139],
    [44, 113, 142],
    [33, 144, 141],
    [39, 173, 129],
    [92, 200, 99],
    [170, 220, 50],
    [253, 231, 37],
];
/// Of the line where something ends.
const LINE: Colour = [196, 30, 30];

/// Values over two rising axes of cases.
#[derive(Clone, Debug)]
pub struct Surface {
    /// What it shows, and the result.
    pub title: String,
    /// What else must be known.
    pub notes: Vec<String>,
    /// Data sizes, as texts.
    pub sizes: Vec<String>,
    /// Skips, as texts.
    pub skips: Vec<String>,
    /// Value of a size and a skip; the outer index is the size. Above zero.
    pub values: Vec<Vec<f64>>,
    /// The unit of the values.
    pub unit: String,
    /// A line across the surface at a place among the sizes, and what it means.
    pub line: Option<(f64, String)>,
}

/// Places on the paper, and the scale of the values.
struct View<'a> {
    paper: &'a Paper,
    low: f64,
    high: f64,
    /// The far corner of the floor: smallest data, no skip.
    origin: Place,
    /// From there to the largest data, along the floor.
    to_large: Place,
    /// From there to the largest skip, along the floor.
    to_skips: Place,
    /// Height of the highest value.
    height: f64,
}

impl<'a> View<'a> {
    /// For a paper on which the surface begins at `top`.
    fn of(surface: &Surface, paper: &'a Paper, top: f64) -> Self {
        let all = || surface.values.iter().flatten().copied().filter(|value| *value > 0.0);
        let low = all().fold(f64::INFINITY, f64::min).log10().floor();
        let high = all().fold(0.0, f64::max).log10();
        let low = if low.is_finite() { low } else { 0.0 };
        let width =
            |texts: &[String]| texts.iter().map(|text| paper.label.width(text)).fold(0.0, f64::max);
        let left = MARGIN + paper.label.width("0.05") + 12.0;
        let span = paper.width - left - width(&surface.sizes) - MARGIN - 16.0;
        // On narrow paper it stands steeper, or nothing could be told apart.
        let steep = if paper.is_narrow() { 1.9 } else { 1.0 };
        let to_large = (-0.42 * span, 0.24 * span * steep);
        let to_skips = (0.58 * span, 0.16 * span * steep);
        let height = 0.4 * span * steep.min(1.6);
        View {
            paper,
            low,
            // Room above the summit, and a scale even where all values are the same.
            high: (high + 0.05).max(low + 0.5),
            origin: (left + 0.42 * span, top + height),
            to_large,
            to_skips,
            height,
        }
    }

    /// From 0 to 1.
    fn scaled(&self, value: f64) -> f64 {
        ((value.max(1e-12).log10() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// `large` and `skip` from 0 to 1 along the floor, `up` from 0 to 1.
    fn place(&self, large: f64, skip: f64, up: f64) -> Place {
        let x = self.origin.0 + large * self.to_large.0 + skip * self.to_skips.0;
        let y = self.origin.1 + large * self.to_large.1 + skip * self.to_skips.1;
        (x, y - up * self.height)
    }

    /// Whole powers of ten on the scale, and those between that people read as round.
    fn marks(&self) -> Vec<f64> {
        let decades = (self.low as i32..=self.high.ceil() as i32).map(|power| 10_f64.powi(power));
        let marks = decades.flat_map(|decade| [decade, 2.0 * decade, 5.0 * decade]);
        let inside = self.low - 1e-9..=self.high;
        let marks: Vec<f64> = marks.filter(|mark| inside.contains(&mark.log10())).collect();
        let apart = self.height / (self.high - self.low) * 2_f64.log10();
        let has_room = apart > self.paper.label.line_height();
        // Where there is no room, the powers alone.
        let kept = |mark: &f64| has_room || (mark.log10() - mark.log10().round()).abs() < 1e-9;
        marks.into_iter().filter(kept).collect()
    }
}

fn colour(share: f64) -> Colour {
    let place = share.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let below = (place.floor() as usize).min(COLOURS.len() - 2);
    let part = place - below as f64;
    let mix = |from: u8, to: u8| (f64::from(from) * (1.0 - part) + f64::from(to) * part) as u8;
    let (from, to) = (COLOURS[below], COLOURS[below + 1]);
    std::array::from_fn(|index| mix(from[index], to[index]))
}

fn along(index: usize, count: usize) -> f64 {
    index as f64 / (count.max(2) - 1) as f64
}

/// The surface as SVG text.
pub fn svg(surface: &Surface, paper: &Paper) -> String {
    let mut canvas = Canvas::default();
    let top = words(&mut canvas, surface, paper);
    let view = View::of(surface, paper, top);
    walls(&mut canvas, &view);
    quads(&mut canvas, &view, surface);
    if let Some((at, text)) = &surface.line {
        mark_line(&mut canvas, &view, surface, (*at, text));
    }
    labels(&mut canvas, &view, surface);
    scale(&mut canvas, &view, surface);
    let lowest = view.place(1.0, 1.0, 0.0).1.max(view.place(1.0, 0.0, 0.0).1);
    canvas.finish(paper.width, lowest + 4.2 * paper.label.line_height(), &surface.title)
}

/// Title and notes; returns where the surface begins.
fn words(canvas: &mut Canvas, surface: &Surface, paper: &Paper) -> f64 {
    let width = paper.width - 2.0 * MARGIN;
    let heading = Heading::of(&surface.title, &surface.notes, paper, width);
    heading.draw(canvas, (MARGIN, MARGIN));
    // What the line means stands below.
    MARGIN + heading.height() + 2.0 * paper.label.line_height()
}

fn walls(canvas: &mut Canvas, view: &View<'_>) {
    let at = |(large, skip), up| view.place(large, skip, up);
    for mark in view.marks() {
        let up = view.scaled(mark);
        canvas.rule(at((1.0, 0.0), up), at((0.0, 0.0), up), GRID, 1.0);
        canvas.rule(at((0.0, 0.0), up), at((0.0, 1.0), up), GRID, 1.0);
    }
    for corner in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)] {
        canvas.rule(at(corner, 0.0), at(corner, 1.0), EDGE, 1.0);
    }
    let floor = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0)];
    for side in floor.windows(2) {
        canvas.rule(at(side[0], 0.0), at(side[1], 0.0), EDGE, 1.0);
    }
}

/// From the back to the front, so that what is near covers what is far.
fn quads(canvas: &mut Canvas, view: &View<'_>, surface: &Surface) {
    let (rows, columns) = (surface.sizes.len(), surface.skips.len());
    let corner = |row: usize, column: usize| {
        let up = view.scaled(surface.values[row][column]);
        (view.place(along(row, rows), along(column, columns), up), up)
    };
    for row in 0..rows.saturating_sub(1) {
        for column in 0..columns.saturating_sub(1) {
            let corners = [(0, 0), (1, 0), (1, 1), (0, 1)]
                .map(|(down, right)| corner(row + down, column + right));
            let mean = corners.iter().map(|(_, up)| up).sum::<f64>() / 4.0;
            canvas.polygon(&corners.map(|(point, _)| point), colour(mean), [60, 70, 80]);
        }
    }
}

/// A line over the surface, with its words above the left wall, where nothing else is.
fn mark_line(canvas: &mut Canvas, view: &View<'_>, surface: &Surface, (at, text): (f64, &str)) {
    let (rows, columns) = (surface.sizes.len(), surface.skips.len());
    let below = (at.floor().max(0.0) as usize).min(rows.saturating_sub(1));
    let above = (below + 1).min(rows.saturating_sub(1));
    let part = at - below as f64;
    let large = at / (rows.max(2) - 1) as f64;
    let places: Vec<Place> = (0..columns)
        .map(|column| {
            let up = |row: usize| view.scaled(surface.values[row][column]);
            let height = up(below) * (1.0 - part) + up(above) * part;
            view.place(large, along(column, columns), height)
        })
        .collect();
    for piece in places.windows(2) {
        canvas.rule(piece[0], piece[1], LINE, 3.0);
    }
    let Some(first) = places.first() else { return };
    let font = view.paper.label;
    let top = view.place(0.0, 0.0, 1.0).1 - font.line_height();
    let left = view.place(1.0, 0.0, 0.0).0;
    canvas.text((left, top), text, font, LINE, Anchor::Start);
    let begin = (first.0, top + font.line_height() * 0.7);
    canvas.dotted_rule(begin, *first, LINE, 1.5);
}

fn labels(canvas: &mut Canvas, view: &View<'_>, surface: &Surface) {
    let font = view.paper.label;
    let line = font.line_height();
    let mut end = f64::NEG_INFINITY;
    for (column, skip) in surface.skips.iter().enumerate() {
        let (x, y) = view.place(1.0, along(column, surface.skips.len()), 0.0);
        canvas.rule((x, y), (x - 5.0, y + 6.0), EDGE, 1.0);
        let half = font.width(skip) / 2.0;
        // Labels that would touch the one before are left out.
        if x - 14.0 - half > end + 4.0 {
            end = x - 14.0 + half;
            canvas.text((x - 14.0, y + 6.0 + line * 0.6), skip, font, SOFT, Anchor::Middle);
        }
    }
    let mut bottom = f64::NEG_INFINITY;
    for (row, size) in surface.sizes.iter().enumerate() {
        let (x, y) = view.place(along(row, surface.sizes.len()), 1.0, 0.0);
        canvas.rule((x, y), (x + 7.0, y + 3.0), EDGE, 1.0);
        if y + 4.0 > bottom + line * 0.85 {
            bottom = y + 4.0;
            canvas.text((x + 10.0, y + 4.0), size, font, SOFT, Anchor::Start);
        }
    }
    let (skips, sizes) = ("skip after each read", "size of the file");
    if view.paper.is_narrow() {
        // There is room below everything only.
        let lowest = view.place(1.0, 1.0, 0.0).1 + 2.2 * line;
        let (right, front) = (format!("to the right: {skips}"), format!("to the front: {sizes}"));
        canvas.text((MARGIN, lowest), &right, font, SOFT, Anchor::Start);
        canvas.text((MARGIN, lowest + line), &front, font, SOFT, Anchor::Start);
    } else {
        let (x, y) = view.place(1.0, 0.5, 0.0);
        canvas.text((x - 50.0, y + 3.0 * line), skips, font, SOFT, Anchor::End);
        let (x, y) = view.place(0.5, 1.0, 0.0);
        canvas.text((x + 90.0, y + 2.5 * line), sizes, font, SOFT, Anchor::Start);
    }
}

fn scale(canvas: &mut Canvas, view: &View<'_>, surface: &Surface) {
    let font = view.paper.label;
    let (x, top) = view.place(1.0, 0.0, 1.0);
    for mark in view.marks() {
        let (_, y) = view.place(1.0, 0.0, view.scaled(mark));
        canvas.rule((x - 5.0, y), (x, y), EDGE, 1.0);
        canvas.text((x - 8.0, y), &number(mark), font, SOFT, Anchor::End);
    }
    canvas.text((MARGIN, top - font.line_height()), &surface.unit, font, SOFT, Anchor::Start);
}

#[cfg(test)]
mod tests {
    use tidepool_report::legible::{faults, texts};

    use super::*;

    fn surface() -> Surface {
        Surface {
            title: "a mountain".to_owned(),
            notes: vec!["a note".to_owned()],
            sizes: ["1 MiB", "2 MiB", "4 MiB"].map(str::to_owned).to_vec(),
            skips: ["none", "64 KiB"].map(str::to_owned).to_vec(),
            values: vec![vec![8.0, 7.0], vec![0.9, 0.8], vec![0.4, 0.3]],
            unit: "GB/s".to_owned(),
            line: Some((0.5, "the store ends here".to_owned())),
        }
    }

    #[test]
    fn all_labels_and_cells_are_there() {
        for paper in [Paper::WIDE, Paper::NARROW] {
            let text = svg(&surface(), &paper);
            assert_eq!(faults(&text), Vec::<String>::new());
            let found = texts(&text);
            for label in [
                "a mountain",
                "a note",
                "1 MiB",
                "4 MiB",
                "64 KiB",
                "GB/s",
                "0.5",
                "the store ends here",
            ] {
                assert!(found.iter().any(|text| text == label), "{label}: {found:?}");
            }
            assert_eq!(text.matches("<polygon").count(), 2, "a cell between each four points");
        }
    }

    #[test]
    fn one_value_has_a_scale_too() {
        let one = Surface {
            sizes: vec!["1".to_owned()],
            skips: vec!["0".to_owned()],
            values: vec![vec![1.0]],
            line: Some((0.0, "the store ends here".to_owned())),
            ..surface()
        };
        assert!(svg(&one, &Paper::WIDE).contains("a mountain"));
    }
}
