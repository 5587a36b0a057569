//! Benchmark of iterative scans by readers that honour locality: each node reads its own quarter of
//! the files again and again; and what an iteration takes on one node and on four.

use anyhow::Result;

use super::rig::{BLOCK, Content, DISK, LINK, NODES, Rig, Way, names};
use crate::bench::row::{Goal, Row};

const FITS: &str = "scan by readers near their data, 0.9 of all memory";
const EXCEEDS: &str = "scan by readers near their data, 1.33 of all memory";
const WEAK: &str = "weak scaling from 1 to 4 nodes, 1.33 of the memory";

/// All scans.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if rig.wants(FITS) {
        let scan = Scan::prepare(rig, 0.9)?;
        let passes = scan.passes(rig)?;
        scan.end(rig)?;
        let hits = Row { larger_is_better: true, ..hits(FITS, &passes, 0.98) };
        let local = passes.iter().map(|pass| pass.local_share).collect();
        let name = format!("{FITS}: share of the hits on the node itself");
        let local = Row::alone(&name, "", local, Goal::AtLeast(0.95));
        rows.extend([hits.note(scan.note()), Row { larger_is_better: true, ..local }]);
    }
    if rig.wants(EXCEEDS) || rig.wants(WEAK) {
        let scan = Scan::prepare(rig, 4.0 / 3.0)?;
        let passes = scan.passes(rig)?;
        if rig.wants(EXCEEDS) {
            let optimum = format!("{}; optimum {:.3}", scan.note(), 1.0 / scan.share);
            let row = hits(EXCEEDS, &passes, 0.71).note(optimum);
            rows.push(Row { larger_is_better: true, ..row });
        }
        if rig.wants(WEAK) {
            rows.push(scan.scale(rig)?);
        }
        scan.end(rig)?;
    }
    Ok(rows)
}

fn hits(name: &str, passes: &[Pass], goal: f64) -> Row {
    let ratios = passes.iter().map(|pass| pass.hit_ratio).collect();
    let name = format!("{name}: hit ratio from the second pass on");
    Row::alone(&name, "", ratios, Goal::AtLeast(goal))
}

/// Files of each node.
struct Scan {
    quarters: Vec<Vec<Content>>,
    /// Of the summed memory.
    share: f64,
}

/// A pass over all files.
struct Pass {
    /// Share of the bytes that did not come from the PFS.
    hit_ratio: f64,
    /// Share of those that came from the node's own memory.
    local_share: f64,
}

impl Scan {
    fn prepare(rig: &mut Rig, share: f64) -> Result<Self> {
        let memory = rig.scale.scan_memory_bytes;
        let bytes = rig.scale.scan_file_bytes / BLOCK * BLOCK;
        let count = (share * memory as f64 / bytes as f64).round() as usize;
        rig.resize(memory)?;
        let mut quarters = Vec::new();
        for node in NODES {
            quarters.push(rig.write(&names(&format!("scan-{count}-{node}"), count), bytes)?);
        }
        Ok(Scan { quarters, share: (count as u64 * bytes) as f64 / memory as f64 })
    }

    fn note(&self) -> String {
        let bytes: u64 = self.quarters.iter().flatten().map(|file| file.bytes).sum();
        let share = self.share;
        format!("{} MiB, {share:.3} of the summed memory", bytes >> 20)
    }

    fn iterate(&self, rig: &Rig, nodes: &[&str]) -> Result<f64> {
        rig.together(nodes, |rig, node| {
            let own = NODES.iter().position(|other| *other == node).unwrap_or_default();
            self.quarters[own].iter().try_for_each(|file| rig.read(node, Way::Tide, file).map(drop))
        })
    }

    /// All passes but the first one.
    fn passes(&self, rig: &Rig) -> Result<Vec<Pass>> {
        let bytes: u64 = self.quarters.iter().flatten().map(|file| file.bytes).sum();
        let mut passes = Vec::new();
        for pass in 0..rig.scale.passes {
            let (pfs, peer) = (rig.sum("/pfs_read_bytes")?, rig.sum("/peer_read_bytes")?);
            self.iterate(rig, &NODES)?;
            let pfs = (rig.sum("/pfs_read_bytes")? - pfs) as f64 / bytes as f64;
            let peer = (rig.sum("/peer_read_bytes")? - peer) as f64 / bytes as f64;
            let hit_ratio = 1.0 - pfs;
            if pass > 0 {
                passes.push(Pass { hit_ratio, local_share: 1.0 - peer / hit_ratio });
            }
        }
        Ok(passes)
    }

    /// An iteration on one node over a quarter of the rate of all disks, and on four over all.
    fn scale(&self, rig: &mut Rig) -> Result<Row> {
        let (mut one, mut four) = (Vec::new(), Vec::new());
        for round in 0..rig.scale.rounds {
            for turn in 0..2 {
                rig.cluster.drop_caches()?;
                if (round + turn) % 2 == 0 {
                    rig.shape(Some(LINK), Some(LINK), Some(DISK / 4))?;
                    one.push(self.iterate(rig, &NODES[..1])?);
                } else {
                    rig.shape(Some(LINK), Some(LINK), Some(DISK))?;
                    four.push(self.iterate(rig, &NODES)?);
                }
            }
        }
        rig.reshape()?;
        let times: Vec<f64> = four.iter().zip(&one).map(|(four, one)| four / one).collect();
        let name = format!("{WEAK}: time of an iteration on 4 / on 1");
        let note = format!("seconds on 1: {one:.2?}, on 4: {four:.2?}");
        Ok(Row::alone(&name, "", times, Goal::AtMost(1.1)).note(note))
    }

    fn end(&self, rig: &Rig) -> Result<()> {
        self.quarters.iter().try_for_each(|files| rig.remove(files))?;
        rig.empty()
    }
}
