//! Pictures of memory control: demand, store, target and free memory over time.

use std::path::Path;

use plotters::chart::SeriesLabelPosition;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::commands::model::chart::{self, Axis, Panel, Series, Stroke};

/// More points than this are not seen.
const POINTS: usize = 2_000;
/// Pixels of a panel.
const PANEL: (u32, u32) = (760, 480);

/// Memory of a node at one moment, in bytes.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Moment {
    /// Time in seconds.
    pub time_s: f64,
    /// Demand of everything but the stores.
    pub demand_bytes: u64,
    /// Held by the stores.
    pub stored_bytes: u64,
    /// What the stores may hold.
    pub target_bytes: u64,
    /// Free memory, clean file pages included.
    pub free_bytes: u64,
}

/// At most `most` of the moments, evenly chosen, the last one always.
pub fn thinned(moments: Vec<Moment>, most: usize) -> Vec<Moment> {
    let step = moments.len().div_ceil(most.max(1)).max(1);
    let last = moments.len().saturating_sub(1);
    let kept = moments.into_iter().enumerate();
    kept.filter(|(index, _)| index % step == 0 || *index == last)
        .map(|(_, moment)| moment)
        .collect()
}

/// Writes a panel for each of the named courses into a file, by the ending of its name.
pub fn write(path: &Path, courses: Vec<(String, Vec<Moment>)>) -> Result<()> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if !matches!(ending, "svg" | "png") {
        let detail = format!("`{}` ends neither in .svg nor in .png", path.display());
        return Err(Error::new(ErrorKind::InvalidInput, "drawing a picture", detail)
            .remedy("name a file such as control.svg"));
    }
    let panels: Vec<Panel> =
        courses.into_iter().map(|(name, moments)| panel(name, thinned(moments, POINTS))).collect();
    let width = PANEL.0 * u32::try_from(panels.len()).unwrap_or(1);
    let svg = chart::panels(&panels, (width, PANEL.1))?;
    let content = if ending == "png" { chart::png(&svg)? } else { svg.into_bytes() };
    std::fs::write(path, content)
        .map_err(|source| Error::pfs(format!("writing {}", path.display()), source))
}

fn panel(title: String, moments: Vec<Moment>) -> Panel {
    let line = |name: &str, colour: usize, stroke: Stroke, bytes: fn(&Moment) -> u64| Series {
        name: name.to_owned(),
        points: moments.iter().map(|m| (m.time_s, bytes(m) as f64 / 1e9)).collect(),
        colour,
        stroke,
    };
    let series = vec![
        line("demand", 2, Stroke::Solid, |moment| moment.demand_bytes),
        line("store", 1, Stroke::Solid, |moment| moment.stored_bytes),
        line("target", 0, Stroke::Dashed, |moment| moment.target_bytes),
        line("free", 3, Stroke::Solid, |moment| moment.free_bytes),
    ];
    let most = series.iter().flat_map(|one| &one.points).map(|(_, y)| *y).fold(0.0, f64::max);
    let begin = moments.first().map_or(0.0, |moment| moment.time_s);
    let end = moments.last().map_or(1.0, |moment| moment.time_s).max(begin + 1e-3);
    Panel {
        title,
        x: Axis::linear("time in s", begin..end),
        y: Axis::linear("memory in GB", 0.0..Panel::room_above(most, series.len())),
        bars: Vec::new(),
        series,
        legend: SeriesLabelPosition::UpperRight,
    }
}
