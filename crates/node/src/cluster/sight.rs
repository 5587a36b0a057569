//! Whether what another node changes on the PFS shows here, and how soon.
//!
//! Clients of some file systems answer with attributes, or bytes, that they remember: for a second,
//! for a minute, or until they are told. A version is then what the client believes, and bytes that
//! were read under it may be of another one. So a node asks another one to change its join file,
//! and looks at it as opens do until the change shows:
//!
//! * at once: nothing follows.
//! * later: time stamps count as racy for twice as long as it took, so that nothing that was read
//!   meanwhile is kept.
//! * not within [`LIMIT`]: nothing is kept any more ([`PfsPromise::ChangesHide`]).
//!
//! The change is made far into the file, where file systems that cut files up have another piece
//! of it than the one whose attributes they look at. Each node looks at few others, one at a time.
//!
//! [`PfsPromise::ChangesHide`]: crate::promise::PfsPromise::ChangesHide

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_cluster::NodeName;
use tidepool_proto::Version;
use tidepool_proto::cluster::{ChangesShown, ChangesVerdict};

use super::join::JoinFile;
use super::{Cluster, threads};
use crate::core::Core;

/// Where a node writes in its join file, in bytes: beyond the first piece of common sizes.
const FAR: u64 = 80 << 20;
/// Longest wait for a change to show.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest wait for the other node to have made it.
const CHANGE_LIMIT: Duration = Duration::from_secs(2);
/// Changes of one look: the file grows, and is written in place.
const CHANGES: usize = 2;
/// Other nodes that are looked at after the start, and time between two looks from then on.
const LOOKS_AT_START: u64 = 2;
const LOOK_INTERVAL: Duration = Duration::from_secs(600);
/// Time between two changes that a node makes for others.
const CHANGE_INTERVAL: Duration = Duration::from_millis(20);
/// Digits of a change's number in the file.
const DIGITS: usize = 16;

/// How soon changes showed; the worst of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    /// In the version of the file. `None`: not within the limit.
    version: Option<Duration>,
    /// In its bytes.
    bytes: Option<Duration>,
    /// A plain read gave old bytes although both showed.
    stale_pages: bool,
}

impl Shown {
    /// Whether the change showed in both.
    fn is_whole(&self) -> bool {
        self.version.is_some() && self.bytes.is_some()
    }
}

/// What is seen of another node's file at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    version: Version,
    /// Number of the last change, 0 before the first.
    number: u64,
    /// The same by a plain read, by way of the page cache.
    plain: u64,
}

/// Looks at others and changes for them.
#[derive(Default)]
pub struct Sight {
    /// Number of this node's last change, and when it was made.
    changed: Mutex<(u64, Option<Instant>)>,
    /// Nodes that could be looked at when they came.
    looks: AtomicU64,
    /// Held by the look that is under way.
    looking: Mutex<Option<Duration>>,
    last: Mutex<Option<ChangesShown>>,
}

impl Sight {
    /// What the last look showed.
    pub fn last(&self) -> Option<ChangesShown> {
        self.last.lock().clone()
    }

    /// Changes this node's file for another node, which looks at it. The number of the change once
    /// it is on the PFS; `None` where it cannot be made, or one was made a moment ago.
    pub fn change(&self, core: &Core, own: &JoinFile) -> Option<u64> {
        // Another change may wait for the PFS.
        let mut changed = self.changed.try_lock()?;
        if changed.1.is_some_and(|at| at.elapsed() < CHANGE_INTERVAL) {
            return None;
        }
        let number = changed.0 + 1;
        let file = own.open_own(core).ok()??;
        file.write_all_at(format!("{number:0DIGITS$}\n").as_bytes(), FAR).ok()?;
        file.sync_all().ok()?;
        // Closed before the answer: what is to show is what was closed.
        drop(file);
        *changed = (number, Some(Instant::now()));
        Some(number)
    }
}

fn look(core: &Core, file: &JoinFile) -> Result<Look, String> {
    let open = || core.pfs.file(file.open(core).map_err(|error| error.to_string())?).map_err(text);
    let file = open()?;
    let version = file.version().map_err(text)?;
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
    let mut digits = [0; DIGITS];
    let read = file.read_at(FAR, &mut digits).map_err(text)?;
    let plain = number(&digits[..read]).unwrap_or(0);
    let read = file.read_current(FAR, &mut digits).map_err(text)?;
    Ok(Look { version, number: number(&digits[..read]).unwrap_or(0), plain })
}

fn text(error: tidepool_proto::Error) -> String {
    error.to_string()
}

/// What a measurement needs of the world.
struct World<'a> {
    look: &'a dyn Fn() -> Result<Look, String>,
    /// Has the other node change its file, and returns the number of the change.
    change: &'a dyn Fn() -> Result<u64, String>,
    /// Whether another change of a file at this version would show by its time stamps.
    is_settled: &'a dyn Fn(&Version) -> bool,
    /// Waits; false: the node stops.
    pause: &'a dyn Fn(Duration) -> bool,
    limit: Duration,
}

impl World<'_> {
    fn wait_until<T>(
        &self,
        mut done: impl FnMut() -> Result<Option<T>, String>,
    ) -> Result<Option<T>, String> {
        let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
        loop {
            let value = done()?;
            if value.is_some() || began.elapsed() > self.limit {
                return Ok(value);
            }
            if !(self.pause)(pause) {
                return Err("the node stops".to_owned());
            }
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Has changes made and waits until they show.
    fn measure(&self) -> Result<Shown, String> {
        let zero = Some(Duration::ZERO);
        let mut worst = Shown { version: zero, bytes: zero, stale_pages: false };
        for _ in 0..CHANGES {
            let shown = self.measure_one()?;
            let later = |one: Option<Duration>, other: Option<Duration>| Some(one?.max(other?));
            worst.version = later(worst.version, shown.version);
            worst.bytes = later(worst.bytes, shown.bytes);
            worst.stale_pages |= shown.stale_pages;
            if !worst.is_whole() {
                break;
            }
        }
        Ok(worst)
    }

    fn measure_one(&self) -> Result<Shown, String> {
        let before = self.wait_until(|| {
            let look = (self.look)()?;
            Ok((self.is_settled)(&look.version).then_some(look))
        })?;
        let before = before.ok_or("its time stamps are ahead of this node's")?;
        let number = (self.change)()?;
        let began = Instant::now();
        let mut shown = Shown { version: None, bytes: None, stale_pages: false };
        self.wait_until(|| {
            let now = (self.look)()?;
            let took = began.elapsed();
            if !now.version.agrees_with(&before.version) {
                shown.version.get_or_insert(took);
            }
            if now.number >= number {
                shown.bytes.get_or_insert(took);
            }
            shown.stale_pages = now.plain < number;
            Ok(shown.is_whole().then_some(()))
        })?;
        Ok(shown)
    }
}

impl Cluster {
    /// Looks whether changes of a node show here, on a thread of its own, unless that was seen of
    /// enough nodes already.
    pub(super) fn watch_changes_of(&self, node: &NodeName) {
        if self.sight.looks.fetch_add(1, Ordering::AcqRel) < LOOKS_AT_START {
            self.start_look(node.clone());
        }
    }

    /// Looks again now and then, at any node that sees the same files.
    pub(super) fn watch_changes(&self) {
        let is_due = self.sight.looking.try_lock().is_some_and(|ended| {
            ended.is_some_and(|at| self.now().saturating_sub(at) > LOOK_INTERVAL)
        });
        if !is_due {
            return;
        }
        let members = self.members.lock().members();
        let names = members.into_iter().map(|member| member.name);
        let others: Vec<NodeName> = names.filter(|node| self.proofs.holds(node)).collect();
        let chosen = threads::random() as usize % others.len().max(1);
        if let Some(node) = others.get(chosen) {
            self.start_look(node.clone());
        }
    }

    fn start_look(&self, node: NodeName) {
        let Some(cluster) = self.myself.upgrade() else { return };
        let look = move || {
            // One at a time.
            let mut ended = cluster.sight.looking.lock();
            if let Some(core) = cluster.core.upgrade() {
                cluster.look_at(&core, &node);
            }
            *ended = Some(cluster.now());
        };
        let thread = std::thread::Builder::new().name("pfs-sight".into()).stack_size(512 << 10);
        if let Ok(thread) = thread.spawn(look) {
            let mut threads = self.threads.lock();
            threads.retain(|thread| !thread.is_finished());
            threads.push(thread);
        }
    }

    fn look_at(&self, core: &Arc<Core>, node: &NodeName) {
        let file = match self.join_file(node) {
            Ok(file) if file.is_file() => file,
            Ok(_) => return self.note_unseen(node, "it may not write to its PFS directory"),
            Err(because) => return self.note_unseen(node, &because),
        };
        let change = || self.ask_for_change(node);
        let world = World {
            look: &|| look(core, &file),
            change: &change,
            is_settled: &|version| !core.is_racy(version),
            pause: &|time| {
                std::thread::sleep(time);
                !self.is_stopping()
            },
            limit: LIMIT,
        };
        let measured = world.measure().and_then(|shown| match shown.is_whole() {
            true => Ok(shown),
            // It is believed when it is so again, of a node that was not started anew meanwhile:
            // its changes begin from the first one.
            false => world.measure(),
        });
        let is_same = || self.join_file(node).is_ok_and(|now| now == file);
        match measured {
            Ok(shown) if shown.is_whole() || is_same() => self.note_shown(core, node, shown),
            Ok(_) => self.note_unseen(node, "it was started anew meanwhile"),
            Err(because) => self.note_unseen(node, &because),
        }
    }

    fn ask_for_change(&self, node: &NodeName) -> Result<u64, String> {
        // The other node may change its file for somebody else at the moment.
        for _ in 0..20 {
            let request = threads::about_change();
            let timeout = self.config.peer_timeout.max(CHANGE_LIMIT);
            let reply = self.transport.call(node.as_str(), &request, timeout);
            let reply = reply.map_err(|error| error.to_string())?;
            if let Ok(number) = reply.as_slice().try_into().map(u64::from_le_bytes) {
                return Ok(number);
            }
            if self.is_stopping() {
                break;
            }
            std::thread::sleep(CHANGE_INTERVAL * 2);
        }
        Err("it could not change its file in the PFS directory".to_owned())
    }

    fn note_unseen(&self, node: &NodeName, because: &str) {
        // The next one that comes will do.
        self.sight.looks.store(0, Ordering::Release);
        if !self.is_stopping() {
            tracing::debug!(%node, "whether its changes show here is not known: {because}");
        }
    }

    fn note_shown(&self, core: &Core, node: &NodeName, shown: Shown) {
        let milliseconds = |time: Duration| time.as_millis() as u64;
        let shown = ChangesShown {
            node: node.to_string(),
            version_ms: shown.version.map(milliseconds),
            bytes_ms: shown.bytes.map(milliseconds),
            stale_pages: shown.stale_pages,
        };
        let verdict = shown.verdict();
        if shown.stale_pages {
            tracing::warn!(
                %node,
                "programs that read the PFS directory itself see old bytes of what it wrote: the \
                 PFS's client keeps them in the page cache. The node reads past that. Mount \
                 GlusterFS with `fopen-keep-cache=off`",
            );
        }
        *self.sight.last.lock() = Some(shown);
        match verdict {
            ChangesVerdict::AtOnce | ChangesVerdict::StalePages => {
                tracing::info!(%node, "what it writes to the PFS shows here at once");
            }
            ChangesVerdict::LateMs(took_ms) => {
                core.promise.note_settling(Duration::from_millis(took_ms * 2));
                tracing::warn!(
                    %node,
                    "what it writes to the PFS shows here after {took_ms} ms: the PFS's client \
                     remembers attributes. Files that changed within the last {} ms are not kept",
                    took_ms * 2,
                );
            }
            ChangesVerdict::HiddenVersions | ChangesVerdict::HiddenBytes => {
                if core.keep_nothing() {
                    tracing::warn!(
                        %node,
                        "what it wrote to the PFS did not show here within {} s: nothing is kept \
                         in memory from now on. Mount the PFS without caches of attributes, and \
                         restart the node",
                        LIMIT.as_secs(),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tidepool_proto::FileId;

    use super::*;

    /// A file that another node changes, and a client that shows the changes late.
    struct Late {
        changes: Cell<u64>,
        at: Cell<Option<Instant>>,
        version: Option<Duration>,
        bytes: Option<Duration>,
        plain: Option<Duration>,
    }

    impl Late {
        fn new(version: Option<u64>, bytes: Option<u64>) -> Self {
            let (version, bytes) =
                (version.map(Duration::from_millis), bytes.map(Duration::from_millis));
            Late { changes: Cell::new(0), at: Cell::new(None), version, bytes, plain: bytes }
        }

        fn seen(&self, delay: Option<Duration>) -> u64 {
            let shows = self.at.get().zip(delay).is_none_or(|(at, delay)| at.elapsed() >= delay);
            let hidden = delay.is_none() || !shows;
            self.changes.get().saturating_sub(hidden.into())
        }

        fn look(&self) -> Look {
            let stamp = i128::from(self.seen(self.version));
            let version = Version {
                id: FileId { device: 1, inode: 2 },
                size: 100,
                modified_ns: stamp,
                changed_ns: stamp,
                born_ns: 0,
            };
            let number = self.seen(self.bytes);
            Look { version, number, plain: self.seen(self.plain) }
        }

        fn measure(&self, limit_ms: u64) -> Result<Shown, String> {
            let change = || {
                self.changes.set(self.changes.get() + 1);
                self.at.set(Some(Instant::now()));
                Ok(self.changes.get())
            };
            let pause = |time| {
                std::thread::sleep(time);
                true
            };
            let limit = Duration::from_millis(limit_ms);
            let world = World {
                look: &|| Ok(self.look()),
                change: &change,
                is_settled: &|_| true,
                pause: &pause,
                limit,
            };
            world.measure()
        }
    }

    #[test]
    fn what_shows_late_is_measured_and_what_does_not_is_found() {
        let at_once = Late::new(Some(0), Some(0)).measure(60_000).unwrap();
        assert!(at_once.version.is_some() && at_once.bytes.is_some() && !at_once.stale_pages);
        let stale = Late { plain: None, ..Late::new(Some(0), Some(0)) };
        assert!(stale.measure(60_000).unwrap().stale_pages);
        let late = Late::new(Some(40), Some(90)).measure(60_000).unwrap();
        assert!(late.version.unwrap() >= Duration::from_millis(40));
        assert!(late.bytes.unwrap() >= Duration::from_millis(90));
        let hidden = Late::new(None, Some(0)).measure(100).unwrap();
        assert!(hidden.version.is_none() && hidden.bytes.is_some());
        let old_bytes = Late::new(Some(0), None).measure(100).unwrap();
        assert!(old_bytes.version.is_some() && old_bytes.bytes.is_none());
    }
}
