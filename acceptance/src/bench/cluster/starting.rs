//! Benchmark of the start of all nodes until each may read from all others.

use anyhow::Result;

use super::rig::{NODES, Rig};
use crate::bench::row::{Goal, Row};
use crate::bench::time;

const NAME: &str = "start of 4 nodes until all read from each other";

/// Seconds.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(NAME) {
        return Ok(Vec::new());
    }
    let mut seconds = Vec::new();
    for _ in 0..rig.scale.rounds {
        rig.together(&NODES, |rig, node| rig.tidepool(node, &["node", "stop"]).map(drop))?;
        seconds.push(time(|| {
            rig.cluster.start("compute")?;
            rig.wait_joined(&NODES)
        })?);
    }
    Ok(vec![Row::alone(NAME, "s", seconds, Goal::AtMost(2.0))])
}
