//! The panic hook. Rust prints panics to the standard error, which is not read on a cluster. Here
//! panics of Java's threads become exceptions that say where they happened, and those of threads of
//! the library go to Java's log.

use std::cell::RefCell;
use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, Once, PoisonError};

use tidepool_client::Notice;

/// How threads of the library are called; what they do, no native method waits for.
const OWN_THREADS: &str = "tidepool";

thread_local! {
    /// Where this thread panicked, until the exception is made.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The log of the client that connected last.
static LOG: Mutex<Option<Notice>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// From now on panics go to this log, or into exceptions.
pub(crate) fn tell(log: &Notice) {
    *LOG.lock().unwrap_or_else(PoisonError::into_inner) = Some(Notice::clone(log));
    HOOK.call_once(|| panic::set_hook(Box::new(told)));
}

/// Where this thread panicked last.
pub(crate) fn place() -> Option<String> {
    PLACE.with_borrow_mut(Option::take)
}

fn told(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    let thread = std::thread::current();
    if !thread.name().is_some_and(|name| name.starts_with(OWN_THREADS)) {
        // No call of Java's is allowed where it may have lent an array.
        PLACE.with_borrow_mut(|kept| *kept = place);
        return;
    }
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let line =
        format!("in the native library: {panic} (this is a bug of Tidepool; please report it)");
    // There is one since the hook is.
    if let Some(log) = log {
        log(&line.replace('\n', " "));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn panics_of_threads_of_the_library_are_logged_and_others_keep_their_place() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let log: Notice = Arc::new(move |line: &str| kept.lock().unwrap().push(line.to_owned()));
        tell(&log);
        let own = std::thread::Builder::new().name("tidepool-watch".into());
        own.spawn(|| panic!("what went wrong")).unwrap().join().unwrap_err();
        let other = std::thread::Builder::new().name("main".into());
        let other = other.spawn(|| {
            panic::catch_unwind(|| panic!("elsewhere")).unwrap_err();
            place()
        });
        assert!(other.unwrap().join().unwrap().unwrap().contains("panics.rs"));
        drop(panic::take_hook());
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("what went wrong") && lines[0].contains("panics.rs"));
    }
}
