//! File data through the mount, over services that keep nothing and everything.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::sync::Arc;

use support::{Mounted, as_user, errno, mounted, mounted_with};
use tidepool_fake_node::{FakeNode, FakeService, Hooks};
use tidepool_fuse::MountConfig;
use tidepool_proto::stub::{Mark, STUB_ATTRIBUTE, StubState};
use tidepool_proto::{Error, ErrorKind, FileService, Version};

fn on_each_service(test: impl Fn(&Mounted)) {
    let services: [Arc<dyn FileService>; 3] =
        [FakeService::bypass(), FakeService::memory(), FakeService::memory_without_pins()];
    for service in services {
        let Some(mount) = mounted(service) else { return };
        test(&mount);
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 31 + index / 4096) as u8).collect()
}

#[test]
fn what_is_written_is_read_on_both_sides() {
    on_each_service(|mount| {
        let (lower, upper) = mount.both("file");
        let data = pattern(5 << 20);
        fs::write(&upper, &data).unwrap();
        assert!(fs::read(&lower).unwrap() == data, "on the PFS");
        assert!(fs::read(&upper).unwrap() == data, "through the mount");
        let file = File::open(&upper).unwrap();
        let mut piece = vec![0; 1 << 20];
        for offset in [0, 1, 4095, (1 << 20) - 7, (5 << 20) - 10] {
            let bytes = file.read_at(&mut piece, offset).unwrap();
            let expected = &data[offset as usize..data.len().min(offset as usize + piece.len())];
            assert!(&piece[..bytes] == expected, "at {offset}");
        }
        assert_eq!(file.read_at(&mut piece, 5 << 20).unwrap(), 0, "at the end");
        assert_eq!(file.read_at(&mut piece, 1 << 40).unwrap(), 0, "far behind the end");
    });
}

#[test]
fn requests_of_other_sizes_carry_the_same_bytes() {
    // The largest is more than most kernels take.
    for request_bytes_max in [64 << 10, 16 << 20] {
        let service = FakeService::memory_without_pins();
        let sized = |config: &mut MountConfig| config.request_bytes_max = request_bytes_max;
        let Some(mount) = mounted_with(service, sized) else { return };
        let (lower, upper) = mount.both("file");
        let data = pattern((9 << 20) + 5);
        fs::write(&upper, &data).unwrap();
        assert!(fs::read(&lower).unwrap() == data, "on the PFS");
        let mut read = vec![0; data.len()];
        File::open(&upper).unwrap().read_exact_at(&mut read, 0).unwrap();
        assert!(read == data, "{request_bytes_max} bytes a request");
    }
}

#[test]
fn writes_at_any_place_and_length_changes_agree_with_the_pfs() {
    on_each_service(|mount| {
        let (lower, upper) = mount.both("file");
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        let file = options.open(&upper).unwrap();
        file.write_at(b"middle", 10_000).unwrap();
        file.write_at(b"start", 0).unwrap();
        file.set_len(20_000).unwrap();
        file.write_at(b"end", 19_997).unwrap();
        assert!(fs::read(&lower).unwrap() == fs::read(&upper).unwrap());
        file.set_len(3).unwrap();
        assert_eq!(fs::read(&upper).unwrap(), b"sta");
        File::options().write(true).open(&upper).unwrap().set_len(5).unwrap();
        assert_eq!(fs::read(&lower).unwrap(), b"sta\0\0");
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        fs::write(&upper, b"again").unwrap();
        assert_eq!(fs::read(&lower).unwrap(), b"again", "opening with truncation");
    });
}

#[test]
fn appends_from_several_opens_do_not_overwrite_each_other() {
    on_each_service(|mount| {
        let (lower, upper) = mount.both("log");
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let upper = &upper;
                scope.spawn(move || {
                    let mut log = OpenOptions::new().append(true).create(true).open(upper).unwrap();
                    for _ in 0..100 {
                        log.write_all(&[b'0' + writer; 10]).unwrap();
                    }
                });
            }
        });
        let log = fs::read(&lower).unwrap();
        assert_eq!(log.len(), 4 * 100 * 10);
        assert!(log.chunks(10).all(|record| record.iter().all(|byte| *byte == record[0])));
    });
}

#[test]
fn exclusive_creation_lets_one_win() {
    on_each_service(|mount| {
        let (lower, upper) = mount.both("file");
        fs::write(&lower, b"there").unwrap();
        let create = OpenOptions::new().write(true).create_new(true).open(&upper);
        assert_eq!(errno(create), Some(libc::EEXIST));
        assert_eq!(fs::read(&upper).unwrap(), b"there");
    });
}

#[test]
fn direct_and_synchronous_opens_work() {
    on_each_service(|mount| {
        let upper = mount.upper.join("file");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = options.custom_flags(libc::O_DIRECT | libc::O_SYNC).open(&upper).unwrap();
        let data = pattern(8192);
        file.write_all_at(&data, 0).unwrap();
        let mut back = vec![0; 8192];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == data);
        file.sync_all().unwrap();
        file.sync_data().unwrap();
    });
}

#[test]
fn holes_ranges_and_copies_are_those_of_the_pfs() {
    on_each_service(|mount| {
        let (lower, upper) = mount.both("sparse");
        let file = File::options().read(true).write(true).create_new(true).open(&upper).unwrap();
        file.write_all_at(b"data", 1 << 20).unwrap();
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
        assert_eq!(data, 1 << 20);
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), 0);
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, 2 << 20).unwrap();
        assert_eq!(fs::metadata(&lower).unwrap().len(), 2 << 20);
        let target = File::create(mount.upper.join("copy")).unwrap();
        let (mut from, mut to) = (1 << 20, 5);
        let copied =
            rustix::fs::copy_file_range(&file, Some(&mut from), &target, Some(&mut to), 4).unwrap();
        assert_eq!(copied, 4);
        assert_eq!(fs::read(mount.lower.join("copy")).unwrap(), b"\0\0\0\0\0data");
    });
}

#[test]
fn a_huge_sparse_file_reads_as_zeros() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let upper = mount.upper.join("huge");
    let mut file = File::options().read(true).write(true).create_new(true).open(&upper).unwrap();
    file.set_len(1 << 40).unwrap();
    file.seek(SeekFrom::Start((1 << 40) - 4096)).unwrap();
    let mut end = Vec::new();
    file.read_to_end(&mut end).unwrap();
    assert_eq!(end, vec![0; 4096]);
}

#[test]
fn many_threads_read_what_one_wrote() {
    on_each_service(|mount| {
        let upper = mount.upper.join("file");
        let data = pattern(3 << 20);
        fs::write(&upper, &data).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (upper, data) = (&upper, &data);
                scope.spawn(move || {
                    let file = File::open(upper).unwrap();
                    let mut piece = vec![0; 70_000];
                    for step in 0..40 {
                        let offset = (thread * 7919 + step * 104_729) % (data.len() - 70_000);
                        file.read_exact_at(&mut piece, offset as u64).unwrap();
                        assert!(piece == data[offset..offset + 70_000], "at {offset}");
                    }
                });
            }
        });
    });
}

/// That of a file in the memory of another node.
fn mark_of_another(length: u64, state: StubState) -> Mark {
    Mark {
        length,
        host: "h".into(),
        process_id: 1,
        node: "0123".into(),
        member: "n1".into(),
        copies: None,
        state,
    }
}

fn set_mark(path: &std::path::Path, mark: &Mark) {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, STUB_ATTRIBUTE, mark.text().as_bytes(), flags).unwrap();
}

/// Who puts a copy of it in its place, as its node is gone, knows of one name.
#[test]
fn a_file_of_another_node_comes_to_the_pfs_before_it_gets_another_name() {
    let refused = |_: &FakeNode, _: &Version| {
        Err(Error::new(ErrorKind::Lost, "opening a file", "its bytes cannot be had"))
    };
    let hooks = Hooks { opened: refused, ..Hooks::default() };
    let node = FakeNode { has_other_nodes: true, hooks, ..FakeNode::default() };
    let Some(mount) = mounted(Arc::new(FakeService(Arc::new(node)))) else { return };
    // In memory; and being written to the PFS when its node ended.
    for (name, length, state) in [("held", 0, StubState::Held), ("amid", 5, StubState::Writing)] {
        let (lower, upper) = mount.both(name);
        fs::write(&lower, &b"bytes"[..length]).unwrap();
        set_mark(&lower, &mark_of_another(5, state));
        let linked = fs::hard_link(&upper, mount.upper.join("another"));
        assert_eq!(linked.unwrap_err().raw_os_error(), Some(libc::EIO), "{name}");
    }
    let (lower, upper) = mount.both("ordinary");
    fs::write(&lower, "bytes").unwrap();
    fs::hard_link(&upper, mount.upper.join("another")).unwrap();
}

#[test]
fn a_file_in_the_memory_of_another_node_has_the_length_that_its_mark_tells() {
    let mark = mark_of_another(12_345, StubState::Held);
    for has_other_nodes in [true, false] {
        let service = FakeService(Arc::new(FakeNode { has_other_nodes, ..FakeNode::default() }));
        let Some(mount) = mounted(Arc::new(service)) else { return };
        let (lower, upper) = mount.both("file");
        fs::write(&lower, "").unwrap();
        set_mark(&lower, &mark);
        fs::write(mount.both("empty").0, "").unwrap();
        let length = |path: &std::path::Path| fs::metadata(path).unwrap().len();
        let told = if has_other_nodes { 12_345 } else { 0 };
        assert_eq!(length(&upper), told);
        // Whoever asked before: a user that may not read it is told the same, as of any file.
        fs::set_permissions(&lower, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(lower.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        for _ in 0..400 {
            let seen = as_user(65_534, 65_534, &[], || fs::metadata(&upper).map(|it| it.len()));
            assert_eq!((seen.unwrap(), length(&upper)), (told, told));
        }
        assert_eq!(length(&mount.both("empty").1), 0);
        // No file is as long as this.
        let absurd = Mark { length: u64::MAX, ..mark.clone() };
        set_mark(&lower, &absurd);
        assert_eq!(length(&upper), 0);
        // What another program writes over a stub is its file.
        fs::write(&lower, "hello").unwrap();
        assert_eq!(length(&upper), 5);
    }
}
