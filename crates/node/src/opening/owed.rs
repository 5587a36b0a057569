//! An open that only reads does not wait for bytes that another node owes to the PFS: it reads them
//! from there (`cluster::owed_reads`), and goes on with the file once the PFS has it.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tidepool_pfs::LowerFile;
use tidepool_pfs::asked::{self, Asker};
use tidepool_proto::stub::Mark;
use tidepool_proto::{Error, ErrorKind, Version};

use super::recalled::recalled;
use super::{CacheTerms, Node};
use crate::cluster::owed_reads::Ended;
use crate::cluster::owed_reads::take::{Got, Owed, Place};
use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::state::FileState;
use crate::file::stub::{self, Found};

/// How long an open waits for the PFS to have the file before it reads from its holder.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long an open that writes waits for readers to go on with the file, which the PFS has: all
/// that follows.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(6);
/// How long the holder may say nothing of a file that the PFS has.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How long the PFS may take to show a file that it has, and how often it is looked.
const SHOW_LIMIT: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long it may take to see that the PFS has what was read, where its version does not tell.
const COMPARE_LIMIT: Duration = Duration::from_secs(3);
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
                owed.note_found();
                owed.wait(HAND_OVER_LIMIT);
            }
        }
    }
}

/// The file is waited for as long as somebody reads it, and nobody else found it.
struct Readers(Weak<CachedVersion>, Arc<Owed>);

impl Asker for Readers {
    fn still_asks(&self) -> bool {
        self.0.strong_count() > 0 && !self.1.is_found()
    }
}

/// What the PFS was seen to have of what was read, by offset, and at which version.
#[derive(Default)]
struct Compared {
    version: Option<Version>,
    offsets: HashSet<u64>,
}

impl Compared {
    /// Whether that is all that was read, of the file as it is now.
    fn is_all(&self, got: &Got, now: &Version) -> bool {
        self.version.is_some_and(|version| version.agrees_with(now))
            && got.keys().all(|offset| self.offsets.contains(offset))
    }
}

/// Why it is not seen that the PFS has what was read.
enum Unlike {
    ForNow(String),
    ForGood(String),
}

impl Follower {
    fn start(self) {
        let (core, owed, cached) = (self.core.clone(), self.owed.clone(), self.cached.clone());
        let run = move || {
            let readers = Readers(self.cached.clone(), self.owed.clone());
            asked::on_behalf_of(Arc::new(readers), || self.follow());
            end(&self.core, (&self.owed, &self.cached), "it is not followed any more");
            // Its last handle may have been closed meanwhile.
            let (core, file) = (self.core.clone(), self.file.clone());
            drop(self);
            core.files.release(&file);
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
                Ok(_) => return self.hand_over(self.ask_ended(ANSWER_LIMIT)),
                Err(error) => {
                    let ended = self.ask_ended(Duration::ZERO);
                    if ended.is_some() || self.owed.is_found() {
                        return self.hand_over(ended);
                    }
                    if is_over(&error) {
                        return self.owed.end(&error.to_string());
                    }
                    // As where the PFS is full: they can be read for as long as they are there.
                    tracing::debug!(%error, "an owed file stays where it is for now");
                }
            }
            let begun = Instant::now();
            let is_waited_for = || self.has_readers() && !self.owed.is_found();
            while begun.elapsed() < RETRY_INTERVAL && is_waited_for() {
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
    }

    fn ask_ended(&self, limit: Duration) -> Option<Ended> {
        let cluster = self.core.cluster()?;
        cluster.ask_ended(&self.owed, Instant::now() + limit)
    }

    /// Lets readers go on with the file, which the PFS has, where it has what they began with.
    /// `ended` is what the holder, which brought it there, tells of it.
    fn hand_over(&self, ended: Option<Ended>) {
        let Some(cached) = self.cached.upgrade() else { return };
        let begun = Instant::now();
        while let Some(ended) = ended.filter(Ended::is_known)
            && begun.elapsed() < SHOW_LIMIT
            && self.has_readers()
        {
            // This node's client of the PFS may show the file as it was for a moment.
            if self.settle(&cached, |_, now| ended.is_still(now)) {
                return;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        self.hand_over_by_bytes(&cached, ended.is_some());
    }

    /// The same where no version tells that: by what the PFS has of what was read. `is_whole`: its
    /// holder brought all of it there.
    fn hand_over_by_bytes(&self, cached: &Arc<CachedVersion>, is_whole: bool) {
        let (mut compared, begun) = (Compared::default(), Instant::now());
        let mut paused = Duration::ZERO;
        loop {
            let reason = match self.compare(&mut compared, begun + COMPARE_LIMIT) {
                Ok(()) if !is_whole && self.is_replaced() => {
                    return self.owed.end("another file took its place");
                }
                Ok(()) if self.settle(cached, |got, now| compared.is_all(got, now)) => return,
                Ok(()) => "the file is changed just now".to_owned(),
                Err(Unlike::ForNow(reason)) => reason,
                Err(Unlike::ForGood(reason)) => return self.owed.end(&reason),
            };
            let is_late = paused > SHOW_LIMIT || begun.elapsed() > COMPARE_LIMIT;
            if is_late || !self.has_readers() {
                return self.owed.end(&reason);
            }
            std::thread::sleep(LOOK_INTERVAL);
            paused += LOOK_INTERVAL;
        }
    }

    /// Whether a copy took the place of the stub, which then has a part of the bytes at most.
    fn is_replaced(&self) -> bool {
        let Some((cluster, epoch)) = self.core.cluster().zip(self.mark.epoch()) else {
            return true;
        };
        cluster.is_replaced(&self.core, (&self.version, epoch), &*self.lower)
    }

    /// Compares what readers got, and was not compared yet, with what the PFS has: that makes the
    /// file theirs, whoever changed its name or mode, and whether its holder is there or not. At a
    /// version behind whose time stamps no later change can hide.
    fn compare(
        &self,
        compared: &mut Compared,
        deadline: Instant,
    ) -> std::result::Result<(), Unlike> {
        let for_now = |reason: &str| Err(Unlike::ForNow(reason.to_owned()));
        let got = self.owed.got();
        let (now, is_racy) = self.look().map_err(Unlike::ForNow)?;
        if now.size != self.owed.length {
            return for_now("the file has another length");
        }
        if is_racy && !got.is_empty() {
            return for_now("the file was changed just now");
        }
        if compared.version.is_none_or(|version| !version.agrees_with(&now)) {
            *compared = Compared { version: Some(now), ..Compared::default() };
        }
        let mut buffer = Vec::new();
        for (offset, sum) in got {
            if compared.offsets.contains(&offset) {
                continue;
            }
            if Instant::now() >= deadline {
                return for_now("the PFS gives too slowly what was read");
            }
            let length = now.size.saturating_sub(offset).min(self.core.block_bytes());
            buffer.resize(length as usize, 0);
            self.lower.drop_cached(offset, length);
            let read = self.lower.look_at(offset, &mut buffer);
            let read = read.map_err(|error| Unlike::ForNow(error.to_string()))?;
            self.core.counters.pfs_read_bytes.add(read as u64);
            if read < buffer.len() || blake3::hash(&buffer) != sum {
                return Err(Unlike::ForGood("the file was changed since".to_owned()));
            }
            compared.offsets.insert(offset);
        }
        Ok(())
    }

    /// Hands over where the file as it is now is the one that was read: `is_same` is told what was
    /// read of it. Whether that is settled.
    fn settle(
        &self,
        cached: &Arc<CachedVersion>,
        is_same: impl Fn(&Got, &Version) -> bool,
    ) -> bool {
        // No change of this node comes in between. The PFS is asked first: readers wait for what
        // follows.
        let _unchanged_by_us = self.file.share_gate_before_writers();
        let Ok((now, is_racy)) = self.look() else { return false };
        self.owed.settle(|got| {
            is_same(got, &now).then(|| {
                if is_racy {
                    cached.mark_racy();
                }
                adopt(&self.core, &self.file, cached, &now)
            })
        })
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
    owed.end(reason);
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
