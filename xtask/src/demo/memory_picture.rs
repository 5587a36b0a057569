//! The picture of who had how much memory when, one panel a sizing on the same axes. In colours
//! that are told apart without seeing red or green, and by line as well.

use anyhow::Result;
use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::{Color, RGBColor, WHITE};
use plotters_svg::SVGBackend;

use super::contention::{Case, Contention, Sample};
use super::pictures::{FONT, GRID, TITLE, drawing};

const SIZE: (u32, u32) = (900, 980);
const LEGEND_HEIGHT: u32 = 40;
const DEMAND: RGBColor = RGBColor(213, 94, 0);
const STORE: RGBColor = RGBColor(0, 114, 178);
const TARGET: RGBColor = RGBColor(30, 30, 30);
const FREE: RGBColor = RGBColor(0, 158, 115);
const ITERATION: RGBColor = RGBColor(240, 240, 240);

/// A line of a panel.
struct Line {
    name: &'static str,
    colour: RGBColor,
    width: u32,
    dashed: bool,
    value: fn(&Sample) -> u64,
}

const LINES: [Line; 4] = [
    Line {
        name: "demand but the store",
        colour: DEMAND,
        width: 3,
        dashed: false,
        value: |sample| sample.demand_bytes,
    },
    Line {
        name: "free for the job",
        colour: FREE,
        width: 1,
        dashed: false,
        value: |sample| sample.free_bytes,
    },
    Line {
        name: "store",
        colour: STORE,
        width: 3,
        dashed: false,
        value: |sample| sample.store_bytes,
    },
    Line {
        name: "target of the store",
        colour: TARGET,
        width: 2,
        dashed: true,
        value: |sample| sample.target_bytes,
    },
];

/// All panels, as SVG text.
pub fn draw(contention: &Contention) -> Result<String> {
    let samples = || contention.cases.iter().flat_map(|case| &case.samples);
    let last_s = samples().map(|sample| sample.at_s).fold(1.0, f64::max);
    let values = samples().flat_map(|sample| LINES.iter().map(|line| (line.value)(sample)));
    // What others free meanwhile would flatten all else.
    let most = gib(values.max().unwrap_or(0).clamp(1, contention.shares.pool_bytes)) * 1.1;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        let (top, panels) = area.split_vertically(LEGEND_HEIGHT);
        legend(&top)?;
        let count = contention.cases.len().max(1);
        for (case, area) in contention.cases.iter().zip(panels.split_evenly((count, 1))) {
            panel(&area, case, (last_s, most))?;
        }
        area.present().map_err(drawing)?;
    }
    Ok(text)
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    case: &Case,
    (last_s, most): (f64, f64),
) -> Result<()> {
    let mut chart = ChartBuilder::on(area)
        .caption(format!("Memory over time, {}", case.name), TITLE)
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last_s, 0.0..most)
        .map_err(drawing)?;
    // Every other iteration of K-means as a band.
    let bands = case.iterations.iter().step_by(2).map(|iteration| {
        let end = (iteration.started_s + iteration.seconds).min(last_s);
        Rectangle::new([(iteration.started_s, 0.0), (end, most)], ITERATION.filled())
    });
    chart.draw_series(bands).map_err(drawing)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(WHITE.mix(0.0))
        .label_style(FONT)
        .x_desc("seconds")
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_desc("GiB")
        .y_labels(6)
        .draw()
        .map_err(drawing)?;
    for line in &LINES {
        let value = line.value;
        let points = case.samples.iter().map(|sample| (sample.at_s, gib(value(sample)).min(most)));
        let style = line.colour.stroke_width(line.width);
        if line.dashed {
            chart.draw_series(DashedLineSeries::new(points, 7, 5, style)).map_err(drawing)?;
        } else {
            chart.draw_series(LineSeries::new(points, style)).map_err(drawing)?;
        }
    }
    Ok(())
}

/// One for all panels, in a row above them.
fn legend(area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
    const MIDDLE: i32 = LEGEND_HEIGHT as i32 / 2;
    const KEY_WIDTH: i32 = 24;
    let mut x = 24;
    let name = |x: i32, text: &str| -> Result<i32> {
        let place = (x + KEY_WIDTH + 6, MIDDLE - 7);
        area.draw(&Text::new(text.to_owned(), place, FONT)).map_err(drawing)?;
        Ok(x + KEY_WIDTH + 24 + text.len() as i32 * FONT.1 / 2)
    };
    for line in &LINES {
        let style = line.colour.stroke_width(line.width);
        let pieces = if line.dashed { vec![(0, 9), (14, 24)] } else { vec![(0, KEY_WIDTH)] };
        for (from, to) in pieces {
            let key = PathElement::new(vec![(x + from, MIDDLE), (x + to, MIDDLE)], style);
            area.draw(&key).map_err(drawing)?;
        }
        x = name(x, line.name)?;
    }
    let corners = [(x, MIDDLE - 8), (x + KEY_WIDTH, MIDDLE + 8)];
    area.draw(&Rectangle::new(corners, ITERATION.filled())).map_err(drawing)?;
    name(x, "every other iteration").map(drop)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
