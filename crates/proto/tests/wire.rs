//! The wire protocol: every message survives its encoding, no bytes make a decoder fail in any way
//! but an error, and frames arrive as they were sent, with their descriptors.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidepool_proto::admin::{AdminReply, AdminRequest, ConfigEntry, Status};
use tidepool_proto::locality::{Locality, LocatedSplit, SplitHosts, SplitRange};
use tidepool_proto::trace::{
    Front, LibraryRecord, Operation, ServedBy, TraceBatch, TraceRecord, TraceRequest,
};
use tidepool_proto::wire::socket::{Frame, ReceiveError, receive_frame, send_frame};
use tidepool_proto::wire::{
    Failure, FrameHeader, FrameLimits, HEADER_BYTES, Hello, Malformed, Open, Opened,
    REPLY_PAYLOAD_BYTES_MAX, REQUEST_BODY_BYTES_MAX, ROOT_BYTES_MAX, Reply, Request, SegmentLayout,
    Verdict, Want, Welcome, WriteSource, decode_reply, decode_request, decode_timed_reply,
    root_of_welcome,
};
use tidepool_proto::{
    Access, Advice, BytesByLevel, ChangeTimes, Error, ErrorKind, FileId, ReadMode, Version,
    WriteMode,
};

const TIMEOUT: Duration = Duration::from_secs(10);

fn requests() -> Vec<Request> {
    let handle = u64::MAX;
    let (offset, length) = (1 << 40, 77);
    vec![
        Request::Open(Open {
            access: Access::ReadWrite,
            read_mode: Some(ReadMode::Memory),
            write_mode: Some(WriteMode::Bypass),
            created: true,
            append: true,
            truncate: false,
            want_descriptors: true,
            inline_bytes_max: 1 << 18,
        }),
        Request::Read { handle, offset, length: 4096, want: Want::Resident },
        Request::Prefetch { handle, offset, length },
        Request::Advise { handle, advice: Advice { read_ahead_bytes_max: Some(0), keep: false } },
        Request::RegisterBuffer,
        Request::Write { handle, offset, source: WriteSource::Payload },
        Request::Write { handle, offset, source: WriteSource::Buffer { offset, length: 5 } },
        Request::Sync { handle, data_only: true },
        Request::Flush { handle },
        Request::SetSize { handle, size: 0 },
        Request::Allocate { handle, mode_bits: -1, offset, length },
        Request::Facts { handle },
        Request::Descriptors { handle },
        Request::Close { handle, mapped_bytes: 12 },
        Request::Borrow { handle, offset, length },
        Request::Release { borrow: 3 },
        Request::NoteVersion,
        Request::MetadataChanged { note: u64::MAX, times: None },
        Request::MetadataChanged {
            note: 1,
            times: Some(ChangeTimes { before_ns: -1, after_ns: i128::MAX, leased: true }),
        },
        Request::Admin(AdminRequest::Drain { stop: true }),
        Request::Admin(AdminRequest::Locate(SplitRange {
            split_bytes: u64::MAX,
            first: 3,
            count: u32::MAX,
        })),
        Request::Admin(AdminRequest::SetPolicy { policy: "s3fifo".into() }),
        Request::Bye,
        Request::Finish,
        Request::Admin(AdminRequest::Trace(TraceRequest::Start {
            process_id: Some(u32::MAX),
            has_file: true,
        })),
        Request::Admin(AdminRequest::Trace(TraceRequest::Next)),
        Request::Traced {
            front: Front::Hadoop,
            records: vec![LibraryRecord {
                operation: Operation::Read,
                handle,
                path: Some("/pfs/a".into()),
                begun_us: u64::MAX,
                offset: Some(offset),
                length: None,
                bytes: 3,
                level: ServedBy::Mixed,
                errno: 5,
                elapsed_us: 9,
                pfs_us: 8,
            }],
            dropped: 1,
        },
    ]
}

fn replies() -> Vec<Reply> {
    let version = Version {
        id: FileId { device: u64::MAX, inode: 1 },
        size: 1 << 50,
        modified_ns: i128::MIN,
        changed_ns: i128::MAX,
        born_ns: 0,
    };
    let levels = BytesByLevel { mapped: 1, store: 2, peer: 3, buffer: 4, pfs: u64::MAX };
    let segment = Some(SegmentLayout { block_bytes: 4 << 20, blocks: 9 });
    let error = Error::pfs("opening a file", std::io::Error::from_raw_os_error(13));
    let entry = ConfigEntry {
        name: "memory".into(),
        value: "8GiB".into(),
        unit: "bytes".into(),
        origin: "default".into(),
        doc: "How much.".into(),
    };
    vec![
        Reply::Opened(Opened {
            handle: 1,
            version,
            size: 9,
            may_be_lost: false,
            segment,
            inline: Some(levels),
            written_by_client: None,
        }),
        Reply::Data { at_end: true, levels },
        Reply::Resident { bytes: 8, levels },
        Reply::Written { offset: 3 },
        Reply::Facts { version, size: 3 },
        Reply::Descriptors { segment },
        Reply::Borrowed { borrow: 2, bytes: 3, levels },
        Reply::NotBorrowed,
        Reply::Noted { note: 7 },
        Reply::Admin(AdminReply::Status(Box::new(Status {
            hit_ratio_at_least: Some(0.25),
            degraded: vec!["no huge pages".into()],
            ..Status::default()
        }))),
        Reply::Admin(AdminReply::Config(vec![entry])),
        Reply::Admin(AdminReply::Metrics("tidepool_up 1\n".into())),
        Reply::Admin(AdminReply::Located(Locality::Alone)),
        Reply::Admin(AdminReply::Located(Locality::Splits(SplitHosts {
            names: vec!["n0".into(), "n1".into()],
            splits: vec![LocatedSplit { hosts: vec![1, 0], in_memory: true }],
        }))),
        Reply::Admin(AdminReply::Traced(TraceBatch {
            records: vec![TraceRecord::begun(Front::Mount, Operation::Open, 1000, 7)],
            dropped: 2,
        })),
        Reply::Done,
        Reply::Failed(Failure::from(&error)),
    ]
}

#[test]
fn every_message_survives_its_encoding() {
    for request in requests() {
        let body = request.encode(Vec::new()).unwrap();
        assert!(body.len() <= REQUEST_BODY_BYTES_MAX as usize);
        assert_eq!(decode_request(&body), Ok(request));
        // Nothing may be missing, and nothing may follow.
        assert!((0..body.len()).all(|end| decode_request(&body[..end]).is_err()));
        assert!(decode_request(&[&body[..], &[0]].concat()).is_err());
    }
    for reply in replies() {
        let body = reply.encode(Vec::new()).unwrap();
        assert_eq!(decode_reply(&body).as_ref(), Ok(&reply));
        assert!((0..body.len()).all(|end| decode_reply(&body[..end]).is_err()));
        // With the time that the node waited, and nothing behind it.
        assert_eq!(reply.encode_timed(Vec::new(), 0).as_ref(), Ok(&body));
        let timed = reply.encode_timed(Vec::new(), 1 << 40).unwrap();
        assert_eq!(decode_reply(&timed).as_ref(), Ok(&reply));
        assert!(decode_reply(&[&timed[..], &[0]].concat()).is_err());
        assert_eq!(decode_timed_reply(&timed), Ok((reply, 1 << 40)));
    }
}

#[test]
fn errors_arrive_with_kind_cause_and_remedy() {
    for kind in ErrorKind::ALL {
        let error = Error::new(kind, "reading a file", "it is on fire")
            .remedy("put it out")
            .caused_by(std::io::Error::from_raw_os_error(5));
        let arrived = Error::from(Failure::from(&error));
        assert_eq!(arrived.to_string(), error.to_string());
        assert_eq!((arrived.kind(), arrived.errno()), (kind, 5));
    }
    let endless = Error::new(ErrorKind::Internal, "ü".repeat(100_000), "ß".repeat(99_999));
    let body = Reply::Failed(Failure::from(&endless)).encode(Vec::new()).unwrap();
    assert!(body.len() < 10_000, "an error always fits a frame");
}

#[test]
fn lengths_in_a_body_allocate_nothing() {
    let empty = [
        Reply::Admin(AdminReply::Metrics(String::new())),
        Reply::Admin(AdminReply::Config(Vec::new())),
    ];
    for reply in empty {
        let mut body = reply.encode(Vec::new()).unwrap();
        // The last byte is the length; instead of nothing, it claims to have 2^63 - 1 elements.
        assert_eq!(body.pop(), Some(0));
        body.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert!(decode_reply(&body).is_err());
    }
}

#[test]
fn headers_beyond_a_limit_are_refused() {
    let header = FrameHeader { body_bytes: 1, payload_bytes: 0, request_id: 7, descriptors: 3 };
    let decode = |header: FrameHeader| FrameHeader::decode(&header.encode(), FrameLimits::REQUEST);
    assert_eq!(decode(header), Ok(header));
    assert!(decode(FrameHeader { body_bytes: 0, ..header }).is_err());
    assert!(decode(FrameHeader { body_bytes: REQUEST_BODY_BYTES_MAX + 1, ..header }).is_err());
    assert!(decode(FrameHeader { body_bytes: u32::MAX, ..header }).is_err());
    assert!(decode(FrameHeader { payload_bytes: u32::MAX, ..header }).is_err());
    assert!(decode(FrameHeader { descriptors: 4, ..header }).is_err());
    let mut reserved = header.encode();
    reserved[23] = 1;
    assert!(FrameHeader::decode(&reserved, FrameLimits::REQUEST).is_err());
}

#[test]
fn hellos_are_read_across_releases() {
    let future = Hello { protocol: 99, table_layout: 7 };
    assert_eq!(Hello::decode(&future.encode()), Ok(future));
    let verdicts =
        [Verdict::Accepted, Verdict::OtherVersion, Verdict::LimitReached, Verdict::Stopping];
    for verdict in verdicts {
        let welcome = Welcome { protocol: 1, table_layout: 1, verdict, process_id: 42 };
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
    }
    assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\n"), Err(Malformed("a hello of wrong length")));
    assert!(Hello::decode(&[0; 32]).is_err() && Welcome::decode(&[0; 48]).is_err());
}

#[test]
fn the_directory_in_a_welcome_is_an_absolute_name_of_any_bytes() {
    let root = |bytes: &[u8]| root_of_welcome(bytes).map(|path| path.into_os_string().into_vec());
    for name in [&b"/"[..], b"/lustre/project", b"/\xff\xfe new\nline"] {
        assert_eq!(root(name).as_deref(), Some(name));
    }
    let long = [b"/".as_slice(), &[b'x'; ROOT_BYTES_MAX]].concat();
    for nothing in [&b""[..], b"relative/name", b"/a\0b", &long] {
        assert_eq!(root(nothing), None);
    }
}

fn receive(socket: &UnixStream, limits: FrameLimits) -> Result<Frame, ReceiveError> {
    receive_frame(socket.as_fd(), limits, Some(Instant::now() + TIMEOUT), TIMEOUT)
}

#[test]
fn descriptors_arrive_with_their_own_frame() {
    let (sender, receiver) = UnixStream::pair().unwrap();
    let files: Vec<std::fs::File> =
        (0..6).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    let attached: [&[usize]; 5] = [&[], &[0], &[], &[1, 2, 3], &[4]];
    // All are sent before any is received, so that the kernel could mix them up.
    for (number, attached) in attached.iter().enumerate() {
        let descriptors: Vec<_> = attached.iter().map(|file| files[*file].as_fd()).collect();
        let payload = vec![number as u8; 1000 * number];
        let id = number as u64;
        send_frame(sender.as_fd(), id, &[1, 2, 3], &payload, &descriptors, TIMEOUT).unwrap();
    }
    for (number, attached) in attached.iter().enumerate() {
        let frame = receive(&receiver, FrameLimits::REPLY).unwrap();
        assert_eq!((frame.request_id, frame.body.len()), (number as u64, 3));
        assert_eq!(frame.payload, vec![number as u8; 1000 * number]);
        assert_eq!(frame.descriptors.len(), attached.len());
        for descriptor in frame.descriptors {
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "not for programs it starts");
        }
    }
    drop(sender);
    assert!(matches!(receive(&receiver, FrameLimits::REPLY), Err(ReceiveError::Closed)));
}

#[test]
fn a_frame_larger_than_the_socket_takes_arrives_whole() {
    let (sender, receiver) = UnixStream::pair().unwrap();
    let payload: Vec<u8> = (0..REPLY_PAYLOAD_BYTES_MAX).map(|at| (at % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_frame(sender.as_fd(), 1, &[9], &payload, &[], TIMEOUT).unwrap();
        });
        assert!(receive(&receiver, FrameLimits::REPLY).unwrap().payload == payload);
    });
    // Nobody reads this one.
    let body = [1];
    let short = Duration::from_millis(20);
    let error = send_frame(sender.as_fd(), 1, &body, &payload, &[], short).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

proptest! {
    #[test]
    fn random_bodies_are_messages_or_errors(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(request) = decode_request(&bytes) {
            let again = request.encode(Vec::new()).unwrap();
            prop_assert_eq!(decode_request(&again), Ok(request));
        }
        if let Ok(reply) = decode_reply(&bytes) {
            let once = reply.encode(Vec::new()).unwrap();
            prop_assert_eq!(decode_reply(&once).unwrap().encode(Vec::new()).unwrap(), once);
        }
    }

    #[test]
    fn broken_messages_are_messages_or_errors(
        which in 0usize..18,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let request = requests().swap_remove(which);
        let mut body = request.encode(Vec::new()).unwrap();
        let at = at.index(body.len());
        body[at] = byte;
        let _ = decode_request(&body);
        let mut body = replies().swap_remove(which % 13).encode(Vec::new()).unwrap();
        let at = at % body.len();
        body[at] = byte;
        let _ = decode_reply(&body);
    }

    #[test]
    fn random_streams_end(bytes in prop::collection::vec(any::<u8>(), 0..2000), tidy: bool) {
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        if tidy {
            let length = bytes.len() as u32;
            let header = FrameHeader {
                body_bytes: length + 1,
                payload_bytes: 0,
                request_id: 1,
                descriptors: 0,
            };
            sender.write_all(&header.encode()).unwrap();
        }
        sender.write_all(&bytes).unwrap();
        drop(sender);
        let mut left = bytes.len() / HEADER_BYTES + 2;
        while let Ok(frame) = receive(&receiver, FrameLimits::REQUEST) {
            prop_assert!(frame.body.len() + frame.payload.len() <= bytes.len());
            left -= 1;
            prop_assert!(left > 0);
        }
    }
}
