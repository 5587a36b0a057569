//! The side of a node with a burst buffer: files for which it answers, because it was told of them
//! by the node that has them (`owing`). If that node goes, this one brings them to the PFS, as any
//! holder of a copy does (`give_back`).
//!
//! What it was told is in its own buffer, on the disk, under a key of its own: it is there again
//! when the node is started again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_buffer::client::{Client, Keep};
use tidepool_buffer::disk::Owed;
use tidepool_buffer::key::LAST_BLOCK;
use tidepool_buffer::placement::Placement;
use tidepool_cluster::{FileKey, NodeName};
use tidepool_proto::buffer::OwedFile as OwedFileReport;

use super::message::{Owe, path_of};
use super::owing::{place_of, told_key};
use super::place;
use crate::cluster::Cluster;
use crate::cluster::buffers::members_of;
use crate::core::Core;
use crate::file::background::Writing;
use crate::file::write_back::WrittenBack;

/// First byte of what is kept of a file, before the rest: another release may tell more.
const FORM: u8 = 2;
/// That of the release before, which did not tell of a [`Kept::placing`].
const FORM_BEFORE: u8 = 1;
/// Packets that are read at a time.
const TOGETHER: u64 = 16;

/// What is on the disk of a file.
struct Kept {
    owe: Owe,
    /// The file with its bytes that was about to take its place: where that is there, and this node
    /// was killed, it did.
    placing: Option<FileKey>,
}

impl Kept {
    fn bytes(&self) -> Result<Vec<u8>, String> {
        let placing = self.placing.map(|key| [key.inode, key.generation]);
        let mut bytes = vec![FORM];
        for part in [postcard::to_stdvec(&self.owe), postcard::to_stdvec(&placing)] {
            bytes.extend(part.map_err(|error| error.to_string())?);
        }
        Ok(bytes)
    }

    /// `None` where it is damaged.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (form, rest) = bytes.split_first()?;
        let (owe, rest) = postcard::take_from_bytes::<Owe>(rest).ok()?;
        let placing = match *form {
            FORM_BEFORE => None,
            _ => postcard::from_bytes::<Option<[u64; 2]>>(rest).ok()?,
        };
        let placing = placing.map(|[inode, generation]| FileKey { inode, generation });
        Some(Kept { owe, placing }).filter(|kept| is_sound(&kept.owe))
    }

    /// Whether another release wrote it.
    fn is_of_another_release(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|form| ![FORM, FORM_BEFORE].contains(form))
    }
}

/// Why it is not known which file something is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKnown {
    /// What was told of it cannot be read, for good.
    Damaged,
    /// It is told in another form.
    OfAnotherRelease,
    /// It can be read, and this node cannot answer for it now.
    NotAnswered,
}

/// A file in burst buffers.
pub struct OwedFile {
    /// The time in memory of the file.
    epoch: u64,
    /// Of the nodes that have its blocks.
    client: Client,
    /// Held while what is told is being stored, which takes as long as the disk does: one at a
    /// time.
    telling: Mutex<()>,
    told: Mutex<Option<Owe>>,
    /// See [`Kept::placing`].
    placing: Mutex<Option<FileKey>>,
    /// Whether somebody waits for it.
    wanted: (Mutex<bool>, Condvar),
}

impl OwedFile {
    /// What was told last.
    pub fn told(&self) -> Option<Owe> {
        self.told.lock().clone()
    }

    /// What is told now is on the disk.
    pub fn set_told(&self, owe: &Owe) {
        *self.told.lock() = Some(owe.clone());
    }

    /// Notes, on the disk, which file is about to take its place. Where that is not to be, it only
    /// is not known after this node was killed in that moment.
    pub fn note_placing(&self, core: &Core, owe: &Owe, file: FileKey) {
        let Some(buffer) = &core.burst_buffer else { return };
        let _telling = self.telling.lock();
        *self.placing.lock() = Some(file);
        let kept = Kept { owe: owe.clone(), placing: Some(file) };
        let noted = kept.bytes().and_then(|bytes| {
            let key = told_key(self.epoch);
            let put = buffer.local().put(&key.block, &[(key.packet, &bytes)], Keep::Durable);
            put.map_err(|error| error.to_string())
        });
        if let Err(reason) = noted {
            tracing::debug!(reason, "it is not noted which file takes the place of a stub");
        }
    }

    /// The file that was about to take its place.
    pub fn placing(&self) -> Option<FileKey> {
        *self.placing.lock()
    }

    /// Somebody waits for it, from now on.
    pub fn hurry(&self) {
        *self.wanted.0.lock() = true;
        self.wanted.1.notify_all();
    }

    /// Whether somebody waits for it.
    pub fn is_wanted(&self) -> bool {
        *self.wanted.0.lock()
    }

    /// Waits until somebody waits for it, for no longer than `limit`; whether somebody does.
    fn wait_until_wanted(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut is_wanted = self.wanted.0.lock();
        while !*is_wanted && !self.wanted.1.wait_until(&mut is_wanted, until).timed_out() {}
        *is_wanted
    }

    /// Writes its bytes; what was never written are holes. As fast as readers of the PFS do not
    /// notice, until somebody waits for it.
    pub fn write_into(&self, core: &Core, owe: &Owe, file: &File) -> Result<(), String> {
        let failed = |error: String| format!("writing the copy: {error}");
        let descriptor = file.try_clone().map_err(|error| failed(error.to_string()))?;
        let lower = core.pfs.file(descriptor.into()).map_err(|error| failed(error.to_string()))?;
        let mut written = WrittenBack::new(core, &*lower);
        let wait_until_wanted = |limit| self.wait_until_wanted(limit);
        let mut writing = Writing::begin(core, &wait_until_wanted);
        let parts = owe.packets.iter().flat_map(|(from, upto)| {
            let step = |at: &u64| {
                let of_block = (at / owe.block_packets + 1) * owe.block_packets;
                Some((*at + TOGETHER).min(of_block).min(*upto))
            };
            let starts = std::iter::successors(Some(*from), step);
            starts.take_while(|at| at < upto).map(move |at| (at, step(&at).unwrap_or(at)))
        });
        for (from, upto) in parts {
            let block = place_of(owe.epoch, from).0;
            let packets: Vec<u32> = (from..upto).map(|it| place_of(owe.epoch, it).1).collect();
            let fetched = self.client.get(&block, &packets).map_err(|error| error.to_string())?;
            for (packet, bytes) in (from..upto).zip(fetched) {
                let bytes = bytes.ok_or_else(|| {
                    format!("packet {packet} of it is not in the burst buffer that was to have it")
                })?;
                let start = packet * owe.packet_bytes;
                let length = owe.length.saturating_sub(start).min(bytes.len() as u64);
                let mut bytes = &bytes[..length as usize];
                while !bytes.is_empty() {
                    let (now, rest) = bytes.split_at(writing.next(bytes.len() as u64) as usize);
                    let at = start + length - bytes.len() as u64;
                    file.write_all_at(now, at).map_err(|error| failed(error.to_string()))?;
                    let cleaned = written.next(at, now);
                    cleaned.map_err(|error| failed(error.to_string()))?;
                    bytes = rest;
                }
            }
        }
        written.end().map_err(|error| failed(error.to_string()))
    }

    /// Has all buffers forget it, whatever was stored of it.
    fn release(&self) -> Result<(), String> {
        let Some(owe) = self.told() else { return Ok(()) };
        self.client.forget(owe.epoch).map_err(|error| error.to_string())
    }
}

impl Cluster {
    /// Answers for a file from now on, as it is told; the reason where that cannot be.
    pub(super) fn take_owe(&self, core: &Core, from: &NodeName, owe: Owe) -> Result<(), String> {
        if core.drained.is_on() {
            return Err("it is being drained".to_owned());
        }
        let buffer = core.burst_buffer.as_ref().filter(|buffer| buffer.is_on_disk());
        let buffer = buffer.ok_or("it has no burst buffer with a disk")?;
        if owe.member != from.as_str() || !is_sound(&owe) {
            return Err("it does not answer for such a file".to_owned());
        }
        let copy = match self.copies.held.get(owe.epoch) {
            Some(copy) => copy,
            None if owe.number > 1 => return Err("it has no copy of this file".to_owned()),
            None => {
                let of = (owe.file(), owe.epoch, owe.node.as_str());
                let stub = self.check_stub_of(core, &path_of(&owe.path), of)?;
                let file = self.owed_file(&owe)?;
                self.copies.held.begin_owed(from.clone(), &owe, (Some(stub), file))
            }
        };
        if copy.owner != *from || copy.node != owe.node || copy.file != owe.file() {
            return Err("its copy is of another file".to_owned());
        }
        let file = copy.in_buffers().ok_or("its copy was given back")?;
        let _telling = file.telling.lock();
        if copy.is_closed() {
            return Err("its copy was given back".to_owned()); // while this waited
        }
        match &file.told() {
            Some(before) if before.number > owe.number => {
                return Err("it was told of this file later".to_owned());
            }
            Some(before) if *before == owe => return Ok(()),
            _ => {}
        }
        let kept = Kept { owe: owe.clone(), placing: None }.bytes()?;
        let key = told_key(owe.epoch);
        buffer.local().put(&key.block, &[(key.packet, &kept)], Keep::Durable).map_err(|error| {
            // One of which nothing was told answers for nothing.
            if file.told().is_none() {
                self.copies.held.drop_copy(&copy);
            }
            error.to_string()
        })?;
        if copy.note_owed(&owe) { Ok(()) } else { Err("its copy was given back".to_owned()) }
    }

    fn owed_file(&self, owe: &Owe) -> Result<OwedFile, String> {
        let client = self.buffer_client(members_of(&owe.servers), Placement::Block)?;
        Ok(OwedFile {
            epoch: owe.epoch,
            client,
            telling: Mutex::default(),
            told: Mutex::default(),
            placing: Mutex::default(),
            wanted: Default::default(),
        })
    }

    /// Answers again for what an earlier start of this node answered for.
    pub(super) fn answer_for_owed(&self, core: &Core) {
        if self.copies.is_owed_read.load(Ordering::Acquire) {
            return;
        }
        let is_read = self.read_owed(core);
        self.copies.is_owed_read.store(is_read, Ordering::Release);
    }

    /// Whether all of it could be read.
    fn read_owed(&self, core: &Core) -> bool {
        let Some(buffer) = core.burst_buffer.as_ref() else { return true };
        let told = buffer.owed().into_iter().filter(|owed| owed.block.block == LAST_BLOCK);
        let (mut is_read, mut unknown) = (true, Vec::new());
        for epoch in told.map(|owed| owed.block.epoch) {
            let key = told_key(epoch);
            let found = match buffer.local().get(&key.block, &[key.packet]) {
                Ok(mut packets) => packets.pop().flatten(),
                Err(_) if is_damaged(&buffer.owed(), epoch) => None,
                Err(error) => {
                    tracing::warn!(%error, "what the burst buffer owes is not read yet");
                    is_read = false;
                    continue;
                }
            };
            let reason = match found {
                Some(kept) if Kept::is_of_another_release(&kept) => {
                    Err((NotKnown::OfAnotherRelease, "another release wrote it".to_owned()))
                }
                Some(kept) => Kept::read(&kept)
                    .ok_or_else(|| (NotKnown::Damaged, "it cannot be read".to_owned()))
                    .and_then(|kept| {
                        let answered = self.answer_again(core, kept);
                        answered.map_err(|reason| (NotKnown::NotAnswered, reason))
                    }),
                None => Err((NotKnown::Damaged, "it is not there, or broken".to_owned())),
            };
            if let Err((kind, reason)) = reason {
                tracing::error!(
                    epoch = format!("{epoch:016x}"),
                    reason,
                    "the burst buffer does not know the file of what it owes to the PFS"
                );
                unknown.push((epoch, kind, reason));
            }
        }
        *self.copies.unknown.lock() = unknown;
        is_read
    }

    /// What is in the burst buffer of files of which it is not known which they are.
    fn unknown_owed(&self, core: &Core) -> Vec<(u64, NotKnown, String, u64)> {
        let unknown = self.copies.unknown.lock().clone();
        let Some(buffer) = core.burst_buffer.as_ref().filter(|_| !unknown.is_empty()) else {
            return Vec::new();
        };
        let owed = buffer.owed();
        let is_there =
            |epoch| owed.iter().any(|it| it.block.epoch == epoch && it.block.block == LAST_BLOCK);
        let bytes_of = |epoch| {
            owed.iter().filter(|it| it.block.epoch == epoch).map(|it| it.bytes).sum::<u64>()
        };
        let present = unknown.into_iter().filter(|(epoch, ..)| is_there(*epoch));
        present.map(|(epoch, kind, reason)| (epoch, kind, reason, bytes_of(epoch))).collect()
    }

    /// The same as a list that people read, each with whether it may be forgotten.
    pub(super) fn unknown_owed_files(&self, core: &Core) -> Vec<(OwedFileReport, bool)> {
        let unknown = self.unknown_owed(core).into_iter();
        let report = |(epoch, kind, reason, bytes)| {
            let what = match kind {
                NotKnown::Damaged => "what this node was told of it is damaged",
                NotKnown::OfAnotherRelease => "start the release that wrote what is told of it",
                NotKnown::NotAnswered => "this node cannot answer for it",
            };
            let report = OwedFileReport {
                path: format!("(a file that is not known, {epoch:016x})"),
                bytes,
                age_s: 0,
                node: String::new(),
                answered_by: self.me.to_string(),
                servers: vec![self.me.to_string()],
                stays_because: Some(format!("{what}: {reason}")),
            };
            (report, kind == NotKnown::Damaged)
        };
        unknown.map(report).collect()
    }

    /// Drops what is in the burst buffers of files of which the record is damaged.
    pub(super) fn forget_unknown(&self, core: &Core) -> Result<(), String> {
        let Some(buffer) = &core.burst_buffer else { return Ok(()) };
        let unknown = self.unknown_owed(core).into_iter();
        for (epoch, ..) in unknown.filter(|(_, kind, ..)| *kind == NotKnown::Damaged) {
            let local = buffer.local();
            // Others may have parts of it.
            let all = self.buffer_client(self.buffer_nodes(), Placement::Block);
            let forgotten = all.and_then(|all| all.forget(epoch).map_err(|it| it.to_string()));
            forgotten.or_else(|_| local.forget(epoch).map_err(|error| error.to_string()))?;
            let settled = local.settle(&told_key(epoch).block, 1);
            settled.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn answer_again(&self, core: &Core, kept: Kept) -> Result<(), String> {
        let Kept { owe, placing } = kept;
        let owner = NodeName::new(&owe.member).map_err(|error| error.to_string())?;
        let path = path_of(&owe.path);
        tracing::info!(path = %path.display(), %owner, "it is owed to the PFS");
        // Also where it is no stub any more: it may be removed before it is looked at.
        let stub = place::found_at(core, &path, owe.file()).ok().flatten();
        let file = self.owed_file(&owe)?;
        file.set_told(&owe);
        *file.placing.lock() = placing;
        let copy = self.copies.held.begin_owed(owner, &owe, (stub, file));
        copy.was_away.store(true, Ordering::Release);
        Ok(())
    }

    /// Has the buffers forget files that nobody counts on any more, and then this one what it was
    /// told of them.
    pub(super) fn release_owed(&self, core: &Core) {
        let Some(buffer) = &core.burst_buffer else { return };
        let mut not_yet = Vec::new();
        for file in self.copies.held.take_over() {
            let forgotten = file.release().and_then(|()| {
                // What is still being told is stored by then, or refused.
                let _telling = file.telling.lock();
                // Also of one that was told in vain: a disk that stood still has it later.
                let forgotten = buffer.local().settle(&told_key(file.epoch).block, 1);
                forgotten.map_err(|error| error.to_string())
            });
            if let Err(reason) = forgotten {
                tracing::debug!(reason, "a burst buffer keeps what is not owed any more");
                not_yet.push(file);
            }
        }
        self.copies.held.not_yet(not_yet);
    }
}

/// Whether the disk lost or changed what was told of a time in memory.
fn is_damaged(owed: &[Owed], epoch: u64) -> bool {
    let is_it = |it: &&Owed| it.block.epoch == epoch && it.block.block == LAST_BLOCK;
    owed.iter().find(is_it).is_some_and(|it| !it.damaged.is_empty())
}

/// Whether what is told can be of a file.
fn is_sound(owe: &Owe) -> bool {
    let are_in_order = owe.packets.iter().all(|(from, upto)| from < upto)
        && owe.packets.windows(2).all(|pair| pair[0].1 < pair[1].0);
    let end = owe.packets.last().map_or(0, |(_, upto)| *upto);
    are_in_order
        && (1..=1 << 20).contains(&owe.packet_bytes)
        && owe.block_packets == super::owing::BLOCK_PACKETS
        && end.checked_mul(owe.packet_bytes).is_some()
        && end <= owe.length.div_ceil(owe.packet_bytes)
}
