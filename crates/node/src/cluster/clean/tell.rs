//! The records of files that are closed.
//!
//! A write of another program may hide behind one of ours, which moves the time stamps again, or
//! in the tick of it where they are coarse. So a file is read from the PFS once it rests, and what
//! has other bytes there than were sent is left out.
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
const TOLD_MAX: usize = 256;
const TOLD_FOR: Duration = Duration::from_secs(10);
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
    /// The version of which records are stored.
    version: Option<Version>,
    at: Instant,
}

impl Told {
    /// It is looked at no more. Where nothing is known of it, nobody waits for that.
    fn leave(&self) {
        if self.version.is_none() {
            self.writing.end();
        }
    }
}

/// What a look at a file came to.
enum Looked {
    /// Later again.
    Later,
    /// Nothing of it is told any more.
    Over,
    /// Records are stored of this version.
    Stored(Version),
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
        if all.len() > TOLD_MAX
            && let Some(first) = all.pop_front()
        {
            first.leave();
        }
    }

    /// Stores the records that are due.
    pub(super) fn tell_clean(&self, core: &Core) {
        let told = std::mem::take(&mut *self.clean.told.lock());
        for mut file in told {
            match self.look_at_told(core, &file) {
                Ok(Looked::Later) if file.at.elapsed() < TOLD_FOR => {}
                Ok(Looked::Stored(version)) => {
                    (file.version, file.at) = (Some(version), Instant::now());
                    file.kept = None;
                }
                Ok(_) => {
                    file.leave();
                    continue;
                }
                Err(reason) => {
                    tracing::debug!(reason, "no record tells of a file");
                    file.leave();
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
        let Some((mut packets, changes)) = file.writing.stored() else { return Ok(Looked::Over) };
        let is_it = || {
            let now = file.lower.version().map_err(|error| error.to_string())?;
            Ok::<_, String>(now.agrees_with(&version) && !core.is_racy(&now))
        };
        if !is_it()? {
            return Ok(Looked::Over);
        }
        let are_equal = self.keep_equal(core, &*file.lower, &mut packets)?;
        if !is_it()? || file.writing.changes() != changes {
            return Ok(Looked::Over);
        }
        if !are_equal {
            tracing::info!(inode = version.id.inode, "another node wrote to it in the same moment");
            core.read_anew(&cached, &version);
        }
        file.writing.note_compared(changes);
        let client = self.clean_client(file.writing.placement).ok_or("no server is there")?;
        self.store_records((&Shared::named(&version), &packets), &file.writing, &client)?;
        Ok(Looked::Stored(version))
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
            match lower.look_at(packet * PACKET_BYTES, &mut buffer) {
                Ok(length) => {
                    core.counters.pfs_read_bytes.add(length as u64);
                    self.digest(&buffer[..length]) == *digest
                }
                Err(error) => {
                    failed = Some(error.to_string());
                    false
                }
            }
        });
        failed.map_or(Ok(packets.len() == before), Err)
    }
}

/// Whether the last change of a file is some time ago, by the clock of the PFS.
fn is_at_rest(core: &Core, version: &Version) -> bool {
    let latest_ns = version.modified_ns.max(version.changed_ns);
    !core.is_racy(version) && core.pfs.now_ns() - latest_ns > REST.as_nanos() as i128
}
