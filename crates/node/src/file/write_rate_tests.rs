//! Tests of the rate on models of parallel file systems, by a clock of their own.

use super::*;

const MIB: f64 = (1 << 20) as f64;
const PIECE: u64 = 1 << 20;
const READ: u64 = 4 << 20;
const STEP: Duration = Duration::from_millis(1);

/// A PFS, one who reads it again and again, and one who writes all the while.
struct Simulated {
    rate: WriteRate,
    now: Instant,
    /// Bytes a second that it takes.
    takes: f64,
    /// Seconds of a read without writes.
    read_s: f64,
    /// How much a read suffers: it takes `1 + harm * load / (1 - load)` times as long.
    harm: f64,
    /// Part of what it takes that is used, lately.
    load: f64,
    /// The read under way, and which part of it is done.
    read: Option<(Read, f64)>,
    is_read: bool,
    is_written: bool,
    /// When the write under way ends.
    write: Option<Instant>,
    read_count: u64,
    written: u64,
    random: u64,
}

impl Simulated {
    fn new(takes: f64, harm: f64) -> Self {
        let mut rate = WriteRate::new(None);
        rate.begin_file();
        Simulated {
            rate,
            now: Instant::now(),
            takes: takes * MIB,
            read_s: 0.02,
            harm,
            load: 0.0,
            read: None,
            is_read: false,
            is_written: true,
            write: None,
            read_count: 0,
            written: 0,
            random: 1,
        }
    }

    /// What [`run`](Self::run) says of reads where nothing is written.
    fn reads_alone(takes: f64, harm: f64) -> f64 {
        let mut pfs = Simulated::new(takes, harm);
        (pfs.is_read, pfs.is_written) = (true, false);
        pfs.run(60).0
    }

    /// From 0.5 to 1.5.
    fn noise(&mut self) -> f64 {
        let random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = random.wrapping_add(1_442_695_040_888_963_407);
        0.5 + (self.random >> 40) as f64 / (1 << 24) as f64
    }

    fn step(&mut self) {
        self.now += STEP;
        if self.write.is_some_and(|end| end <= self.now) {
            self.write = None;
            self.rate.end_write(self.now);
        }
        if self.is_written && self.write.is_none() && self.rate.take(PIECE, self.now).is_ok() {
            self.rate.begin_write();
            self.written += PIECE;
            self.write = Some(self.now + Duration::from_secs_f64(PIECE as f64 / self.takes));
        }
        let busy = if self.write.is_some() { 1.0 } else { 0.0 };
        // What was written is worked on for a while.
        self.load += (busy - self.load) * 0.03;
        if self.is_read && self.read.is_none() {
            self.read = Some((self.rate.begin_read(self.now), 0.0));
        }
        let load = self.load.min(0.95);
        let slower = 1.0 + self.harm * load / (1.0 - load);
        let done = STEP.as_secs_f64() / (self.read_s * slower) * self.noise();
        if let Some((read, part)) = self.read.as_mut() {
            *part += done;
            if *part >= 1.0 {
                self.rate.end_read(*read, READ, self.now);
                self.read = None;
                self.read_count += 1;
            }
        }
    }

    /// Reads, as a part of those that there would be if each took its time, and bytes written a
    /// second.
    fn run(&mut self, seconds: u64) -> (f64, f64) {
        let (reads, written) = (self.read_count, self.written);
        (0..seconds * 1000).for_each(|_| self.step());
        let most = seconds as f64 / self.read_s;
        let (reads, written) = (self.read_count - reads, self.written - written);
        (reads as f64 / most, written as f64 / seconds as f64)
    }
}

#[test]
fn reads_lose_less_than_a_tenth_and_what_is_owed_gets_on() {
    // What writes do to reads: little, or much.
    for (takes, harm) in [(200.0, 0.3), (200.0, 1.0), (800.0, 1.0), (100.0, 2.0)] {
        let alone = Simulated::reads_alone(takes, harm);
        let mut pfs = Simulated::new(takes, harm);
        let unhindered = pfs.run(5).1;
        pfs.is_read = true;
        // From the first read on, before a rate is found.
        let (reads, written) = pfs.run(60);
        assert!(reads >= 0.9 * alone, "{takes} {harm}: {reads} of {alone}");
        assert!(written >= 0.8 * FLOOR_BYTES_PER_S, "{takes} {harm}: {written}");
        assert!(pfs.rate.limit(pfs.now).is_some());
        // Reads end.
        pfs.is_read = false;
        pfs.run(3);
        assert_eq!(pfs.rate.limit(pfs.now), None);
        let (_, written) = pfs.run(5);
        assert!(written >= 0.99 * unhindered, "{written} of {unhindered}");
    }
}

#[test]
fn where_reads_lose_nothing_the_rate_grows_to_what_the_pfs_takes() {
    let mut pfs = Simulated::new(200.0, 0.0);
    let unhindered = pfs.run(5).1;
    pfs.is_read = true;
    pfs.run(20);
    let (_, written) = pfs.run(20);
    assert!(written > 0.7 * unhindered, "{written} of {unhindered}");
}

#[test]
fn what_is_owed_gets_on_whatever_reads_lose() {
    let mut pfs = Simulated::new(200.0, 1000.0);
    let floor = (pfs.run(5).1 / FLOOR_SHARE).max(FLOOR_BYTES_PER_S);
    pfs.is_read = true;
    pfs.run(20);
    let (_, written) = pfs.run(60);
    // In the turns with writes.
    assert!(written > 0.6 * floor, "{written} of {floor}");
}

#[test]
fn a_pfs_that_is_slower_for_another_reason_is_not_taken_for_one_that_suffers() {
    let mut pfs = Simulated::new(200.0, 0.1);
    pfs.is_read = true;
    pfs.run(20);
    let (_, before) = pfs.run(20);
    pfs.read_s *= 4.0;
    pfs.run(20);
    let (_, after) = pfs.run(20);
    assert!(after > before / 2.0, "{after} after {before}");
}

#[test]
fn a_read_that_hangs_holds_nothing_up() {
    let mut pfs = Simulated::new(200.0, 1.0);
    let unhindered = pfs.run(5).1;
    let hangs = pfs.rate.begin_read(pfs.now);
    pfs.run(10);
    assert!(pfs.run(5).1 >= 0.99 * unhindered);
    pfs.rate.end_read(hangs, READ, pfs.now);
}

#[test]
fn a_cap_holds_whatever_the_pfs_takes() {
    let mut rate = WriteRate::new(Some(8 << 20));
    rate.begin_file();
    let begun = Instant::now();
    let (mut now, mut pieces) = (begun, 0);
    while now < begun + Duration::from_secs(10) {
        match rate.take(PIECE, now) {
            Ok(()) => pieces += 1,
            Err(wait) => now += wait.min(Duration::from_millis(7)),
        }
    }
    assert!((79..=81).contains(&pieces), "{pieces}");
    assert_eq!(rate.limit(now), Some(8 << 20));
    let mut rate = WriteRate::new(Some(1));
    assert_eq!(rate.take(PIECE, begun), Ok(()));
    assert!(rate.take(1, begun).unwrap_err() > Duration::from_secs(3600));
}
