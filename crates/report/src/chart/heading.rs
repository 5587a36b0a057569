//! Draws the words above a chart: title and notes.

use super::panel::Paper;
use crate::canvas::{Anchor, Canvas, Colour, INK, Place, SOFT};
use crate::text::Font;

/// Title and notes, broken into lines.
pub struct Heading(Vec<(String, Font, Colour)>);

impl Heading {
    /// For a title and notes that have this width.
    pub fn of(title: &str, notes: &[String], paper: &Paper, width: f64) -> Self {
        let titles = paper.title.wrapped(title, width).into_iter();
        let notes = notes.iter().flat_map(|note| paper.label.wrapped(note, width));
        let titles = titles.map(|line| (line, paper.title, INK));
        Heading(titles.chain(notes.map(|line| (line, paper.label, SOFT))).collect())
    }

    /// Pixels of all lines.
    pub fn height(&self) -> f64 {
        self.0.iter().map(|(_, font, _)| font.line_height()).sum()
    }

    /// Draws it with its upper left corner at the place.
    pub fn draw(&self, canvas: &mut Canvas, (left, mut y): Place) {
        for (text, font, ink) in &self.0 {
            canvas.text((left, y + font.line_height() / 2.0), text, *font, *ink, Anchor::Start);
            y += font.line_height();
        }
    }
}
