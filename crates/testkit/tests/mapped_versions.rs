//! Tests of mappings of files on the mount beside other programs on the PFS, the library, and opens
//! of other versions: a mapping shows the version that was opened, and later writes on this node.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_proto::WriteMode;
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec};

const LENGTH: usize = 8 << 20;
const PAGE: usize = 4 << 10;

/// Nodes whose mount reads in different ways: files are cold or the kernel gets none to read.
fn nodes() -> Vec<Node> {
    let ways: [&[&str]; 4] = [
        &[],
        &["--passthrough", "off"],
        &["--direct-io", "off"],
        &["--passthrough", "off", "--direct-io", "off"],
    ];
    let start = |way: &&[&str]| {
        let arguments = way.iter().map(|argument| (*argument).to_owned()).collect();
        Node::start(NodeSpec { arguments, ..NodeSpec::default() }).expect("a node starts")
    };
    ways.iter().map(start).collect()
}

fn library(node: &Node) -> Client {
    Client::connect(ClientOptions {
        socket: Some(node.socket().to_owned()),
        pfs_root: Some(node.pfs().to_owned()),
        ..ClientOptions::default()
    })
}

/// A shared mapping of a whole file.
struct Mapping(*mut u8);

impl Mapping {
    fn new(file: &File, writable: bool) -> Self {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped on drop.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), LENGTH, protection, MapFlags::SHARED, file, 0)
        };
        Mapping(address.expect("the file maps").cast())
    }

    fn of(path: &Path, writable: bool) -> Self {
        let file = File::options().read(true).write(writable).open(path).unwrap();
        Self::new(&file, writable)
    }

    fn byte(&self, offset: usize) -> u8 {
        assert!(offset < LENGTH);
        // SAFETY: within the mapping, and the files of these tests are that long.
        unsafe { self.0.add(offset).read_volatile() }
    }

    fn set(&self, offset: usize, byte: u8) {
        assert!(offset < LENGTH);
        // SAFETY: as above; only called on writable mappings.
        unsafe { self.0.add(offset).write_volatile(byte) }
    }

    /// How many pages show `byte`.
    fn pages_of(&self, byte: u8) -> usize {
        (0..LENGTH).step_by(PAGE).filter(|offset| self.byte(*offset) == byte).count()
    }

    fn write_back(&self) {
        // SAFETY: the range is the whole mapping.
        unsafe { rustix::mm::msync(self.0.cast(), LENGTH, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the whole mapping, and nothing else uses it.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), LENGTH) };
    }
}

/// Another program writes `byte` over a whole file, in place.
fn overwrite(path: &Path, byte: u8) {
    File::options().write(true).open(path).unwrap().write_all_at(&vec![byte; LENGTH], 0).unwrap();
}

#[test]
fn every_open_maps_the_version_that_it_opened() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("v"), node.mount().join("v"));
        fs::write(&lower, vec![1; LENGTH]).unwrap();
        let first = File::open(&upper).unwrap();
        let old = Mapping::new(&first, false);
        assert_eq!(old.pages_of(1), LENGTH / PAGE);
        for version in 2..5 {
            overwrite(&lower, version);
            let second = File::open(&upper).unwrap();
            let mut byte = [0];
            second.read_exact_at(&mut byte, 0).unwrap();
            let new = Mapping::new(&second, false);
            assert_eq!((byte[0], old.byte(0)), (version, 1));
            assert_eq!(new.pages_of(version), LENGTH / PAGE, "the version that was opened");
            assert_eq!(old.pages_of(1), LENGTH / PAGE, "the version that was opened before");
        }
    }
}

#[test]
fn opens_of_two_versions_may_map_in_any_order() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("v"), node.mount().join("v"));
        fs::write(&lower, vec![1; LENGTH]).unwrap();
        let first = File::open(&upper).unwrap();
        first.read_exact_at(&mut vec![0; LENGTH], 0).unwrap();
        overwrite(&lower, 2);
        let second = File::open(&upper).unwrap();
        let new = Mapping::new(&second, false);
        let old = Mapping::new(&first, false);
        for _ in 0..2 {
            assert_eq!((old.byte(0), old.pages_of(1)), (1, LENGTH / PAGE));
            assert_eq!((new.byte(0), new.pages_of(2)), (2, LENGTH / PAGE));
        }
    }
}

#[test]
fn a_reader_of_an_older_version_beside_a_writer() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("v"), node.mount().join("v"));
        fs::write(&lower, vec![1; LENGTH]).unwrap();
        let file = File::open(&upper).unwrap();
        let old = Mapping::new(&file, false);
        assert_eq!(old.pages_of(1), LENGTH / PAGE);
        overwrite(&lower, 2);
        let writer = Mapping::of(&upper, true);
        assert_eq!(writer.pages_of(2), LENGTH / PAGE);
        writer.set(5 * PAGE, 3);
        writer.write_back();
        assert_eq!(old.pages_of(1), LENGTH / PAGE, "stays with its version");
        assert_eq!(fs::read(&lower).unwrap()[5 * PAGE], 3);
        let new = Mapping::of(&upper, false);
        assert_eq!((new.byte(5 * PAGE), new.pages_of(2)), (3, LENGTH / PAGE - 1));
        // A mapping made after the other program's change sees stores at once.
        writer.set(6 * PAGE, 4);
        assert_eq!(new.byte(6 * PAGE), 4);
    }
}

#[test]
fn a_copy_onto_itself_is_refused_also_between_opens_of_two_versions() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("o"), node.mount().join("o"));
        fs::write(&lower, vec![1; LENGTH]).unwrap();
        let reader = File::open(&upper).unwrap();
        reader.read_at(&mut [0], 0).unwrap();
        overwrite(&lower, 2);
        let writer = File::options().read(true).write(true).open(&upper).unwrap();
        let copy = |from: u64, to: u64| {
            rustix::fs::copy_file_range(&reader, Some(&mut { from }), &writer, Some(&mut { to }), 9)
        };
        assert_eq!(copy(0, 5), Err(rustix::io::Errno::INVAL));
        assert_eq!(copy(5, 0), Err(rustix::io::Errno::INVAL));
        assert_eq!(copy(0, 9), Ok(9));
        // What there is to copy ends before its place, whatever the kernel knows of the end.
        let appender = File::options().append(true).read(true).open(&upper).unwrap();
        writer.set_len(4).unwrap();
        let (mut from, mut to) = (0, 5);
        let (from, to) = (Some(&mut from), Some(&mut to));
        assert_eq!(rustix::fs::copy_file_range(&appender, from, &writer, to, 9), Ok(4));
    }
}

/// Ways in which a file of `length` bytes gets another page.
const GROWERS: [&str; 5] = ["library", "append", "write", "length", "cut and grown"];

fn grow(node: &Node, name: &str, length: u64, way: &str) {
    let path = node.mount().join(name);
    let open = |append: bool| File::options().write(!append).append(append).open(&path).unwrap();
    match way {
        "append" => open(true).write_all(&[3; PAGE]).unwrap(),
        "write" => open(false).write_all_at(&[3; PAGE], length).unwrap(),
        "length" => open(false).set_len(length + PAGE as u64).unwrap(),
        "cut and grown" => {
            open(false).set_len(length / 2).unwrap();
            open(false).set_len(length + PAGE as u64).unwrap();
        }
        _ => {
            let library = library(node);
            let options = OpenOptions::read_write();
            let file = library.open(node.pfs().join(name), options).unwrap();
            file.write_at(length, &[3; PAGE]).unwrap();
            file.close().unwrap();
        }
    }
}

#[test]
fn copies_and_mappings_go_on_to_where_another_open_moved_the_end() {
    needs_mount!();
    for node in nodes() {
        for (round, start) in [0, 100, PAGE as u64, 400_000, (1 << 20) + 5].into_iter().enumerate()
        {
            let name = format!("g{round}");
            let path = node.mount().join(&name);
            fs::write(&path, vec![1; start as usize]).unwrap();
            let mut options = File::options();
            let opens = [
                options.read(true).open(&path).unwrap(),
                options.write(true).open(&path).unwrap(),
                options.append(true).open(&path).unwrap(),
            ];
            let mut length = start;
            for way in GROWERS.iter().chain(&GROWERS) {
                grow(&node, &name, length, way);
                for (number, open) in opens.iter().enumerate() {
                    let what = format!("{way} at {length}, open {number}");
                    let to = tempfile::tempfile().unwrap();
                    let sent = rustix::fs::sendfile(&to, open, Some(&mut { length }), PAGE);
                    assert_eq!(sent, Ok(PAGE), "sendfile, {what}");
                    let to = File::create(node.mount().join("copy")).unwrap();
                    let mut from = length;
                    let from = Some(&mut from);
                    let copied = rustix::fs::copy_file_range(open, from, &to, None, PAGE);
                    assert_eq!(copied, Ok(PAGE), "copy, {what}");
                    if number == 2 {
                        // Older kernels cannot map what appends.
                        continue;
                    }
                    let mapping = Mapping::new(open, false);
                    let byte = if way.starts_with("cut") || *way == "length" { 0 } else { 3 };
                    assert_eq!(mapping.byte(length as usize + PAGE - 1), byte, "{what}");
                }
                length += PAGE as u64;
            }
        }
    }
}

#[test]
fn a_reader_beside_a_writer_never_reads_two_versions_at_once() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("b"), node.mount().join("b"));
        fs::write(&lower, vec![1; LENGTH]).unwrap();
        let reader = File::open(&upper).unwrap();
        let mut page = vec![0; PAGE];
        reader.read_exact_at(&mut page, 0).unwrap();
        let writer = File::options().read(true).write(true).open(&upper).unwrap();
        overwrite(&lower, 2);
        writer.write_all_at(&[3; 100], 50).unwrap();
        for _ in 0..3 {
            match reader.read_exact_at(&mut page, 0) {
                Ok(()) => assert!(page.iter().all(|byte| *byte == 1), "{:?}", &page[..200]),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
            }
        }
        writer.read_exact_at(&mut page, 0).unwrap();
        let mut right = vec![2; PAGE];
        right[50..150].fill(3);
        assert!(page == right, "{:?}", &page[..200]);
    }
}

#[test]
fn what_the_library_writes_shows_in_mappings() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("z"), node.mount().join("z"));
        fs::write(&lower, vec![1; LENGTH]).unwrap();
        let file = File::open(&upper).unwrap();
        let mapping = Mapping::new(&file, false);
        assert_eq!(mapping.pages_of(1), LENGTH / PAGE);
        let by_library = library(&node).open(&lower, OpenOptions::read_write()).unwrap();
        for byte in 2..5 {
            by_library.write_at(0, &vec![byte; LENGTH]).unwrap();
            assert_eq!(mapping.pages_of(byte), LENGTH / PAGE, "as read(2) of the same descriptor");
        }
        by_library.set_size(PAGE as u64 / 2).unwrap();
        by_library.set_size(LENGTH as u64).unwrap();
        assert_eq!(file.metadata().unwrap().len(), LENGTH as u64);
        assert_eq!((mapping.byte(0), mapping.byte(PAGE / 2)), (4, 0));
        assert_eq!(mapping.pages_of(0), LENGTH / PAGE - 1, "cut and grown again");
    }
}

#[test]
fn what_the_library_wrote_past_the_node_is_read_once_it_is_closed() {
    needs_mount!();
    for node in nodes() {
        let library = library(&node);
        for round in 0..400 {
            let name = format!("past{round}");
            let options =
                OpenOptions { write_mode: Some(WriteMode::Bypass), ..OpenOptions::read_write() };
            let by_library = library.open(node.pfs().join(&name), options).unwrap();
            let reader = File::open(node.mount().join(&name)).unwrap();
            // Something for the kernel to drop.
            assert_eq!(reader.read_at(&mut [0], 0).unwrap(), 0);
            by_library.write_at(0, &[7; 2 * PAGE]).unwrap();
            by_library.close().unwrap();
            let mut bytes = [0; PAGE];
            assert_eq!(reader.read_at(&mut bytes, 100).unwrap(), PAGE, "round {round}");
            assert_eq!(bytes, [7; PAGE]);
        }
    }
}

#[test]
fn what_the_kernel_wrote_past_the_node_is_read_once_it_is_closed() {
    needs_mount!();
    for node in nodes() {
        for round in 0..400 {
            let path = node.mount().join(format!("past{round}"));
            let writer = File::create(&path).unwrap();
            let reader = File::open(&path).unwrap();
            assert_eq!(reader.read_at(&mut [0], 0).unwrap(), 0);
            writer.write_all_at(&[7; 2 * PAGE], 0).unwrap();
            drop(writer);
            let mut bytes = [0; PAGE];
            assert_eq!(reader.read_at(&mut bytes, 100).unwrap(), PAGE, "round {round}");
            assert_eq!(bytes, [7; PAGE]);
        }
    }
}

#[test]
fn stores_to_a_mapping_beside_writes_of_the_library() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("d"), node.mount().join("d"));
        fs::write(&lower, vec![1; LENGTH]).unwrap();
        let mapping = Mapping::of(&upper, true);
        mapping.set(3 * PAGE + 5, 7);
        let by_library = library(&node).open(&lower, OpenOptions::read_write()).unwrap();
        // Another page, then the same page, while its store is in the kernel alone.
        by_library.write_at(4 * PAGE as u64, &[8; PAGE]).unwrap();
        assert_eq!((mapping.byte(3 * PAGE + 5), mapping.byte(4 * PAGE)), (7, 8));
        by_library.write_at(3 * PAGE as u64 + 100, &[9; 100]).unwrap();
        assert_eq!((mapping.byte(3 * PAGE + 5), mapping.byte(3 * PAGE + 100)), (7, 9));
        by_library.close().unwrap();
        mapping.write_back();
        drop(mapping);
        let now = fs::read(&lower).unwrap();
        assert_eq!((now[3 * PAGE], now[3 * PAGE + 5], now[3 * PAGE + 199]), (1, 7, 9));
        assert_eq!((now[4 * PAGE], now[5 * PAGE]), (8, 1));
        assert_eq!(now, fs::read(&upper).unwrap());
    }
}

#[test]
fn mappings_beside_an_open_to_append_show_the_stores_of_each_other() {
    needs_mount!();
    for node in nodes() {
        let path = node.mount().join("s");
        fs::write(node.pfs().join("s"), vec![1; LENGTH]).unwrap();
        let appends = || File::options().append(true).open(&path).unwrap();
        let _earlier = appends();
        let one = Mapping::of(&path, true);
        // The next open meets the mappings, not this one.
        let _later = appends();
        let other = Mapping::of(&path, true);
        for byte in 2..5 {
            assert_eq!((one.byte(0), other.byte(PAGE)), (byte - 1, byte - 1));
            one.set(0, byte);
            other.set(PAGE, byte);
            assert_eq!((other.byte(0), one.byte(PAGE)), (byte, byte));
        }
    }
}

#[test]
fn stores_to_a_program_with_set_id_bits_undo_no_write_of_its_creator() {
    needs_mount!();
    for node in nodes() {
        let path = node.mount().join("program");
        let creator = File::create(&path).unwrap();
        creator.write_all_at(&vec![1; LENGTH], 0).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
        let mapping = Mapping::of(&path, true);
        mapping.set(200, 2);
        creator.write_all_at(&[3], 100).unwrap();
        assert_eq!((mapping.byte(100), mapping.byte(200)), (3, 2));
        assert_eq!(fs::read(&path).unwrap()[200], 2, "what was stored shows at the next open");
        mapping.write_back();
        drop((mapping, creator));
        for path in [&path, &node.pfs().join("program")] {
            let now = fs::read(path).unwrap();
            assert_eq!((now[99], now[100], now[200]), (1, 3, 2));
        }
    }
}

#[test]
fn a_descriptor_is_opened_again_whatever_became_of_its_version() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("v"), node.mount().join("v"));
        fs::write(&lower, vec![1; LENGTH]).unwrap();
        let first = File::open(&upper).unwrap();
        let mapping = Mapping::new(&first, false);
        assert_eq!(mapping.pages_of(1), LENGTH / PAGE);
        overwrite(&lower, 2);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&first));
        let again = File::open(path).unwrap();
        let mut byte = [0];
        again.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!((byte[0], mapping.pages_of(1)), (2, LENGTH / PAGE));
    }
}

#[test]
fn a_descriptor_of_a_file_without_a_name_is_opened_again_to_append() {
    needs_mount!();
    for node in nodes() {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OFlags::TMPFILE.bits() as i32);
        let mut file = options.open(node.mount()).expect("a file without a name");
        file.write_all(&[1; 700]).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        File::options().append(true).open(path).unwrap().write_all(&[2; 700]).unwrap();
        let mut bytes = [0; 1400];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, std::array::from_fn(|at| 1 + (at >= 700) as u8));
    }
}

/// Appends bytes that are not zero, beside other programs that do.
fn append(path: &Path) {
    let mut file = File::options().append(true).open(path).unwrap();
    for _ in 0..150 {
        file.write_all(&[2; 700]).unwrap();
    }
}

#[test]
fn a_follower_of_a_file_that_several_append_to_reads_no_zeros() {
    needs_mount!();
    // Ends in a page that is not full.
    const BASE: usize = (4 << 20) - 5_000;
    for way in [&["--direct-io", "off"][..], &["--passthrough", "off", "--direct-io", "off"]] {
        let arguments = way.iter().chain(&["--fault", "write:slow=2ms"]);
        let arguments = arguments.map(|argument| (*argument).to_owned()).collect();
        let spec = NodeSpec { arguments, ..NodeSpec::default() };
        let node = Node::start(spec).expect("a node starts");
        for round in 0..6 {
            let name = format!("log{round}");
            let (lower, upper) = (node.pfs().join(&name), node.mount().join(&name));
            fs::write(&lower, vec![1; BASE]).unwrap();
            let file = File::open(&upper).unwrap();
            file.read_exact_at(&mut vec![0; BASE], 0).unwrap();
            std::thread::scope(|scope| {
                let writers = [&upper, &upper, &lower];
                let writers = writers.map(|path| scope.spawn(move || append(path)));
                let mut bytes = vec![0; 64 << 10];
                let mut at = BASE - 100;
                while !writers.iter().all(|writer| writer.is_finished()) {
                    // Others look at the name meanwhile.
                    fs::metadata(&upper).unwrap();
                    // Bytes of a version that is no more may be refused, never made up.
                    let Ok(count) = file.read_at(&mut bytes, at as u64) else { continue };
                    let zero = bytes[..count].iter().position(|byte| *byte == 0);
                    assert_eq!(zero, None, "round {round}, {count} bytes at {at}");
                    at = (at + count).saturating_sub(100).max(BASE - 100);
                }
            });
        }
    }
}

#[test]
fn a_look_up_tells_the_length_that_another_program_gave_to_a_file_open_for_writing() {
    needs_mount!();
    for node in nodes() {
        let (lower, upper) = (node.pfs().join("l"), node.mount().join("l"));
        fs::write(&lower, vec![1; 3 * PAGE]).unwrap();
        let writer = File::options().read(true).write(true).open(&upper).unwrap();
        writer.read_exact_at(&mut [0; PAGE], 0).unwrap();
        for length in [5 * PAGE + 7, PAGE + 7, 9 * PAGE] {
            fs::write(&lower, vec![2; length]).unwrap();
            assert_eq!(fs::metadata(&upper).unwrap().len(), length as u64);
            assert_eq!(writer.metadata().unwrap().len(), length as u64);
        }
    }
}
