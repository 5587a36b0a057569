//! Computes where the parts of a panel lie: words above, names to the right, the plot in between,
//! the horizontal axis below.

use super::heading::Heading;
use super::marks::{self, Placed};
use super::names::{self, Names};
use super::panel::{MARGIN, Panel, Paper, colour};
use super::plot::Plot;
use crate::axis::{Axis, Tick};
use crate::canvas::{Anchor, Canvas, EDGE, GRID, INK, Place, SOFT};
use crate::text::Font;

/// Free space between parts.
const GAP: f64 = 6.0;

/// A panel that is measured and ready to be drawn.
pub struct Plan<'a> {
    panel: &'a Panel,
    paper: &'a Paper,
    /// Pixels from the panel's left side to the plot's left and right.
    plot: (f64, f64),
    heading: Heading,
    /// Entries of the legend, row by row.
    legend: Vec<Vec<names::Entry>>,
    names: Option<Names>,
    x: Axis,
    y: Axis,
    x_labels: Vec<(f64, Vec<String>)>,
    y_ticks: Vec<Tick>,
    x_title: Vec<String>,
    marks: Vec<Vec<Placed>>,
}

impl<'a> Plan<'a> {
    /// Measures a panel of this width.
    pub fn of(panel: &'a Panel, width: f64, paper: &'a Paper) -> Self {
        let font = paper.label;
        let inner = width - 2.0 * MARGIN;
        let y_labels = if paper.is_narrow() { 5 } else { 7 };
        let (y, y_ticks) = panel.y.clone().labelled(y_labels);
        let widest = y_ticks.iter().map(|tick| font.width(&tick.text)).fold(0.0, f64::max);
        let left = MARGIN + widest + GAP;
        let names = Names::of(panel, font, width);
        let right = width - names.as_ref().map_or(MARGIN + GAP, |names| names.width + MARGIN);
        let pixels = (right - left).max(40.0);
        let (x, x_ticks) = panel.x.clone().labelled((pixels / 70.0) as usize);
        let along = |value: f64| left + x.place(value) * pixels;
        let x_labels = thinned(&x_ticks, &x, font, pixels, &along, width);
        let entries = names::entries(panel, names.is_some());
        let marks = marks::rows(&panel.marks, font, &along, (left, right));
        Plan {
            panel,
            paper,
            plot: (left, right),
            heading: Heading::of(&panel.title, &panel.notes, paper, inner),
            legend: names::legend_rows(entries, font, inner),
            names,
            x_title: font.wrapped(&x.title, pixels),
            x,
            y,
            x_labels,
            y_ticks,
            marks,
        }
    }

    /// Pixels above the plot.
    pub fn head_height(&self) -> f64 {
        let font = self.paper.label;
        let lines = self.legend.len() + self.marks.len() + 1;
        self.heading.height() + lines as f64 * font.line_height() + 3.0 * GAP
    }

    /// Pixels below the plot.
    pub fn foot_height(&self) -> f64 {
        let labels = self.x_labels.iter().map(|(_, lines)| lines.len()).max().unwrap_or(0);
        (labels + self.x_title.len()) as f64 * self.paper.label.line_height() + 2.0 * GAP
    }

    /// Draws the panel with its upper left corner at `at`, `head` pixels above its plot.
    pub fn draw(&self, canvas: &mut Canvas, at: Place, head: f64, plot_height: f64) {
        self.words(canvas, at);
        let plot = Plot {
            left: at.0 + self.plot.0,
            right: at.0 + self.plot.1,
            top: at.1 + head,
            bottom: at.1 + head + plot_height,
        };
        for band in &self.panel.bands {
            let (from, to) = (plot.x(&self.x, band.from), plot.x(&self.x, band.to));
            canvas.filled((from, plot.top), (to, plot.bottom), [236, 239, 242], false);
        }
        self.axes(canvas, &plot);
        self.contents(canvas, &plot);
        if let Some(names) = &self.names {
            let ends = self.panel.lines.iter().filter_map(|line| {
                Some((plot.place(&self.x, &self.y, *line.points.last()?), colour(line.colour)))
            });
            names.draw(canvas, &ends.collect::<Vec<_>>(), (plot.top, plot.bottom));
        }
    }

    /// Title, notes and legend.
    fn words(&self, canvas: &mut Canvas, (x, mut y): Place) {
        let left = x + MARGIN;
        self.heading.draw(canvas, (left, y));
        y += self.heading.height() + GAP;
        let font = self.paper.label;
        for row in &self.legend {
            let mut at = left;
            let middle = y + font.line_height() / 2.0;
            for entry in row {
                entry.draw(canvas, (at, middle), font);
                at += entry.width(font);
            }
            y += font.line_height();
        }
    }

    fn axes(&self, canvas: &mut Canvas, plot: &Plot) {
        let font = self.paper.label;
        for tick in &self.y_ticks {
            let y = plot.y(&self.y, tick.value);
            canvas.rule((plot.left, y), (plot.right, y), GRID, 1.0);
            canvas.text((plot.left - GAP, y), &tick.text, font, SOFT, Anchor::End);
        }
        // The unit stands on top of its axis, not along it: nobody has to turn the head.
        let rows = self.marks.len() as f64 + 0.5;
        let above = plot.top - 1.5 * GAP - rows * font.line_height();
        let start = plot.left - self.plot.0 + MARGIN;
        canvas.text((start, above), &self.y.title, font, SOFT, Anchor::Start);
        canvas.rule((plot.left, plot.bottom), (plot.right, plot.bottom), EDGE, 1.0);
        for (at, lines) in &self.x_labels {
            let x = plot.left - self.plot.0 + at;
            if !self.x.is_of_cases() {
                canvas.rule((x, plot.bottom), (x, plot.bottom + 4.0), EDGE, 1.0);
            }
            for (number, text) in lines.iter().enumerate() {
                let y = plot.bottom + GAP + (number as f64 + 0.5) * font.line_height();
                canvas.text((x, y), text, font, SOFT, Anchor::Middle);
            }
        }
        let labels = self.x_labels.iter().map(|(_, lines)| lines.len()).max().unwrap_or(0);
        let middle = f64::midpoint(plot.left, plot.right);
        for (number, text) in self.x_title.iter().enumerate() {
            let rows = (labels + number) as f64 + 0.5;
            let y = plot.bottom + GAP * 1.5 + rows * font.line_height();
            canvas.text((middle, y), text, font, SOFT, Anchor::Middle);
        }
    }

    fn contents(&self, canvas: &mut Canvas, plot: &Plot) {
        let font = self.paper.label;
        for bars in &self.panel.bars {
            for [left, right, low, high] in bars.boxes.iter().filter(|[.., low, high]| high > low) {
                let one = plot.place(&self.x, &self.y, (*left, *low));
                let other = plot.place(&self.x, &self.y, (*right, *high));
                canvas.filled(one, other, colour(bars.colour), true);
            }
        }
        marks::draw(canvas, &self.marks, plot, font, plot.left - self.plot.0);
        for line in &self.panel.lines {
            let places = line.points.iter().map(|point| plot.place(&self.x, &self.y, *point));
            canvas.data(&places.collect::<Vec<_>>(), colour(line.colour), line.stroke);
        }
        let figures: Vec<(Place, &str)> = (self.panel.figures.iter())
            .map(|figure| (plot.place(&self.x, &self.y, figure.at), figure.text.as_str()))
            .collect();
        let apart = |((one, text), (other, next)): (&(Place, &str), &(Place, &str))| {
            let needed = f64::midpoint(font.width(text), font.width(next)) + 3.0;
            (one.0 - other.0).abs() >= needed || (one.1 - other.1).abs() >= font.line_height()
        };
        let all_apart = figures
            .iter()
            .enumerate()
            .all(|(index, one)| figures[..index].iter().all(|other| apart((one, other))));
        for ((x, y), text) in figures.iter().filter(|_| all_apart) {
            let above = (*x, y - font.size * 0.75);
            canvas.text(above, text, font, INK, Anchor::Middle);
        }
    }
}

/// Labels of the horizontal axis, in pixels from the panel's left: those of cases broken into
/// lines, others left out where they would touch the one before.
fn thinned(
    ticks: &[Tick],
    axis: &Axis,
    font: Font,
    pixels: f64,
    along: &dyn Fn(f64) -> f64,
    width: f64,
) -> Vec<(f64, Vec<String>)> {
    let room = if axis.is_of_cases() { pixels / ticks.len().max(1) as f64 - 4.0 } else { pixels };
    let mut labels: Vec<(f64, Vec<String>)> = Vec::new();
    let mut end = f64::NEG_INFINITY;
    for tick in ticks {
        let lines = font.wrapped(&tick.text, room);
        let half = lines.iter().map(|line| font.width(line)).fold(0.0, f64::max) / 2.0;
        // A label at the rim moves inwards rather than out of the picture.
        let at = along(tick.value).clamp(half + 2.0, (width - half - 2.0).max(half + 2.0));
        if at - half > end + 4.0 {
            end = at + half;
            labels.push((at, lines));
        }
    }
    labels
}
