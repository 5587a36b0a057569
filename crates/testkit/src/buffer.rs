//! Memory shared by the driver and one actor, so that the bytes of reads and writes cross without
//! a copy or an encoding. The two take turns: an actor touches it only between a command and its
//! answer, the driver only outside of that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::mm::{MapFlags, ProtFlags};

/// A mapped anonymous file.
#[derive(Debug)]
pub struct SharedBuffer {
    descriptor: OwnedFd,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, like the memory of a `Vec`.
unsafe impl Send for SharedBuffer {}

impl SharedBuffer {
    /// New memory of `bytes` bytes.
    pub fn create(bytes: usize) -> io::Result<Self> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let descriptor = rustix::fs::memfd_create("testkit", flags)?;
        rustix::fs::ftruncate(&descriptor, bytes as u64)?;
        Self::map(descriptor)
    }

    /// The memory behind a descriptor.
    pub fn map(descriptor: OwnedFd) -> io::Result<Self> {
        let bytes = rustix::fs::fstat(&descriptor)?.st_size as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a whole file at an address of the kernel's choice.
        let address = unsafe {
            let start = std::ptr::null_mut();
            rustix::mm::mmap(start, bytes, protection, MapFlags::SHARED, &descriptor, 0)?
        };
        Ok(SharedBuffer { descriptor, address: address.cast(), bytes })
    }

    /// Another descriptor of the same memory.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.descriptor.as_fd().try_clone_to_owned()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as this lives; the other process keeps its hands off in
        // between turns, see the top of the file.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }

    /// The bytes, to change them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.bytes) };
    }
}
