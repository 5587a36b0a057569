//! Files as the node knows them: which version is cached, who has it open, how reads find bytes
//! and how writes keep PFS and store together.
//!
//! * [`state`]: one record for each inode that is open or has a segment, and the table of them.
//! * [`gate`]: the lock that separates changes of a file from fills and reads.
//! * [`cached_version`]: the cached bytes of one version, and of what local writes made of it.
//! * [`handle`]: one open; `read`, `write`, `follow`, `direct_writer` are its operations.
//! * `length`: how long a file may be.
//! * `capture`, `kernel_borrow`, `behind`: how what is cached follows a change.
//! * [`stub`], [`memory_only`], [`memory_only_files`], `write_back`: files whose bytes are in
//!   memory alone, and how they are written back; [`copied`]: what other nodes have of them.
//! * `write_back_pool`, `draining`, `works`, `steps`, `pace`: when they are, by which threads, how
//!   fast.
//! * [`background`], `write_rate`: those that nobody waits for leave the PFS to its readers.
//! * `write_back_check`: whether the PFS gives back what was written.
//! * `write_back_state`, `failing`, `retry`: a PFS that has no room for them, or fails.
//! * [`losses`]: bytes that were in memory alone and are gone, to be reported to their writers.
//!
//! # Invariants
//!
//! 1. The bytes and the length of a file change, through this node, only under its gate held
//!    exclusively. So a version that is seen under the gate is the recorded one or another
//!    program's work. Exceptions are direct writes (4) and an open that empties the stub of another
//!    node.
//! 2. `Inner::cached` is replaced under `inner` and the gate, shared at least; without the gate
//!    only where nobody has the file open and it is discarded whole.
//! 3. Bytes that a version has in the store are those of the file at that version. A fill is
//!    committed only if the PFS still has the version after the bytes were read, without leaving
//!    the gate between; a write is kept after the PFS took it. A version whose time stamps may hide
//!    a later change is *racy*, and no later open uses it. Invalidation is final.
//! 4. While `Inner::written_directly` is set nothing of the file is cached and reads go to the PFS.
//!    It changes under the gate held exclusively.
//! 5. A memory-only version has a stub on the PFS. The mark is there before the first byte is kept
//!    in memory alone, and goes after the last one is durable on the PFS. Until then the store does
//!    not evict its blocks.
//! 6. Locks are taken in the order gate, `FileState::inner`, those of a version, those of the
//!    store. `FileTable` may be locked before `inner` and not under it. `inner` is not held over a
//!    question to the PFS, because walks over all files take it.
//! 7. No pin of a block is held while a gate is waited for, because a change waits for pins.

pub mod background;
mod behind;
pub mod cached_version;
pub mod capture;
pub mod copied;
mod direct_writer;
pub mod drained;
pub mod draining;
pub mod failing;
mod follow;
pub mod gate;
pub mod handle;
mod kernel_borrow;
mod length;
pub mod losses;
mod mark;
pub mod memory_only;
pub mod memory_only_files;
mod pace;
mod placing;
pub mod ranges;
mod read;
pub mod retry;
pub mod state;
pub mod steps;
pub mod stub;
mod stub_errors;
pub mod stub_times;
mod works;
mod write;
pub(crate) mod write_back;
pub(crate) mod write_back_check;
pub mod write_back_pool;
pub mod write_back_state;
mod write_rate;
mod written;
