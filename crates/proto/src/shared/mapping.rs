//! Mappings of memory: address ranges of a file, or of this process alone, that are unmapped when
//! their value drops.
//!
//! Why it is sound. The kernel chooses the addresses, so a mapping never takes the place of other
//! memory. Safe access goes through atomics: other processes may change the bytes at any time, and
//! every pattern of bits is a value of theirs. What hands out plain slices is `unsafe`, because
//! their bytes must not change meanwhile; only [`Memory`], which no one else can reach, does so
//! safely. A file that is shorter than its mapping, or becomes so, ends the process at an access
//! (`SIGBUS`), and so does a write where only reads are allowed (`SIGSEGV`): callers check lengths
//! and seals.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};

use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// What this process may do with the bytes of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only ask about the pages.
    Nothing,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

impl Access {
    fn flags(self) -> ProtFlags {
        match self {
            Access::Nothing => ProtFlags::empty(),
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// A mapped range of addresses.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    access: Access,
    /// Bytes that may be read: all or none.
    readable: usize,
}

// SAFETY: a range of addresses has no thread affinity; see the top of the file for access to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of a file from `offset`, a multiple of the page size. Changes are shared
    /// with all programs that use the file.
    pub fn shared(file: impl AsFd, offset: u64, length: usize, access: Access) -> Result<Mapping> {
        Self::of_file(file, offset, length, access, MapFlags::SHARED | MapFlags::NORESERVE)
    }

    /// As [`Self::shared`], but changes stay here.
    pub fn private(file: impl AsFd, offset: u64, length: usize, access: Access) -> Result<Mapping> {
        Self::of_file(file, offset, length, access, MapFlags::PRIVATE)
    }

    fn of_file(
        file: impl AsFd,
        offset: u64,
        length: usize,
        access: Access,
        flags: MapFlags,
    ) -> Result<Mapping> {
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at addresses of the kernel's choice touches nothing else.
        let base = unsafe { mmap(anywhere, length, access.flags(), flags, file, offset) }?;
        Self::of(base, length, access)
    }

    /// Maps zeros that no other process has, to be read and written.
    pub fn anonymous(length: usize) -> Result<Mapping> {
        let access = Access::ReadWrite;
        let anywhere = std::ptr::null_mut();
        // SAFETY: as in `of_file`.
        let base = unsafe { mmap_anonymous(anywhere, length, access.flags(), MapFlags::PRIVATE) }?;
        Self::of(base, length, access)
    }

    fn of(base: *mut c_void, length: usize, access: Access) -> Result<Mapping> {
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let readable = if access == Access::Nothing { 0 } else { length };
        Ok(Mapping { base, length, access, readable })
    }

    /// The first address. It is aligned to a page.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    fn check_range(&self, start: usize, length: usize) {
        let end = start.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "a range outside its mapping");
    }

    /// The address of bytes that may be read.
    fn readable(&self, at: usize, length: usize) -> *mut u8 {
        // One comparison: readers of resident bytes come here.
        let end = at.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.readable), "bytes that may not be read");
        // SAFETY: within the mapping.
        unsafe { self.base().add(at) }
    }

    /// A byte that others may change; to be written only where [`Access`] allows it.
    pub fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: mapped for as long as `self` lives, readable, and an atomic to all.
        unsafe { &*self.readable(at, 1).cast::<AtomicU8>() }
    }

    /// Eight bytes that others may change, at a multiple of eight; as [`Self::byte`].
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "a word is aligned");
        // SAFETY: as in `byte`; aligned, because the base is aligned to a page.
        unsafe { &*self.readable(at, 8).cast::<AtomicU64>() }
    }

    /// The bytes.
    ///
    /// # Safety
    /// Nobody changes them while the slice lives.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and readable; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts(self.readable(0, self.length), self.length) }
    }

    /// The bytes, to change them.
    ///
    /// # Safety
    /// Nobody else changes or reads them while the slice lives.
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.access == Access::ReadWrite, "a mapping that is only read");
        // SAFETY: mapped, readable and writable; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.length) }
    }

    /// Puts zeros in the place of the pages, to be read alone. The addresses stay mapped.
    pub fn replace_by_zeros(&mut self) -> Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let (base, read) = (self.base().cast(), Access::Read);
        // SAFETY: the range is this mapping's own, and `self` is borrowed exclusively.
        unsafe { mmap_anonymous(base, self.length, read.flags(), flags) }?;
        self.access = read;
        self.readable = self.length;
        Ok(())
    }

    /// Takes memory for all pages of a range, so that touching them can neither fail nor wait.
    pub fn populate(&self, start: usize, length: usize) -> Result<()> {
        loop {
            match self.advise(start, length, Advice::LinuxPopulateWrite) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                other => return other,
            }
        }
    }

    /// Asks for huge pages in a range. A hint: it fails where the kernel has none.
    pub fn ask_for_huge_pages(&self, start: usize, length: usize) -> Result<()> {
        self.advise(start, length, Advice::LinuxHugepage)
    }

    /// Has a child of this process find zeros.
    pub fn wipe_on_fork(&self) -> Result<()> {
        self.advise(0, self.length, Advice::LinuxWipeOnFork)
    }

    /// Bytes of the mapping that are in the page cache, in whole pages. Of a file that the caller
    /// neither owns nor may write, the kernel says that all are.
    pub fn cached_bytes(&self) -> Result<usize> {
        let page = rustix::param::page_size();
        let mut pages = vec![0_u8; self.length.div_ceil(page)];
        // SAFETY: `mincore` writes a byte for each page of the range, and the vector is as long.
        let result = unsafe { libc::mincore(self.base().cast(), self.length, pages.as_mut_ptr()) };
        if result != 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(pages.iter().filter(|page| **page & 1 == 1).count() * page)
    }

    fn advise(&self, start: usize, length: usize, advice: Advice) -> Result<()> {
        self.check_range(start, length);
        // SAFETY: within the mapping; none of the advice given here changes bytes of this process.
        unsafe { madvise(self.base().add(start).cast(), length, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `of`, unmapped only here, and what borrows from it is gone.
        let unmapped = unsafe { munmap(self.base().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "unmapping a range that is mapped");
    }
}

/// Memory of this process alone, aligned to a page.
#[derive(Debug)]
pub struct Memory(Mapping);

impl Memory {
    /// Zeros, in huge pages where the kernel has them.
    pub fn new(length: usize) -> Result<Memory> {
        let mapping = Mapping::anonymous(length)?;
        // Without them it works too; they make the first use several times cheaper.
        let _ = mapping.ask_for_huge_pages(0, length);
        Ok(Memory(mapping))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: only `bytes_mut` changes them, with `self` borrowed exclusively.
        unsafe { self.0.bytes() }
    }

    /// The bytes, to change them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: nobody else has the mapping, and `self` is borrowed exclusively.
        unsafe { self.0.bytes_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::panic::catch_unwind;
    use std::sync::atomic::Ordering::Relaxed;

    const LENGTH: usize = 8192;

    fn file() -> OwnedFd {
        let file = rustix::fs::memfd_create("mapping", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LENGTH as u64).unwrap();
        file
    }

    #[test]
    fn changes_are_seen_by_those_who_share_them() {
        let file = file();
        let map = || Mapping::shared(&file, 0, LENGTH, Access::ReadWrite).unwrap();
        let (one, other) = (map(), map());
        one.word(4096).store(u64::from_le_bytes([7; 8]), Relaxed);
        assert_eq!(other.byte(4103).load(Relaxed), 7);
        let second = Mapping::shared(&file, 4096, 4096, Access::Read).unwrap();
        assert_eq!(second.byte(7).load(Relaxed), 7, "from an offset on");
        let private = Mapping::private(&file, 0, LENGTH, Access::ReadWrite).unwrap();
        private.byte(0).store(1, Relaxed);
        assert_eq!(one.byte(0).load(Relaxed), 0);
    }

    #[test]
    fn what_is_replaced_reads_as_zeros() {
        let file = file();
        rustix::io::pwrite(&file, &[9; LENGTH], 0).unwrap();
        let mut mapping = Mapping::shared(&file, 0, LENGTH, Access::ReadWrite).unwrap();
        assert_eq!(mapping.byte(5).load(Relaxed), 9);
        mapping.replace_by_zeros().unwrap();
        // SAFETY: nobody else has the pages.
        assert!(unsafe { mapping.bytes() }.iter().all(|byte| *byte == 0));
        // SAFETY: as above.
        assert!(catch_unwind(move || unsafe { mapping.bytes_mut() }.len()).is_err());
        let mut byte = [0];
        rustix::io::pread(&file, &mut byte, 5).unwrap();
        assert_eq!(byte, [9], "the file keeps its own");
    }

    #[test]
    fn nothing_outside_of_a_mapping_is_touched() {
        let file = file();
        let mapping = Mapping::shared(&file, 0, LENGTH, Access::Read).unwrap();
        for at in [LENGTH - 4, LENGTH, usize::MAX - 7] {
            assert!(catch_unwind(|| mapping.word(at).load(Relaxed)).is_err(), "{at}");
        }
        assert!(catch_unwind(|| mapping.populate(4096, LENGTH)).is_err());
        let closed = Mapping::shared(&file, 0, LENGTH, Access::Nothing).unwrap();
        assert_eq!(closed.cached_bytes().unwrap(), 0, "nothing was written");
        rustix::io::pwrite(&file, &[1], 5000).unwrap();
        assert_eq!(closed.cached_bytes().unwrap(), 4096);
        assert!(catch_unwind(|| closed.byte(0).load(Relaxed)).is_err());
        assert_eq!(Mapping::shared(&file, 0, 0, Access::Read).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn memory_is_zeros_at_first() {
        let mut memory = Memory::new(3 * 4096).unwrap();
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
        memory.bytes_mut()[4096] = 3;
        assert_eq!(memory.bytes()[4096], 3);
    }
}
