//! [`FileHandle`]: one open of a file by a program.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tidepool_proto::{Access, Identity, OpenFile};

use crate::callers::shares::Share;
use crate::inode::state::Inode;

pub struct FileHandle {
    /// The inode that is open.
    pub inode: Arc<Inode>,
    /// The same open in the node.
    pub file: Arc<dyn OpenFile>,
    /// What the program may do.
    pub access: Access,
    /// The descriptor that it costs, and the user that holds it.
    pub share: Share,
    /// Owners that took record locks through this open and, as far as the kernel tells, did not
    /// close it yet. Locks that belong to an open file end with it: its owner never closes.
    pub lock_owners: Mutex<Vec<u64>>,
    /// It was opened to append.
    pub append: bool,
    /// Its writes bypass pages that other opens use, and the kernel leaves those as they are.
    pub is_past_cache: bool,
    /// The identity with which the node writes; `None` is its own.
    pub changes_as: Option<Identity>,
    /// A second open that appends if this one does not, and the reverse: for shared mappings of a
    /// file opened to append, and for programs that change the flag of their descriptor.
    pub other_append_mode: OnceLock<(Arc<dyn OpenFile>, Share)>,
}
