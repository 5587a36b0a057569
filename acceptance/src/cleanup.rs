//! Registered clean-up: mounts, loop devices, daemons and limits that are undone at the end, also
//! after Ctrl-C.
//!
//! It never undoes what a guard did not register, and it does not help against SIGKILL.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

type Undo = Box<dyn FnOnce() + Send>;

static PENDING: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());
static TURN: Mutex<()> = Mutex::new(());
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Undoes one thing when dropped or when the task is interrupted, whichever comes first.
#[derive(Debug)]
#[must_use = "dropping the guard undoes at once"]
pub struct Guard(u64);

/// Registers how to undo something.
pub fn guard(undo: impl FnOnce() + Send + 'static) -> Guard {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    pending().push((id, Box::new(undo)));
    Guard(id)
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _turn = turn();
        let undo = {
            let mut pending = pending();
            let position = pending.iter().position(|(id, _)| *id == self.0);
            position.map(|position| pending.remove(position).1)
        };
        if let Some(undo) = undo {
            undo();
        }
    }
}

/// On SIGINT, SIGTERM and SIGHUP: undo everything, last first, and exit with 130.
pub fn on_interrupt() {
    let handler = || {
        eprintln!("\nx: interrupted, cleaning up");
        // Kept until the exit: what the main thread is undoing right now is finished first, and it
        // undoes nothing more beside us.
        let _turn = turn();
        loop {
            let last = pending().pop();
            match last {
                Some((_, undo)) => undo(),
                None => std::process::exit(130),
            }
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        eprintln!("x: no clean-up after Ctrl-C: {error}");
    }
}

/// The right to undo: one thread has it at a time, and may take it again while it has it, because
/// what is undone runs programs that are guarded themselves.
struct Turn(Option<std::sync::MutexGuard<'static, ()>>);

thread_local! {
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

fn turn() -> Turn {
    if HAS_TURN.get() {
        return Turn(None);
    }
    let guard = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    HAS_TURN.set(true);
    Turn(Some(guard))
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.0.is_some() {
            HAS_TURN.set(false);
        }
    }
}

fn pending() -> std::sync::MutexGuard<'static, Vec<(u64, Undo)>> {
    PENDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes a guard out without undoing: something newer undoes the same.
pub fn forget(guard: Guard) {
    pending().retain(|(id, _)| *id != guard.0);
}

#[cfg(test)]
mod tests {
    use super::{forget, guard};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn undoing_may_guard_and_undo_in_turn() {
        let count = Arc::new(AtomicU32::new(0));
        let (outer, inner) = (count.clone(), count.clone());
        let guarded = guard(move || {
            drop(guard(move || _ = inner.fetch_add(1, Ordering::Relaxed)));
            forget(guard(|| panic!("what was forgotten is not undone")));
            outer.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 0);
        drop(guarded);
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
