//! Benchmark of many nodes on a shaped test cluster: what comes from other nodes' memory beside the
//! link, the bare file system and a bare server in the same run. Every byte that is read is
//! compared with what was written.

mod copying;
mod failing;
mod opening;
mod residency;
mod rig;
mod scanning;
mod sharing;
mod spark;
mod starting;
mod transfer;
mod yarn;

use anyhow::{Result, ensure};
use tidepool_report::bustle::Bustle;

use crate::arguments::BenchOptions;
use crate::environment;
use rig::Rig;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Rounds of every measurement.
    rounds: usize,
    /// Bytes of the file that nodes read from each other.
    file_bytes: u64,
    /// Bytes of the file of which a holder fails.
    failing_bytes: u64,
    /// Capacity of each store but in scans.
    memory_bytes: u64,
    /// The same in scans.
    scan_memory_bytes: u64,
    /// Bytes of a file of a scan.
    scan_file_bytes: u64,
    /// Passes of a scan.
    passes: usize,
    /// Files that are opened.
    opens: usize,
}

const FULL: Scale = Scale {
    rounds: 3,
    file_bytes: 2 << 30,
    failing_bytes: 512 << 20,
    memory_bytes: 5 << 29,
    scan_memory_bytes: 512 << 20,
    scan_file_bytes: 16 << 20,
    passes: 6,
    opens: 96,
};

const QUICK: Scale = Scale {
    rounds: 2,
    file_bytes: 192 << 20,
    failing_bytes: 96 << 20,
    memory_bytes: 512 << 20,
    scan_memory_bytes: 128 << 20,
    scan_file_bytes: 4 << 20,
    passes: 5,
    opens: 24,
};

/// Runs the rows that the options ask for, prints the table and writes the JSON.
///
/// # Errors
/// A cluster that cannot be made, and wrong bytes.
pub fn run(options: &BenchOptions) -> Result<()> {
    let mut scale = if options.quick { QUICK } else { FULL };
    scale.rounds = options.rounds.unwrap_or(scale.rounds).max(1);
    ensure!(options.pfs.is_none(), "a test cluster makes its own PFS: leave --pfs out");
    if let Some(missing) = crate::cluster::missing(crate::arguments::PfsKind::Gluster, &[]) {
        anyhow::bail!("{missing}");
    }
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let machine = Bustle::of_load(processors, environment::load()?);
    let mut rig = Rig::up(scale, options.only.clone())?;
    let mut rows = Vec::new();
    for measure in [
        sharing::run,
        transfer::shaped,
        transfer::unshaped,
        scanning::run,
        residency::run,
        failing::run,
        opening::run,
        copying::run,
        starting::run,
        spark::run,
        yarn::run,
    ] {
        for row in measure(&mut rig)? {
            println!("{row}");
            rows.push(row);
        }
    }
    super::tell(options, &rows, "bench-cluster.json", Some(&machine))
}
