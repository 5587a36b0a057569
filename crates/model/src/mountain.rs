//! The storage mountain (figures 2-9 to 2-11): read throughput of one reader over data size and
//! skip, predicted by equation (7) with f from the hit ratio, and a latency term for skips.
//!
//! The reader takes `request` bytes, leaves out `skip` bytes, and so on to the end; it counts the
//! bytes it was given. A miss moves a whole block, so skips within a block waste what they leave
//! out, and skips beyond a block leave whole blocks out, which then cost nothing.

use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::hit_ratio::{Access, Policy, hit_ratio};
use crate::quantity::{Bytes, BytesPerSecond, Seconds, Share};

/// What the mountain is measured on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountainSetting {
    /// Capacity of the store.
    pub capacity: Bytes,
    /// Unit of residency and transfer.
    pub block: Bytes,
    /// Bytes of one read.
    pub request: Bytes,
    /// ν of one reader.
    pub memory: BytesPerSecond,
    /// Time of a pass beyond that of its reads: opening and closing.
    pub opening: Seconds,
    /// Time of a read beyond that of its bytes.
    pub memory_latency: Seconds,
    /// Rate of one node's fills from the PFS.
    pub pfs: BytesPerSecond,
    /// Time of a transfer from the PFS beyond that of its bytes.
    pub pfs_latency: Seconds,
    /// Transfers that are under way at a time, so that their latencies overlap.
    pub transfers: u32,
    /// Eviction policy.
    pub policy: Policy,
}

/// One point of the mountain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountainPoint {
    /// Bytes that the reader was given a second.
    pub rate: BytesPerSecond,
    /// f: share of the blocks read that memory has.
    pub hits: Share,
    /// Bytes that the reader is given in one pass.
    pub useful: Bytes,
}

/// Reads of `request` bytes at 0, `request + skip`, ... that begin within `size`, and the blocks
/// that they touch: (number of reads, bytes given, distinct blocks). All arguments in bytes;
/// `request` and `block` are above zero.
pub fn blocks_touched(size: u64, request: u64, skip: u64, block: u64) -> (u64, u64, u64) {
    if size == 0 {
        return (0, 0, 0);
    }
    let stride = request + skip;
    let reads = size.div_ceil(stride);
    let last = (reads - 1) * stride;
    let given = (reads - 1) * request + request.min(size - last);
    let (mut blocks, mut seen_to) = (0, 0);
    for read in 0..reads {
        let begin = (read * stride / block).max(seen_to);
        let end = (read * stride + request).min(size).div_ceil(block);
        blocks += end.saturating_sub(begin);
        seen_to = seen_to.max(end);
    }
    (reads, given, blocks)
}

/// Predicts one point: the throughput of a pass over `size` bytes that follows another such pass.
///
/// With n reads of b bytes, k blocks of B bytes touched and f their hit ratio, a pass takes
/// o + n·(b/ν + ℓ) + (1 − f)·k·(B/q + ℓ'/t), where o is the opening, ℓ and ℓ' are the latencies of
/// memory and PFS and t the transfers under way; with none of these and no skip it is equation (7).
/// Every byte is copied from memory once, also after a miss.
pub fn predict(setting: &MountainSetting, size: u64, skip: u64) -> Result<MountainPoint> {
    let refuse = |detail: &str| {
        Error::new(ErrorKind::InvalidInput, "predicting a point of the mountain", detail)
            .remedy("sizes, requests and blocks are at least 1 byte")
    };
    let (request, block) = (setting.request.get() as u64, setting.block.get() as u64);
    if size == 0 || request == 0 || block == 0 || setting.transfers == 0 {
        return Err(refuse("a size, request, block or number of transfers of 0"));
    }
    let (reads, given, blocks) = blocks_touched(size, request, skip, block);
    let touched = Bytes::whole(blocks * block);
    let hits = hit_ratio(setting.capacity, touched, setting.block, setting.policy, Access::Cyclic)?;
    let useful = Bytes::whole(given);
    let from_memory = useful / setting.memory + setting.memory_latency * reads as f64;
    let overlapped = setting.pfs_latency * (1.0 / f64::from(setting.transfers));
    // The last block of a file is as long as the file has it.
    let moved = Bytes::whole((blocks * block).min(size));
    let misses = hits.rest();
    let from_pfs = (moved * misses) / setting.pfs + overlapped * (blocks as f64 * misses.get());
    let rate = BytesPerSecond::new(useful.get() / (setting.opening + from_memory + from_pfs).get());
    let rate = rate.map_err(|_| refuse("a pass that takes no time"))?;
    Ok(MountainPoint { rate, hits, useful })
}
