//! Many readers and writers at once on self-describing pages, by mount and library, while another
//! program rewrites files on the PFS and the node is resized, emptied and given other policies.
//!
//! Nobody here knows what the bytes ought to be at a moment, but every page says what it is: of
//! the right file and place, whole, and of one generation with the others where that is promised.
//! At the end memory and counters have to add up.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};
use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_proto::admin::Status;
use tidepool_testkit::needs_mount;
use tidepool_testkit::page::{Damage, PAGE_BYTES, Page, file_of_pages};
use tidepool_testkit::product::{Node, NodeSpec, adds_up, said};

const CAPACITY: u64 = 64 << 20;
/// Beyond its capacity a node may hold: code, stacks and heap, tables, transfers in flight.
const OVERHEAD: u64 = 160 << 20;

/// What a PFS or a disk does that others keep busy.
const STALLS: &str = "open:slow=5ms@10%;version:slow=15ms@10%;read:slow=30ms@20%;\
    write:slow=10ms@20%;sync:slow=50ms@50%;seed=5";

/// A page is not found in two parts more often than this, one millisecond after the other.
const TORN_READS_MAX: u32 = 1000;

/// Fewer reads than this tell nothing, however long they took.
const READS_MIN: u64 = 1000;

/// Files that only another program changes, always whole, by a new file renamed over the old.
const REPLACED: u64 = 4;
/// Files that another program overwrites in place.
const OVERWRITTEN: u64 = 3;
/// Files that are written through Tidepool, page by page.
const WRITTEN: u64 = 4;

fn pages_of(file: u64) -> u64 {
    [3, 60, 1024, 2300, 5000][file as usize % 5]
}

fn is_overwritten(file: u64) -> bool {
    (REPLACED..REPLACED + OVERWRITTEN).contains(&file)
}

fn is_written(file: u64) -> bool {
    file >= REPLACED + OVERWRITTEN
}

struct Run {
    pfs: PathBuf,
    mount: PathBuf,
    socket: PathBuf,
    stop: AtomicBool,
    generation: AtomicU64,
    reads: AtomicU64,
    mapped: AtomicU64,
    changed: AtomicU64,
}

impl Run {
    fn going(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    fn client(&self) -> Client {
        Client::connect(ClientOptions {
            socket: Some(self.socket.clone()),
            pfs_root: Some(self.pfs.clone()),
            notice: Arc::new(|_| ()),
            ..ClientOptions::default()
        })
    }
}

fn name(file: u64) -> String {
    format!("file{file}")
}

/// A reader of one open file, of either kind.
enum Reader {
    Mount(File),
    Library(Box<tidepool_client::File>),
}

impl Reader {
    fn open(run: &Run, client: Option<&Client>, file: u64) -> Reader {
        match client {
            None => Reader::Mount(File::open(run.mount.join(name(file))).unwrap()),
            Some(client) => {
                let path = run.pfs.join(name(file));
                Reader::Library(Box::new(client.open(path, OpenOptions::read()).unwrap()))
            }
        }
    }

    /// Bytes read, or the errno. Memory is read beside its writers, as on a local file system: a
    /// page in two parts is whole once its writer is done.
    fn read_pages(&self, file: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, i32> {
        let is_torn = |page: &[u8]| matches!(Page::decode(page), Err(Damage::Torn(_)));
        for _ in 0..TORN_READS_MAX {
            let bytes = self.read(offset, buffer)?;
            if !(is_written(file) && buffer[..bytes].chunks_exact(PAGE_BYTES).any(is_torn)) {
                return Ok(bytes);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.read(offset, buffer)
    }

    /// Bytes read, or the errno.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, i32> {
        match self {
            Reader::Mount(file) => {
                file.read_at(buffer, offset).map_err(|error| error.raw_os_error().unwrap_or(-1))
            }
            Reader::Library(file) => {
                file.read_at(offset, buffer).map(|o| o.bytes).map_err(|error| error.errno())
            }
        }
    }
}

/// Checks the pages of a read; returns their generations, lowest and highest.
fn check(file: u64, offset: u64, bytes: &[u8]) -> (u64, u64) {
    let (mut lowest, mut highest) = (u64::MAX, 0);
    for (number, bytes) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
        let at = offset + (number * PAGE_BYTES) as u64;
        let page = match Page::decode(bytes) {
            Ok(page) => page,
            // A page that another program is writing at this moment, as it would be on the PFS.
            Err(Damage::Torn(page)) if is_overwritten(file) => page,
            Err(damage) => panic!("file {file} at {at}: {damage:?}"),
        };
        assert_eq!((page.file, page.offset), (file, at), "a page of elsewhere: {page:?}");
        lowest = lowest.min(page.generation);
        highest = highest.max(page.generation);
    }
    (lowest, highest)
}

/// Reads one open file for a while. A file that is only ever replaced has one generation in every
/// open; the others have whole pages.
fn read_one(run: &Run, client: Option<&Client>, rng: &mut fastrand::Rng) {
    let file = rng.u64(..REPLACED + OVERWRITTEN + WRITTEN);
    let reader = Reader::open(run, client, file);
    let mut seen = None;
    let mut buffer = vec![0; 256 << 10];
    for _ in 0..rng.u32(1..20) {
        let pages = pages_of(file);
        let start = rng.u64(..pages);
        let count = rng.u64(1..=32).min(pages - start) as usize;
        let offset = start * PAGE_BYTES as u64;
        let buffer = &mut buffer[..count * PAGE_BYTES];
        match reader.read_pages(file, offset, buffer) {
            Ok(bytes) => {
                assert_eq!(bytes, buffer.len(), "file {file} at {offset}: short");
                run.reads.fetch_add(1, Ordering::Relaxed);
                let (lowest, highest) = check(file, offset, buffer);
                if file < REPLACED {
                    assert_eq!(lowest, highest, "file {file}: generations mixed in one read");
                    let first = *seen.get_or_insert(lowest);
                    assert_eq!(first, lowest, "file {file}: generations mixed in one open");
                }
            }
            Err(libc::ESTALE) if file < REPLACED + OVERWRITTEN => {
                run.changed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(errno) => panic!("file {file} at {offset}: errno {errno}"),
        }
    }
}

/// Maps a file, gives the descriptor up, and looks at the mapping now and a while later. A file
/// that is only ever replaced keeps the generation that it had; the others have whole pages.
fn map_one(run: &Run, rng: &mut fastrand::Rng) {
    let file = rng.u64(..REPLACED);
    let opened = File::open(run.mount.join(name(file))).unwrap();
    let length = opened.metadata().unwrap().len() as usize;
    let flags = if rng.bool() { MapFlags::SHARED } else { MapFlags::PRIVATE };
    let mut bytes = vec![0; length];
    // In full before: what is not resident is not there any more once the file is replaced.
    if opened.read_exact_at(&mut bytes, 0).is_err() {
        return;
    }
    let first = check(file, 0, &bytes).0;
    // SAFETY: a new mapping at an address of the kernel's choice, unmapped below.
    let base = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, &opened, 0)
    };
    let base = base.unwrap();
    let is_resident = opened.read_exact_at(&mut bytes[..1], 0).is_ok();
    drop(opened);
    for _ in 0..rng.u32(1..4) {
        // What the kernel cannot bring any more is `EFAULT` in a system call, and no signal.
        let mut copy = tempfile::tempfile().unwrap();
        // SAFETY: inside the mapping; the file is never shorter.
        let seen = unsafe { std::slice::from_raw_parts(base.cast::<u8>(), length) };
        if !is_resident || std::io::Write::write_all(&mut copy, seen).is_err() {
            break;
        }
        copy.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(check(file, 0, &bytes), (first, first), "file {file}: a mapping changed");
        run.mapped.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(rng.u64(..50)));
    }
    // SAFETY: the whole mapping, which nobody uses any more.
    unsafe { rustix::mm::munmap(base, length) }.unwrap();
}

/// Writes whole pages of a file through Tidepool; each writer has its own.
fn write_one(run: &Run, client: Option<&Client>, file: u64, rng: &mut fastrand::Rng) {
    let pages = pages_of(file);
    let mut bytes = vec![0; 16 * PAGE_BYTES];
    let by_mount = File::options().write(true).open(run.mount.join(name(file))).unwrap();
    let options = OpenOptions { create: false, ..OpenOptions::read_write() };
    let by_library = client.map(|client| client.open(run.pfs.join(name(file)), options).unwrap());
    for _ in 0..rng.u32(1..12) {
        let start = rng.u64(..pages);
        let count = rng.u64(1..=16).min(pages - start);
        let generation = run.next_generation();
        let bytes = &mut bytes[..count as usize * PAGE_BYTES];
        for (number, page) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
            let offset = (start + number as u64) * PAGE_BYTES as u64;
            Page { file, offset, generation }.encode(page);
        }
        let offset = start * PAGE_BYTES as u64;
        match &by_library {
            Some(file) => file.write_at(offset, bytes).unwrap(),
            None => by_mount.write_all_at(bytes, offset).unwrap(),
        }
        // Read your own write, at once, by the other way.
        let mut seen = vec![0; bytes.len()];
        let reader = Reader::open(run, client.filter(|_| rng.bool()), file);
        assert_eq!(reader.read(offset, &mut seen), Ok(bytes.len()));
        assert!(seen == *bytes, "file {file} at {offset}: not what was written just now");
    }
}

fn change_outside(run: &Run, rng: &mut fastrand::Rng) {
    let file = rng.u64(..REPLACED + OVERWRITTEN);
    let generation = run.next_generation();
    let path = run.pfs.join(name(file));
    let bytes = file_of_pages(file, generation, pages_of(file));
    if file < REPLACED {
        let beside = path.with_extension("new");
        fs::write(&beside, bytes).unwrap();
        fs::rename(&beside, &path).unwrap();
    } else {
        // Page by page, so that a reader at this moment finds pages of both, but whole ones.
        let target = File::options().write(true).open(&path).unwrap();
        let first = rng.u64(..pages_of(file)) as usize;
        for (number, page) in bytes.chunks(PAGE_BYTES).enumerate().skip(first).take(50) {
            target.write_all_at(page, (number * PAGE_BYTES) as u64).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(rng.u64(1..30)));
}

/// Exit code 1 says that something is held, which is as it may be while files are open.
fn resize(node: &Node, size: &str) {
    let output = node.run(&["resize", size]).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", said(&output));
}

fn administer(node: &Node, run: &Run, rng: &mut fastrand::Rng) {
    let policies = ["lru", "adaptive", "lfu", "s3fifo", "fixed", "cyclic"];
    match rng.u32(..6) {
        0 => resize(node, "0"),
        1 => resize(node, "24MiB"),
        2 => drop(node.ask(&["policy", policies[rng.usize(..4)]]).unwrap()),
        3 => {
            let path = run.pfs.join(name(rng.u64(..REPLACED + OVERWRITTEN + WRITTEN)));
            let command = rng.choice(["evict", "load", "pin", "unpin"]).unwrap();
            // A pin may find no room, a load a file that is replaced under it.
            let _ = node.command(&[command]).arg(path).output().unwrap();
        }
        _ => resize(node, "64MiB"),
    }
    std::thread::sleep(Duration::from_millis(rng.u64(1..100)));
}

/// A value of `/proc/<pid>/status` in bytes.
fn memory(process_id: u32, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process_id}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn start(node: &Node) -> Run {
    for file in 0..REPLACED + OVERWRITTEN + WRITTEN {
        let bytes = file_of_pages(file, 1, pages_of(file));
        fs::write(node.pfs().join(name(file)), bytes).unwrap();
    }
    Run {
        pfs: node.pfs().to_owned(),
        mount: node.mount().to_owned(),
        socket: node.socket().to_owned(),
        stop: AtomicBool::new(false),
        generation: AtomicU64::new(2),
        reads: AtomicU64::new(0),
        mapped: AtomicU64::new(0),
        changed: AtomicU64::new(0),
    }
}

#[test]
fn pages_stay_whole_under_everything_at_once() {
    needs_mount!();
    stress(&[]);
}

/// As above, where each step on the PFS takes its time now and then, so that others fall between.
#[test]
fn pages_stay_whole_over_a_pfs_that_stalls() {
    needs_mount!();
    stress(&["--fault", STALLS]);
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn stress(arguments: &[&str]) {
    let seconds = number_of("TIDEPOOL_STRESS_SECONDS").unwrap_or(25);
    let first_seed = number_of("TIDEPOOL_STRESS_SEED").unwrap_or(0);
    let random = |number: u64| fastrand::Rng::with_seed(1000 * first_seed + number);
    let arguments = arguments.iter().map(|&argument| argument.into()).collect();
    let node = Node::start(NodeSpec { arguments, ..NodeSpec::default() }).unwrap();
    let process_id = node.process_id().unwrap();
    let run = start(&node);
    std::thread::scope(|scope| {
        let run = &run;
        for seed in 0..6 {
            scope.spawn(move || {
                let _guard = StopAtEnd(&run.stop);
                let client = (seed % 2 == 0).then(|| run.client());
                let mut rng = random(seed);
                while run.going() {
                    read_one(run, client.as_ref(), &mut rng);
                }
            });
        }
        for seed in 400..402 {
            scope.spawn(move || {
                let _guard = StopAtEnd(&run.stop);
                let mut rng = random(seed);
                while run.going() {
                    map_one(run, &mut rng);
                }
            });
        }
        for file in 0..WRITTEN {
            scope.spawn(move || {
                let _guard = StopAtEnd(&run.stop);
                let client = (file % 2 == 0).then(|| run.client());
                let mut rng = random(100 + file);
                while run.going() {
                    write_one(run, client.as_ref(), REPLACED + OVERWRITTEN + file, &mut rng);
                }
            });
        }
        scope.spawn(move || {
            let _guard = StopAtEnd(&run.stop);
            let mut rng = random(200);
            while run.going() {
                change_outside(run, &mut rng);
            }
        });
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let mut rng = random(300);
        let guard = StopAtEnd(&run.stop);
        let too_few = || run.reads.load(Ordering::Relaxed) < READS_MIN;
        while (Instant::now() < deadline || too_few()) && run.going() {
            administer(&node, run, &mut rng);
        }
        drop(guard);
    });
    let (reads, changed) = (run.reads.load(Ordering::Relaxed), run.changed.load(Ordering::Relaxed));
    let mapped = run.mapped.load(Ordering::Relaxed);
    println!("{reads} reads, {mapped} of mappings, {changed} opens whose file was changed");
    assert_end(&node, &run.pfs, process_id);
}

/// The hard case of versions: one long write by another program stamps the file first and fills it
/// then, so a reader in between sees the new stamp and old bytes.
#[test]
fn a_long_write_outside_is_never_cached_half() {
    needs_mount!();
    let node = Node::start(NodeSpec::default()).unwrap();
    let (here, there) = (node.mount().join("file"), node.pfs().join("file"));
    const LENGTH: usize = 12 << 20;
    let mut old = vec![0; LENGTH];
    fs::write(&there, &old).unwrap();
    for round in 1..60 {
        let new = vec![round; LENGTH];
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // In place, of equal length, by one call.
                let file = File::options().write(true).open(&there).unwrap();
                file.write_all_at(&new, 0).unwrap();
                done.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    // Whatever comes now is of the old file, of the new one, or both: on the PFS
                    // itself it would be no better.
                    let _ = fs::read(&here);
                }
            });
        });
        let seen = fs::read(&here).unwrap();
        let stale = seen.iter().zip(&old).filter(|(seen, old)| seen == old).count();
        assert!(seen == new, "round {round}: {stale} bytes are as before the write");
        old = new;
    }
}

/// Ends the other threads also where this one panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Memory stayed within its bounds, no byte is unaccounted for, and everything still reads right.
fn assert_end(node: &Node, pfs: &Path, process_id: u32) {
    resize(node, "64MiB");
    for file in 0..REPLACED + OVERWRITTEN + WRITTEN {
        let here = fs::read(node.mount().join(name(file))).unwrap();
        assert!(here == fs::read(pfs.join(name(file))).unwrap(), "file {file} at the end");
        check(file, 0, &here);
    }
    assert_eq!(node.process_id().unwrap(), process_id, "the node is the one that was started");
    let status = node.status_when(|status| adds_up(status) && status.open_files == 0).unwrap();
    assert!(adds_up(&status), "{status:?}");
    assert!(status.store.resident_bytes_peak <= CAPACITY, "{:?}", status.store);
    assert!(status.store.resident_bytes <= status.store.capacity_bytes, "{:?}", status.store);
    // Pages of the store that are mapped count as shared memory of the process as well.
    let peak = memory(process_id, "VmHWM");
    assert!(peak <= CAPACITY + OVERHEAD, "the node held {} MiB at its peak", peak >> 20);
    println!("peak {} MiB, store peak {} MiB", peak >> 20, status.store.resident_bytes_peak >> 20);
    resize(node, "0");
    // What a transfer uses at the moment of the resize goes when the transfer ends.
    let is_empty = |status: &Status| status.store.resident_bytes <= status.store.pinned_bytes;
    let status = node.status_when(|status| is_empty(status) && status.open_files == 0).unwrap();
    assert!(is_empty(&status), "{:?}", status.store);
    assert_eq!(status.open_files, 0, "no handle is left open");
}
