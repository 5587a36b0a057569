//! Writes everything back that is in memory alone: for a drain, and when the node ends. Several
//! files go at a time, so that one that the PFS does not answer for is the only one that is waited
//! for.
//!
//! Where the PFS has no room, a drain does not try every file: each try costs syncs, and the bytes
//! stay in memory in any case. The end of a node does, because they would be lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_pfs::LowerFile;
use tidepool_proto::{ByteSize, Error, ErrorKind, FileId, Result};

use super::cached_version::CachedVersion;
use super::memory_only::{is_expendable, name_of_file, write_back};
use super::state::FileState;
use super::steps::HANGING;
use super::works::Works;
use super::write_back_state::{Room, SAY_EVERY, is_full};
use crate::core::Core;

/// How often it is looked whether a file hangs.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const WHAT: &str = "writing back what is in memory alone";

/// How much is tried where there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few files: the bytes stay in memory.
    Probe,
    /// Each file: what is not written back is lost.
    Each,
}

/// Writes every memory-only file back, the small ones first: they find room longest. After a file
/// that found none, more and more are passed over until the next is tried. Returns when all is
/// done: a file that hangs is waited for, and said; or, in a probe, once `go_on` says no. The error
/// tells what is left, or is the first that was of another kind, after all were tried.
pub fn write_back_all(core: &Arc<Core>, effort: Effort, go_on: &dyn Fn() -> bool) -> Result<()> {
    let mut left = core.memory_only.cached_versions();
    left.sort_by_key(|cached| std::cmp::Reverse(cached.size()));
    let state = Mutex::new(State { left, ..State::default() });
    let round = Arc::new(Round { core: core.clone(), effort, state, changed: Condvar::new() });
    let mut said = None;
    let mut state = round.state.lock();
    while !state.is_done() {
        if !round.employ(&mut state) {
            drop(state);
            round.work();
            state = round.state.lock();
            continue;
        }
        let _ = round.changed.wait_for(&mut state, LOOK_AGAIN);
        if effort == Effort::Probe && !go_on() {
            state.left.clear();
            state.undone = true;
            return Err(undone());
        }
        round.say_what_hangs(&state, &mut said);
    }
    let full = state.first_full.take().map(|error| left_over(core, &error, effort));
    state.first_error.take().or(full).map_or(Ok(()), Err)?;
    if effort == Effort::Each || go_on() { Ok(()) } else { Err(undone()) }
}

fn undone() -> Error {
    Error::new(ErrorKind::InUse, WHAT, "the drain was undone")
        .remedy("`tidepool node drain`, where that was not meant")
}

/// One walk over all files, by several threads.
struct Round {
    core: Arc<Core>,
    effort: Effort,
    state: Mutex<State>,
    /// A file ended.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Files to come, the last one first.
    left: Vec<Arc<CachedVersion>>,
    works: Works,
    ended: usize,
    walk: Walk,
    first_error: Option<Error>,
    first_full: Option<Error>,
    /// Nobody waits for it any more.
    undone: bool,
}

impl State {
    fn is_done(&self) -> bool {
        self.left.is_empty() && self.works.all().is_empty()
    }
}

impl Round {
    /// Begins threads, as many as may write; false where there is none and none to be had. They
    /// grow in number with the files that are done: a PFS without room is not asked for many.
    fn employ(self: &Arc<Self>, state: &mut State) -> bool {
        let places = (self.core.config.transfers as usize).min(state.ended + 1);
        let threads_max = state.works.threads_max(self.core.memory_only.steps(), places);
        while state.works.threads < threads_max.min(state.works.all().len() + state.left.len()) {
            let round = self.clone();
            let work = move || {
                round.work();
                round.state.lock().works.threads -= 1;
                round.changed.notify_all();
            };
            let builder = std::thread::Builder::new().name("drain".into()).stack_size(256 << 10);
            if let Err(error) = builder.spawn(work) {
                tracing::warn!(%error, "no more threads write memory-only files back");
                break;
            }
            state.works.threads += 1;
        }
        state.works.threads > 0
    }

    fn work(&self) {
        let mut state = self.state.lock();
        while let Some(cached) = state.left.pop() {
            let file = cached.id();
            state.works.begin(file, cached.size(), Instant::now());
            drop(state);
            self.try_one(file);
            state = self.state.lock();
            state.works.end(file);
            state.works.note_done();
            state.ended += 1;
            self.changed.notify_all();
        }
    }

    fn try_one(&self, file: FileId) {
        let core = &self.core;
        let Some(file) = core.files.get(file) else { return };
        let Some(stub) = file.inner.lock().stub.clone() else { return };
        let lower = &**stub.lower();
        let rooms = self.rooms_of(lower);
        if self.effort == Effort::Probe
            && self.state.lock().walk.passes_over(&rooms)
            && !is_expendable(core, &file)
        {
            return;
        }
        let Some(result) = self.write_back(&file) else { return };
        let mut state = self.state.lock();
        match result {
            Ok(()) => state.walk.found_room(&rooms),
            Err(error) if is_full(&error) => {
                drop(state);
                let room = Room::of(&error, lower);
                state = self.state.lock();
                state.walk.found_none(room);
                state.first_full.get_or_insert(error);
            }
            Err(error) => _ = state.first_error.get_or_insert(error),
        }
    }

    /// What the file needs of what was found to be used up. Asks the PFS, so without a lock.
    fn rooms_of(&self, lower: &dyn LowerFile) -> Vec<Room> {
        let used_up: Vec<Room> = self.state.lock().walk.0.keys().copied().collect();
        used_up.into_iter().filter(|room| room.is_of(lower)).collect()
    }

    /// Waits for changes of the file to end; `None` where nothing is to be done any more.
    fn write_back(&self, file: &FileState) -> Option<Result<()>> {
        let changing = loop {
            if let Some(changing) = file.try_close_gate_for(LOOK_AGAIN) {
                break changing;
            }
            if self.state.lock().undone {
                return None;
            }
        };
        let cached = file.cached().filter(|cached| cached.is_memory_only())?;
        Some(write_back(&self.core, &changing, &cached).map(drop))
    }

    /// Names the files that keep everybody waiting.
    fn say_what_hangs(&self, state: &State, said: &mut Option<Instant>) {
        let steps = self.core.memory_only.steps();
        let waits = state.works.all().iter().map(|work| (work.file, work.waits(steps)));
        let hanging: Vec<_> = waits.filter(|(_, elapsed)| *elapsed >= HANGING).collect();
        if hanging.is_empty() || said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            return;
        }
        *said = Some(Instant::now());
        let (file, elapsed) = hanging[0];
        let (name, hanging) = (name_of_file(&self.core, file), hanging.len());
        let left = state.left.len();
        tracing::warn!(name, ?elapsed, hanging, left, "the PFS does not answer: waiting for it");
    }
}

/// Says what is left, and what to do.
fn left_over(core: &Core, error: &Error, effort: Effort) -> Error {
    let cached_versions = core.memory_only.cached_versions();
    let bytes = ByteSize(cached_versions.iter().map(|cached| cached.size()).sum());
    let whose = if error.errno() == libc::EDQUOT { "a quota on the PFS" } else { "the PFS" };
    let files = match cached_versions.len() {
        1 => "1 file".to_owned(),
        more => format!("{more} files"),
    };
    let detail = format!("{whose} is full: {files} ({bytes}) stay in memory alone");
    let remedy = match effort {
        Effort::Probe => {
            "make room on the PFS or raise the quota, then repeat this; the node goes on until \
             then, and nothing is lost"
        }
        Effort::Each => {
            "end a node by `tidepool node stop`, which leaves it running where the PFS has no room"
        }
    };
    Error::new(ErrorKind::Pfs, WHAT, detail)
        .caused_by(std::io::Error::from_raw_os_error(error.errno()))
        .remedy(remedy)
}

/// Which room was used up in this walk over all files.
#[derive(Default)]
struct Walk(HashMap<Room, Gap>);

/// Files to pass over until the next try, and how many that are from refusal to refusal.
#[derive(Default)]
struct Gap {
    left: u64,
    length: u64,
}

impl Walk {
    /// Whether a file that needs these rooms is one to pass over.
    fn passes_over(&mut self, rooms: &[Room]) -> bool {
        let mut gaps = self.0.iter_mut().filter(|(room, _)| rooms.contains(room));
        // One of them is enough; the others count on.
        gaps.any(|(_, gap)| match gap.left {
            0 => false,
            left => {
                gap.left = left - 1;
                true
            }
        })
    }

    fn found_none(&mut self, room: Room) {
        let gap = self.0.entry(room).or_default();
        gap.length = gap.length * 2 + 1;
        gap.left = gap.length;
    }

    fn found_room(&mut self, rooms: &[Room]) {
        self.0.retain(|room, _| !rooms.contains(room));
    }
}
