//! A block for another node: from the segment as it is, or filled from the PFS first.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidepool_cluster::NodeName;
use tidepool_peer::{Block, BlockRequest, Bytes, Refusal, Service};

use super::shared::Shared;
use super::{Cluster, measure, owed_reads, threads};
use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::state::FileState;
use crate::fill::BlockSource;
use crate::ticket::{Filled, Origin};

/// How often a node that waits for a fill is told that there is work.
const WORKING_INTERVAL: Duration = Duration::from_millis(100);

/// What sockets hold for others stays in memory whatever the store frees: no block is given while
/// it is more than this part of the capacity that it began with,
const QUEUED_SHARE: u64 = 16;
/// or this, in bytes, where that is more.
const QUEUED_BYTES_MIN: u64 = 64 << 20;

/// What a block was when it was sent, to be compared afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    shared: Shared,
    cached: u64,
    generation: u64,
}

/// A block that another node asked for.
struct Asked {
    core: Arc<Core>,
    file: Arc<FileState>,
    shared: Shared,
    block: u64,
    length: usize,
}

impl Asked {
    /// The cached version that it is of, while no change of the file through this node is under
    /// way, and its block's word. Under the gate, so a writer is seen before it touches a byte, or
    /// not before it is done (invariant 1 of `crate::file`).
    fn word(&self) -> Result<(Arc<CachedVersion>, Option<Word>), Refusal> {
        let _unchanged_by_us = self.file.try_share_gate().ok_or(Refusal::Busy)?;
        let (cached, is_written_directly) = {
            let inner = self.file.inner.lock();
            (inner.cached.clone(), inner.written_directly)
        };
        let cached = cached.filter(|_| !is_written_directly).ok_or(Refusal::NotHeld)?;
        if Shared::of(&self.core, &cached) != Some(self.shared) {
            return Err(Refusal::Stale);
        }
        let pin = cached.segment().and_then(|segment| segment.pin_block(self.block));
        let pin = pin.filter(|pin| pin.len() >= self.length);
        let word = pin.map(|pin| Word {
            shared: self.shared,
            cached: cached.number,
            generation: pin.generation(),
        });
        Ok((cached, word))
    }

    fn resident(self: Arc<Self>, cached: &CachedVersion, word: Word) -> Result<Block, Refusal> {
        let segment = cached.segment().ok_or(Refusal::NotHeld)?;
        let file = segment.descriptor().try_clone_to_owned().map_err(|_| Refusal::Busy)?;
        let offset = self.block * self.core.block_bytes();
        let confirm = move || matches!(self.word(), Ok((_, Some(now))) if now == word);
        Ok(Block {
            bytes: Bytes::File { file: Arc::new(file), offset },
            confirm: Box::new(confirm),
        })
    }

    /// A block that the store did not admit: its buffer is nobody's to write.
    fn passing(self: Arc<Self>, bytes: &[u8]) -> Result<Block, Refusal> {
        let bytes = bytes.get(..self.length).ok_or(Refusal::NotHeld)?.to_vec();
        let confirm = move || self.word().is_ok();
        Ok(Block { bytes: Bytes::Copied(bytes), confirm: Box::new(confirm) })
    }

    /// Has the block read from the PFS by the descriptor of an open of this node.
    fn fill(
        &self,
        cached: &Arc<CachedVersion>,
        working: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<Filled, Refusal> {
        let lower = {
            let inner = self.file.inner.lock();
            let readable = inner.opens.iter().filter(|open| open.reads);
            readable.filter_map(|open| open.lower.upgrade()).next()
        };
        let lower = lower.ok_or(Refusal::NotHeld)?;
        let (core, file, origin) = (&self.core, &self.file, Origin::Servers);
        let source = BlockSource { core, file, lower: &lower, cached, origin };
        let Some(ticket) = source.fill_for_peer(self.block) else { return Ok(Filled::Kept) };
        loop {
            if let Some(filled) = ticket.wait_for(WORKING_INTERVAL) {
                return Ok(filled);
            }
            // A writer waits for the gate, perhaps until a fill here ends that waits for the asking
            // node, where it is the same the other way round.
            if self.file.try_share_gate().is_none() {
                return Err(Refusal::Busy);
            }
            working().map_err(|_| Refusal::Busy)?;
        }
    }
}

impl Cluster {
    fn asked(&self, from: &str, request: &BlockRequest) -> Result<Arc<Asked>, Refusal> {
        let core = self.core.upgrade().ok_or(Refusal::Busy)?;
        let from = NodeName::new(from).map_err(|_| Refusal::Unknown)?;
        if !self.proofs.holds(&from) {
            return Err(Refusal::Unknown);
        }
        let shared = Shared::asked(request);
        let block_bytes = core.block_bytes();
        let (block, length) = (request.offset / block_bytes, request.length as usize);
        let rest = shared.version.size.saturating_sub(request.offset).min(block_bytes);
        if !request.offset.is_multiple_of(block_bytes) || length == 0 || length as u64 != rest {
            return Err(Refusal::NotHeld);
        }
        let file = core.files.get(shared.id(&core)).ok_or(Refusal::NotHeld)?;
        Ok(Arc::new(Asked { core, file, shared, block, length }))
    }

    fn give(
        &self,
        asked: Arc<Asked>,
        may_fill: bool,
        working: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<Block, Refusal> {
        let (cached, word) = asked.word()?;
        if let Some(word) = word {
            return asked.resident(&cached, word);
        }
        if !may_fill {
            return Err(Refusal::NotHeld);
        }
        self.counts.filled_for_peers.add(1);
        match asked.fill(&cached, working)? {
            Filled::Passing(buffer) => asked.passing(buffer.bytes()),
            Filled::Kept => {
                let (cached, word) = asked.word()?;
                asked.resident(&cached, word.ok_or(Refusal::NotHeld)?)
            }
            Filled::Changed | Filled::Failed(..) => Err(Refusal::Stale),
        }
    }
}

/// The cluster as the peer port's service. Weak: connections may outlive the node.
pub struct Provider(pub std::sync::Weak<Cluster>);

impl Service for Provider {
    fn call(&self, from: &str, request: &[u8]) -> Vec<u8> {
        let Some(cluster) = self.0.upgrade() else { return Vec::new() };
        NodeName::new(from)
            .map_or_else(|_| Vec::new(), |from| threads::answer(&cluster, &from, request))
    }

    fn block(
        &self,
        from: &str,
        request: &BlockRequest,
        working: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<Block, Refusal> {
        let cluster = self.0.upgrade().ok_or(Refusal::Busy)?;
        if measure::is_of_measurement(request) {
            return cluster.measurement_block(request);
        }
        let core = cluster.core.upgrade().ok_or(Refusal::Busy)?;
        let queued_bytes_max = (core.config.capacity_bytes / QUEUED_SHARE).max(QUEUED_BYTES_MIN);
        if cluster.queued_bytes() > queued_bytes_max {
            return Err(Refusal::Busy);
        }
        let block = match owed_reads::is_of_token(request) {
            true => cluster.owed_block(from, request)?,
            false => cluster.give(cluster.asked(from, request)?, request.may_fill, working)?,
        };
        cluster.counts.served.add(1);
        core.counters.peer_served_bytes.add(request.length.into());
        Ok(block)
    }
}
