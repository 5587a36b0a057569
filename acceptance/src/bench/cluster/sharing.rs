//! Benchmark of several nodes that read one cold file at once.

use anyhow::Result;

use super::rig::{NODES, Rig, Way, names};
use crate::bench::row::{Goal, Row};

const NAME: &str = "four nodes read one cold file at once";

/// How often the file left the data nodes, and the time.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(NAME) {
        return Ok(Vec::new());
    }
    let mut figures = [const { [const { Vec::new() }; 2] }; 2];
    let (mut missed, mut fetched) = (0, 0);
    for round in 0..rig.scale.rounds {
        rig.empty()?;
        let files = rig.write(&names(&format!("shared-{round}"), 1), rig.scale.file_bytes)?;
        let file = &files[0];
        for turn in 0..2 {
            let way = if (round + turn) % 2 == 0 { Way::Tide } else { Way::Bare };
            rig.cluster.drop_caches()?;
            let (sent, before) = (rig.cluster.pfs_bytes_read()?, counts(rig)?);
            let seconds = rig.together(&NODES, |rig, node| rig.read(node, way, file).map(drop))?;
            let sent = rig.cluster.pfs_bytes_read()? - sent;
            let at = usize::from(way == Way::Bare);
            figures[0][at].push(sent as f64 / file.bytes as f64);
            figures[1][at].push(seconds);
            let after = counts(rig)?;
            missed += after.0 - before.0;
            fetched += after.1 - before.1;
        }
        rig.remove(&files)?;
    }
    let [[sent, bare_sent], [seconds, bare_seconds]] = figures;
    let row = |what: &str, unit, ours, reference, goal| Row {
        larger_is_better: false,
        ..Row::rates(&format!("{NAME}: {what}"), unit, (ours, reference), goal)
    };
    let note = format!("{fetched} blocks came from other nodes, {missed} were asked for in vain");
    let read = "bytes from the PFS / file size; bare client";
    Ok(vec![
        row(read, "times", sent, bare_sent, Goal::AtMost(1.02)).note(note),
        row("time; bare client", "s", seconds, bare_seconds, Goal::Shown),
    ])
}

fn counts(rig: &Rig) -> Result<(u64, u64)> {
    Ok((rig.sum("/cluster/blocks_missed")?, rig.sum("/cluster/blocks_fetched")?))
}
