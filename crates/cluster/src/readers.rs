//! Who reads what beside whom, and who of them reads a block from the PFS for all.
//!
//! Nodes that read the same chunk, or the next one, within some seconds are co-readers. Each block
//! that nobody holds has one *filler* among them, chosen by rendezvous hashing, so that four nodes
//! that scan a cold file read a quarter each.

use std::collections::VecDeque;
use std::time::Duration;

use crate::hash::{self, Map};
use crate::membership::MemberIndex;
use crate::table::Version;
use crate::{CHUNK_BLOCKS, Time};

/// Co-readers remembered for a chunk; the latest stay.
const ASKERS_MAX: usize = 32;

type Chunk = (u64, u32);
type Fillers = [Option<MemberIndex>; CHUNK_BLOCKS as usize];

/// What was asked of a chunk lately.
struct Asks {
    version: Version,
    /// Latest last.
    askers: Vec<(MemberIndex, Time)>,
    fillers: [Option<(MemberIndex, Time)>; CHUNK_BLOCKS as usize],
    last: Time,
}

/// Readers of the files of which this node is the home.
pub(crate) struct Readers {
    chunks: Map<Chunk, Asks>,
    /// Chunks by when they are looked at next.
    order: VecDeque<(Chunk, Time)>,
    ttl: Duration,
    chunks_max: usize,
}

/// A question to the home, as far as readers are concerned.
pub(crate) struct Question {
    pub key: u64,
    pub version: Version,
    pub chunk: u32,
    /// Who asks; `None` for who is no member.
    pub asker: Option<MemberIndex>,
    /// Blocks of the chunk that somebody holds.
    pub held: u16,
}

impl Readers {
    pub(crate) fn new(ttl: Duration, chunks_max: usize) -> Self {
        let (chunks, order) = (Map::default(), VecDeque::new());
        Self { chunks, order, ttl, chunks_max: chunks_max.max(1) }
    }

    /// Remembers the question and names a filler for each block that nobody holds. `id` gives the
    /// hash of a living member's name, `None` for others.
    pub(crate) fn ask(
        &mut self,
        now: Time,
        question: &Question,
        id: impl Fn(MemberIndex) -> Option<u64>,
    ) -> Fillers {
        self.expire(now);
        self.remember(now, question);
        let mut candidates: Vec<(u64, MemberIndex)> = Vec::new();
        let Question { key, version, chunk, .. } = *question;
        let neighbours = [chunk.checked_sub(1), Some(chunk), chunk.checked_add(1)];
        for chunk in neighbours.into_iter().flatten() {
            let Some(asks) = self.chunks.get(&(key, chunk)) else { continue };
            let recent = asks.askers.iter().filter(|&&(_, at)| now.saturating_sub(at) <= self.ttl);
            for &(member, _) in recent.filter(|_| asks.version == version) {
                if let Some(id) = id(member)
                    && !candidates.iter().any(|&(_, other)| other == member)
                {
                    candidates.push((id, member));
                }
            }
        }
        let Some(asks) = self.chunks.get_mut(&(key, chunk)) else {
            return Fillers::default();
        };
        if asks.version != version {
            // Readers of a version that is past share nothing.
            return Fillers::default();
        }
        let mut fillers = Fillers::default();
        for (index, named) in asks.fillers.iter_mut().enumerate() {
            if question.held >> index & 1 == 1 {
                continue;
            }
            let stays = |&(member, since): &(MemberIndex, Time)| {
                now.saturating_sub(since) <= self.ttl && id(member).is_some()
            };
            if named.as_ref().is_none_or(|named| !stays(named)) {
                let block = u64::from(chunk) * u64::from(CHUNK_BLOCKS) + index as u64;
                let part = hash::part(key, block);
                let best = candidates.iter().max_by_key(|&&(id, _)| hash::claim(id, part));
                *named = best.map(|&(_, member)| (member, now));
            }
            fillers[index] = named.map(|(member, _)| member);
        }
        fillers
    }

    fn remember(&mut self, now: Time, question: &Question) {
        let chunk = (question.key, question.chunk);
        if !self.chunks.contains_key(&chunk) {
            if self.chunks.len() >= self.chunks_max
                && let Some((oldest, _)) = self.order.pop_front()
            {
                self.chunks.remove(&oldest);
            }
            self.order.push_back((chunk, now));
        }
        let fresh = || Asks {
            version: question.version,
            askers: Vec::new(),
            fillers: [None; CHUNK_BLOCKS as usize],
            last: now,
        };
        let asks = self.chunks.entry(chunk).or_insert_with(fresh);
        if asks.version < question.version {
            *asks = fresh();
        }
        asks.last = now;
        if let Some(asker) = question.asker.filter(|_| asks.version == question.version) {
            asks.askers.retain(|&(other, _)| other != asker);
            if asks.askers.len() == ASKERS_MAX {
                asks.askers.remove(0);
            }
            asks.askers.push((asker, now));
        }
    }

    /// Forgets chunks that nobody asked for lately.
    fn expire(&mut self, now: Time) {
        while let Some(&(chunk, at)) = self.order.front() {
            if now.saturating_sub(at) <= self.ttl {
                break;
            }
            self.order.pop_front();
            let last = self.chunks.get(&chunk).map(|asks| asks.last);
            match last {
                Some(last) if now.saturating_sub(last) <= self.ttl => {
                    self.order.push_back((chunk, last));
                }
                _ => drop(self.chunks.remove(&chunk)),
            }
        }
    }
}
