//! Benchmark of iterations over files of which a share is in memory, beside what the model of two
//! levels says: the time of a byte is the mean of both levels', weighted by where the bytes are.

use anyhow::Result;

use super::rig::{BLOCK, Content, NODES, Rig, Way, names};
use crate::bench::row::{Goal, Row, median};

const NAME: &str = "iterations with a share of the data in memory, beside the model";
/// Files of each node.
const FILES: usize = 4;
/// Iterations at each share; the median counts.
const ITERATIONS: usize = 3;

/// A row for each share that is between nothing and all, from the rates of those two.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(NAME) {
        return Ok(Vec::new());
    }
    rig.empty()?;
    let bytes = rig.scale.scan_file_bytes / BLOCK * BLOCK;
    let mut quarters = Vec::new();
    for node in NODES {
        quarters.push(rig.write(&names(&format!("share-{node}"), FILES), bytes)?);
    }
    let middle = |seconds: Vec<f64>| median(&seconds).unwrap_or(f64::NAN);
    let whole = middle(iterations(rig, &quarters, FILES)?);
    let nothing = middle(iterations(rig, &quarters, 0)?);
    let mut rows = Vec::new();
    for resident in (1..FILES).rev() {
        let share = resident as f64 / FILES as f64;
        let model = share * whole + (1.0 - share) * nothing;
        let errors = iterations(rig, &quarters, resident)?
            .into_iter()
            .map(|seconds| (seconds / model - 1.0).abs() * 100.0)
            .collect();
        let name = format!("{NAME}: error at {:.0} %", share * 100.0);
        let note = format!(
            "the model says {model:.3} s; {whole:.3} s of memory, {nothing:.3} s of the PFS"
        );
        rows.push(Row::alone(&name, "%", errors, Goal::AtMost(20.0)).note(note));
    }
    quarters.iter().try_for_each(|files| rig.remove(files))?;
    rig.empty()?;
    Ok(rows)
}

/// Seconds of iterations that find so many files of each node in its memory, and no others.
fn iterations(rig: &Rig, quarters: &[Vec<Content>], resident: usize) -> Result<Vec<f64>> {
    let own =
        |node: &str| &quarters[NODES.iter().position(|other| *other == node).unwrap_or_default()];
    let read = |rig: &Rig, node: &str| {
        own(node).iter().try_for_each(|file| rig.read(node, Way::Tide, file).map(drop))
    };
    // All of it once, so that what stays is resident.
    rig.together(&NODES, read)?;
    let mut seconds = Vec::new();
    for _ in 0..ITERATIONS {
        rig.together(&NODES, |rig, node| {
            own(node)[resident..].iter().try_for_each(|file| rig.evict(node, file))
        })?;
        rig.cluster.drop_caches()?;
        seconds.push(rig.together(&NODES, read)?);
    }
    Ok(seconds)
}
