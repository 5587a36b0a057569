//! Another program changes the file at every moment of a change of ours: later opens show what the
//! PFS has, and nothing that neither of the two wrote.

mod support;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::hooked::{Call, Hooks};
use support::*;
use tidepool_proto::{Access, OpenFile};

/// Files of these lengths are packed, in one block, and in several.
const SIZES: [u64; 3] = [5000, 300_000, BLOCK + 5000];

fn size_of(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

fn writable(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

/// A change of ours, on a file of `size` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ours {
    Append,
    WriteInside,
    WriteOverTheEnd,
    WriteBeyondTheEnd,
    GrowByTruncation,
    Shrink,
    Allocate,
}

const OURS: [Ours; 7] = [
    Ours::Append,
    Ours::WriteInside,
    Ours::WriteOverTheEnd,
    Ours::WriteBeyondTheEnd,
    Ours::GrowByTruncation,
    Ours::Shrink,
    Ours::Allocate,
];

impl Ours {
    fn run(self, file: &dyn OpenFile, size: u64) {
        let bytes = content(1, 300);
        match self {
            Ours::Append => drop(file.write_at(0, &bytes).unwrap()),
            Ours::WriteInside => drop(file.write_at(size / 2, &bytes).unwrap()),
            Ours::WriteOverTheEnd => drop(file.write_at(size - 100, &bytes).unwrap()),
            Ours::WriteBeyondTheEnd => drop(file.write_at(size + 1000, &bytes).unwrap()),
            Ours::GrowByTruncation => file.set_size(size + 1000).unwrap(),
            Ours::Shrink => file.set_size(size - 1000).unwrap(),
            Ours::Allocate => file.allocate(0, size / 2, size / 2 + 1000).unwrap(),
        }
    }
}

/// A change of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theirs {
    Append,
    WriteOverTheEnd,
    Shrink,
    Replace,
    Overwrite,
    OverwriteWithTimeSetBack,
}

const THEIRS: [Theirs; 6] = [
    Theirs::Append,
    Theirs::WriteOverTheEnd,
    Theirs::Shrink,
    Theirs::Replace,
    Theirs::Overwrite,
    Theirs::OverwriteWithTimeSetBack,
];

impl Theirs {
    fn run(self, path: &Path) {
        let size = size_of(path);
        let write = |at| writable(path).write_all_at(&content(2, 200), at).unwrap();
        match self {
            Theirs::Append => write(size),
            // Over bytes of ours alone where those are there already.
            Theirs::WriteOverTheEnd => write(size - 50),
            Theirs::Shrink => writable(path).set_len(size - 500).unwrap(),
            Theirs::Replace => {
                let other = path.with_extension("other");
                std::fs::write(&other, content(3, size as usize)).unwrap();
                std::fs::rename(other, path).unwrap();
            }
            Theirs::Overwrite => write(10),
            Theirs::OverwriteWithTimeSetBack => {
                let modified = std::fs::metadata(path).unwrap().modified().unwrap();
                write(10);
                writable(path).set_modified(modified).unwrap();
            }
        }
    }

    /// Whether a change of ours hides it: it leaves the length that ours makes, and the time of
    /// ours is set over its own.
    fn hides_behind(self, ours: Ours) -> bool {
        let keeps_length = matches!(self, Theirs::Overwrite | Theirs::OverwriteWithTimeSetBack);
        let sets_length = matches!(ours, Ours::Shrink | Ours::GrowByTruncation)
            || matches!(ours, Ours::WriteOverTheEnd | Ours::WriteBeyondTheEnd | Ours::Allocate);
        keeps_length || (sets_length && matches!(self, Theirs::WriteOverTheEnd | Theirs::Shrink))
    }
}

/// What the node has of the file before, so that there is something to be wrong.
fn warmed(size: u64) -> (Fixture, Arc<Hooks>) {
    let (fixture, hooks) = Fixture::hooked(|config| config.read_ahead_bytes_max = 0);
    fixture.put("f", &content(9, size as usize));
    assert_eq!(fixture.read("f").0, content(9, size as usize));
    (fixture, hooks)
}

fn writer(fixture: &Fixture, ours: Ours) -> Arc<dyn OpenFile> {
    fixture.writer("f", Wish { append: ours == Ours::Append, ..Wish::default() })
}

/// Calls that a change makes, from its first look at the version to its last.
fn calls_of(size: u64, ours: Ours) -> Vec<Call> {
    let (fixture, hooks) = warmed(size);
    let writer = writer(&fixture, ours);
    let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noting = calls.clone();
    hooks.set(move |call, make| {
        noting.lock().unwrap().push(call);
        make()
    });
    ours.run(&*writer, size);
    hooks.clear();
    Arc::into_inner(calls).map_or_else(Vec::new, |calls| calls.into_inner().unwrap())
}

/// Runs `ours` with `theirs` before its call of number `at`; then every open shows the PFS.
fn beside(size: u64, ours: Ours, theirs: Theirs, at: usize) {
    let (fixture, hooks) = warmed(size);
    let path = fixture.path("f");
    let writer = writer(&fixture, ours);
    let number = Arc::new(AtomicUsize::new(0));
    let (counting, theirs_path) = (number.clone(), path.clone());
    hooks.set(move |_, make| {
        if counting.fetch_add(1, Ordering::SeqCst) == at {
            theirs.run(&theirs_path);
        }
        make()
    });
    ours.run(&*writer, size);
    if number.load(Ordering::SeqCst) <= at {
        theirs.run(&path);
    }
    hooks.clear();
    let at_call = format!("{ours:?} with {theirs:?} before call {at}, {size} bytes");
    let expected = std::fs::read(&path).unwrap();
    assert!(fixture.read("f").0 == expected, "while the writer is open: {at_call}");
    writer.flush().unwrap();
    drop(writer);
    for again in 0..2 {
        assert!(fixture.read("f").0 == expected, "read {again} afterwards: {at_call}");
    }
}

#[test]
fn a_change_beside_ours_is_in_what_later_opens_read() {
    std::thread::scope(|scope| {
        for size in SIZES {
            scope.spawn(move || {
                for ours in OURS {
                    let calls = calls_of(size, ours);
                    assert_eq!(calls.first(), Some(&Call::Version), "{ours:?} looks first");
                    for theirs in THEIRS {
                        // Before the first look, and after the last, a change shows by its stamp.
                        let hidden = 1..calls.len();
                        for at in 0..=calls.len() {
                            if !(theirs.hides_behind(ours) && hidden.contains(&at)) {
                                beside(size, ours, theirs, at);
                            }
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn a_log_that_two_append_to_reads_as_the_pfs_has_it() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    let path = fixture.put("f", &content(9, 100_000));
    fixture.read("f");
    let ours = writer(&fixture, Ours::Append);
    let theirs = OpenOptions::new().append(true).open(&path).unwrap();
    let number = AtomicUsize::new(0);
    hooks.set(move |_, make| {
        if number.fetch_add(1, Ordering::SeqCst).is_multiple_of(5) {
            std::io::Write::write_all(&mut &theirs, b"theirs").unwrap();
        }
        make()
    });
    for _ in 0..50 {
        ours.write_at(0, b"ours").unwrap();
        let reader = fixture.try_open("f", Access::Read, Wish::default()).unwrap();
        let read = read_all(&*reader).map(|(bytes, _)| bytes);
        // The file may have grown since, or was seen to change: zeros are in neither.
        if let Ok(bytes) = read {
            assert!(std::fs::read(&path).unwrap().starts_with(&bytes));
        }
    }
    hooks.clear();
    drop(ours);
    assert_eq!(fixture.read("f").0, std::fs::read(&path).unwrap());
}

/// Once two write the same file, a change of theirs that hides behind one of ours does no harm: no
/// byte is kept before the writers are done.
#[test]
fn nothing_is_kept_of_a_file_that_two_write() {
    for size in SIZES {
        let (fixture, hooks) = warmed(size);
        let path = fixture.path("f");
        let ours = writer(&fixture, Ours::WriteInside);
        Theirs::Overwrite.run(&path);
        Ours::WriteInside.run(&*ours, size);
        fixture.read("f");
        let hidden = path.clone();
        hooks.set(move |call, make| {
            if call == Call::Write {
                Theirs::Overwrite.run(&hidden);
                writable(&hidden).write_all_at(b"hidden", 3000).unwrap();
            }
            make()
        });
        Ours::WriteInside.run(&*ours, size);
        hooks.clear();
        assert!(fixture.read("f").0 == std::fs::read(&path).unwrap(), "{size} bytes");
        drop(ours);
        assert!(fixture.read("f").0 == std::fs::read(&path).unwrap(), "{size} bytes");
        let before = fixture.pfs_read_bytes();
        assert!(fixture.read("f").0 == std::fs::read(&path).unwrap(), "{size} bytes");
        assert_eq!(fixture.pfs_read_bytes(), before, "kept again");
    }
}

#[test]
fn a_hole_beyond_the_end_keeps_what_is_cached() {
    for ours in [Ours::WriteBeyondTheEnd, Ours::GrowByTruncation] {
        let (fixture, _) = warmed(BLOCK + 5000);
        let writer = writer(&fixture, ours);
        ours.run(&*writer, BLOCK + 5000);
        drop(writer);
        let before = fixture.pfs_read_bytes();
        let expected = std::fs::read(fixture.path("f")).unwrap();
        assert!(fixture.read("f").0 == expected);
        assert_eq!(fixture.pfs_read_bytes(), before, "{ours:?}");
    }
}
