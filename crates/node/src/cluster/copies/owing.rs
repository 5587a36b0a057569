//! The side of the node that has a file in mode `alw`: its bytes are in burst buffers of other
//! nodes, on their disks, before a sync returns.
//!
//! Bytes go there in packets. One of the nodes also answers for the file: it is told where the file
//! is, how long, and which packets there are, and would bring it to the PFS (`owed`).
//!
//! A packet is stored whole, over the one before. Where a crash comes in between, some of what was
//! written since the last sync is there; nothing of what was synced is missing. So a file that is
//! cut is told to be shorter before a packet of it is stored.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use tidepool_buffer::client::{Client, Keep};
use tidepool_buffer::key::{BlockName, LAST_BLOCK, PacketKey};
use tidepool_buffer::placement::Placement;
use tidepool_cluster::NodeName;
use tidepool_proto::buffer::OwedFile;
use tidepool_proto::cluster::CopiesStatus;
use tidepool_proto::stub::Copies;
use tidepool_proto::table::BlockState;
use tidepool_proto::{FileId, Version};

use super::message::{Asked, Owe, PushAnswer, path_of};
use crate::burst_buffer::PATIENCE;
use crate::cluster::buffers::weights;
use crate::cluster::shared::Shared;
use crate::cluster::{Cluster, threads};
use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::copied::{Copied, Lacking};
use crate::file::ranges::Ranges;
use crate::file::stub::Stub;

/// Bytes of a packet: blocks of the store are multiples of it, and it fits into a message.
pub const PACKET_BYTES: u64 = 512 << 10;
/// Packets of a block, of 128 MiB.
pub const BLOCK_PACKETS: u64 = 256;
/// Packets that go to a server at a time.
const TOGETHER: usize = 16;
/// Bytes that are sent while a file is being written, before a sync asks for them.
const AHEAD_BYTES: u64 = 16 << 20;

/// The way of a file's bytes to burst buffers.
#[derive(Debug)]
pub struct Owing {
    client: Arc<Client>,
    /// Its servers.
    starts: Vec<(NodeName, u64)>,
    stored: Mutex<Stored>,
}

/// What the buffers have.
#[derive(Debug)]
struct Stored {
    /// Packets, counted through the file.
    packets: Ranges,
    /// Blocks of which something is not durable yet, and which start of its server has that.
    unsynced: BTreeMap<u64, u64>,
    told: Option<Owe>,
}

/// The block of a packet that is counted through the file, and its number there.
pub fn place_of(epoch: u64, packet: u64) -> (BlockName, u32) {
    let block = BlockName { epoch, block: packet / BLOCK_PACKETS };
    (block, (packet % BLOCK_PACKETS) as u32)
}

/// Why a file is to be written back, whatever the buffers do: who answers for it puts it in the
/// place of its one name.
pub(super) fn cannot_be_owed(stub: &Stub) -> Option<&'static str> {
    match rustix::fs::fstat(stub.lower().descriptor()).map(|facts| facts.st_nlink) {
        Ok(0) | Err(Errno::STALE | Errno::NOENT) => Some("it has no name any more"),
        Ok(2..) => Some("it has several names"),
        Ok(1) | Err(_) => None,
    }
}

/// Where what is told of a file is kept.
pub fn told_key(epoch: u64) -> PacketKey {
    PacketKey { block: BlockName { epoch, block: LAST_BLOCK }, packet: 0 }
}

impl Stored {
    /// Packets of a block were taken by this start of its server. An error where others, which are
    /// not durable, were taken by another one: they are gone.
    fn note(&mut self, block: u64, start: u64, is_durable: bool) -> Result<(), String> {
        let before = match is_durable {
            true => self.unsynced.remove(&block),
            false => self.unsynced.insert(block, start),
        };
        match before.is_some_and(|before| before != start) {
            true => Err("its burst buffer was started anew, and lost a part of it".to_owned()),
            false => Ok(()),
        }
    }
}

impl Owing {
    /// Length that is told, in bytes.
    fn told_bytes(&self) -> u64 {
        self.stored.lock().told.as_ref().map_or(0, |told| told.length)
    }

    /// The file is about to get another length: what is beyond it does not count any more. The
    /// packet that is cut is to be stored again, as its old end would come back.
    pub fn cut(&self, bytes: u64) -> Range<u64> {
        let mut stored = self.stored.lock();
        stored.packets.remove(bytes.div_ceil(PACKET_BYTES)..u64::MAX);
        let start = bytes / PACKET_BYTES * PACKET_BYTES;
        let is_stored = stored.packets.iter().any(|run| run.contains(&(bytes / PACKET_BYTES)));
        start..if is_stored { bytes } else { start }
    }

    /// The nodes that have its bytes, and which start of each was there when it began.
    pub fn servers(&self) -> impl Iterator<Item = (&NodeName, u64)> {
        self.starts.iter().map(|(server, start)| (server, *start))
    }
}

impl Cluster {
    /// Which burst buffers are to have a file that begins at `version`. `None` where no other node
    /// has one that outlasts a crash.
    pub fn place_in_buffers(&self, version: &Version) -> Option<Copied> {
        let core = self.core.upgrade()?;
        let client = self.client_of_all().filter(|_| version.id.device == core.pfs.device());
        self.buffers.note_placed(client.is_some());
        let client = client?;
        let epoch = threads::random() as u64;
        let pool = client.pool();
        let holder = pool.members()[pool.server_of(&told_key(epoch))].name.clone();
        let copies = Copies { epoch, holders: vec![holder], is_promised: false };
        let stored = Stored { packets: Ranges::exact(), unsynced: BTreeMap::new(), told: None };
        let starts = pool.members().iter().map(|member| {
            let server = NodeName::new(&member.name).ok()?;
            let start = self.buffers.start_of(&server)?;
            Some((server, start))
        });
        let starts = starts.collect::<Option<Vec<_>>>()?;
        Some(Copied::new(copies, Some(Owing { client, starts, stored: Mutex::new(stored) })))
    }

    /// Stores what the buffers lack, and tells who answers for the file.
    pub(super) fn owe_lacking(
        &self,
        core: &Core,
        (copied, owing): (&Copied, &Owing),
        (cached, stub): (&CachedVersion, &Stub),
        lacking: &Lacking,
    ) -> Result<(), String> {
        if let Some(reason) = cannot_be_owed(stub) {
            return Err(reason.to_owned());
        }
        let mut stored = owing.stored.lock();
        let (epoch, size) = (copied.copies.epoch, cached.size());
        let mut owe = self.begin_to_owe(core, (copied, owing), (cached, stub), &mut stored)?;
        let cut = lacking.shortest_bytes;
        if stored.told.as_ref().is_some_and(|told| cut < told.length) {
            (owe.length, owe.packets) = (cut, runs(&stored.packets));
            self.tell(&mut owe, &mut stored)?;
        }
        let packets = packets_of(cached, lacking, size);
        self.store(owing, (epoch, &mut stored), cached, packets)?;
        (owe.length, owe.packets) = (size, runs(&stored.packets));
        self.tell(&mut owe, &mut stored)?;
        copied.note_told(&path_of(&owe.path));
        copied.brought_up_to_date(size, owe.number);
        Ok(())
    }

    /// What is told of a file, as it was last, or anew: before the first packet of it is stored
    /// somebody answers for it, and has all buffers forget it if its node goes.
    fn begin_to_owe(
        &self,
        core: &Core,
        (copied, owing): (&Copied, &Owing),
        (cached, stub): (&CachedVersion, &Stub),
        stored: &mut Stored,
    ) -> Result<Owe, String> {
        let path = stub.lower().relative_path().ok_or("it has no name any more")?;
        let path = path.as_os_str().as_bytes().to_vec();
        if let Some(told) = &stored.told {
            return Ok(Owe { path, number: told.number + 1, ..told.clone() });
        }
        let mut owe = Owe {
            file: Shared::named(&cached.version()).words().0,
            member: self.me.to_string(),
            node: core.memory_only.node().to_owned(),
            epoch: copied.copies.epoch,
            number: 1,
            path,
            holders: copied.copies.holders.clone(),
            servers: weights(&owing.client),
            packet_bytes: PACKET_BYTES,
            block_packets: BLOCK_PACKETS,
            length: 0,
            packets: Vec::new(),
        };
        self.tell(&mut owe, stored)?;
        Ok(owe)
    }

    /// Stores whole packets of a file that is being written, so that a sync has less to wait for.
    pub fn push_ahead(&self, core: &Core, copied: &Copied, cached: &CachedVersion, stub: &Stub) {
        let Some(owing) = &copied.owing else { return };
        let told_bytes = owing.told_bytes();
        let ahead = copied.take_ahead(PACKET_BYTES, cached.size(), (told_bytes, AHEAD_BYTES));
        let Some(ranges) = ahead else { return };
        let mut stored = owing.stored.lock();
        let packets = ranges.iter().flat_map(|it| it.start / PACKET_BYTES..it.end / PACKET_BYTES);
        let begun = self.begin_to_owe(core, (copied, owing), (cached, stub), &mut stored);
        let of = (copied.copies.epoch, &mut *stored);
        let done = begun.and_then(|_| self.put(owing, of, cached, packets.collect(), false));
        if let Err(reason) = done {
            if cannot_be_owed(stub).is_none() {
                self.buffers.avoid();
            }
            copied.end();
            tracing::info!(inode = cached.id().inode, "it is to be written back: {reason}");
        }
    }

    /// Stores packets so that all blocks are durable.
    fn store(
        &self,
        owing: &Owing,
        (epoch, stored): (u64, &mut Stored),
        cached: &CachedVersion,
        mut packets: Vec<u64>,
    ) -> Result<(), String> {
        let blocks: Vec<u64> = packets.iter().map(|packet| packet / BLOCK_PACKETS).collect();
        let all = stored.packets.clone();
        // Where nothing is left of a block it was cut.
        stored.unsynced.retain(|block, _| all.last_within(range_of(*block)).is_some());
        let lacking = stored.unsynced.keys().filter(|it| blocks.binary_search(it).is_err());
        // One of them is stored again: its answer is that of its block.
        packets.extend(lacking.filter_map(|block| all.last_within(range_of(*block))));
        packets.sort_unstable();
        self.put(owing, (epoch, stored), cached, packets, true)
    }

    /// Stores packets, in rising order. The last one of each block, or where `is_sync` the last one
    /// here, makes all of it durable.
    fn put(
        &self,
        owing: &Owing,
        (epoch, stored): (u64, &mut Stored),
        cached: &CachedVersion,
        packets: Vec<u64>,
        is_sync: bool,
    ) -> Result<(), String> {
        let (size, segment) = (cached.size(), cached.segment());
        let Some(segment) = segment.filter(|_| !packets.is_empty()) else { return Ok(()) };
        for of_block in packets.chunk_by(|a, b| a / BLOCK_PACKETS == b / BLOCK_PACKETS) {
            let mut of_block = of_block.chunks(TOGETHER).peekable();
            while let Some(some) = of_block.next() {
                let mut pins = Vec::with_capacity(some.len());
                for packet in some {
                    let start = packet * PACKET_BYTES;
                    let block = start / segment.block_bytes();
                    let pin = segment.pin_block(block).ok_or("a block of it cannot be mapped")?;
                    let from = (start - block * segment.block_bytes()) as usize;
                    pins.push((pin, from..from + (size - start).min(PACKET_BYTES) as usize));
                }
                let mut bytes = Vec::with_capacity(some.len());
                for (packet, (pin, range)) in some.iter().zip(&pins) {
                    let of_it = pin.get(range.clone());
                    let of_it = of_it.ok_or("a block of it is shorter than the file")?;
                    bytes.push((place_of(epoch, *packet).1, of_it));
                }
                let (first, last) = (some[0], some[some.len() - 1]);
                let block = place_of(epoch, first).0;
                let is_last = is_sync && of_block.peek().is_none();
                let is_durable = is_last || last % BLOCK_PACKETS == BLOCK_PACKETS - 1;
                let keep = if is_durable { Keep::Durable } else { Keep::Owed };
                let start = store(&owing.client, &block, &bytes, keep)?;
                stored.note(block.block, start, is_durable)?;
                some.iter().for_each(|packet| stored.packets.add(*packet..packet + 1));
                let sent: usize = bytes.iter().map(|(_, bytes)| bytes.len()).sum();
                self.copies.pushed_bytes.add(sent as u64);
            }
        }
        Ok(())
    }

    /// Tells all who answer for a file; they have it on their disks then. The next time has the
    /// next number.
    fn tell(&self, owe: &mut Owe, stored: &mut Stored) -> Result<(), String> {
        let message = postcard::to_stdvec(&Asked::Owe(owe.clone()));
        let message = threads::about_copies(&message.map_err(|error| error.to_string())?);
        for holder in &owe.holders {
            let node = NodeName::new(holder).map_err(|error| error.to_string())?;
            if let Some(reason) = self.why_not_asked(&node) {
                return Err(reason);
            }
            self.copies.pushed_to.lock().insert(node);
            let limit = PATIENCE + 2 * self.config.peer_timeout;
            let reply = self.transport.call(holder, &message, limit);
            let reply = reply.map_err(|error| format!("`{holder}`: {error}"))?;
            let answer: PushAnswer = postcard::from_bytes(&reply)
                .map_err(|_| format!("`{holder}` answers what this release does not understand"))?;
            answer.map_err(|reason| format!("`{holder}`: {reason}"))?;
        }
        stored.told = Some(owe.clone());
        owe.number += 1;
        Ok(())
    }

    /// Notes what buffers owe of these files.
    pub(super) fn note_owed(&self, core: &Core, files: &[(Arc<Copied>, FileId)]) {
        let mut owed = CopiesStatus::default();
        for (copied, id) in files {
            let Some(since) = copied.owed_since() else { continue };
            let cached = core.files.get(*id).and_then(|file| file.cached());
            owed.owed_files += 1;
            owed.owed_bytes += cached.map_or(0, |cached| cached.size());
            owed.owed_oldest_s = owed.owed_oldest_s.max(Some(since.elapsed().as_secs()));
        }
        *self.copies.owed.lock() = owed;
    }

    /// Files in burst buffers of this node, and those for which it answers, the oldest first.
    pub fn owed_files(&self, core: &Core) -> Vec<OwedFile> {
        let write_back = core.memory_only.write_back_state();
        let is_full = write_back.state().map(|full| full.why);
        let own = self.counted_on(core).into_iter().filter_map(|(copied, id)| {
            let (since, owing) = (copied.owed_since()?, copied.owing.as_ref()?);
            let file = core.files.get(id)?;
            let lower = file.inner.lock().stub.as_ref()?.lower().clone();
            let path = lower.relative_path_known().unwrap_or_default();
            Some(OwedFile {
                path: path.display().to_string(),
                bytes: file.cached()?.size(),
                age_s: since.elapsed().as_secs(),
                node: self.me.to_string(),
                answered_by: copied.copies.holders.join(", "),
                servers: owing.servers().map(|(server, _)| server.to_string()).collect(),
                stays_because: write_back.failing().why(id).or_else(|| is_full.clone()),
            })
        });
        let others = self.copies.held.all().into_iter().filter_map(|copy| {
            let (told, stays_because) = copy.owed()?;
            Some(OwedFile {
                path: copy.path().display().to_string(),
                bytes: told.length,
                age_s: copy.since.elapsed().as_secs(),
                node: copy.owner.to_string(),
                answered_by: self.me.to_string(),
                servers: told.servers.into_iter().map(|(server, _)| server).collect(),
                stays_because,
            })
        });
        let mut all: Vec<OwedFile> = own
            .chain(others)
            .chain(self.unknown_owed_files(core).into_iter().map(|it| it.0))
            .collect();
        all.sort_by_key(|file| std::cmp::Reverse(file.age_s));
        all
    }

    /// A client of all burst buffers that outlast a crash.
    fn client_of_all(&self) -> Option<Arc<Client>> {
        let members = self.buffer_nodes();
        if members.is_empty() || !self.buffers.are_well() {
            return None;
        }
        self.buffers.shared_client(&members, || {
            self.buffer_client(members.clone(), Placement::Block).map(Arc::new)
        })
    }
}

/// Stores packets of a block by two calls at a time: while one is on its way the other is stored.
/// Which start of its server took them.
fn store(
    client: &Client,
    block: &BlockName,
    packets: &[(u32, &[u8])],
    keep: Keep,
) -> Result<u64, String> {
    let put = |packets: &[(u32, &[u8])], keep| match packets {
        [] => Ok(None),
        _ => client.put(block, packets, keep).map_err(|error| error.to_string()),
    };
    let (first, last) = packets.split_at(packets.len() - 1);
    let (one, other) = first.split_at(first.len() / 2);
    let both = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || put(one, Keep::Owed));
        let done = put(other, Keep::Owed);
        let beside = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err("storing it failed".to_owned())),
            Err(_) => put(one, Keep::Owed),
        };
        Ok::<_, String>([done?, beside?])
    })?;
    // After all others of it: its answer is that of its block.
    let start = put(last, keep)?.ok_or("it does not tell which start of it this is")?;
    match both.iter().flatten().all(|other| *other == start) {
        true => Ok(start),
        false => Err("its burst buffer was started anew, and lost a part of it".to_owned()),
    }
}

fn runs(packets: &Ranges) -> Vec<(u64, u64)> {
    packets.iter().map(|run| (run.start, run.end)).collect()
}

/// Packets of a block, counted through the file.
fn range_of(block: u64) -> Range<u64> {
    block * BLOCK_PACKETS..(block + 1) * BLOCK_PACKETS
}

/// Packets that changed, of blocks that were ever written.
fn packets_of(cached: &CachedVersion, lacking: &Lacking, size: u64) -> Vec<u64> {
    let Some(segment) = cached.segment() else { return Vec::new() };
    let mut changed = Ranges::exact();
    for range in &lacking.ranges {
        changed.add(range.start / PACKET_BYTES..range.end.min(size).div_ceil(PACKET_BYTES));
    }
    let is_there = |packet: &u64| {
        let start = packet * PACKET_BYTES;
        start < size && segment.state(start / segment.block_bytes()) != BlockState::Absent
    };
    changed.iter().flatten().filter(is_there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_start_of_a_server_had_in_memory_is_missed() {
        let (packets, unsynced) = (Ranges::exact(), BTreeMap::new());
        let mut stored = Stored { packets, unsynced, told: None };
        stored.note(0, 7, false).unwrap();
        stored.note(1, 8, false).unwrap();
        stored.note(0, 7, true).unwrap();
        // What was made durable since is there.
        stored.note(0, 9, false).unwrap();
        stored.note(0, 9, true).unwrap();
        assert!(stored.note(1, 9, true).is_err() && stored.unsynced.is_empty());
        stored.note(2, 9, false).unwrap();
        assert!(stored.note(2, 10, false).is_err());
    }
}
