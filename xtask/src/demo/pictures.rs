//! The pictures of the demo, as SVG text.

use anyhow::{Result, anyhow};
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::coord::ranged1d::{IntoSegmentedCoord, SegmentValue};
use plotters::drawing::IntoDrawingArea;
use plotters::element::{Circle, Rectangle};
use plotters::series::LineSeries;
use plotters::style::{Color, RGBColor, WHITE};
use plotters_svg::SVGBackend;

use super::measurement::{Measurement, Side};

const SIZE: (u32, u32) = (900, 420);
/// Of labels.
pub const FONT: (&str, i32) = ("sans-serif", 15);
/// Of titles.
pub const TITLE: (&str, i32) = ("sans-serif", 20);
/// Lines in the background.
pub const GRID: RGBColor = RGBColor(213, 221, 229);
const BARE: RGBColor = RGBColor(176, 112, 74);
const TIDE: RGBColor = RGBColor(23, 118, 150);
const MAPPED: RGBColor = RGBColor(23, 118, 150);
const STORE: RGBColor = RGBColor(120, 190, 205);
const PFS: RGBColor = RGBColor(176, 112, 74);

/// A bar: number of the iteration, place within it from 0 to 1, from and to on the value axis.
struct Bar {
    number: u32,
    place: (i32, i32),
    from: f64,
    to: f64,
}

/// Seconds of each iteration, both sides beside each other.
pub fn iterations(measurement: &Measurement) -> Result<String> {
    let bars = |side: &Side, place: (i32, i32)| -> Vec<Bar> {
        (1..)
            .zip(&side.iterations)
            .map(|(number, iteration)| Bar { number, place, from: 0.0, to: iteration.seconds })
            .collect()
    };
    bar_chart(
        "Time of each iteration",
        "seconds",
        &[
            ("bare PFS", BARE, bars(&measurement.bare, (-30, -1))),
            ("Tidepool", TIDE, bars(&measurement.tidepool, (1, 30))),
        ],
    )
}

/// Bytes of each iteration on Tidepool, stacked by level.
pub fn levels(measurement: &Measurement) -> Result<String> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let mut stacks: [Vec<Bar>; 3] = Default::default();
    for (number, iteration) in (1..).zip(&measurement.tidepool.iterations) {
        let served = iteration.served;
        let mut from = 0.0;
        for (stack, bytes) in stacks.iter_mut().zip([served.pfs, served.store, served.mapped]) {
            let to = from + gib(bytes);
            stack.push(Bar { number, place: (-28, 28), from, to });
            from = to;
        }
    }
    let [pfs, store, mapped] = stacks;
    bar_chart(
        "Bytes of each iteration by level, Tidepool",
        "GiB",
        &[
            ("PFS", PFS, pfs),
            ("memory, through the daemon", STORE, store),
            ("memory, without the daemon", MAPPED, mapped),
        ],
    )
}

/// Seconds since the start of the job, both sides.
pub fn cumulative(measurement: &Measurement) -> Result<String> {
    let points = |side: &Side| -> Vec<(f64, f64)> {
        let mut sum = 0.0;
        let rest = (1..).zip(&side.iterations).map(|(number, iteration)| {
            sum += iteration.seconds;
            (f64::from(number), sum)
        });
        std::iter::once((0.0, 0.0)).chain(rest.collect::<Vec<_>>()).collect()
    };
    let sides = [
        ("bare PFS", BARE, points(&measurement.bare)),
        ("Tidepool", TIDE, points(&measurement.tidepool)),
    ];
    let most = |axis: fn(&(f64, f64)) -> f64| {
        sides.iter().flat_map(|(_, _, points)| points).map(axis).fold(0.0, f64::max)
    };
    let (x_most, y_most) = (most(|point| point.0), most(|point| point.1));
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        let mut chart = ChartBuilder::on(&area)
            .caption("Time since the start of the job", TITLE)
            .margin(14)
            .x_label_area_size(46)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..x_most.max(1.0), 0.0..headroom(y_most))
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .label_style(FONT)
            .x_desc("iterations done")
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_desc("seconds")
            .draw()
            .map_err(drawing)?;
        for (name, colour, points) in sides.clone() {
            chart
                .draw_series(LineSeries::new(points.clone(), colour.stroke_width(3)))
                .map_err(drawing)?
                .label(name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled())
                });
            let marks = points.into_iter().map(|point| Circle::new(point, 4, colour.filled()));
            chart.draw_series(marks).map_err(drawing)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(FONT)
            .background_style(WHITE)
            .border_style(GRID)
            .draw()
            .map_err(drawing)?;
        area.present().map_err(drawing)?;
    }
    Ok(text)
}

fn bar_chart(title: &str, unit: &str, series: &[(&str, RGBColor, Vec<Bar>)]) -> Result<String> {
    let bars = || series.iter().flat_map(|(_, _, bars)| bars);
    let numbers = bars().map(|bar| bar.number).max().unwrap_or(1);
    let most = bars().map(|bar| bar.to).fold(0.0, f64::max);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        // Thousandths of an iteration, so that bars can stand beside each other.
        let mut chart = ChartBuilder::on(&area)
            .caption(title, TITLE)
            .margin(14)
            .x_label_area_size(46)
            .y_label_area_size(64)
            .build_cartesian_2d((1..numbers).into_segmented(), 0.0..headroom(most))
            .map_err(drawing)?
            .set_secondary_coord(50..i32::try_from(numbers)? * 100 + 50, 0.0..headroom(most));
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .label_style(FONT)
            .x_desc("iteration")
            .x_labels(numbers as usize)
            .x_label_formatter(&|value| match value {
                SegmentValue::CenterOf(number) | SegmentValue::Exact(number) => number.to_string(),
                SegmentValue::Last => String::new(),
            })
            .y_desc(unit)
            .draw()
            .map_err(drawing)?;
        for (name, colour, bars) in series {
            let colour = *colour;
            let shapes = bars.iter().map(|bar| {
                let centre = bar.number as i32 * 100;
                let corners = [(centre + bar.place.0, bar.from), (centre + bar.place.1, bar.to)];
                Rectangle::new(corners, colour.filled())
            });
            chart.draw_secondary_series(shapes).map_err(drawing)?.label(*name).legend(
                move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled()),
            );
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(FONT)
            .background_style(WHITE)
            .border_style(GRID)
            .draw()
            .map_err(drawing)?;
        area.present().map_err(drawing)?;
    }
    Ok(text)
}

/// Room above the highest value for the legend.
fn headroom(most: f64) -> f64 {
    (most * 1.4).max(1e-3)
}

/// The error of a picture.
pub fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing a picture: {error}")
}
