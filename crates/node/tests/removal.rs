//! Files whose last name goes: their memory and their room on the PFS come back at once.

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use support::*;
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::{Access, FileId, FileService, OpenFile, WriteMode};

/// One transfer at a time, in many slow pieces.
fn slow() -> Fixture {
    let piece = 64 << 10;
    let change = |config: &mut tidepool_proto::config::NodeConfig| {
        config.transfers = 1;
        config.transfer_bytes = piece;
    };
    Fixture::faulty_with("read:slow=200ms", change).0
}

/// Descriptors of this process on a file, also after its name went.
fn descriptors(path: &Path) -> usize {
    let name = path.to_str().unwrap();
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let target = std::fs::read_link(entry.ok()?.path()).ok()?;
        Some(target.to_string_lossy().strip_suffix(" (deleted)")? == name)
    });
    links.filter(|is_it| *is_it).count()
}

/// Takes the name away as the mount does.
fn remove(fixture: &Fixture, path: &Path) {
    let stat = std::fs::metadata(path).unwrap();
    std::fs::remove_file(path).unwrap();
    fixture.node.removed(FileId { device: stat.dev(), inode: stat.ino() });
}

fn begin_to_read(fixture: &Fixture, name: &str) -> Arc<dyn OpenFile> {
    let open = fixture.open(name);
    open.prefetch(0, open.size().unwrap());
    open
}

#[test]
fn a_transfer_of_a_removed_file_stops() {
    let fixture = slow();
    let path = fixture.put("f", &content(1, 5 * BLOCK as usize));
    drop(begin_to_read(&fixture, "f"));
    while fixture.pfs_read_bytes() == 0 {
        std::thread::yield_now();
    }
    remove(&fixture, &path);
    while descriptors(&path) > 0 {
        std::thread::yield_now();
    }
    assert!(fixture.pfs_read_bytes() < BLOCK, "{} bytes for nobody", fixture.pfs_read_bytes());
    assert_eq!(fixture.node.status().store.resident_bytes, 0);
}

#[test]
fn waiting_transfers_of_a_removed_file_go_with_its_name_or_its_last_open() {
    let fixture = slow();
    fixture.put("other", &content(1, BLOCK as usize));
    let in_the_way = fixture.path("other");
    let other = begin_to_read(&fixture, "other");
    for name_goes_first in [false, true] {
        let path = fixture.put("f", &content(2, 5 * BLOCK as usize));
        let open = begin_to_read(&fixture, "f");
        if name_goes_first {
            remove(&fixture, &path);
            assert!(descriptors(&path) > 0, "it is open");
            drop(open);
        } else {
            drop(open);
            remove(&fixture, &path);
        }
        assert_eq!(descriptors(&path), 0);
        assert!(fixture.pfs_read_bytes() < BLOCK, "the other file is in the way still");
    }
    drop(other);
    remove(&fixture, &in_the_way);
}

fn id_of(path: &Path) -> FileId {
    let stat = std::fs::metadata(path).unwrap();
    FileId { device: stat.dev(), inode: stat.ino() }
}

/// A resident file that nobody has open.
fn resident(fixture: &Fixture, length: usize) -> FileId {
    let writer = fixture.writer("f", Wish::default());
    writer.write_at(0, &content(1, length)).unwrap();
    writer.flush().unwrap();
    id_of(&fixture.path("f"))
}

#[test]
fn a_file_that_nobody_has_open_is_discarded() {
    for length in [3000, BLOCK as usize] {
        let fixture = Fixture::new();
        let id = resident(&fixture, length);
        assert_eq!(fixture.read("f").0, content(1, length));
        assert_eq!(fixture.pfs_read_bytes(), 0, "it is resident");
        assert!(fixture.node.discard_unused(id));
        // It had another name, or another file had its name.
        assert_eq!(fixture.read("f").0, content(1, length));
        assert_eq!(fixture.pfs_read_bytes(), length as u64);
    }
}

#[test]
fn what_is_open_is_not_discarded() {
    let fixture = Fixture::new();
    let id = resident(&fixture, BLOCK as usize);
    let open = fixture.open("f");
    assert!(!fixture.node.discard_unused(id));
    std::fs::remove_file(fixture.path("f")).unwrap();
    assert_eq!(read_all(&*open).unwrap().0, content(1, BLOCK as usize));
    assert_eq!(fixture.pfs_read_bytes(), 0);
}

#[test]
fn bytes_in_memory_only_are_not_discarded() {
    let fixture = Fixture::new();
    let wish = Wish { write: Some(WriteMode::Memory), ..Wish::default() };
    let writer = fixture.try_open("f", Access::ReadWrite, wish).unwrap();
    writer.write_at(0, &content(1, BLOCK as usize)).unwrap();
    writer.flush().unwrap();
    drop(writer);
    assert!(!fixture.node.discard_unused(id_of(&fixture.path("f"))));
    assert_eq!(fixture.read("f").0, content(1, BLOCK as usize));
}

#[test]
fn what_is_pinned_is_not_discarded() {
    let fixture = Fixture::new();
    let id = resident(&fixture, BLOCK as usize);
    let file = std::fs::File::open(fixture.path("f")).unwrap();
    fixture.node.admin(AdminRequest::Pin, Some(file.into()), 0).unwrap();
    assert!(!fixture.node.discard_unused(id));
    assert_eq!(fixture.node.status().store.pinned_bytes, BLOCK);
}
