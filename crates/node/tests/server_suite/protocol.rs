//! What a well-behaved client gets from the socket server, spoken by hand.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use crate::fake::BLOCK_BYTES;
use crate::raw::{Scene, eventually, pattern};
use rustix::fs::{MemfdFlags, SealFlags};
use tidepool_node::server::ServerLimits;
use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::wire::{Reply, Request, Want, WriteSource};
use tidepool_proto::{Access, ErrorKind, Level};

fn read(handle: u64, offset: u64, length: u32, want: Want) -> Request {
    Request::Read { handle, offset, length, want }
}

#[test]
fn a_file_is_opened_filled_and_read_from_its_segment() {
    let scene = Scene::new(ServerLimits::default());
    let (path, bytes) = scene.file("large", 3 * BLOCK_BYTES as usize + 100);
    let mut raw = scene.connect();
    let file = File::open(&path).unwrap();
    let (reply, frame) = raw.call(&crate::raw::open_request(Access::Read), &[], &[file.as_fd()]);
    let Reply::Opened(opened) = reply else { panic!("{reply:?}") };
    assert_eq!((opened.size, opened.version), (bytes.len() as u64, crate::fake::version_of(&file)));
    assert_eq!(opened.segment.unwrap().block_bytes, BLOCK_BYTES);
    let [segment, _table, _touches] = <[_; 3]>::try_from(frame.descriptors).unwrap();

    let (reply, _) = raw.call(&read(opened.handle, BLOCK_BYTES, 1 << 20, Want::Resident), &[], &[]);
    let expected = bytes.len() as u64 - BLOCK_BYTES;
    let Reply::Resident { bytes: resident, levels } = reply else { panic!("{reply:?}") };
    assert_eq!((resident, levels.get(Level::Pfs)), (expected, expected));
    let mut copy = vec![0; expected as usize];
    File::from(segment).read_exact_at(&mut copy, BLOCK_BYTES).unwrap();
    assert_eq!(copy, bytes[BLOCK_BYTES as usize..]);

    let (reply, frame) = raw.call(&read(opened.handle, 7, 5000, Want::Inline), &[], &[]);
    assert!(matches!(reply, Reply::Data { .. }));
    assert_eq!(frame.payload, bytes[7..5007]);
    let (_, frame) = raw.call(&read(opened.handle, 1 << 40, 5, Want::Inline), &[], &[]);
    assert!(frame.payload.is_empty(), "beyond the end there is nothing");

    raw.send(&Request::Close { handle: opened.handle, mapped_bytes: 42 }, &[], &[]);
    eventually("closed", || scene.server.counts().handles == 0);
    assert_eq!(scene.node.mapped_bytes.load(Ordering::SeqCst), 42);
    drop(raw);
    scene.wait_until_idle();
}

#[test]
fn touch_marks_reach_the_node() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("touched", 3 * BLOCK_BYTES as usize);
    let mut raw = scene.connect();
    let file = File::open(&path).unwrap();
    let open = crate::raw::open_request(Access::Read);
    let (_, frame) = raw.call(&open, &[], &[file.as_fd()]);
    let touches = File::from(frame.descriptors.into_iter().next_back().unwrap());
    touches.write_all_at(&[1, 0, 1], 0).unwrap();
    assert_eq!(scene.node.take_touches(), 2);
    assert_eq!(scene.node.take_touches(), 0);
    raw.call(&read(1, 0, 1, Want::Resident), &[], &[]);
    scene.node.evict_some(0);
    assert_eq!(scene.node.fills.load(Ordering::SeqCst), 1);
}

#[test]
fn small_files_come_along_with_the_open() {
    let scene = Scene::new(ServerLimits::default());
    for length in [0, 1, 4096] {
        let (path, bytes) = scene.file("small", length);
        let mut raw = scene.connect();
        let file = File::open(&path).unwrap();
        let (reply, frame) =
            raw.call(&crate::raw::open_request(Access::Read), &[], &[file.as_fd()]);
        let Reply::Opened(opened) = reply else { panic!("{reply:?}") };
        assert!(opened.segment.is_none() && frame.descriptors.is_empty());
        assert_eq!(opened.inline.unwrap().total(), length as u64);
        assert_eq!(frame.payload, bytes);
    }
}

#[test]
fn writes_come_by_payload_and_by_transfer_buffer() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("written", 10);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut raw = scene.connect();
    let handle = raw.open(&file, Access::ReadWrite).unwrap().handle;
    let source = WriteSource::Payload;
    let (reply, _) = raw.call(&Request::Write { handle, offset: 4, source }, b"payload", &[]);
    assert_eq!(reply, Reply::Written { offset: 4 });

    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let buffer = File::from(rustix::fs::memfd_create("buffer", flags).unwrap());
    let bytes = pattern(1 << 20);
    buffer.write_all_at(&bytes, 0).unwrap();
    rustix::fs::fcntl_add_seals(&buffer, SealFlags::SHRINK).unwrap();
    assert_eq!(raw.call(&Request::RegisterBuffer, &[], &[buffer.as_fd()]).0, Reply::Done);
    let source = WriteSource::Buffer { offset: 0, length: 1 << 20 };
    let (reply, _) = raw.call(&Request::Write { handle, offset: 11, source }, &[], &[]);
    assert_eq!(reply, Reply::Written { offset: 11 });
    assert_eq!(raw.call(&Request::Flush { handle }, &[], &[]).0, Reply::Done);
    let Reply::Facts { size, version } = raw.call(&Request::Facts { handle }, &[], &[]).0 else {
        panic!("no facts")
    };
    assert_eq!((size, version.size), (11 + (1 << 20), 11 + (1 << 20)));
    let written = std::fs::read(&path).unwrap();
    assert_eq!(&written[4..11], b"payload");
    assert_eq!(written[11..], bytes);

    let beyond = WriteSource::Buffer { offset: 1, length: 1 << 20 };
    let request = Request::Write { handle, offset: 0, source: beyond };
    assert_eq!(raw.error(&request, &[], &[]), ErrorKind::InvalidInput);
    assert_eq!(std::fs::read(&path).unwrap(), written, "nothing of it was written");
    assert_eq!(raw.call(&Request::SetSize { handle, size: 3 }, &[], &[]).0, Reply::Done);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3);
}

#[test]
fn a_request_that_waits_does_not_hold_up_others_of_its_client() {
    let scene = Scene::new(ServerLimits::default());
    let (path, bytes) = scene.file("slow", 2 * BLOCK_BYTES as usize);
    let mut raw = scene.connect();
    let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
    scene.node.hold_reads.set(true);
    raw.send(&read(handle, 0, 100, Want::Inline), &[], &[]);
    // Answered although the read before it waits.
    raw.send(&Request::Facts { handle }, &[], &[]);
    let frame = raw.receive().unwrap();
    let reply = tidepool_proto::wire::decode_reply(&frame.body).unwrap();
    assert!(matches!(reply, Reply::Facts { .. }), "{reply:?}");
    scene.node.hold_reads.set(false);
    assert_eq!(raw.receive().unwrap().payload, bytes[..100]);
}

#[test]
fn a_loan_pins_until_it_is_given_back() {
    let limits = ServerLimits { borrowed_bytes_per_user_max: 100_000, ..ServerLimits::default() };
    let scene = Scene::new(limits);
    let (path, bytes) = scene.file("lent", 4 * BLOCK_BYTES as usize);
    let mut raw = scene.connect();
    let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
    let borrow = |offset, length| Request::Borrow { handle, offset, length };
    let (reply, mut frame) = raw.call(&borrow(1000, 80_000), &[], &[]);
    let Reply::Borrowed { borrow: number, bytes: 80_000, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(scene.server.counts().borrowed_bytes, 80_000);
    let segment = File::from(frame.descriptors.pop().unwrap());
    scene.node.evict_all();
    let mut copy = vec![0; 80_000];
    segment.read_exact_at(&mut copy, 1000).unwrap();
    assert_eq!(copy, bytes[1000..81_000], "a pinned range does not go away");
    assert_eq!(raw.error(&borrow(0, 80_000), &[], &[]), ErrorKind::LimitReached);
    raw.send(&Request::Release { borrow: number }, &[], &[]);
    assert!(matches!(raw.call(&borrow(0, 80_000), &[], &[]).0, Reply::Borrowed { .. }));
    drop(raw);
    scene.wait_until_idle();
    scene.node.evict_all();
    segment.read_exact_at(&mut copy, 1000).unwrap();
    assert!(copy.iter().all(|byte| *byte == 0), "the pins of a client go with it");
}

#[test]
fn administrative_requests_are_answered() {
    let scene = Scene::new(ServerLimits::default());
    let (path, bytes) = scene.file("loaded", 1234);
    let mut raw = scene.connect();
    let reply = raw.call(&Request::Admin(AdminRequest::Status), &[], &[]).0;
    let Reply::Admin(AdminReply::Status(status)) = reply else { panic!("{reply:?}") };
    assert_eq!(status.process_id, std::process::id());
    let file = File::open(&path).unwrap();
    let load = Request::Admin(AdminRequest::Load);
    let reply = raw.call(&load, &[], &[file.as_fd()]).0;
    let Reply::Admin(AdminReply::Loaded(report)) = reply else { panic!("{reply:?}") };
    assert_eq!(report.size_bytes, bytes.len() as u64);
    assert_eq!(raw.error(&load, &[], &[]), ErrorKind::InvalidInput, "without a descriptor");
    let reply = raw.call(&Request::Admin(AdminRequest::Metrics), &[], &[]).0;
    assert!(matches!(reply, Reply::Admin(AdminReply::Metrics(text)) if text.len() == 100_000));
}
