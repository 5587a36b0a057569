//! A flag that says whether a connection is of use, and that is off in a process made by `fork`:
//! a child shares the socket with its parent, so it must not speak on it. The page of the flag is
//! wiped by the kernel at the fork, so that asking costs one load and no system call.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

const PAGE_BYTES: usize = 4096;
const ALIVE: u32 = 1;

/// On until it is put out, or the process forks.
#[derive(Debug)]
pub(crate) struct Alive(NonNull<AtomicU32>);

// SAFETY: the page is shared memory that is only accessed as an atomic, and lives as long as the
// value does.
unsafe impl Send for Alive {}
// SAFETY: as above.
unsafe impl Sync for Alive {}

impl Alive {
    pub(crate) fn new() -> std::io::Result<Alive> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing else.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                PAGE_BYTES,
                protection,
                MapFlags::PRIVATE,
            )
        }?;
        let Some(flag) = NonNull::new(page.cast::<AtomicU32>()) else {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        };
        let alive = Alive(flag);
        // SAFETY: the page is ours alone, and wiping it in a child leaves a valid atomic.
        unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }?;
        alive.flag().store(ALIVE, Ordering::Release);
        Ok(alive)
    }

    fn flag(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped, aligned and zeroed or written as an atomic; it is unmapped
        // only when the value drops.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.flag().load(Ordering::Acquire) == ALIVE
    }

    pub(crate) fn put_out(&self) {
        self.flag().store(0, Ordering::Release);
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nobody refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), PAGE_BYTES) };
    }
}
