//! [`Quiet`]: marks a stretch in which a thread must not wait, and so sends no message, because a
//! language runtime may stand still until it ends. Debug builds check it.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static QUIET: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, a message that its thread sends to the node is a mistake, which debug builds
/// find.
#[derive(Debug)]
pub struct Quiet(PhantomData<*const ()>);

impl Quiet {
    /// Begins such a stretch.
    pub fn begin() -> Quiet {
        if cfg!(debug_assertions) {
            QUIET.set(QUIET.get() + 1);
        }
        Quiet(PhantomData)
    }

    pub(crate) fn is_on() -> bool {
        QUIET.get() > 0
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            QUIET.set(QUIET.get() - 1);
        }
    }
}
