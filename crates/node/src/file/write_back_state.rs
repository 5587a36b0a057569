//! What is known of a PFS, or of quotas on it, without room for memory-only files: when another try
//! of a write-back is worth it, and what operators are told. Every try blocks a file and costs a
//! sync, and where one file found no room the next of the same owner will find none either.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_pfs::LowerFile;
use tidepool_proto::control::PfsFull;
use tidepool_proto::{Error, FileId};

pub(super) use super::failing::SAY_EVERY;
use super::failing::{Failing, PAUSE_MAX, PAUSE_MIN};

/// Room on the PFS that may be used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Room {
    /// That of everybody.
    Pfs,
    /// What a quota gives the owner of a file. A quota of a group or a project counts as that of
    /// the owners who run into it.
    Owner(u32),
}

impl Room {
    /// The room that `error` says is used up, for this file.
    pub fn of(error: &Error, lower: &dyn LowerFile) -> Room {
        match owner_of(lower) {
            Some(owner) if error.errno() == libc::EDQUOT => Room::Owner(owner),
            _ => Room::Pfs,
        }
    }

    /// Whether this file needs it.
    pub fn is_of(self, lower: &dyn LowerFile) -> bool {
        match self {
            Room::Pfs => true,
            Room::Owner(owner) => owner_of(lower) == Some(owner),
        }
    }
}

fn owner_of(lower: &dyn LowerFile) -> Option<u32> {
    rustix::fs::fstat(lower.descriptor()).ok().map(|status| status.st_uid)
}

/// Whether an error says that the PFS, or a quota on it, is full.
pub fn is_full(error: &Error) -> bool {
    is_no_room(error.errno())
}

/// The same of its errno.
pub fn is_no_room(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT)
}

/// Starts the thread that tries again.
pub type StartRetry = Box<dyn Fn() + Send + Sync>;

/// The state of writing back.
#[derive(Default)]
pub struct WriteBackState {
    failing: Failing,
    refusals: Mutex<Refusals>,
    changed: Condvar,
    start_retry: OnceLock<StartRetry>,
}

#[derive(Default)]
struct Refusals {
    used_up: HashMap<Room, Refusal>,
    /// A thread tries again.
    retrying: bool,
    stopping: bool,
    /// Refusals that were not said yet.
    unsaid: u64,
    said: Option<Instant>,
}

struct Refusal {
    file: FileId,
    since: Instant,
    pause: Duration,
    until: Instant,
    /// A try is under way although the pause is not over.
    tried: bool,
    why: String,
}

impl WriteBackState {
    /// What is known of files that fail for another reason.
    pub fn failing(&self) -> &Failing {
        &self.failing
    }

    /// Whether there was no room for this file, or one like it, a moment ago.
    pub fn is_paused(&self, lower: &dyn LowerFile) -> bool {
        let waits = |room| {
            let refusals = self.refusals.lock();
            refusals.used_up.get(&room).is_some_and(|it| Instant::now() < it.until)
        };
        let has_owners =
            || self.refusals.lock().used_up.keys().any(|room| matches!(room, Room::Owner(_)));
        waits(Room::Pfs)
            || (has_owners() && owner_of(lower).is_some_and(|owner| waits(Room::Owner(owner))))
    }

    /// A file was written back: there is room.
    pub fn succeeded(&self, lower: &dyn LowerFile) {
        if self.refusals.lock().used_up.is_empty() {
            return;
        }
        let owner = owner_of(lower).map(Room::Owner);
        let mut refusals = self.refusals.lock();
        let before = refusals.used_up.len();
        refusals.used_up.retain(|room, _| *room != Room::Pfs && Some(*room) != owner);
        if refusals.used_up.len() < before {
            tracing::info!("the PFS takes memory-only files again");
        }
    }

    /// There was no room for a file: the next pause begins. Answers whether no thread tries again
    /// yet, and the caller has to see to it.
    #[must_use]
    pub fn refused(&self, room: Room, file: FileId, error: &Error) -> bool {
        let now = Instant::now();
        let mut refusals = self.refusals.lock();
        let refusal = refusals.used_up.entry(room).or_insert_with(|| Refusal {
            file,
            since: now,
            pause: Duration::ZERO,
            until: now,
            tried: false,
            why: String::new(),
        });
        // A drain asks for many files in one pause, and learns nothing by it.
        if refusal.until <= now || std::mem::take(&mut refusal.tried) {
            refusal.pause = (refusal.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        }
        refusal.until = now + refusal.pause;
        refusal.file = file;
        refusal.why = error.to_string();
        let again = refusal.pause;
        refusals.unsaid += 1;
        if refusals.said.is_none_or(|said| now - said >= SAY_EVERY) {
            refusals.said = Some(now);
            let count = std::mem::take(&mut refusals.unsaid);
            tracing::error!(
                %error, count, ?again,
                "the PFS has no room for memory-only files: they stay in memory; make room on it"
            );
        }
        !refusals.stopping && !std::mem::replace(&mut refusals.retrying, true)
    }

    /// Sets what starts the thread that tries again.
    pub fn on_refusal(&self, start_retry: StartRetry) {
        _ = self.start_retry.set(start_retry);
    }

    /// Starts that thread.
    pub fn start_retry(&self) {
        if let Some(start_retry) = self.start_retry.get() {
            start_retry();
        }
    }

    /// Waits until something is worth another try: its room, and the file that found none. `None`
    /// once nothing is left to try, or the node stops; the thread that asked ends then.
    pub fn next_try(&self) -> Option<(Room, FileId)> {
        let mut refusals = self.refusals.lock();
        loop {
            let next = refusals.used_up.iter().min_by_key(|(_, refusal)| refusal.until);
            let Some((room, refusal)) = next.filter(|_| !refusals.stopping) else {
                refusals.retrying = false;
                return None;
            };
            if refusal.until <= Instant::now() {
                return Some((*room, refusal.file));
            }
            let until = refusal.until;
            self.changed.wait_until(&mut refusals, until);
        }
    }

    /// It is tried now, or cannot be: not again before another pause.
    pub fn postpone(&self, room: Room) {
        if let Some(refusal) = self.refusals.lock().used_up.get_mut(&room) {
            refusal.until = Instant::now() + refusal.pause;
            refusal.tried = true;
        }
    }

    /// Nobody needs this room any more.
    pub fn clear(&self, room: Room) {
        self.refusals.lock().used_up.remove(&room);
    }

    /// Nobody could be had to try again.
    pub fn is_not_retried(&self) {
        self.refusals.lock().retrying = false;
    }

    /// Ends the tries.
    pub fn stop(&self) {
        self.refusals.lock().stopping = true;
        self.changed.notify_all();
    }

    /// What operators are told; `None` where there was room at the last try.
    pub fn state(&self) -> Option<PfsFull> {
        let refusals = self.refusals.lock();
        let now = Instant::now();
        let all = || refusals.used_up.values();
        let first = all().min_by_key(|refusal| refusal.since)?;
        let next = all().map(|refusal| refusal.until).min().unwrap_or(now);
        let owners = refusals.used_up.keys().filter_map(|room| match room {
            Room::Pfs => None,
            Room::Owner(owner) => Some(*owner),
        });
        let mut full = PfsFull {
            since_s: now.saturating_duration_since(first.since).as_secs(),
            again_s: Some(next.saturating_duration_since(now).as_secs()),
            users: owners.collect(),
            dirty_bytes: 0,
            why: first.why.clone(),
        };
        full.fit();
        Some(full)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidepool_pfs::{LowerStore, PosixOptions, PosixStore};

    use super::*;

    fn error(errno: i32) -> Error {
        Error::pfs("writing", std::io::Error::from_raw_os_error(errno))
    }

    fn file() -> (tempfile::TempDir, Arc<dyn LowerFile>) {
        let directory = tempfile::tempdir().unwrap();
        let store = PosixStore::open(directory.path(), PosixOptions::default()).unwrap();
        let opened = std::fs::File::create(directory.path().join("f")).unwrap();
        let lower = store.file(opened.into()).unwrap();
        (directory, lower)
    }

    #[test]
    fn pauses_double_to_a_bound_and_end_with_a_success() {
        let (_directory, lower) = file();
        let (write_back_state, full) = (WriteBackState::default(), error(libc::ENOSPC));
        let room = Room::of(&full, &*lower);
        assert!(is_full(&full) && room == Room::Pfs && !write_back_state.is_paused(&*lower));
        let mut pauses = Vec::new();
        for number in 0..7 {
            let first = write_back_state.refused(room, lower.id(), &full);
            assert_eq!(first, number == 0, "one thread tries again");
            assert!(write_back_state.is_paused(&*lower));
            pauses.push(write_back_state.refusals.lock().used_up[&room].pause.as_secs());
            // The pause is over, or the thread that tries again ends it.
            match number % 2 {
                0 => {
                    write_back_state.refusals.lock().used_up.get_mut(&room).unwrap().until =
                        Instant::now()
                }
                _ => write_back_state.postpone(room),
            }
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(write_back_state.refusals.lock().unsaid, 6, "the first alone was said");
        assert!(write_back_state.state().unwrap().why.contains("No space left"));
        write_back_state.succeeded(&*lower);
        assert!(!write_back_state.is_paused(&*lower) && write_back_state.state().is_none());
        assert_eq!(write_back_state.next_try(), None, "nothing is left to try");
        assert!(write_back_state.refused(room, lower.id(), &full), "nobody tries again any more");
        for _ in 0..9 {
            let long = Instant::now() + PAUSE_MAX;
            write_back_state.refusals.lock().used_up.get_mut(&room).unwrap().until = long;
            let _retry = write_back_state.refused(room, lower.id(), &full);
        }
        let pause = write_back_state.refusals.lock().used_up[&room].pause;
        assert_eq!(pause, PAUSE_MIN, "many refusals in one pause are one");
    }

    #[test]
    fn the_quota_of_one_owner_holds_up_nobody_else() {
        let (_directory, lower) = file();
        let (write_back_state, full) = (WriteBackState::default(), error(libc::EDQUOT));
        let room = Room::of(&full, &*lower);
        let Room::Owner(owner) = room else { panic!("{room:?}") };
        let other = Room::Owner(owner + 1);
        assert!(room.is_of(&*lower) && !other.is_of(&*lower));
        let _retry = write_back_state.refused(other, lower.id(), &full);
        assert!(!write_back_state.is_paused(&*lower));
        let _retry = write_back_state.refused(room, lower.id(), &full);
        assert!(write_back_state.is_paused(&*lower));
        write_back_state.succeeded(&*lower);
        assert!(!write_back_state.is_paused(&*lower));
        assert_eq!(
            write_back_state.state().unwrap().users,
            [owner + 1],
            "the other's is still used up"
        );
    }

    #[test]
    fn tries_end_with_the_node() {
        let (_directory, lower) = file();
        let write_back_state = WriteBackState::default();
        let _retry = write_back_state.refused(Room::Pfs, lower.id(), &error(libc::ENOSPC));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| write_back_state.next_try());
            write_back_state.stop();
            assert_eq!(waiting.join().unwrap(), None);
        });
        assert!(
            !write_back_state.refused(Room::Pfs, lower.id(), &error(libc::ENOSPC)),
            "none begins"
        );
    }
}
