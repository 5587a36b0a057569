//! Whether the change that a thread works on is still waited for by whoever asked for it.
//!
//! A change may wait long before it is made: for another change of its file, or for a slow parallel
//! file system. Who asked for it may be gone by then, and somebody else may have written the file.
//! So the last thing before a change is to look once more.

use std::cell::RefCell;
use std::sync::Arc;

use tidepool_proto::{Error, ErrorKind, Result};

/// Somebody who asks for changes.
pub trait Asker {
    /// Whether he still waits for what he asked for.
    fn still_asks(&self) -> bool;
}

thread_local! {
    static ASKER: RefCell<Option<Arc<dyn Asker>>> = const { RefCell::new(None) };
}

/// Takes the asker off the thread, also after a panic.
struct Leave(Option<Arc<dyn Asker>>);

impl Drop for Leave {
    fn drop(&mut self) {
        ASKER.set(self.0.take());
    }
}

/// Does `work`, on this thread, for `asker`.
pub fn on_behalf_of<T>(asker: Arc<dyn Asker>, work: impl FnOnce() -> T) -> T {
    let _leave = Leave(ASKER.replace(Some(asker)));
    work()
}

/// Refuses a change that nobody waits for any more. Changes that no asker is known of, such as the
/// mount's, are waited for: the kernel does not let go of their callers.
pub fn check() -> Result<()> {
    let waits = ASKER.with_borrow(|asker| asker.as_ref().is_none_or(|asker| asker.still_asks()));
    if waits {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NodeUnavailable, "changing a file", "nobody waits for it any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Waits(bool);

    impl Asker for Waits {
        fn still_asks(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn work_is_for_its_own_asker_and_no_longer_than_it_lasts() {
        assert!(check().is_ok());
        on_behalf_of(Arc::new(Waits(false)), || {
            assert!(check().is_err());
            on_behalf_of(Arc::new(Waits(true)), || assert!(check().is_ok()));
            assert!(check().is_err());
        });
        assert!(check().is_ok());
    }
}
