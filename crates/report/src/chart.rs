//! Charts of lines and bars. What a chart shows stands above it in words; lines are named at their
//! ends, and what has no room there stands in a legend beside the data, never on it. Colours are
//! those of Okabe and Ito, which people of all kinds of colour vision tell apart; lines differ by
//! dashes as well.

mod heading;
mod layout;
mod marks;
mod names;

use crate::axis::Axis;
use crate::canvas::{Canvas, Colour, Place};
use crate::text::Font;

pub use self::heading::Heading;
pub use crate::canvas::Stroke;

/// Colours that go well together; lines and bars name one by its number.
pub const COLOURS: [Colour; 8] = [
    [0, 0, 0],
    [0, 114, 178],
    [213, 94, 0],
    [0, 158, 115],
    [204, 121, 167],
    [86, 180, 233],
    [230, 159, 0],
    [110, 110, 110],
];

/// A colour by its number.
pub fn colour(number: usize) -> Colour {
    COLOURS[number % COLOURS.len()]
}

/// A line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Stands at its end; empty for a line without a name.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
    /// Index into [`COLOURS`].
    pub colour: usize,
    /// How it is drawn.
    pub stroke: Stroke,
}

/// Bars of one kind, as boxes on the axes.
#[derive(Clone, Debug)]
pub struct Bars {
    /// For the legend.
    pub name: String,
    /// Index into [`COLOURS`].
    pub colour: usize,
    /// Left, right, lower and upper end of each.
    pub boxes: Vec<[f64; 4]>,
}

/// Where the words of a mark stand, seen from its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// To the left.
    Left,
    /// On both sides.
    Middle,
    /// To the right.
    Right,
}

/// A vertical line that means something.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Where.
    pub at: f64,
    /// What it means.
    pub text: String,
    /// Where that stands.
    pub side: Side,
}

/// A part of the horizontal axis that is shaded.
#[derive(Clone, Debug)]
pub struct Band {
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

/// A figure above a point, such as the height of a bar.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The point.
    pub at: (f64, f64),
    /// What it says.
    pub text: String,
}

/// One pair of axes with what it shows.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What is shown, and the result.
    pub title: String,
    /// How to read it, what is better, what to beware of.
    pub notes: Vec<String>,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// Shaded parts, below everything.
    pub bands: Vec<Band>,
    /// Bars, below the lines.
    pub bars: Vec<Bars>,
    /// Lines.
    pub lines: Vec<Line>,
    /// Vertical lines that mean something.
    pub marks: Vec<Mark>,
    /// Figures above points; left out together where one would lie on another.
    pub figures: Vec<Figure>,
}

impl Panel {
    /// Axes without data.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Panel {
            title: title.into(),
            notes: Vec::new(),
            x,
            y,
            bands: Vec::new(),
            bars: Vec::new(),
            lines: Vec::new(),
            marks: Vec::new(),
            figures: Vec::new(),
        }
    }

    /// The same with a remark below the title.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

/// How panels stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Beside each other, where the paper is wide enough.
    Beside,
    /// Below each other.
    Below,
}

/// What a picture is drawn for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paper {
    /// Width in pixels.
    pub width: f64,
    /// Of titles.
    pub title: Font,
    /// Of everything else.
    pub label: Font,
}

impl Paper {
    /// A page on a screen or a sheet.
    pub const WIDE: Paper =
        Paper { width: 940.0, title: Font::bold(16.0), label: Font::regular(13.0) };
    /// A telephone, or a narrow window.
    pub const NARROW: Paper =
        Paper { width: 380.0, title: Font::bold(14.0), label: Font::regular(12.0) };

    /// Whether there is little room.
    pub fn is_narrow(&self) -> bool {
        self.width < 600.0
    }
}

/// Distance of everything from the rim of a panel.
pub const MARGIN: f64 = 12.0;
/// Half the width of all bars of a case, in parts of the distance between two cases.
const BAR_HALF: f64 = 0.34;

/// Bars of several kinds beside each other at each case: name, colour and heights of each kind.
pub fn beside(kinds: &[(&str, usize, Vec<f64>)]) -> Vec<Bars> {
    let width = 2.0 * BAR_HALF / kinds.len().max(1) as f64;
    let of_kind = |(kind, (name, colour, heights)): (usize, &(&str, usize, Vec<f64>))| {
        let boxes = (0..).zip(heights).map(|(case, height)| {
            let left = f64::from(case) - BAR_HALF + kind as f64 * width;
            [left, left + width * 0.95, 0.0, *height]
        });
        Bars { name: (*name).to_owned(), colour: *colour, boxes: boxes.collect() }
    };
    kinds.iter().enumerate().map(of_kind).collect()
}

/// Bars of several kinds on top of each other at each case: name, colour and heights of each kind.
pub fn stacked(kinds: &[(&str, usize, Vec<f64>)]) -> Vec<Bars> {
    let cases = kinds.iter().map(|(_, _, heights)| heights.len()).max().unwrap_or(0);
    let mut tops = vec![0.0; cases];
    let mut of_kind = |(name, colour, heights): &(&str, usize, Vec<f64>)| {
        let boxes = (0..).zip(&mut tops).zip(heights).map(|((case, top), height)| {
            let (low, middle) = (*top, f64::from(case));
            *top += height;
            [middle - BAR_HALF, middle + BAR_HALF, low, *top]
        });
        Bars { name: (*name).to_owned(), colour: *colour, boxes: boxes.collect() }
    };
    kinds.iter().map(&mut of_kind).collect()
}

/// A picture for wide and for narrow paper, as SVG text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// For a page on a screen or a sheet.
    pub wide: String,
    /// For a telephone.
    pub narrow: String,
}

impl Picture {
    /// Draws panels on both.
    pub fn of(panels: &[Panel], arrangement: Arrangement) -> Self {
        let on = |paper| draw(panels, arrangement, &paper);
        Picture { wide: on(Paper::WIDE), narrow: on(Paper::NARROW) }
    }
}

/// The panels on one paper, as SVG text.
pub fn draw(panels: &[Panel], arrangement: Arrangement, paper: &Paper) -> String {
    let columns = match arrangement {
        Arrangement::Beside if !paper.is_narrow() => panels.len().clamp(1, 2),
        _ => 1,
    };
    let rows = panels.len().div_ceil(columns);
    let plot_height = match (paper.is_narrow(), columns, rows) {
        (_, 1, 3..) => 170.0,
        (true, ..) => 220.0,
        _ => 300.0,
    };
    let width = paper.width / columns as f64;
    let mut canvas = Canvas::default();
    let mut y = MARGIN;
    for row in panels.chunks(columns) {
        let plans: Vec<_> = row.iter().map(|panel| layout::Plan::of(panel, width, paper)).collect();
        // Plots beside each other stand at the same height.
        let head = plans.iter().map(layout::Plan::head_height).fold(0.0, f64::max);
        let foot = plans.iter().map(layout::Plan::foot_height).fold(0.0, f64::max);
        for (column, plan) in plans.iter().enumerate() {
            let at: Place = (column as f64 * width, y);
            plan.draw(&mut canvas, at, head, plot_height);
        }
        y += head + plot_height + foot + MARGIN;
    }
    let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
    canvas.finish(paper.width, y, &titles.join("; "))
}

#[cfg(test)]
mod tests;
