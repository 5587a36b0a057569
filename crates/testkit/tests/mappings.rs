//! Tests of mappings of files on the mount that outlive their descriptor, under eviction, resize,
//! replacement and removal. A mapping shows the bytes that it showed, its memory counts as held,
//! and comes back once nothing maps it any more.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};
use tidepool_proto::admin::Status;
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec};

const MIB: usize = 1 << 20;
/// Neither whole blocks nor whole pages.
const LENGTH: usize = 9 * MIB + 1234;
const PAGE: usize = 4096;
/// Everything that comes by itself comes within this.
const PATIENCE: Duration = Duration::from_secs(40);

/// How the kernel gets at the bytes of an open.
#[derive(Clone, Copy, Debug)]
struct Way {
    arguments: &'static [&'static str],
    /// The kernel reads the segment by itself, so mappings are of the segment.
    passes_through: bool,
}

const WAYS: [Way; 2] = [
    Way { arguments: &[], passes_through: true },
    Way { arguments: &["--passthrough", "off"], passes_through: false },
];

/// Bytes that tell one place and one `version` from another, none of them zero.
fn bytes_of(version: u8, length: usize) -> Vec<u8> {
    // A period that no page and no block has.
    let first = |at: usize| 1 + ((at + 89 * version as usize) * (at / 251 + 1) % 251) as u8;
    let period: Vec<u8> = (0..64_007).map(first).collect();
    let mut bytes = period.repeat(length.div_ceil(period.len()));
    bytes.truncate(length);
    bytes
}

/// A node and a resident file of it.
struct Scene {
    node: Node,
    way: Way,
}

impl Scene {
    fn new(way: Way) -> Scene {
        let arguments = way.arguments.iter().map(|&argument| argument.into()).collect();
        let node = Node::start(NodeSpec { arguments, ..NodeSpec::default() }).unwrap();
        Scene { node, way }
    }

    fn here(&self, name: &str) -> PathBuf {
        self.node.mount().join(name)
    }

    fn there(&self, name: &str) -> PathBuf {
        self.node.pfs().join(name)
    }

    fn command(&self, name: &str, path: &Path) {
        // A file that is held is not evicted, and says so.
        let output = self.node.command(&[name]).arg(path).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{name}: {output:?}");
    }

    /// Brings a file in, until the kernel has borrowed it where reads go that way.
    fn warm(&self, name: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.command("load", &self.here(name));
            let before = self.node.status().unwrap();
            drop(File::open(self.here(name)).unwrap());
            let after = self.node.status().unwrap();
            let lent = |status: &Status| status.transfers.passthrough_opens;
            if !self.way.passes_through || lent(&after) > lent(&before) {
                return;
            }
            assert!(Instant::now() < deadline, "{name} is not lent to the kernel: {after:?}");
        }
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.there(name), bytes).unwrap();
        self.warm(name);
    }

    fn resize(&self, size: &str) {
        self.order(&["resize", size]);
    }

    fn order(&self, arguments: &[&str]) {
        let output = self.node.run(arguments).unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {output:?}");
    }

    /// While something of `length` bytes is mapped.
    #[track_caller]
    fn assert_held(&self, length: usize) {
        let store = self.node.status().unwrap().store;
        if self.way.passes_through {
            assert!(store.pinned_bytes >= length as u64, "{store:?}");
        }
        assert!(store.resident_bytes_peak <= 64 << 20, "{store:?}");
    }

    /// Nothing is mapped any more: all memory comes back, by itself.
    #[track_caller]
    fn assert_free(&self) {
        self.resize("0");
        let is_free =
            |status: &Status| status.store.pinned_bytes == 0 && status.store.resident_bytes == 0;
        let status = self.node.status_when(is_free).unwrap();
        assert!(is_free(&status), "{:?}", status.store);
        self.resize("64MiB");
    }
}

/// A mapping of a file whose descriptor is closed, if not kept.
struct Mapped {
    base: *mut u8,
    length: usize,
    _file: Option<File>,
}

impl Mapped {
    fn new(path: &Path, flags: MapFlags, keep: bool) -> Mapped {
        let file = File::open(path).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped on drop.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, &file, 0)
        };
        Mapped { base: base.unwrap().cast(), length, _file: keep.then_some(file) }
    }

    /// Checks the first bytes, which are below the end of the file.
    #[track_caller]
    fn assert_shows(&self, expected: &[u8]) {
        assert!(expected.len() <= self.length);
        // SAFETY: inside the mapping. Others may change the file, so there is no slice of it.
        if unsafe { libc::memcmp(self.base.cast(), expected.as_ptr().cast(), expected.len()) } != 0
        {
            // SAFETY: as above.
            let seen = |at: usize| unsafe { self.base.add(at).read_volatile() };
            let wrong = (0..expected.len()).filter(|at| seen(*at) != expected[*at]).count();
            let zeros = (0..expected.len()).filter(|at| seen(*at) == 0).count();
            panic!("{wrong} wrong bytes and {zeros} zeros of {}", expected.len());
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

/// By which memory goes while something is mapped.
#[derive(Clone, Copy, Debug)]
enum Event {
    Evict,
    ResizeToNothing,
    OtherReads,
    Replace,
    Overwrite,
    Remove,
}

impl Event {
    fn happen(self, scene: &Scene, name: &str) {
        match self {
            Event::Evict => scene.command("evict", &scene.there(name)),
            Event::ResizeToNothing => scene.resize("0"),
            Event::OtherReads => {
                let other = bytes_of(7, 35 * MIB);
                for name in ["other0", "other1"] {
                    fs::write(scene.there(name), &other).unwrap();
                    assert!(fs::read(scene.here(name)).unwrap() == other);
                }
            }
            Event::Replace => {
                fs::write(scene.there("beside"), bytes_of(2, LENGTH)).unwrap();
                fs::rename(scene.there("beside"), scene.there(name)).unwrap();
                assert!(fs::read(scene.here(name)).unwrap() == bytes_of(2, LENGTH));
            }
            Event::Overwrite => {
                fs::write(scene.there(name), bytes_of(2, LENGTH)).unwrap();
                assert!(fs::read(scene.here(name)).unwrap() == bytes_of(2, LENGTH));
            }
            Event::Remove => fs::remove_file(scene.here(name)).unwrap(),
        }
    }
}

fn survives(events: &[Event], flags: MapFlags, keep: bool) {
    let old = bytes_of(1, LENGTH);
    for way in WAYS {
        let scene = Scene::new(way);
        for &event in events {
            println!("{event:?} {way:?}");
            // Where the page cache of the mount is shared by versions, an overwrite shows.
            if matches!(event, Event::Overwrite) && !way.passes_through {
                continue;
            }
            scene.put("file", &old);
            let mapped = Mapped::new(&scene.here("file"), flags, keep);
            mapped.assert_shows(&old);
            event.happen(&scene, "file");
            mapped.assert_shows(&old);
            scene.order(&["evict", "--all"]);
            mapped.assert_shows(&old);
            scene.assert_held(LENGTH);
            drop(mapped);
            scene.assert_free();
        }
    }
}

#[test]
fn a_shared_mapping_keeps_its_bytes() {
    needs_mount!();
    use Event::*;
    let events = [Evict, ResizeToNothing, OtherReads, Replace, Overwrite, Remove];
    survives(&events, MapFlags::SHARED, false);
}

#[test]
fn a_private_mapping_keeps_its_bytes() {
    needs_mount!();
    survives(&[Event::Evict, Event::OtherReads, Event::Overwrite], MapFlags::PRIVATE, false);
}

#[test]
fn a_mapping_beside_its_descriptor_keeps_its_bytes() {
    needs_mount!();
    survives(&[Event::ResizeToNothing, Event::Replace, Event::Remove], MapFlags::SHARED, true);
}

#[test]
fn a_truncation_ends_a_mapping_and_changes_nothing_before_the_end() {
    needs_mount!();
    let old = bytes_of(1, LENGTH);
    for way in WAYS {
        let scene = Scene::new(way);
        scene.put("file", &old);
        let mapped = Mapped::new(&scene.here("file"), MapFlags::SHARED, false);
        mapped.assert_shows(&old);
        let writer = File::options().write(true).open(scene.here("file")).unwrap();
        for length in [5 * MIB + 77, MIB, 100] {
            writer.set_len(length as u64).unwrap();
            scene.command("evict", &scene.there("file"));
            mapped.assert_shows(&old[..length]);
            assert!(fs::read(scene.here("file")).unwrap() == old[..length]);
        }
        writer.set_len(0).unwrap();
        drop((writer, mapped));
        scene.assert_free();
    }
}

/// Runs `check` in a forked child when a byte comes, and answers whether it held.
fn in_a_fork(check: impl Fn() -> bool, between: impl FnOnce()) -> bool {
    let (mut go, mut answer) = ([0; 2], [0; 2]);
    // SAFETY: each fills an array of two; the child calls nothing but what is safe after a fork.
    let child = unsafe {
        assert!(libc::pipe(go.as_mut_ptr()) == 0 && libc::pipe(answer.as_mut_ptr()) == 0);
        libc::fork()
    };
    let mut byte = [0u8];
    if child == 0 {
        // SAFETY: descriptors and buffers are its own.
        unsafe {
            // So that it ends with its parent, whatever becomes of that.
            libc::close(go[1]);
            if libc::read(go[0], byte.as_mut_ptr().cast(), 1) != 1 {
                libc::_exit(1);
            }
            byte[0] = u8::from(check());
            libc::write(answer[1], byte.as_ptr().cast(), 1);
            libc::_exit(0);
        }
    }
    between();
    // SAFETY: as above, on this side.
    unsafe {
        libc::write(go[1], byte.as_ptr().cast(), 1);
        libc::close(answer[1]);
        libc::read(answer[0], byte.as_mut_ptr().cast(), 1);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        [go[0], go[1], answer[0]].into_iter().for_each(|end| _ = libc::close(end));
    }
    byte[0] == 1
}

#[test]
fn a_forked_child_keeps_the_mapping_that_its_parent_gave_up() {
    needs_mount!();
    let old = bytes_of(1, LENGTH);
    for way in WAYS {
        let scene = Scene::new(way);
        scene.put("file", &old);
        let mapped = Mapped::new(&scene.here("file"), MapFlags::SHARED, false);
        mapped.assert_shows(&old);
        let (base, length) = (mapped.base, mapped.length);
        // SAFETY: the child has the mapping, whatever becomes of the parent's.
        let check = || unsafe { libc::memcmp(base.cast(), old.as_ptr().cast(), length) } == 0;
        let held = in_a_fork(check, || {
            drop(mapped);
            scene.resize("0");
            scene.assert_held(LENGTH);
        });
        assert!(held, "the child saw other bytes: {way:?}");
        scene.assert_free();
    }
}

/// The first of these that this system has, and that is no packed small file.
fn system_file(candidates: &[&str]) -> Option<PathBuf> {
    let is_large = |path: &&str| fs::metadata(path).is_ok_and(|facts| facts.len() > 300 << 10);
    candidates.iter().find(|path| is_large(path)).map(PathBuf::from)
}

#[test]
fn a_running_program_keeps_its_text() {
    needs_mount!();
    let bash =
        system_file(&["/bin/bash", "/usr/bin/bash"]).expect("bash is a program of this size");
    // Most of it is code that the program has not run before.
    let script = "echo ready; read line; declare -A map; for word in one two three; do \
        map[$word]=${#word}; done; [[ $line =~ ^(g)(o)$ ]] && printf '%s-%05d-%x\\n' \
        \"${BASH_REMATCH[2]}\" $(( map[three] ** 3 )) 255; kill -l 9; type read; ulimit -n | wc -l";
    let expected = ["o-00125-ff", "KILL", "read is a shell builtin", "1"];
    for way in WAYS {
        let scene = Scene::new(way);
        fs::copy(&bash, scene.there("bash")).unwrap();
        scene.warm("bash");
        let mut program = Command::new(scene.here("bash"));
        program.args(["--norc", "-c", script]).env("LC_ALL", "C");
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "ready");
        scene.resize("0");
        scene.command("evict", &scene.there("bash"));
        program.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let said: Vec<_> = said.map(Result::unwrap).collect();
        let status = program.wait().unwrap();
        assert!(status.success() && said == expected, "{way:?}: {status} {said:?}");
        scene.assert_free();
    }
}

#[test]
fn a_loaded_library_keeps_its_text() {
    needs_mount!();
    let places = ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib"];
    let candidates = places.map(|place| format!("{place}/libm.so.6"));
    let library = system_file(&candidates.each_ref().map(String::as_str)).expect("a libm");
    for way in WAYS {
        let scene = Scene::new(way);
        fs::copy(&library, scene.there("libm.so")).unwrap();
        scene.warm("libm.so");
        let path = std::ffi::CString::new(scene.here("libm.so").as_os_str().as_bytes()).unwrap();
        // SAFETY: a library without effects of its own; the function is called with its own type.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null());
            let cube_root = libc::dlsym(handle, c"cbrt".as_ptr());
            let gamma = libc::dlsym(handle, c"tgamma".as_ptr());
            assert!(!cube_root.is_null() && !gamma.is_null());
            type Function = extern "C" fn(f64) -> f64;
            let call = |it| std::mem::transmute::<*mut libc::c_void, Function>(it);
            scene.resize("0");
            scene.command("evict", &scene.there("libm.so"));
            assert!((call(cube_root)(27.0) - 3.0).abs() < 1e-9);
            assert!((call(gamma)(5.0) - 24.0).abs() < 1e-9);
            libc::dlclose(handle);
        }
        scene.assert_free();
    }
}

/// Memory that many mappings keep comes back with each of them, also for a request that waits for
/// it.
#[test]
fn what_is_unmapped_makes_room_for_others() {
    needs_mount!();
    for way in WAYS {
        let scene = Scene::new(way);
        let names: Vec<_> = (0..6u8).map(|number| format!("file{number}")).collect();
        for round in 0..3 {
            let mut mapped = Vec::new();
            for (number, name) in names.iter().enumerate() {
                let bytes = bytes_of(number as u8, 5 * MIB + number * PAGE);
                if round == 0 {
                    fs::write(scene.there(name), &bytes).unwrap();
                }
                scene.command("load", &scene.here(name));
                mapped.push((Mapped::new(&scene.here(name), MapFlags::SHARED, false), bytes));
                mapped.iter().for_each(|(mapped, bytes)| mapped.assert_shows(bytes));
            }
            scene.order(&["evict", "--all"]);
            mapped.iter().for_each(|(mapped, bytes)| mapped.assert_shows(bytes));
        }
        scene.assert_free();
    }
}

/// Its bytes are in memory that the kernel reads by itself, and there is none for it to grow.
#[test]
fn who_cannot_follow_the_growth_of_a_file_follows_its_changes_before_the_old_end() {
    needs_mount!();
    let mut right = bytes_of(1, LENGTH);
    for way in WAYS {
        let scene = Scene::new(way);
        scene.put("file", &right);
        let reader = File::open(scene.here("file")).unwrap();
        let seen = |length: usize| {
            let mut bytes = vec![0; length];
            reader.read_exact_at(&mut bytes, 0).map(|()| bytes).unwrap()
        };
        assert!(seen(LENGTH) == right);
        let writer = File::options().write(true).open(scene.here("file")).unwrap();
        scene.order(&["resize", "0"]);
        writer.write_all_at(&[3; 300_000], LENGTH as u64).unwrap();
        writer.write_all_at(&[4; 100], MIB as u64).unwrap();
        right[MIB..MIB + 100].fill(4);
        assert!(seen(LENGTH) == right, "a write");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&writer, flags, 2 * MIB as u64, 100_000).unwrap();
        right[2 * MIB..2 * MIB + 100_000].fill(0);
        assert!(seen(LENGTH) == right, "a hole");
        // Once more: there may be one left behind by one left behind.
        writer.write_all_at(&[5; 300_000], LENGTH as u64 + 400_000).unwrap();
        writer.write_all_at(&[6; 100], LENGTH as u64 - 50).unwrap();
        right[LENGTH - 50..].fill(6);
        assert!(seen(LENGTH) == right, "a write over the end");
        for length in [5 * MIB + 77, 100] {
            writer.set_len(length as u64).unwrap();
            assert!(seen(length) == right[..length], "cut to {length}");
            assert_eq!(reader.read_at(&mut [0], length as u64).unwrap(), 0);
        }
        let again = File::options().write(true).truncate(true).open(scene.here("file")).unwrap();
        assert_eq!(reader.read_at(&mut [0], 0).unwrap(), 0);
        // With memory it catches up at the next change.
        writer.write_all_at(&[7; 700_000], 0).unwrap();
        scene.order(&["resize", "64MiB"]);
        writer.write_all_at(&[8; 100], 900_000).unwrap();
        let mut grown = vec![7; 900_100];
        grown[700_000..900_000].fill(0);
        grown[900_000..].fill(8);
        assert!(seen(900_100) == grown, "with memory again");
        drop((again, writer));
        right = bytes_of(1, LENGTH);
    }
}

#[test]
fn who_has_a_file_open_follows_its_growth_after_its_times_were_set() {
    needs_mount!();
    for way in WAYS {
        let scene = Scene::new(way);
        for cut in [false, true] {
            let mut right = bytes_of(1, LENGTH);
            scene.put("file", &right);
            let reader = File::open(scene.here("file")).unwrap();
            let mut bytes = vec![0; LENGTH];
            reader.read_exact_at(&mut bytes, 0).unwrap();
            let writer =
                File::options().write(true).truncate(cut).open(scene.here("file")).unwrap();
            if cut {
                right.clear();
            }
            writer.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            writer.write_all_at(&[3; 300_000], right.len() as u64).unwrap();
            right.resize(right.len() + 300_000, 3);
            writer.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            writer.set_len(right.len() as u64 + 5_000).unwrap();
            right.resize(right.len() + 5_000, 0);
            let mut bytes = vec![1; right.len()];
            reader.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == right, "cut: {cut}");
        }
    }
}
