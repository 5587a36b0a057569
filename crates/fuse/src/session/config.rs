//! [`MountConfig`]: how and where to mount. The values were checked where the configuration was
//! read.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// How and where to mount.
#[derive(Debug)]
pub struct MountConfig {
    /// The PFS directory that the mount shows; a directory descriptor, `O_PATH` is enough.
    pub pfs_root: OwnedFd,
    /// Path of the same directory, for messages and the mount table only.
    pub pfs_path: PathBuf,
    /// Where to mount; an existing directory outside of the PFS directory.
    pub mount_point: PathBuf,
    /// Threads that wait for requests. More are started while all of these are busy.
    pub threads: usize,
    /// Requests that may wait for the PFS at the same time; one user has half of them at most.
    pub turns_max: usize,
    /// Largest request in bytes; what the kernel does not take is cut to its limit.
    pub request_bytes_max: usize,
    /// Refuse every change.
    pub read_only: bool,
    /// Let other users in. Needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Let the kernel read resident files by itself where it can.
    pub passthrough: bool,
    /// Let reads and writes bypass the kernel's page cache, if the kernel can map such files.
    pub direct_io: bool,
    /// Largest number of descriptors held to reach inodes; `None` takes a quarter of what the
    /// process may open, and 32,768 at most: each keeps an inode of the PFS in the kernel's memory.
    pub inode_descriptors_max: Option<usize>,
    /// Largest number of files, directories and locks that are open through the mount, of which
    /// one user has three quarters at most; `None` takes half of what the process may open.
    pub opens_max: Option<usize>,
}

impl MountConfig {
    /// The defaults: two threads, read-write, open to all users when root, with passthrough and
    /// direct input and output.
    pub fn new(pfs_root: OwnedFd, pfs_path: PathBuf, mount_point: PathBuf) -> Self {
        MountConfig {
            pfs_root,
            pfs_path,
            mount_point,
            threads: 2,
            turns_max: 128,
            request_bytes_max: 1 << 20,
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            passthrough: true,
            direct_io: true,
            inode_descriptors_max: None,
            opens_max: None,
        }
    }
}
