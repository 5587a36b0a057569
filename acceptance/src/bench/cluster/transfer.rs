//! Benchmark of reads from another node's memory: beside the rate of the link, and without a limit
//! beside iperf3 and a bare `sendfile` server between the same nodes.

use anyhow::Result;

use super::rig::{Content, LINK, Rig, Way, names, number};
use crate::bench::bare::{self, Reader};
use crate::bench::row::{Goal, Row};
use crate::bench::time;
use crate::process;

const SHAPED: &str = "read from another node's memory, link of 100 MB/s";
const UNSHAPED: &str = "read from another node's memory, no limit";
/// Has the file in memory.
const HOLDER: &str = "c1";
/// Reads it.
const READER: &str = "c2";

/// The rate through a shaped link; the reference is the link's.
pub fn shaped(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(SHAPED) {
        return Ok(Vec::new());
    }
    let files = held(rig, "near")?;
    let mut rates = Vec::new();
    let sent = rig.cluster.pfs_bytes_read()?;
    for _ in 0..rig.scale.rounds {
        rates.push(read(rig, &files[0])?);
    }
    let sent = rig.cluster.pfs_bytes_read()? - sent;
    let share = sent as f64 / (files[0].bytes * rates.len() as u64) as f64;
    let link = vec![LINK as f64 / 1e6; rates.len()];
    rig.remove(&files)?;
    let row = Row::rates(SHAPED, "MB/s", (rates, link), Goal::RatioAtLeast(0.92));
    Ok(vec![row.note(format!("{share:.3} of the bytes left the PFS meanwhile"))])
}

/// The rate without a limit.
pub fn unshaped(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(UNSHAPED) {
        return Ok(Vec::new());
    }
    let files = held(rig, "unshaped")?;
    let file = &files[0];
    rig.shape(None, None, None)?;
    let mut figures = [const { Vec::new() }; 5];
    let pfs_bytes = pfs_bytes(rig)?;
    let mut costs = [const { Vec::new() }; 2];
    let has_iperf = bare::has_iperf();
    for round in 0..rig.scale.rounds {
        for turn in 0..figures.len() {
            let at = (round + turn) % figures.len();
            let rate = match at {
                0 => read(rig, file)?,
                1 => {
                    rig.evict(READER, file)?;
                    let before = processor_seconds(rig)?;
                    let rate = load(rig, file)?;
                    let gibibytes = file.bytes as f64 / f64::from(1 << 30);
                    for (side, now) in processor_seconds(rig)?.into_iter().enumerate() {
                        costs[side].push((now - before[side]) / gibibytes);
                    }
                    rig.read(READER, Way::Tide, file)?;
                    rate
                }
                2 => bare::sendfile(&rig.cluster, (HOLDER, READER), file.bytes, Reader::Forgets)?,
                3 => bare::sendfile(&rig.cluster, (HOLDER, READER), file.bytes, Reader::Keeps)?,
                _ if has_iperf => bare::iperf(&rig.cluster, HOLDER, READER)?,
                _ => continue,
            };
            figures[at].push(rate);
        }
    }
    let pfs_bytes = self::pfs_bytes(rig)? - pfs_bytes;
    rig.reshape()?;
    rig.remove(&files)?;
    let [read, load, server, keeps, iperf] = figures;
    let row = |what: &str, ours: &[f64], reference: &[f64], goal| {
        let figures = (ours.to_vec(), reference.to_vec());
        let row = Row::rates(&format!("{UNSHAPED}: {what}"), "MB/s", figures, goal);
        row.note(format!("the reader read {} MiB from the PFS in all rounds", pfs_bytes >> 20))
    };
    let beside = |what: &str, name: &str| format!("{what}; {name}, 4 streams, cubic");
    let (iperf3, bare) = ("iperf3", "bare sendfile server");
    let kept = "bare sendfile server, whose reader keeps the bytes";
    let goal = Goal::RatioAtLeast(0.9);
    let mut rows = vec![
        row(&beside("by the mount", bare), &read, &server, goal),
        row(&beside("by `tidepool load`", bare), &load, &server, Goal::Shown),
        row(&beside("by `tidepool load`", kept), &load, &keeps, goal),
    ];
    for ((side, goal), cost) in [("holder", 0.06), ("reader", 0.2)].into_iter().zip(costs) {
        let name = format!("{UNSHAPED}: processor time of the {side}'s daemon");
        rows.push(Row::alone(&name, "s/GiB", cost, Goal::AtMost(goal)));
    }
    if has_iperf {
        rows.push(row(&beside("by the mount", iperf3), &read, &iperf, goal));
        rows.push(row(&beside("by `tidepool load`", iperf3), &load, &iperf, Goal::Shown));
    }
    Ok(rows)
}

/// Of the daemons of the holder and the reader.
fn processor_seconds(rig: &Rig) -> Result<[f64; 2]> {
    let of = |node| {
        let process_id = number(&rig.status(node)?, "/process_id")?;
        process::processor_seconds(u32::try_from(process_id)?)
    };
    Ok([of(HOLDER)?, of(READER)?])
}

fn pfs_bytes(rig: &Rig) -> Result<u64> {
    number(&rig.status(READER)?, "/pfs_read_bytes")
}

/// A file that the holder has in memory.
fn held(rig: &mut Rig, name: &str) -> Result<Vec<Content>> {
    rig.empty()?;
    let files = rig.write(&names(name, 1), rig.scale.file_bytes)?;
    rig.shape(None, None, None)?;
    rig.read(HOLDER, Way::Tide, &files[0])?;
    rig.reshape()?;
    Ok(files)
}

/// MB/s of a read of what the reader has nothing of.
fn read(rig: &Rig, file: &Content) -> Result<f64> {
    rig.evict(READER, file)?;
    Ok(file.bytes as f64 / rig.read(READER, Way::Tide, file)?.seconds / 1e6)
}

/// The same into the reader's memory alone.
fn load(rig: &Rig, file: &Content) -> Result<f64> {
    let path = format!("/run/tide/{}", file.name);
    let seconds = time(|| rig.tidepool(READER, &["load", &path]).map(drop))?;
    Ok(file.bytes as f64 / seconds / 1e6)
}
