//! Charts of lines and bars. What a chart shows stands above it in words; lines are named at their
//! ends, and what has no room there stands in a legend beside the data, never on it. Colours are
//! those of Okabe and Ito, which people of all kinds of colour vision tell apart; lines differ by
//! dashes as well.

mod heading;
mod layout;
mod marks;
mod names;
mod panel;
mod plot;

use crate::canvas::{Canvas, Place};

pub use self::heading::Heading;
pub use self::panel::{
    Arrangement, Band, Bars, COLOURS, Figure, Line, MARGIN, Mark, Panel, Paper, Side, colour,
};
pub use crate::canvas::Stroke;

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
