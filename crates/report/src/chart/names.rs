//! Draws the names of lines at their ends, and the legend above the plot for lines without room
//! there.

use super::panel::{Bars, Line, MARGIN, Panel, colour};
use crate::canvas::{Anchor, Canvas, Colour, INK, Place, Stroke, darker};
use crate::text::Font;

/// Part of a panel's width that names at line ends may take.
const SHARE_MAX: f64 = 0.27;
/// From the end of a line to its name.
const GAP: f64 = 8.0;
/// Free space after an entry of the legend.
const APART: f64 = 18.0;
/// Length of a line in the legend.
const SAMPLE: f64 = 26.0;
/// Names of more lines than this go into the legend.
const LINES_MAX: usize = 9;

/// Names at line ends.
#[derive(Clone, Debug)]
pub struct Names {
    /// Pixels that they take to the right of the plot.
    pub width: f64,
    font: Font,
    /// For each line that has points, the lines of its name.
    texts: Vec<Vec<String>>,
}

impl Names {
    /// Those of a panel, if they fit beside a plot.
    pub fn of(panel: &Panel, font: Font, panel_width: f64) -> Option<Self> {
        let lines: Vec<&Line> = drawn(panel).collect();
        if lines.iter().all(|line| line.name.is_empty()) || lines.len() > LINES_MAX {
            return None;
        }
        let most = panel_width * SHARE_MAX;
        let texts: Vec<_> = lines.iter().map(|line| font.wrapped(&line.name, most)).collect();
        let widest = texts.iter().flatten().map(|text| font.width(text)).fold(0.0, f64::max);
        let is_short = texts.iter().all(|lines| lines.len() <= 3);
        (widest <= most && is_short).then(|| Names {
            width: widest + GAP + MARGIN / 2.0,
            font,
            texts,
        })
    }

    /// Draws them beside the ends of the lines, moved apart where they would touch.
    pub fn draw(&self, canvas: &mut Canvas, ends: &[(Place, Colour)], (top, bottom): (f64, f64)) {
        let height = |index: usize| self.texts[index].len() as f64 * self.font.line_height();
        let mut order: Vec<usize> =
            (0..ends.len()).filter(|index| !self.texts[*index].is_empty()).collect();
        order.sort_by(|one, other| ends[*one].0.1.total_cmp(&ends[*other].0.1));
        let mut middles: Vec<f64> = order.iter().map(|index| ends[*index].0.1).collect();
        let apart =
            |one: usize, other: usize| f64::midpoint(height(order[one]), height(order[other]));
        // Down from the top, then up from the bottom: each pass keeps what the other made.
        for place in 0..order.len() {
            let least = match place.checked_sub(1) {
                Some(above) => middles[above] + apart(above, place),
                None => top + height(order[place]) / 2.0 - self.font.size / 2.0,
            };
            middles[place] = middles[place].max(least);
        }
        for place in (0..order.len()).rev() {
            let most = match middles.get(place + 1) {
                Some(below) => below - apart(place, place + 1),
                None => bottom - height(order[place]) / 2.0 + self.font.size / 2.0,
            };
            middles[place] = middles[place].min(most);
        }
        let right = ends.iter().map(|((x, _), _)| *x).fold(0.0, f64::max);
        for (index, middle) in order.into_iter().zip(middles) {
            self.one(canvas, index, ends[index], (right + GAP, middle));
        }
    }

    fn one(&self, canvas: &mut Canvas, index: usize, (end, ink): (Place, Colour), at: Place) {
        let texts = &self.texts[index];
        // A name that had to move, or whose line ends earlier, is tied to its line.
        if (at.1 - end.1).abs() > self.font.size * 0.6 || at.0 - end.0 > 2.0 * GAP {
            canvas.rule((end.0 + 1.0, end.1), (at.0 - 2.0, at.1), darker(ink), 0.8);
        }
        // Where lines end within the plot, the grid must not strike the name through.
        let widest = texts.iter().map(|text| self.font.width(text)).fold(0.0, f64::max);
        let half = texts.len() as f64 * self.font.line_height() / 2.0 - 1.0;
        let corners = ((at.0 - 1.0, at.1 - half), (at.0 + widest + 1.0, at.1 + half));
        canvas.filled(corners.0, corners.1, [255; 3], false);
        let first = at.1 - (texts.len() as f64 - 1.0) / 2.0 * self.font.line_height();
        for (number, text) in texts.iter().enumerate() {
            let y = first + number as f64 * self.font.line_height();
            canvas.text((at.0, y), text, self.font, darker(ink), Anchor::Start);
        }
    }
}

fn drawn(panel: &Panel) -> impl Iterator<Item = &Line> {
    panel.lines.iter().filter(|line| !line.points.is_empty())
}

/// An entry of the legend.
#[derive(Clone, Debug)]
pub struct Entry {
    name: String,
    colour: Colour,
    /// How its line is drawn; bars have none.
    stroke: Option<Stroke>,
}

impl Entry {
    /// Pixels that it takes, with the free space after it.
    pub fn width(&self, font: Font) -> f64 {
        self.swatch(font) + font.width(&self.name) + APART
    }

    /// Pixels of the sample, with the free space after it: a box for bars.
    fn swatch(&self, font: Font) -> f64 {
        if self.stroke.is_some() { SAMPLE + 6.0 } else { font.size + 6.0 }
    }

    /// Draws it with the middle of its left side at `at`.
    pub fn draw(&self, canvas: &mut Canvas, (x, y): Place, font: Font) {
        match self.stroke {
            Some(stroke) => canvas.sample((x, y), (x + SAMPLE, y), self.colour, stroke),
            None => {
                let half = font.size / 2.0;
                canvas.filled((x, y - half), (x + font.size, y + half), self.colour, false);
            }
        }
        let begin = x + self.swatch(font);
        canvas.text((begin, y), &self.name, font, INK, Anchor::Start);
    }
}

/// Entries for everything that has data and no name at its end.
pub fn entries(panel: &Panel, lines_are_named: bool) -> Vec<Entry> {
    let has_data = |bars: &&Bars| bars.boxes.iter().any(|[.., low, high]| high > low);
    let bars = panel.bars.iter().filter(has_data);
    let bars = bars.map(|bars| (&bars.name, bars.colour, None));
    let lines = drawn(panel).filter(|_| !lines_are_named);
    let lines = lines.map(|line| (&line.name, line.colour, Some(line.stroke)));
    let named = bars.chain(lines).filter(|(name, ..)| !name.is_empty());
    named
        .map(|(name, number, stroke)| Entry { name: name.clone(), colour: colour(number), stroke })
        .collect()
}

/// Entries in rows no wider than `width`.
pub fn legend_rows(entries: Vec<Entry>, font: Font, width: f64) -> Vec<Vec<Entry>> {
    let mut rows: Vec<Vec<Entry>> = Vec::new();
    let mut used = f64::INFINITY;
    for entry in entries {
        let needed = entry.width(font);
        if used + needed - APART > width {
            rows.push(Vec::new());
            used = 0.0;
        }
        used += needed;
        if let Some(row) = rows.last_mut() {
            row.push(entry);
        }
    }
    rows
}
