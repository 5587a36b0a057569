//! The mount: shows a directory of the parallel file system, with file data served by the node.
//!
//! Names, permissions, attributes and locks go straight to the PFS directory with the credentials
//! of the calling user; file data goes through [`tidepool_proto::FileService`]. Resident files are
//! opened by FUSE passthrough where the kernel and our privileges allow it.
//!
//! This crate caches no name, no attribute and no byte. The kernel is told to ask every time, and
//! to drop the pages of mappings when their bytes change elsewhere. What is kept in memory is
//! decided by the node. The crate speaks the kernel protocol itself, for the reasons in
//! `docs/design/mount.md`.

mod callers;
mod inode;
mod ops;
mod protocol;
mod session;

pub use session::{
    Mount, MountConfig, is_stale, mount, mount_around, mounted_device, places_for, recover_stale,
};
