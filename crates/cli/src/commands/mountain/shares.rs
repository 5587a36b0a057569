//! The check of equation (7): aggregate read throughput of several readers with a given share of
//! the data in memory, predicted and measured. The share is set through the capacity of the store.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use tidepool_model::{
    BytesPerSecond, Cluster, Direction, Extensions, MountainSetting, NodeCount, Pfs, Share,
    Storage, per_node,
};
use tidepool_proto::admin::AdminRequest;
use tidepool_proto::{Error, ErrorKind, Result};

use super::reading::{Pass, Reader, library_pass};
use super::results::ShareCheck;
use crate::commands::calibrate::file::median;

const SHARES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
/// Passes that bring the store into its steady state.
const WARM_PASSES: usize = 2;
const TIMED_PASSES: usize = 3;

/// What is read.
pub struct Readers {
    /// One file a reader, all of the same size.
    pub files: Vec<PathBuf>,
    /// Size of each in bytes.
    pub size: u64,
}

/// Checks all shares; `pfs` is the known rate of the PFS.
pub fn check_all(
    reader: &Reader,
    readers: &Readers,
    probe: &MountainSetting,
    pfs: BytesPerSecond,
    interrupted: &AtomicBool,
) -> Result<Vec<ShareCheck>> {
    let total = readers.size * readers.files.len() as u64;
    let capacity = probe.capacity.get() as u64;
    if capacity < total {
        let detail = "the files of the readers do not fit the store";
        return Err(Error::new(ErrorKind::Internal, "checking equation (7)", detail));
    }
    let memory = all_in_memory(reader, readers, capacity, interrupted)?;
    let cluster = Cluster {
        // Neither network nor disks of the node are on the path.
        network: pfs.times(1e3),
        backplane: None,
        disk: None,
        memory_read: memory,
        memory_write: memory,
        pfs: Pfs::Aggregate { read: pfs, write: pfs },
        extensions: Extensions::default(),
    };
    let mut checks = Vec::new();
    for share in SHARES {
        let hits = Share::new(share)?;
        let predicted =
            per_node(&cluster, Storage::TwoLevel { hits }, Direction::Read, NodeCount::ONE)?;
        let predicted = predicted.rate.get();
        resize(reader, capacity_for(share, total, probe.block.get() as u64, capacity))?;
        let (rate, counted) = measure(reader, readers, interrupted)?;
        let error = predicted / rate - 1.0;
        checks.push(ShareCheck { f: share, counted, bytes_per_second: rate, predicted, error });
    }
    resize(reader, capacity)?;
    Ok(checks)
}

/// The capacity with which the default policy keeps `share` of a loop: it lets one block in a
/// hundred pass through.
fn capacity_for(share: f64, total: u64, block: u64, capacity: u64) -> u64 {
    if share >= 1.0 {
        return capacity;
    }
    let kept = (share * (total / block) as f64).round();
    let passing = if kept == 0.0 { 0.0 } else { (kept / 99.0).floor().max(1.0) };
    (kept + passing) as u64 * block
}

fn resize(reader: &Reader, capacity_bytes: u64) -> Result<()> {
    reader.connection.free(AdminRequest::Resize { capacity_bytes }, None).map(drop)
}

/// ν of all readers together.
fn all_in_memory(
    reader: &Reader,
    readers: &Readers,
    capacity: u64,
    interrupted: &AtomicBool,
) -> Result<BytesPerSecond> {
    resize(reader, capacity)?;
    for file in &readers.files {
        crate::commands::calibrate::memory::load(&reader.connection, file)?;
    }
    let (rate, _) = measure(reader, readers, interrupted)?;
    BytesPerSecond::new(rate)
}

/// Median rate of all readers together, and the share that memory had.
fn measure(reader: &Reader, readers: &Readers, interrupted: &AtomicBool) -> Result<(f64, f64)> {
    let (mut rates, mut hits) = (Vec::new(), Vec::new());
    for number in 0..WARM_PASSES + TIMED_PASSES {
        let passes = together(reader, readers, interrupted)?;
        let bytes: u64 = passes.iter().map(|pass| pass.bytes).sum();
        let from_memory: u64 = passes.iter().filter_map(|pass| pass.from_memory).sum();
        let seconds = passes.iter().map(|pass| pass.seconds).fold(0.0, f64::max);
        if number >= WARM_PASSES {
            rates.push(bytes as f64 / seconds.max(1e-9));
            hits.push(from_memory as f64 / bytes.max(1) as f64);
        }
    }
    rates.sort_by(f64::total_cmp);
    hits.sort_by(f64::total_cmp);
    Ok((median(&rates), median(&hits)))
}

fn together(reader: &Reader, readers: &Readers, interrupted: &AtomicBool) -> Result<Vec<Pass>> {
    let client = reader.connection.client();
    std::thread::scope(|scope| {
        let threads: Vec<_> = readers
            .files
            .iter()
            .map(|file| scope.spawn(|| library_pass(client, file, readers.size, 0, interrupted)))
            .collect();
        let passes = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Internal, "checking equation (7)", "a reader failed"))
            })
        });
        passes.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_model::{Access, Bytes, Policy, hit_ratio};

    #[test]
    fn the_capacity_gives_the_share() {
        let (block, total) = (4_u64 << 20, 512_u64 << 20);
        for share in SHARES {
            let capacity = capacity_for(share, total, block, total);
            let sizes = (Bytes::whole(capacity), Bytes::whole(total), Bytes::whole(block));
            let found = hit_ratio(sizes.0, sizes.1, sizes.2, Policy::Cyclic, Access::Cyclic);
            let found = found.unwrap().get();
            assert!((found - share).abs() < 0.01, "{share}: {found}");
        }
    }
}
