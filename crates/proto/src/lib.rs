//! The vocabulary of Tidepool: sizes, modes, versions, errors, messages and shared-memory layouts.
//! Folders: `settings` (options and what they resolve to), `file` (versions, stubs, the traits of
//! the file service), `wire` (frames and messages), `administration` (what operators and the
//! controller ask), `shared` (memory that processes share).
//!
//! Every other crate speaks in these types, so this crate depends on none of them. Its only input
//! and output are frames ([`wire::socket`]), the table of mounts ([`mounts`]), the marks of stubs
//! ([`stub`]) and mappings of memory ([`mapping`]). It starts no thread and holds no state.

mod administration;
pub mod error;
mod file;
mod settings;
mod shared;
pub mod size;
pub mod wire;

pub use administration::{
    admin, buffer, cluster, control, explanation, files, locality, metric, plane, report, trace,
};
pub use file::{habit, level, mounts, residency, service, stub, version};
pub use settings::{config, entry, hadoop, mode, option, resolve};
pub use shared::{control_page, mapping, table};

pub use config::NodeConfig;
pub use error::{Error, ErrorKind, Result};
pub use habit::Habit;
pub use level::{BytesByLevel, Level};
pub use mode::{Access, Advice, ReadMode, WriteMode};
pub use service::{
    ChangeBegin, ChangeHook, ChangedRange, DrainHook, FileService, Identity, MetadataWatch,
    OpenFile, OpenRequest, PassthroughPin, ReadOutcome, SegmentExport,
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
