//! [`Watch`]: one trace under way, with its filters and the bounded ring of records that wait to be
//! taken. Counts what it drops.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_proto::trace::{
    TRACE_BATCH_MAX, TRACE_LATE, TRACE_RECORDS_MAX, TraceBatch, TraceRecord, microseconds, now_us,
};

/// How often a wait looks whether it shall go on.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of names that one answer carries, so that it fits its frame.
const BATCH_NAME_BYTES_MAX: usize = 1 << 20;

/// Memory that requests may take that wait for their watcher.
const RING_BYTES_MAX: usize = 16 << 20;

/// Whose requests a watcher sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Everybody's: root's and the node's owner's.
    All,
    /// His own.
    Of(u32),
}

impl Sight {
    pub fn sees(self, user_id: u32) -> bool {
        self == Sight::All || self == Sight::Of(user_id)
    }
}

/// A file that is watched: by its number, and by its name for requests that have only that.
#[derive(Debug)]
pub(super) struct WatchedFile {
    pub inode: u64,
    pub path: Option<String>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Watch {
    sight: Sight,
    process_id: Option<u32>,
    file: Option<WatchedFile>,
    /// Requests that begin later are not taken.
    until_us: AtomicU64,
    waiting: Mutex<Ring>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<TraceRecord>,
    /// What they take, names included.
    bytes: usize,
    dropped: u64,
}

/// Bytes that the names of a record take.
fn name_bytes(record: &TraceRecord) -> usize {
    record.path.as_ref().map_or(0, String::len) + record.process.len()
}

fn bytes_of(record: &TraceRecord) -> usize {
    size_of::<TraceRecord>() + name_bytes(record)
}

impl Watch {
    pub fn new(sight: Sight, process_id: Option<u32>, file: Option<WatchedFile>) -> Watch {
        Watch {
            sight,
            process_id,
            file,
            until_us: AtomicU64::new(u64::MAX),
            waiting: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    pub fn sight(&self) -> Sight {
        self.sight
    }

    pub fn wants(&self, record: &TraceRecord) -> bool {
        self.sight.sees(record.user_id)
            && self.process_id.is_none_or(|id| id == record.process_id)
            && self.file.as_ref().is_none_or(|file| {
                file.inode == record.inode || (file.path.is_some() && file.path == record.path)
            })
            && self.takes(record.begun_us)
    }

    /// Whether it takes a request that began then. Clients tell that time, so after the end it is
    /// believed for a moment only.
    fn takes(&self, begun_us: u64) -> bool {
        match self.until_us.load(Ordering::Relaxed) {
            u64::MAX => true,
            until_us => {
                begun_us <= until_us
                    && now_us() <= until_us.saturating_add(microseconds(TRACE_LATE))
            }
        }
    }

    pub fn add(&self, mut record: TraceRecord) {
        if record.hides_path && self.sight != Sight::All {
            record.path = None;
        }
        let mut ring = self.waiting.lock();
        let bytes = ring.bytes + bytes_of(&record);
        if ring.records.len() >= TRACE_RECORDS_MAX || bytes > RING_BYTES_MAX {
            ring.dropped += 1;
            return;
        }
        ring.bytes = bytes;
        ring.records.push_back(record);
        if ring.records.len() == 1 {
            self.arrived.notify_one();
        }
    }

    pub fn note_dropped(&self, requests: u64) {
        let mut ring = self.waiting.lock();
        ring.dropped = ring.dropped.saturating_add(requests);
    }

    pub fn stop(&self) {
        self.until_us.fetch_min(now_us(), Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.until_us.load(Ordering::Relaxed) != u64::MAX
    }

    pub fn next(&self, patience: Duration, go_on: &dyn Fn() -> bool) -> TraceBatch {
        let until = Instant::now() + patience;
        let mut ring = self.waiting.lock();
        while ring.records.is_empty() && Instant::now() < until && go_on() {
            self.arrived.wait_until(&mut ring, until.min(Instant::now() + LOOK));
        }
        let mut names = 0;
        let fitting = ring.records.iter().take(TRACE_BATCH_MAX).take_while(|record| {
            names += name_bytes(record);
            names <= BATCH_NAME_BYTES_MAX
        });
        let count = fitting.count();
        let records: Vec<TraceRecord> = ring.records.drain(..count).collect();
        ring.bytes -= records.iter().map(bytes_of).sum::<usize>();
        TraceBatch { records, dropped: std::mem::take(&mut ring.dropped) }
    }
}

#[cfg(test)]
mod tests {
    use tidepool_proto::trace::{Front, Operation};

    use super::*;

    fn record(user_id: u32, process_id: u32) -> TraceRecord {
        TraceRecord::begun(Front::Mount, Operation::Read, user_id, process_id)
    }

    #[test]
    fn requests_that_are_said_to_be_old_are_taken_for_a_moment_after_the_end() {
        let watch = Watch::new(Sight::All, None, None);
        let old = TraceRecord {
            begun_us: 0,
            ..TraceRecord::begun(Front::Library, Operation::Read, 1, 1)
        };
        watch.stop();
        assert!(watch.wants(&old), "it was under way");
        let before_us = now_us() - microseconds(TRACE_LATE) - 1;
        watch.until_us.store(before_us, Ordering::Relaxed);
        assert!(!watch.wants(&old), "a client that goes on to tell of old requests");
    }

    #[test]
    fn what_nobody_takes_is_dropped_and_counted() {
        let watch = Watch::new(Sight::All, None, None);
        for number in 0..TRACE_RECORDS_MAX + 3 {
            watch.add(TraceRecord { request: number as u64, ..record(0, 1) });
        }
        watch.note_dropped(4);
        let mut next = 0;
        let mut dropped = Vec::new();
        loop {
            let batch = watch.next(Duration::ZERO, &|| true);
            if batch.records.is_empty() {
                break;
            }
            for record in &batch.records {
                assert_eq!(record.request, next, "the first ones are kept, in order");
                next += 1;
            }
            dropped.push(batch.dropped);
        }
        assert_eq!(next, TRACE_RECORDS_MAX as u64);
        assert_eq!((dropped[0], dropped[1..].iter().sum::<u64>()), (7, 0), "told once");
        watch.add(record(0, 1));
        assert_eq!(watch.next(Duration::ZERO, &|| true).records.len(), 1, "there is room again");
    }

    #[test]
    fn a_trace_gets_what_was_asked_for_and_may_be_seen() {
        let of = |record: &TraceRecord, inode, path: &str| TraceRecord {
            inode,
            path: Some(path.to_owned()),
            ..record.clone()
        };
        let own = Watch::new(Sight::Of(7), Some(20), None);
        assert!(own.wants(&record(7, 20)));
        assert!(!own.wants(&record(8, 20)) && !own.wants(&record(7, 21)));
        let file = WatchedFile { inode: 3, path: Some("a/b".to_owned()) };
        let all = Watch::new(Sight::All, None, Some(file));
        assert!(all.wants(&of(&record(8, 21), 3, "renamed")), "by its number");
        assert!(all.wants(&of(&record(8, 21), 0, "a/b")), "by its name");
        assert!(!all.wants(&of(&record(8, 21), 4, "a/c")) && !all.wants(&record(8, 21)));
        all.stop();
        let later = TraceRecord { begun_us: now_us() + 1_000_000, ..record(0, 1) };
        assert!(all.wants(&of(&record(0, 1), 3, "")) || all.is_stopped());
        assert!(!all.wants(&of(&later, 3, "")), "it began after the stop");
    }

    #[test]
    fn another_users_way_to_a_file_is_shown_to_operators_alone() {
        for (sight, shown) in [(Sight::Of(7), None), (Sight::All, Some("secret/name"))] {
            let watch = Watch::new(sight, None, None);
            let path = Some("secret/name".to_owned());
            watch.add(TraceRecord { path, hides_path: true, ..record(7, 20) });
            let batch = watch.next(Duration::ZERO, &|| true);
            assert_eq!(batch.records[0].path.as_deref(), shown);
        }
    }

    #[test]
    fn a_batch_fits_its_frame() {
        let watch = Watch::new(Sight::All, None, None);
        let path = Some("x".repeat(4096));
        for _ in 0..TRACE_BATCH_MAX {
            watch.add(TraceRecord { path: path.clone(), ..record(0, 1) });
        }
        for _ in 0..TRACE_RECORDS_MAX {
            watch.add(TraceRecord { path: path.clone(), ..record(0, 1) });
        }
        let kept = watch.waiting.lock().records.len();
        assert!((TRACE_BATCH_MAX..TRACE_RECORDS_MAX / 8).contains(&kept), "bounded: {kept}");
        let mut taken = 0;
        while taken < kept {
            let count = watch.next(Duration::ZERO, &|| true).records.len();
            assert!((1..=256).contains(&count), "{count}");
            taken += count;
        }
        assert_eq!(watch.waiting.lock().bytes, 0, "all of it is free again");
    }
}
