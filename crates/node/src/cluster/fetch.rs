//! A block from another node's memory: who has it, who is asked, and what becomes of an answer.

use std::sync::Arc;
use std::time::Instant;

use tidepool_cluster::{BlockPlan, CHUNK_BLOCKS, ChunkPlan, Lookup, NodeName};
use tidepool_peer::{PeerError, Refusal};

use super::shared::Shared;
use super::{ASKING, Cluster, join, threads};
use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::ticket::Ticket;

/// Nodes that are asked for one block before it is read from the PFS.
const ATTEMPTS: usize = 2;

/// How an attempt at a node ended.
enum Outcome {
    Got,
    /// It is of no use for this block.
    Next,
    /// The version is not what it was: the PFS decides.
    GiveUp,
}

impl Cluster {
    /// Brings a block into `into`, its whole length. False: it is to be read from the PFS, and what
    /// `into` holds is of no meaning.
    pub fn fetch(
        &self,
        core: &Core,
        cached: &CachedVersion,
        ticket: &Ticket,
        into: &mut [u8],
    ) -> bool {
        let block = ticket.block;
        let Some(shared) = Shared::of(core, cached) else { return false };
        if self.is_stopping() || !self.has_company() {
            return false;
        }
        let Some(plan) = self.plan(&shared, block) else { return false };
        let within = (block % u64::from(CHUNK_BLOCKS)) as usize;
        let Some(BlockPlan { holders, filler }) = plan.blocks.get(within) else { return false };
        let mut holders: Vec<_> = holders.iter().filter(|it| self.may_ask(it)).cloned().collect();
        let has_holders = !holders.is_empty();
        for _ in 0..ATTEMPTS {
            let Some(holder) = self.peers.lock().choose(self.now(), &holders) else { break };
            let prefers_pfs = self.peers.lock().prefers_pfs(&holder, into.len() as u64);
            if prefers_pfs {
                return false;
            }
            match self.ask(core, &shared, (block, false), &holder, into) {
                Outcome::Got => return true,
                Outcome::Next => holders.retain(|it| *it != holder),
                Outcome::GiveUp => return false,
            }
        }
        let filler = filler.as_ref().filter(|it| !has_holders && self.may_ask(it));
        let chosen =
            filler.and_then(|it| self.peers.lock().choose(self.now(), std::slice::from_ref(it)));
        chosen.is_some_and(|filler| {
            ticket.decide_on_filler(true)
                && matches!(self.ask(core, &shared, (block, true), &filler, into), Outcome::Got)
        })
    }

    /// Whether any other node is there to ask.
    fn has_company(&self) -> bool {
        self.proofs.any()
    }

    fn may_ask(&self, node: &NodeName) -> bool {
        *node != self.me && self.proofs.holds(node)
    }

    /// Where the blocks around `block` come from. One question is under way for a chunk at a time.
    fn plan(&self, shared: &Shared, block: u64) -> Option<Arc<ChunkPlan>> {
        let chunk = u32::try_from(block / u64::from(CHUNK_BLOCKS)).ok()?;
        let slot = (shared.file.inode ^ u64::from(chunk)) as usize % ASKING;
        if let Lookup::Known(plan) = self.look_up(shared, chunk) {
            return Some(plan);
        }
        let _asking = self.asking[slot].lock();
        let (home, request) = match self.look_up(shared, chunk) {
            Lookup::Known(plan) => return Some(plan),
            Lookup::Ask { home, request } => (home, request),
        };
        let reply = self.ask_home(&home, &request)?;
        self.members.lock().learn(self.now(), &home, &reply)
    }

    /// Asks a home where blocks are, unless it is avoided for now.
    pub(super) fn ask_home(&self, home: &NodeName, request: &[u8]) -> Option<Vec<u8>> {
        self.peers.lock().choose(self.now(), std::slice::from_ref(home))?;
        let request = threads::about_locations(request);
        match self.transport.call(home.as_str(), &request, self.config.peer_timeout) {
            Ok(reply) => {
                // It may have been the one question that finds out whether it answers again.
                self.peers.lock().refused(home, 0);
                Some(reply)
            }
            Err(error) => {
                tracing::debug!(%home, %error, "no answer on where blocks are");
                let timed_out = matches!(error, PeerError::TimedOut);
                self.peers.lock().failed(self.now(), home, 0, timed_out);
                None
            }
        }
    }

    fn look_up(&self, shared: &Shared, chunk: u32) -> Lookup {
        self.members.lock().lookup(self.now(), shared.file, shared.version, chunk)
    }

    /// Asks one node for a block, which it `may_fill` or must hold.
    fn ask(
        &self,
        core: &Core,
        shared: &Shared,
        (block, may_fill): (u64, bool),
        node: &NodeName,
        into: &mut [u8],
    ) -> Outcome {
        let bytes = into.len() as u64;
        let request = shared.request(block * core.block_bytes(), into.len(), may_fill);
        self.peers.lock().began(self.now(), node, bytes);
        let began = Instant::now();
        let fetched = self.transport.fetch(node.as_str(), &request, into, self.config.peer_timeout);
        let (now, took) = (self.now(), began.elapsed());
        let error = match fetched {
            Ok(()) => {
                let mut peers = self.peers.lock();
                match may_fill {
                    // What it read from the PFS first says nothing of the way to it.
                    true => peers.refused(node, bytes),
                    false => peers.succeeded(now, node, bytes, took),
                }
                drop(peers);
                self.counts.fetched.add(1);
                core.counters.peer_read_bytes.add(bytes);
                return Outcome::Got;
            }
            Err(error) => error,
        };
        self.counts.missed.add(1);
        tracing::debug!(%node, block, %error, "a block did not come");
        match error {
            PeerError::Refused(refusal) => {
                self.peers.lock().refused(node, bytes);
                self.note_refusal(shared, block, node, refusal)
            }
            PeerError::Changed => {
                self.peers.lock().refused(node, bytes);
                self.counts.changed.add(1);
                Outcome::GiveUp
            }
            error => {
                let timed_out = matches!(error, PeerError::TimedOut);
                self.peers.lock().failed(now, node, bytes, timed_out);
                Outcome::Next
            }
        }
    }

    fn note_refusal(
        &self,
        shared: &Shared,
        block: u64,
        node: &NodeName,
        refusal: Refusal,
    ) -> Outcome {
        match refusal {
            Refusal::NotHeld | Refusal::Stale => {
                let block = u32::try_from(block).unwrap_or(u32::MAX);
                self.members.lock().not_held(self.now(), shared.file, block, node);
            }
            Refusal::Unknown => self.proofs.doubt(node, join::UNKNOWN_THERE),
            Refusal::Busy => {}
        }
        Outcome::Next
    }
}
