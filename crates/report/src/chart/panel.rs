//! `Panel`: what a chart shows, as lines, bars and marks on a pair of axes. `Paper`: what it is
//! drawn for.

use crate::axis::Axis;
use crate::canvas::{Colour, Stroke};
use crate::text::Font;

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
