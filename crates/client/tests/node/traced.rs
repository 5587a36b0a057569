//! Requests of the library as those see them who watch the node: also those that it serves without
//! a message, and nothing while nobody watches.

use std::time::{Duration, Instant};

use tidepool_client::{ClientOptions, OpenOptions};
use tidepool_proto::FileService;
use tidepool_proto::trace::{Front, Operation, ServedBy, TraceRecord, TraceStream, TraceWish};

use crate::place::{NOBODY, Place, as_user, is_root};

const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: usize = 9 << 20;

fn watch(place: &Place, user_id: u32) -> Box<dyn TraceStream> {
    let wish = TraceWish { user_id, process_id: None, file: None };
    place.node.tracer().unwrap().start(wish).unwrap()
}

/// What comes until there is a request of this kind, with that.
fn until(stream: &dyn TraceStream, operation: Operation) -> Vec<TraceRecord> {
    let begun = Instant::now();
    let mut records = Vec::new();
    while !records.iter().any(|record: &TraceRecord| record.operation == operation) {
        assert!(begun.elapsed() < PATIENCE, "no {operation:?} among {records:#?}");
        records.extend(stream.next(Duration::from_millis(20), &|| true).records);
    }
    records
}

fn settled(place: &Place, name: &str) -> std::path::PathBuf {
    let path = place.file(name, &vec![7; BYTES], NOBODY, 0o644);
    // Time stamps settle after a tick; until then nothing is kept.
    std::thread::sleep(Duration::from_millis(100));
    path
}

fn is_on(place: &Place) -> bool {
    place.node.tracer().unwrap().is_on()
}

#[test]
fn misses_wait_for_the_pfs_and_hits_do_not() {
    if !is_root() {
        return;
    }
    let place = Place::with_faults("read:slow=30ms");
    let path = settled(&place, "data");
    let client = place.client();
    let stream = watch(&place, 0);
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; 4096];
    for _ in 0..2 {
        file.read_at(0, &mut buffer).unwrap();
    }
    file.close().unwrap();
    let records = until(&*stream, Operation::Close);
    let seen: Vec<_> = records.iter().map(|it| (it.operation, it.level)).collect();
    let wanted = [
        (Operation::Open, ServedBy::Pfs),
        (Operation::Read, ServedBy::Pfs),
        (Operation::Read, ServedBy::Memory),
        (Operation::Close, ServedBy::Other),
    ];
    assert_eq!(seen, wanted);
    let (miss, hit) = (&records[1], &records[2]);
    assert!(miss.pfs_us >= 30_000 && miss.pfs_us <= miss.elapsed_us, "{miss:?}");
    assert_eq!((hit.pfs_us, hit.bytes, hit.errno), (0, 4096, 0), "{hit:?}");
    for (record, next) in records.iter().zip(&records[1..]) {
        assert!(record.request < next.request && record.begun_us <= next.begun_us);
    }
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
    for record in &records {
        let whose = (record.front, record.user_id, record.process_id);
        assert_eq!(whose, (Front::Library, 0, std::process::id()), "{record:?}");
        assert_eq!((record.path.as_deref(), record.inode), (Some("data"), inode), "{record:?}");
        assert!(!record.process.is_empty());
    }
}

#[test]
fn a_hit_is_told_of_though_nothing_follows_it() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let path = settled(&place, "data");
    let client = place.client_with(ClientOptions { front: Front::Hadoop, ..Default::default() });
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let mut buffer = [0; 100];
    file.read_at(0, &mut buffer).unwrap();
    let stream = watch(&place, 0);
    let held = file.read_held_at(5, &mut buffer).unwrap().unwrap();
    let records = until(&*stream, Operation::Read);
    assert_eq!(records.len(), 1, "{records:#?}");
    let (record, length) = (&records[0], buffer.len() as u64);
    assert_eq!((record.front, record.level), (Front::Hadoop, ServedBy::Memory));
    assert_eq!((record.offset, record.length, record.bytes), (Some(5), Some(length), length));
    assert_eq!(held.bytes, buffer.len());
}

#[test]
fn changes_and_failures_are_told_as_well() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let client = place.client();
    let stream = watch(&place, 0);
    assert!(client.open(place.path("missing"), OpenOptions::read()).is_err());
    let file = client.open(place.path("new"), OpenOptions::read_write()).unwrap();
    file.write_at(3, b"bytes").unwrap();
    file.set_size(4).unwrap();
    file.sync().unwrap();
    let mut buffer = [0; 9];
    assert_eq!(file.read_at(0, &mut buffer).unwrap().bytes, 4);
    file.close().unwrap();
    let records = until(&*stream, Operation::Close);
    let of = |operation| records.iter().filter(move |it| it.operation == operation);
    let opens: Vec<_> = of(Operation::Open).map(|it| (it.path.as_deref(), it.errno)).collect();
    assert_eq!(opens, [(Some("missing"), libc::ENOENT), (Some("new"), 0)]);
    let write = of(Operation::Write).next().unwrap();
    assert_eq!((write.offset, write.bytes, write.level), (Some(3), 5, ServedBy::Pfs));
    assert!(write.pfs_us > 0, "{write:?}");
    assert_eq!(of(Operation::Truncate).next().unwrap().offset, Some(4));
    assert_eq!(of(Operation::Read).next().unwrap().bytes, 4);
    assert_eq!((of(Operation::Sync).count(), of(Operation::Flush).count()), (1, 0), "one close");
}

#[test]
fn nothing_is_recorded_while_nobody_watches() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let path = settled(&place, "data");
    let client = place.client();
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let mut buffer = [0; 100];
    let stream = watch(&place, 0);
    assert!(is_on(&place));
    file.read_at(0, &mut buffer).unwrap();
    stream.stop();
    assert!(!is_on(&place), "told at once, whatever is still to come");
    file.read_at(0, &mut buffer).unwrap();
    assert_eq!(until(&*stream, Operation::Read).len(), 1, "that of before");
    drop(stream);
    let stream = watch(&place, 0);
    assert!(stream.next(Duration::from_millis(250), &|| true).records.is_empty());
}

#[test]
fn a_user_sees_his_own_requests_alone() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let path = settled(&place, "data");
    let own = watch(&place, NOBODY);
    let all = watch(&place, 0);
    let read = |size: usize| {
        let file = place.client().open(&path, OpenOptions::read()).unwrap();
        file.read_at(0, &mut vec![0; size]).unwrap();
    };
    read(10);
    as_user(NOBODY, || read(20));
    let reads = |records: Vec<TraceRecord>| {
        let mut reads: Vec<_> = records
            .into_iter()
            .filter(|record| record.operation == Operation::Read)
            .map(|record| (record.user_id, record.bytes))
            .collect();
        reads.sort_unstable();
        reads
    };
    let mut seen = Vec::new();
    while reads(seen.clone()).len() < 2 {
        seen.extend(until(&*all, Operation::Read));
    }
    assert_eq!(reads(seen), [(0, 10), (NOBODY, 20)]);
    let mut seen = until(&*own, Operation::Close);
    seen.extend(own.next(Duration::from_millis(250), &|| true).records);
    assert!(seen.iter().all(|record| record.user_id == NOBODY), "{seen:#?}");
    assert_eq!(reads(seen), [(NOBODY, 20)]);
}

#[test]
fn what_a_client_cannot_tell_in_time_is_dropped_and_counted() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let path = settled(&place, "data");
    let client = place.client();
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let mut buffer = [0; 1];
    file.read_at(0, &mut buffer).unwrap();
    let stream = watch(&place, 0);
    let reads = 200_000;
    for _ in 0..reads {
        file.read_at(0, &mut buffer).unwrap();
    }
    file.close().unwrap();
    let (mut told, mut dropped, begun) = (0, 0, Instant::now());
    while told + dropped < reads {
        assert!(begun.elapsed() < PATIENCE, "{told} and {dropped}");
        let batch = stream.next(Duration::from_millis(20), &|| true);
        told += batch.records.iter().filter(|it| it.operation == Operation::Read).count() as u64;
        dropped += batch.dropped;
    }
    assert!(told + dropped <= reads + 1, "the close may be among them: {told} and {dropped}");
}
