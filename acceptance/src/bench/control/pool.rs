//! Demand for memory that is faster than any page fault: the kernel's pool of huge pages. Pages
//! that enter it leave the available memory at once and are not cleared, so a step of gigabytes
//! takes milliseconds, and a ramp runs at the rate that was asked for. The pool is set back to its
//! former size in any case, and never takes the last memory of the machine.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cleanup::{self, Guard};
use crate::environment;

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const COMPACT: &str = "/proc/sys/vm/compact_memory";
const PAGE_BYTES: u64 = 2 << 20;
const RAMP_STEP: Duration = Duration::from_millis(2);

/// Pages of the pool that are ours.
#[derive(Debug)]
pub struct Pool {
    before: u64,
    pages: u64,
    leave_bytes: u64,
    _restore: Guard,
}

impl Pool {
    /// The pool of this machine; `None` where it may not be changed.
    pub fn open(leave_bytes: u64) -> Option<Self> {
        let pages_of_2_mib = environment::memory_field("Hugepagesize").ok()? == PAGE_BYTES;
        let before = read().ok().filter(|_| pages_of_2_mib)?;
        write(before).ok()?;
        // Large pages are found at once where free memory is in one piece.
        let _ = std::fs::write(COMPACT, "1");
        let restore = cleanup::guard(move || {
            let _ = write(before);
        });
        Some(Pool { before, pages: 0, leave_bytes, _restore: restore })
    }

    /// Sets the demand. Takes nothing, and is an error, where others would be left with too little.
    pub fn demand(&mut self, bytes: u64) -> Result<()> {
        let (got, page) = (self.about(bytes)?, PAGE_BYTES);
        // Where memory is in pieces the kernel finds a few pages fewer, which changes no figure.
        anyhow::ensure!(
            (got / page).abs_diff(bytes / page) <= bytes / page / 100,
            "the kernel gave {got} of {bytes} bytes"
        );
        Ok(())
    }

    /// The same, with what the kernel finds in large pieces; returns how much it is.
    pub fn about(&mut self, bytes: u64) -> Result<u64> {
        let pages = bytes / PAGE_BYTES;
        let more = pages.saturating_sub(self.pages) * PAGE_BYTES;
        if more > 0 {
            let available = environment::memory_available_bytes()?;
            anyhow::ensure!(
                available >= more + self.leave_bytes,
                "{more} bytes more would leave others less than {} of {available}",
                self.leave_bytes
            );
        }
        write(self.before + pages)?;
        self.pages = read()?.saturating_sub(self.before);
        Ok(self.pages * PAGE_BYTES)
    }

    /// Moves the demand to `bytes` at `rate` bytes a second.
    pub fn ramp(&mut self, bytes: u64, rate: u64) -> Result<()> {
        let (from, started) = (self.pages * PAGE_BYTES, Instant::now());
        let distance = bytes.abs_diff(from);
        loop {
            let moved = ((started.elapsed().as_secs_f64() * rate as f64) as u64).min(distance);
            self.demand(if bytes > from { from + moved } else { from - moved })?;
            if moved == distance {
                return Ok(());
            }
            std::thread::sleep(RAMP_STEP);
        }
    }
}

fn read() -> Result<u64> {
    Ok(std::fs::read_to_string(POOL)?.trim().parse()?)
}

fn write(pages: u64) -> Result<()> {
    Ok(std::fs::write(POOL, pages.to_string())?)
}
