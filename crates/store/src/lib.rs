//! The upper level of storage: memory segments, residency, eviction policies, capacity.
//!
//! A [`Store`] owns the memory. A [`Segment`] is one sparse memory file per cached version of a
//! file, filled, read and freed in blocks; small files live packed in blocks of their own. The
//! store knows nothing of the parallel file system and reads nothing from it: its caller fills
//! blocks and says when they are clean. It never evicts what is not clean, never takes more memory
//! than its capacity, and never shows bytes that were not put there.

mod account_page;
mod backing;
mod backoff;
mod borrow;
mod borrow_shares;
mod borrow_state;
mod budget;
mod catalog;
mod cell;
mod cells;
mod config;
mod engine;
mod extend;
mod fill;
mod freeing;
mod heartbeat_page;
mod length;
mod mapping;
mod mappings;
mod policy;
mod segment;
mod segment_memory;
mod shared;
mod small;
mod store;
#[cfg(test)]
mod tests;
mod trace_page;

pub use borrow::{ClientBorrow, KernelBorrow};
pub use config::{BackingChoice, Owner, PolicyKind, QuotaKey, StoreConfig};
pub use fill::{BlockFill, FillStart};
pub use heartbeat_page::HeartbeatPage;
pub use policy::{Choice, Simulation};
pub use segment::{BlockPin, Segment, SegmentPin};
pub use store::Store;
pub use tidepool_proto::table::BlockState;
pub use trace_page::TracePage;
