//! The side of the node that owes a file.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_cluster::NodeName;
use tidepool_peer::{Block, BlockRequest, Bytes, Refusal};
use tidepool_pfs::LowerFile;
use tidepool_proto::table::BlockState;
use tidepool_proto::{FileId, Version};

use super::{Asked, Begun, Ended};
use crate::cluster::shared::Shared;
use crate::cluster::{Cluster, threads};
use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::copied::Copied;
use crate::file::memory_only;
use crate::file::state::FileState;

/// How long a file counts as open here after another node asked for it last: it asks while it waits
/// for the file to come to the PFS.
const OPEN_FOR: Duration = Duration::from_secs(5);
/// Files that count so at a time; others are read once the PFS has them.
const OPEN_MAX: usize = 1024;
/// Tokens of files that the PFS has by now which are remembered.
const ENDED_MAX: usize = 4096;

/// What this node gives to others of files that it owes.
#[derive(Default)]
pub struct Given {
    open: Mutex<HashMap<FileId, OpenElsewhere>>,
    ended: Mutex<VecDeque<(u64, Ended)>>,
}

/// A file that is read on other nodes counts as open here: where it is removed, its bytes stay.
struct OpenElsewhere {
    core: Weak<Core>,
    file: Arc<FileState>,
    /// As with an open, the file keeps its number: no other one gets its record meanwhile.
    _lower: Arc<dyn LowerFile>,
    asked: Instant,
}

impl OpenElsewhere {
    fn new(core: &Arc<Core>, file: &Arc<FileState>, lower: Arc<dyn LowerFile>) -> Self {
        file.inner.lock().handles += 1;
        let (core, file) = (Arc::downgrade(core), file.clone());
        OpenElsewhere { core, file, _lower: lower, asked: Instant::now() }
    }
}

impl Drop for OpenElsewhere {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.end_open(&self.file, false);
        }
    }
}

impl Given {
    /// Another node waits for a file, or reads it.
    pub fn note_asked(&self, id: FileId) {
        if let Some(open) = self.open.lock().get_mut(&id) {
            open.asked = Instant::now();
        }
    }

    fn open(&self, core: &Arc<Core>, file: &Arc<FileState>, lower: Arc<dyn LowerFile>) -> bool {
        let mut open = self.open.lock();
        if open.len() >= OPEN_MAX && !open.contains_key(&file.id) {
            return false;
        }
        let known = open.entry(file.id).or_insert_with(|| OpenElsewhere::new(core, file, lower));
        known.asked = Instant::now();
        true
    }

    /// Ends opens of nodes that asked for nothing for a while.
    pub fn close_idle(&self) {
        let over = {
            let mut open = self.open.lock();
            let is_over = |it: &OpenElsewhere| it.asked.elapsed() > OPEN_FOR;
            let ids: Vec<_> =
                open.iter().filter(|(_, it)| is_over(it)).map(|(id, _)| *id).collect();
            ids.iter().filter_map(|id| open.remove(id)).collect::<Vec<_>>()
        };
        // Without the lock: what is discarded may wait.
        drop(over);
    }

    /// Ends all of them, as the node does.
    pub fn close(&self) {
        let over = std::mem::take(&mut *self.open.lock());
        drop(over);
    }

    /// The PFS has the bytes of a file, which is at `version`, where that is known.
    pub fn note_written_back(&self, copied: &Copied, version: Option<&Version>) {
        let Some(token) = copied.end_token() else { return };
        let ended = version.map_or(Ended::UNKNOWN, |it| Ended(Shared::named(it).words().1));
        let mut all = self.ended.lock();
        if all.len() >= ENDED_MAX {
            all.pop_front();
        }
        all.push_back((token, ended));
    }

    fn ended(&self, token: u64) -> Option<Ended> {
        let all = self.ended.lock();
        all.iter().rev().find(|(known, _)| *known == token).map(|(_, ended)| *ended)
    }
}

/// Answers another node; with nothing where the file is to be waited for.
pub fn answer(cluster: &Cluster, from: &NodeName, request: &[u8]) -> Vec<u8> {
    let asked = postcard::from_bytes::<Asked>(request).ok();
    let Some(asked) = asked.filter(|_| cluster.proofs.holds(from)) else { return Vec::new() };
    let reply = match asked {
        Asked::Begin { file, node, block_bytes } => {
            postcard::to_stdvec(&begin(cluster, file, (&node, block_bytes)))
        }
        Asked::End { token } => postcard::to_stdvec(&cluster.given.ended(token)),
    };
    reply.unwrap_or_default()
}

fn begin(cluster: &Cluster, file: [u64; 2], (node, block_bytes): (&str, u64)) -> Option<Begun> {
    let core = cluster.core.upgrade().filter(|_| !cluster.is_stopping())?;
    if node != core.memory_only.node() || block_bytes != core.block_bytes() {
        return None;
    }
    let shared = Shared::from_words(file, [0; 3]);
    let file = core.files.get(shared.id(&core))?;
    // Expendable bytes never come to the PFS.
    if memory_only::is_expendable(&core, &file) {
        return None;
    }
    let (_, copied) = owed(&file, &shared)?;
    let lower = file.inner.lock().stub.as_ref()?.lower().clone();
    let (token, length) = copied.token(|| threads::random() as u64)?;
    cluster.given.open(&core, &file, lower).then_some(Begun { token, length })
}

/// The bytes of this very file, where they are in memory alone and other nodes have copies.
fn owed(file: &FileState, shared: &Shared) -> Option<(Arc<CachedVersion>, Arc<Copied>)> {
    let inner = file.inner.lock();
    let cached = inner.cached.clone().filter(|cached| cached.is_memory_only())?;
    let copied = inner.stub.as_ref()?.copied()?.clone();
    (Shared::named(&cached.version()).file == shared.file).then_some((cached, copied))
}

impl Cluster {
    /// A block of a file that this node owes, for another one.
    pub(in crate::cluster) fn owed_block(
        &self,
        from: &str,
        request: &BlockRequest,
    ) -> Result<Block, Refusal> {
        let core = self.core.upgrade().ok_or(Refusal::Busy)?;
        let from = NodeName::new(from).map_err(|_| Refusal::Unknown)?;
        if !self.proofs.holds(&from) {
            return Err(Refusal::Unknown);
        }
        let shared = Shared::from_words(request.file, [0; 3]);
        let token = request.version[1] as u64;
        let file = core.files.get(shared.id(&core)).ok_or(Refusal::Stale)?;
        let (cached, copied) = owed(&file, &shared).ok_or(Refusal::Stale)?;
        let length_of_token = copied.length_of(token).ok_or(Refusal::Stale)?;
        self.given.note_asked(file.id);
        let (block_bytes, length) = (core.block_bytes(), request.length as usize);
        let rest = length_of_token.saturating_sub(request.offset).min(block_bytes);
        if !request.offset.is_multiple_of(block_bytes) || length == 0 || length as u64 != rest {
            return Err(Refusal::NotHeld);
        }
        let block = request.offset / block_bytes;
        let (bytes, generation) = bytes_of(&cached, block, request.offset, length)?;
        let confirm = move || {
            let is_same = |(now, copied): (Arc<CachedVersion>, Arc<Copied>)| {
                let pin = now.segment().and_then(|segment| segment.pin_block(block));
                now.number == cached.number
                    && copied.length_of(token).is_some()
                    && generation.is_none_or(|then| pin.is_some_and(|it| it.generation() == then))
            };
            owed(&file, &shared).is_some_and(is_same)
        };
        Ok(Block { bytes, confirm: Box::new(confirm) })
    }
}

/// The bytes of a block, and by which number it is known that it stayed; holes have none.
fn bytes_of(
    cached: &CachedVersion,
    block: u64,
    offset: u64,
    length: usize,
) -> Result<(Bytes, Option<u64>), Refusal> {
    let is_there = |segment: &&Arc<tidepool_store::Segment>| {
        block < segment.blocks() && segment.state(block) != BlockState::Absent
    };
    let Some(segment) = cached.segment().filter(is_there) else {
        return Ok((Bytes::Copied(vec![0; length]), None));
    };
    let pin = segment.pin_block(block).filter(|pin| pin.len() >= length).ok_or(Refusal::Busy)?;
    let file = segment.descriptor().try_clone_to_owned().map_err(|_| Refusal::Busy)?;
    Ok((Bytes::File { file: Arc::new(file), offset }, Some(pin.generation())))
}
