//! The side of the node where a file is read: its bytes may be in burst buffers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_buffer::client::{Client, Packets};
use tidepool_buffer::placement::Placement;

use super::super::copies::owing::{BLOCK_PACKETS, PACKET_BYTES, place_of};
use super::{CHUNK_PACKETS, Digest, FORM, Record};
use crate::cluster::Cluster;
use crate::cluster::buffers::members_of;
use crate::cluster::shared::Shared;
use crate::core::Core;
use crate::file::cached_version::CachedVersion;

/// Time after which it is looked again for a record that was not there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A read that takes longer, and longer than at this rate, shows that servers are slow: the PFS is
/// read for a while.
const SLOW: Duration = Duration::from_millis(300);
const SLOW_BYTES_PER_S: u64 = 10 << 20;

/// What is known of the clean copies of a cached version.
#[derive(Debug)]
pub struct Found {
    /// Of which version.
    shared: Shared,
    /// By parts: when it was looked for them, and where they are, if they are anywhere.
    chunks: BTreeMap<u64, (Instant, Option<Arc<Copies>>)>,
}

#[derive(Debug)]
struct Copies {
    client: Arc<Client>,
    epoch: u64,
    packets: BTreeMap<u64, Digest>,
}

impl Copies {
    /// Packets of one block; `None` for each that its server does not have.
    fn fetch(&self, wanted: Range<u64>) -> Result<Packets, String> {
        let (block, _) = place_of(self.epoch, wanted.start);
        let numbers: Vec<u32> = wanted.map(|it| place_of(self.epoch, it).1).collect();
        self.client.get(&block, &numbers).map_err(|error| error.to_string())
    }
}

impl Cluster {
    /// Brings a range of a file into `into`, its whole length, from clean copies. False: it is to
    /// be read from the PFS, and what `into` holds is of no meaning.
    pub fn fetch_clean(
        &self,
        core: &Core,
        cached: &CachedVersion,
        offset: u64,
        into: &mut [u8],
    ) -> bool {
        let shared = Shared::of(core, cached).filter(|_| !self.clean.are_avoided());
        let Some(shared) = shared else { return false };
        let begun = Instant::now();
        let read = self.read_clean((cached, &shared), offset, into);
        let slow = SLOW + Duration::from_micros(into.len() as u64 * 1_000_000 / SLOW_BYTES_PER_S);
        if begun.elapsed() > slow {
            tracing::debug!(took = ?begun.elapsed(), "burst buffers are slow, and avoided");
            self.clean.avoid();
        }
        match read {
            Ok(is_whole) => {
                self.clean.fetched_bytes.add(if is_whole { into.len() as u64 } else { 0 });
                is_whole
            }
            Err(reason) => {
                tracing::debug!(reason, "a clean copy did not come");
                self.clean.avoid();
                false
            }
        }
    }

    /// Reads a range, whole; false where a packet of it is not there.
    fn read_clean(
        &self,
        (cached, shared): (&CachedVersion, &Shared),
        offset: u64,
        into: &mut [u8],
    ) -> Result<bool, String> {
        let end = offset + into.len() as u64;
        let packets = offset / PACKET_BYTES..end.div_ceil(PACKET_BYTES);
        let mut at = packets.start;
        while at < packets.end {
            // A block is of one part.
            let of_block = at..packets.end.min((at / BLOCK_PACKETS + 1) * BLOCK_PACKETS);
            at = of_block.end;
            let chunk = of_block.start / CHUNK_PACKETS;
            let Some(copies) = self.clean_copies_of(cached, shared, chunk)? else {
                return Ok(false);
            };
            if !of_block.clone().all(|packet| copies.packets.contains_key(&packet)) {
                return Ok(false);
            }
            for (packet, bytes) in of_block.clone().zip(copies.fetch(of_block)?) {
                let Some(bytes) = bytes else { return Ok(false) };
                if copies.packets.get(&packet) != Some(&self.digest(&bytes)) {
                    // The file changed since, or somebody else wrote it.
                    return Ok(false);
                }
                let start = packet * PACKET_BYTES;
                let (from, to) = (start.max(offset), (start + PACKET_BYTES).min(end));
                let part = bytes.get((from - start) as usize..(to - start) as usize);
                let Some(part) = part else { return Ok(false) };
                into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
        Ok(true)
    }

    fn clean_copies_of(
        &self,
        cached: &CachedVersion,
        shared: &Shared,
        chunk: u64,
    ) -> Result<Option<Arc<Copies>>, String> {
        // One question for all who read the file now.
        let mut found = cached.clean.lock();
        let found = match &mut *found {
            Some(found) if found.shared == *shared => found,
            other => other.insert(Found { shared: *shared, chunks: BTreeMap::new() }),
        };
        match found.chunks.get(&chunk) {
            Some((_, Some(copies))) => return Ok(Some(copies.clone())),
            Some((at, None)) if at.elapsed() < LOOK_AGAIN => return Ok(None),
            _ => {}
        }
        let copies = self.find_record(shared, chunk)?.map(Arc::new);
        found.chunks.insert(chunk, (Instant::now(), copies.clone()));
        Ok(copies)
    }

    fn find_record(&self, shared: &Shared, chunk: u64) -> Result<Option<Copies>, String> {
        let Some(client) = self.clean_client(Placement::Packet) else { return Ok(None) };
        let key = self.record_key(shared, chunk);
        let mut found = client.get(&key.block, &[key.packet]).map_err(|error| error.to_string())?;
        let Some(bytes) = found.pop().flatten() else { return Ok(None) };
        let Some(record) = self.open_record(&bytes) else { return Ok(None) };
        if (record.file, record.version) != shared.words() || record.chunk != chunk {
            return Ok(None);
        }
        let members = members_of(&record.servers);
        let placement = if record.is_by_packet { Placement::Packet } else { Placement::Block };
        let Some(client) = self.clean_client_of(members, placement) else { return Ok(None) };
        Ok(Some(Copies { client, epoch: record.epoch, packets: record.packets }))
    }

    /// Reads a record; `None` where no node of this cluster and release wrote it.
    fn open_record(&self, bytes: &[u8]) -> Option<Record> {
        let (seal, told) = bytes.strip_prefix(&[FORM])?.split_first_chunk::<32>()?;
        (self.seal.digest(told) == *seal).then(|| postcard::from_bytes(told).ok())?
    }
}
