//! The socket is open to every user, and gives nothing to a client that brings no authority.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidepool_client::{Client, ClientOptions, OpenOptions as LibraryOptions};
use tidepool_proto::admin::AdminRequest;
use tidepool_proto::locality::SplitRange;
use tidepool_proto::wire::{FrameHeader, Hello, Reply, Request, Want};
use tidepool_proto::{Access, ErrorKind, MemorySize};
use tidepool_testkit::needs_mount;
use tidepool_testkit::raw::{RawClient, open_for, read_of};

use super::{assert_well, file, node, strangers};

#[test]
fn descriptors_without_authority_are_refused() {
    needs_mount!();
    let node = node();
    file(&node, "secret", 0o600, b"nobody may read this");
    file(&node, "drop-box", 0o622, b"others may only write this");
    let public = file(&node, "public", 0o644, b"for all");
    let pfs = node.pfs().to_owned();
    for user in strangers() {
        user.run(|| {
            let by_path = |name: &str, flags: i32| -> OwnedFd {
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(flags).open(pfs.join(name)).unwrap().into()
            };
            let write_only: OwnedFd =
                OpenOptions::new().write(true).open(pfs.join("drop-box")).unwrap().into();
            let foreign: OwnedFd = tempfile::tempfile_in("/dev/shm").unwrap().into();
            let memory: OwnedFd =
                rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::empty()).unwrap();
            let read = Access::Read;
            let cases = [
                ("O_PATH of a secret file", by_path("secret", libc::O_PATH), read),
                ("O_PATH of a public file", by_path("public", libc::O_PATH), read),
                ("a write-only descriptor", write_only, read),
                ("a read-only descriptor", File::open(&public).unwrap().into(), Access::ReadWrite),
                ("a directory", File::open(&pfs).unwrap().into(), read),
                ("another file system", foreign, read),
                ("a memory file", memory, read),
                ("/proc", File::open("/proc/self/status").unwrap().into(), read),
                ("a device", File::open("/dev/zero").unwrap().into(), read),
                ("a socket", UnixStream::pair().unwrap().0.into(), read),
                ("a pipe", std::io::pipe().unwrap().0.into(), read),
            ];
            for (what, descriptor, access) in cases {
                // Each on a connection of its own: some may end it.
                let mut client = RawClient::accepted(node.socket());
                let reply = client.ask(&open_for(access), &[descriptor.as_fd()]).unwrap();
                assert!(reply.failure().is_some(), "{what}: {reply:?}");
                assert!(reply.payload.is_empty() && reply.descriptors.is_empty(), "{what}");
                let range = SplitRange { split_bytes: 1 << 20, first: 0, count: 1 };
                for request in [
                    AdminRequest::Explain,
                    AdminRequest::Locate(range),
                    AdminRequest::Load,
                    AdminRequest::Pin,
                ] {
                    if access != Access::Read {
                        continue;
                    }
                    let request = Request::Admin(request);
                    let reply = client.ask(&request, &[descriptor.as_fd()]).unwrap();
                    assert!(reply.failure().is_some(), "{what}, {request:?}: {reply:?}");
                }
            }
            let mut client = RawClient::accepted(node.socket());
            let none = client.ask(&open_for(read), &[]).unwrap();
            assert!(none.failure().is_some(), "no descriptor at all: {none:?}");
        });
    }
    assert_well(&node, "public");
}

#[test]
fn handles_of_another_connection_mean_nothing() {
    needs_mount!();
    let node = node();
    let secret = file(&node, "secret", 0o600, &[b's'; 1 << 20]);
    let public = file(&node, "public", 0o644, b"for all");
    let mut root = RawClient::accepted(node.socket());
    let mut handles = Vec::new();
    for _ in 0..20 {
        let descriptor = File::options().read(true).write(true).open(&secret).unwrap();
        let opened = root.ask(&open_for(Access::ReadWrite), &[descriptor.as_fd()]).unwrap();
        handles.push(opened.handle());
    }
    let ours = root.ask(&read_of(handles[0], 0, 4096), &[]).unwrap();
    assert_eq!(ours.payload, vec![b's'; 4096]);
    strangers()[1].run(|| {
        let mut client = RawClient::accepted(node.socket());
        let near = handles.iter().flat_map(|handle| [handle - 1, *handle, handle + 1]);
        for handle in near.chain(0..64).chain([u64::MAX, 1 << 32, 1 << 63]) {
            let requests = [
                read_of(handle, 0, 4096),
                Request::Read { handle, offset: 0, length: 4096, want: Want::Resident },
                Request::Facts { handle },
                Request::Descriptors { handle },
                Request::Borrow { handle, offset: 0, length: 4096 },
                Request::SetSize { handle, size: 0 },
                Request::Sync { handle, data_only: false },
                Request::Flush { handle },
                Request::Allocate { handle, mode_bits: 3, offset: 0, length: 4096 },
            ];
            for request in requests {
                let reply = client.ask(&request, &[]).unwrap();
                assert!(reply.failure().is_some(), "{request:?}: {reply:?}");
                assert!(reply.payload.is_empty() && reply.descriptors.is_empty());
            }
            client.send(&Request::Close { handle, mapped_bytes: u64::MAX }, &[], &[]).unwrap();
            client.send(&Request::Release { borrow: handle }, &[], &[]).unwrap();
        }
    });
    let again = root.ask(&read_of(handles[0], 0, 4096), &[]).unwrap();
    assert_eq!(again.payload, vec![b's'; 4096], "the owner's handles still work");
    let public_name = public.file_name().unwrap().to_str().unwrap();
    assert_well(&node, public_name);
}

#[test]
fn a_handle_does_what_it_was_opened_for_and_no_more() {
    needs_mount!();
    let node = node();
    let path = file(&node, "public", 0o644, b"unchanged");
    strangers()[0].run(|| {
        let mut client = RawClient::accepted(node.socket());
        let descriptor = File::open(&path).unwrap();
        let opened = client.ask(&open_for(Access::Read), &[descriptor.as_fd()]).unwrap();
        let handle = opened.handle();
        let source = tidepool_proto::wire::WriteSource::Payload;
        let write = Request::Write { handle, offset: 0, source };
        client.send(&write, b"changed", &[]).unwrap();
        assert!(client.receive().unwrap().failure().is_some());
        for request in [
            Request::SetSize { handle, size: 0 },
            Request::Allocate { handle, mode_bits: 3, offset: 0, length: 4 },
            Request::Read { handle, offset: u64::MAX - 1, length: 4096, want: Want::Inline },
            Request::Borrow { handle, offset: u64::MAX, length: u64::MAX },
        ] {
            let reply = client.ask(&request, &[]).unwrap();
            assert!(reply.failure().is_some(), "{request:?}: {reply:?}");
        }
    });
    assert_eq!(fs::read(&path).unwrap(), b"unchanged");
    assert_well(&node, "public");
}

#[test]
fn others_cannot_administer_the_node() {
    needs_mount!();
    let node = node();
    file(&node, "public", 0o644, b"for all");
    let before = node.status().unwrap();
    for user in strangers() {
        user.run(|| {
            let mut client = RawClient::accepted(node.socket());
            for request in [
                AdminRequest::Resize { size: MemorySize::Bytes(0) },
                AdminRequest::EvictAll,
                AdminRequest::SetPolicy { policy: "lru".into() },
                AdminRequest::Drain { stop: false },
                AdminRequest::Drain { stop: true },
            ] {
                let reply = client.ask(&Request::Admin(request.clone()), &[]).unwrap();
                assert_eq!(reply.failure(), Some(ErrorKind::PermissionDenied), "{request:?}");
            }
        });
    }
    let after = node.status().unwrap();
    assert_eq!(before.store.capacity_bytes, after.store.capacity_bytes);
    assert_eq!(before.store.policy, after.store.policy);
    assert_well(&node, "public");
}

/// Bytes that are no protocol, in many ways.
fn garbage(seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut noise = |length: usize| -> Vec<u8> { (0..length).map(|_| rng.u8(..)).collect() };
    let header = |body: usize, payload: u32, descriptors: u32| {
        let header = FrameHeader {
            body_bytes: body as u32,
            payload_bytes: payload,
            request_id: seed,
            descriptors,
        };
        header.encode().to_vec()
    };
    let hello = [header(Hello::OURS.encode().len(), 0, 0), Hello::OURS.encode().to_vec()].concat();
    match seed % 8 {
        0 => noise(64),
        1 => [hello, noise(4096)].concat(),
        2 => [hello, header(usize::MAX, 0, 0)].concat(),
        3 => [hello, header(16, u32::MAX, 0), noise(16)].concat(),
        4 => [hello, header(16, 0, 3), noise(16)].concat(),
        5 => [hello, header(64, 0, 0), noise(64), header(8, 0, 0), noise(8)].concat(),
        6 => [hello, header(4096, 65_536, 0), noise(100)].concat(),
        _ => hello[..9].to_vec(),
    }
}

#[test]
fn garbage_ends_its_own_connection_only() {
    needs_mount!();
    let node = node();
    let public = file(&node, "public", 0o644, &[5; 300_000]);
    let descriptor = File::open(&public).unwrap();
    let mut witness = RawClient::accepted(node.socket());
    let handle = witness.ask(&open_for(Access::Read), &[descriptor.as_fd()]).unwrap().handle();
    strangers()[1].run(|| {
        for seed in 0..400 {
            let mut stream = UnixStream::connect(node.socket()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // The node may hang up at any moment.
            let _ = stream.write_all(&garbage(seed));
            if seed % 2 == 0 {
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
    });
    let seen = witness.ask(&read_of(handle, 100_000, 4096), &[]).unwrap();
    assert_eq!(seen.payload, vec![5; 4096], "a client that was there before is served");
    assert_well(&node, "public");
}

#[test]
fn a_client_that_reads_no_answers_hurts_itself_alone() {
    needs_mount!();
    let node = node();
    let public = file(&node, "public", 0o644, &[5; 1 << 20]);
    let stop = Arc::new(AtomicBool::new(false));
    let flooding = {
        let (socket, public, stop) = (node.socket().to_owned(), public.clone(), stop.clone());
        std::thread::spawn(move || {
            strangers()[0].run(|| {
                let mut client = RawClient::accepted(&socket);
                let descriptor = File::open(&public).unwrap();
                let opened = client.ask(&open_for(Access::Read), &[descriptor.as_fd()]).unwrap();
                let handle = opened.handle();
                client.stream.set_nonblocking(true).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let request = read_of(handle, 0, 1 << 20);
                    let body = request.encode(Vec::new()).unwrap();
                    let header = FrameHeader {
                        body_bytes: body.len() as u32,
                        payload_bytes: 0,
                        request_id: 1,
                        descriptors: 0,
                    };
                    let frame = [&header.encode()[..], &body].concat();
                    // Full, or hung up on: both are fine, none of it may matter to others.
                    if (&client.stream).write(&frame).is_err() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        })
    };
    for _ in 0..200 {
        assert_eq!(fs::read(node.mount().join("public")).unwrap().len(), 1 << 20);
        assert!(node.is_alive());
    }
    stop.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    assert_well(&node, "public");
}

#[test]
fn the_library_trusts_no_strangers_socket() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    tidepool_testkit::machine::open_to_all(directory.path()).unwrap();
    let path = directory.path().join("file");
    fs::write(&path, b"mine").unwrap();
    let nest = directory.path().join("nest");
    fs::create_dir(&nest).unwrap();
    fs::set_permissions(&nest, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let socket = nest.join("node.sock");
    let listener = strangers()[1].run(|| UnixListener::bind(&socket).unwrap());
    fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let got = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let mut bytes = [0; 4096];
        stream.read(&mut bytes).ok()
    });
    let client = Client::connect(ClientOptions {
        socket: Some(socket.clone()),
        notice: Arc::new(|_| ()),
        ..ClientOptions::default()
    });
    let file = client.open(&path, LibraryOptions::read()).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(file.read_at(0, &mut bytes).unwrap().bytes, 4);
    assert_eq!(&bytes[..4], b"mine");
    assert!(!client.is_connected());
    drop((file, client));
    // Wakes the listener where the library did not even connect.
    drop(UnixStream::connect(&socket));
    let sent = got.join().unwrap().unwrap_or(0);
    assert_eq!(sent, 0, "a stranger's socket was told something");
}

#[test]
fn a_failed_answer_carries_no_bytes() {
    needs_mount!();
    let node = node();
    let mut client = RawClient::accepted(node.socket());
    let reply = client.ask(&read_of(7, 0, 4096), &[]).unwrap();
    assert!(matches!(reply.reply, Reply::Failed(_)) && reply.payload.is_empty());
}
