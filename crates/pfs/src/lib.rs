//! The lower level: files of the parallel file system (PFS) under Tidepool.
//!
//! [`LowerStore`] and [`LowerFile`] are the whole of what the node asks of a PFS. [`PosixStore`]
//! serves any mounted file system; [`FaultStore`] wraps a store and makes it slow, short, full or
//! forgetful; [`contract`] measures what a mount really offers; [`layout`] passes striping hints;
//! [`walk()`] lists files for loads; [`Unsynced`] counts what of a file is not durable yet.
//!
//! The crate keeps no file content and opens no file by name for anybody: a caller brings an open
//! descriptor, and never gets more access through it than that descriptor has.

pub mod asked;
pub mod contract;
pub mod cost;
pub mod fault;
pub mod features;
mod filesystem;
pub mod identity;
pub mod layout;
mod lower;
mod posix;
mod timed;
mod unsynced;
mod walk;

pub use fault::{FaultRules, FaultStore};
pub use features::{DirectIo, Features, FsyncReach};
pub use layout::placement::{Placement, ServerKey};
pub use layout::{Layout, LayoutHints, LayoutOutcome, StripePart};
pub use lower::{LowerFile, LowerStore};
pub use posix::{PosixOptions, PosixStore, sync_entry};
pub use timed::TimedStore;
pub use unsynced::{Hearing, Need, Unsynced, Work};
pub use walk::{Walk, WalkEntry, walk};
