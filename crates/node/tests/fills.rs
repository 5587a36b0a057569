//! Fills: one read from the PFS however many ask, read-ahead by pattern, faults that cost nothing
//! but themselves, counters that conserve bytes.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::*;
use tidepool_proto::{Advice, ErrorKind};

#[test]
fn concurrent_readers_of_a_block_cause_one_read_of_it() {
    let (fixture, _faults) = Fixture::faulty("read:slow=50ms");
    fixture.put("f", &content(1, BLOCK as usize));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let open = fixture.open("f");
            std::thread::spawn(move || read_all(&*open).unwrap().0)
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), content(1, BLOCK as usize));
    }
    assert_eq!(fixture.pfs_read_bytes(), BLOCK, "one read, whoever asked");
}

/// What passes by is shared by those who ask at the same time. Who asks after a write is not one of
/// them.
#[test]
fn what_passes_by_is_never_from_before_a_write() {
    const LENGTH: usize = 512 << 10;
    let unwanted = Advice { read_ahead_bytes_max: None, keep: false };
    let fixture = Fixture::new();
    fixture.put("f", &[0; LENGTH]);
    let done = AtomicBool::new(false);
    let read = || {
        let open = fixture.open("f");
        open.advise(unwanted);
        let mut bytes = vec![0; LENGTH];
        open.read_at(0, &mut bytes).unwrap();
        bytes[0]
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    read();
                }
            });
        }
        let writer = fixture.writer("f", Wish::default());
        writer.advise(unwanted);
        let stale = (0..2_000u32).find(|round| {
            writer.write_at(0, &[*round as u8]).unwrap();
            read() != *round as u8
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(stale, None, "the round whose write was not read");
    });
}

#[test]
fn a_sequential_reader_finds_its_blocks_brought_in() {
    let fixture = Fixture::new();
    fixture.put("f", &content(1, 48 << 20));
    let open = fixture.open("f");
    let (bytes, _) = read_all(&*open).unwrap();
    assert_eq!(bytes, content(1, 48 << 20));
    assert_eq!(fixture.pfs_read_bytes(), 48 << 20, "each byte once");
    let served = fixture.node.status().served;
    assert_eq!((served.pfs, served.store), (48 << 20, 0), "read-ahead is no hit");
    read_all(&*open).unwrap();
    assert_eq!(fixture.node.status().served.store, 48 << 20);
}

#[test]
fn a_load_brings_a_file_in_and_counts_no_read() {
    use std::os::fd::OwnedFd;
    use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
    let fixture = Fixture::new();
    for size in [0, 1000, 30 << 20] {
        let path = fixture.put("f", &content(1, size));
        let file: OwnedFd = std::fs::File::open(&path).unwrap().into();
        let reply = fixture.node.admin(AdminRequest::Load, Some(file), 0).unwrap();
        let AdminReply::Loaded(report) = reply else { panic!("{reply:?}") };
        assert_eq!((report.size_bytes, report.resident_bytes), (size as u64, size as u64));
        assert_eq!(fixture.node.status().asked_bytes, 0);
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn what_was_loaded_is_read_from_the_store() {
    use std::os::fd::OwnedFd;
    use tidepool_proto::admin::{AdminRequest, AdminService};
    let fixture = Fixture::new();
    let path = fixture.put("f", &content(1, 30 << 20));
    let file: OwnedFd = std::fs::File::open(&path).unwrap().into();
    fixture.node.admin(AdminRequest::Load, Some(file), 0).unwrap();
    read_all(&*fixture.open("f")).unwrap();
    let served = fixture.node.status().served;
    assert_eq!((served.store, served.pfs), (30 << 20, 0), "{served:?}");
}

#[test]
fn a_random_reader_of_small_pieces_does_not_drag_whole_blocks_in() {
    let fixture = Fixture::new();
    let bytes = content(1, 60 << 20);
    fixture.put("f", &bytes);
    let open = fixture.open("f");
    let mut position = 12345usize;
    for _ in 0..30 {
        position = (position * 48271 + 11) % (59 << 20);
        let mut buffer = [0; 4096];
        open.read_at(position as u64, &mut buffer).unwrap();
        assert_eq!(buffer, bytes[position..position + 4096]);
    }
    assert!(fixture.pfs_read_bytes() < 40 << 20, "{}", fixture.pfs_read_bytes());
}

#[test]
fn an_error_of_the_pfs_reaches_the_reader_and_is_not_remembered() {
    let (fixture, faults) = Fixture::faulty("read:errno=EIO");
    fixture.put("f", &content(1, 5 << 20));
    let open = fixture.open("f");
    let error = open.read_at(0, &mut [0; 4096]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pfs);
    assert_eq!(error.errno(), libc::EIO);
    faults.set_rules(&"".parse().unwrap());
    assert_eq!(read_all(&*open).unwrap().0, content(1, 5 << 20));
}

#[test]
fn a_full_pfs_stops_the_writer_and_leaves_nothing_false_behind() {
    let (fixture, faults) = Fixture::faulty("write:enospc-after=6MiB");
    let bytes = content(1, 12 << 20);
    let writer = fixture.writer("f", Wish::default());
    let error = bytes
        .chunks(1 << 20)
        .enumerate()
        .find_map(|(number, piece)| writer.write_at((number as u64) << 20, piece).err())
        .expect("the file system is full");
    assert_eq!(error.errno(), libc::ENOSPC);
    drop(writer);
    faults.set_rules(&"".parse().unwrap());
    assert_eq!(fixture.read("f").0, std::fs::read(fixture.path("f")).unwrap());
}

#[test]
fn a_write_that_stops_at_a_full_pfs_answers_what_went_in_and_the_next_one_the_error() {
    for append in [false, true] {
        let (fixture, faults) = Fixture::faulty("write:enospc-after=1500KB");
        let bytes = content(1, 2 << 20);
        let writer = fixture.writer("f", Wish { append, ..Wish::default() });
        assert_eq!(writer.write_part(0, &bytes[..1 << 20]).unwrap(), (0, 1 << 20));
        let (at, taken) = writer.write_part(1 << 20, &bytes[1 << 20..]).unwrap();
        assert_eq!((at, taken), (1 << 20, 1_500_000 - (1 << 20)));
        let error = writer.write_part(at + taken as u64, &bytes[1_500_000..]).unwrap_err();
        assert_eq!(error.errno(), libc::ENOSPC);
        faults.set_rules(&"".parse().unwrap());
        // As programs do that wait for room.
        let rest = writer.write_part(at + taken as u64, &bytes[1_500_000..]).unwrap();
        assert_eq!(rest, (1_500_000, bytes.len() - 1_500_000));
        writer.flush().unwrap();
        assert_eq!(std::fs::read(fixture.path("f")).unwrap(), bytes, "append: {append}");
        assert_eq!(fixture.read("f").0, bytes);
    }
}

#[test]
fn a_failing_sync_reaches_close_and_the_copy_in_memory_is_given_up() {
    let (fixture, faults) = Fixture::faulty("sync:errno=EIO");
    let writer = fixture.writer("f", Wish::default());
    writer.write_at(0, &content(1, 5 << 20)).unwrap();
    assert_eq!(writer.flush().unwrap_err().errno(), libc::EIO);
    assert!(fixture.node.status().dirty_bytes > 0, "still owed");
    faults.set_rules(&"".parse().unwrap());
    writer.flush().unwrap();
    assert_eq!(fixture.node.status().dirty_bytes, 0);
}

#[test]
fn a_pfs_that_ends_a_file_early_is_asked_a_few_times_and_not_for_ever() {
    for size in [3000, 3 << 20, 9 << 20] {
        let (fixture, faults) = Fixture::faulty_with("read:short", |config| {
            config.read_ahead_bytes_max = 0;
        });
        let bytes = content(1, size);
        fixture.put("f", &bytes);
        let file = fixture.open("f");
        let mut part = vec![0; size.min(1 << 20)];
        let error = file.read_at(0, &mut part).unwrap_err();
        assert_eq!(error.errno(), libc::EIO, "{size}: {error}");
        assert!(fixture.pfs_read_bytes() <= 8 * BLOCK, "{} bytes", fixture.pfs_read_bytes());
        faults.set_rules(&"".parse().unwrap());
        assert_eq!(read_all(&*file).unwrap().0, bytes, "the same open goes on");
    }
}

#[test]
fn what_was_flushed_survives_the_loss_of_everything_unsynced() {
    for size in [100, 300 << 10, 6 << 20] {
        let (fixture, faults) = Fixture::faulty("lose-unsynced");
        let writer = fixture.writer("closed", Wish::default());
        writer.write_at(0, &content(1, size)).unwrap();
        writer.flush().unwrap();
        let unfinished = fixture.writer("open", Wish::default());
        unfinished.write_at(0, &content(2, size)).unwrap();
        faults.lose_power().unwrap();
        assert_eq!(std::fs::read(fixture.path("closed")).unwrap(), content(1, size));
        let left = std::fs::read(fixture.path("open")).unwrap_or_default();
        assert_ne!(left, content(2, size), "the wrapper really loses what was not synced");
    }
}

#[test]
fn a_set_larger_than_the_store_is_read_right_by_many_threads() {
    let fixture = Arc::new(Fixture::new());
    for number in 0..12u64 {
        fixture.put(&format!("f{number}"), &content(number, 9_000_000));
    }
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let fixture = fixture.clone();
            std::thread::spawn(move || {
                for round in 0..6 {
                    let number = (thread * 5 + round * 7) % 12;
                    let (bytes, _) = fixture.read(&format!("f{number}"));
                    assert!(bytes == content(number, 9_000_000));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let status = fixture.node.status();
    assert!(status.store.resident_bytes_peak <= CAPACITY);
    assert_eq!(status.asked_bytes, status.served.total() + status.failed_bytes);
    assert_eq!(status.asked_bytes, 24 * 9_000_000);
}

#[test]
fn reads_across_blocks_and_truncations_do_not_wait_for_each_other() {
    let fixture = Arc::new(Fixture::with(|config| config.read_ahead_bytes_max = 0));
    fixture.put("f", &content(1, 9 << 20));
    let changing = fixture.clone();
    let writer = std::thread::spawn(move || {
        let file = changing.writer("f", Wish::default());
        for round in 0..300u64 {
            file.set_size((4 << 20) + round % 5).unwrap();
            file.write_at(8 << 20, &content(round, 1 << 20)).unwrap();
            let evict = tidepool_proto::admin::AdminRequest::EvictAll;
            tidepool_proto::admin::AdminService::admin(&*changing.node, evict, None, 0).unwrap();
        }
    });
    let reader = fixture.open("f");
    let mut buffer = vec![0; 1 << 20];
    while !writer.is_finished() {
        reader.read_at((4 << 20) - (1 << 19), &mut buffer).unwrap();
    }
    writer.join().unwrap();
}

#[test]
fn a_loop_larger_than_the_store_hits_with_read_ahead() {
    let capacity = 256 << 20;
    let fixture = Fixture::with(|config| config.capacity_bytes = capacity);
    let size = capacity as usize * 4 / 3;
    let bytes = content(1, size);
    fixture.put("f", &bytes);
    let pass = || assert!(fixture.read("f").0 == bytes);
    pass();
    let before = fixture.pfs_read_bytes();
    for _ in 0..4 {
        pass();
    }
    let read = fixture.pfs_read_bytes() - before;
    let hit_ratio = 1.0 - read as f64 / (4 * size) as f64;
    eprintln!("hit ratio {hit_ratio:.3}, optimum 0.75");
    // A busy machine delays transfers, which costs some hits; a loop not seen as one costs all.
    assert!(hit_ratio >= 0.55, "{hit_ratio:.3}");
}
