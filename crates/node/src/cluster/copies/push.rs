//! The side of the node that has a memory-only file: which nodes are to hold copies, and bringing
//! them up to date before a sync returns.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidepool_cluster::NodeName;
use tidepool_proto::Version;
use tidepool_proto::stub::Copies;
use tidepool_proto::table::BlockState;
use tidepool_store::Segment;

use super::message::{Asked, Begin, Push, PushAnswer};
use super::owing::cannot_be_owed;
use crate::cluster::shared::Shared;
use crate::cluster::{Cluster, threads};
use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::copied::{Copied, Lacking};
use crate::file::stub::Stub;

/// Most bytes of the file in a message; what is said about them fits into the rest of 1 MiB.
const PIECE_BYTES: u64 = (1 << 20) - (16 << 10);

/// Bytes that go in one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    length: u64,
}

/// What is sent to each holder.
struct Update<'a> {
    cached: &'a CachedVersion,
    file: [u64; 2],
    node: &'a str,
    epoch: u64,
    path: Vec<u8>,
    holders: &'a [String],
    lacking: Lacking,
    size: u64,
    pieces: Vec<Piece>,
}

impl Cluster {
    /// Which other nodes are to hold copies of a file that begins at `version`. `None` where there
    /// are too few.
    pub fn place_copies(&self, version: &Version, others: u32) -> Option<Copies> {
        let core = self.core.upgrade()?;
        let named = self.members.lock().copy_holders(Shared::named(version).file);
        let sound = named.iter().filter(|node| self.proofs.holds(node));
        let holders: Vec<String> =
            sound.take(others as usize).map(|node| node.to_string()).collect();
        let is_placed = holders.len() == others as usize && version.id.device == core.pfs.device();
        self.copies.note_placed(is_placed, others + 1);
        let epoch = threads::random() as u64;
        is_placed.then_some(Copies { epoch, holders, is_promised: false })
    }

    /// Brings all copies of a file up to date. False where one of them is not to be had. Call under
    /// the file's exclusive gate, after the mark is durable.
    pub fn push(
        &self,
        core: &Core,
        copied: &Arc<Copied>,
        cached: &CachedVersion,
        stub: &Stub,
    ) -> bool {
        if copied.is_over() {
            return false;
        }
        // A holder may have been started anew since.
        let Some(lacking) = copied.lacking().or_else(|| copied.to_confirm()) else { return true };
        let pushed = match &copied.owing {
            Some(owing) => self.owe_lacking(core, (copied, owing), (cached, stub), &lacking),
            None => self.push_lacking(core, copied, cached, stub, lacking),
        };
        if let Err(reason) = &pushed {
            copied.end();
            if copied.owing.is_some() && cannot_be_owed(stub).is_none() {
                self.buffers.avoid();
            }
            self.copies.missing.add(1);
            tracing::info!(
                inode = cached.id().inode,
                "written back, as a copy is missing: {reason}"
            );
        }
        pushed.is_ok()
    }

    fn push_lacking(
        &self,
        core: &Core,
        copied: &Copied,
        cached: &CachedVersion,
        stub: &Stub,
        lacking: Lacking,
    ) -> Result<(), String> {
        let path = stub.lower().relative_path().ok_or("it has no name any more")?;
        let size = cached.size();
        let first = lacking.first;
        let update = Update {
            pieces: pieces_of(cached.segment(), &lacking, size),
            cached,
            file: Shared::named(&cached.version()).words().0,
            node: core.memory_only.node(),
            epoch: copied.copies.epoch,
            path: path.as_os_str().as_bytes().to_vec(),
            holders: &copied.copies.holders,
            lacking,
            size,
        };
        let holders = &copied.copies.holders;
        match &holders[..] {
            [holder] => self.send_to(holder, &update)?,
            _ => std::thread::scope(|scope| {
                let update = &update;
                let send = |holder: &'_ String| {
                    let holder = holder.clone();
                    scope.spawn(move || self.send_to(&holder, update))
                };
                let sending: Vec<_> = holders.iter().map(send).collect();
                let joined = sending.into_iter().map(|thread| {
                    thread.join().unwrap_or_else(|_| Err("sending it failed".to_owned()))
                });
                joined.collect::<Vec<_>>().into_iter().collect::<Result<(), String>>()
            })?,
        }
        copied.note_told(&path);
        copied.brought_up_to_date(size, first + update.messages() as u64);
        Ok(())
    }

    fn send_to(&self, holder: &str, update: &Update<'_>) -> Result<(), String> {
        let node = NodeName::new(holder).map_err(|error| error.to_string())?;
        if !self.members.lock().is_alive(&node) {
            return Err(format!("`{holder}` is not there"));
        }
        self.copies.pushed_to.lock().insert(node);
        for index in 0..update.messages() {
            let message = update.message(index)?;
            let reply = self.transport.call(holder, &message, self.config.peer_timeout);
            let reply = reply.map_err(|error| format!("`{holder}`: {error}"))?;
            let answer: PushAnswer = postcard::from_bytes(&reply)
                .map_err(|_| format!("`{holder}` answers what this release does not understand"))?;
            answer.map_err(|reason| format!("`{holder}`: {reason}"))?;
            self.copies.pushed_bytes.add(message.len() as u64);
        }
        Ok(())
    }

    /// Times in memory of files of this node of which others hold copies.
    pub(super) fn counted_on(&self, core: &Core) -> Vec<(Arc<Copied>, tidepool_proto::FileId)> {
        let ids = core.memory_only.cached_versions().into_iter().map(|cached| cached.id());
        let copied = |id| {
            let file = core.files.get(id)?;
            let copied = file.inner.lock().stub.as_ref()?.copied().cloned()?;
            Some((copied, id))
        };
        let all: Vec<_> = ids.filter_map(copied).collect();
        self.copies.copied_files.store(all.len() as u64, Ordering::Relaxed);
        self.note_owed(core, &all);
        all
    }
}

impl Update<'_> {
    /// One at least, which tells the length.
    fn messages(&self) -> usize {
        self.pieces.len().max(1)
    }

    fn message(&self, index: usize) -> Result<Vec<u8>, String> {
        let piece = self.pieces.get(index).copied().unwrap_or(Piece { offset: 0, length: 0 });
        let is_first = index == 0;
        let begin = || Begin {
            path: self.path.clone(),
            user_id: self.cached.owner.user_id,
            holders: self.holders.to_vec(),
        };
        let push = Push {
            file: self.file,
            node: self.node.to_owned(),
            epoch: self.epoch,
            number: self.lacking.first + index as u64,
            begin: is_first.then(begin),
            cut_bytes: is_first.then_some(self.lacking.shortest_bytes),
            offset: piece.offset,
            length: (index + 1 == self.messages()).then_some(self.size),
        };
        let head = postcard::to_stdvec(&Asked::Push(push)).map_err(|error| error.to_string())?;
        let mut message = threads::about_copies(&head);
        if piece.length > 0 {
            let segment = self.cached.segment().ok_or("its bytes are gone")?;
            let block = piece.offset / segment.block_bytes();
            let pin = segment.pin_block(block).ok_or("a block of it cannot be mapped")?;
            let from = (piece.offset - block * segment.block_bytes()) as usize;
            let bytes = pin.get(from..from + piece.length as usize);
            message.extend_from_slice(bytes.ok_or("a block of it is shorter than the file")?);
        }
        Ok(message)
    }
}

/// What changed, cut to the file, to its blocks and to messages. Blocks that were never written are
/// holes in the copies too.
fn pieces_of(segment: Option<&Arc<Segment>>, lacking: &Lacking, size: u64) -> Vec<Piece> {
    let Some(segment) = segment else { return Vec::new() };
    let (block_bytes, mut pieces) = (segment.block_bytes(), Vec::new());
    for range in &lacking.ranges {
        let (mut at, end) = (range.start, range.end.min(size));
        while at < end {
            let block = at / block_bytes;
            let upto = end.min((block + 1) * block_bytes);
            if segment.state(block) == BlockState::Absent {
                at = upto;
                continue;
            }
            let length = (upto - at).min(PIECE_BYTES);
            pieces.push(Piece { offset: at, length });
            at += length;
        }
    }
    pieces
}
