//! [`FileHandle`]: one open of a file by a program.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tidepool_proto::{Access, Identity, OpenFile};

use crate::callers::shares::Share;
use crate::inode::table::Inode;

/// One open of a file by a program.
pub struct FileHandle {
    /// What is open.
    pub inode: Arc<Inode>,
    /// The node's side of it.
    pub file: Arc<dyn OpenFile>,
    /// What the program may do.
    pub access: Access,
    /// The descriptor that it costs, and whose it is.
    pub share: Share,
    /// Lock owners that took record locks through this open and did not close it yet, as far as the
    /// kernel tells. An open file that owns locks itself never closes: its locks end with it.
    pub lock_owners: Mutex<Vec<u64>>,
    /// It was opened to append.
    pub append: bool,
    /// Its writes go past pages that other opens use, and the kernel leaves those as they are.
    pub is_past_cache: bool,
    /// As whom what it writes is written.
    pub changes_as: Option<Identity>,
    /// For bytes that go to their own offsets although it was opened to append, and the reverse:
    /// of its shared mappings, and where the program changed the descriptor's flag.
    pub other_append_mode: OnceLock<(Arc<dyn OpenFile>, Share)>,
}
