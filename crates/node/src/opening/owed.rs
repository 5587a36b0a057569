//! An open that only reads does not wait for bytes that another node owes to the PFS: it reads them
//! from there (`cluster::owed_reads`), and goes on with the file once the PFS has it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tidepool_pfs::LowerFile;
use tidepool_pfs::asked::{self, Asker};
use tidepool_proto::stub::Mark;
use tidepool_proto::{Error, ErrorKind, Version};

use super::recalled::recalled;
use super::{CacheTerms, Node};
use crate::cluster::owed_reads::take::{Owed, Place};
use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::state::FileState;
use crate::file::stub::{self, Found};

/// How long an open waits for the PFS to have the file before it reads from its holder.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long an open that writes waits for readers to go on with the file, which the PFS has.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(1);
/// How long the PFS may take to show a file that it has, and how often it is looked.
const SHOW_LIMIT: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a holder that could not bring a file to the PFS is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// What waits for a file to come to the PFS.
struct Follower {
    core: Arc<Core>,
    file: Arc<FileState>,
    lower: Arc<dyn LowerFile>,
    mark: Mark,
    /// The version of the stub.
    version: Version,
    cached: Weak<CachedVersion>,
    owed: Arc<Owed>,
}

impl Node {
    /// What an open reads of a stub that another node owes the bytes of. `None`: it is to wait
    /// until the PFS has them, as where they come in a moment.
    pub(super) fn owed(
        &self,
        file: &Arc<FileState>,
        lower: &Arc<dyn LowerFile>,
        terms: CacheTerms,
        (mark, version): (&Mark, &Version),
    ) -> Option<Arc<CachedVersion>> {
        let core = &self.core;
        let cluster = core.cluster().filter(|_| version.id.device == core.pfs.device())?;
        let owed = Arc::new(cluster.ask_owed(core, mark, version)?);
        if owed.length <= core.config.small_file_bytes_max {
            return None;
        }
        let make = || {
            let mut cached = CachedVersion::new(*version, terms.owner, terms.admit);
            cached.set_owed(owed.clone());
            Arc::new(cached)
        };
        let (cached, is_new) = cluster.taken.get_or_begin(owed.token, make)?;
        let owed = cached.owed()?.clone();
        if is_new {
            let follower = Follower {
                core: core.clone(),
                file: file.clone(),
                lower: lower.clone(),
                mark: mark.clone(),
                version: *version,
                cached: Arc::downgrade(&cached),
                owed: owed.clone(),
            };
            follower.start();
        }
        let patience = if is_new { PATIENCE } else { Duration::ZERO };
        let place = asked::while_another_node_works(|| owed.wait(patience));
        matches!(place, Place::Holder).then_some(cached)
    }

    /// Lets those who read a file from another node go on with it, which the PFS has by now, before
    /// an open may change it.
    pub(super) fn settle_owed(&self, version: &Version) {
        let Some(cluster) = self.core.cluster() else { return };
        for cached in cluster.taken.of(version) {
            if let Some(owed) = cached.owed() {
                owed.wait(HAND_OVER_LIMIT);
            }
        }
    }
}

/// The file is waited for as long as somebody reads it.
struct Readers(Weak<CachedVersion>);

impl Asker for Readers {
    fn still_asks(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Follower {
    fn start(self) {
        let (core, owed, cached) = (self.core.clone(), self.owed.clone(), self.cached.clone());
        let run = move || {
            asked::on_behalf_of(Arc::new(Readers(self.cached.clone())), || self.follow());
            end(&self.core, (&self.owed, &self.cached), "it is not followed any more");
            // Its last handle may have been closed meanwhile.
            let (core, id) = (self.core.clone(), self.file.id);
            drop(self);
            core.files.release(id);
        };
        if let Err(error) = std::thread::Builder::new().name("owed-read".into()).spawn(run) {
            end(&core, (&owed, &cached), &error.to_string());
        }
    }

    fn has_readers(&self) -> bool {
        self.cached.strong_count() > 0
    }

    /// Until the file is on the PFS, or nobody reads it, or its bytes are gone.
    fn follow(&self) {
        let is_over = |error: &Error| {
            let cluster = self.core.cluster().filter(|cluster| !cluster.is_stopping());
            let is_there =
                cluster.is_some_and(|cluster| cluster.why_not_asked(&self.owed.holder).is_none());
            error.kind() == ErrorKind::Changed || self.owed.is_refused() || !is_there
        };
        while self.has_readers() {
            match recalled(&self.core, &self.lower, &self.mark, &self.version) {
                Ok(_) => return self.hand_over(),
                Err(error) if is_over(&error) => {
                    return self.owed.settle(|_| Err(error.to_string()));
                }
                // As where the PFS is full: they can be read for as long as they are there.
                Err(error) => tracing::debug!(%error, "an owed file stays where it is for now"),
            }
            let begun = Instant::now();
            while begun.elapsed() < RETRY_INTERVAL && self.has_readers() {
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
    }

    fn hand_over(&self) {
        let Some(cached) = self.cached.upgrade() else { return };
        let ended = self.core.cluster().and_then(|cluster| cluster.ask_ended(&self.owed));
        // This node's client of the PFS may show the file as it was for a moment.
        let begun = Instant::now();
        loop {
            // No change of this node comes in between. The PFS is asked first: readers wait for
            // what follows.
            let unchanged_by_us = self.file.share_gate_before_writers();
            let seen = self.look();
            let is_late = begun.elapsed() > SHOW_LIMIT || !self.has_readers();
            let is_still = |now: &Version| ended.is_none_or(|ended| ended.is_still(now));
            let is_it = seen.as_ref().is_ok_and(|(now, _)| is_still(now));
            if !is_it && !is_late {
                drop(unchanged_by_us);
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
            return self.owed.settle(|is_read| {
                let (now, is_racy) = seen?;
                // What nobody read yet may begin anew.
                let is_same = ended.is_some_and(|ended| ended.is_still(&now))
                    || !is_read && now.size == cached.size();
                if !is_same {
                    return Err("the file was changed since".to_owned());
                }
                if is_racy {
                    cached.mark_racy();
                }
                adopt(&self.core, &self.file, &cached, &now)
            });
        }
    }

    /// The version that the file has on the PFS, where it is no stub any more, and whether a later
    /// change may hide behind its time stamps.
    fn look(&self) -> std::result::Result<(Version, bool), String> {
        let look = || {
            let before = self.lower.version()?;
            let found = stub::find(&*self.lower, before.size)?;
            let now = self.lower.version()?;
            let is_bare = found == Found::Nothing && now.agrees_with(&before);
            Ok::<_, Error>(is_bare.then(|| (now, self.core.is_racy(&now))))
        };
        let seen = look().map_err(|error| error.to_string())?;
        seen.ok_or_else(|| "the file is changed just now".to_owned())
    }
}

/// Ends what is not settled yet.
fn end(core: &Core, (owed, cached): (&Owed, &Weak<CachedVersion>), reason: &str) {
    owed.settle(|_| Err(reason.to_owned()));
    if let Some(cluster) = core.cluster() {
        cluster.taken.end(owed.token, cached);
    }
}

/// Makes what was read of an owed file what is cached of it, at the version that the PFS has.
fn adopt(
    core: &Core,
    file: &FileState,
    cached: &Arc<CachedVersion>,
    now: &Version,
) -> std::result::Result<(), String> {
    let mut inner = file.inner.lock();
    let old = inner.cached.clone();
    match old {
        Some(known) if known.version().agrees_with(now) && !known.is_invalidated() => {
            if known.is_memory_only() {
                return Err("it is changed on this node".to_owned());
            }
            cached.lead_to(&known);
            return Ok(());
        }
        _ if inner.writers > 0 => return Err("it is changed on this node".to_owned()),
        Some(old) if old.is_memory_only() => return Err("it is changed on this node".to_owned()),
        Some(old) => core.invalidate(&old),
        None => {}
    }
    cached.set_version(*now);
    inner.cached = Some(cached.clone());
    inner.capture = Default::default();
    inner.pin = None;
    Ok(())
}
