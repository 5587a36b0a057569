//! [`WriteRate`]: how fast files are written to the PFS that nobody waits for, so that reads of it
//! by this node lose little.
//!
//! While there are reads, two kinds of time take turns: a short one without such writes, and a
//! longer one with them. What reads of some size take in the first is what they would take, and how
//! much longer they take in the second is what they lose by the writes. The rate of the next turn
//! follows from that. A baseline of longer ago would say little: how many read at a time, and what
//! other nodes do to the PFS, changes all the while. Without reads only the cap holds.
//!
//! Pure: it is told the time, and the [`background`](super::background) waits.

use std::time::{Duration, Instant};

/// Part by which reads may take longer while there are writes. They are to lose no more than a
/// tenth, and part of that goes by until a rate that is too high is found out.
const SLOWER: f64 = 0.08;
/// A turn in which reads take so much longer ends before its time.
const MUCH_SLOWER: f64 = 0.5;
/// The rate changes by no more than these factors from turn to turn.
const LEAST: f64 = 0.25;
const MOST: f64 = 1.25;
/// The same as long as reads never lost anything by it.
const MOST_AT_FIRST: f64 = 2.0;
/// No rate is lower. In an hour that is 14 GiB, the memory that jobs write in one burst; at less
/// the buffers are full at the next burst, whose writers then wait for the PFS.
pub const FLOOR_BYTES_PER_S: f64 = (4 << 20) as f64;
/// Nor lower than one part in so many of what the PFS takes where nobody reads: that costs reads
/// about as small a part, and what the PFS takes in a minute is there in half an hour.
const FLOOR_SHARE: f64 = 32.0;
/// The first rate is one part in so many of that.
const FIRST_SHARE: f64 = 4.0;
/// A turn without writes takes as long as so many reads do, within these bounds; up to the last
/// one where no read has ended.
const READS: u32 = 16;
const QUIET: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
const QUIET_MAX: Duration = Duration::from_secs(5);
/// A turn with writes takes so many times as long.
const WRITING: u32 = 5;
/// What was written last is on its way for this time.
const SETTLING: Duration = Duration::from_millis(50);
/// A read that takes longer hangs, and has no part in this.
const READ_HANGS: Duration = Duration::from_secs(10);
/// After the last read, and after the last file, it is as if there were more for this time.
const READS_GO_ON: Duration = Duration::from_secs(2);
const FILES_GO_ON: Duration = Duration::from_millis(500);
/// Time that a rate may be late by, to catch up with: no thread wakes in time.
const LATE_S: f64 = 0.02;
/// The shortest time over which the PFS is measured, and the longest without a write in it.
const MEASURED: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// Weight of what a time without writes had before, in reads.
const BEFORE: f64 = 4.0;
/// How long to wait where no time is known.
const A_WHILE: Duration = Duration::from_millis(100);

/// What there is now.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// No reads, or nothing to write.
    #[default]
    Open,
    /// Reads alone.
    Quiet,
    /// Both.
    Writing,
}

/// Seconds that reads took together, and how many they were.
type Reads = (f64, f64);

/// Reads of like sizes.
#[derive(Clone, Copy, Default)]
struct Class {
    /// Seconds that one takes without writes; 0: not known.
    takes: f64,
    /// Those of the present turn without writes, and of the last one with them.
    alone: Reads,
    beside: Reads,
}

impl Class {
    /// A turn without writes is over.
    fn fold(&mut self) {
        let (took, count) = std::mem::take(&mut self.alone);
        if count > 0.0 {
            let before = if self.takes > 0.0 { BEFORE } else { 0.0 };
            self.takes = (self.takes * before + took) / (before + count);
        }
    }
}

/// A read of the PFS that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    began: Instant,
    turn: u64,
}

/// The present turn, and what was seen in it.
#[derive(Default)]
struct Seen {
    turn: Turn,
    /// Counts turns.
    number: u64,
    since: Option<Instant>,
    /// Reads that ended and tell something.
    reads: u32,
    written: u64,
}

/// See the module's documentation.
pub struct WriteRate {
    /// Most bytes a second, whatever reads do.
    cap: Option<f64>,
    /// Bytes a second while there are reads; 0 before the first.
    rate: f64,
    /// Reads lost something by it once.
    is_found: bool,
    /// Bytes a second that the PFS took where nobody read, and what is measured now.
    unhindered: f64,
    measured: Option<(Instant, Instant, u64)>,
    /// Bytes that were written too early, and when that was so.
    debt: (f64, Option<Instant>),
    seen: Seen,
    /// How long the last quiet turn was.
    quiet: Duration,
    /// Bytes a second of the turn with writes before this one, and whether no read ended in it
    /// though some had begun.
    wrote: Option<(f64, bool)>,
    /// By the power of two below their sizes.
    classes: [Class; 64],
    /// Reads, files and writes under way, and when the last one ended; of reads, or began.
    reads: UnderWay,
    files: UnderWay,
    writes: UnderWay,
}

#[derive(Clone, Copy, Default)]
struct UnderWay(u32, Option<Instant>);

impl UnderWay {
    fn end(&mut self, now: Instant) {
        *self = UnderWay(self.0 - 1, Some(now));
    }

    /// Whether there are any, or were until so long ago.
    fn is_within(self, now: Instant, limit: Duration) -> bool {
        self.0 > 0 || self.1.is_some_and(|at| now.saturating_duration_since(at) < limit)
    }
}

impl WriteRate {
    /// Nothing is known yet.
    pub fn new(cap_bytes_per_s: Option<u64>) -> Self {
        let none = UnderWay::default();
        WriteRate {
            cap: cap_bytes_per_s.map(|cap| cap.max(1) as f64),
            rate: 0.0,
            is_found: false,
            unhindered: 0.0,
            measured: None,
            debt: (0.0, None),
            seen: Seen::default(),
            quiet: QUIET.0,
            wrote: None,
            classes: [Class::default(); 64],
            reads: none,
            files: none,
            writes: none,
        }
    }

    /// Bytes a second that are held to now; `None`: as many as the PFS takes.
    pub fn limit(&self, now: Instant) -> Option<u64> {
        let held = (self.rate > 0.0 && self.has_reads(now)).then_some(self.rate);
        held.into_iter().chain(self.cap).reduce(f64::min).map(|limit| limit as u64)
    }

    /// A read begins.
    pub fn begin_read(&mut self, now: Instant) -> Read {
        self.reads = UnderWay(self.reads.0 + 1, Some(now));
        self.go_on(now);
        Read { began: now, turn: self.seen.number }
    }

    /// A read of so many bytes ended.
    pub fn end_read(&mut self, read: Read, bytes: u64, now: Instant) {
        self.reads.end(now);
        let seen = &mut self.seen;
        if bytes == 0 || read.turn != seen.number {
            return;
        }
        let took = now.saturating_duration_since(read.began).as_secs_f64();
        let class = &mut self.classes[bytes.ilog2() as usize];
        let reads = match seen.turn {
            Turn::Writing => &mut class.beside,
            _ if self.writes.is_within(read.began, SETTLING) => return,
            _ => &mut class.alone,
        };
        *reads = (reads.0 + took, reads.1 + 1.0);
        seen.reads += 1;
    }

    /// A file is about to be written.
    pub fn begin_file(&mut self) {
        self.files.0 += 1;
    }

    /// It is.
    pub fn end_file(&mut self, now: Instant) {
        self.files.end(now);
    }

    /// Takes the right to write so many bytes, or tells how long that is not to be had. Whoever
    /// gets it writes at once.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Result<(), Duration> {
        self.go_on(now);
        let held = match self.seen.turn {
            Turn::Quiet => return Err(A_WHILE),
            Turn::Writing => Some(self.rate),
            Turn::Open => None,
        };
        let Some(limit) = held.into_iter().chain(self.cap).reduce(f64::min) else {
            self.debt = (0.0, None);
            self.measure(bytes, now);
            return Ok(());
        };
        let (mut debt, at) = self.debt;
        if let Some(at) = at {
            let paid = limit * now.saturating_duration_since(at).as_secs_f64();
            debt = (debt - paid).max(-limit * LATE_S);
        }
        self.debt = (debt, Some(now));
        if debt > 0.0 {
            return Err(Duration::try_from_secs_f64(debt / limit).unwrap_or(Duration::MAX));
        }
        self.debt.0 += bytes as f64;
        self.seen.written += bytes;
        Ok(())
    }

    /// Bytes are written, with the right to it or because somebody waits for them.
    pub fn begin_write(&mut self) {
        self.writes.0 += 1;
    }

    /// They are.
    pub fn end_write(&mut self, now: Instant) {
        self.writes.end(now);
    }

    fn has_reads(&self, now: Instant) -> bool {
        let UnderWay(count, at) = self.reads;
        let limit = if count > 0 { READ_HANGS } else { READS_GO_ON };
        UnderWay(0, at).is_within(now, limit)
    }

    /// Begins the next turn where it is time.
    fn go_on(&mut self, now: Instant) {
        let has_both = self.files.is_within(now, FILES_GO_ON) && self.has_reads(now);
        let Seen { turn, since, reads, written, number } = self.seen;
        let elapsed = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let is_over = || {
            let is_much_slower = || self.slower().is_some_and(|slower| slower > MUCH_SLOWER);
            elapsed >= self.quiet * WRITING || reads >= READS && is_much_slower()
        };
        let next = match turn {
            _ if !has_both => Turn::Open,
            Turn::Open => Turn::Quiet,
            Turn::Quiet if self.is_quiet_over(elapsed) => Turn::Writing,
            Turn::Writing if is_over() => Turn::Quiet,
            same => same,
        };
        // An open turn may be long: what reads took before is forgotten all the same.
        if next == turn && (next != Turn::Open || reads < READS) {
            return;
        }
        if turn == Turn::Writing {
            let is_stuck = reads == 0 && self.reads.0 > 0;
            self.wrote = Some((written as f64 / elapsed.as_secs_f64(), is_stuck));
        } else {
            self.classes.iter_mut().for_each(Class::fold);
        }
        if next == Turn::Writing {
            self.quiet = elapsed;
            self.adapt();
        }
        if next != Turn::Quiet {
            self.wrote = None;
            self.classes.iter_mut().for_each(|class| class.beside = Reads::default());
        }
        self.seen = Seen { turn: next, number: number + 1, since: Some(now), ..Seen::default() };
        self.measured = None;
    }

    /// By which part reads beside writes take longer than alone, as far as that is known.
    fn slower(&self) -> Option<f64> {
        let known = self.classes.iter().filter(|class| class.takes > 0.0);
        let (took, alone) = known.fold((0.0, 0.0), |(took, alone), Class { takes, beside, .. }| {
            (took + beside.0, alone + takes * beside.1)
        });
        (alone > 0.0).then(|| took / alone - 1.0)
    }

    fn is_quiet_over(&self, elapsed: Duration) -> bool {
        let (least, most) = QUIET;
        match self.seen.reads {
            0 if self.reads.0 > 0 => elapsed >= QUIET_MAX,
            READS.. => elapsed >= least,
            _ => elapsed >= most,
        }
    }

    fn floor(&self) -> f64 {
        (self.unhindered / FLOOR_SHARE).max(FLOOR_BYTES_PER_S)
    }

    /// The rate of the next turn: follows what reads lost in the last one, compared with those
    /// that came after it. Where these are as slow, the writes were not why.
    fn adapt(&mut self) {
        let floor = self.floor();
        let first = if self.is_found { 0.0 } else { self.unhindered / FIRST_SHARE };
        self.rate = self.rate.max(floor).max(first);
        let Some((achieved, is_stuck)) = self.wrote else { return };
        let slower = if is_stuck { Some(MUCH_SLOWER) } else { self.slower() };
        let Some(slower) = slower else { return };
        // The square root: near its limits a PFS gets slower by more than what is added.
        let factor = (SLOWER / slower.max(SLOWER / 16.0)).sqrt().max(LEAST);
        if slower > SLOWER {
            self.is_found = true;
            self.rate = self.rate.min(achieved.max(floor)) * factor;
        } else if achieved > self.rate / 2.0 {
            let is_far = !self.is_found && slower < SLOWER / 2.0;
            self.rate *= factor.min(if is_far { MOST_AT_FIRST } else { MOST });
        }
        self.rate = self.rate.max(floor);
    }

    /// What the PFS takes while nobody reads.
    fn measure(&mut self, bytes: u64, now: Instant) {
        let (least, most) = MEASURED;
        let (begun, last, before) = self.measured.unwrap_or((now, now, 0));
        let elapsed = now.saturating_duration_since(begun);
        if elapsed >= least && now.saturating_duration_since(last) < most {
            let seen = before as f64 / elapsed.as_secs_f64();
            self.unhindered = seen.max(self.unhindered * 0.9 + seen * 0.1);
        }
        let goes_on = elapsed < least;
        let (begun, before) = if goes_on { (begun, before) } else { (now, 0) };
        self.measured = Some((begun, now, before + bytes));
    }
}

#[cfg(test)]
#[path = "write_rate_tests.rs"]
mod tests;
