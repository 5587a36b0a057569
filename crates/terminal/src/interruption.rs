//! Ctrl-C and SIGTERM for commands that take long: the first asks to stop and leave things tidy,
//! the second ends the program at once. Either way it returns 130. A terminal that closes asks as
//! well, unless the command was told to outlive it (`nohup`).

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tidepool_proto::{Error, ErrorKind, Result};

/// The exit code of an interrupted program, as shells have it for SIGINT.
pub const EXIT_CODE: u8 = 130;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Turns true at the first Ctrl-C, SIGTERM or SIGHUP from now on. Until this is called they end the
/// program as usual.
pub fn watch() -> Result<Arc<AtomicBool>> {
    let asked = Arc::clone(ASKED.get_or_init(Arc::default));
    let failed = |source| Error::pfs("waiting for signals", source);
    if !is_ignored(SIGHUP) {
        // It may come from the kernel and from the shell.
        flag::register(SIGHUP, Arc::clone(&asked)).map_err(failed)?;
    }
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that the first signal finds the flag down and only raises it.
        flag::register_conditional_shutdown(signal, i32::from(EXIT_CODE), Arc::clone(&asked))
            .map_err(failed)?;
        flag::register(signal, Arc::clone(&asked)).map_err(failed)?;
    }
    Ok(asked)
}

/// Asks as Ctrl-C does; false where nobody watches for that.
pub fn ask() -> bool {
    let Some(asked) = ASKED.get() else { return false };
    asked.store(true, Ordering::Relaxed);
    true
}

/// Whether this program was started with the signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Fails with "interrupted" once `asked` is true.
pub fn check(asked: &AtomicBool) -> Result<()> {
    if asked.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::TimedOut, "measuring", "interrupted"));
    }
    Ok(())
}

/// Whether this program was asked to stop while it watched for that.
pub fn came() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}
