//! A job that takes memory in bursts and gives it back, and what it experienced. It never takes the
//! last bytes of a machine: below a floor of available memory it waits, and then goes without.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::environment;

/// The machine is looked at before every part of this length.
const PART_BYTES: u64 = 16 << 20;
const PAGE_BYTES: u64 = 2 << 20;
/// Longer waits count as this one.
const LONGEST_NS: u64 = 60_000_000_000;
/// How long the job waits for memory before it goes without.
const PATIENCE: Duration = Duration::from_millis(500);

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes so many bytes as fast as the machine gives them, and holds them.
    Take(u64, Duration),
    /// Gives back what was taken, and waits.
    Release(Duration),
}

/// What the job experienced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes that were asked for and not given in time.
    pub refused_bytes: u64,
    /// Seconds that each taking took, waiting included.
    pub take_seconds: Vec<f64>,
    /// Milliseconds until the job has 16 MiB more, waiting included: median, 99 of 100, longest.
    pub part_ms: (f64, f64, f64),
}

/// Follows a trace from its start to its end, leaving `floor_bytes` of available memory to others.
pub fn run(trace: &[Step], floor_bytes: u64) -> Result<Report> {
    let mut report = Report::default();
    let mut parts_ns = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
    let mut held = None;
    for step in trace {
        match *step {
            Step::Take(bytes, hold) => {
                let started = Instant::now();
                let memory = Memory::reserve(bytes)?;
                let got_bytes = memory.touch(floor_bytes, &mut parts_ns)?;
                report.refused_bytes += bytes - got_bytes;
                report.take_seconds.push(started.elapsed().as_secs_f64());
                held = Some(memory);
                std::thread::sleep(hold);
            }
            Step::Release(wait) => {
                drop(held.take());
                std::thread::sleep(wait);
            }
        }
    }
    let ms = |quantile: f64| parts_ns.value_at_quantile(quantile) as f64 / 1e6;
    report.part_ms = (ms(0.5), ms(0.99), ms(1.0));
    Ok(report)
}

/// Addresses for anonymous memory in pages of 2 MiB, where the machine has them.
struct Memory {
    base: *mut u8,
    length: usize,
    bytes: u64,
}

impl Memory {
    fn reserve(bytes: u64) -> Result<Self> {
        // One more, so that whole pages begin wherever the range does.
        let length = usize::try_from(bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES)?;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses an unused range, so no memory of the process is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }
            .context("reserving addresses")?;
        // SAFETY: the range is the one mapped above; the advice changes no contents. Without 2 MiB
        // pages the job takes small ones.
        let _ = unsafe { madvise(base, length, Advice::LinuxHugepage) };
        Ok(Memory { base: base.cast(), length, bytes })
    }

    /// Touches all pages while there is room, and says how many bytes that were.
    fn touch(&self, floor_bytes: u64, parts_ns: &mut Histogram<u64>) -> Result<u64> {
        const SMALL_BYTES: usize = 4 << 10;
        let mut taken_bytes = 0;
        while taken_bytes < self.bytes {
            let before = Instant::now();
            if !has_room(floor_bytes)? {
                break;
            }
            let part_bytes = PART_BYTES.min(self.bytes - taken_bytes);
            let start = usize::try_from(taken_bytes)?;
            for at in (start..start + usize::try_from(part_bytes)?).step_by(SMALL_BYTES) {
                // SAFETY: below `bytes`, so within the mapping; nobody else refers to it.
                unsafe { self.base.add(at).write_volatile(1) };
            }
            parts_ns.saturating_record(before.elapsed().as_nanos() as u64);
            taken_bytes += part_bytes;
        }
        Ok(taken_bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `reserve` with this length, unmapped only here.
        let _ = unsafe { munmap(self.base.cast(), self.length) };
    }
}

/// Waits for room; false where there was none in time.
fn has_room(floor_bytes: u64) -> Result<bool> {
    let started = Instant::now();
    while environment::memory_available_bytes()? < floor_bytes.saturating_add(PART_BYTES) {
        if started.elapsed() > PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Step, run};

    #[test]
    fn a_job_takes_what_it_may_and_no_more() {
        let trace = [Step::Take(24 << 20, Duration::ZERO), Step::Release(Duration::ZERO)];
        let report = run(&trace, 0).unwrap();
        assert_eq!((report.refused_bytes, report.take_seconds.len()), (0, 1));
        let report = run(&trace, u64::MAX).unwrap();
        assert_eq!(report.refused_bytes, 24 << 20);
    }
}
