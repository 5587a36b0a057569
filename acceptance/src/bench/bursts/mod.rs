//! Benchmark of the burst buffer: jobs that write in bursts, in its modes, on HDFS and on the bare
//! file system of the same nodes, and what a buffer costs and gives by itself.
//!
//! Rates follow the paper of the burst buffer: as much disk for a core as its first cluster had,
//! and for `bld` fast disks below the file system and slow ones below HDFS, as on its second one.

mod alone;
mod dfsio;
mod place;
mod programs;
mod reading;
mod rig;
mod syncing;

use anyhow::{Result, ensure};
use tidepool_report::bustle::Bustle;

use super::row::Row;
use crate::arguments::{BenchOptions, ClusterService, PfsKind};
use crate::environment;
use rig::Rig;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Rounds of every measurement.
    rounds: usize,
    /// Bytes that a node writes in TestDFSIO and RandomWriter.
    node_bytes: u64,
    /// Bytes of the text that SequenceCount reads.
    text_bytes: u64,
    /// Bytes of ratings.
    ratings_bytes: u64,
    /// Capacity of each store, and of each of the two buffers.
    memory_bytes: u64,
    /// Bytes of a file that is read or written back.
    file_bytes: u64,
    /// Bytes that a buffer node owed when it crashed.
    owed_bytes: u64,
    /// Syncs of 4 KiB.
    syncs: usize,
}

const FULL: Scale = Scale {
    rounds: 3,
    node_bytes: 192 << 20,
    text_bytes: 96 << 20,
    ratings_bytes: 256 << 20,
    memory_bytes: 1 << 30,
    file_bytes: 64 << 20,
    owed_bytes: 10 << 30,
    syncs: 500,
};

const QUICK: Scale = Scale {
    rounds: 1,
    node_bytes: 48 << 20,
    text_bytes: 8 << 20,
    ratings_bytes: 32 << 20,
    memory_bytes: 256 << 20,
    file_bytes: 16 << 20,
    owed_bytes: 512 << 20,
    syncs: 50,
};

type Measure = fn(&mut Rig) -> Result<Vec<Row>>;

/// All groups of rows.
const MEASURES: [Measure; 7] = [
    alone::through_a_link,
    alone::replayed,
    syncing::run,
    reading::beside_write_back,
    reading::of_twice_the_buffers,
    dfsio::run,
    programs::run,
];

/// Runs the rows that the options ask for, prints the table and writes the JSON.
///
/// # Errors
/// A cluster that cannot be made, and wrong bytes.
pub fn run(options: &BenchOptions) -> Result<()> {
    let mut scale = if options.quick { QUICK } else { FULL };
    scale.rounds = options.rounds.unwrap_or(scale.rounds).max(1);
    ensure!(options.pfs.is_none(), "a test cluster makes its own PFS: leave --pfs out");
    let services = [ClusterService::Hdfs, ClusterService::Yarn];
    if let Some(missing) = crate::cluster::missing(PfsKind::Gluster, &services) {
        anyhow::bail!("{missing}");
    }
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let machine = Bustle::of_load(processors, environment::load()?);
    let mut rig = Rig::up(scale, options.only.clone())?;
    let mut rows = Vec::new();
    for measure in MEASURES {
        for row in measure(&mut rig)? {
            println!("{row}");
            rows.push(row);
        }
    }
    super::tell(options, &rows, "bench-bursts.json", Some(&machine))
}
