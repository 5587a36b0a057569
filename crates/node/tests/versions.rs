//! Changes behind the node's back: seen at the next open, never mixed within one.

mod support;

use std::sync::Arc;
use support::*;
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::{Access, ChangeTimes, ErrorKind, FileService, Level, OpenFile};

fn stat(path: &std::path::Path) -> tidepool_proto::Version {
    version_of(&std::fs::metadata(path).unwrap())
}

fn version_of(data: &std::fs::Metadata) -> tidepool_proto::Version {
    data.into()
}

#[test]
fn the_second_read_does_not_touch_the_pfs() {
    for size in [1, 5000, 300 << 10, 9 << 20] {
        let fixture = Fixture::new();
        let bytes = content(size as u64, size);
        fixture.put("f", &bytes);
        assert_eq!(fixture.read("f").0, bytes);
        let before = fixture.pfs_read_bytes();
        let (again, outcome) = fixture.read("f");
        assert_eq!(again, bytes);
        assert_eq!(fixture.pfs_read_bytes(), before, "size {size}");
        assert_eq!(outcome.levels.get(Level::Store), size as u64);
    }
}

#[test]
fn an_equal_length_change_in_the_same_instant_is_seen_at_the_next_open() {
    for size in [3000, 5 << 20] {
        let fixture = Fixture::new();
        let path = fixture.put("f", &content(0, size));
        for round in 1..60 {
            let bytes = content(round, size);
            overwrite(&path, 0, &bytes);
            assert_eq!(fixture.read("f").0, bytes, "round {round}");
            assert_eq!(fixture.read("f").0, bytes, "round {round}, again");
        }
    }
}

#[test]
fn a_change_whose_mtime_was_set_back_is_seen_at_the_next_open() {
    let fixture = Fixture::new();
    let path = fixture.put("f", &content(1, 5 << 20));
    fixture.read("f");
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    overwrite(&path, 0, &content(2, 5 << 20));
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    assert_eq!(fixture.read("f").0, content(2, 5 << 20));
}

#[test]
fn replacing_truncating_and_deleting_are_seen_at_the_next_open() {
    let fixture = Fixture::new();
    let path = fixture.put("f", &content(1, 5 << 20));
    fixture.read("f");
    fixture.put("g", &content(2, 5 << 20));
    std::fs::rename(fixture.path("g"), &path).unwrap();
    assert_eq!(fixture.read("f").0, content(2, 5 << 20));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(fixture.read("f").0, content(2, 5 << 20)[..1 << 20]);
    for round in 0..40 {
        std::fs::remove_file(&path).unwrap();
        fixture.put("f", &content(round, 300 << 10));
        assert_eq!(fixture.read("f").0, content(round, 300 << 10), "a reused inode is a new file");
    }
}

#[test]
fn one_open_never_mixes_versions() {
    let fixture = Fixture::with(|config| config.read_ahead_bytes_max = 0);
    let old = content(1, 16 << 20);
    let path = fixture.put("f", &old);
    let open = fixture.open("f");
    let mut head = vec![0; 4096];
    open.read_at(0, &mut head).unwrap();
    overwrite(&path, 0, &content(2, 16 << 20));
    let mut buffer = vec![0; 4096];
    open.read_at(4096, &mut buffer).unwrap();
    assert_eq!(buffer, old[4096..8192], "resident bytes stay those of the open's version");
    let error = open.read_at(12 << 20, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert_eq!(error.errno(), libc::ESTALE);
    assert_eq!(fixture.read("f").0, content(2, 16 << 20));
}

#[test]
fn a_name_that_goes_through_this_node_does_not_cut_readers_off() {
    let fixture = Fixture::with(|config| config.read_ahead_bytes_max = 0);
    let path = fixture.put("f", &content(1, 16 << 20));
    let open = fixture.open("f");
    open.read_at(0, &mut [0; 10]).unwrap();
    let held = std::fs::File::open(&path).unwrap();
    let before = stat(&path);
    std::fs::remove_file(path).unwrap();
    fixture.node.rebase_version(&before, &version_of(&held.metadata().unwrap()), true);
    fixture.node.removed(before.id);
    assert_eq!(read_all(&*open).unwrap().0, content(1, 16 << 20));
}

#[test]
fn a_change_hidden_behind_an_unlinked_name_is_not_mixed_in() {
    let fixture = Fixture::with(|config| config.read_ahead_bytes_max = 0);
    let path = fixture.put("f", &content(1, 16 << 20));
    let open = fixture.open("f");
    open.read_at(0, &mut [0; 10]).unwrap();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    overwrite(&path, 0, &content(2, 16 << 20));
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    std::fs::remove_file(path).unwrap();
    let error = open.read_at(12 << 20, &mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
}

#[test]
fn metadata_changes_of_ours_carry_the_cache_along() {
    for size in [3000, 5 << 20] {
        let fixture = Fixture::new();
        let path = fixture.put("f", &content(1, size));
        fixture.read("f");
        let read_before = fixture.pfs_read_bytes();
        let before = stat(&path);
        std::fs::rename(&path, fixture.path("g")).unwrap();
        let after = stat(&fixture.path("g"));
        assert_ne!(before, after, "rename moves the change time");
        fixture.node.rebase_version(&before, &after, true);
        assert_eq!(fixture.read("g").0, content(1, size));
        assert_eq!(fixture.pfs_read_bytes(), read_before, "size {size}");
    }
}

/// Whoever has a file open reads on after its time was set, as after a write of this node.
#[test]
fn a_time_that_is_set_shuts_no_reader_out() {
    for size in [3000, 9 << 20] {
        let fixture = Fixture::with(|config| config.read_ahead_bytes_max = 0);
        let path = fixture.put("f", &content(1, size));
        let reader = fixture.open("f");
        let mut expected = content(1, size);
        let mut bytes = vec![0; size + 4];
        for time in [1_000_000, 2_000_000] {
            let writer = fixture.writer("f", Wish::default());
            writer.write_at(size as u64, b"more").unwrap();
            drop(writer);
            expected.truncate(size);
            expected.extend_from_slice(b"more");
            let before = stat(&path);
            let file = std::fs::File::open(&path).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(time);
            file.set_modified(time).unwrap();
            fixture.node.rebase_version(&before, &stat(&path), true);
            reader.read_at(0, &mut bytes).unwrap();
            assert!(bytes == expected, "size {size}");
            assert_eq!(reader.version(), stat(&path).born_as(&reader.version()));
            assert_eq!(fixture.read("f").0, expected);
        }
        overwrite(&path, 0, &content(2, size));
        assert!(reader.read_at(0, &mut bytes).is_err() || bytes == expected, "never mixed");
    }
}

/// A file that has the name `g` by now, a reader that opened it before, and its version then.
fn moved_while_open(size: usize) -> (Fixture, Arc<dyn OpenFile>, tidepool_proto::Version) {
    let fixture = Fixture::new();
    let path = fixture.put("f", &content(1, size));
    let reader = fixture.open("f");
    let before = stat(&path);
    std::fs::rename(&path, fixture.path("g")).unwrap();
    (fixture, reader, before)
}

/// A reader and transfers of read-ahead may look at a file after its name moved and before whoever
/// moved it told the node.
#[test]
fn a_read_between_a_rename_and_the_word_of_it_waits_for_the_word() {
    for size in [3000, 9 << 20] {
        let (fixture, reader, before) = moved_while_open(size);
        let read = std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                let mut bytes = vec![0; size];
                reader.read_at(0, &mut bytes).map(|_| bytes)
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            fixture.node.rebase_version(&before, &stat(&fixture.path("g")), true);
            read.join().unwrap()
        });
        assert_eq!(read.unwrap(), content(1, size));
        assert_eq!(fixture.read("g").0, content(1, size));
    }
}

/// A file whose mode was changed a moment ago, open for reading and writing before that.
struct Moment {
    fixture: Fixture,
    reader: Arc<dyn OpenFile>,
    writer: Arc<dyn OpenFile>,
    before: tidepool_proto::Version,
    begun: std::time::Instant,
}

const MOMENT_BYTES: usize = 1 << 20;

impl Moment {
    fn new() -> Self {
        let fixture = Fixture::with(|config| config.read_ahead_bytes_max = 0);
        let path = fixture.put("f", &content(1, MOMENT_BYTES));
        let (reader, writer) = (fixture.open("f"), fixture.writer("f", Wish::default()));
        let (before, begun) = (stat(&path), std::time::Instant::now());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        Moment { fixture, reader, writer, before, begun }
    }

    /// Lets others get under way, then brings the word.
    fn tell(&self) {
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.fixture.node.rebase_version(&self.before, &stat(&self.fixture.path("f")), true);
    }

    /// Whether all of it was within the time for which the word is waited for.
    fn was_short(&self) -> bool {
        self.begun.elapsed() < std::time::Duration::from_millis(90)
    }

    fn reads(&self) -> bool {
        self.reader.read_at(0, &mut vec![0; MOMENT_BYTES]).is_ok()
    }
}

/// `meet` answers whether the reader goes on. What took too long on a busy machine does not count.
fn in_moments(meet: impl Fn(&Moment) -> bool) {
    let mut met = 0;
    for _ in 0..60 {
        let moment = Moment::new();
        let goes_on = meet(&moment);
        let counts = moment.was_short();
        assert!(goes_on || !counts, "no other program changed it");
        met += usize::from(counts);
        if met == 6 {
            break;
        }
    }
}

#[test]
fn a_write_between_a_change_of_metadata_and_the_word_of_it_waits_for_the_word() {
    in_moments(|moment| {
        std::thread::scope(|scope| {
            scope.spawn(|| moment.writer.write_at(0, b"new").unwrap());
            moment.tell();
        });
        moment.reads()
    });
}

#[test]
fn an_open_between_a_change_of_metadata_and_the_word_of_it_waits_for_the_word() {
    in_moments(|moment| {
        std::thread::scope(|scope| {
            scope.spawn(|| drop(moment.fixture.open("f")));
            moment.tell();
        });
        moment.reads()
    });
}

/// A reader waits for the word, a writer for the reader; the word waits for neither.
#[test]
fn the_word_of_a_change_of_metadata_comes_by_a_writer_that_waits() {
    let meet = || {
        let moment = Moment::new();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| moment.reads());
            std::thread::sleep(std::time::Duration::from_millis(10));
            scope.spawn(|| moment.writer.write_at(0, b"new").unwrap());
            moment.tell();
            read.join().unwrap()
        })
    };
    // A busy machine may be too late for the reader, now and then.
    assert!((0..10).any(|_| meet()), "a word that waits for the writer is always too late");
}

/// The word tells of a version before writes that came in between.
#[test]
fn word_of_a_rename_beside_writes_of_ours_shuts_nobody_out() {
    let size = 9 << 20;
    let (fixture, reader, before) = moved_while_open(size);
    let path = fixture.path("g");
    fixture.node.rebase_version(&before, &stat(&path), true);
    let writer = fixture.writer("g", Wish::default());
    let before = stat(&path);
    let mut expected = content(1, size);
    for end in [size, size + 3] {
        writer.write_at(end as u64 - 3, b"new").unwrap();
        expected.resize(end, 0);
        expected[end - 3..].copy_from_slice(b"new");
        std::fs::rename(&path, fixture.path("f")).unwrap();
        std::fs::rename(fixture.path("f"), &path).unwrap();
        fixture.node.rebase_version(&before, &stat(&path), true);
        let mut bytes = vec![0; end];
        reader.read_at(0, &mut bytes).expect("no other program changed it");
        assert!(bytes == expected, "{end} bytes");
        fixture.node.admin(AdminRequest::EvictAll, None, 0).unwrap();
    }
    // A version that the node did not see before it: who made that may have changed bytes.
    overwrite(&path, 0, &content(2, size));
    let before = stat(&path);
    std::fs::rename(&path, fixture.path("f")).unwrap();
    fixture.node.rebase_version(&before, &stat(&fixture.path("f")), true);
    assert!(reader.read_at(0, &mut vec![0; size]).is_err(), "never mixed");
}

#[test]
fn word_of_a_rename_that_comes_too_late_shuts_nobody_out() {
    for size in [3000, 9 << 20] {
        let (fixture, reader, before) = moved_while_open(size);
        let error = reader.read_at(0, &mut vec![0; size]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "nobody said that its bytes are the same");
        fixture.node.rebase_version(&before, &stat(&fixture.path("g")), true);
        assert_eq!(fixture.read("g").0, content(1, size), "an open after it reads");
        let writer = fixture.writer("g", Wish::default());
        writer.write_at(0, b"new").unwrap();
        drop(writer);
        assert_eq!(fixture.read("g").0[..3], *b"new");
    }
}

#[test]
fn a_carry_that_hides_a_change_of_content_is_refused() {
    let fixture = Fixture::new();
    let path = fixture.put("f", &content(1, 5 << 20));
    fixture.read("f");
    let before = stat(&path);
    overwrite(&path, 0, &content(2, 5 << 20));
    fixture.node.rebase_version(&before, &stat(&path), true);
    assert_eq!(fixture.read("f").0, content(2, 5 << 20));
}

#[test]
fn coarse_time_stamps_are_not_trusted_until_they_settle() {
    // A file system of one-second stamps: the change below would be invisible in them.
    let fixture = Fixture::with(|config| config.timestamp_granularity_ns = Some(1_000_000_000));
    fixture.put("f", &content(1, 5 << 20));
    fixture.read("f");
    let before = fixture.pfs_read_bytes();
    fixture.read("f");
    assert!(fixture.pfs_read_bytes() > before, "an unsettled version is read again");
    std::thread::sleep(std::time::Duration::from_millis(3500));
    fixture.read("f");
    let before = fixture.pfs_read_bytes();
    fixture.read("f");
    assert_eq!(fixture.pfs_read_bytes(), before, "a settled one is trusted");
}

#[test]
fn a_reader_of_an_unsettled_version_goes_on_when_another_opens_the_file() {
    let change = |config: &mut tidepool_proto::config::NodeConfig| {
        config.timestamp_granularity_ns = Some(1_000_000_000_000);
        config.read_ahead_bytes_max = 0;
    };
    let fixture = Fixture::with(change);
    let bytes = content(1, 16 << 20);
    let path = fixture.put("f", &bytes);
    let first = fixture.open("f");
    first.read_at(0, &mut [0; 4096]).unwrap();
    let second = fixture.open("f");
    second.read_at(8 << 20, &mut [0; 4096]).unwrap();
    assert_eq!(read_all(&*first).unwrap().0, bytes);
    assert_eq!(read_all(&*second).unwrap().0, bytes);
    // A change that shows is none to be led over.
    overwrite(&path, 0, &content(2, 17 << 20));
    let third = fixture.open("f");
    let last = bytes.len() as u64 - 4096;
    fixture.node.admin(AdminRequest::EvictAll, None, 0).unwrap();
    for reader in [&first, &second] {
        let error = reader.read_at(last, &mut [0; 4096]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
    }
    assert_eq!(read_all(&*third).unwrap().0, content(2, 17 << 20));
}

#[test]
fn another_programs_write_under_our_writer_is_not_mixed_in() {
    let fixture = Fixture::new();
    let path = fixture.put("f", &content(1, 8 << 20));
    fixture.read("f");
    let writer = fixture.writer("f", Wish::default());
    writer.write_at(0, &content(2, 4096)).unwrap();
    overwrite(&path, 1 << 20, &content(3, 4096));
    writer.write_at(8192, &content(4, 4096)).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let expected = std::fs::read(&path).unwrap();
    assert_eq!(fixture.read("f").0, expected);
    let reader = fixture.try_open("f", Access::Read, Wish::default()).unwrap();
    assert_eq!(read_all(&*reader).unwrap().0, expected);
}

/// Notes the version of a file as a front end does before it changes metadata for a user.
fn note(fixture: &Fixture, name: &str) -> Box<dyn tidepool_proto::MetadataWatch> {
    let file = std::fs::File::options().read(true).write(true).open(fixture.path(name)).unwrap();
    fixture.node.watch_metadata(file.into()).unwrap()
}

/// What a client tells of a change between two looks of its own.
fn times(before: tidepool_proto::Version, after: tidepool_proto::Version) -> Option<ChangeTimes> {
    let (before_ns, after_ns) = (before.changed_ns, after.changed_ns);
    Some(ChangeTimes { before_ns, after_ns, leased: true })
}

#[test]
fn a_noted_version_is_carried_along_by_a_change_of_metadata() {
    for size in [3000, 5 << 20] {
        let fixture = Fixture::new();
        fixture.put("f", &content(1, size));
        fixture.read("f");
        let read_before = fixture.pfs_read_bytes();
        let noted = note(&fixture, "f");
        let before = stat(&fixture.path("f"));
        std::fs::rename(fixture.path("f"), fixture.path("g")).unwrap();
        noted.carry(times(before, stat(&fixture.path("g")))).unwrap();
        assert_eq!(fixture.read("g").0, content(1, size));
        assert_eq!(fixture.pfs_read_bytes(), read_before, "size {size}");
    }
}

/// Who owns a file sets its length and times as they were in a version that is cached; the bytes
/// of that version are not his to have.
#[test]
fn nobody_gets_cached_bytes_of_a_version_that_the_node_did_not_see_before_the_change() {
    for size in [3000, 5 << 20] {
        let fixture = Fixture::new();
        let path = fixture.put("f", &content(1, size));
        fixture.read("f");
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        overwrite(&path, 0, &vec![0; size]);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(modified).unwrap();
        let noted = note(&fixture, "f");
        let before = stat(&path);
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        noted.carry(times(before, stat(&path))).unwrap();
        assert_eq!(fixture.read("f").0, vec![0; size]);
    }
}

/// A node or a client may stand still between its look at a file and the change, or between the
/// change and the word of it, while another program writes the file and sets its time back.
#[test]
fn a_change_of_content_does_not_hide_behind_a_change_of_metadata_of_ours() {
    for size in [3000, 5 << 20] {
        for (is_early, has_times) in [(true, true), (false, true), (false, false)] {
            let fixture = Fixture::new();
            let path = fixture.put("f", &content(1, size));
            let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
            // A change time of another tick.
            std::thread::sleep(std::time::Duration::from_millis(20));
            fixture.read("f");
            let by_another = || {
                overwrite(&path, 0, &content(2, size));
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.set_modified(modified).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            };
            let noted = note(&fixture, "f");
            if is_early {
                by_another();
            }
            let before = stat(&path);
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                .unwrap();
            let after = stat(&path);
            if !is_early {
                by_another();
            }
            noted.carry(times(before, after).filter(|_| has_times)).unwrap();
            assert_eq!(fixture.read("f").0, content(2, size), "{size}, early {is_early}");
        }
    }
}

/// Somebody had the file open for writing while its mode changed, who may have set the time back.
#[test]
fn what_nobody_had_a_lease_of_is_read_again_and_shuts_no_reader_out() {
    for size in [3000, 5 << 20] {
        let fixture = Fixture::new();
        let path = fixture.put("f", &content(1, size));
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fixture.read("f");
        let reader = fixture.open("f");
        let noted = note(&fixture, "f");
        let before = stat(&path);
        overwrite(&path, 0, &content(2, size));
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(modified).unwrap();
        let seen = times(before, stat(&path)).map(|times| ChangeTimes { leased: false, ..times });
        noted.carry(seen).unwrap();
        assert_eq!(fixture.read("f").0, content(2, size));
        read_all(&*reader).expect("who has it open goes on");
    }
}

#[test]
fn a_file_is_discarded_with_its_last_name_and_no_earlier() {
    for size in [3000, 5 << 20] {
        let fixture = Fixture::new();
        let path = fixture.put("f", &content(1, size));
        std::fs::hard_link(&path, fixture.path("g")).unwrap();
        fixture.read("f");
        let read_before = fixture.pfs_read_bytes();
        let is_cached = |id| {
            let packed = fixture.node.store().small_state(id).is_some();
            packed || fixture.node.status().store.segments > 0
        };
        let id = stat(&path).id;
        let noted = note(&fixture, "f");
        let before = stat(&path);
        std::fs::remove_file(&path).unwrap();
        noted.carry(times(before, stat(&fixture.path("g")))).unwrap();
        assert!(is_cached(id), "another name is left");
        assert_eq!(fixture.read("g").0, content(1, size));
        assert_eq!(fixture.pfs_read_bytes(), read_before);
        let noted = note(&fixture, "g");
        let before = stat(&fixture.path("g"));
        // A name that comes before the last one goes: the count of before would be wrong.
        std::fs::hard_link(fixture.path("g"), fixture.path("h")).unwrap();
        std::fs::remove_file(fixture.path("g")).unwrap();
        noted.carry(times(before, stat(&fixture.path("h")))).unwrap();
        assert!(is_cached(id), "a name came meanwhile");
        let noted = note(&fixture, "h");
        std::fs::remove_file(fixture.path("h")).unwrap();
        noted.carry(None).unwrap();
        assert!(!is_cached(id));
    }
}
