//! The POSIX store on real file systems: a plain directory, tmpfs, and an ext4 image where the
//! machine lets one be mounted. Every test works in a directory that it makes and removes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::support::{AlignedBuffer, cached_bytes, on_every_file_system, open_store, pattern};
use tidepool_pfs::{LowerStore, PosixOptions, PosixStore};
use tidepool_proto::ErrorKind;
use tidepool_proto::mapping::{Access, Mapping};

fn open(path: &Path, flags: i32) -> OwnedFd {
    let access = flags & libc::O_ACCMODE;
    std::fs::OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(flags & !libc::O_ACCMODE)
        .open(path)
        .unwrap()
        .into()
}

#[test]
fn blocks_are_read_whole_and_leave_no_copy() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let content = pattern(3 * 4096 + 1234, 1);
        let path = root.join("data");
        std::fs::write(&path, &content).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let file = store.file(open(&path, libc::O_RDONLY)).unwrap();
        for length in [u64::MAX >> 1, u64::MAX, content.len() as u64] {
            std::fs::read(&path).unwrap();
            file.drop_cached(0, length);
            assert!(cached_bytes(&path) == 0 || fs_type == "tmpfs", "{fs_type} {length}");
        }
        for (offset, length) in [(0, 8192), (8192, 8192), (0, 65_536), (4096, 5000), (100, 5000)] {
            let mut buffer = AlignedBuffer::new(length);
            let count = file.read_block(offset as u64, buffer.bytes()).unwrap();
            let end = content.len().min(offset + length);
            assert_eq!(count, end - offset, "{fs_type} {offset} {length}");
            assert!(buffer.bytes()[..count] == content[offset..end], "{fs_type} {offset} {length}");
        }
        let mut beyond = AlignedBuffer::new(4096);
        assert_eq!(file.read_block(1 << 30, beyond.bytes()).unwrap(), 0);
        assert_eq!(file.read_block(16_384, beyond.bytes()).unwrap(), 0);
        if fs_type != "tmpfs" {
            assert_eq!(cached_bytes(&path), 0, "{fs_type} keeps a second copy");
        }
    });
}

#[test]
fn buffered_blocks_leave_no_copy_either() {
    on_every_file_system(|root, fs_type| {
        let options = PosixOptions { direct_io: false, ..PosixOptions::default() };
        let store = PosixStore::open(root, options).unwrap();
        let content = pattern(1 << 20, 2);
        let path = root.join("data");
        std::fs::write(&path, &content).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let file = store.file(open(&path, libc::O_RDONLY)).unwrap();
        let mut buffer = AlignedBuffer::new(1 << 20);
        assert_eq!(file.read_block(0, buffer.bytes()).unwrap(), 1 << 20);
        assert!(buffer.bytes() == content);
        if fs_type != "tmpfs" {
            assert_eq!(cached_bytes(&path), 0, "{fs_type}");
        }
    });
}

#[test]
fn direct_reads_see_dirty_pages_of_others() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("dirty");
        let mut other = File::create_new(&path).unwrap();
        other.write_all(&pattern(1 << 20, 1)).unwrap();
        other.sync_all().unwrap();
        let file = store.file(open(&path, libc::O_RDONLY)).unwrap();
        let mut buffer = AlignedBuffer::new(1 << 20);
        for round in 2..6u8 {
            let fresh = pattern(1 << 20, round);
            other.write_all_at(&fresh[4000..900_000], 4000).unwrap();
            assert_eq!(file.read_block(0, buffer.bytes()).unwrap(), 1 << 20);
            assert!(buffer.bytes()[4000..900_000] == fresh[4000..900_000], "{fs_type} {round}");
        }
        // Also what was stored through a shared memory mapping.
        let other = File::options().read(true).write(true).open(&path).unwrap();
        let mapped = Mapping::shared(&other, 0, 1 << 20, Access::ReadWrite).unwrap();
        mapped.byte(12_345).store(0xAB, Ordering::Relaxed);
        assert_eq!(file.read_block(0, buffer.bytes()).unwrap(), 1 << 20);
        assert_eq!(buffer.bytes()[12_345], 0xAB, "{fs_type}");
    });
}

#[test]
fn the_shared_description_of_a_client_is_left_alone() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("shared");
        std::fs::write(&path, pattern(100_000, 3)).unwrap();
        let mut client = File::options().read(true).append(true).open(&path).unwrap();
        let mut head = [0; 10];
        client.read_exact(&mut head).unwrap();
        // SAFETY: F_GETFL on an open descriptor.
        let flags = || unsafe { libc::fcntl(client.as_raw_fd(), libc::F_GETFL) };
        let before = flags();
        let file = store.file(client.try_clone().unwrap().into()).unwrap();
        let mut buffer = AlignedBuffer::new(8192);
        file.read_block(0, buffer.bytes()).unwrap();
        file.write_at(5, b"five").unwrap();
        assert_eq!(file.append(b"tail").unwrap(), 100_000);
        assert_eq!(flags(), before, "{fs_type}");
        let mut next = [0; 4];
        client.read_exact(&mut next).unwrap();
        assert_eq!(next, pattern(100_000, 3)[10..14], "{fs_type}: the position has moved");
        let now = std::fs::read(&path).unwrap();
        assert_eq!(&now[5..9], b"five", "{fs_type}: a positioned write must not append");
        assert_eq!(now.len(), 100_004);
    });
}

#[test]
fn a_client_with_direct_io_gets_any_offset() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("direct");
        let content = pattern(100_000, 8);
        std::fs::write(&path, &content).unwrap();
        let file = store.file(open(&path, libc::O_RDWR | libc::O_DIRECT)).unwrap();
        let mut bytes = vec![0; 5000];
        assert_eq!(file.read_at(333, &mut bytes[1..]).unwrap(), 4999, "{fs_type}");
        assert!(bytes[1..] == content[333..333 + 4999], "{fs_type}");
        file.write_at(777, b"odd").unwrap();
        assert_eq!(file.append(b"tail").unwrap(), 100_000);
        assert_eq!(&std::fs::read(&path).unwrap()[777..780], b"odd", "{fs_type}");
    });
}

#[test]
fn a_client_that_sets_append_later_cannot_move_writes() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("late");
        std::fs::write(&path, [0; 100]).unwrap();
        let client = File::options().read(true).write(true).open(&path).unwrap();
        let file = store.file(client.try_clone().unwrap().into()).unwrap();
        // SAFETY: changes a flag of an open descriptor.
        unsafe { libc::fcntl(client.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
        file.write_at(50, b"here").unwrap();
        let now = std::fs::read(&path).unwrap();
        assert_eq!((now.len(), &now[50..54]), (100, &b"here"[..]), "{fs_type}");
    });
}

#[test]
fn appends_of_many_land_whole_and_where_they_say() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("log");
        File::create_new(&path).unwrap();
        let landed = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let (store, path, landed) = (&store, &path, &landed);
                scope.spawn(move || {
                    let file = store.file(open(path, libc::O_RDWR)).unwrap();
                    for round in 0..50u8 {
                        let record = [writer * 50 + round; 37];
                        let offset = file.append(&record).unwrap();
                        landed.lock().unwrap().push((offset, record));
                    }
                });
            }
        });
        let now = std::fs::read(&path).unwrap();
        assert_eq!(now.len(), 4 * 50 * 37, "{fs_type}");
        for (offset, record) in landed.into_inner().unwrap() {
            assert_eq!(now[offset as usize..][..37], record, "{fs_type}");
        }
    });
}

#[test]
fn descriptors_that_give_no_right_are_refused() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("file");
        std::fs::write(&path, b"secret").unwrap();
        let kind = |descriptor: OwnedFd| store.file(descriptor).err().map(|error| error.kind());
        let path_only = open(&path, libc::O_RDONLY | libc::O_PATH);
        assert_eq!(kind(path_only), Some(ErrorKind::PermissionDenied), "{fs_type}");
        assert_eq!(kind(open(root, libc::O_RDONLY)), Some(ErrorKind::InvalidInput), "{fs_type}");
        let null = open(Path::new("/dev/null"), libc::O_RDONLY);
        assert_eq!(kind(null), Some(ErrorKind::InvalidInput), "{fs_type}");
        let elsewhere = open(Path::new("/proc/self/status"), libc::O_RDONLY);
        assert_eq!(kind(elsewhere), Some(ErrorKind::PermissionDenied), "{fs_type}");

        // A descriptor for writing must not become one for reading by being opened again.
        let write_only = store.file(open(&path, libc::O_WRONLY)).unwrap();
        let mut buffer = AlignedBuffer::new(4096);
        for result in
            [write_only.read_block(0, buffer.bytes()), write_only.read_at(0, buffer.bytes())]
        {
            assert_eq!(result.unwrap_err().errno(), libc::EBADF, "{fs_type}");
        }
        let read_only = store.file(open(&path, libc::O_RDONLY)).unwrap();
        assert_eq!(read_only.write_at(0, b"x").unwrap_err().errno(), libc::EBADF);
        assert_eq!(read_only.append(b"x").unwrap_err().errno(), libc::EBADF);
        assert!(read_only.set_size(0).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
        // The same for one that has flags of its own.
        let read_append = store.file(open(&path, libc::O_RDONLY | libc::O_APPEND)).unwrap();
        assert_eq!(read_append.write_at(0, b"x").unwrap_err().errno(), libc::EBADF);
    });
}

#[test]
fn names_are_followed_through_renames() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let path = root.join("a/b/file");
        std::fs::write(&path, b"x").unwrap();
        let file = store.file(open(&path, libc::O_RDWR)).unwrap();
        assert_eq!(file.relative_path().unwrap(), Path::new("a/b/file"), "{fs_type}");
        std::fs::rename(root.join("a"), root.join("c")).unwrap();
        std::fs::rename(root.join("c/b/file"), root.join("odd (deleted)")).unwrap();
        assert_eq!(file.relative_path().unwrap(), Path::new("odd (deleted)"));
        file.sync_directory_entry().unwrap();
        std::fs::remove_file(root.join("odd (deleted)")).unwrap();
        std::fs::write(root.join("odd (deleted)"), b"another").unwrap();
        assert_eq!(file.relative_path(), None, "{fs_type}: unlinked");
        file.sync_directory_entry().unwrap();

        let kept = root.join("kept");
        std::fs::write(&kept, b"x").unwrap();
        let file = store.file(open(&kept, libc::O_RDONLY)).unwrap();
        std::fs::hard_link(&kept, root.join("second")).unwrap();
        std::fs::remove_file(&kept).unwrap();
        file.sync_directory_entry().unwrap();

        let outside = PosixStore::open(&root.join("c"), PosixOptions::default()).unwrap();
        let second = outside.file(open(&root.join("second"), libc::O_RDONLY)).unwrap();
        assert_eq!(second.relative_path(), None, "{fs_type}: outside the root");
        second.sync_directory_entry().unwrap();
        symlink("c", root.join("link")).unwrap();
        let through_link = PosixStore::open(&root.join("link"), PosixOptions::default()).unwrap();
        assert_eq!(through_link.root(), std::fs::canonicalize(root.join("c")).unwrap());
    });
}

#[test]
fn versions_tell_equal_length_changes_apart() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("v");
        std::fs::write(&path, b"aaaa").unwrap();
        let file = store.file(open(&path, libc::O_RDONLY)).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        let version = file.version().unwrap();
        assert_eq!((version.id.device, version.id.inode), (metadata.dev(), metadata.ino()));
        assert_eq!(version.size, 4);
        let granularity = store.features().timestamp_granularity_ns;
        let writer = File::options().write(true).open(&path).unwrap();
        for round in 0..200u8 {
            let before = file.version().unwrap();
            let settled = !before.is_racy(store.now_ns(), granularity);
            writer.write_all_at(&[round; 4], 0).unwrap();
            let after = file.version().unwrap();
            assert!(!settled || before != after, "{fs_type}: a change after a settled version");
        }
    });
}

#[test]
fn a_version_settles_in_time() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("v");
        std::fs::write(&path, b"aaaa").unwrap();
        let file = store.file(open(&path, libc::O_RDONLY)).unwrap();
        let version = file.version().unwrap();
        let granularity = store.features().timestamp_granularity_ns;
        while version.is_racy(store.now_ns(), granularity) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(store.features().remote, fs_type == "pfs");
    });
}

#[test]
fn sparse_files_of_a_tebibyte() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let path = root.join("sparse");
        let handle = File::create_new(&path).unwrap();
        handle.set_len(1 << 40).unwrap();
        handle.write_all_at(b"needle", (1 << 39) + 4096).unwrap();
        let file = store.file(open(&path, libc::O_RDWR)).unwrap();
        assert_eq!(file.version().unwrap().size, 1 << 40);
        let mut buffer = AlignedBuffer::new(8192);
        assert_eq!(file.read_block(1 << 39, buffer.bytes()).unwrap(), 8192, "{fs_type}");
        assert_eq!(&buffer.bytes()[4096..4102], b"needle");
        assert!(buffer.bytes()[..4096].iter().all(|byte| *byte == 0));
        assert_eq!(file.read_block((1 << 40) - 4096, buffer.bytes()).unwrap(), 4096);
        file.set_size(10).unwrap();
        assert_eq!(file.read_at(0, buffer.bytes()).unwrap(), 10);
        match file.allocate(libc::FALLOC_FL_KEEP_SIZE, 0, 4096) {
            Err(error) if fs_type == "pfs" => assert_eq!(error.errno(), libc::ENOTSUP),
            other => other.unwrap(),
        }
        assert_eq!(file.version().unwrap().size, 10);
    });
}

#[test]
fn many_threads_read_one_file() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        let content = pattern(2 << 20, 9);
        let path = root.join("many");
        std::fs::write(&path, &content).unwrap();
        let file = store.file(open(&path, libc::O_RDONLY)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8usize {
                let (file, content) = (&file, &content);
                scope.spawn(move || {
                    let mut buffer = AlignedBuffer::new(64 << 10);
                    for step in 0..32usize {
                        let offset = ((thread * 7 + step * 3) % 32) * (64 << 10);
                        let count = file.read_block(offset as u64, buffer.bytes()).unwrap();
                        assert_eq!(count, 64 << 10);
                        let expected = &content[offset..offset + count];
                        assert!(buffer.bytes() == expected, "{fs_type} {offset}");
                    }
                });
            }
        });
        store.close_idle();
    });
}

#[test]
fn attributes_hints_and_durability_calls() {
    on_every_file_system(|root, fs_type| {
        let store = open_store(root);
        std::fs::create_dir_all(root.join("new/deep")).unwrap();
        let path = root.join("new/deep/x");
        File::create_new(&path).unwrap();
        let file = store.file(open(&path, libc::O_RDWR)).unwrap();
        file.write_at(0, &pattern(100_000, 4)).unwrap();
        file.start_writeback(0, 100_000);
        file.sync(true).unwrap();
        file.sync(false).unwrap();
        file.sync_directory_entry().unwrap();
        file.sync_directory_entry().unwrap();
        file.drop_cached(0, u64::MAX);
        assert_eq!(file.get_xattr("user.absent").unwrap(), None);
        if store.features().xattr {
            for length in [1, 300, 511, 512, 513, 900] {
                let value = pattern(length, 5);
                file.set_xattr("user.tidepool", &value).unwrap();
                let read = file.get_xattr("user.tidepool").unwrap().unwrap();
                assert!(read == value, "{fs_type} {length}");
            }
            file.remove_xattr("user.tidepool").unwrap();
            file.remove_xattr("user.tidepool").unwrap();
        }
        let layout = store.layout(file.descriptor());
        assert!(!layout.describe().is_empty());
    });
}

#[test]
fn a_full_disk_is_told_with_what_was_written() {
    crate::support::on_small_tmpfs(1 << 20, |root| {
        let store = open_store(root);
        let path = root.join("big");
        File::create_new(&path).unwrap();
        let file = store.file(open(&path, libc::O_RDWR)).unwrap();
        let error = file.write_at(0, &pattern(2 << 20, 1)).unwrap_err();
        assert_eq!(error.errno(), libc::ENOSPC);
        assert!(error.to_string().contains("of 2097152 bytes were written"), "{error}");
        let error = file.append(&[1; 4096]).unwrap_err();
        assert_eq!(error.errno(), libc::ENOSPC);
    });
}

#[test]
fn probing_leaves_nothing_behind_and_read_only_works() {
    crate::support::on_small_tmpfs(4 << 20, |root| {
        std::fs::write(root.join("f"), b"bytes").unwrap();
        let store = open_store(root);
        assert!(!store.features().read_only);
        assert_eq!(std::fs::read_dir(root).unwrap().count(), 1, "the probe left something");
        crate::support::remount_read_only(root);
        let store = open_store(root);
        let features = store.features();
        assert!(features.read_only && features.timestamp_granularity_ns >= 1_000_000_000);
        let file = store.file(open(&root.join("f"), libc::O_RDONLY)).unwrap();
        let mut buffer = AlignedBuffer::new(4096);
        assert_eq!(file.read_block(0, buffer.bytes()).unwrap(), 5);
        assert!(features.notes.iter().any(|note| note.contains("cannot be written")));
    });
}

#[test]
fn bad_directories_are_refused_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::write(root.join("file"), b"").unwrap();
    let error = |path: &Path| PosixStore::open(path, PosixOptions::default()).err().unwrap();
    let absent = error(&root.join("absent"));
    assert_eq!(absent.kind(), ErrorKind::InvalidInput);
    assert!(absent.to_string().contains("does not exist"), "{absent}");
    assert!(error(&root.join("file")).to_string().contains("name a directory"));
}

#[test]
fn a_write_into_the_last_room_is_taken_in_part() {
    crate::support::on_small_tmpfs(1 << 20, |root| {
        let store = open_store(root);
        for (name, offset) in [("at", Some(0)), ("end", None)] {
            let path = root.join(name);
            std::fs::write(&path, b"").unwrap();
            let flags = if offset.is_none() { libc::O_APPEND } else { 0 };
            let file = store.file(open(&path, libc::O_RDWR | flags)).unwrap();
            let bytes = pattern(2 << 20, 3);
            let (at, taken) = file.write_part(offset, &bytes).unwrap();
            assert!(at == 0 && taken > 0 && taken < bytes.len(), "{name}: {taken} at {at}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes[..taken]);
            let rest = offset.map(|_| taken as u64);
            let error = file.write_part(rest, &bytes[taken..]).unwrap_err();
            assert_eq!(error.errno(), libc::ENOSPC, "{name}");
            drop(file);
            std::fs::remove_file(&path).unwrap();
        }
    });
}
