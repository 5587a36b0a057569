//! The records of files that are closed.
//!
//! A write of another program may hide behind one of ours, which moves the time stamps again, or
//! in the tick of it where they are coarse. So a file is read from the PFS once it rests, and what
//! has other bytes there than were sent is left out. Where anything is otherwise that this node has
//! of it, also from before, the node forgets all of it.
//!
//! A change that keeps the bytes, such as a new name, makes another version of the file, and its
//! records are stored again.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tidepool_pfs::LowerFile;
use tidepool_proto::Version;

use super::super::copies::owing::PACKET_BYTES;
use super::{Digest, Job, Writing};
use crate::cluster::Cluster;
use crate::cluster::shared::Shared;
use crate::core::Core;
use crate::file::cached_version::CachedVersion;

/// Files that are looked at, each with a descriptor, and for how long after they were closed, or
/// changed.
const TOLD_MAX: usize = 1024;
const TOLD_FOR: Duration = Duration::from_secs(10);
/// Bytes that are compared of what is in memory of a file and was not sent: what is beyond that is
/// evicted.
const RESIDENT_BYTES_MAX: u64 = 256 << 20;
/// How long a file rests before it is read from the PFS: it may get its name, or its times, just
/// now.
const REST: Duration = Duration::from_secs(1);

/// A file to be told of, also after it changed its name.
pub struct Told {
    cached: Weak<CachedVersion>,
    /// Until it was told of once: nobody may have it open any more.
    kept: Option<Arc<CachedVersion>>,
    lower: Arc<dyn LowerFile>,
    writing: Arc<Writing>,
    /// The version that was compared last.
    version: Option<Version>,
    at: Instant,
}

impl Told {
    /// It is looked at no more. What was not compared is read anew.
    fn leave(&self, core: &Core) {
        let Some(cached) = self.cached.upgrade().filter(|_| self.writing.is_doubtful()) else {
            return;
        };
        // What changed since it was compared is told of when it is closed.
        if self.version.is_none() {
            self.writing.end();
            core.read_anew(&cached, &cached.version());
        }
    }

    /// Whether somebody has the file open to write it.
    fn is_written(&self, core: &Core) -> bool {
        let file = self.cached.upgrade().and_then(|cached| core.files.get(cached.id()));
        file.is_some_and(|file| file.inner.lock().writers > 0)
    }
}

/// What a look at a file came to.
enum Looked {
    /// Later again.
    Later,
    /// Nothing of it is cached any more, or something else is told of it.
    Over,
    /// It was compared at this version, and records are stored of what is told.
    Compared(Version),
}

impl Cluster {
    /// Has a file told of that is closed.
    pub(super) fn tell_of_clean(&self, job: &Job) {
        let told = Told {
            cached: Arc::downgrade(&job.cached),
            kept: Some(job.cached.clone()),
            lower: job.lower.clone(),
            writing: job.writing.clone(),
            version: None,
            at: Instant::now(),
        };
        let mut all = self.clean.told.lock();
        all.retain(|other| !Arc::ptr_eq(&other.writing, &told.writing));
        all.push_back(told);
        if all.len() > TOLD_MAX {
            // One that was compared, where there is any.
            let at = all.iter().position(|file| file.version.is_some()).unwrap_or(0);
            let left = all.remove(at);
            drop(all);
            if let (Some(left), Some(core)) = (left, self.core.upgrade()) {
                left.leave(&core);
            }
        }
    }

    /// Stores the records that are due.
    pub(super) fn tell_clean(&self, core: &Core) {
        let told = std::mem::take(&mut *self.clean.told.lock());
        for mut file in told {
            match self.look_at_told(core, &file) {
                Ok(Looked::Later) if file.at.elapsed() < TOLD_FOR => {}
                Ok(Looked::Compared(version)) => {
                    (file.version, file.at) = (Some(version), Instant::now());
                    file.kept = None;
                }
                Ok(Looked::Over) => continue,
                // As where a read of the PFS failed.
                Err(reason) if file.at.elapsed() < TOLD_FOR => {
                    tracing::debug!(reason, "a file is not compared yet");
                }
                // Until it rests.
                Ok(Looked::Later) | Err(_) if file.is_written(core) => file.at = Instant::now(),
                Ok(Looked::Later) | Err(_) => {
                    file.leave(core);
                    continue;
                }
            }
            let mut all = self.clean.told.lock();
            if !all.iter().any(|other| Arc::ptr_eq(&other.writing, &file.writing)) {
                all.push_back(file);
            }
        }
    }

    fn look_at_told(&self, core: &Core, file: &Told) -> Result<Looked, String> {
        let cached = file.cached.upgrade().filter(|cached| !cached.is_invalidated());
        let Some(cached) = cached else { return Ok(Looked::Over) };
        // In this order: a change is noted before its version shows.
        let version = cached.version();
        let is_current =
            cached.writing.lock().as_ref().is_some_and(|it| Arc::ptr_eq(it, &file.writing));
        if !is_current || cached.is_memory_only() || version.id.device != core.pfs.device() {
            return Ok(Looked::Over);
        }
        if file.version == Some(version) || !is_at_rest(core, &version) {
            return Ok(Looked::Later);
        }
        let (mut packets, changes) = file.writing.stored();
        let is_it = || {
            let now = file.lower.version().map_err(|error| error.to_string())?;
            Ok::<_, String>(now.agrees_with(&version) && !core.is_racy(&now))
        };
        if !is_it()? {
            return Ok(Looked::Later);
        }
        let are_equal = self.is_rest_equal(core, &cached, &*file.lower, &packets)?
            & self.keep_equal(core, &*file.lower, &mut packets)?;
        if !is_it()? || file.writing.changes() != changes {
            return Ok(Looked::Later); // it was not at rest after all
        }
        if !are_equal {
            tracing::info!(inode = version.id.inode, "another node wrote to it in the same moment");
            core.read_anew(&cached, &version);
        }
        file.writing.note_compared(changes);
        if !packets.is_empty() && !file.writing.is_over() {
            let client = self.clean_client(file.writing.placement).ok_or("no server is there");
            let of = (&Shared::named(&version), &packets);
            let stored = client
                .map_err(str::to_owned)
                .and_then(|client| self.store_records(of, &file.writing, &client));
            if let Err(reason) = stored {
                tracing::debug!(reason, "no record tells of a file");
                file.writing.end();
            }
        }
        Ok(Looked::Compared(version))
    }

    /// Whether the PFS has what is in memory of a file and was not sent. What is more than is worth
    /// to be read is evicted.
    fn is_rest_equal(
        &self,
        core: &Core,
        cached: &CachedVersion,
        lower: &dyn LowerFile,
        sent: &BTreeMap<u64, Digest>,
    ) -> Result<bool, String> {
        let version = cached.version();
        let Some(segment) = cached.segment() else {
            let packed = core.store.read_small(version.id, &version, <[u8]>::to_vec);
            return packed.map_or(Ok(true), |bytes| has(core, lower, 0, &bytes));
        };
        let mut left = RESIDENT_BYTES_MAX;
        for (block, _) in segment.resident_blocks() {
            let start = block * segment.block_bytes();
            let Some(pin) = segment.pin_block(block) else { continue };
            let length = pin.len().min(version.size.saturating_sub(start) as usize);
            let end = start + length as u64;
            let mut packets = start / PACKET_BYTES..end.div_ceil(PACKET_BYTES);
            if packets.all(|packet| sent.contains_key(&packet)) {
                continue;
            }
            if self.is_stopping() {
                return Err("this node ends".to_owned());
            }
            // What frees a block waits for its pins, and the PFS may take its time.
            let copied = (length as u64 <= left).then(|| pin[..length].to_vec());
            drop(pin);
            left = left.saturating_sub(length as u64);
            let is_right = match copied {
                Some(bytes) => has(core, lower, start, &bytes)?,
                None => segment.evict_block(block),
            };
            if !is_right {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads packets from the PFS, and leaves out those that have other bytes there; whether there
    /// are none of these.
    fn keep_equal(
        &self,
        core: &Core,
        lower: &dyn LowerFile,
        packets: &mut BTreeMap<u64, Digest>,
    ) -> Result<bool, String> {
        let before = packets.len();
        let mut buffer = vec![0; PACKET_BYTES as usize];
        let mut failed = None;
        packets.retain(|packet, digest| {
            if failed.is_some() || self.is_stopping() {
                return false;
            }
            match look(core, lower, packet * PACKET_BYTES, &mut buffer) {
                Ok(length) => self.digest(&buffer[..length]) == *digest,
                Err(reason) => {
                    failed = Some(reason);
                    false
                }
            }
        });
        failed.map_or(Ok(packets.len() == before), Err)
    }
}

/// Whether the PFS has these bytes of a file at this place.
fn has(core: &Core, lower: &dyn LowerFile, offset: u64, bytes: &[u8]) -> Result<bool, String> {
    let mut there = vec![0; bytes.len()];
    let length = look(core, lower, offset, &mut there)?;
    Ok(there[..length] == *bytes)
}

/// Reads from the PFS what it has now; how much there is.
fn look(core: &Core, lower: &dyn LowerFile, offset: u64, into: &mut [u8]) -> Result<usize, String> {
    let length = lower.look_at(offset, into).map_err(|error| error.to_string())?;
    core.counters.pfs_read_bytes.add(length as u64);
    Ok(length)
}

/// Whether the last change of a file is some time ago, by the clock of the PFS.
fn is_at_rest(core: &Core, version: &Version) -> bool {
    let latest_ns = version.modified_ns.max(version.changed_ns);
    !core.is_racy(version) && core.pfs.now_ns() - latest_ns > REST.as_nanos() as i128
}
