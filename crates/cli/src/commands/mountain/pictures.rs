//! The pictures of a mountain: the surface (figure 2-9), the slice over data sizes without skips
//! (2-10), the slice over skips at two data sizes (2-11), each with the prediction beside it.

use std::path::{Path, PathBuf};

use plotters::chart::SeriesLabelPosition;
use tidepool_proto::Result;

use super::results::{Point, Results};
use super::surface::{self, Surface};
use crate::commands::model::chart::{self, Axis, Panel, Series, Stroke};
use crate::output;

const GB: f64 = 1e9;

/// Draws all pictures into `directory`; points that are missing leave a surface out.
pub fn draw(results: &Results, directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let measured = |point: &Point| point.bytes_per_second;
    let predicted = |point: &Point| point.predicted;
    for (name, title, value) in [
        ("mountain", "Storage mountain, measured", measured as fn(&Point) -> f64),
        ("mountain-predicted", "Storage mountain, predicted", predicted),
    ] {
        if let Some(surface) = surface_of(results, title, value) {
            paths.extend(chart::write(directory, name, &surface::svg(&surface)?)?);
        }
    }
    let slices = [("slice-sizes", over_sizes(results)), ("slice-skips", over_skips(results))];
    for (name, panel) in slices {
        if let Some(panel) = panel {
            paths.extend(chart::write(directory, name, &chart::panels(&[panel], (900, 540))?)?);
        }
    }
    Ok(paths)
}

fn surface_of<'a>(
    results: &Results,
    title: &'a str,
    value: fn(&Point) -> f64,
) -> Option<Surface<'a>> {
    let settings = &results.settings;
    let row = |size: &u64| -> Option<Vec<f64>> {
        let cell = |skip: &u64| Some(value(results.point(*size, *skip)?) / GB);
        settings.skips.iter().map(cell).collect()
    };
    let values = settings.sizes.iter().map(row).collect::<Option<Vec<_>>>()?;
    let enough = settings.sizes.len() > 1 && settings.skips.len() > 1;
    enough.then(|| Surface {
        title,
        sizes: names(&settings.sizes),
        skips: names(&settings.skips),
        values,
        unit: "GB/s",
    })
}

fn names(bytes: &[u64]) -> Vec<String> {
    bytes
        .iter()
        .map(|bytes| if *bytes == 0 { "0".to_owned() } else { output::size(*bytes) })
        .collect()
}

/// A power of ten below and above all values, for a logarithmic axis.
fn decades(series: &[Series]) -> std::ops::Range<f64> {
    let all = || series.iter().flat_map(|one| &one.points).map(|(_, y)| *y);
    let low = all().fold(f64::INFINITY, f64::min);
    let high = all().fold(0.0, f64::max);
    // The decades above the lines are the legend's.
    let room = 0.15 + 0.2 * series.len() as f64;
    10_f64.powf((low.log10() * 2.0 - 0.2).floor() / 2.0)..10_f64.powf(high.log10() + room)
}

fn both(name: &str, colour: usize, points: &[(f64, &Point)]) -> [Series; 2] {
    let line = |value: fn(&Point) -> f64| {
        points.iter().map(|(x, point)| (*x, value(point) / GB)).collect::<Vec<_>>()
    };
    [
        Series {
            name: format!("{name}measured"),
            points: line(|point| point.bytes_per_second),
            colour,
            stroke: Stroke::Marked,
        },
        Series {
            name: format!("{name}predicted"),
            points: line(|point| point.predicted),
            colour,
            stroke: Stroke::Dashed,
        },
    ]
}

fn over_sizes(results: &Results) -> Option<Panel> {
    let settings = &results.settings;
    let skip = *settings.skips.first()?;
    let points: Vec<(f64, &Point)> = (settings.sizes.iter().enumerate())
        .filter_map(|(index, size)| Some((index as f64, results.point(*size, skip)?)))
        .collect();
    if points.is_empty() {
        return None;
    }
    let series = both("", 1, &points).to_vec();
    let capacity = output::size(settings.capacity_bytes);
    Some(Panel {
        title: format!("Over data size, skip {}", names(&[skip])[0]),
        x: Axis::cases(&format!("data size (the store holds {capacity})"), names(&settings.sizes)),
        y: Axis::logarithmic("GB/s", decades(&series)),
        bars: Vec::new(),
        series,
        legend: SeriesLabelPosition::UpperRight,
    })
}

fn over_skips(results: &Results) -> Option<Panel> {
    let settings = &results.settings;
    let fits = settings.sizes.iter().rev().find(|size| **size <= settings.capacity_bytes);
    let twice = settings.sizes.iter().find(|size| **size >= 2 * settings.capacity_bytes);
    let mut series = Vec::new();
    for (colour, size) in (1..).zip([fits, twice].into_iter().flatten()) {
        let points: Vec<(f64, &Point)> = (settings.skips.iter().enumerate())
            .filter_map(|(index, skip)| Some((index as f64, results.point(*size, *skip)?)))
            .collect();
        if !points.is_empty() {
            series.extend(both(&format!("{}, ", output::size(*size)), colour, &points));
        }
    }
    if series.is_empty() {
        return None;
    }
    let capacity = output::size(settings.capacity_bytes);
    Some(Panel {
        title: format!("Over skips, store of {capacity}"),
        x: Axis::cases("skip after each read of 1 MiB", names(&settings.skips)),
        y: Axis::logarithmic("GB/s", decades(&series)),
        bars: Vec::new(),
        series,
        legend: SeriesLabelPosition::UpperRight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::mountain::results::tests::example;

    #[test]
    fn a_whole_mountain_gives_all_pictures_and_a_partial_one_the_slices() {
        let directory = tempfile::tempdir().unwrap();
        let mut results = example();
        assert_eq!(draw(&results, directory.path()).unwrap().len(), 8);
        results.points.truncate(12);
        let part = directory.path().join("part");
        assert_eq!(draw(&results, &part).unwrap().len(), 4, "no surface with holes");
        results.points.clear();
        assert!(draw(&results, &part).unwrap().is_empty());
    }
}
