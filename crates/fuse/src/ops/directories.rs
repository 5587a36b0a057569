//! Reads directories straight from the PFS.
//!
//! Names come in the order and with the offsets of the PFS, so a program may stop and resume
//! anywhere. Reading with attributes (`READDIRPLUS`) is not offered: the kernel may cache no
//! attributes here, so it would ask for each of them again.

use rustix::fs::{Mode, OFlags};

use crate::inode::directory_handle::DirectoryHandle;
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{FsyncIn, InHeader, OpenOut, ReleaseIn, TransferIn};
use crate::protocol::request::Answer;

impl Filesystem {
    /// `OPENDIR`.
    pub(crate) fn open_directory(&self, caller: &InHeader) -> Answer<OpenOut> {
        let (_, held) = self.directory_for(caller, caller.nodeid)?;
        let share = self.shares.take(caller.uid)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Not `openat(".")`, which asks for the right to search as well as the right to read.
        let (directory, number) = self.by_descriptor(&held);
        let descriptor = rustix::fs::openat(directory, number.as_str(), flags, Mode::empty())?;
        self.shares.check(&descriptor)?;
        let handle = self.directories.reserve();
        self.directories.insert(handle, DirectoryHandle::new(descriptor, share));
        Ok(OpenOut { handle, open_flags: 0, backing_id: 0 })
    }

    /// `READDIR`.
    pub(crate) fn read_directory(&self, arguments: TransferIn) -> Answer<Vec<u8>> {
        let directory = self.directories.get(arguments.handle)?;
        directory.read(arguments.offset, arguments.size as usize)
    }

    /// `RELEASEDIR`.
    pub(crate) fn release_directory(&self, arguments: ReleaseIn) -> Answer {
        self.directories.remove(arguments.handle);
        Ok(())
    }

    /// `FSYNCDIR`.
    pub(crate) fn sync_directory(&self, arguments: FsyncIn) -> Answer {
        let directory = self.directories.get(arguments.handle)?;
        Ok(rustix::fs::fsync(&*directory)?)
    }
}
