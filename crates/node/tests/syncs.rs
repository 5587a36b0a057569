//! Several opens of one file with slow and failing syncs, in every order: nobody hears success
//! before the bytes are durable, and everybody concerned hears the error, once.

mod support;

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use support::hooked::{Call, Hooks};
use support::*;
use tidepool_proto::{Access, Error, OpenFile, Result, WriteMode};

/// A caller who would be answered too early has been answered by then. Only a detection depends
/// on it, never a success.
const TOO_EARLY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(30);

/// How a descriptor asks for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Close,
    Sync,
    SyncData,
    /// A write of a descriptor with `O_SYNC`.
    SyncedWrite,
}

const ENDINGS: [Ending; 4] = [Ending::Close, Ending::Sync, Ending::SyncData, Ending::SyncedWrite];

impl Ending {
    fn run(self, file: &dyn OpenFile) -> Result<()> {
        match self {
            Ending::Close => file.flush(),
            Ending::Sync => file.sync(false),
            Ending::SyncData => file.sync(true),
            Ending::SyncedWrite => {
                file.write_at(0, b"once more")?;
                file.sync(false)
            }
        }
    }
}

/// Holds the first sync of the bytes, or of the name, until the test lets it go; notes all.
#[derive(Default)]
struct Syncs {
    state: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
struct Seen {
    begun: u64,
    held: bool,
    released: bool,
    /// Numbers of the syncs that succeeded.
    good: Vec<u64>,
}

impl Syncs {
    /// Watches calls of kind `watched`; the first one fails with `errno`, if there is one.
    fn watch(hooks: &Hooks, watched: Call, errno: Option<i32>) -> Arc<Self> {
        let syncs = Arc::new(Syncs::default());
        let watching = syncs.clone();
        hooks.set(move |call, make| {
            if call != watched {
                return make();
            }
            let number = watching.enter();
            if let (1, Some(errno)) = (number, errno) {
                return Err(Error::pfs("syncing", std::io::Error::from_raw_os_error(errno)));
            }
            make()?;
            watching.state.lock().unwrap().good.push(number);
            Ok(())
        });
        syncs
    }

    fn enter(&self) -> u64 {
        let mut seen = self.state.lock().unwrap();
        seen.begun += 1;
        let number = seen.begun;
        if number == 1 {
            seen.held = true;
            self.changed.notify_all();
            let released = |seen: &mut Seen| !seen.released;
            let (seen, late) = self.changed.wait_timeout_while(seen, PATIENCE, released).unwrap();
            drop(seen);
            assert!(!late.timed_out(), "the test lets it go");
        }
        number
    }

    fn wait_until_held(&self) {
        let seen = self.state.lock().unwrap();
        let waiting = |seen: &mut Seen| !seen.held;
        let (_seen, late) = self.changed.wait_timeout_while(seen, PATIENCE, waiting).unwrap();
        assert!(!late.timed_out(), "a sync begins");
    }

    fn release(&self) {
        self.state.lock().unwrap().released = true;
        self.changed.notify_all();
    }

    fn begun(&self) -> u64 {
        self.state.lock().unwrap().begun
    }

    /// Whether a sync with a number above `after` has succeeded by now.
    fn succeeded_after(&self, after: u64) -> bool {
        self.state.lock().unwrap().good.iter().any(|number| *number > after)
    }
}

/// Runs `second` while the sync of `first` is held, and lets that go when the second would have
/// been answered too early. Each success is checked for a good sync at the moment it comes.
fn overlap(
    syncs: &Syncs,
    first: impl FnOnce() -> Result<()> + Send,
    second: impl FnOnce() -> Result<()> + Send,
) -> [Result<()>; 2] {
    let durable = |result: Result<()>| {
        assert!(result.is_err() || syncs.succeeded_after(0), "success before a good sync");
        result
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| durable(first()));
        syncs.wait_until_held();
        let second = scope.spawn(|| durable(second()));
        let until = Instant::now() + TOO_EARLY;
        while !second.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        syncs.release();
        [first.join().unwrap(), second.join().unwrap()]
    })
}

/// All pairs of endings, side by side.
fn in_every_order(run: impl Fn(Ending, Ending) + Sync) {
    std::thread::scope(|scope| {
        for first in ENDINGS {
            let run = &run;
            scope.spawn(move || ENDINGS.map(|second| run(first, second)));
        }
    });
}

fn writers(fixture: &Fixture) -> [Arc<dyn OpenFile>; 3] {
    [0, 1, 2].map(|number| {
        let file = fixture.writer("f", Wish::default());
        file.write_at(number * 1000, &content(number, 1000)).unwrap();
        file
    })
}

#[test]
fn nobody_hears_success_while_the_sync_that_it_needs_is_under_way() {
    in_every_order(|first, second| {
        for same_descriptor in [false, true] {
            let (fixture, hooks) = Fixture::hooked(|_| ());
            fixture.put("f", &content(9, 100_000));
            let [one, two, _] = writers(&fixture);
            let two = if same_descriptor { one.clone() } else { two };
            let syncs = Syncs::watch(&hooks, Call::Sync, None);
            for result in overlap(&syncs, || first.run(&*one), || second.run(&*two)) {
                result.unwrap();
            }
            one.flush().unwrap();
            assert_eq!(fixture.node.status().dirty_bytes, 0, "{first:?}, {second:?}");
        }
    });
}

#[test]
fn a_failed_sync_is_heard_once_by_each_who_had_the_file_open() {
    in_every_order(|first, second| {
        let (fixture, hooks) = Fixture::hooked(|_| ());
        fixture.put("f", &content(9, 100_000));
        let [one, two, three] = writers(&fixture);
        let syncs = Syncs::watch(&hooks, Call::Sync, Some(libc::EDQUOT));
        for result in overlap(&syncs, || first.run(&*one), || second.run(&*two)) {
            let errno = result.map_err(|error| error.errno());
            assert_eq!(errno, Err(libc::EDQUOT), "{first:?}, {second:?}");
        }
        assert!(fixture.node.status().dirty_bytes > 0, "still owed");
        let later = fixture.writer("f", Wish::default());
        assert_eq!(three.flush().unwrap_err().errno(), libc::EDQUOT, "it had written as well");
        for file in [one, two, three, later] {
            file.flush().unwrap();
        }
        assert_eq!(fixture.node.status().dirty_bytes, 0);
        assert_eq!(fixture.read("f").0, std::fs::read(fixture.path("f")).unwrap());
    });
}

#[test]
fn a_second_writer_of_a_new_file_waits_for_its_name_too() {
    in_every_order(|first, second| {
        for errno in [None, Some(libc::EDQUOT)] {
            let (fixture, hooks) = Fixture::hooked(|_| ());
            let one = fixture.writer("new", Wish::default());
            let two = fixture.writer("new", Wish::default());
            one.write_at(0, b"one").unwrap();
            two.write_at(3, b"two").unwrap();
            let syncs = Syncs::watch(&hooks, Call::SyncEntry, errno);
            for result in overlap(&syncs, || first.run(&*one), || second.run(&*two)) {
                assert_eq!(result.map_err(|error| error.errno()).err(), errno);
            }
        }
    });
}

#[test]
fn the_name_of_a_new_file_without_bytes_is_synced_at_its_close() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    let file = fixture.writer("new", Wish::default());
    let syncs = Syncs::watch(&hooks, Call::SyncEntry, None);
    syncs.release();
    file.flush().unwrap();
    file.flush().unwrap();
    assert_eq!(syncs.begun(), 1);
}

#[test]
fn what_is_written_while_a_sync_is_under_way_is_synced_by_its_own_close() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    fixture.put("f", &content(9, 100_000));
    let [one, two, _] = writers(&fixture);
    let syncs = Syncs::watch(&hooks, Call::Sync, None);
    let results = overlap(
        &syncs,
        || one.flush(),
        || {
            two.write_at(5000, &content(5, 1000))?;
            two.flush()?;
            assert!(syncs.succeeded_after(1), "the sync under way may have missed it");
            Ok(())
        },
    );
    for result in results {
        result.unwrap();
    }
}

#[test]
fn an_explicit_sync_asks_the_pfs_also_where_the_node_saw_no_write() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    fixture.put("f", &content(9, 100_000));
    let syncs = Syncs::watch(&hooks, Call::Sync, None);
    syncs.release();
    let bypass = Wish { write: Some(WriteMode::Bypass), ..Wish::default() };
    let reader = fixture.try_open("f", Access::Read, Wish::default()).unwrap();
    let opens = [fixture.writer("f", bypass), fixture.writer("f", Wish::default()), reader];
    for (file, data_only) in opens.iter().flat_map(|file| [(file, false), (file, true)]) {
        let before = syncs.begun();
        file.sync(data_only).unwrap();
        assert!(syncs.succeeded_after(before));
    }
    let before = syncs.begun();
    opens[1].flush().unwrap();
    assert_eq!(syncs.begun(), before, "a close syncs what was written alone");
}

#[test]
fn nothing_is_owed_for_writes_in_mode_bypass() {
    let fixture = Fixture::new();
    fixture.put("f", &content(9, 9 << 20));
    fixture.read("f");
    let writer = fixture.writer("f", Wish { write: Some(WriteMode::Bypass), ..Wish::default() });
    writer.write_at(0, &content(1, 2 << 20)).unwrap();
    writer.set_size(8 << 20).unwrap();
    writer.allocate(0, 0, 9 << 20).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let status = fixture.node.status();
    assert_eq!((status.dirty_bytes, status.dirty_age_ms), (0, None));
}

#[test]
fn a_sync_is_made_by_each_open_where_the_pfs_syncs_what_that_one_wrote() {
    for (is_per_open, wanted) in [(true, 2), (false, 1)] {
        let change = |features: &mut tidepool_pfs::Features| {
            features.fsync_is_per_open = is_per_open;
        };
        let (fixture, hooks) = Fixture::hooked_with(change, |_| ());
        fixture.put("file", b"before");
        let writer = fixture.writer("file", Wish::default());
        let other = fixture.writer("file", Wish::default());
        writer.write_at(0, b"bytes").unwrap();
        let syncs = Arc::<Mutex<u32>>::default();
        let counted = syncs.clone();
        hooks.set(move |call, make| {
            *counted.lock().unwrap() += u32::from(call == Call::Sync);
            make()
        });
        other.sync(false).unwrap();
        assert_eq!(*syncs.lock().unwrap(), wanted, "per open: {is_per_open}");
        hooks.clear();
        drop((writer, other));
        let created = fixture.writer("new", Wish::default());
        let is_direct = created.write_directly().is_some();
        assert_eq!(is_direct, !is_per_open, "the kernel's own opens are others too");
    }
}
