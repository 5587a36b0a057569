//! The mountain as a surface: data size to the left front, skip to the right, throughput upwards
//! on a logarithmic scale, so that both ridges show. Colours are those of viridis, which rise in
//! lightness with the value and suit all kinds of colour vision.

use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{PathElement, Polygon, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoTextStyle, RGBColor, ShapeStyle, TextStyle, WHITE};
use plotters_svg::SVGBackend;
use tidepool_proto::Result;

use crate::commands::model::chart::{LABEL_FONT, TITLE_FONT, drawing};

const SIZE: (i32, i32) = (1100, 760);
/// The far corner of the floor: smallest data, no skip.
const ORIGIN: (f64, f64) = (500.0, 400.0);
/// From there to the largest data, along the floor.
const TO_LARGE: (f64, f64) = (-330.0, 190.0);
/// From there to the largest skip, along the floor.
const TO_SKIPS: (f64, f64) = (450.0, 130.0);
/// Height of the highest value.
const HEIGHT: f64 = 320.0;

/// Viridis, from the lowest to the highest value.
const COLOURS: [(u8, u8, u8); 9] = [
    (68, 1, 84),
    (71, 44, 122),
    (59, 81, 139),
    (44, 113, 142),
    (33, 144, 141),
    (39, 173, 129),
    (92, 200, 99),
    (170, 220, 50),
    (253, 231, 37),
];

/// Values over two rising axes of cases.
pub struct Surface<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// Data sizes, as texts.
    pub sizes: Vec<String>,
    /// Skips, as texts.
    pub skips: Vec<String>,
    /// Value of a size and a skip; the outer index is the size. Above zero.
    pub values: Vec<Vec<f64>>,
    /// What the values are, with the unit.
    pub unit: &'a str,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Places on the paper, and the scale of the values.
struct View {
    low: f64,
    high: f64,
}

impl View {
    fn of(surface: &Surface<'_>) -> Self {
        let all = || surface.values.iter().flatten().copied().filter(|value| *value > 0.0);
        let low = all().fold(f64::INFINITY, f64::min).log10().floor();
        let high = all().fold(0.0, f64::max).log10();
        // Room above the summit, and a scale even where all values are the same.
        View { low: if low.is_finite() { low } else { 0.0 }, high: (high + 0.05).max(low + 0.5) }
    }

    /// From 0 to 1.
    fn scaled(&self, value: f64) -> f64 {
        ((value.max(1e-12).log10() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// `large` and `skip` from 0 to 1 along the floor, `up` from 0 to 1.
    fn place(large: f64, skip: f64, up: f64) -> (i32, i32) {
        let x = ORIGIN.0 + large * TO_LARGE.0 + skip * TO_SKIPS.0;
        let y = ORIGIN.1 + large * TO_LARGE.1 + skip * TO_SKIPS.1 - up * HEIGHT;
        (x.round() as i32, y.round() as i32)
    }
}

fn colour(share: f64) -> RGBColor {
    let place = share.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let below = (place.floor() as usize).min(COLOURS.len() - 2);
    let part = place - below as f64;
    let mix = |from: u8, to: u8| (f64::from(from) * (1.0 - part) + f64::from(to) * part) as u8;
    let (from, to) = (COLOURS[below], COLOURS[below + 1]);
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

fn along(index: usize, count: usize) -> f64 {
    index as f64 / (count.max(2) - 1) as f64
}

/// The surface as SVG text.
pub fn svg(surface: &Surface<'_>) -> Result<String> {
    let mut text = String::new();
    {
        let size = (SIZE.0 as u32, SIZE.1 as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        let view = View::of(surface);
        walls(&area, &view)?;
        quads(&area, &view, surface)?;
        labels(&area, surface)?;
        scale(&area, &view, surface)?;
        area.present().map_err(drawing)?;
    }
    Ok(text)
}

fn line(area: &Area<'_>, points: Vec<(i32, i32)>, style: ShapeStyle) -> Result<()> {
    area.draw(&PathElement::new(points, style)).map_err(drawing)
}

fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    across: HPos,
    font: (&'static str, i32),
) -> Result<()> {
    let style: TextStyle<'_> = font.into_text_style(area).pos(Pos::new(across, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(drawing)
}

/// Whole powers of ten on the scale, and those between that people read as round.
fn marks(view: &View) -> Vec<f64> {
    let decades = (view.low as i32..=view.high.ceil() as i32).map(|power| 10_f64.powi(power));
    let marks = decades.flat_map(|decade| [decade, 2.0 * decade, 5.0 * decade]);
    marks.filter(|mark| (view.low - 1e-9..=view.high).contains(&mark.log10())).collect()
}

fn walls(area: &Area<'_>, view: &View) -> Result<()> {
    let thin = BLACK.mix(0.15).stroke_width(1);
    for mark in marks(view) {
        let up = view.scaled(mark);
        let corners = [(1.0, 0.0), (0.0, 0.0), (0.0, 1.0)];
        let points = corners.map(|(large, skip)| View::place(large, skip, up)).to_vec();
        line(area, points, thin)?;
    }
    for (large, skip) in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)] {
        let ends = vec![View::place(large, skip, 0.0), View::place(large, skip, 1.0)];
        line(area, ends, BLACK.mix(0.4).stroke_width(1))?;
    }
    let floor = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0)];
    let floor = floor.map(|(large, skip)| View::place(large, skip, 0.0)).to_vec();
    line(area, floor, BLACK.mix(0.6).stroke_width(1))
}

/// From the back to the front, so that what is near covers what is far.
fn quads(area: &Area<'_>, view: &View, surface: &Surface<'_>) -> Result<()> {
    let (rows, columns) = (surface.sizes.len(), surface.skips.len());
    let corner = |row: usize, column: usize| {
        let up = view.scaled(surface.values[row][column]);
        (View::place(along(row, rows), along(column, columns), up), up)
    };
    for row in 0..rows.saturating_sub(1) {
        for column in 0..columns.saturating_sub(1) {
            let corners = [(0, 0), (1, 0), (1, 1), (0, 1)]
                .map(|(down, right)| corner(row + down, column + right));
            let mean = corners.iter().map(|(_, up)| up).sum::<f64>() / 4.0;
            let mut points: Vec<(i32, i32)> = corners.iter().map(|(point, _)| *point).collect();
            area.draw(&Polygon::new(points.clone(), colour(mean).filled())).map_err(drawing)?;
            points.push(points[0]);
            line(area, points, BLACK.mix(0.55).stroke_width(1))?;
        }
    }
    Ok(())
}

fn labels(area: &Area<'_>, surface: &Surface<'_>) -> Result<()> {
    write(area, surface.title, (SIZE.0 / 2, 26), HPos::Center, TITLE_FONT)?;
    let tick = BLACK.mix(0.6).stroke_width(1);
    for (column, skip) in surface.skips.iter().enumerate() {
        let (x, y) = View::place(1.0, along(column, surface.skips.len()), 0.0);
        line(area, vec![(x, y), (x - 6, y + 8)], tick)?;
        write(area, skip, (x - 10, y + 20), HPos::Center, LABEL_FONT)?;
    }
    for (row, size) in surface.sizes.iter().enumerate() {
        let (x, y) = View::place(along(row, surface.sizes.len()), 1.0, 0.0);
        line(area, vec![(x, y), (x + 9, y + 4)], tick)?;
        write(area, size, (x + 14, y + 8), HPos::Left, LABEL_FONT)?;
    }
    let (x, y) = View::place(1.0, 0.5, 0.0);
    write(area, "skip after each read of 1 MiB", (x - 60, y + 62), HPos::Center, LABEL_FONT)?;
    let (x, y) = View::place(0.5, 1.0, 0.0);
    write(area, "data size", (x + 90, y + 30), HPos::Left, LABEL_FONT)
}

fn scale(area: &Area<'_>, view: &View, surface: &Surface<'_>) -> Result<()> {
    let (x, top) = View::place(1.0, 0.0, 1.0);
    for mark in marks(view) {
        let (_, y) = View::place(1.0, 0.0, view.scaled(mark));
        line(area, vec![(x - 6, y), (x, y)], BLACK.mix(0.6).stroke_width(1))?;
        let text = crate::commands::model::chart::number(mark);
        write(area, &text, (x - 10, y), HPos::Right, LABEL_FONT)?;
    }
    write(area, surface.unit, (x, top - 22), HPos::Center, LABEL_FONT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_labels_and_cells_are_there() {
        let surface = Surface {
            title: "a mountain",
            sizes: ["1MiB", "2MiB", "4MiB"].map(str::to_owned).to_vec(),
            skips: ["none", "64KiB"].map(str::to_owned).to_vec(),
            values: vec![vec![8.0, 7.0], vec![0.9, 0.8], vec![0.4, 0.3]],
            unit: "GB/s",
        };
        let text = svg(&surface).unwrap();
        for label in ["a mountain", "1MiB", "4MiB", "64KiB", "GB/s", "0.5", "data size"] {
            assert!(text.contains(label), "{label}");
        }
        assert_eq!(text.matches("<polygon").count(), 2, "a cell between each four points");
    }

    #[test]
    fn one_value_has_a_scale_too() {
        let surface = Surface {
            title: "flat",
            sizes: vec!["1".to_owned()],
            skips: vec!["0".to_owned()],
            values: vec![vec![1.0]],
            unit: "GB/s",
        };
        assert!(svg(&surface).unwrap().contains("flat"));
    }
}
