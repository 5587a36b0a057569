//! Anonymous memory that is taken page by page from its start and given back from its end. It
//! measures each fault; it decides nothing about how much is taken.

use std::ptr::NonNull;
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const SMALL: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;

/// A range of addresses, its front filled with pages.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    /// Bytes from the base to the first that begins a huge page.
    offset: u64,
    length: u64,
    taken: u64,
    page: u64,
}

impl Memory {
    /// Reserves addresses for `most` bytes, in pages of 2 MiB or of 4 KiB; takes no page yet.
    pub fn reserve(most: u64, huge: bool) -> Result<Self> {
        let length = most.next_multiple_of(HUGE) + HUGE;
        let (size, flags) = (usize::try_from(length)?, MapFlags::PRIVATE | MapFlags::NORESERVE);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused range, so no memory of the process is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, flags) };
        let base = NonNull::new(base.context("reserving addresses")?.cast::<u8>())
            .context("memory at address zero")?;
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is the one mapped above; the advice changes no contents.
        unsafe { madvise(base.as_ptr().cast(), size, advice) }.context("size of pages")?;
        let offset = (base.as_ptr() as u64).wrapping_neg() % HUGE;
        let page = if huge { HUGE } else { SMALL };
        Ok(Memory { base, offset, length, taken: 0, page })
    }

    /// Bytes that have pages.
    pub fn taken_bytes(&self) -> u64 {
        self.taken
    }

    /// Touches the next `bytes`, and adds the time of each fault in nanoseconds.
    pub fn take(&mut self, bytes: u64, latency: &mut Histogram<u64>) -> Result<()> {
        let end = self.taken + bytes;
        anyhow::ensure!(self.offset + end <= self.length, "more than what was reserved");
        while self.taken < end {
            let started = Instant::now();
            let at = usize::try_from(self.offset + self.taken)?;
            // SAFETY: within the mapping by the check above; nobody else refers to it.
            unsafe { self.base.as_ptr().add(at).write_volatile(1) };
            latency.saturating_record(started.elapsed().as_nanos() as u64);
            self.taken = (self.taken + self.page).min(end);
        }
        Ok(())
    }

    /// Gives the last `bytes` back to the system.
    pub fn release(&mut self, bytes: u64) -> Result<()> {
        let bytes = bytes.min(self.taken);
        let start = self.taken - bytes;
        let at = usize::try_from(self.offset + start)?;
        // SAFETY: within the mapping; the bytes are not read again before they are written.
        unsafe {
            let address = self.base.as_ptr().add(at).cast();
            madvise(address, usize::try_from(bytes)?, Advice::LinuxDontNeed)?;
        }
        self.taken = start;
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `reserve` with this length, unmapped only here.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::Memory;
    use hdrhistogram::Histogram;

    #[test]
    fn pages_come_and_go_and_bounds_hold() {
        for (huge, faults) in [(false, 1024), (true, 2)] {
            let mut latency = Histogram::new(3).unwrap();
            let mut memory = Memory::reserve(4 << 20, huge).unwrap();
            memory.take(4 << 20, &mut latency).unwrap();
            assert_eq!((memory.taken_bytes(), latency.len()), (4 << 20, faults));
            assert!(memory.take(8 << 20, &mut latency).is_err());
            memory.release(2 << 20).unwrap();
            assert_eq!(memory.taken_bytes(), 2 << 20);
            memory.take(2 << 20, &mut latency).unwrap();
            memory.release(u64::MAX).unwrap();
            assert_eq!(memory.taken_bytes(), 0);
        }
    }
}
