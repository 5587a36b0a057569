//! The pictures of a mountain: the surface (figure 2-9), the slice over data sizes without skips
//! (2-10), the slice over skips at two data sizes (2-11), each with the prediction beside it. What
//! the figures come to, and what is odd about them, stands above each in words.

use std::path::{Path, PathBuf};

use tidepool_model::blocks_touched;
use tidepool_proto::Result;
use tidepool_report::axis::Axis;
use tidepool_report::chart::{Arrangement, Line, Mark, Panel, Paper, Picture, Side, Stroke};
use tidepool_report::text::number;

use super::results::{Point, Results};
use super::surface::{self, Surface};
use crate::pictures;
use tidepool_terminal::output;

const GB: f64 = 1e9;
/// A prediction that is this many times too high or too low is remarked.
const MISS_MIN: f64 = 1.5;
/// So many are named.
const MISSES_NAMED: usize = 3;

/// Draws all pictures into `directory`.
pub fn draw(results: &Results, directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for (name, picture) in all(results) {
        paths.extend(pictures::write_for_page(directory, name, &picture)?);
    }
    Ok(paths)
}

/// All pictures with their names; points that are missing leave a surface out.
fn all(results: &Results) -> Vec<(&'static str, Picture)> {
    let measured = |point: &Point| point.bytes_per_second;
    let predicted = |point: &Point| point.predicted;
    let of_surface = |surface: Surface| {
        let on = |paper| surface::svg(&surface, &paper);
        Picture { wide: on(Paper::WIDE), narrow: on(Paper::NARROW) }
    };
    let of_panel = |panel: Panel| Picture::of(&[panel], Arrangement::Below);
    let pictures = [
        ("mountain", surface_of(results, "measured", measured).map(of_surface)),
        (
            "mountain-predicted",
            surface_of(results, "predicted by the model", predicted).map(of_surface),
        ),
        ("slice-sizes", over_sizes(results).map(of_panel)),
        ("slice-skips", over_skips(results).map(of_panel)),
    ];
    pictures.into_iter().filter_map(|(name, picture)| Some((name, picture?))).collect()
}

/// Bytes as people read them, with a space before the unit.
fn size(bytes: u64) -> String {
    let text = output::size(bytes);
    let digits = text.trim_end_matches(|letter: char| letter.is_alphabetic() || letter == ' ');
    let unit = text[digits.len()..].trim();
    if bytes == 0 { "0".to_owned() } else { format!("{digits} {unit}") }
}

fn sizes(bytes: &[u64]) -> Vec<String> {
    bytes.iter().map(|bytes| size(*bytes)).collect()
}

fn rate(bytes_per_second: f64) -> String {
    let gigabytes = bytes_per_second / GB;
    let places = if gigabytes < 1.0 { 100.0 } else { 10.0 };
    format!("{} GB/s", number((gigabytes * places).round() / places))
}

/// The largest data that the store holds, and the largest of all if that is more.
fn ends(results: &Results) -> (Option<u64>, Option<u64>) {
    let settings = &results.settings;
    let sizes = || settings.sizes.iter().copied();
    let fits = sizes().filter(|size| *size <= settings.capacity_bytes).max();
    (fits, sizes().max().filter(|size| *size > settings.capacity_bytes))
}

/// Both ends of the mountain without skips, in words.
fn both_ends(results: &Results, skip: u64, value: fn(&Point) -> f64) -> String {
    let (fits, beyond) = ends(results);
    let told = |data: Option<u64>, how: &dyn Fn(u64) -> String| {
        let data = data?;
        Some(format!("{} {}", rate(value(results.point(data, skip)?)), how(data)))
    };
    let capacity = results.settings.capacity_bytes;
    let parts = [
        told(fits, &|data| format!("from a file of {} that fits the store", size(data))),
        told(beyond, &|data| {
            format!(
                "from one of {}, {} times the store",
                size(data),
                number(data as f64 / capacity as f64)
            )
        }),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Why large skips look faster: fewer blocks of the file are touched, and these fit again.
fn on_skips(results: &Results, data: Option<u64>) -> Option<String> {
    let settings = &results.settings;
    let block = results.probe.block.get() as u64;
    let data = data?;
    let touched = |skip: u64| blocks_touched(data, settings.request_bytes, skip, block).2 * block;
    let fits = settings.skips.iter().find(|skip| touched(**skip) <= settings.capacity_bytes)?;
    Some(format!(
        "Why large skips look faster: with skips of {} and more only {} or less of the {} are \
         touched, and that fits the store again.",
        size(*fits),
        size(touched(*fits)),
        size(data)
    ))
}

/// Points where the prediction is far off, the worst first.
fn on_misses(points: &[(String, &Point)]) -> Option<String> {
    let off = |point: &Point| {
        (point.predicted / point.bytes_per_second).max(point.bytes_per_second / point.predicted)
    };
    let mut far: Vec<_> = points.iter().filter(|(_, point)| off(point) > MISS_MIN).collect();
    far.sort_by(|one, other| off(other.1).total_cmp(&off(one.1)));
    let told = far.iter().take(MISSES_NAMED).map(|(name, point)| {
        let way = if point.predicted > point.bytes_per_second { "high" } else { "low" };
        format!("{} times too {way} at {name}", number((off(point) * 10.0).round() / 10.0))
    });
    let told: Vec<String> = told.collect();
    let rest = match far.len().saturating_sub(MISSES_NAMED) {
        0 => String::new(),
        more => format!(", and far off at {more} more"),
    };
    (!told.is_empty()).then(|| format!("The prediction misses: {}{rest}.", told.join(", ")))
}

fn surface_of(results: &Results, what: &str, value: fn(&Point) -> f64) -> Option<Surface> {
    let settings = &results.settings;
    let row = |size: &u64| -> Option<Vec<f64>> {
        let cell = |skip: &u64| Some(value(results.point(*size, *skip)?) / GB);
        settings.skips.iter().map(cell).collect()
    };
    let values = settings.sizes.iter().map(row).collect::<Option<Vec<_>>>()?;
    let enough = settings.sizes.len() > 1 && settings.skips.len() > 1;
    let mut notes = results.warnings.clone();
    notes.push(
        "Higher is better. The scale is logarithmic; data sizes and skips are not to scale."
            .to_owned(),
    );
    notes.extend(on_skips(results, ends(results).1));
    enough.then(|| Surface {
        title: format!(
            "Storage mountain, {what}: {}",
            both_ends(results, settings.skips[0], value)
        ),
        notes,
        sizes: sizes(&settings.sizes),
        skips: sizes(&settings.skips),
        values,
        unit: "GB/s".to_owned(),
        line: store_end(&settings.sizes, settings.capacity_bytes)
            .map(|at| (at, format!("the store of {} ends here", size(settings.capacity_bytes)))),
    })
}

/// Where a capacity lies between sizes, counted in sizes; nothing outside of them.
fn store_end(sizes: &[u64], capacity: u64) -> Option<f64> {
    let above = sizes.iter().position(|size| *size >= capacity)?;
    if sizes[above] == capacity {
        return Some(above as f64);
    }
    let (low, high) = (sizes[above.checked_sub(1)?] as f64, sizes[above] as f64);
    Some((above - 1) as f64 + (capacity as f64 / low).ln() / (high / low).ln())
}

/// The measured and the predicted line.
fn both(name: &str, colour: usize, points: &[(f64, &Point)]) -> [Line; 2] {
    let line = |value: fn(&Point) -> f64| {
        points.iter().map(|(x, point)| (*x, value(point) / GB)).collect::<Vec<_>>()
    };
    [
        Line {
            name: format!("{name}measured"),
            points: line(|point| point.bytes_per_second),
            colour,
            stroke: Stroke::Marked,
        },
        Line {
            name: format!("{name}predicted"),
            points: line(|point| point.predicted),
            colour,
            stroke: Stroke::Dashed,
        },
    ]
}

fn panel(title: String, x: Axis, lines: Vec<Line>, notes: Vec<Option<String>>) -> Panel {
    let rates = || lines.iter().flat_map(|line| &line.points).map(|(_, rate)| *rate);
    let low = rates().fold(f64::INFINITY, f64::min);
    let high = rates().fold(0.0, f64::max);
    let mut panel = Panel::new(title, x, Axis::logarithmic("GB/s, logarithmic", low, high));
    panel.lines = lines;
    panel.notes = notes.into_iter().flatten().collect();
    panel
}

fn over_sizes(results: &Results) -> Option<Panel> {
    let settings = &results.settings;
    let skip = *settings.skips.first()?;
    let points: Vec<(u64, &Point)> = (settings.sizes.iter())
        .filter_map(|size| Some((*size, results.point(*size, skip)?)))
        .collect();
    let labels: Vec<(f64, String)> =
        points.iter().map(|(bytes, _)| (*bytes as f64, size(*bytes))).collect();
    labels.first()?;
    let placed: Vec<(f64, &Point)> =
        points.iter().map(|(size, point)| (*size as f64, *point)).collect();
    let named: Vec<(String, &Point)> =
        points.iter().map(|(bytes, point)| (size(*bytes), *point)).collect();
    let skips = if skip == 0 {
        "without skips".to_owned()
    } else {
        format!("with skips of {}", size(skip))
    };
    let title =
        format!("Reading {skips}: {}", both_ends(results, skip, |point| point.bytes_per_second));
    let x = Axis::logarithmic_at("size of the file, logarithmic", labels);
    let mut notes: Vec<Option<String>> = results.warnings.iter().cloned().map(Some).collect();
    notes.extend([Some("Higher is better.".to_owned()), on_misses(&named)]);
    let range = x.range();
    let capacity = settings.capacity_bytes as f64;
    let mut panel = panel(title, x, both("", 1, &placed).to_vec(), notes);
    if range.contains(&capacity) {
        let text = format!("the store of {} ends here", size(settings.capacity_bytes));
        panel.marks = vec![Mark { at: capacity, text, side: Side::Middle }];
    }
    Some(panel)
}

fn over_skips(results: &Results) -> Option<Panel> {
    let settings = &results.settings;
    let fits = ends(results).0;
    let twice = settings.sizes.iter().find(|size| **size >= 2 * settings.capacity_bytes).copied();
    let mut lines = Vec::new();
    let mut named = Vec::new();
    let mut told = Vec::new();
    for (colour, data) in (1..).zip([fits, twice].into_iter().flatten()) {
        let points: Vec<(f64, &Point)> = (settings.skips.iter().enumerate())
            .filter_map(|(index, skip)| Some((index as f64, results.point(data, *skip)?)))
            .collect();
        let Some((first, last)) = points.first().zip(points.last()) else { continue };
        told.push(format!(
            "{} to {} from a file of {}",
            rate(first.1.bytes_per_second),
            rate(last.1.bytes_per_second),
            size(data)
        ));
        named.extend(points.iter().map(|(_, point)| {
            (format!("{} with skip {}", size(data), size(point.skip_bytes)), *point)
        }));
        lines.extend(both(&format!("file of {}, ", size(data)), colour, &points));
    }
    if lines.is_empty() {
        return None;
    }
    let title = format!(
        "Reading with growing skips, store of {}: {}",
        size(settings.capacity_bytes),
        told.join(", ")
    );
    let request = size(settings.request_bytes);
    let x = Axis::cases(
        &format!("skip after each read of {request}, not to scale"),
        sizes(&settings.skips),
    );
    let mut notes: Vec<Option<String>> = results.warnings.iter().cloned().map(Some).collect();
    notes.push(Some("Higher is better.".to_owned()));
    notes.extend([on_skips(results, twice), on_misses(&named)]);
    Some(panel(title, x, lines, notes))
}

#[cfg(test)]
mod tests {
    use tidepool_report::legible::{faults, texts};

    use super::*;
    use crate::mountain::results::tests::example;

    #[test]
    fn a_whole_mountain_gives_all_pictures_and_a_partial_one_the_slices() {
        let names =
            |results: &Results| all(results).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let mut results = example();
        let whole = ["mountain", "mountain-predicted", "slice-sizes", "slice-skips"];
        assert_eq!(names(&results), whole);
        results.points.truncate(12);
        assert_eq!(names(&results), whole[2..], "no surface with holes");
        results.points.clear();
        assert!(names(&results).is_empty());
    }

    #[test]
    fn pictures_say_where_the_store_ends_and_what_the_figures_come_to() {
        let mut results = example();
        results.warnings.push("The machine was busy, these figures do not hold.".to_owned());
        // A measurement that the model missed by three times.
        let missed = results.points.iter_mut().find(|point| point.size_bytes == 256 << 20);
        missed.unwrap().bytes_per_second /= 3.0;
        for (name, picture) in all(&results) {
            for svg in [&picture.wide, &picture.narrow] {
                assert_eq!(faults(svg), Vec::<String>::new(), "{name}");
                let all = texts(svg).join(" ");
                assert!(all.contains("The machine was busy"), "{name}: {all}");
                assert!(all.contains("Higher is better"), "{name}: {all}");
                let ends = all.contains("of 128 MiB ends here");
                assert_eq!(ends, name != "slice-skips", "{name}: {all}");
                let why = all.contains("Why large skips look faster");
                assert_eq!(why, name != "slice-sizes", "{name}: {all}");
                let misses = all.contains("3 times too high at");
                assert_eq!(misses, name.starts_with("slice"), "{name}: {all}");
            }
            if name == "slice-skips" {
                assert!(texts(&picture.narrow).join(" ").contains("file of 128 MiB, measured"));
            }
        }
    }

    #[test]
    fn the_store_ends_between_the_sizes_around_it() {
        let sizes = [32, 64, 256];
        assert_eq!(store_end(&sizes, 64), Some(1.0));
        assert_eq!(store_end(&sizes, 128), Some(1.5));
        assert_eq!(store_end(&sizes, 16), None);
        assert_eq!(store_end(&sizes, 512), None);
    }

    #[test]
    fn units_stand_apart() {
        assert_eq!([0, 1 << 16, 64 << 20].map(size), ["0", "64 KiB", "64 MiB"]);
        assert_eq!([8.07e9, 0.234e9, 4e7].map(rate), ["8.1 GB/s", "0.23 GB/s", "0.04 GB/s"]);
    }
}
