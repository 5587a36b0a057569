//! Figure 3-6 of the DynIMS paper through the real plane: one burst under several gains, as a table
//! and as a picture.

use std::time::Duration;

use anyhow::{Context, Result};
use tidepool_report::axis::Axis;
use tidepool_report::chart::{Arrangement, Line, Panel, Picture, Stroke};

use super::rig::Rig;
use super::{Bench, load};
use crate::bench::control::recording::Recording;
use crate::bench::row::{Goal, Row};
use crate::environment;
use crate::hog::{Step, now_ns};

const NAME: &str = "plane-gains";
/// Gain, and samples in a message; where it is 1, as the paper's collectd sent them.
const CASES: [(f64, u32); 5] = [(0.1, 1), (0.5, 1), (2.0, 1), (2.5, 1), (0.5, 10)];
const BEFORE: Duration = Duration::from_secs(1);
/// Part of the time at its end in which a store that settled stands still.
const END_SHARE: f64 = 0.4;
/// Of the burst: what the store may be away from its last size, or move, and has settled.
const BAND_SHARE: f64 = 0.1;
/// Distance of points in the picture.
const POINT_S: f64 = 0.02;

/// What became of a store.
struct Course {
    /// Seconds since the burst, and bytes that the store may hold.
    points: Vec<(f64, f64)>,
    /// Until it stayed near its last size; none where it never did.
    settled_s: Option<f64>,
    /// How far it went below that, in parts of the way there.
    overshoot: f64,
    /// What it moved by in the end, in parts of the burst.
    swing: f64,
}

/// Whether the rows are asked for.
pub fn is_wanted(bench: &Bench) -> bool {
    bench.wants(NAME)
}

/// A row for each gain, and the picture.
pub fn run(bench: &Bench, rig: &mut Rig) -> Result<Vec<Row>> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    if !is_wanted(bench) {
        return Ok(rows);
    }
    for (gain, batch) in CASES {
        let (mut settled, mut notes, mut picture) = (Vec::new(), Vec::new(), None);
        for _ in 0..bench.scale.rounds {
            let course = burst(bench, rig, gain, batch)?;
            settled.extend(course.settled_s);
            notes.push(course.words());
            picture = Some(course);
        }
        let how = if batch == 1 { "each sample sent at once" } else { "as the agent batches" };
        let name = format!("{NAME}: gain {gain}, {how}, until settled");
        let mut row = Row::alone(&name, "s", settled, Goal::Shown);
        row.notes = notes;
        row.notes.push(load()?);
        rows.push(row);
        panels.extend(picture.map(|course| panel(gain, how, &course)));
    }
    let path = environment::target().join("bench-plane-gains.svg");
    std::fs::write(&path, Picture::of(&panels, Arrangement::Beside).wide)?;
    println!("picture: {}", path.display());
    Ok(rows)
}

fn burst(bench: &Bench, rig: &mut Rig, gain: f64, batch: u32) -> Result<Course> {
    rig.govern(gain, batch)?;
    let watch = rig.watch()?;
    let began_ns = rig.while_reading(|| {
        std::thread::sleep(BEFORE);
        let mut job = rig.job()?;
        let began_ns = now_ns();
        job.step(Step::Take { bytes: bench.scale.burst_bytes, rate: 0 })?;
        job.step(Step::Hold(bench.scale.burst.as_millis() as u64))?;
        std::thread::sleep(bench.scale.burst);
        let end_ns = now_ns();
        job.finish()?;
        Ok((began_ns, end_ns))
    })?;
    let seen = watch.finish()?;
    course(&seen, began_ns, bench.scale.burst_bytes as f64).context("nothing was seen")
}

fn course(seen: &Recording, (began_ns, end_ns): (u64, u64), burst_bytes: f64) -> Option<Course> {
    let since = |at_ns: u64| (at_ns as f64 - began_ns as f64) / 1e9;
    let all = seen.between(0, end_ns);
    let points: Vec<(f64, f64)> =
        all.0.iter().map(|it| (since(it.at_ns), it.capacity as f64)).collect();
    let first = points.iter().rfind(|point| point.0 <= 0.0)?.1;
    let end_s = since(end_ns);
    let ends = |point: &&(f64, f64)| point.0 > end_s * (1.0 - END_SHARE);
    let end: Vec<f64> = points.iter().filter(ends).map(|point| point.1).collect();
    let last = crate::bench::row::median(&end)?;
    let (low, high) =
        (end.iter().copied().reduce(f64::min)?, end.iter().copied().reduce(f64::max)?);
    let lowest = points.iter().map(|point| point.1).reduce(f64::min)?;
    let band = burst_bytes * BAND_SHARE;
    let outside = points.iter().rfind(|point| (point.1 - last).abs() > band);
    let settled_s = outside.map_or(0.0, |point| point.0).max(0.0);
    Some(Course {
        settled_s: (high - low <= 2.0 * band).then_some(settled_s),
        overshoot: (last - lowest) / (first - last).max(band),
        swing: (high - low) / burst_bytes,
        points,
    })
}

impl Course {
    fn words(&self) -> String {
        let end = match self.settled_s {
            Some(seconds) => format!("settled after {seconds:.1} s"),
            None => "oscillates".to_owned(),
        };
        format!(
            "{end}; went {:.0} % too far; in the end it moves by {:.0} % of the burst",
            self.overshoot * 100.0,
            self.swing * 100.0
        )
    }
}

fn panel(gain: f64, how: &str, course: &Course) -> Panel {
    let gib = f64::from(1 << 30);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (at_s, bytes) in &course.points {
        if points.last().is_none_or(|last| at_s - last.0 >= POINT_S) {
            points.push((*at_s, bytes / gib));
        }
    }
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let range = points.first().map_or(0.0, |it| it.0)..points.last().map_or(1.0, |it| it.0);
    let title = format!("Gain {gain}, {how}: {}", course.words());
    let x = Axis::linear("seconds since a job took its memory", range);
    let mut panel = Panel::new(title, x, Axis::from_zero("GiB that the store may hold", most));
    panel.lines = vec![Line { name: String::new(), points, colour: 1, stroke: Stroke::Solid }];
    panel
}

#[cfg(test)]
mod tests {
    use tidepool_report::chart::{Arrangement, Picture};
    use tidepool_report::legible;

    use super::{course, panel};
    use crate::bench::control::recording::{Recording, Sample};

    fn of(capacities: &[u64]) -> super::Course {
        let sample = |(at, capacity): (usize, &u64)| Sample {
            at_ns: at as u64 * 1_000_000_000,
            capacity: *capacity,
            ..Sample::default()
        };
        let seen = Recording(capacities.iter().enumerate().map(sample).collect());
        course(&seen, (1_000_000_000, capacities.len() as u64 * 1_000_000_000), 100.0).unwrap()
    }

    #[test]
    fn a_store_settles_or_oscillates() {
        let calm = of(&[200, 200, 80, 100, 100, 100, 100]);
        assert_eq!((calm.settled_s, calm.swing), (Some(1.0), 0.0));
        assert_eq!(calm.overshoot, 0.2, "20 of 100");
        let restless = of(&[200, 200, 0, 200, 0, 200, 0]);
        assert_eq!(restless.settled_s, None);
        assert!(restless.swing > 1.0);
    }

    #[test]
    fn the_picture_can_be_read() {
        let course = of(&[200 << 30, 200 << 30, 80 << 30, 100 << 30, 100 << 30, 100 << 30]);
        let panels = [0.1, 2.5].map(|gain| panel(gain, "each sample sent at once", &course));
        let picture = Picture::of(&panels, Arrangement::Beside);
        assert_eq!(legible::faults(&picture.wide), Vec::<String>::new());
    }
}
