//! Speeds, measured through the same calls that a node uses. Bounded in bytes and time, and never
//! judged: what is slow on one PFS is fast on another.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ground::{Check, Ground, Verdict};
use crate::lower::{LowerFile, LowerStore};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "speed-1-stream", run: one_stream, if_failed: NO_SPEED },
    Check { name: "speed-8-streams", run: eight_streams, if_failed: NO_SPEED },
    Check { name: "speed-small-files", run: small_files, if_failed: NO_SPEED },
];

const NO_SPEED: &str = "nothing is known of its speed";
const BLOCK_BYTES: u64 = 4 << 20;
/// Each phase (write, read) ends after this, whatever it moved.
const PHASE_TIME_MAX: Duration = Duration::from_secs(4);
/// The same for small files, whose removal takes as long again.
const SMALL_TIME_MAX: Duration = Duration::from_secs(2);

fn one_stream(ground: &Ground) -> io::Result<Verdict> {
    streams(ground, 1)
}

fn eight_streams(ground: &Ground) -> io::Result<Verdict> {
    streams(ground, 8)
}

/// Runs `block` for block after block from `threads` threads, until all or the time is used up;
/// returns bytes and time.
fn phase(
    ground: &Ground,
    threads: u64,
    blocks: u64,
    block: &(dyn Fn(u64) -> io::Result<()> + Sync),
) -> io::Result<(u64, Duration)> {
    let next = AtomicU64::new(0);
    let began = Instant::now();
    let work = || -> io::Result<u64> {
        let mut bytes = 0;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let late = began.elapsed() > PHASE_TIME_MAX || ground.options.cancelled();
            if index >= blocks || (late && index > 0) {
                return Ok(bytes);
            }
            block(index)?;
            bytes += BLOCK_BYTES;
        }
    };
    let moved = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_fold(0, |sum, worker| {
            let bytes = worker.join().map_err(|_| io::Error::other("a thread died"))??;
            Ok::<u64, io::Error>(sum + bytes)
        })
    })?;
    Ok((moved, began.elapsed()))
}

fn streams(ground: &Ground, threads: u64) -> io::Result<Verdict> {
    let blocks = (ground.options.speed_bytes / BLOCK_BYTES).max(1);
    let file: Arc<dyn LowerFile> =
        ground.store.file(ground.create("data")?.into()).map_err(io::Error::from)?;
    let content = vec![0x5A; BLOCK_BYTES as usize];
    let began = Instant::now();
    let (written, _) =
        phase(ground, threads, blocks, &|index| Ok(file.write_at(index * BLOCK_BYTES, &content)?))?;
    file.sync(false).map_err(io::Error::from)?;
    let write_time = began.elapsed();
    file.drop_cached(0, written);
    // Blocks are handed out in order, so what was written is whole from the start.
    let (read, read_time) = phase(ground, threads, written / BLOCK_BYTES, &|index| {
        let mut bytes = vec![0; BLOCK_BYTES as usize + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        let block = &mut bytes[start..start + BLOCK_BYTES as usize];
        match file.read_block(index * BLOCK_BYTES, block)? {
            count if count == block.len() => Ok(()),
            count => Err(io::Error::other(format!("{count} bytes of a block of {BLOCK_BYTES}"))),
        }
    })?;
    let rate = |bytes: u64, time: Duration| bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9);
    Ok(Verdict::ok(format!(
        "write and sync {:.0} MB/s, read {:.0} MB/s ({} MiB in 4 MiB blocks{})",
        rate(written, write_time),
        rate(read, read_time),
        written >> 20,
        if ground.features().direct_io.is_some() { ", direct" } else { ", caches dropped" }
    )))
}

/// One operation on the small file of a number.
type Step<'a> = &'a dyn Fn(u32) -> io::Result<()>;

fn small_files(ground: &Ground) -> io::Result<Verdict> {
    let mut phases = Vec::new();
    let mut made = ground.options.small_files.max(1);
    let steps: [(&str, Step<'_>); 3] = [
        ("create", &|index| fs::write(ground.path(format!("{index}")), [0; 4096])),
        ("stat", &|index| fs::metadata(ground.path(format!("{index}"))).map(drop)),
        ("unlink", &|index| fs::remove_file(ground.path(format!("{index}")))),
    ];
    for (name, step) in steps {
        let began = Instant::now();
        let mut done = 0;
        while done < made && began.elapsed() < SMALL_TIME_MAX && !ground.options.cancelled() {
            step(done)?;
            done += 1;
        }
        if name == "create" {
            made = done;
        }
        let rate = f64::from(done) / began.elapsed().as_secs_f64().max(1e-9);
        phases.push(format!("{name} {rate:.0}/s"));
    }
    Ok(Verdict::ok(format!("{} ({made} files of 4 KiB, one thread)", phases.join(", "))))
}
