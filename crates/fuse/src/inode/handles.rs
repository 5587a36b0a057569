//! [`Handles`]: open files or directories by the number that the kernel names them by.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::protocol::request::{Answer, Errno};

/// Open files or directories by number. Numbers are not used twice.
#[derive(Debug)]
pub struct Handles<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    last: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { open: RwLock::default(), last: AtomicU64::new(0) }
    }
}

impl<T> Handles<T> {
    /// The number of the next open.
    pub fn reserve(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keeps `thing` under a reserved number.
    pub fn insert(&self, handle: u64, thing: T) {
        self.open.write().insert(handle, Arc::new(thing));
    }

    /// What has this number.
    pub fn get(&self, handle: u64) -> Answer<Arc<T>> {
        self.open.read().get(&handle).cloned().ok_or(Errno(libc::EBADF))
    }

    /// Removes what has this number.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.open.write().remove(&handle)
    }
}
