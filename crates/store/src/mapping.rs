//! A shared mapping of a memory file. The holder of a pointer into it promises that the pages stay
//! populated and below the end of the file; the mapping itself only maps, populates and unmaps.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::Advice;
use tidepool_proto::mapping::{self, Access};
use tidepool_proto::{Error, ErrorKind, Result};

/// Memory of a file in the address space of the node.
pub(crate) struct Mapping(mapping::Mapping);

impl Mapping {
    pub fn new(file: BorrowedFd<'_>, length: u64) -> Result<Mapping> {
        let no_space = |errno: Errno| {
            Error::new(ErrorKind::LimitReached, "mapping a segment", format!("{length} bytes"))
                .caused_by(errno)
                .remedy("raise vm.max_map_count, or cache fewer files")
        };
        let bytes = usize::try_from(length).map_err(|_| no_space(Errno::NOMEM))?;
        mapping::Mapping::shared(file, 0, bytes, Access::ReadWrite).map(Mapping).map_err(no_space)
    }

    pub fn base(&self) -> *mut u8 {
        self.0.base()
    }

    pub fn length(&self) -> u64 {
        self.0.length() as u64
    }

    /// Takes memory for all pages of the range, so that touching them can neither fail nor wait.
    pub fn populate(&self, start: u64, length: u64) -> Result<(), Errno> {
        self.0.populate(start as usize, length as usize)
    }

    pub fn advise_huge_pages(&self, start: u64, length: u64) {
        // Only a hint: where it is refused, the probe at the start has said so.
        let _ = self.0.ask_for_huge_pages(start as usize, length as usize);
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
