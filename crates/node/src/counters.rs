//! [`Counters`] of the node, which conserve bytes: what readers asked for is what the levels served
//! plus what failed. They decide nothing and are never reset.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidepool_proto::admin::{ProbeStatus, TransferStatus};
use tidepool_proto::{BytesByLevel, Level};

/// One monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    /// Takes back `amount`, for the few values here that are gauges.
    pub fn subtract(&self, amount: u64) {
        self.0.fetch_sub(amount, Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// All counters of a node.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes that readers asked for and could have got (up to the end of the file).
    pub asked_bytes: Counter,
    /// Bytes of reads that ended in an error.
    pub failed_bytes: Counter,
    served: [Counter; 5],
    probed: [Counter; 5],
    /// Those of probes among the opens that the kernel reads by itself.
    pub probe_passthrough_opens: Counter,
    /// Bytes that clients wrote.
    pub written_bytes: Counter,
    /// Bytes read from the PFS for whatever reason.
    pub pfs_read_bytes: Counter,
    /// Bytes read from other nodes' memory.
    pub peer_read_bytes: Counter,
    /// Bytes that other nodes read from this one's memory.
    pub peer_served_bytes: Counter,
    /// Bytes written to the PFS.
    pub pfs_written_bytes: Counter,
    /// Blocks brought in, from the PFS or from other nodes.
    pub fills: Counter,
    /// Requests for a block that joined a fill under way.
    pub fills_joined: Counter,
    /// Fills thrown away because the file changed meanwhile.
    pub fills_discarded: Counter,
    /// Fills whose bytes the policy or a lack of room kept out of the store.
    pub fills_not_admitted: Counter,
    /// Blocks asked for by read-ahead.
    pub read_ahead_blocks: Counter,
    /// Opens answered with a segment that the kernel reads by itself.
    pub passthrough_opens: Counter,
    /// Length of the files behind those opens; what was read of them is not reported to the node.
    pub passthrough_bytes: Counter,
    /// Opens of files for reading.
    pub reading_opens: Counter,
    /// Opens that found the cached version stale.
    pub versions_invalidated: Counter,
    /// Bytes of memory-only files written back to the PFS under pressure or at the end.
    pub written_back_bytes: Counter,
    /// Open handles now.
    pub open_files: Counter,
}

impl Counters {
    /// What happened to transfers.
    pub fn transfers(&self) -> TransferStatus {
        TransferStatus {
            fills: self.fills.get(),
            fills_joined: self.fills_joined.get(),
            fills_discarded: self.fills_discarded.get(),
            fills_not_admitted: self.fills_not_admitted.get(),
            read_ahead_blocks: self.read_ahead_blocks.get(),
            passthrough_opens: self.passthrough_opens.get(),
            passthrough_bytes: self.passthrough_bytes.get(),
            versions_invalidated: self.versions_invalidated.get(),
            written_back_bytes: self.written_back_bytes.get(),
        }
    }

    /// Records a finished read.
    pub fn served(&self, levels: &BytesByLevel) {
        self.asked_bytes.add(levels.total());
        add(&self.served, levels);
    }

    /// Records a finished read of a probe, which is nobody's work.
    pub fn probed(&self, levels: &BytesByLevel) {
        add(&self.probed, levels);
    }

    /// Records a read of `bytes` that ended in an error.
    pub fn failed(&self, bytes: u64) {
        self.asked_bytes.add(bytes);
        self.failed_bytes.add(bytes);
    }

    /// Bytes served so far, by level.
    pub fn served_by_level(&self) -> BytesByLevel {
        by_level(&self.served)
    }

    /// Reads of probes so far.
    pub fn probes(&self) -> ProbeStatus {
        ProbeStatus {
            served: by_level(&self.probed),
            passthrough_opens: self.probe_passthrough_opens.get(),
        }
    }
}

fn add(counters: &[Counter; 5], levels: &BytesByLevel) {
    for (counter, level) in counters.iter().zip(Level::ALL) {
        let bytes = levels.get(level);
        if bytes > 0 {
            counter.add(bytes);
        }
    }
}

fn by_level(counters: &[Counter; 5]) -> BytesByLevel {
    let mut levels = BytesByLevel::default();
    for (counter, level) in counters.iter().zip(Level::ALL) {
        levels.add(level, counter.get());
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_is_served_plus_failed() {
        let counters = Counters::default();
        counters.served(&BytesByLevel { store: 10, pfs: 5, ..Default::default() });
        counters.failed(7);
        let served = counters.served_by_level().total();
        assert_eq!(counters.asked_bytes.get(), served + counters.failed_bytes.get());
    }
}
