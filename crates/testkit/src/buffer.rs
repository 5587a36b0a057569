//! Memory shared by the driver and one actor, so that the bytes of reads and writes cross without
//! a copy or an encoding. The two take turns: an actor touches it only between a command and its
//! answer, the driver only outside of that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tidepool_proto::mapping::{Access, Mapping};

/// A mapped anonymous file.
#[derive(Debug)]
pub struct SharedBuffer {
    descriptor: OwnedFd,
    mapping: Mapping,
}

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
        let mapping = Mapping::shared(&descriptor, 0, bytes, Access::ReadWrite)?;
        Ok(SharedBuffer { descriptor, mapping })
    }

    /// Another descriptor of the same memory.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.descriptor.as_fd().try_clone_to_owned()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the other process keeps its hands off in between turns, see the top of the file.
        unsafe { self.mapping.bytes() }
    }

    /// The bytes, to change them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { self.mapping.bytes_mut() }
    }
}
