//! What a server promised is there after it died at any moment, and after the power went: whatever
//! was not synced may be gone, or torn, then.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidepool_buffer::disk::{Disk, DiskSettings, Replayed};
use tidepool_buffer::key::{BlockName, PacketKey, flag};
use tidepool_buffer::memory::{Item, Memory, Value};
use tidepool_buffer::server::{Keeper, Kept};

const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes before each value in a file.
const RECORD: u64 = 32;

fn key(block: u64, packet: u32) -> PacketKey {
    PacketKey { block: BlockName { epoch: 0xabc, block }, packet }
}

fn settings(directory: &Path, capacity_bytes: u64) -> DiskSettings {
    let (directory, threads, replaced_bytes_max) = (directory.into(), 2, 100_000);
    DiskSettings { directory, capacity_bytes, threads, patience: PATIENCE, replaced_bytes_max }
}

struct Fixture {
    memory: Arc<Memory>,
    disk: Disk,
    replayed: Replayed,
    patience: Duration,
}

impl Fixture {
    fn new(directory: &Path) -> Self {
        Self::with(&settings(directory, 1 << 30))
    }

    fn with(settings: &DiskSettings) -> Self {
        let memory = Arc::new(Memory::new(64 << 20));
        let (disk, replayed) = Disk::open(settings, memory.clone()).unwrap();
        Fixture { memory, disk, replayed, patience: settings.patience }
    }

    /// As a session stores a packet.
    fn store(&self, key: &PacketKey, bytes: &[u8], is_sync: bool) -> Result<(), String> {
        let room = self.memory.take_room(bytes.len(), PATIENCE).unwrap();
        let kept_room = self.disk.reserve(bytes.len(), Instant::now() + self.patience)?;
        self.disk.check(&key.block)?;
        let value = Arc::new(Value::new(bytes.to_vec(), room));
        let number = self.memory.with(key.to_string().as_bytes(), |slot| {
            let number = self.memory.next_cas();
            let item = Item::plain(value.clone(), flag::OWED, number, slot.now());
            slot.put(Item { is_owed: true, ..item });
            number
        });
        let flags = flag::OWED;
        self.disk.keep(Kept { key, flags, value: &value, number }, kept_room);
        if is_sync { self.disk.sync(&key.block) } else { Ok(()) }
    }

    /// The PFS has all of a block.
    fn settle(&self, block: u64) {
        let block = key(block, 0).block;
        self.disk.settled(&block);
        self.disk.sync(&block).unwrap();
    }

    fn fetched(&self, key: &PacketKey) -> Option<Vec<u8>> {
        self.disk.fetch(key).unwrap().map(|it| it.bytes)
    }

    fn is_in_memory(&self, key: &PacketKey) -> bool {
        self.memory.with(key.to_string().as_bytes(), |slot| slot.peek().is_some())
    }
}

/// The bytes of a version of a packet, of its own length.
fn content(key: &PacketKey, version: u64) -> Vec<u8> {
    let seed = key.block.block * 1000 + u64::from(key.packet) * 10 + version;
    let length = 64 + (seed * 7919 % 9000) as usize;
    let bytes = (0..length as u64).map(|at| (at * 31 + seed) as u8);
    version.to_le_bytes().into_iter().chain(bytes).collect()
}

fn version_of(key: &PacketKey, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == content(key, version), "{key} has bytes that nobody wrote");
    version
}

/// A small generator of numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Versions that were promised, by packet.
type Ledger = Arc<Mutex<BTreeMap<PacketKey, u64>>>;

/// Writes packets of some blocks, again and again, and notes what a sync promised.
fn write(fixture: &Fixture, blocks: std::ops::Range<u64>, ledger: &Ledger, stop: &AtomicBool) {
    let mut numbers = Numbers(blocks.start + 1);
    let mut sent = BTreeMap::<PacketKey, u64>::new();
    let mut version = 0;
    while !stop.load(Ordering::Relaxed) {
        version += 1;
        let block = blocks.start + numbers.below(blocks.end - blocks.start);
        let packet = key(block, numbers.below(6) as u32);
        let is_sync = numbers.below(4) == 0;
        std::thread::sleep(Duration::from_micros(100));
        sent.insert(packet, version);
        fixture.store(&packet, &content(&packet, version), is_sync).unwrap();
        if is_sync {
            let of_block = sent.range(key(block, 0)..key(block + 1, 0));
            ledger.lock().unwrap().extend(of_block.map(|(key, version)| (*key, *version)));
        }
    }
}

/// What is on the disk now; each file up to the end that it has when it is copied.
fn copy(from: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let copied = std::fs::copy(entry.path(), copy.path().join(entry.file_name()));
        // One that is written anew may have got its name in this moment.
        let is_beside = entry.file_name().to_string_lossy().ends_with(".new");
        assert!(copied.is_ok() || is_beside, "{copied:?}");
    }
    copy
}

/// Durable bytes that the header of a file tells.
fn durable_bytes(file: &File) -> u64 {
    let slot = |at: u64| {
        let mut slot = [0; 16];
        file.read_exact_at(&mut slot, at).unwrap();
        u64::from_le_bytes(slot[..8].try_into().unwrap())
    };
    slot(32).max(slot(48))
}

/// The power goes: of what was not synced any part may be there.
fn lose_power(directory: &Path, numbers: &mut Numbers) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        if length < 64 || path.to_string_lossy().ends_with(".new") {
            continue;
        }
        let durable = durable_bytes(&file).max(64);
        let end = durable + numbers.below(length - durable + 1);
        match numbers.below(3) {
            0 => file.set_len(end).unwrap(),
            1 => file.write_all_at(&vec![0; (length - end) as usize], end).unwrap(),
            _ if end < length => file.write_all_at(&[numbers.below(256) as u8], end).unwrap(),
            _ => {}
        }
    }
}

struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_was_promised_is_there_whenever_the_server_dies_or_the_power_goes() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    let (stop, mut numbers) = (AtomicBool::new(false), Numbers(7));
    let ledgers = [Ledger::default(), Ledger::default()];
    std::thread::scope(|scope| {
        let (fixture, stop) = (&fixture, &stop);
        // Also where a look fails.
        let _stops = Stops(stop);
        for (number, ledger) in ledgers.iter().enumerate() {
            let blocks = number as u64 * 3..number as u64 * 3 + 3;
            scope.spawn(move || write(fixture, blocks, ledger, stop));
        }
        for round in 0..100 {
            std::thread::sleep(Duration::from_millis(3));
            let promised: Vec<_> =
                ledgers.iter().flat_map(|it| it.lock().unwrap().clone()).collect();
            let image = copy(directory.path());
            if round % 2 == 1 {
                lose_power(image.path(), &mut numbers);
            }
            let again = Fixture::new(image.path());
            assert_eq!(again.replayed.damaged, Vec::<String>::new(), "round {round}");
            for (key, version) in promised {
                let bytes = again.fetched(&key).unwrap_or_else(|| panic!("{key} is lost"));
                let found = version_of(&key, &bytes);
                assert!(found >= version, "{key}: version {found} after {version} was promised");
            }
        }
    });
    let bytes: u64 = fixture.disk.owed().iter().map(|it| it.bytes).sum();
    assert!(bytes < 6 * 250_000, "{bytes} bytes are on the disk: files are written anew");
    let promised: usize = ledgers.iter().map(|it| it.lock().unwrap().len()).sum();
    assert!(promised > 20, "{promised} packets were promised");
}

#[test]
fn what_is_on_the_disk_may_leave_memory_and_is_read_from_there() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    let bytes = |number: u32| vec![number as u8; 1 << 20];
    // Twice the memory.
    for number in 0..128 {
        fixture.store(&key(u64::from(number) / 8, number % 8), &bytes(number), false).unwrap();
    }
    for number in 0..128 {
        let key = key(u64::from(number) / 8, number % 8);
        if !fixture.is_in_memory(&key) {
            assert_eq!(fixture.fetched(&key), Some(bytes(number)));
        }
    }
    assert!(fixture.memory.evicted() >= 64);
    assert!(fixture.memory.usage().used_bytes <= 64 << 20);
}

#[test]
fn what_the_pfs_has_or_nobody_wants_is_gone_for_good() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    for block in 0..4 {
        fixture.store(&key(block, 0), b"first", false).unwrap();
        fixture.store(&key(block, 1), b"second", true).unwrap();
    }
    [0, 3].iter().for_each(|block| fixture.settle(*block));
    assert!(fixture.disk.removed(&key(1, 0)) && !fixture.disk.removed(&key(1, 7)));
    assert_eq!((fixture.fetched(&key(0, 1)), fixture.fetched(&key(1, 0))), (None, None));
    // A block of the same name begins anew.
    fixture.store(&key(0, 5), b"anew", true).unwrap();
    drop(fixture);
    let again = Fixture::new(directory.path());
    let blocks: Vec<_> = (0..3).map(|block| again.fetched(&key(block, 1))).collect();
    assert_eq!(blocks, [None, Some(b"second".to_vec()), Some(b"second".to_vec())]);
    assert_eq!(
        (again.fetched(&key(0, 5)), again.fetched(&key(1, 0))),
        (Some(b"anew".into()), None)
    );
    assert_eq!((again.replayed.blocks, again.replayed.bytes), (3, 4 + 6 + 11));
}

#[test]
fn what_was_promised_and_is_broken_is_named() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    for packet in 0..3 {
        fixture.store(&key(0, packet), &[packet as u8; 100], true).unwrap();
        fixture.store(&key(1, packet), &[packet as u8; 100], true).unwrap();
    }
    drop(fixture);
    let path = |block: u64| directory.path().join(format!("{:016x}-{block}.block", 0xabc));
    let file = |block| File::options().write(true).open(path(block)).unwrap();
    let record = RECORD + 100;
    file(0).write_all_at(b"x", 64 + record + RECORD + 7).unwrap();
    file(1).set_len(64 + record + 10).unwrap();
    std::fs::write(path(2), [b"something else; ".repeat(8), vec![0; 99]].concat()).unwrap();
    let again = Fixture::new(directory.path());
    let mut damaged = again.replayed.damaged.clone();
    damaged.sort();
    let name = |block: u64, what: &str| format!("{:016x}-{block}.block: {what}", 0xabc);
    let end = 64 + 3 * record;
    let cut = format!("bytes {} to {end} of the file", 64 + record);
    assert_eq!(damaged, [name(0, "packet 1"), name(1, &cut), name(2, "its first bytes")]);
    assert!(path(2).exists(), "it stays for who knows what it is");
    let is_there = |packet: &PacketKey| again.disk.fetch(packet).map(|it| it.is_some());
    assert_eq!([is_there(&key(0, 0)), is_there(&key(0, 2))], [Ok(true), Ok(true)]);
    // Of any packet a later version may be in what is broken, but for one whose bytes are.
    for packet in [key(0, 1), key(1, 0), key(1, 9), key(2, 0)] {
        let error = is_there(&packet).unwrap_err();
        assert!(error.contains("is broken on the disk"), "{packet}: {error}");
    }
    assert_eq!(again.disk.owed().iter().filter(|it| !it.damaged.is_empty()).count(), 3);
    // What is appended behind it would not be found again: it is refused, until it is settled.
    for block in [1, 2] {
        let length = std::fs::metadata(path(block)).unwrap().len();
        let error = again.store(&key(block, 5), b"more", true).unwrap_err();
        assert!(error.contains("is broken on the disk"), "{error}");
        assert_eq!(std::fs::metadata(path(block)).unwrap().len(), length);
        again.settle(block);
        again.store(&key(block, 5), b"more", true).unwrap();
    }
    drop(again);
    let again = Fixture::new(directory.path());
    assert_eq!(
        [1, 2].map(|block| again.fetched(&key(block, 5))),
        [(); 2].map(|()| Some(b"more".to_vec()))
    );
}

#[test]
fn a_full_disk_is_waited_for_and_then_told() {
    let directory = TempDir::new().unwrap();
    let mut settings = settings(directory.path(), 10_000);
    let fixture = Fixture::with(&settings);
    fixture.store(&key(0, 0), &[7; 9000], true).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fixture.store(&key(1, 0), &[8; 5000], true));
        while !fixture.disk.figures().contains(&("disk_waiting_writers", "1".into())) {
            std::thread::sleep(Duration::from_millis(1));
        }
        fixture.settle(0);
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    drop(fixture);
    settings.patience = Duration::ZERO;
    let fixture = Fixture::with(&settings);
    let error = fixture.store(&key(2, 0), &[9; 9000], true).unwrap_err();
    assert!(error.starts_with("full: ") && error.contains("of 10000 bytes"), "{error}");
    assert_eq!(fixture.fetched(&key(1, 0)), Some(vec![8; 5000]));
}

#[test]
fn two_servers_do_not_use_one_directory() {
    let directory = TempDir::new().unwrap();
    let _first = Fixture::new(directory.path());
    let memory = Arc::new(Memory::new(1 << 20));
    let second = Disk::open(&settings(directory.path(), 1 << 20), memory);
    let error = second.map(drop).unwrap_err().to_string();
    assert!(error.contains("another buffer server"), "{error}");
}

#[test]
fn what_was_settled_or_removed_does_not_come_back_when_the_server_dies() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    for block in 0..40 {
        (0..2).for_each(|packet| fixture.store(&key(block, packet), &[7; 9000], false).unwrap());
    }
    for block in 0..40 {
        match block % 2 {
            0 => fixture.settle(block),
            _ => {
                assert!(fixture.disk.removed(&key(block, 0)));
                fixture.disk.sync(&key(block, 0).block).unwrap();
            }
        }
    }
    let image = copy(directory.path());
    let again = Fixture::new(image.path());
    for block in 0..40 {
        let found = [0, 1].map(|packet| again.fetched(&key(block, packet)).is_some());
        assert_eq!(found, [false, block % 2 == 1], "block {block}");
    }
}

/// A file system of its own, whose files cannot be removed.
#[test]
fn a_block_whose_file_cannot_be_removed_is_not_settled_yet() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    fixture.store(&key(0, 0), b"bytes", true).unwrap();
    let file = directory.path().join(format!("{:016x}-0.block", 0xabc));
    // A directory in its place cannot be removed as a file.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    fixture.disk.settled(&key(0, 0).block);
    for _ in 0..2 {
        let error = fixture.disk.sync(&key(0, 0).block).unwrap_err();
        assert!(error.contains("removing block"), "{error}");
    }
    std::fs::remove_dir(&file).unwrap();
    fixture.disk.sync(&key(0, 0).block).unwrap();
    fixture.store(&key(0, 0), b"other", true).unwrap();
}

#[test]
fn numbers_of_changes_are_higher_than_all_that_are_on_the_disk() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    (0..5).for_each(|packet| fixture.store(&key(0, packet), b"bytes", true).unwrap());
    drop(fixture);
    std::fs::remove_file(directory.path().join("lock")).unwrap();
    let fixture = Fixture::new(directory.path());
    assert!(fixture.memory.next_cas() > 5);
}

#[test]
fn a_file_that_was_never_synced_is_set_aside_and_its_block_begins_anew() {
    let directory = TempDir::new().unwrap();
    let name = |block: u64| format!("{:016x}-{block}.block", 0xabc);
    let contents = [[vec![0; 64], b"bytes".to_vec()].concat(), vec![7; 9], vec![0; 500], vec![]];
    for (block, bytes) in (0..).zip(&contents) {
        std::fs::write(directory.path().join(name(block)), bytes).unwrap();
    }
    let fixture = Fixture::new(directory.path());
    let mut aside = fixture.replayed.set_aside.clone();
    aside.sort();
    assert_eq!(aside, [0, 1].map(|block| name(block) + ".unsynced"));
    for (name, bytes) in aside.iter().zip(&contents) {
        assert_eq!(&std::fs::read(directory.path().join(name)).unwrap(), bytes);
    }
    assert_eq!(fixture.replayed.damaged, Vec::<String>::new());
    (0..4).for_each(|block| fixture.store(&key(block, 0), b"new", true).unwrap());
    // The next one of the same name leaves it where it is.
    drop(fixture);
    std::fs::write(directory.path().join(name(1)), b"again").unwrap();
    assert_eq!(Fixture::new(directory.path()).replayed.set_aside, [name(1) + ".unsynced.1"]);
    assert_eq!(&std::fs::read(directory.path().join(&aside[1])).unwrap(), &contents[1]);
}

#[test]
fn a_block_whose_sync_failed_is_written_anew_by_the_next_server() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    fixture.store(&key(0, 0), b"bytes", true).unwrap();
    drop(fixture);
    let path = directory.path().join(format!("{:016x}-0.block", 0xabc));
    let number = || std::fs::metadata(&path).unwrap().ino();
    let before = number();
    assert!(Fixture::new(directory.path()).fetched(&key(0, 0)).is_some());
    assert_eq!(number(), before);
    // As a server notes it.
    File::options().write(true).open(&path).unwrap().write_all_at(&[1], 28).unwrap();
    let again = Fixture::new(directory.path());
    assert_eq!(again.fetched(&key(0, 0)), Some(b"bytes".to_vec()));
    assert_ne!(number(), before, "what the system has in memory alone nobody else writes");
    again.store(&key(0, 1), b"more", true).unwrap();
    drop(again);
    // Where it cannot be written anew, it is told and takes nothing, and others go on.
    File::options().write(true).open(&path).unwrap().write_all_at(&[1], 28).unwrap();
    std::fs::create_dir(path.with_extension("block.new")).unwrap();
    let again = Fixture::new(directory.path());
    assert_eq!(again.fetched(&key(0, 0)), Some(b"bytes".to_vec()));
    assert!(again.store(&key(0, 2), b"more", true).unwrap_err().contains("anew"));
    again.store(&key(1, 0), b"bytes", true).unwrap();
}

/// Of what was not synced a later record may be whole and an earlier one torn.
#[test]
fn what_was_left_behind_a_torn_record_never_comes_back() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::new(directory.path());
    let store = |fixture: &Fixture, packet, byte, is_sync| {
        fixture.store(&key(0, packet), &[byte; 100], is_sync).unwrap();
    };
    store(&fixture, 0, 1, true);
    store(&fixture, 0, 2, false);
    store(&fixture, 1, 3, false);
    drop(fixture);
    let path = directory.path().join(format!("{:016x}-0.block", 0xabc));
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(b"x", 64 + RECORD + 100 + RECORD + 7).unwrap();
    // The server died before it was told that they are durable.
    file.write_all_at(&[0; 32], 32).unwrap();
    let again = Fixture::new(directory.path());
    assert_eq!((again.fetched(&key(0, 0)), again.fetched(&key(0, 1))), (Some(vec![1; 100]), None));
    // It has the place of the torn one, to the byte.
    store(&again, 1, 4, true);
    drop(again);
    let again = Fixture::new(directory.path());
    assert_eq!(again.fetched(&key(0, 1)), Some(vec![4; 100]));
}
