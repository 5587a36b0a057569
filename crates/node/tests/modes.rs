//! The six modes: what each writes, keeps, serves and promises.

mod support;

use support::*;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::{Access, ErrorKind, FileService, Level, MemorySize, ReadMode, WriteMode};

fn write_mode(mode: WriteMode) -> Wish {
    Wish { write: Some(mode), ..Wish::default() }
}

fn read_mode(mode: ReadMode) -> Wish {
    Wish { read: Some(mode), ..Wish::default() }
}

fn write_in_pieces(fixture: &Fixture, name: &str, bytes: &[u8], wish: Wish) {
    let writer = fixture.writer(name, wish);
    for (number, piece) in bytes.chunks(1 << 20).enumerate() {
        writer.write_at((number as u64) << 20, piece).unwrap();
    }
    writer.flush().unwrap();
}

#[test]
fn through_writes_reach_the_pfs_and_are_warm() {
    for size in [1, 3000, 256 << 10, 300 << 10, 9 << 20] {
        let fixture = Fixture::new();
        let bytes = content(1, size);
        write_in_pieces(&fixture, "f", &bytes, Wish::default());
        assert_eq!(std::fs::read(fixture.path("f")).unwrap(), bytes);
        let (read, outcome) = fixture.read("f");
        assert_eq!(read, bytes);
        assert_eq!(outcome.levels.get(Level::Store), size as u64, "size {size}");
        assert_eq!(fixture.pfs_read_bytes(), 0);
        assert_eq!(fixture.node.status().dirty_bytes, 0, "nothing is owed after close");
    }
}

#[test]
fn a_gap_in_a_small_new_file_is_zeros_in_memory_too() {
    let fixture = Fixture::new();
    let writer = fixture.writer("f", Wish::default());
    writer.write_at(0, &content(1, 100)).unwrap();
    writer.write_at(300, &content(2, 50)).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let (read, outcome) = fixture.read("f");
    assert_eq!(read, std::fs::read(fixture.path("f")).unwrap());
    assert_eq!(outcome.levels.get(Level::Store), 350, "it is read from memory");
}

#[test]
fn overwriting_truncating_and_holes_keep_store_and_pfs_equal() {
    let fixture = Fixture::new();
    write_in_pieces(&fixture, "f", &content(1, 9 << 20), Wish::default());
    let writer = fixture.writer("f", Wish::default());
    writer.write_at(5_000_000, &content(2, 70_000)).unwrap();
    writer.set_size(6 << 20).unwrap();
    writer.write_at(11 << 20, &content(3, 100)).unwrap();
    writer.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 100, 9000).unwrap();
    let while_open = read_all(&*writer).unwrap().0;
    writer.flush().unwrap();
    drop(writer);
    let expected = std::fs::read(fixture.path("f")).unwrap();
    assert_eq!(while_open, expected);
    assert_eq!(fixture.read("f").0, expected);
}

#[test]
fn readers_see_what_a_writer_of_the_same_node_writes() {
    let fixture = Fixture::new();
    fixture.put("f", &content(1, 9 << 20));
    let reader = fixture.open("f");
    read_all(&*reader).unwrap();
    let writer = fixture.writer("f", Wish::default());
    writer.write_at(4_194_300, b"across a block edge").unwrap();
    let mut bytes = [0; 19];
    reader.read_at(4_194_300, &mut bytes).unwrap();
    assert_eq!(&bytes, b"across a block edge");
    writer.write_at(9 << 20, b"appended").unwrap();
    let mut tail = [0; 8];
    assert_eq!(reader.read_at(9 << 20, &mut tail).unwrap().bytes, 8);
    assert_eq!(&tail, b"appended");
}

#[test]
fn appends_land_at_the_end_whatever_the_offset() {
    let fixture = Fixture::new();
    fixture.put("f", b"start ");
    let writer = {
        let lower = std::fs::File::options().read(true).append(true).open(fixture.path("f"));
        fixture
            .node
            .open(tidepool_proto::OpenRequest {
                lower: lower.unwrap().into(),
                access: Access::ReadWrite,
                read_mode: None,
                write_mode: None,
                created: false,
                append: true,
                truncate: false,
                user_id: 0,
                changes_as: None,
            })
            .unwrap()
    };
    assert_eq!(writer.write_at(0, b"one ").unwrap(), 6);
    assert_eq!(writer.write_at(0, b"two").unwrap(), 10);
    writer.flush().unwrap();
    assert_eq!(fixture.read("f").0, b"start one two");
    assert_eq!(std::fs::read(fixture.path("f")).unwrap(), b"start one two");
}

#[test]
fn bypass_keeps_nothing() {
    let fixture = Fixture::new();
    write_in_pieces(&fixture, "f", &content(1, 5 << 20), write_mode(WriteMode::Bypass));
    assert_eq!(fixture.node.status().store.resident_bytes, 0);
    let reader = fixture.try_open("f", Access::Read, read_mode(ReadMode::Bypass)).unwrap();
    let (bytes, outcome) = read_all(&*reader).unwrap();
    assert_eq!(bytes, content(1, 5 << 20));
    assert_eq!(outcome.levels.get(Level::Pfs), 5 << 20);
    assert_eq!(fixture.node.status().store.resident_bytes, 0);
}

#[test]
fn a_bypassing_reader_follows_a_file_that_another_program_appends_to() {
    let fixture = Fixture::new();
    let path = fixture.put("log", b"one ");
    let reader = fixture.try_open("log", Access::Read, read_mode(ReadMode::Bypass)).unwrap();
    let mut buffer = [0; 100];
    assert_eq!(reader.read_at(0, &mut buffer).unwrap().bytes, 4);
    overwrite(&path, 4, b"two");
    assert_eq!(reader.read_at(4, &mut buffer).unwrap().bytes, 3);
    assert_eq!(&buffer[..3], b"two");
    assert_eq!(reader.size().unwrap(), 7);
}

#[test]
fn reading_from_memory_only_never_goes_to_the_pfs() {
    for size in [3000, 5 << 20] {
        let fixture = Fixture::new();
        fixture.put("f", &content(1, size));
        let wish = read_mode(ReadMode::Memory);
        let error = read_all(&*fixture.try_open("f", Access::Read, wish).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotResident);
        assert_eq!(fixture.pfs_read_bytes(), 0);
        fixture.read("f");
        let reader = fixture.try_open("f", Access::Read, wish).unwrap();
        assert_eq!(read_all(&*reader).unwrap().0, content(1, size));
    }
}

/// Whoever made it was not refused before, and cannot undo it.
#[test]
fn a_file_that_was_made_before_a_drain_is_opened_and_written_down() {
    let fixture = Fixture::new();
    fixture.put("old", b"old");
    fixture.node.drain().unwrap();
    let refused = fixture.try_open("old", Access::ReadWrite, write_mode(WriteMode::Memory));
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::NodeUnavailable));
    let file = fixture.writer("new", write_mode(WriteMode::Memory));
    file.write_at(0, b"bytes").unwrap();
    drop(file);
    fixture.node.drain().unwrap();
    assert_eq!(std::fs::read(fixture.path("new")).unwrap(), b"bytes");
}

#[test]
fn memory_writes_leave_a_stub_and_are_written_down_at_drain() {
    let fixture = Fixture::new();
    let bytes = content(1, 9 << 20);
    write_in_pieces(&fixture, "f", &bytes, write_mode(WriteMode::Memory));
    assert_eq!(std::fs::metadata(fixture.path("f")).unwrap().len(), 0, "a stub");
    assert_eq!(fixture.read("f").0, bytes);
    let status = fixture.node.status();
    assert_eq!((status.memory_only_files, status.memory_only_bytes), (1, 9 << 20));
    let id = fixture.open("f").version().id;
    assert_eq!(fixture.node.memory_only_size(id, 0), Some(9 << 20));
    fixture.node.drain().unwrap();
    assert_eq!(std::fs::read(fixture.path("f")).unwrap(), bytes);
    assert_eq!(fixture.node.status().memory_only_files, 0);
}

/// As for a file that was renamed to where another rule holds.
#[test]
fn who_has_a_file_open_to_write_it_through_makes_durable_what_was_in_memory_only() {
    let fixture = Fixture::new();
    for (name, append, sync) in [("a", false, true), ("b", true, false), ("c", true, true)] {
        let mut bytes = content(1, 300_000);
        write_in_pieces(&fixture, name, &bytes, write_mode(WriteMode::Memory));
        let wish = Wish { append, ..write_mode(WriteMode::Through) };
        let file = fixture.writer(name, wish);
        if append {
            file.write_at(0, b"more").unwrap();
            bytes.extend(b"more");
        }
        if sync { file.sync(false) } else { file.flush() }.unwrap();
        assert!(std::fs::read(fixture.path(name)).unwrap() == bytes, "{name}");
    }
}

/// As for a file that was renamed to where another rule holds.
#[test]
fn what_is_written_past_the_store_takes_the_file_out_of_memory() {
    let fixture = Fixture::new();
    for (name, append) in [("a", false), ("b", true)] {
        let mut bytes = content(1, 300_000);
        write_in_pieces(&fixture, name, &bytes, write_mode(WriteMode::Memory));
        let file = fixture.writer(name, Wish { append, ..write_mode(WriteMode::Bypass) });
        file.write_at(0, b"more").unwrap();
        match append {
            true => bytes.extend(b"more"),
            false => bytes[..4].copy_from_slice(b"more"),
        }
        assert!(std::fs::read(fixture.path(name)).unwrap() == bytes, "{name}");
        file.set_size(5).unwrap();
        assert!(std::fs::read(fixture.path(name)).unwrap() == bytes[..5], "{name}");
    }
    write_in_pieces(&fixture, "c", &content(1, 300_000), write_mode(WriteMode::Memory));
    fixture.writer("c", write_mode(WriteMode::Bypass)).sync(false).unwrap();
    assert!(std::fs::read(fixture.path("c")).unwrap() == content(1, 300_000));
}

#[test]
fn memory_writes_beyond_the_capacity_go_down_to_the_pfs() {
    let fixture = Fixture::new();
    for number in 0..6 {
        let bytes = content(number, 20 << 20);
        let name = format!("f{number}");
        write_in_pieces(&fixture, &name, &bytes, write_mode(WriteMode::Memory));
    }
    let status = fixture.node.status();
    assert!(status.store.resident_bytes_peak <= CAPACITY);
    for number in 0..6 {
        assert_eq!(fixture.read(&format!("f{number}")).0, content(number, 20 << 20));
    }
}

#[test]
fn a_memory_file_larger_than_the_store_continues_on_the_pfs() {
    let fixture = Fixture::new();
    let bytes = content(7, 100 << 20);
    write_in_pieces(&fixture, "f", &bytes, write_mode(WriteMode::Memory));
    assert_eq!(fixture.read("f").0, bytes);
}

#[test]
fn appends_to_a_memory_file_that_outgrows_the_store_are_made_once() {
    let fixture = Fixture::new();
    let wish = Wish { append: true, ..write_mode(WriteMode::Memory) };
    let file = fixture.writer("f", wish);
    // Of a length that no block is a multiple of, so that one append is in two blocks.
    let bytes = content(7, 100_000_000);
    for piece in bytes.chunks(1_000_000) {
        file.write_at(0, piece).unwrap();
    }
    file.flush().unwrap();
    drop(file);
    assert!(fixture.read("f").0 == bytes);
    assert!(std::fs::read(fixture.path("f")).unwrap() == bytes);
}

#[test]
fn a_reader_beside_thousands_of_opens_ends_in_peace() {
    let fixture = Fixture::new();
    fixture.put("f", &content(1, 5000));
    let reader = fixture.open("f");
    let writer = fixture.try_open("f", Access::ReadWrite, Wish::default()).unwrap();
    for round in 0..20_000 {
        // Refused, after which nothing that is cached of the file is trusted.
        writer.allocate(libc::FALLOC_FL_COLLAPSE_RANGE, 1, 1).unwrap_err();
        if round % 5_000 == 0 {
            assert_eq!(reader.size().unwrap(), 5000);
        }
    }
    // On a small stack, as those of the node's threads are.
    let end = std::thread::Builder::new().stack_size(256 << 10);
    end.spawn(move || drop((reader, writer))).unwrap().join().unwrap();
}

#[test]
fn resizing_to_nothing_writes_memory_only_files_down() {
    let fixture = Fixture::new();
    write_in_pieces(&fixture, "f", &content(1, 9 << 20), write_mode(WriteMode::Memory));
    let request = AdminRequest::Resize { size: MemorySize::Bytes(0) };
    let AdminReply::Resized(report) = fixture.node.admin(request, None, 0).unwrap() else {
        panic!()
    };
    assert_eq!(report.resident_bytes, 0, "{report:?}");
    assert_eq!(std::fs::read(fixture.path("f")).unwrap(), content(1, 9 << 20));
}

#[test]
fn memory_only_bytes_of_a_dead_node_are_reported_lost_not_zero() {
    let fixture = Fixture::new();
    write_in_pieces(&fixture, "f", &content(1, 5000), write_mode(WriteMode::Memory));
    // The node ends without a drain, as if it had been killed.
    let second = tidepool_node::Node::start(config(fixture.directory.path(), |_| ())).unwrap();
    let lower = std::fs::File::open(fixture.path("f")).unwrap().into();
    let error = second.open(tidepool_proto::OpenRequest::to_read(lower, 0)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let stub = std::fs::File::open(fixture.path("f")).unwrap().into();
    let reply = second.admin(AdminRequest::Explain, Some(stub), 0).unwrap();
    let AdminReply::Explain(explained) = reply else { panic!("{reply:?}") };
    assert_eq!((explained.cached_as.as_str(), explained.next_read.as_str()), ("lost", "nowhere"));
    let holder = format!("process {}", std::process::id());
    assert!(explained.why_not.iter().any(|why| why.contains("EIO") && why.contains(&holder)));
    second.stop();
}

/// Who says that his open created the file says what was true once.
#[test]
fn an_open_that_created_its_file_takes_no_bytes_away_that_came_since() {
    let fixture = Fixture::new();
    let created =
        |name: &str, node: &tidepool_node::Node| open_as_created(node, &fixture.path(name));
    fixture.put("theirs", &content(1, 5000));
    let writer = created("theirs", &fixture.node).unwrap();
    assert_eq!(fixture.node.status().memory_only_files, 0);
    writer.write_at(5000, b"more").unwrap();
    writer.flush().unwrap();
    let both = [&content(1, 5000)[..], b"more"].concat();
    assert!(fixture.read("theirs").0 == both);
    assert!(std::fs::read(fixture.path("theirs")).unwrap() == both);

    fixture.put("empty", b"");
    let _new = created("empty", &fixture.node).unwrap();
    assert_eq!(fixture.node.status().memory_only_files, 1, "a new one is in memory");

    write_in_pieces(&fixture, "lost", &content(1, 5000), write_mode(WriteMode::Memory));
    // The node ends without a drain, as if it had been killed.
    let second = tidepool_node::Node::start(config(fixture.directory.path(), |_| ())).unwrap();
    assert_eq!(created("lost", &second).err().unwrap().kind(), ErrorKind::Lost);
    second.stop();
    assert!(fixture.read("lost").0 == content(1, 5000), "the stub was left alone");
}

#[test]
fn expendable_memory_only_files_are_dropped() {
    let fixture = Fixture::with(|config| {
        config.rules.push(scratch_rule("scratch"));
    });
    std::fs::create_dir(fixture.path("scratch")).unwrap();
    write_in_pieces(&fixture, "scratch/f", &content(1, 5 << 20), Wish::default());
    assert_eq!(fixture.node.status().memory_only_files, 1, "the rule's mode applies");
    fixture.node.drain().unwrap();
    assert_eq!(std::fs::metadata(fixture.path("scratch/f")).unwrap().len(), 0);
    assert_eq!(fixture.node.status().memory_only_files, 0);
}

#[test]
fn a_removed_memory_only_file_frees_its_memory() {
    let fixture = Fixture::new();
    write_in_pieces(&fixture, "f", &content(1, 9 << 20), write_mode(WriteMode::Memory));
    let id = fixture.open("f").version().id;
    std::fs::remove_file(fixture.path("f")).unwrap();
    fixture.node.removed(id);
    assert_eq!(fixture.node.status().store.resident_bytes, 0);
    assert_eq!(fixture.node.status().memory_only_files, 0);
}

#[test]
fn a_memory_only_file_is_no_longer_than_the_pfs_lets_it_be() {
    let fixture = Fixture::new();
    let bare = std::fs::File::create(fixture.path("bare")).unwrap();
    let file = fixture.writer("file", write_mode(WriteMode::Memory));
    file.write_at(0, b"kept").unwrap();
    for bytes in [1 << 44, 1 << 50, 1 << 62] {
        let refusal = bare.set_len(bytes).err().map(|error| error.raw_os_error().unwrap());
        let refused = file.set_size(bytes).err().map(|error| error.errno());
        assert_eq!(refused, refusal, "{bytes} bytes");
        if refusal.is_some() {
            let written = file.write_at(bytes - 1, b"x");
            assert_eq!(written.err().map(|error| error.errno()), refusal, "{bytes} bytes");
        }
        file.set_size(4).unwrap();
    }
    file.sync(false).unwrap();
    assert_eq!(fixture.read("file").0, b"kept");
}
