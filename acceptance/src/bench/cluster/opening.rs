//! Benchmark of the open and first read of files that another node holds: by where the home of the
//! file is, which is asked who holds it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::Result;

use super::rig::{BLOCK, LIMIT, NODES, Rig, Way, names, number};
use crate::bench::row::{Goal, Row, median};
use crate::bench::wait_until;

const NAME: &str = "open, read 4 KiB of a file that another node holds";
const HOLDER: &str = "c1";
const READER: &str = "c2";
const MICROSECONDS: f64 = 1e6;

/// Median times, unshaped: the home elsewhere, and here as the reference.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(NAME) {
        return Ok(Vec::new());
    }
    rig.empty()?;
    let files = rig.write(&names("opened", rig.scale.opens), BLOCK)?;
    rig.shape(None, None, None)?;
    let mut entries = entries(rig)?;
    let mut homes = Vec::new();
    for file in &files {
        rig.read(HOLDER, Way::Tide, file)?;
        let before = std::mem::take(&mut entries);
        wait_until("the home to know", LIMIT, || {
            entries = self::entries(rig)?;
            Ok(entries.iter().sum::<u64>() > before.iter().sum())
        })?;
        homes.push(before.iter().zip(&entries).position(|(before, after)| after > before));
    }
    let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
    let mount = rig.cluster.mount(READER)?;
    for (file, home) in files.iter().zip(homes) {
        let path = mount.join(&file.name);
        let begun = Instant::now();
        let open = File::open(path)?;
        open.read_exact_at(&mut [0; 4096], 0)?;
        let took = begun.elapsed().as_secs_f64() * MICROSECONDS;
        drop(open);
        rig.read(READER, Way::Tide, file)?;
        let is_here = home.is_some_and(|home| NODES[home] == READER);
        if is_here { &mut here } else { &mut elsewhere }.push(took);
    }
    rig.reshape()?;
    rig.remove(&files)?;
    let counts =
        format!("{} files with their home elsewhere, {} here", elsewhere.len(), here.len());
    let name = format!("{NAME}: its home elsewhere; here");
    let middle = |times: &[f64]| median(times).into_iter().collect();
    let figures = (middle(&elsewhere), middle(&here));
    let row = Row { larger_is_better: false, ..Row::rates(&name, "µs", figures, Goal::Shown) };
    Ok(vec![row.note(counts)])
}

/// Blocks that each node knows of as a home.
fn entries(rig: &Rig) -> Result<Vec<u64>> {
    NODES.iter().map(|node| number(&rig.status(node)?, "/cluster/location_entries")).collect()
}
