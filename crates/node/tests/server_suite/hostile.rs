//! Clients that mean harm or are broken: none may crash the server, keep what they leave behind,
//! reach another's files or hold up another's requests.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fake::BLOCK_BYTES;
use crate::raw::{PATIENCE, Raw, Scene, eventually, open_request};
use rustix::fs::{MemfdFlags, SealFlags};
use tidepool_node::server::ServerLimits;
use tidepool_proto::admin::AdminRequest;
use tidepool_proto::control::CeilingLease;
use tidepool_proto::wire::socket::send_frame;
use tidepool_proto::wire::{
    FrameHeader, HEADER_BYTES, Hello, Reply, Request, Verdict, Want, Welcome, WriteSource,
    root_of_welcome,
};
use tidepool_proto::{Access, ErrorKind, MemorySize};

/// The server must serve others as before.
fn check_healthy(scene: &Scene) {
    let (path, bytes) = scene.file("healthy", 2 * BLOCK_BYTES as usize);
    let mut raw = scene.connect();
    let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
    let request = Request::Read { handle, offset: 9, length: 99, want: Want::Inline };
    assert_eq!(raw.call(&request, &[], &[]).1.payload, bytes[9..108]);
    drop(raw);
    scene.wait_until_idle();
}

/// A sequence that repeats itself in every run.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn random_bytes_end_a_connection_and_nothing_else() {
    let scene = Scene::new(ServerLimits::default());
    let mut chance = Chance(0x5eed);
    for round in 0..300 {
        let mut raw =
            if round % 2 == 0 { Raw::silent(scene.server.socket_path()) } else { scene.connect() };
        let length = 1 + chance.next() % 3000;
        let mut bytes: Vec<u8> = (0..length).map(|_| chance.next() as u8).collect();
        if round % 3 == 0 && bytes.len() > HEADER_BYTES {
            // A header that is in order, with garbage behind it.
            let header = FrameHeader {
                body_bytes: (bytes.len() - HEADER_BYTES) as u32,
                payload_bytes: 0,
                request_id: 1,
                descriptors: 0,
            };
            bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        }
        // Fails if the server hung up already.
        let _ = raw.send_bytes(&bytes);
    }
    check_healthy(&scene);
    assert!(scene.server.counts().malformed > 100);
}

#[test]
fn every_body_of_one_flipped_byte_is_survived() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("file", 100_000);
    let file = File::open(&path).unwrap();
    let body = open_request(Access::Read).encode(Vec::new()).unwrap();
    for at in 0..body.len() {
        for flip in [1u8, 0x80, 0xff] {
            let mut raw = scene.connect();
            let mut broken = body.clone();
            broken[at] ^= flip;
            let _ = send_frame(raw.socket.as_fd(), 1, &broken, &[], &[file.as_fd()], PATIENCE);
            let _ = raw.receive();
        }
    }
    check_healthy(&scene);
}

#[test]
fn descriptors_that_give_no_authority_are_refused() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("file", 100_000);
    let mut raw = scene.connect();
    let by_flags = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags).open(&path).unwrap()
    };
    let write_only = OpenOptions::new().write(true).open(&path).unwrap();
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let memory = rustix::fs::memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    let wrong: Vec<(&str, OwnedFd, Access)> = vec![
        ("path only", by_flags(libc::O_PATH).into(), Access::Read),
        ("write only", write_only.into(), Access::Read),
        ("read only", File::open(&path).unwrap().into(), Access::Write),
        ("read only", File::open(&path).unwrap().into(), Access::ReadWrite),
        ("directory", File::open(scene.directory.path()).unwrap().into(), Access::Read),
        ("pipe", pipe.into(), Access::Read),
        ("socket", UnixStream::pair().unwrap().0.into(), Access::Read),
        ("device", File::open("/dev/zero").unwrap().into(), Access::Read),
        ("memory", memory, Access::Read),
        ("foreign file system", File::open("/proc/self/maps").unwrap().into(), Access::Read),
    ];
    for (what, descriptor, access) in wrong {
        let kind = raw.open(&descriptor, access).expect_err(what);
        assert!(
            matches!(kind, ErrorKind::InvalidInput | ErrorKind::PermissionDenied),
            "{what}: {kind:?}"
        );
        if access == Access::Read {
            let explain = Request::Admin(AdminRequest::Evict);
            if what != "memory" && what != "foreign file system" {
                raw.error(&explain, &[], &[descriptor.as_fd()]);
            }
        }
    }
    let file = File::open(&path).unwrap();
    let open = open_request(Access::Read);
    assert_eq!(raw.error(&open, &[], &[]), ErrorKind::InvalidInput, "no descriptor");
    let two = [file.as_fd(), file.as_fd()];
    assert_eq!(raw.error(&open, &[], &two), ErrorKind::InvalidInput, "two descriptors");
    assert!(raw.open(&file, Access::Read).is_ok(), "the connection is as good as before");
    drop(raw);
    check_healthy(&scene);
}

#[test]
fn handles_of_another_connection_are_useless() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("secret", 100_000);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut owner = scene.connect();
    let handle = owner.open(&file, Access::ReadWrite).unwrap().handle;
    let mut thief = scene.connect();
    for handle in (0..1000).chain([handle, u64::MAX]) {
        let requests = [
            Request::Read { handle, offset: 0, length: 10, want: Want::Inline },
            Request::Read { handle, offset: 0, length: 10, want: Want::Resident },
            Request::Write { handle, offset: 0, source: WriteSource::Payload },
            Request::SetSize { handle, size: 0 },
            Request::Borrow { handle, offset: 0, length: 10 },
            Request::Descriptors { handle },
            Request::Facts { handle },
        ];
        for request in requests {
            assert_eq!(thief.error(&request, b"", &[]), ErrorKind::InvalidInput);
        }
        thief.send(&Request::Close { handle, mapped_bytes: 0 }, &[], &[]);
        thief.send(&Request::Release { borrow: handle }, &[], &[]);
    }
    assert_eq!(scene.server.counts().handles, 1);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 100_000);
}

#[test]
fn an_open_gives_no_more_than_it_asked_for() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("file", 100_000);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut raw = scene.connect();
    let handle = raw.open(&file, Access::Read).unwrap().handle;
    let source = WriteSource::Payload;
    let write = Request::Write { handle, offset: 0, source };
    assert_eq!(raw.error(&write, b"x", &[]), ErrorKind::PermissionDenied);
    let shorten = Request::SetSize { handle, size: 0 };
    assert_eq!(raw.error(&shorten, &[], &[]), ErrorKind::PermissionDenied);
    let handle = raw.open(&file, Access::Write).unwrap().handle;
    let read = Request::Read { handle, offset: 0, length: 1, want: Want::Inline };
    assert_eq!(raw.error(&read, &[], &[]), ErrorKind::PermissionDenied);
    let borrow = Request::Borrow { handle, offset: 0, length: 1 };
    assert_eq!(raw.error(&borrow, &[], &[]), ErrorKind::PermissionDenied);
    let far = Request::SetSize { handle, size: u64::MAX };
    assert_eq!(raw.error(&far, &[], &[]), ErrorKind::InvalidInput);
}

#[test]
fn a_segment_that_could_be_written_is_not_handed_out() {
    let scene = Scene::new(ServerLimits::default());
    scene.node.careless.store(true, Ordering::SeqCst);
    let (path, bytes) = scene.file("file", 100_000);
    let mut raw = scene.connect();
    let opened = raw.open(File::open(&path).unwrap(), Access::Read).unwrap();
    assert!(opened.segment.is_none());
    let handle = opened.handle;
    let request = Request::Read { handle, offset: 0, length: 100, want: Want::Resident };
    assert_eq!(raw.call(&request, &[], &[]).1.payload, bytes[..100]);
}

#[test]
fn what_is_handed_out_cannot_be_opened_for_writing_by_others() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("file", 100_000);
    let mut raw = scene.connect();
    let file = File::open(&path).unwrap();
    let (_, frame) = raw.call(&open_request(Access::Read), &[], &[file.as_fd()]);
    assert_eq!(frame.descriptors.len(), 3);
    for descriptor in &frame.descriptors[..2] {
        assert!(rustix::io::pwrite(descriptor, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(descriptor, 0).is_err());
        if !rustix::process::geteuid().is_root() {
            continue;
        }
        use std::os::fd::AsRawFd;
        let number = descriptor.as_raw_fd();
        let opened = as_nobody(move || {
            OpenOptions::new().write(true).open(format!("/proc/self/fd/{number}")).is_ok()
        });
        assert!(!opened, "another user opened it anew for writing");
    }
}

#[test]
fn transfer_buffers_are_checked() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("file", 100_000);
    let mut raw = scene.connect();
    let memory = |length: u64, seals: SealFlags| -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("buffer", flags).unwrap();
        rustix::fs::ftruncate(&memory, length).unwrap();
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        memory
    };
    let wrong: [(&str, OwnedFd); 5] = [
        ("unsealed", memory(4096, SealFlags::GROW)),
        ("empty", memory(0, SealFlags::SHRINK)),
        ("too long", memory(1 << 40, SealFlags::SHRINK)),
        ("a file", File::open(&path).unwrap().into()),
        ("a socket", UnixStream::pair().unwrap().0.into()),
    ];
    for (what, descriptor) in wrong {
        let kind = raw.error(&Request::RegisterBuffer, &[], &[descriptor.as_fd()]);
        assert!(matches!(kind, ErrorKind::InvalidInput | ErrorKind::Pfs), "{what}: {kind:?}");
    }
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let handle = raw.open(&file, Access::Write).unwrap().handle;
    let source = WriteSource::Buffer { offset: 0, length: 1 };
    let write = Request::Write { handle, offset: 0, source };
    assert_eq!(raw.error(&write, &[], &[]), ErrorKind::InvalidInput, "none is registered");
    for (offset, length) in [(u64::MAX, 1), (0, u32::MAX), (i64::MAX as u64, 1)] {
        let source = WriteSource::Buffer { offset, length };
        let write = Request::Write { handle, offset: 0, source };
        assert_eq!(raw.error(&write, &[], &[]), ErrorKind::InvalidInput);
    }
}

#[test]
fn ten_thousand_opens_stop_at_the_limit() {
    let limits = ServerLimits { handles_per_connection_max: 200, ..ServerLimits::default() };
    let scene = Scene::new(limits);
    let (path, _) = scene.file("file", 100_000);
    let file = File::open(&path).unwrap();
    let mut raw = scene.connect();
    let opened = (0..10_000).filter(|_| raw.open(&file, Access::Read).is_ok()).count();
    assert_eq!(opened, 200);
    assert_eq!(scene.server.counts().handles, 200);
    assert_eq!(scene.server.counts().limited, 9800);
    raw.send(&Request::Close { handle: 1, mapped_bytes: 0 }, &[], &[]);
    assert!(raw.open(&file, Access::Read).is_ok(), "a close makes room");
    drop(raw);
    check_healthy(&scene);
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let limits = ServerLimits { connections_per_user_max: 3, ..ServerLimits::default() };
    let scene = Scene::new(limits);
    let mut kept: Vec<Raw> = (0..3).map(|_| scene.connect()).collect();
    let mut further = Raw::silent(scene.server.socket_path());
    let frame = further.greeted().unwrap();
    assert_eq!(Welcome::decode(&frame.body).unwrap().verdict, Verdict::LimitReached);
    let root = root_of_welcome(&frame.payload);
    assert_eq!(root.as_deref(), Some(scene.directory.path()), "so that it can go on by itself");
    assert!(further.is_ended());
    if rustix::process::geteuid().is_root() {
        let path = scene.server.socket_path().to_owned();
        std::fs::set_permissions(scene.directory.path(), world_readable()).unwrap();
        let verdict = as_nobody(move || Raw::silent(&path).greet().unwrap());
        assert_eq!(verdict, Verdict::Accepted, "one user's limit is not another's");
    }
    kept.pop();
    eventually("room for one more", || {
        let mut raw = Raw::silent(scene.server.socket_path());
        raw.greet().unwrap() == Verdict::Accepted
    });
}

#[test]
fn clients_that_stall_are_ended() {
    let limits = ServerLimits {
        hello_timeout: Duration::from_millis(100),
        message_timeout: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let scene = Scene::new(limits);
    let mut silent = Raw::silent(scene.server.socket_path());
    assert!(silent.is_ended(), "no hello");
    let mut halting = scene.connect();
    halting.send_bytes(&[1, 2, 3]).unwrap();
    assert!(halting.is_ended(), "half a header");
    let mut promising = scene.connect();
    let header =
        FrameHeader { body_bytes: 4096, payload_bytes: 65_536, request_id: 1, descriptors: 0 };
    promising.send_bytes(&header.encode()).unwrap();
    assert!(promising.is_ended(), "a header and no body");
    let mut dripping = scene.connect();
    dripping.send_bytes(&header.encode()).unwrap();
    eventually("a byte now and then does not help", || {
        std::thread::sleep(Duration::from_millis(20));
        dripping.send_bytes(&[0]).is_err()
    });
    let mut idle = scene.connect();
    std::thread::sleep(Duration::from_millis(300));
    let kind = idle.error(&Request::Facts { handle: 1 }, &[], &[]);
    assert_eq!(kind, ErrorKind::InvalidInput, "being idle between messages is no offence");
    drop(idle);
    check_healthy(&scene);
}

#[test]
fn a_client_that_never_reads_its_replies_hurts_itself_alone() {
    let limits =
        ServerLimits { message_timeout: Duration::from_millis(200), ..ServerLimits::default() };
    let scene = Scene::new(limits);
    let (path, _) = scene.file("file", 20 * BLOCK_BYTES as usize);
    let mut deaf = scene.connect();
    let handle = deaf.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
    let request = Request::Read { handle, offset: 0, length: 1 << 20, want: Want::Inline };
    let body = request.encode(Vec::new()).unwrap();
    let mut sent = 0;
    while send_frame(deaf.socket.as_fd(), 1, &body, &[], &[], Duration::from_secs(5)).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "the server reads requests without an end");
    }
    drop(deaf);
    check_healthy(&scene);
}

#[test]
fn deaf_clients_of_one_user_do_not_use_up_the_memory_of_others() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let limits = ServerLimits { buffered_bytes_per_user_max: 1 << 20, ..ServerLimits::default() };
    let scene = Scene::new(limits);
    std::fs::set_permissions(scene.directory.path(), world_readable()).unwrap();
    let (path, bytes) = scene.file("file", 20 * BLOCK_BYTES as usize);
    let mut deaf: Vec<Raw> = (0..8).map(|_| scene.connect()).collect();
    for raw in &mut deaf {
        let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
        let request = Request::Read { handle, offset: 0, length: 1 << 20, want: Want::Inline };
        raw.send(&request, &[], &[]);
        raw.send(&request, &[], &[]);
    }
    let socket = scene.server.socket_path().to_owned();
    let other = as_nobody(move || {
        let mut raw = Raw::connect(&socket);
        let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
        let request = Request::Read { handle, offset: 0, length: 1 << 20, want: Want::Inline };
        raw.call(&request, &[], &[]).1.payload
    });
    assert!(other == bytes[..1 << 20], "another user reads all the while");
    drop(deaf);
    check_healthy(&scene);
}

#[test]
fn what_a_suspended_client_was_lent_stays_until_it_ends() {
    let limits =
        ServerLimits { message_timeout: Duration::from_millis(100), ..ServerLimits::default() };
    let scene = Scene::new(limits);
    let (path, bytes) = scene.file("file", 4 * BLOCK_BYTES as usize);
    let mut raw = scene.connect();
    let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
    let borrow = Request::Borrow { handle, offset: 0, length: 70_000 };
    let (_, mut frame) = raw.call(&borrow, &[], &[]);
    let segment = File::from(frame.descriptors.pop().unwrap());
    // Stalls within a message, as a suspended process would.
    raw.send_bytes(&[1, 2, 3]).unwrap();
    assert!(raw.is_ended());
    let handle_freed = || scene.node.open_files.load(Ordering::SeqCst) == 0;
    eventually("the connection is gone", handle_freed);
    assert_eq!(scene.server.counts().connections, 1, "and counts as long as its loan");
    assert_eq!(scene.server.counts().handles, 1);
    scene.node.evict_all();
    let mut copy = vec![0; 70_000];
    std::os::unix::fs::FileExt::read_exact_at(&segment, &mut copy, 0).unwrap();
    assert!(copy == bytes[..70_000], "this process lives, and may look at it");
    assert_eq!(scene.server.counts().borrows, 1);
    scene.server.stop();
    scene.node.evict_all();
    std::os::unix::fs::FileExt::read_exact_at(&segment, &mut copy, 0).unwrap();
    assert!(copy == bytes[..70_000], "also after the server stopped");
}

#[test]
fn what_a_client_borrowed_stays_as_it_is_when_the_server_stops() {
    let scene = Scene::new(ServerLimits::default());
    let (path, bytes) = scene.file("file", 4 * BLOCK_BYTES as usize);
    let mut raw = scene.connect();
    let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
    let borrow = Request::Borrow { handle, offset: 0, length: 70_000 };
    let (_, mut frame) = raw.call(&borrow, &[], &[]);
    let segment = File::from(frame.descriptors.pop().unwrap());
    scene.server.stop();
    assert!(raw.is_ended());
    scene.node.evict_all();
    let mut copy = vec![0; 70_000];
    std::os::unix::fs::FileExt::read_exact_at(&segment, &mut copy, 0).unwrap();
    assert!(copy == bytes[..70_000], "the client may have it mapped");
}

#[test]
fn loans_of_clients_that_are_cut_off_are_limited() {
    const LENT: usize = 12;
    let connections = ServerLimits { connections_per_user_max: LENT, ..ServerLimits::default() };
    let files = ServerLimits { handles_per_user_max: LENT, ..ServerLimits::default() };
    let ranges = ServerLimits { borrows_per_user_max: LENT, ..ServerLimits::default() };
    for (what, limits) in [("connections", connections), ("files", files), ("ranges", ranges)] {
        let scene = Scene::new(limits);
        let (path, _) = scene.file("file", 4 * BLOCK_BYTES as usize);
        let file = File::open(&path).unwrap();
        let mut lent = 0;
        for _ in 0..3 * LENT {
            let mut raw = Raw::silent(scene.server.socket_path());
            if raw.greet().unwrap() != Verdict::Accepted {
                continue;
            }
            let Ok(opened) = raw.open(&file, Access::Read) else { continue };
            let borrow = Request::Borrow { handle: opened.handle, offset: 0, length: 1 };
            if !matches!(raw.call(&borrow, &[], &[]).0, Reply::Borrowed { .. }) {
                continue;
            }
            lent += 1;
            // The file is closed, but stays open for the loan; then the client is cut off.
            let close = Request::Close { handle: opened.handle, mapped_bytes: 0 };
            raw.send(&close, &[], &[]);
            raw.send_bytes(&[0xff; HEADER_BYTES]).unwrap();
            assert!(raw.is_ended());
        }
        assert_eq!(lent, LENT, "{what}");
        eventually("only what is lent is held", || {
            let counts = scene.server.counts();
            (counts.borrows, counts.handles) == (LENT as u64, LENT as u64)
        });
        scene.server.stop();
        assert_eq!(scene.server.counts().borrows, LENT as u64, "they end with their processes");
    }
}

#[test]
fn a_long_request_ends_with_its_client_and_with_the_server() {
    let scene = Scene::new(ServerLimits::default());
    scene.node.endless_loads.store(true, Ordering::SeqCst);
    let (path, _) = scene.file("file", 1000);
    let file = File::open(&path).unwrap();
    let loading = || scene.node.loading.load(Ordering::SeqCst);
    let load = Request::Admin(AdminRequest::Load);
    let mut raw = scene.connect();
    raw.send(&load, &[], &[file.as_fd()]);
    eventually("it is under way", loading);
    drop(raw);
    eventually("it ends with its client", || !loading());
    scene.wait_until_idle();
    let mut raw = scene.connect();
    raw.send(&load, &[], &[file.as_fd()]);
    eventually("it is under way", loading);
    scene.server.stop();
    assert!(!loading(), "a stop ends it");
}

#[test]
fn a_stop_leaves_requests_behind_that_do_not_end() {
    let limits =
        ServerLimits { stop_timeout: Duration::from_millis(100), ..ServerLimits::default() };
    let scene = Scene::new(limits);
    let (path, _) = scene.file("file", 100_000);
    let mut raw = scene.connect();
    let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
    scene.node.hold_reads.set(true);
    raw.send(&Request::Read { handle, offset: 0, length: 9, want: Want::Inline }, &[], &[]);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| scene.server.stop());
        eventually("the stop is over", || stopping.is_finished());
        scene.node.hold_reads.set(false);
    });
    assert!(raw.is_ended(), "when the request ends, so does the connection");
}

#[test]
fn few_threads_serve_many_connections() {
    let limits =
        ServerLimits { threads_max: 1, requests_in_flight_max: 1, ..ServerLimits::default() };
    let scene = Scene::new(limits);
    let (path, bytes) = scene.file("file", 2 * BLOCK_BYTES as usize);
    let mut clients: Vec<Raw> = (0..20).map(|_| scene.connect()).collect();
    for raw in &mut clients {
        let handle = raw.open(File::open(&path).unwrap(), Access::Read).unwrap().handle;
        let request = Request::Read { handle, offset: 1, length: 99, want: Want::Inline };
        raw.send(&request, &[], &[]);
    }
    for raw in &mut clients {
        assert_eq!(raw.receive().unwrap().payload, bytes[1..100]);
    }
    drop(clients);
    check_healthy(&scene);
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("file", 5 * BLOCK_BYTES as usize);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    for round in 0..50 {
        let mut raw = scene.connect();
        let handle = raw.open(&file, Access::ReadWrite).unwrap().handle;
        raw.send(&Request::Borrow { handle, offset: 0, length: 70_000 }, &[], &[]);
        let source = WriteSource::Payload;
        raw.send(&Request::Write { handle, offset: round, source }, b"bytes", &[]);
        let body = Request::Sync { handle, data_only: false }.encode(Vec::new()).unwrap();
        let header = FrameHeader {
            body_bytes: body.len() as u32,
            payload_bytes: 0,
            request_id: 9,
            descriptors: 0,
        };
        // In the middle of a message.
        raw.send_bytes(&header.encode()[..round as usize % HEADER_BYTES]).unwrap();
    }
    scene.wait_until_idle();
    assert_eq!(scene.node.flushes.load(Ordering::SeqCst), 50, "writers are flushed");
    check_healthy(&scene);
}

#[test]
fn descriptors_that_nobody_announced_end_the_connection() {
    let scene = Scene::new(ServerLimits::default());
    let null = File::open("/dev/null").unwrap();
    let open_before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..100 {
        let raw = Raw::silent(scene.server.socket_path());
        let descriptors: Vec<BorrowedFd<'_>> = (0..3).map(|_| null.as_fd()).collect();
        // The header of this frame says three; the server takes none with a hello.
        let hello = Hello::OURS.encode();
        let _ = send_frame(raw.socket.as_fd(), 0, &hello, &[], &descriptors, PATIENCE);
    }
    for _ in 0..100 {
        let mut raw = scene.connect();
        let body = Request::Facts { handle: 1 }.encode(Vec::new()).unwrap();
        let descriptors: Vec<BorrowedFd<'_>> = (0..3).map(|_| null.as_fd()).collect();
        let _ = send_frame(raw.socket.as_fd(), 1, &body, &[], &descriptors, PATIENCE);
        let _ = raw.receive();
    }
    check_healthy(&scene);
    eventually("all descriptors are closed", || {
        // Other tests of this process open files as well; none of them leaks 600.
        std::fs::read_dir("/proc/self/fd").unwrap().count() < open_before + 300
    });
}

#[test]
fn only_root_and_the_owner_change_the_node() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new(ServerLimits::default());
    std::fs::set_permissions(scene.directory.path(), world_readable()).unwrap();
    let (path, _) = scene.file("mine", 1000);
    let (of_others, _) = scene.file("not-mine", 1000);
    std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
    let socket = scene.server.socket_path().to_owned();
    as_nobody(move || {
        let mut raw = Raw::connect(&socket);
        for request in [
            AdminRequest::EvictAll,
            AdminRequest::Resize { size: MemorySize::Bytes(0) },
            AdminRequest::SetPolicy { policy: "lru".into() },
            AdminRequest::Observe,
            AdminRequest::LeaseCeiling(CeilingLease::default()),
            AdminRequest::Drain { stop: true },
        ] {
            let request = Request::Admin(request);
            assert_eq!(raw.error(&request, &[], &[]), ErrorKind::PermissionDenied);
        }
        let file = File::open(&path).unwrap();
        let evict = Request::Admin(AdminRequest::Evict);
        let reply = raw.call(&evict, &[], &[file.as_fd()]).0;
        assert!(matches!(reply, Reply::Admin(_)), "its own file");
        let others = File::open(&of_others).unwrap();
        assert_eq!(raw.error(&evict, &[], &[others.as_fd()]), ErrorKind::PermissionDenied);
        raw.call(&Request::Admin(AdminRequest::Status), &[], &[]);
    });
    let mut raw = scene.connect();
    let reply = raw.call(&Request::Admin(AdminRequest::EvictAll), &[], &[]).0;
    assert!(matches!(reply, Reply::Admin(_)));
}

#[test]
fn who_could_not_have_changed_a_file_cannot_say_that_it_did_not_change() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new(ServerLimits::default());
    std::fs::set_permissions(scene.directory.path(), world_readable()).unwrap();
    let (path, _) = scene.file("not-mine", 1000);
    std::fs::set_permissions(&path, world_readable()).unwrap();
    let request = Request::NoteVersion;
    let socket = scene.server.socket_path().to_owned();
    let (of_nobody, asked) = (path.clone(), request.clone());
    let kind = as_nobody(move || {
        let file = File::open(&of_nobody).unwrap();
        Raw::connect(&socket).error(&asked, &[], &[file.as_fd()])
    });
    assert_eq!(kind, ErrorKind::PermissionDenied);
    let mut raw = scene.connect();
    let file = File::open(&path).unwrap();
    let Reply::Noted { note } = raw.call(&request, &[], &[file.as_fd()]).0 else {
        panic!("root's note was refused")
    };
    let other = Request::MetadataChanged { note: note + 1, times: None };
    assert_eq!(raw.call(&other, &[], &[]).0, Reply::Done);
    assert_eq!(scene.node.carried.load(Ordering::SeqCst), 0, "another number");
    let changed = Request::MetadataChanged { note, times: None };
    let mut thief = scene.connect();
    assert_eq!(thief.call(&changed, &[], &[]).0, Reply::Done);
    assert_eq!(scene.node.carried.load(Ordering::SeqCst), 0, "another connection");
    for _ in 0..2 {
        assert_eq!(raw.call(&changed, &[], &[]).0, Reply::Done);
        assert_eq!(scene.node.carried.load(Ordering::SeqCst), 1, "once");
    }
    assert_eq!(raw.error(&request, &[], &[]), ErrorKind::InvalidInput, "no descriptor");
    for _ in 0..1000 {
        raw.call(&request, &[], &[file.as_fd()]);
    }
    assert!(scene.server.counts().handles <= 32, "notes are bounded, and counted");
}

#[test]
fn a_flood_of_connections_is_survived() {
    let scene = Scene::new(ServerLimits::default());
    for _ in 0..2000 {
        if let Ok(mut socket) = UnixStream::connect(scene.server.socket_path()) {
            let _ = socket.write_all(b"GET / HTTP/1.1\r\n\r\n");
        }
    }
    check_healthy(&scene);
}

fn world_readable() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o755)
}

/// Runs `work` in a thread of the user `nobody`.
fn as_nobody<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    const NOBODY: libc::uid_t = 65_534;
    let thread = std::thread::spawn(move || {
        // SAFETY: the system calls take numbers only; called directly, they concern this thread.
        unsafe {
            let none: *const libc::gid_t = std::ptr::null();
            assert_eq!(libc::syscall(libc::SYS_setgroups, 0, none), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
        }
        work()
    });
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
