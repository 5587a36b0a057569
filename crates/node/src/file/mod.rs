//! Files as the node knows them: which version is cached, who has it open, how reads find bytes
//! and how writes keep PFS and store together.
//!
//! * [`state`]: one record an inode that is open or has a segment, and the table of them.
//! * [`content`]: the cached bytes of one version, and of what local writes made of it.
//! * [`handle`]: one open.
//! * [`stub`]: what stands for a memory-only file on the PFS.
//! * `read`, `write`, `capture`, `lent`, `behind`, `memory_only`, `written_down`,
//!   `direct_writer`, `follow`: what a handle does.
//! * `pool`, `steps`, `pace`, `draining`: when memory-only files are written down, by whom, how
//!   fast.
//! * [`losses`]: what was in memory alone and is gone, to be told.
//! * `write_back_state`, `failing`, `retry`: what a PFS that has no room for them, or fails, changes of
//!   it.
//!
//! Lock order: `FileState::gate`, then `FileState::inner`, then locks inside a content. The gate
//! is shared by fills and by reads from the PFS and exclusive for everything that changes the file,
//! so that a version seen under it is either the recorded one or somebody else's work.

mod behind;
pub mod cached_version;
pub mod capture;
mod direct_writer;
pub mod draining;
pub mod failing;
mod follow;
pub mod gate;
pub mod handle;
mod kernel_borrow;
pub mod losses;
pub mod memory_only;
mod pace;
mod read;
mod retry;
pub mod state;
pub mod steps;
pub mod stub;
mod write;
mod write_back;
pub mod write_back_pool;
pub mod write_back_state;
