//! What this node holds, and what it still has to tell the homes of it.
//!
//! News are states, not steps: an announcement says which blocks of a chunk are held now. So news
//! that were lost, or came twice, are mended by saying them again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::hash::Map;
use crate::membership::MemberIndex;
use crate::message::{self, Action, Announcer, Life, News};
use crate::table::Version;
use crate::{Settings, Time};

/// First pause after a call that failed, doubled with each further one.
const RETRY: Duration = Duration::from_millis(100);
/// Longest pause after calls that failed.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a call may stay without an outcome.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Room that is left in an announcement for its last news.
const SLACK_BYTES: usize = 4 << 10;
/// Reports about blocks that were not held, kept for a home at most.
const REPORTS_MAX: usize = 1_024;

/// Blocks held of a file.
pub(crate) struct Held {
    pub version: Version,
    pub home: MemberIndex,
    /// Chunks and their blocks, in order, none without blocks.
    pub chunks: Vec<(u32, u16)>,
}

impl Held {
    /// What is held of the chunks now.
    pub(crate) fn states(&self, chunks: &[u32]) -> Vec<(u32, u16)> {
        let bits = |chunk: u32| {
            let found = self.chunks.binary_search_by_key(&chunk, |&(chunk, _)| chunk);
            found.map_or(0, |at| self.chunks[at].1)
        };
        chunks.iter().map(|&chunk| (chunk, bits(chunk))).collect()
    }
}

/// What a home has to be told of a file.
enum Pending {
    /// Everything.
    All,
    /// The state of these chunks.
    Chunks(Vec<u32>),
}

/// A call that has no outcome yet.
struct Flight {
    files: Vec<u64>,
    reset: bool,
    since: Time,
}

/// What a home has to be told.
#[derive(Default)]
struct Queue {
    order: VecDeque<u64>,
    pending: Map<u64, Pending>,
    reports: Vec<News>,
    /// The home has to forget first what it heard of this node before.
    reset: bool,
    /// Pieces of news that wait.
    waiting: usize,
    /// Since when the first of them waits.
    since: Option<Time>,
    not_before: Time,
    flight: Option<Flight>,
    failures: u32,
}

/// What this node holds.
pub(crate) struct Holdings {
    held: Map<u64, Held>,
    queues: BTreeMap<MemberIndex, Queue>,
    in_flight: usize,
    number: u64,
    delay: Duration,
    batch_max: usize,
    entries_max: usize,
    pause: Duration,
    calls_max: usize,
}

impl Queue {
    fn add(&mut self, now: Time, key: u64, chunks: Option<&[u32]>) {
        self.waiting += chunks.map_or(1, <[u32]>::len);
        self.since.get_or_insert(now);
        match (self.pending.get_mut(&key), chunks) {
            (None, _) => {
                let pending = chunks.map_or(Pending::All, |chunks| Pending::Chunks(chunks.into()));
                self.pending.insert(key, pending);
                self.order.push_back(key);
            }
            (Some(pending), None) => *pending = Pending::All,
            (Some(Pending::All), Some(_)) => {}
            (Some(Pending::Chunks(known)), Some(chunks)) => {
                for chunk in chunks {
                    if !known.contains(chunk) {
                        known.push(*chunk);
                    }
                }
                // Searching a long list costs more than saying all.
                if known.len() > 256 {
                    self.pending.insert(key, Pending::All);
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.reports.is_empty() && !self.reset
    }

    /// When it wants to be sent.
    fn due(&self, delay: Duration, batch_max: usize) -> Option<Time> {
        if self.flight.is_some() || self.is_idle() {
            return None;
        }
        let since = self.since.unwrap_or(self.not_before);
        let ripe = if self.waiting >= batch_max { since } else { since + delay };
        Some(ripe.max(self.not_before))
    }
}

impl Holdings {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            held: Map::default(),
            queues: BTreeMap::new(),
            in_flight: 0,
            number: 0,
            delay: settings.announce_delay,
            batch_max: settings.announce_batch_max.max(1),
            entries_max: settings.announce_entries_max.max(1),
            pause: settings.reannounce_pause,
            calls_max: settings.announce_calls_max.max(1),
        }
    }

    pub(crate) fn files(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Held> {
        self.held.get(&key)
    }

    /// Takes blocks in; tells what changed.
    pub(crate) fn hold(
        &mut self,
        key: u64,
        version: Version,
        home: MemberIndex,
        chunks: &[(u32, u16)],
    ) -> Change {
        let fresh = || Held { version, home, chunks: Vec::new() };
        let mut change = Change::Chunks;
        let held = self.held.entry(key).or_insert_with(|| {
            change = Change::All;
            fresh()
        });
        if version.ctime_ns < held.version.ctime_ns {
            return Change::None;
        }
        if version != held.version {
            let home = held.home;
            *held = Held { home, ..fresh() };
            change = Change::All;
        }
        for &(chunk, bits) in chunks {
            match held.chunks.binary_search_by_key(&chunk, |&(chunk, _)| chunk) {
                Ok(at) => held.chunks[at].1 |= bits,
                Err(at) => held.chunks.insert(at, (chunk, bits)),
            }
        }
        change
    }

    /// Lets blocks go; tells what changed.
    pub(crate) fn release(
        &mut self,
        key: u64,
        version: Version,
        chunks: &[(u32, u16)],
    ) -> (Change, MemberIndex) {
        let Some(held) = self.held.get_mut(&key).filter(|held| held.version == version) else {
            return (Change::None, 0);
        };
        for &(chunk, bits) in chunks {
            if let Ok(at) = held.chunks.binary_search_by_key(&chunk, |&(chunk, _)| chunk) {
                held.chunks[at].1 &= !bits;
            }
        }
        held.chunks.retain(|&(_, bits)| bits != 0);
        let home = held.home;
        if held.chunks.is_empty() {
            self.held.remove(&key);
            return (Change::All, home);
        }
        (Change::Chunks, home)
    }

    /// Lets a file go; tells its home.
    pub(crate) fn release_file(&mut self, key: u64) -> Option<MemberIndex> {
        self.held.remove(&key).map(|held| held.home)
    }

    /// The home has to be told of chunks of the file, or of all of it.
    pub(crate) fn tell(&mut self, now: Time, home: MemberIndex, key: u64, chunks: Option<&[u32]>) {
        self.queues.entry(home).or_default().add(now, key, chunks);
    }

    /// The home has to be told that a holder did not have a block.
    pub(crate) fn report(&mut self, now: Time, home: MemberIndex, news: News) {
        let queue = self.queues.entry(home).or_default();
        if queue.reports.len() < REPORTS_MAX {
            queue.reports.push(news);
            queue.waiting += 1;
            queue.since.get_or_insert(now);
        }
    }

    /// Asks `home` for each file that is held, with its home, which one is to be told all of it.
    /// Returns the files for which it gave one, with the home before and the one that it gave.
    pub(crate) fn rehome(
        &mut self,
        mut home: impl FnMut(u64, MemberIndex) -> Option<MemberIndex>,
    ) -> Vec<Moved> {
        let mut moved = Vec::new();
        for (&key, held) in &mut self.held {
            if let Some(to) = home(key, held.home) {
                let from = std::mem::replace(&mut held.home, to);
                moved.push(Moved { key, from, to });
            }
        }
        moved
    }

    /// A member is down: what it was to be told is void. A call to it may still be under way.
    pub(crate) fn clear_queue(&mut self, member: MemberIndex) {
        let Some(queue) = self.queues.remove(&member) else { return };
        if let Some(flight) = queue.flight {
            let flight = Flight { files: Vec::new(), reset: false, ..flight };
            self.queues.insert(member, Queue { flight: Some(flight), ..Queue::default() });
        }
    }

    /// The member heard of this node before, and has to forget it.
    pub(crate) fn reset(&mut self, now: Time, member: MemberIndex) {
        let queue = self.queues.entry(member).or_default();
        queue.reset = true;
        queue.since.get_or_insert(now);
    }

    /// When something is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let calls = self.queues.values().filter_map(|queue| queue.flight.as_ref());
        let late = calls.map(|flight| flight.since + CALL_TIME_MAX).min();
        let dues = self.queues.values().filter_map(|queue| queue.due(self.delay, self.batch_max));
        let due = if self.in_flight < self.calls_max { dues.min() } else { None };
        late.into_iter().chain(due).min()
    }

    /// Calls that are due.
    pub(crate) fn calls(&mut self, now: Time, life: Life) -> Vec<(MemberIndex, Vec<u8>)> {
        let is_late = |queue: &Queue| {
            queue.flight.as_ref().is_some_and(|flight| flight.since + CALL_TIME_MAX <= now)
        };
        let late = self.queues.iter().filter(|(_, queue)| is_late(queue));
        let late: Vec<MemberIndex> = late.map(|(&home, _)| home).collect();
        for home in late {
            self.failed(now, home);
        }
        let mut calls = Vec::new();
        for (&home, queue) in &mut self.queues {
            if self.in_flight >= self.calls_max {
                break;
            }
            if queue.due(self.delay, self.batch_max).is_some_and(|due| due <= now) {
                self.number += 1;
                let announcer = Announcer { life, number: self.number };
                let request = queue.request(now, home, announcer, &self.held, self.entries_max);
                if !queue.pending.is_empty() {
                    queue.not_before = now + self.pause;
                }
                self.in_flight += 1;
                calls.push((home, request));
            }
        }
        calls
    }

    /// A call was answered: the home took it.
    pub(crate) fn taken(&mut self, member: MemberIndex) {
        if let Some(queue) = self.queues.get_mut(&member)
            && queue.flight.take().is_some()
        {
            self.in_flight -= 1;
            queue.failures = 0;
            if queue.is_idle() {
                self.queues.remove(&member);
            }
        }
    }

    /// A call failed, or was refused: what it said is said again later. False without a call.
    pub(crate) fn failed(&mut self, now: Time, member: MemberIndex) -> bool {
        let Some(queue) = self.queues.get_mut(&member) else { return false };
        let Some(flight) = queue.flight.take() else { return false };
        self.in_flight -= 1;
        queue.reset |= flight.reset;
        for key in flight.files {
            queue.add(now, key, None);
        }
        let pause = RETRY * 2_u32.pow(queue.failures.min(6));
        queue.failures += 1;
        queue.not_before = now + pause.min(RETRY_MAX);
        true
    }
}

/// A file of which a home is to be told all.
pub(crate) struct Moved {
    pub key: u64,
    /// The home before; maybe the same.
    pub from: MemberIndex,
    pub to: MemberIndex,
}

/// What a call changed of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing.
    None,
    /// The chunks that were named.
    Chunks,
    /// The file came, went or became another version.
    All,
}

impl Queue {
    /// The next announcement; it is in flight from now on.
    fn request(
        &mut self,
        now: Time,
        home: MemberIndex,
        announcer: Announcer,
        held: &Map<u64, Held>,
        entries_max: usize,
    ) -> Vec<u8> {
        let mut bytes = message::announcement(announcer);
        let reset = std::mem::take(&mut self.reset);
        if reset {
            bytes = message::append(bytes, &blank(0, Action::Reset), &[]);
        }
        let mut files = Vec::new();
        let mut left = entries_max;
        while left > 0 && bytes.len() + SLACK_BYTES < message::REQUEST_BYTES_MAX {
            let Some(key) = self.order.pop_front() else { break };
            let Some(pending) = self.pending.remove(&key) else { continue };
            files.push(key);
            let held = held.get(&key).filter(|held| held.home == home);
            let Some(held) = held else {
                bytes = message::append(bytes, &blank(key, Action::Forget), &[]);
                left -= 1;
                continue;
            };
            // A pair takes at most 8 bytes.
            let room = left.min((message::REQUEST_BYTES_MAX - bytes.len() - 256) / 8);
            let (action, mut chunks) = match pending {
                Pending::All => (Action::Replace, held.chunks.clone()),
                Pending::Chunks(chunks) => (Action::Update, held.states(&chunks)),
            };
            if chunks.len() > room {
                let rest: Vec<u32> = chunks.drain(room..).map(|(chunk, _)| chunk).collect();
                self.pending.insert(key, Pending::Chunks(rest));
                self.order.push_front(key);
            }
            left -= chunks.len().max(1).min(left);
            let Version { ctime_ns, tag } = held.version;
            let count = u32::try_from(chunks.len()).expect("bounded by entries_max");
            let news = News { key, ctime_ns, tag, action, chunks: count };
            bytes = message::append(bytes, &news, &chunks);
        }
        while bytes.len() + 256 < message::REQUEST_BYTES_MAX {
            let Some(report) = self.reports.pop() else { break };
            bytes = message::append(bytes, &report, &[]);
        }
        if self.pending.is_empty() {
            self.order.clear();
        }
        self.waiting = self.pending.len();
        self.since = (!self.is_idle()).then_some(now);
        self.flight = Some(Flight { files, reset, since: now });
        bytes
    }
}

const fn blank(key: u64, action: Action) -> News {
    News { key, ctime_ns: 0, tag: 0, action, chunks: 0 }
}
