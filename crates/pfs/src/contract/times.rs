//! Checks of time stamps: whether every change shows, how wide their tick is, whose clock it is.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ground::{Check, Ground, Verdict};
use crate::filesystem::FileSystem;
use crate::lower::LowerStore;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "time-stamp-tick", run: tick, if_failed: WAIT },
    Check { name: "change-in-one-instant", run: same_instant, if_failed: WAIT },
    Check { name: "change-moves-times", run: change_moves, if_failed: UNSEEN },
    Check { name: "set-times", run: set_times, if_failed: SET_TIMES },
    Check { name: "rename-moves-ctime", run: rename_moves, if_failed: NO_CTIME },
    Check { name: "known-limits", run: known_limits, if_failed: "as on the PFS" },
    Check { name: "clock-offset", run: clock_offset, if_failed: WAIT },
];

const WAIT: &str = "files changed within the last tick are read from the PFS at every open";
const UNSEEN: &str = "changes by other programs cannot be seen: do not use Tidepool here";
const SET_TIMES: &str = "programs that set times (tar, rsync) get other times, as without Tidepool";
const NO_CTIME: &str = "none: versions also carry inode, length and content time";

fn stamps(metadata: &fs::Metadata) -> (i128, i128) {
    let ns = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    (ns(metadata.mtime(), metadata.mtime_nsec()), ns(metadata.ctime(), metadata.ctime_nsec()))
}

fn tick(ground: &Ground) -> io::Result<Verdict> {
    let features = ground.features();
    Ok(match features.timestamp_granularity_ns {
        0 => Verdict::ok("every observed change gets a new time stamp"),
        tick if tick <= 100_000_000 => {
            Verdict::ok(format!("taken to be {} ms wide at most", tick.div_ceil(1_000_000)))
        }
        tick => Verdict::degraded(format!("taken to be {:.1} s wide", tick as f64 / 1e9), WAIT),
    })
}

/// Changes of equal length, each right after a look at the version.
fn same_instant(ground: &Ground) -> io::Result<Verdict> {
    let writer = ground.create("a")?;
    writer.write_all_at(&[0; 100], 0)?;
    let opened = ground.store.file(File::open(ground.path("a"))?.into());
    let file = opened.map_err(io::Error::from)?;
    let granularity = ground.features().timestamp_granularity_ns;
    let (mut unseen, mut settled_unseen) = (0, 0);
    for round in 1..101u8 {
        let before = file.version().map_err(io::Error::from)?;
        let settled = !before.is_racy(ground.store.now_ns(), granularity);
        writer.write_all_at(&[round; 100], 0)?;
        let after = file.version().map_err(io::Error::from)?;
        if before == after {
            unseen += 1;
            settled_unseen += u32::from(settled);
        }
    }
    let measured = format!("{unseen} of 100 changes of equal length left the version as it was");
    if settled_unseen > 0 {
        let measured = format!("{measured}, {settled_unseen} of them after it had settled");
        return Ok(Verdict::failed(measured, UNSEEN));
    }
    Ok(Verdict::ok_or_degraded(unseen == 0, measured, WAIT))
}

/// Time after which a change has another time stamp.
fn a_tick(ground: &Ground) -> Duration {
    Duration::from_nanos(ground.features().timestamp_granularity_ns)
        .saturating_add(Duration::from_millis(20))
        .min(Duration::from_millis(2_100))
}

/// What is known of the type of file system and no check can see.
fn known_limits(ground: &Ground) -> io::Result<Verdict> {
    let notes = FileSystem::of(File::open(&ground.directory)?.as_fd())?.known().notes;
    let measured = if notes.is_empty() { "none known".to_owned() } else { notes.join("; ") };
    Ok(Verdict::ok_or_degraded(notes.is_empty(), measured, "as on the PFS"))
}

fn change_moves(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    let path = ground.path("a");
    let pause = a_tick(ground);
    let before = stamps(&fs::metadata(&path)?);
    std::thread::sleep(pause);
    file.write_all_at(b"x", 0)?;
    file.sync_all()?;
    let written = stamps(&fs::metadata(&path)?);
    std::thread::sleep(pause);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let moded = stamps(&fs::metadata(&path)?);
    let content = written.0 > before.0;
    let metadata = moded.1 > written.1 && moded.0 == written.0;
    let measured = format!("a write moves mtime: {content}, chmod moves ctime alone: {metadata}");
    if !content {
        return Ok(Verdict::failed(measured, UNSEEN));
    }
    Ok(Verdict::ok_or_degraded(metadata, measured, NO_CTIME))
}

fn set_times(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    let wanted = UNIX_EPOCH + Duration::new(1_500_000_001, 123_456_789);
    file.set_modified(wanted)?;
    let got = fs::metadata(ground.path("a"))?.modified()?;
    let apart = match (got.duration_since(wanted), wanted.duration_since(got)) {
        (Ok(later), _) => later,
        (_, Ok(earlier)) => earlier,
        (Err(_), Err(_)) => Duration::ZERO,
    };
    Ok(match apart {
        Duration::ZERO => Verdict::ok("kept to the nanosecond"),
        apart if apart < Duration::from_secs(2) => {
            let measured = format!("kept, off by {} ns", apart.as_nanos());
            Verdict::degraded(measured, SET_TIMES)
        }
        _ => Verdict::degraded("ignored: the time became another", SET_TIMES),
    })
}

fn rename_moves(ground: &Ground) -> io::Result<Verdict> {
    ground.create("a")?;
    let before = stamps(&fs::metadata(ground.path("a"))?);
    std::thread::sleep(a_tick(ground));
    fs::rename(ground.path("a"), ground.path("b"))?;
    let after = stamps(&fs::metadata(ground.path("b"))?);
    let measured = format!(
        "rename moves ctime: {}, leaves mtime: {}",
        after.1 > before.1,
        after.0 == before.0
    );
    // Either is fine: a moved ctime costs one carried version, a still one nothing.
    Ok(Verdict::ok_or_degraded(after.0 == before.0, measured, NO_CTIME))
}

fn clock_offset(ground: &Ground) -> io::Result<Verdict> {
    let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut tightest: Option<(f64, f64)> = None;
    for round in 0..10 {
        let began = since_epoch(SystemTime::now());
        ground.create(&format!("{round}"))?.write_all_at(b"x", 0)?;
        let stamp = stamps(&fs::metadata(ground.path(format!("{round}")))?).1 as f64 / 1e6;
        let ended = since_epoch(SystemTime::now());
        // The stamp was given between both: their clock minus ours lies in this range.
        let (low, high) = (stamp - ended.as_secs_f64() * 1e3, stamp - began.as_secs_f64() * 1e3);
        if tightest.is_none_or(|(old_low, old_high)| high - low < old_high - old_low) {
            tightest = Some((low, high));
        }
    }
    let (low, high) = tightest.unwrap_or_default();
    let measured = format!("its clock is between {low:.1} and {high:.1} ms from ours");
    let consequence = "none for correctness: versions are compared with its clock, not ours";
    Ok(Verdict::ok_or_degraded(high.abs() < 1_000.0, measured, consequence))
}
