//! Vertical marks in a chart, such as limits. Their words stand in rows above the plot, where no
//! data is.

use super::panel::{Mark, Side};
use super::plot::Plot;
use crate::canvas::{Anchor, Canvas, INK, SOFT};
use crate::text::Font;

/// Free space beside words.
const GAP: f64 = 4.0;

/// A mark with its words, in pixels from the panel's left.
#[derive(Clone, Debug)]
pub struct Placed {
    line: f64,
    left: f64,
    right: f64,
    text: String,
}

impl Placed {
    fn of(mark: &Mark, line: f64, font: Font, (left, right): (f64, f64)) -> Self {
        let width = font.width(&mark.text);
        let begin = match mark.side {
            Side::Left => line - GAP - width,
            Side::Middle => line - width / 2.0,
            Side::Right => line + GAP,
        };
        let begin = begin.min(right - width).max(left);
        Placed { line, left: begin, right: begin + width, text: mark.text.clone() }
    }

    fn overlaps(&self, other: &Placed) -> bool {
        self.left < other.right + 2.0 * GAP && other.left < self.right + 2.0 * GAP
    }

    fn is_crossed_by(&self, other: &Placed) -> bool {
        (self.left - 2.0..self.right + 2.0).contains(&other.line)
    }
}

/// Distributes marks over as few rows as they need; the first is next to the plot. `along` gives
/// the place of a value, `plot` the sides of the plot.
pub fn rows(
    marks: &[Mark],
    font: Font,
    along: &dyn Fn(f64) -> f64,
    plot: (f64, f64),
) -> Vec<Vec<Placed>> {
    let mut rows: Vec<Vec<Placed>> = Vec::new();
    for mark in marks {
        let mark = Placed::of(mark, along(mark.at), font, plot);
        // The line of a mark passes the rows below its own.
        let is_free = |number: usize| {
            !rows[number].iter().any(|other| other.overlaps(&mark))
                && !rows[..number].iter().flatten().any(|other| other.is_crossed_by(&mark))
                && !rows[number + 1..].iter().flatten().any(|other| mark.is_crossed_by(other))
        };
        match (0..rows.len()).find(|number| is_free(*number)) {
            Some(number) => rows[number].push(mark),
            None => rows.push(vec![mark]),
        }
    }
    rows
}

/// Draws all of them; `shift` is the panel's left on the canvas.
pub fn draw(canvas: &mut Canvas, rows: &[Vec<Placed>], plot: &Plot, font: Font, shift: f64) {
    let height = |row: usize| plot.top - (row as f64 + 0.5) * font.line_height();
    for (number, row) in rows.iter().enumerate() {
        for mark in row {
            let x = shift + mark.line;
            canvas.dotted_rule((x, height(number)), (x, plot.bottom), SOFT, 1.5);
        }
    }
    for (number, row) in rows.iter().enumerate() {
        for mark in row {
            let (left, right) = (shift + mark.left, shift + mark.right);
            let half = font.line_height() / 2.0 - 1.0;
            let y = height(number);
            canvas.filled((left - 1.0, y - half), (right + 1.0, y + half), [255; 3], false);
            canvas.text((left, y), &mark.text, font, INK, Anchor::Start);
        }
    }
}
