//! [`Changes`]: hooks of front ends that keep bytes of their own. They are told of changes of
//! files' bytes, and of a drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tidepool_proto::{ChangeHook, ChangedRange, DrainHook, FileId};

/// See the module's documentation.
#[derive(Default)]
pub struct Changes {
    hooks: RwLock<Arc<[ChangeHook]>>,
    has_hooks: AtomicBool,
    drains: RwLock<Vec<DrainHook>>,
}

impl Changes {
    /// Tells `hook` of every change from now on.
    pub fn tell(&self, hook: ChangeHook) {
        let mut hooks = self.hooks.write();
        *hooks = hooks.iter().cloned().chain([hook]).collect();
        self.has_hooks.store(true, Ordering::Release);
    }

    /// Calls `hook` before the node writes back what is dirty.
    pub fn tell_of_drain(&self, hook: DrainHook) {
        self.drains.write().push(hook);
    }

    /// Returns when the front ends gave the node what they keep. Call without locks of files.
    pub fn gather(&self) {
        let hooks = self.drains.read().clone();
        hooks.iter().for_each(|hook| hook());
    }

    /// Tells that bytes from `offset` on are about to change, and that they did when what it
    /// returns is dropped. Call without locks of the file: a hook may have to write to it
    /// first.
    pub fn begin(&self, id: FileId, offset: u64, length: u64) -> Changing<'_> {
        let range = ChangedRange { id, offset, length, done: false };
        self.call(&range);
        Changing { changes: self, range }
    }

    fn call(&self, range: &ChangedRange) {
        if self.has_hooks.load(Ordering::Acquire) {
            // A hook may take long, and others may be added meanwhile.
            let hooks = Arc::clone(&self.hooks.read());
            hooks.iter().for_each(|hook| hook(range));
        }
    }
}

/// A change under way.
pub struct Changing<'a> {
    changes: &'a Changes,
    range: ChangedRange,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.range.done = true;
        self.changes.call(&self.range);
    }
}
