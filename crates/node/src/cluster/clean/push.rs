//! The side of the node that writes a file: its packets go to the servers beside the writer, then
//! the record that tells of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_buffer::client::{Client, Keep};
use tidepool_buffer::placement::Placement;
use tidepool_pfs::LowerFile;
use tidepool_proto::WriteMode;
use tidepool_proto::table::BlockState;
use tidepool_store::Segment;

use super::super::copies::owing::{PACKET_BYTES, place_of};
use super::super::threads;
use super::{CHUNK_PACKETS, Digest, FORM, Job, QUEUE_MAX, Record, Writing};
use crate::cluster::Cluster;
use crate::cluster::buffers::weights;
use crate::cluster::shared::Shared;
use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::gate::ExclusiveGate;
use crate::file::state::FileState;

/// How often it is looked whether files are to be told of.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a change did to a file.
#[derive(Clone, Debug)]
pub enum Change {
    /// These bytes were written, to a file that had so many.
    Written(std::ops::Range<u64>, u64),
    /// It has so many bytes now, and had so many before.
    Resized(u64, u64),
    /// Anything else.
    Other,
}

/// Notes a change of a file, before its new version is recorded. In other modes than `adw` and
/// `bld` no packets begin. Whatever is changed is compared with the PFS once it is closed.
pub fn note_change(
    core: &Core,
    _file: &ExclusiveGate<'_>,
    cached: &CachedVersion,
    write_mode: WriteMode,
    change: Change,
) {
    let Some(cluster) = core.cluster() else { return };
    let mut known = cached.writing.lock();
    let is_settled = known.as_ref().is_none_or(|it| it.is_over() && !it.is_doubtful());
    if let (true, Some(placement)) = (is_settled, placement(write_mode))
        && cluster.clean_client(placement).is_some()
    {
        *known = Some(Arc::new(Writing::new(threads::random() as u64, placement)));
    }
    let Some(writing) = &*known else { return };
    match change {
        Change::Written(range, size_before) => writing.note_write(range, size_before),
        Change::Resized(size, size_before) => writing.note_size(size, size_before),
        Change::Other => writing.note_other(),
    }
}

/// How the packets of a mode are spread.
fn placement(write_mode: WriteMode) -> Option<Placement> {
    match write_mode {
        WriteMode::Adw => Some(Placement::Block),
        WriteMode::Bld => Some(Placement::Packet),
        WriteMode::Memory | WriteMode::Alw | WriteMode::Bypass | WriteMode::Through => None,
    }
}

/// Has packets of a file sent, if enough of them changed; all of them where it was closed.
pub fn send(
    core: &Core,
    (file, lower): (&Arc<FileState>, &Arc<dyn LowerFile>),
    cached: &Arc<CachedVersion>,
    is_closed: bool,
) {
    let writing = cached.writing.lock().clone();
    let Some((cluster, writing)) = core.cluster().zip(writing) else { return };
    if (is_closed || writing.is_due()) && writing.enqueue(is_closed) {
        let mut queue = cluster.clean.queue.lock();
        let (cached, file, lower) = (cached.clone(), Arc::downgrade(file), lower.clone());
        let job = Job { cached, file, lower, writing };
        if queue.len() >= QUEUE_MAX {
            drop(queue);
            job.writing.end();
            job.writing.left_out();
            if is_closed {
                cluster.tell_of_clean(&job);
            }
            return;
        }
        queue.push_back(job);
        drop(queue);
        cluster.clean.wake.notify_one();
    }
}

/// One step of a thread that sends packets.
pub fn step(cluster: &Cluster) {
    let job = {
        let mut queue = cluster.clean.queue.lock();
        if queue.is_empty() && !cluster.is_stopping() {
            cluster.clean.wake.wait_for(&mut queue, LOOK_INTERVAL);
        }
        queue.pop_front()
    };
    let Some(core) = cluster.core.upgrade().filter(|_| !cluster.is_stopping()) else { return };
    let is_idle = job.is_none();
    if let Some(job) = job {
        let is_closed = job.writing.begin();
        let pushed = cluster.push_clean(&core, &job, is_closed);
        if is_closed {
            // Also what no server has is compared with the PFS.
            cluster.tell_of_clean(&job);
        }
        if let Err(reason) = pushed {
            job.writing.end();
            cluster.clean.avoid();
            tracing::debug!(inode = job.cached.id().inode, reason, "it gets no clean copies");
        }
        if job.writing.done() {
            cluster.clean.queue.lock().push_back(job);
        }
    }
    let mut looked = cluster.clean.looked.lock();
    if is_idle || looked.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL) {
        *looked = Some(Instant::now());
        drop(looked);
        cluster.tell_clean(&core);
    }
}

impl Cluster {
    fn push_clean(&self, core: &Core, job: &Job, is_closed: bool) -> Result<(), String> {
        let Job { cached, file, writing, .. } = job;
        let client = self.clean_client(writing.placement).ok_or("no server is there")?;
        let mut at = 0;
        while let Some(packets) = writing.next(at, cached.size(), is_closed) {
            at = packets.end;
            let Some(file) = file.upgrade() else { break };
            let taken = copy_packets(&file, cached, writing, packets);
            drop(file);
            if taken.is_empty() {
                continue;
            }
            let (block, _) = place_of(writing.epoch, taken[0].0);
            let of_block: Vec<(u32, &[u8])> = taken
                .iter()
                .map(|(packet, bytes)| (place_of(writing.epoch, *packet).1, &bytes[..]))
                .collect();
            client.put(&block, &of_block, Keep::Clean).map_err(|error| error.to_string())?;
            let sent: usize = taken.iter().map(|(_, bytes)| bytes.len()).sum();
            self.clean.pushed_bytes.add(sent as u64);
            writing.note_stored(taken.iter().map(|(packet, it)| (*packet, self.digest(it))));
            if writing.placement == Placement::Packet {
                self.keep_local_part(core, cached, taken.iter().map(|(packet, _)| *packet));
            }
        }
        Ok(())
    }

    /// Mode `bld`: what is beyond this node's part stays on the servers alone.
    fn keep_local_part(
        &self,
        core: &Core,
        cached: &CachedVersion,
        packets: impl Iterator<Item = u64>,
    ) {
        let Some(segment) = cached.segment() else { return };
        let in_block = segment.block_bytes() / PACKET_BYTES;
        // A block goes with its last packet.
        for packet in packets.filter(|packet| packet % in_block == in_block - 1) {
            if core.store.stats().resident_bytes > self.config.buffer_local_bytes {
                segment.evict_block(packet / in_block);
            }
        }
    }

    pub(super) fn store_records(
        &self,
        (shared, packets): (&Shared, &BTreeMap<u64, Digest>),
        writing: &Writing,
        client: &Client,
    ) -> Result<(), String> {
        let (file, version) = shared.words();
        let servers = weights(client);
        let records = self.clean_client(Placement::Packet).ok_or("no server is there")?;
        let mut next = packets.keys().next().copied();
        while let Some(chunk) = next.map(|packet| packet / CHUNK_PACKETS) {
            let of_chunk = chunk * CHUNK_PACKETS..(chunk + 1) * CHUNK_PACKETS;
            let record = Record {
                file,
                version,
                chunk,
                epoch: writing.epoch,
                is_by_packet: writing.placement == Placement::Packet,
                servers: servers.clone(),
                packets: packets.range(of_chunk.clone()).map(|(at, it)| (*at, *it)).collect(),
            };
            let bytes = self.seal_record(&record)?;
            let key = self.record_key(shared, chunk);
            let stored = records.put(&key.block, &[(key.packet, &bytes)], Keep::Clean);
            stored.map_err(|error| error.to_string())?;
            next = packets.range(of_chunk.end..).next().map(|(packet, _)| *packet);
        }
        Ok(())
    }

    /// A record as it is stored: its form, its seal, and what it tells.
    fn seal_record(&self, record: &Record) -> Result<Vec<u8>, String> {
        let told = postcard::to_stdvec(record).map_err(|error| error.to_string())?;
        Ok([&[FORM][..], &self.seal.digest(&told), &told].concat())
    }
}

/// Copies packets out of the store, those that are there. Under the gate, so no write is in them by
/// half, and each that comes later shows.
fn copy_packets(
    file: &FileState,
    cached: &CachedVersion,
    writing: &Writing,
    packets: std::ops::Range<u64>,
) -> Vec<(u64, Vec<u8>)> {
    let _unchanged = file.share_gate();
    let (size, segment) = (cached.size(), cached.segment());
    let Some(segment) = segment.filter(|_| !cached.is_invalidated()) else { return Vec::new() };
    let mut taken = Vec::new();
    for packet in packets {
        if let Some(bytes) = copy_packet(segment, packet, size) {
            writing.take(packet);
            taken.push((packet, bytes));
        }
    }
    taken
}

fn copy_packet(segment: &Segment, packet: u64, size: u64) -> Option<Vec<u8>> {
    let start = packet * PACKET_BYTES;
    let length = size.checked_sub(start)?.min(PACKET_BYTES) as usize;
    let block = start / segment.block_bytes();
    if length == 0 || block >= segment.blocks() || segment.state(block) == BlockState::Absent {
        return None;
    }
    let from = (start % segment.block_bytes()) as usize;
    let pin = segment.pin_block(block)?;
    Some(pin.get(from..from + length)?.to_vec())
}
