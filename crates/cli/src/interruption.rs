//! What Ctrl-C and SIGTERM mean to commands that take long: the first asks to stop and leave things
//! tidy, the second ends the program at once. Either way it returns 130.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use tidepool_proto::{Error, ErrorKind, Result};

/// The exit code of whoever was interrupted, as shells have it for SIGINT.
pub const EXIT_CODE: u8 = 130;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Turns true at the first Ctrl-C or SIGTERM from now on. Until this is called both end the
/// program as usual.
pub fn watch() -> Result<Arc<AtomicBool>> {
    let asked = Arc::clone(ASKED.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        let failed = |source| Error::pfs("waiting for signals", source);
        // Registered first, so that the first signal finds the flag down and only raises it.
        flag::register_conditional_shutdown(signal, i32::from(EXIT_CODE), Arc::clone(&asked))
            .map_err(failed)?;
        flag::register(signal, Arc::clone(&asked)).map_err(failed)?;
    }
    Ok(asked)
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
