//! The mount: a directory of the parallel file system, seen through the node.
//!
//! Names, permissions, attributes and locks go straight to the PFS directory with the credentials
//! of the calling user; file data goes through [`tidepool_proto::FileService`]. Resident files are
//! opened by FUSE passthrough where the kernel and our privileges allow it.
//!
//! This crate caches no name, no attribute and no byte: the kernel is told to ask every time, and
//! to drop the pages of mappings when their bytes change elsewhere. What may be kept in memory is
//! the node's business. It speaks the kernel protocol itself; the
//! reasons are in `docs/design/mount.md`.

mod abi;
mod attributes;
mod config;
mod credentials;
mod data;
mod device;
mod directories;
mod dispatch;
mod filesystem;
mod handles;
mod locks;
mod lookups;
mod meeting;
mod metadata;
mod mounting;
mod nameless;
mod names;
mod nodes;
mod opens;
mod pages;
mod ranges;
mod reply_pipe;
mod request;
mod reservations;
mod session;
mod shares;
mod stale;
mod traced;
mod turns;
mod waiting;

pub use config::MountConfig;
pub use mounting::mounted_device;
pub use session::{Mount, mount};
pub use stale::{is_stale, mount_around, places_for, recover_stale};
