//! Finds out what a mount offers, with a hidden file that has no name, or loses it when the
//! probe ends.
//!
//! Takes some tens of milliseconds, writes two pages, and leaves nothing behind. What cannot be
//! probed (a read-only directory) is assumed from the type of the file system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags, XattrFlags};
use tidepool_proto::mapping::{Access, Mapping};

use super::clock::{Comparison, Reading};
use super::direct::reopen;
use crate::features::{DirectIo, Features, GRANULARITY_SAFE_NS};
use crate::filesystem::Known;

/// Longest time spent looking for a tick of the time stamps.
const TICK_PROBE_MAX: Duration = Duration::from_millis(60);
/// Longest time that a file system which showed no new stamp by then gets to show one: a tick of
/// two seconds, the longest one of a file system in use. It is spent at every start, on few
/// systems: those of whole seconds that the table does not know. An answer kept in a file would
/// outlive a mount with other options, or another version of its client.
const STILL_PROBE_MAX: Duration = Duration::from_millis(2_200);
/// How often that is looked at.
const STILL_PROBE_PAUSE: Duration = Duration::from_millis(50);
/// Changes made while looking for a tick, at most.
const TICK_PROBE_CHANGES_MAX: usize = 96;
/// A clock of a kernel ticks at least this often; a finer tick was never seen to be promised.
const KERNEL_TICK_NS: u64 = 10_000_000;
/// The shortest tick that kernels are built with.
const KERNEL_TICK_MIN_NS: i128 = 1_000_000;
/// Alignment assumed for direct I/O where the kernel does not tell.
const PAGE_BYTES: u32 = 4096;

/// The hidden file. Its name, if it needs one, goes with this value: some file systems cannot open
/// a file again that has no name.
struct ProbeFile<'a> {
    file: OwnedFd,
    named: Option<(BorrowedFd<'a>, String)>,
}

impl<'a> ProbeFile<'a> {
    fn open(root: BorrowedFd<'a>) -> io::Result<Self> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::openat(root, ".", flags | OFlags::TMPFILE, mode) {
            return Ok(ProbeFile { file, named: None });
        }
        Self::named(root)
    }

    fn named(root: BorrowedFd<'a>) -> io::Result<Self> {
        let mode = Mode::RUSR | Mode::WUSR;
        for attempt in 0..16 {
            let name = match attempt {
                0 => format!(".tidepool-probe-{}", std::process::id()),
                _ => format!(".tidepool-probe-{}-{attempt}", std::process::id()),
            };
            let create = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match rustix::fs::openat(root, &name, create, mode) {
                Ok(file) => return Ok(ProbeFile { file, named: Some((root, name)) }),
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EEXIST))
    }
}

impl Drop for ProbeFile<'_> {
    fn drop(&mut self) {
        if let Some((root, name)) = &self.named
            && let Err(error) = rustix::fs::unlinkat(root, name, AtFlags::empty())
        {
            tracing::warn!(%error, "the probe file {name} could not be removed");
        }
    }
}

/// Content and metadata stamps of a file.
fn stamps(file: BorrowedFd<'_>) -> io::Result<(i128, i128)> {
    let flags = StatxFlags::MTIME | StatxFlags::CTIME;
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, flags)?;
    let seen = tidepool_proto::Version::from(&stat);
    Ok((seen.modified_ns, seen.changed_ns))
}

/// What was seen of the stamps of one file that was changed again and again.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TickSamples {
    /// Content and metadata stamp after each change.
    pub stamps: Vec<(i128, i128)>,
}

impl TickSamples {
    /// Whether a later change had a later stamp.
    fn show_a_step(&self) -> bool {
        self.stamps.windows(2).any(|pair| pair[1] > pair[0])
    }

    /// Width of the tick that these samples prove, in nanoseconds.
    pub fn granularity_ns(&self, known: &Known) -> u64 {
        let latest: Vec<i128> = self.stamps.iter().map(|(m, c)| *m.max(c)).collect();
        let whole_seconds = latest.iter().all(|stamp| stamp % 1_000_000_000 == 0);
        let steps: Vec<i128> =
            latest.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| *step > 0).collect();
        // New stamps for changes less than a millisecond apart: no tick of a kernel is as short.
        let every_change = steps.len() + 1 == latest.len() && latest.len() >= 32;
        let short = steps.iter().filter(|step| **step < KERNEL_TICK_MIN_NS).count();
        if known.multigrain && every_change && short * 2 >= steps.len() {
            return 0;
        }
        match steps.iter().min() {
            // A tick is not longer than the shortest step seen.
            Some(_) if whole_seconds => known.granularity_ns.max(1_000_000_000),
            Some(step) => (*step as u64).clamp(KERNEL_TICK_NS, GRANULARITY_SAFE_NS),
            None => known.granularity_ns,
        }
    }
}

/// Writes on until a stamp moves, for as long as the longest tick; false where none does.
fn stamps_move(file: BorrowedFd<'_>, samples: &mut TickSamples) -> io::Result<bool> {
    let started = Instant::now();
    while !samples.show_a_step() && started.elapsed() < STILL_PROBE_MAX {
        std::thread::sleep(STILL_PROBE_PAUSE);
        rustix::io::pwrite(file, b"m", 0)?;
        samples.stamps.push(stamps(file)?);
    }
    Ok(samples.show_a_step())
}

/// Changes `file` again and again, and reads its stamps after each change. The comparison is the
/// tightest one between its clock and ours.
fn sample_ticks(file: BorrowedFd<'_>) -> io::Result<(TickSamples, Option<Comparison>)> {
    let started = Instant::now();
    let mut samples = TickSamples::default();
    let mut best: Option<Comparison> = None;
    while samples.stamps.len() < TICK_PROBE_CHANGES_MAX && started.elapsed() < TICK_PROBE_MAX {
        rustix::io::pwrite(file, &[samples.stamps.len() as u8], 0)?;
        let pair = stamps(file)?;
        let after = Reading::now();
        // The stamp was given before now; the metadata stamp is the one nobody can set.
        let comparison = Comparison { stamp_ns: pair.1, after };
        best = Some(best.map_or(comparison, |best| best.tighter(comparison, after)));
        samples.stamps.push(pair);
        let repeats = samples.stamps.len() >= 40 && {
            let last = &samples.stamps[samples.stamps.len() - 40..];
            last.iter().all(|stamp| stamp == &last[0])
        };
        if repeats {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Ok((samples, best))
}

/// Compares the clock of the file system with ours by one change of a hidden file.
pub(crate) fn compare_clock(root: BorrowedFd<'_>) -> Option<Comparison> {
    let probe = ProbeFile::open(root).ok()?;
    rustix::io::pwrite(&probe.file, b"t", 0).ok()?;
    let (_, changed) = stamps(probe.file.as_fd()).ok()?;
    Some(Comparison { stamp_ns: changed, after: Reading::now() })
}

/// Fills in what is assumed of a directory that is not probed: what nearly all mounts have, and
/// what falls back by itself where a mount lacks it.
pub(crate) fn assume(features: &mut Features) {
    features.direct_io =
        Some(DirectIo { memory_alignment_bytes: PAGE_BYTES, offset_alignment_bytes: PAGE_BYTES });
    features.shared_mmap = true;
    features.locks = true;
}

/// Fills in what can be measured; `None` where the directory cannot be written.
pub(crate) fn probe(
    root: BorrowedFd<'_>,
    known: &Known,
    features: &mut Features,
) -> Option<Comparison> {
    let opened = match ProbeFile::open(root) {
        Ok(opened) => opened,
        Err(error) => {
            features.read_only = true;
            features.notes.push(format!(
                "the directory cannot be written ({error}), so nothing was probed: time stamps \
                 are taken to be {:.1} s wide, extended attributes to be missing",
                known.granularity_ns as f64 / 1e9
            ));
            assume(features);
            return None;
        }
    };
    let (file, nameless) = (&opened.file, opened.named.is_none());
    features.o_tmpfile = nameless;
    let comparison = match sample_ticks(file.as_fd()) {
        Ok((mut samples, comparison)) => {
            if known.writes_move_stamps.is_none() {
                // An error leaves it open, and is met again by the first file that is written.
                features.writes_move_stamps = stamps_move(file.as_fd(), &mut samples).ok();
            }
            let granularity_ns = samples.granularity_ns(known);
            features.timestamp_granularity_ns = granularity_ns;
            if granularity_ns >= 1_000_000_000 {
                features.notes.push(format!(
                    "time stamps are {:.1} s wide: files changed more lately are not kept cached",
                    granularity_ns as f64 / 1e9
                ));
            }
            comparison
        }
        Err(error) => {
            features.notes.push(format!("time stamps could not be probed: {error}"));
            None
        }
    };
    probe_content(file.as_fd(), features);
    probe_metadata(file.as_fd(), nameless, features);
    comparison
}

fn probe_content(file: BorrowedFd<'_>, features: &mut Features) {
    let pages = [7u8; 2 * PAGE_BYTES as usize];
    if let Err(error) = rustix::io::pwrite(file, &pages, 0) {
        features.notes.push(format!("two pages could not be written: {error}"));
        return;
    }
    features.direct_io = probe_direct(file);
    if features.direct_io.is_none() {
        features.notes.push(
            "no direct I/O: blocks are read through the page cache and dropped from it".to_owned(),
        );
    }
    features.shared_mmap = probe_mmap(file, &pages);
    if !features.shared_mmap {
        features.notes.push("no shared memory mappings of files".to_owned());
    }
    let length = u64::from(PAGE_BYTES);
    features.fallocate = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length).is_ok();
}

/// A page in memory, aligned as direct I/O wants it.
#[repr(align(4096))]
struct AlignedPage([u8; PAGE_BYTES as usize]);

fn probe_direct(file: BorrowedFd<'_>) -> Option<DirectIo> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    if told && stat.stx_dio_offset_align == 0 {
        return None;
    }
    let or_page = |told: u32| if told == 0 { PAGE_BYTES } else { told };
    let direct = DirectIo {
        memory_alignment_bytes: or_page(stat.stx_dio_mem_align),
        offset_alignment_bytes: or_page(stat.stx_dio_offset_align),
    };
    let opened = reopen(file, OFlags::RDONLY | OFlags::DIRECT).ok()?;
    let mut page = Box::new(AlignedPage([0; PAGE_BYTES as usize]));
    let count = rustix::io::pread(&opened, &mut page.0[..], 0).ok()?;
    (count == page.0.len() && page.0.iter().all(|byte| *byte == 7)).then_some(direct)
}

fn probe_mmap(file: BorrowedFd<'_>, content: &[u8]) -> bool {
    let length = PAGE_BYTES as usize;
    let Ok(mapping) = Mapping::shared(file, 0, length, Access::Read) else { return false };
    // SAFETY: the file is longer, and only we have it open.
    let mapped = unsafe { mapping.bytes() };
    mapped == &content[..length]
}

fn probe_metadata(file: BorrowedFd<'_>, nameless: bool, features: &mut Features) {
    let name = "user.tidepool.probe";
    features.xattr = rustix::fs::fsetxattr(file, name, b"1", XattrFlags::empty()).is_ok()
        && rustix::fs::fremovexattr(file, name).is_ok();
    if !features.xattr {
        features.notes.push(
            "no extended attributes `user.*`: stubs of memory-only files are marked by content"
                .to_owned(),
        );
    }
    features.locks = rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !features.locks {
        features.notes.push("no record locks".to_owned());
    }
    // A named file counts one link; a nameless one can be given a name, which takes link counts.
    features.hard_links &= nameless || rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 1);
    if !features.hard_links {
        features.notes.push("no link counts: unlinked files cost a sync of everything".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::FsyncReach;

    fn known(multigrain: bool, granularity_ns: u64) -> Known {
        Known {
            remote: !multigrain,
            granularity_ns,
            fsync_reach: FsyncReach::Unknown,
            fsync_is_per_open: false,
            keeps_stale_pages: false,
            multigrain,
            device_per_file: false,
            writes_move_stamps: None,
            notes: &[],
        }
    }

    fn samples(stamps: impl Iterator<Item = i128>) -> TickSamples {
        TickSamples { stamps: stamps.map(|stamp| (stamp, stamp)).collect() }
    }

    #[test]
    fn probe_files_that_need_a_name_lose_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(directory.path()).unwrap();
        let names = || std::fs::read_dir(directory.path()).unwrap().count();
        let one = ProbeFile::named(root.as_fd()).unwrap();
        let two = ProbeFile::named(root.as_fd()).unwrap();
        assert_eq!(names(), 2, "a second one at the same time gets a name of its own");
        drop((one, two));
        assert_eq!(names(), 0);
    }

    #[test]
    fn only_known_multigrain_file_systems_get_zero() {
        let fine = samples((0..64).map(|i| i * 2_000 + 1));
        assert_eq!(fine.granularity_ns(&known(true, 2_000_000_000)), 0);
        assert_eq!(fine.granularity_ns(&known(false, 2_000_000_000)), KERNEL_TICK_NS);
        // Slow messages make every stamp new whatever the tick: that proves nothing.
        let slow = samples((0..64).map(|i| i * 4_000_000 + 1));
        assert_eq!(slow.granularity_ns(&known(true, 2_000_000_000)), KERNEL_TICK_NS);
    }

    #[test]
    fn ticks_and_whole_seconds_are_told_apart() {
        let four_ms = samples((0..96).map(|i| i / 8 * 4_000_000 + 1));
        assert_eq!(four_ms.granularity_ns(&known(true, 2_000_000_000)), KERNEL_TICK_NS);
        let twenty_ms = samples((0..96).map(|i| i / 40 * 20_000_000 + 1));
        assert_eq!(twenty_ms.granularity_ns(&known(false, 2_000_000_000)), 20_000_000);
        let seconds = samples((0..96).map(|i| i / 50 * 1_000_000_000));
        assert_eq!(seconds.granularity_ns(&known(false, 1_000_000_000)), 1_000_000_000);
        let nothing_seen = samples((0..96).map(|_| 5_000_000_000));
        assert_eq!(nothing_seen.granularity_ns(&known(false, 2_000_000_000)), 2_000_000_000);
    }
}
