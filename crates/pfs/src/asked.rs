//! [`Asker`]: whether the caller that asked for a change of a file, or for an open that another
//! node has to help with, still waits for it.
//!
//! A change may wait long before it is made: for another change of its file, or for a slow parallel
//! file system. The caller may be gone by then, and another program may have written the file. So a
//! file looks once more right before the system call that changes it, when everything else is done:
//! a process may be stopped at each call of the system, and go on much later.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use tidepool_proto::{Error, ErrorKind, Result};

/// A caller that asks for changes.
pub trait Asker {
    /// Whether the caller still waits for what it asked for.
    fn still_asks(&self) -> bool;

    /// The thread waits for another node from now on: other requests of the caller need not wait
    /// for it, as far as there is room.
    fn begin_wait(self: Arc<Self>) {}

    /// That wait is over.
    fn end_wait(self: Arc<Self>) {}
}

thread_local! {
    static ASKER: RefCell<Option<Arc<dyn Asker>>> = const { RefCell::new(None) };
    /// This thread makes the very change that was asked for, and nothing for others on the way.
    static IS_HIS: Cell<bool> = const { Cell::new(false) };
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

/// Waits for another node, by `work`, beside other requests of the asker.
pub fn while_another_node_works<T>(work: impl FnOnce() -> T) -> T {
    /// Ends the wait, also after a panic.
    struct Waiting(Option<Arc<dyn Asker>>);
    impl Drop for Waiting {
        fn drop(&mut self) {
            if let Some(asker) = self.0.take() {
                asker.end_wait();
            }
        }
    }
    let asker = ASKER.with_borrow(Clone::clone);
    if let Some(asker) = asker.clone() {
        asker.begin_wait();
    }
    let _waiting = Waiting(asker);
    work()
}

/// Refuses a change that nobody waits for any more. Changes that no asker is known of, such as the
/// mount's writes, are waited for: the kernel does not let go of their callers.
pub fn check() -> Result<()> {
    let waits = ASKER.with_borrow(|asker| asker.as_ref().is_none_or(|asker| asker.still_asks()));
    if waits {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NodeUnavailable, "changing a file", "nobody waits for it any more"))
}

/// Makes the very change that was asked for: it is refused also in its last moment. What the thread
/// does for others on the way to it is not.
pub fn making<T>(change: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Also after a panic, which the thread outlives.
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            IS_HIS.set(false);
        }
    }
    IS_HIS.set(true);
    let _done = Done;
    change()
}

/// As [`check`], within [`making`] alone.
pub(crate) fn check_last() -> Result<()> {
    if IS_HIS.get() { check() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LowerStore, PosixOptions, PosixStore};

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
            assert!(check_last().is_ok(), "this may be for others");
            assert!(making(check_last).is_err());
            let panics =
                std::panic::catch_unwind(|| making(|| -> Result<()> { panic!("as meant") }));
            assert!(panics.is_err() && check_last().is_ok(), "the change is over");
            on_behalf_of(Arc::new(Waits(true)), || assert!(making(check_last).is_ok()));
            assert!(check().is_err());
        });
        assert!(check().is_ok());
    }

    #[test]
    fn a_wait_for_another_node_begins_and_ends_once_also_with_a_panic() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        #[derive(Default)]
        struct Counts(AtomicUsize, AtomicUsize);
        impl Counts {
            fn seen(&self) -> (usize, usize) {
                (self.0.load(Ordering::Relaxed), self.1.load(Ordering::Relaxed))
            }
        }
        impl Asker for Counts {
            fn still_asks(&self) -> bool {
                true
            }
            fn begin_wait(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
            fn end_wait(self: Arc<Self>) {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let counts = Arc::new(Counts::default());
        on_behalf_of(counts.clone(), || {
            while_another_node_works(|| assert_eq!(counts.seen(), (1, 0)));
            let wait = || while_another_node_works(|| panic!("as meant"));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).is_err());
        });
        assert_eq!(counts.seen(), (2, 2));
        while_another_node_works(|| ());
    }

    #[test]
    fn a_file_looks_right_before_each_change() {
        let directory = tempfile::tempdir().unwrap();
        let store = PosixStore::open(directory.path(), PosixOptions::default()).unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        let opened = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let file = store.file(opened.into()).unwrap();
        let changes: [&dyn Fn() -> Result<()>; 4] = [
            &|| file.write_part(Some(0), b"x").map(drop),
            &|| file.write_part(None, b"x").map(drop),
            &|| file.set_size(2),
            &|| file.allocate(0, 0, 4096),
        ];
        on_behalf_of(Arc::new(Waits(false)), || {
            for change in changes {
                assert_eq!(making(change).unwrap_err().kind(), ErrorKind::NodeUnavailable);
            }
            assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
            file.write_part(Some(0), b"other").unwrap();
        });
        assert_eq!(std::fs::read(&path).unwrap(), b"other", "what is for others is made");
    }
}
