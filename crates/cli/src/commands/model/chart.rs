//! Line charts as SVG and PNG. Colours are those of Okabe and Ito, which people of all kinds of
//! colour vision tell apart; lines differ by dashes as well. Draws; knows nothing of models.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plotters::chart::{ChartBuilder, ChartContext, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle};
use plotters::prelude::IntoLogRange;
use plotters::series::{DashedLineSeries, LineSeries, PointSeries};
use plotters::style::{BLACK, Color, RGBColor, WHITE};
use plotters_svg::SVGBackend;
use resvg::{tiny_skia, usvg};
use tidepool_proto::{Error, ErrorKind, Result};

/// Colours that go well together; a series names one by its number.
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(110, 110, 110),
];
/// Type of a chart's labels.
pub const LABEL_FONT: (&str, i32) = ("sans-serif", 15);
/// Type of a chart's title.
pub const TITLE_FONT: (&str, i32) = ("sans-serif", 19);
/// Pixels of a PNG for each unit of the SVG.
const PNG_SCALE: f32 = 2.0;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// A line.
    Solid,
    /// A dashed line.
    Dashed,
    /// A line with a mark at each point.
    Marked,
}

/// A named line.
#[derive(Clone, Debug)]
pub struct Series {
    /// For the legend; empty for a line without an entry.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
    /// Index into [`COLOURS`].
    pub colour: usize,
    /// How it is drawn.
    pub stroke: Stroke,
}

/// A part of a stacked bar.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Which case of the horizontal axis.
    pub case: usize,
    /// Lower end.
    pub from: f64,
    /// Upper end.
    pub to: f64,
    /// Index into [`COLOURS`].
    pub colour: usize,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with the unit.
    pub title: String,
    /// From and to.
    pub range: Range<f64>,
    /// Logarithmic.
    pub logarithmic: bool,
    /// Texts of the whole numbers from 0, where the axis counts cases instead of measuring.
    pub cases: Vec<String>,
}

impl Axis {
    /// A linear axis.
    pub fn linear(title: &str, range: Range<f64>) -> Self {
        Axis { title: title.to_owned(), range, logarithmic: false, cases: Vec::new() }
    }

    /// A logarithmic axis.
    pub fn logarithmic(title: &str, range: Range<f64>) -> Self {
        Axis { logarithmic: true, ..Axis::linear(title, range) }
    }

    /// An axis of cases.
    pub fn cases(title: &str, cases: Vec<String>) -> Self {
        let range = -0.5..cases.len() as f64 - 0.5;
        Axis { cases, ..Axis::linear(title, range) }
    }

    fn label(&self, value: f64) -> String {
        if self.cases.is_empty() {
            return number(value);
        }
        let near = (value - value.round()).abs() < 1e-9 && value >= 0.0;
        let case = near.then(|| self.cases.get(value.round() as usize)).flatten();
        case.cloned().unwrap_or_default()
    }
}

/// A number without digits that say nothing.
pub fn number(value: f64) -> String {
    let text = if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// One pair of axes with lines.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above the panel.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// Bars, drawn below the lines; a series without points gives them an entry in the legend.
    pub bars: Vec<Bar>,
    /// The lines.
    pub series: Vec<Series>,
    /// Where the legend has most room.
    pub legend: SeriesLabelPosition,
}

impl Panel {
    /// The upper end of an axis from 0 that leaves the legend of `entries` lines room above `most`.
    pub fn room_above(most: f64, entries: usize) -> f64 {
        (most * (1.08 + 0.06 * entries as f64)).max(f64::MIN_POSITIVE)
    }
}

/// Half the width of a bar, in parts of the distance between two.
const BAR_HALF: f64 = 0.32;

/// The error of a picture that cannot be drawn.
pub fn drawing(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, "drawing a picture", error.to_string())
}

/// Panels beside each other, as SVG text; `size` is in pixels, all panels together.
pub fn panels(panels: &[Panel], size: (u32, u32)) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        for (part, panel) in area.split_evenly((1, panels.len())).iter().zip(panels) {
            draw(part, panel)?;
        }
        area.present().map_err(drawing)?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(area: &Area<'_>, panel: &Panel) -> Result<()> {
    let (x, y) = (panel.x.range.clone(), panel.y.range.clone());
    match (panel.x.logarithmic, panel.y.logarithmic) {
        (false, false) => draw_on(area, panel, x, y),
        (true, false) => draw_on(area, panel, x.log_scale(), y),
        (false, true) => draw_on(area, panel, x, y.log_scale()),
        (true, true) => draw_on(area, panel, x.log_scale(), y.log_scale()),
    }
}

fn draw_on<X, Y>(area: &Area<'_>, panel: &Panel, x: X, y: Y) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, TITLE_FONT)
        .margin(12)
        .x_label_area_size(52)
        .y_label_area_size(74)
        .build_cartesian_2d(x, y)
        .map_err(drawing)?;
    // Cases get a label each; the spacing of others is the library's choice.
    let x_labels = if panel.x.cases.is_empty() { 8 } else { 2 * panel.x.cases.len() };
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .label_style(LABEL_FONT)
        .axis_desc_style(LABEL_FONT)
        .x_labels(x_labels)
        .y_labels(8)
        .x_desc(&panel.x.title)
        .y_desc(&panel.y.title)
        .x_label_formatter(&|value| panel.x.label(*value))
        .y_label_formatter(&|value| panel.y.label(*value))
        .draw()
        .map_err(drawing)?;
    let bars = panel.bars.iter().map(|bar| {
        let middle = bar.case as f64;
        let corners = [(middle - BAR_HALF, bar.from), (middle + BAR_HALF, bar.to)];
        Rectangle::new(corners, COLOURS[bar.colour % COLOURS.len()].filled())
    });
    chart.draw_series(bars).map_err(drawing)?;
    for series in &panel.series {
        draw_series(&mut chart, series)?;
    }
    if panel.series.iter().any(|series| !series.name.is_empty()) {
        chart
            .configure_series_labels()
            .position(panel.legend.clone())
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(LABEL_FONT)
            .legend_area_size(40)
            .margin(10)
            .draw()
            .map_err(drawing)?;
    }
    Ok(())
}

fn draw_series<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'_>, Cartesian2d<X, Y>>,
    series: &Series,
) -> Result<()>
where
    X: Ranged<ValueType = f64> + 'a,
    Y: Ranged<ValueType = f64> + 'a,
{
    let style = COLOURS[series.colour % COLOURS.len()].stroke_width(3);
    let points = series.points.clone();
    let marks = || {
        PointSeries::of_element(points.clone(), 4, style.filled(), &|at, size, style| {
            Circle::new(at, size, style)
        })
    };
    let annotation = match series.stroke {
        Stroke::Solid => chart.draw_series(LineSeries::new(points, style)),
        Stroke::Dashed => chart.draw_series(DashedLineSeries::new(points, 9, 6, style)),
        Stroke::Marked => {
            chart.draw_series(marks()).map_err(drawing)?;
            chart.draw_series(LineSeries::new(points, style))
        }
    };
    let annotation = annotation.map_err(drawing)?;
    if !series.name.is_empty() {
        let stroke = series.stroke;
        annotation.label(&series.name).legend(move |(x, y)| legend_sample(x, y, stroke, style));
    }
    Ok(())
}

fn legend_sample(
    x: i32,
    y: i32,
    stroke: Stroke,
    style: plotters::style::ShapeStyle,
) -> PathElement<(i32, i32)> {
    let end = match stroke {
        Stroke::Solid | Stroke::Marked => x + 32,
        Stroke::Dashed => x + 14,
    };
    PathElement::new([(x, y), (end, y)], style)
}

/// The picture as PNG.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let mut options = usvg::Options::default();
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    options.font_family = "DejaVu Sans".to_owned();
    let tree = usvg::Tree::from_str(svg, &options).map_err(drawing)?;
    let size = tree.size().to_int_size();
    let scaled = size.scale_by(PNG_SCALE).ok_or_else(|| drawing("its size is not possible"))?;
    let mut pixels = tiny_skia::Pixmap::new(scaled.width(), scaled.height())
        .ok_or_else(|| drawing("its size is not possible"))?;
    let scale = tiny_skia::Transform::from_scale(PNG_SCALE, PNG_SCALE);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    pixels.encode_png().map_err(drawing)
}

/// Writes `name.svg` and `name.png` into `directory`, which is made if it is missing; returns both.
pub fn write(directory: &Path, name: &str, svg: &str) -> Result<[PathBuf; 2]> {
    let operation = || format!("writing pictures into {}", directory.display());
    std::fs::create_dir_all(directory).map_err(|source| Error::pfs(operation(), source))?;
    let paths = ["svg", "png"].map(|suffix| directory.join(format!("{name}.{suffix}")));
    for (path, content) in paths.iter().zip([svg.as_bytes().to_vec(), png(svg)?]) {
        std::fs::write(path, content).map_err(|source| Error::pfs(operation(), source))?;
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_becomes_svg_and_png_with_its_labels() {
        let series = Series {
            name: "a line".to_owned(),
            points: vec![(1.0, 10.0), (100.0, 1000.0)],
            colour: 1,
            stroke: Stroke::Dashed,
        };
        let panel = Panel {
            title: "title".to_owned(),
            x: Axis::logarithmic("nodes", 1.0..100.0),
            y: Axis::linear("GB/s", 0.0..1000.0),
            bars: Vec::new(),
            series: vec![series],
            legend: SeriesLabelPosition::UpperLeft,
        };
        let svg = panels(&[panel.clone(), panel], (900, 400)).unwrap();
        for text in ["title", "nodes", "GB/s", "a line"] {
            assert_eq!(svg.matches(text).count(), 2, "{text}");
        }
        let directory = tempfile::tempdir().unwrap();
        let paths = write(&directory.path().join("new"), "chart", &svg).unwrap();
        let png = std::fs::read(&paths[1]).unwrap();
        assert!(png.starts_with(b"\x89PNG"));
        let file = directory.path().join("new/chart.svg");
        assert!(write(&file, "below-a-file", &svg).is_err(), "a file is no directory");
    }

    #[test]
    fn numbers_carry_no_idle_digits() {
        assert_eq!([0.0, 0.25, 1.5, 20.0, 1250.4].map(number), ["0", "0.25", "1.5", "20", "1250"]);
    }
}
