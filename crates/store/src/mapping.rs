//! A shared mapping of a memory file. The holder of a pointer into it promises that the pages stay
//! populated and below the end of the file; the mapping itself only maps, populates and unmaps.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use tidepool_proto::{Error, ErrorKind, Result};

/// Memory of a file in the address space of the node.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is an address range without thread affinity; all access through its pointers
// is the responsibility of those who dereference them.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods only make system calls on the range.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(file: BorrowedFd<'_>, length: u64) -> Result<Mapping> {
        let no_space = |errno: Errno| {
            Error::new(ErrorKind::LimitReached, "mapping a segment", format!("{length} bytes"))
                .caused_by(errno)
                .remedy("raise vm.max_map_count, or cache fewer files")
        };
        let bytes = usize::try_from(length).map_err(|_| no_space(Errno::NOMEM))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses an unused range, so no memory of the process is replaced.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) };
        let base = NonNull::new(base.map_err(no_space)?.cast()).ok_or(no_space(Errno::NOMEM))?;
        Ok(Mapping { base, length: bytes })
    }

    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn length(&self) -> u64 {
        self.length as u64
    }

    /// Takes memory for all pages of the range, so that touching them can neither fail nor wait.
    pub fn populate(&self, start: u64, length: u64) -> Result<(), Errno> {
        self.check_range(start, length);
        // SAFETY: the range is inside this mapping.
        unsafe { populate(self.base().add(start as usize), length) }
    }

    pub fn advise_huge_pages(&self, start: u64, length: u64) {
        self.check_range(start, length);
        // Only a hint: where it is refused, the probe at the start has said so.
        // SAFETY: the range is inside this mapping, and the hint changes no bytes.
        _ = unsafe {
            let start = self.base().add(start as usize).cast::<c_void>();
            rustix::mm::madvise(start, length as usize, Advice::LinuxHugepage)
        };
    }

    fn check_range(&self, start: u64, length: u64) {
        let end = start.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length()), "a range outside its mapping");
    }

    /// Whether the first bytes are mapped by a huge page, as the kernel tells.
    pub fn has_huge_pages(&self) -> bool {
        let Ok(text) = std::fs::read_to_string("/proc/self/smaps") else { return false };
        let start = format!("{:x}-", self.base() as usize);
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
        lines
            .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
            .is_some_and(|value| !value.trim_start().starts_with("0 "))
    }
}

/// Takes memory for all pages of a range, so that touching them can neither fail nor wait.
///
/// # Safety
/// The range is part of one live mapping.
pub(crate) unsafe fn populate(start: *mut u8, length: u64) -> Result<(), Errno> {
    loop {
        // SAFETY: the caller vouches for the range; populating changes no bytes.
        let outcome = unsafe {
            rustix::mm::madvise(start.cast(), length as usize, Advice::LinuxPopulateWrite)
        };
        match outcome {
            Err(Errno::INTR | Errno::AGAIN) => {}
            other => return other,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped only here; whoever held pointers
        // into it kept this value alive.
        let unmapped = unsafe { rustix::mm::munmap(self.base().cast::<c_void>(), self.length) };
        debug_assert!(unmapped.is_ok(), "unmapping a range that is mapped");
    }
}
