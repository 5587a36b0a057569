//! Waiting for memory that a store gives back by itself, some time after it was told to.
//!
//! It tells the store nothing, and claims nothing: the caller looks at the memory again.

use std::time::{Duration, Instant};

use tidepool_proto::Result;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until `resident` shows no more than `capacity_bytes`, it has not fallen for `patience`, or
/// `deadline` has passed.
pub(crate) fn wait(
    resident: impl Fn() -> Result<u64>,
    capacity_bytes: u64,
    patience: Duration,
    deadline: Instant,
) -> Result<()> {
    let mut lowest = resident()?;
    let mut progress = Instant::now();
    while progress.elapsed() < patience && Instant::now() < deadline {
        let present = resident()?;
        if present <= capacity_bytes {
            break;
        }
        if present < lowest {
            (lowest, progress) = (present, Instant::now());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tidepool_proto::{Error, ErrorKind};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn it_waits_while_memory_falls_and_no_longer() {
        let left = Cell::new(5);
        let fall = || {
            left.set(left.get() - 1);
            Ok(left.get())
        };
        wait(fall, 2, LONG, Instant::now() + LONG).unwrap();
        assert_eq!(left.get(), 2);
    }

    #[test]
    fn memory_that_stays_ends_the_wait() {
        let (short, now) = (Duration::from_millis(1), Instant::now());
        wait(|| Ok(5), 2, short, now + LONG).unwrap();
        wait(|| Ok(5), 2, LONG, now + short).unwrap();
        let ended = || Err(Error::new(ErrorKind::StoreUnavailable, "reading", ""));
        assert!(wait(ended, 2, LONG, now + LONG).is_err());
    }
}
