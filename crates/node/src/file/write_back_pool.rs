//! [`WriteBackPool`]: threads that write memory-only files back while memory is needed. The largest
//! files go first, because each file costs the PFS several synced calls whatever its size. Several
//! files go at a time, so that one that the PFS does not answer for keeps no others in memory.
//!
//! A thread that needs memory calls [`WriteBackPool::ask`] and waits as its [`Wait`] says. The
//! bytes it asked for are written back also after it stopped waiting, while the store is above its
//! capacity. A file is written back by one thread at a time, which holds its gate.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tidepool_proto::FileId;
use tidepool_store::Store;

use super::memory_only_files::MemoryOnlyFiles;
use super::pace::Pace;
use super::steps::HANGING;
use super::works::{Work, Works};
use crate::capacity_lease::CapacityLease;

/// How long a thread without work stays.
const LINGER: Duration = Duration::from_secs(1);
/// The next step of a file is expected within this time.
const PROMPT: Duration = Duration::from_millis(50);
/// How often a waiting thread looks whether the rest hangs.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// Files that are in order at a time, and for how long their order is good.
const ORDERED_MAX: usize = 4096;
const ORDER_AGE_MAX: Duration = Duration::from_millis(100);
/// At most one part of this many of the time goes into ordering.
const ORDER_SHARE: u32 = 5;
/// No more than two files are written at a time where they are larger: a file gives its memory
/// back when it is whole, and more of them would share what the PFS takes and all be late.
const TOGETHER_BYTES: u64 = 32 << 20;
const TOGETHER_MIN: usize = 2;
/// How long a request that is repeated by itself waits.
const MOMENT: Duration = Duration::from_millis(100);

/// How long a thread waits for the bytes that it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A moment: the caller asks again.
    Moment,
    /// Until they are there, or nothing more can be written back.
    ToEnd,
}

/// Writes a file back if that can be done now; the bytes that became clean.
pub type WriteOne = Box<dyn Fn(FileId) -> Option<u64> + Send + Sync>;

/// The threads and their work.
pub struct WriteBackPool {
    files: Arc<MemoryOnlyFiles>,
    store: Arc<Store>,
    /// Is told how fast files are written back.
    capacity_lease: Arc<CapacityLease>,
    /// Files that may go on at a time.
    places: usize,
    write_one: OnceLock<WriteOne>,
    state: Mutex<State>,
    /// A file ended, or there is none.
    changed: Condvar,
    /// There is work for a thread.
    needed: Condvar,
}

#[derive(Default)]
struct State {
    /// Bytes still to be written back, those under way included.
    wanted_bytes: u64,
    /// Bytes that became clean since the start.
    done_bytes: u64,
    /// Threads that asked and wait.
    waiting: usize,
    order: Order,
    works: Works,
    idle: usize,
    pace: Pace,
    stopping: bool,
}

/// The next files, the last one first.
#[derive(Default)]
struct Order {
    files: Vec<(u64, Reverse<u64>, FileId)>,
    made: Option<Instant>,
    took: Duration,
    /// Something may have changed since.
    worth_making: bool,
    /// There was nothing more to write back.
    exhausted: bool,
}

impl Order {
    /// The next file that no thread writes back.
    fn next(&mut self, files: &MemoryOnlyFiles, works: &[Work]) -> Option<(FileId, u64)> {
        if self.made.is_none_or(|made| made.elapsed() > ORDER_AGE_MAX) {
            self.make(files);
        }
        loop {
            while let Some((bytes, _, file)) = self.files.pop() {
                if !works.iter().any(|work| work.file == file) {
                    return Some((file, bytes));
                }
            }
            if !self.make(files) {
                self.exhausted = true;
                return None;
            }
        }
    }

    /// Takes the largest files; of those of one length the oldest are first. Whether any is there.
    fn make(&mut self, files: &MemoryOnlyFiles) -> bool {
        let is_dear = self.made.is_some_and(|made| made.elapsed() < self.took * ORDER_SHARE);
        if !self.worth_making || is_dear {
            return false;
        }
        let begun = Instant::now();
        let cached_versions = files.cached_versions().into_iter();
        self.files = cached_versions
            .map(|cached| (cached.resident_bytes(), Reverse(cached.number), cached.id()))
            .collect();
        if let Some(rest) = self.files.len().checked_sub(ORDERED_MAX).filter(|rest| *rest > 0) {
            self.files.select_nth_unstable(rest);
            self.files.drain(..rest);
        }
        self.files.sort_unstable();
        (self.made, self.took) = (Some(Instant::now()), begun.elapsed());
        self.worth_making = false;
        !self.files.is_empty()
    }
}

impl State {
    fn is_wanted(&self, pool: &WriteBackPool) -> bool {
        self.waiting > 0 || pool.excess_bytes() > 0
    }

    /// Whether another file is to be begun. One whose step takes longer than most is not counted
    /// on: a thread that needs the memory cannot wait until it is known to hang.
    fn lacks_work(&self, pool: &WriteBackPool) -> bool {
        let steps = pool.files.steps();
        let prompt = self.works.all().iter().filter(|work| work.waits(steps) < PROMPT);
        let coming = prompt.map(|work| work.bytes).sum::<u64>();
        coming < self.wanted_bytes && self.is_wanted(pool) && !self.stopping
    }

    /// Bytes of the files that go on.
    fn moving(&self, pool: &WriteBackPool) -> Vec<u64> {
        self.works.moving(pool.files.steps())
    }

    /// Whether one thread more may write.
    fn has_place(&self, pool: &WriteBackPool) -> bool {
        let moving = self.moving(pool);
        let few = moving.len() < TOGETHER_MIN || moving.iter().sum::<u64>() < TOGETHER_BYTES;
        few && moving.len() < pool.places
    }

    /// Nothing more becomes clean, for whatever reason.
    fn is_over(&self, pool: &WriteBackPool) -> bool {
        let (steps, works) = (pool.files.steps(), self.works.all());
        let all_hang = works.iter().all(|work| work.waits(steps) >= HANGING);
        let all_busy = works.len() >= self.works.threads && !self.may_spawn(pool);
        all_hang && (self.order.exhausted || all_busy)
    }

    fn may_spawn(&self, pool: &WriteBackPool) -> bool {
        let places = pool.places;
        self.works.threads < self.works.threads_max(pool.files.steps(), places)
    }
}

impl WriteBackPool {
    /// No threads yet; `places` files may go on at a time.
    pub fn new(
        files: Arc<MemoryOnlyFiles>,
        store: Arc<Store>,
        capacity_lease: Arc<CapacityLease>,
        places: usize,
    ) -> Arc<Self> {
        Arc::new(WriteBackPool {
            files,
            store,
            capacity_lease,
            places,
            write_one: OnceLock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
            needed: Condvar::new(),
        })
    }

    /// Sets what writes a file back; before it is set, none is.
    pub fn set_writer(&self, write_one: WriteOne) {
        _ = self.write_one.set(write_one);
    }

    /// Whether memory is needed that files have.
    pub fn is_needed(&self) -> bool {
        self.state.lock().is_wanted(self)
    }

    /// Bytes that the store has above its capacity.
    fn excess_bytes(&self) -> u64 {
        let page = self.store.control_page();
        let resident_bytes = page.resident_bytes.load(Ordering::Relaxed);
        resident_bytes.saturating_sub(page.capacity_bytes.load(Ordering::Relaxed))
    }

    /// Has memory-only files written back until `bytes_wanted` bytes became clean. Files that are
    /// being changed at this moment are passed over, so that no lock is waited for. Answers the
    /// bytes that became clean meanwhile.
    pub fn ask(self: &Arc<Self>, bytes_wanted: u64, wait: Wait) -> u64 {
        let begun = Instant::now();
        let mut state = self.state.lock();
        let before = state.done_bytes;
        state.wanted_bytes = state.wanted_bytes.max(bytes_wanted);
        state.waiting += 1;
        (state.order.worth_making, state.order.exhausted) = (true, false);
        if wait == Wait::ToEnd {
            state.order.made = None;
        }
        let alone = self.employ(&mut state);
        if alone {
            // No thread is to be had.
            drop(state);
            self.work(false);
            state = self.state.lock();
        }
        while state.done_bytes - before < bytes_wanted && !state.stopping {
            let coming = state.works.all().iter().map(|work| work.bytes).sum();
            if let Some(bytes_per_s) = state.pace.at_most(coming) {
                self.capacity_lease.note_write_back_at_most(bytes_per_s);
            }
            let is_late = wait == Wait::Moment && begun.elapsed() >= MOMENT;
            if alone || is_late || state.is_over(self) {
                break;
            }
            let _ = self.changed.wait_for(&mut state, LOOK_AGAIN);
            // One that waits for the PFS leaves its place.
            self.employ(&mut state);
        }
        state.waiting -= 1;
        if !state.is_wanted(self) {
            state.wanted_bytes = 0;
        }
        state.done_bytes - before
    }

    /// Sees to it that a thread takes up what is wanted. True where there is none and none can be
    /// started.
    fn employ(self: &Arc<Self>, state: &mut State) -> bool {
        if !state.lacks_work(self) || state.order.exhausted || !state.has_place(self) {
            return false;
        }
        if state.idle > 0 {
            self.needed.notify_one();
            return false;
        }
        if !state.may_spawn(self) {
            return false;
        }
        let pool = self.clone();
        let builder = std::thread::Builder::new().name("write-back".into()).stack_size(256 << 10);
        match builder.spawn(move || pool.work(true)) {
            Ok(_) => state.works.threads += 1,
            Err(error) => tracing::warn!(%error, "no more threads write memory-only files back"),
        }
        state.works.threads == 0
    }

    /// The next file for a thread; `None` where there is none now.
    fn begin(self: &Arc<Self>, state: &mut State) -> Option<FileId> {
        if !state.lacks_work(self) || !state.has_place(self) {
            return None;
        }
        let (file, bytes) = state.order.next(&self.files, state.works.all())?;
        let now = Instant::now();
        let alone = state.moving(self).is_empty();
        state.works.begin(file, bytes, now);
        state.pace.begin(now, alone);
        // The next thread, as long as one is needed.
        self.employ(state);
        Some(file)
    }

    /// A file was written back, or passed over.
    fn end(&self, state: &mut State, file: FileId, clean_bytes: Option<u64>) {
        let Some(Work { begun, .. }) = state.works.end(file) else { return };
        if let Some(bytes) = clean_bytes {
            state.done_bytes += bytes;
            state.wanted_bytes = state.wanted_bytes.saturating_sub(bytes);
            state.order.worth_making = true;
            state.works.note_done();
            tracing::debug!(inode = file.inode, bytes, took = ?begun.elapsed(), "written back");
        }
        let goes_on = !state.moving(self).is_empty();
        if let Some((bytes, elapsed)) = state.pace.end(clean_bytes.unwrap_or(0), goes_on) {
            self.capacity_lease.note_write_back(bytes, elapsed);
        }
        self.changed.notify_all();
    }

    /// Waits for work; false where none came for a while, or the node stops.
    fn linger(&self, state: &mut MutexGuard<'_, State>) -> bool {
        state.idle += 1;
        let timed_out = self.needed.wait_for(state, LINGER).timed_out();
        state.idle -= 1;
        !timed_out && !state.stopping
    }

    /// Nothing more is begun.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
        self.needed.notify_all();
    }

    /// Writes files back as long as that is needed; a thread of the pool also stays for more.
    fn work(self: &Arc<Self>, is_thread: bool) {
        loop {
            let mut state = self.state.lock();
            if let Some(file) = self.begin(&mut state) {
                drop(state);
                let bytes = self.write_one.get().and_then(|write_one| write_one(file));
                self.end(&mut self.state.lock(), file, bytes);
                self.store.trim();
                continue;
            }
            self.changed.notify_all();
            if !is_thread {
                return;
            }
            if !self.linger(&mut state) {
                state.works.threads -= 1;
                return;
            }
        }
    }
}
