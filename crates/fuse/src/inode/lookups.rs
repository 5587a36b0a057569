//! [`Lookups`]: the last look-up of each calling thread. `unlink` and `rmdir` come right after the
//! look-up of their name, so they need not ask once more what they remove.
//!
//! It is a hint: the name may lead elsewhere by now. It may only be used for what is harmless for
//! any file.

use std::ffi::{CStr, CString};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::inode::attributes::Before;
use crate::inode::state::Inode;

/// Number of places. Of two threads that share one, one has to ask again.
const PLACES: usize = 64;

struct Seen {
    caller: u32,
    parent: u64,
    name: CString,
    inode: Weak<Inode>,
    before: Before,
}

/// The last look-up of each thread.
pub(crate) struct Lookups {
    places: [Mutex<Option<Seen>>; PLACES],
}

impl Default for Lookups {
    fn default() -> Self {
        Lookups { places: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Lookups {
    fn place(&self, caller: u32) -> &Mutex<Option<Seen>> {
        &self.places[caller as usize % PLACES]
    }

    /// Thread `caller` begins another look-up.
    pub fn clear(&self, caller: u32) {
        *self.place(caller).lock() = None;
    }

    /// Thread `caller` was told that `name` in directory `parent` is `inode`.
    pub fn note(&self, caller: u32, parent: u64, name: &CStr, inode: &Arc<Inode>, before: &Before) {
        // All threads outside of our pid name space.
        if caller == 0 {
            return;
        }
        let (name, inode) = (name.to_owned(), Arc::downgrade(inode));
        *self.place(caller).lock() = Some(Seen { caller, parent, name, inode, before: *before });
    }

    /// What the thread was told, if this was its last look-up. Tells it once.
    pub fn take(&self, caller: u32, parent: u64, name: &CStr) -> Option<(Arc<Inode>, Before)> {
        let seen = self.place(caller).lock().take()?;
        let is_this = seen.caller == caller && seen.parent == parent && *seen.name == *name;
        Some((seen.inode.upgrade().filter(|_| is_this)?, seen.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::table::InodeTable;
    use crate::protocol::abi::ROOT_NODEID;

    #[test]
    fn a_hint_is_of_this_thread_and_name_and_of_the_last_look_up() {
        let root = rustix::fs::open(".", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        let inodes = InodeTable::new(root.unwrap(), 16).unwrap();
        let inode = inodes.get(ROOT_NODEID).unwrap();
        let before = Before::look(|| rustix::fs::stat(".")).unwrap();
        let lookups = Lookups::default();
        let taken = |noted: u32, caller, parent, name| {
            lookups.note(noted, 1, c"name", &inode, &before);
            lookups.take(caller, parent, name).is_some()
        };
        assert!(taken(7, 7, 1, c"name"));
        assert!(lookups.take(7, 1, c"name").is_none(), "once");
        assert!(!taken(7, 7, 1, c"other"));
        assert!(!taken(7, 7, 2, c"name"));
        assert!(!taken(7, 7 + PLACES as u32, 1, c"name"), "a thread with the same place");
        assert!(!taken(0, 0, 1, c"name"), "threads without a number");
        lookups.note(7, 1, c"name", &inode, &before);
        lookups.clear(7);
        assert!(lookups.take(7, 1, c"name").is_none());
    }
}
