//! How long a sync of a few bytes takes that makes them as durable as `alw` promises.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::place::Place;
use super::rig::Rig;
use crate::bench::row::{Goal, Row};
use crate::scratch::Scratch;

const NAME: &str = "4 KiB and fsync";

/// Median and 99 of 100, beside the disk of this machine, which the buffers write to.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(NAME) {
        return Ok(Vec::new());
    }
    let alw = rig.directory(Place::Mode("alw"))?.join("synced");
    let local = Scratch::below(&rig.cluster.plan().directory)?;
    let local = local.path().join("synced");
    let mut figures = [const { [const { Vec::new() }; 2] }; 2];
    for _ in 0..rig.scale.rounds {
        for (at, path) in [&alw, &local].into_iter().enumerate() {
            let times = sync(path, rig.scale.syncs)?;
            figures[at][0].push(times[times.len() / 2]);
            figures[at][1].push(times[times.len() * 99 / 100]);
        }
    }
    let [[ours, slow], [disk, slow_disk]] = figures;
    let row = |what: &str, ours: Vec<f64>, disk: Vec<f64>| {
        let name = format!("{NAME}, {what}: alw; the local disk");
        let row = Row::rates(&name, "ms", (ours, disk), Goal::Shown);
        Row { larger_is_better: false, ..row }
    };
    Ok(vec![row("median", ours, disk), row("99 of 100", slow, slow_disk)])
}

/// Milliseconds, in order.
fn sync(path: &Path, count: usize) -> Result<Vec<f64>> {
    let mut file = File::create(path)?;
    let mut times = Vec::new();
    for _ in 0..count {
        file.write_all(&[7; 4096])?;
        let begun = Instant::now();
        file.sync_all()?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    drop(file);
    std::fs::remove_file(path)?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}
