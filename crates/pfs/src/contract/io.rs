//! Checks of the ways to read and write: mappings, direct I/O, syncs, opening again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rustix::fs::OFlags;
use tidepool_proto::mapping::{Access, Mapping};

use super::ground::{Check, Ground, Verdict};
use crate::features::FsyncReach;
use crate::lower::LowerStore;
use crate::posix::reopen;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "shared-mapping", run: shared_mapping, if_failed: NO_MMAP },
    Check { name: "private-mapping", run: private_mapping, if_failed: NO_MMAP },
    Check { name: "direct-io", run: direct_io, if_failed: NO_DIRECT },
    Check { name: "direct-io-sees-dirty-pages", run: dirty_pages, if_failed: STALE },
    Check { name: "open-again", run: open_again, if_failed: NO_DIRECT },
    Check { name: "sync-file", run: sync_file, if_failed: "close cannot promise durability" },
    Check { name: "sync-directory", run: sync_directory, if_failed: SYNCFS },
];

const NO_MMAP: &str = "Java's FileChannel.map and others fail on the PFS; resident files still map";
const NO_DIRECT: &str = "blocks are read through the page cache and dropped from it: slower, and a \
                         second copy exists for a moment";
const STALE: &str = "fills could read old bytes: start nodes with direct I/O off";
const SYNCFS: &str = "the whole file system is synced where a directory cannot be: slower closes";

fn shared_mapping(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    file.write_all_at(&[1; 8192], 0)?;
    let mapping = match Mapping::shared(&file, 0, 8192, Access::ReadWrite) {
        Ok(mapping) => mapping,
        Err(error) => return Ok(Verdict::degraded(error.to_string(), NO_MMAP)),
    };
    file.write_all_at(&[2], 5000)?;
    let sees_writes = mapping.byte(5000).load(Relaxed) == 2;
    mapping.byte(100).store(3, Relaxed);
    let mut byte = [0];
    File::open(ground.path("a"))?.read_exact_at(&mut byte, 100)?;
    let measured = format!("sees writes: {sees_writes}, is seen by reads: {}", byte == [3]);
    Ok(Verdict::ok_or_degraded(sees_writes && byte == [3], measured, NO_MMAP))
}

fn private_mapping(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    file.write_all_at(&[1; 8192], 0)?;
    let mapping = match Mapping::private(&file, 0, 8192, Access::ReadWrite) {
        Ok(mapping) => mapping,
        Err(error) => return Ok(Verdict::degraded(error.to_string(), NO_MMAP)),
    };
    mapping.byte(100).store(3, Relaxed);
    let kept_out = fs::read(ground.path("a"))?[100] == 1;
    Ok(Verdict::ok_or_failed(
        kept_out && mapping.byte(8191).load(Relaxed) == 1,
        "programs can be mapped",
        NO_MMAP,
    ))
}

/// A buffer whose start is aligned to a page.
struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl PageBuffer {
    fn new(length: usize) -> Self {
        let bytes = vec![0xEE; length + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        PageBuffer { bytes, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let length = self.bytes.len() - 4096;
        &mut self.bytes[self.start..self.start + length]
    }
}

fn direct_io(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    file.write_all_at(&[7; 10_000], 0)?;
    file.sync_all()?;
    let mut opening = File::options();
    let direct = match opening.read(true).custom_flags(libc::O_DIRECT).open(ground.path("a")) {
        Ok(direct) => direct,
        Err(error) => return Ok(Verdict::degraded(format!("O_DIRECT: {error}"), NO_DIRECT)),
    };
    let mut buffer = PageBuffer::new(16_384);
    let whole = direct.read_at(buffer.bytes(), 0);
    let tail = direct.read_at(buffer.bytes(), 8192);
    let beyond = direct.read_at(buffer.bytes(), 16_384);
    let mut smallest = 4096u64;
    while smallest > 512 {
        let half = smallest / 2;
        if direct.read_at(&mut buffer.bytes()[..half as usize], half).is_err() {
            break;
        }
        smallest = half;
    }
    match (whole, tail, beyond) {
        (Ok(10_000), Ok(1_808), Ok(0)) => Ok(Verdict::ok(format!(
            "reads in steps of {smallest} bytes, tail of the file and beyond as asked"
        ))),
        other => {
            Ok(Verdict::degraded(format!("a file of 10000 bytes read as {other:?}"), NO_DIRECT))
        }
    }
}

fn dirty_pages(ground: &Ground) -> io::Result<Verdict> {
    let writer = ground.create("a")?;
    writer.write_all_at(&vec![1; 1 << 20], 0)?;
    let opened = ground.store.file(File::open(ground.path("a"))?.into());
    let file = opened.map_err(io::Error::from)?;
    let mut buffer = PageBuffer::new(1 << 20);
    for round in 2..12u8 {
        writer.write_all_at(&vec![round; 1 << 20], 0)?;
        let count = file.read_block(0, buffer.bytes()).map_err(io::Error::from)?;
        if count != 1 << 20 || buffer.bytes().iter().any(|byte| *byte != round) {
            return Ok(Verdict::failed(format!("round {round} was read old"), STALE));
        }
    }
    Ok(Verdict::ok("block reads see what another open wrote and did not sync"))
}

/// Whether a file can be opened again through `/proc/self/fd`, which block reads do.
fn open_again(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    file.write_all_at(b"content", 0)?;
    let again = |descriptor: BorrowedFd<'_>| reopen(descriptor, OFlags::RDONLY).map(drop);
    let mut refused = Vec::new();
    if let Err(error) = again(file.as_fd()) {
        refused.push(format!("as it is: {error}"));
    }
    file.set_permissions(fs::Permissions::from_mode(0o000))?;
    if let Err(error) = again(file.as_fd()) {
        refused.push(format!("without permissions: {error}"));
    }
    fs::remove_file(ground.path("a"))?;
    if let Err(error) = again(file.as_fd()) {
        refused.push(format!("without a name: {error}"));
    }
    let measured = match refused.is_empty() {
        true => "also without permissions and without a name".to_owned(),
        false => refused.join("; "),
    };
    Ok(Verdict::ok_or_degraded(refused.is_empty(), measured, NO_DIRECT))
}

fn sync_file(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    file.write_all_at(&vec![1; 4 << 20], 0)?;
    let began = Instant::now();
    file.sync_all()?;
    let full_ms = began.elapsed().as_secs_f64() * 1e3;
    let began = Instant::now();
    file.sync_all()?;
    let idle_ms = began.elapsed().as_secs_f64() * 1e3;
    let times = format!("4 MiB took {full_ms:.2} ms, nothing took {idle_ms:.2} ms");
    Ok(match ground.features().fsync_reach {
        FsyncReach::Storage => Verdict::ok(format!("{times}; reaches storage on this type")),
        FsyncReach::Unknown => Verdict::ok(format!("{times}; how far it reaches is not known")),
        FsyncReach::ServerCache => Verdict::degraded(
            format!("{times}; ends in the memory of a server on this type"),
            "`through` promises what this PFS promises: a power failure of a server loses bytes",
        ),
        FsyncReach::Nothing => Verdict::degraded(
            format!("{times}; reaches no storage on this type"),
            "`through` promises no durability here",
        ),
    })
}

fn sync_directory(ground: &Ground) -> io::Result<Verdict> {
    let file = ground.create("a")?;
    let began = Instant::now();
    match File::open(&ground.directory)?.sync_all() {
        Ok(()) => {
            let elapsed_ms = began.elapsed().as_secs_f64() * 1e3;
            let file = ground.store.file(file.into()).map_err(io::Error::from)?;
            file.sync_directory_entry().map_err(io::Error::from)?;
            Ok(Verdict::ok(format!("took {elapsed_ms:.2} ms")))
        }
        Err(error) => Ok(Verdict::degraded(error.to_string(), SYNCFS)),
    }
}
