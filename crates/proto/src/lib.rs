//! The vocabulary of Tidepool: sizes, modes, versions, errors, messages and shared-memory layouts.
//!
//! Every other crate speaks in these types, so this crate depends on none of them. It does no
//! input or output but moving frames ([`wire::socket`]) and reading the table of mounts
//! ([`mounts`]), starts no thread and holds no state.

pub mod admin;
pub mod config;
pub mod control;
pub mod control_page;
pub mod error;
pub mod files;
pub mod habit;
pub mod hadoop;
pub mod level;
pub mod metric;
pub mod mode;
pub mod mounts;
pub mod option;
pub mod residency;
pub mod resolve;
pub mod service;
pub mod size;
pub mod stub;
pub mod table;
pub mod trace;
pub mod version;
pub mod wire;

pub use config::NodeConfig;
pub use error::{Error, ErrorKind, Result};
pub use habit::Habit;
pub use level::{BytesByLevel, Level};
pub use mode::{Access, Advice, ReadMode, WriteMode};
pub use service::{
    ChangeBegin, ChangeHook, ChangedRange, DrainHook, FileService, HandOut, Identity, NotedVersion,
    OpenFile, OpenRequest, PassthroughPin, ReadOutcome,
};
pub use size::{ByteSize, MemorySize};
pub use version::{Alone, ChangeTimes, FileId, Version};

/// Default unit of residency, transfer and eviction, in bytes.
pub const BLOCK_BYTES_DEFAULT: u64 = 4 << 20;
/// Size of a huge page; every block size is a multiple of it.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Files below this size are packed together instead of getting a segment of their own.
pub const SMALL_FILE_BYTES_DEFAULT: u64 = 256 << 10;

const _: () =
    assert!(BLOCK_BYTES_DEFAULT.is_multiple_of(HUGE_PAGE_BYTES), "a block is whole huge pages");
const _: () = assert!(SMALL_FILE_BYTES_DEFAULT < BLOCK_BYTES_DEFAULT, "a small file fits a block");
