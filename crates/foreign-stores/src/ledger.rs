//! The account that an actuator keeps of its store between two commands: bounds, the last capacity,
//! bytes under way, bytes that did not come back, and the release rate it measured.
//!
//! It asks no store itself, and counts only bytes that the caller saw with the operating system.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_control_policy::{StoreSpeed, StoreState};
use tidepool_proto::size::ByteSize;
use tidepool_proto::{Error, ErrorKind, Result};

use tidepool_control::actuator::Resized;

/// A store that returns at least this much a second, and all that was asked, is fast.
const FAST_BYTES_PER_S: u64 = 512 << 20;
/// Smaller releases say nothing about the rate.
const LEARN_BYTES_MIN: u64 = 16 << 20;

/// Bounds of a store, as configured.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub capacity_min_bytes: u64,
    pub capacity_max_bytes: u64,
}

impl Bounds {
    /// Refuses bounds that no capacity meets.
    pub fn new(name: &str, least: ByteSize, most: ByteSize) -> Result<Self> {
        let wrong = if most.0 == 0 {
            "`capacity_max_bytes` is 0"
        } else if least.0 > most.0 {
            "`capacity_min_bytes` is above `capacity_max_bytes`"
        } else {
            return Ok(Bounds { capacity_min_bytes: least.0, capacity_max_bytes: most.0 });
        };
        Err(Error::new(ErrorKind::InvalidInput, format!("opening store `{name}`"), wrong)
            .remedy("correct the entry of the store"))
    }

    /// The capacity within the bounds that is nearest to `capacity_bytes`.
    pub fn clamp(&self, capacity_bytes: u64) -> u64 {
        capacity_bytes.clamp(self.capacity_min_bytes, self.capacity_max_bytes)
    }
}

#[derive(Debug)]
struct Account {
    capacity_bytes: u64,
    outstanding_bytes: u64,
    /// Bytes above the capacity that the last command did not bring back.
    stuck_bytes: u64,
    release_bytes_per_s: u64,
    speed: StoreSpeed,
    failed: bool,
}

/// The account of one store.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub bounds: Bounds,
    block_bytes: u64,
    account: Mutex<Account>,
}

impl Ledger {
    /// An account that starts with the capacity the store has, and the speed of its kind.
    pub fn new(bounds: Bounds, capacity_bytes: u64, speed: StoreSpeed, block_bytes: u64) -> Self {
        let account = Account {
            capacity_bytes,
            outstanding_bytes: 0,
            stuck_bytes: 0,
            release_bytes_per_s: 0,
            speed,
            failed: false,
        };
        Ledger { bounds, block_bytes, account: Mutex::new(account) }
    }

    /// Runs one command: `resident` reads what the store holds with the operating system, `change`
    /// brings it to the capacity it is given, within the bounds. Being late is no error.
    pub fn resize(
        &self,
        capacity_bytes: u64,
        deadline: Instant,
        resident: impl Fn() -> Result<u64>,
        change: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Resized> {
        let started = Instant::now();
        let capacity_bytes = self.bounds.clamp(capacity_bytes);
        let result = resident().and_then(|before| {
            let mut account = self.account.lock();
            account.capacity_bytes = capacity_bytes;
            account.outstanding_bytes = before.saturating_sub(capacity_bytes);
            drop(account);
            let changed = match change(capacity_bytes) {
                Err(late) if late.kind() == ErrorKind::TimedOut && Instant::now() >= deadline => {
                    Ok(())
                }
                changed => changed,
            };
            // What came back came back, whatever the end was.
            let after = resident()?;
            let freed = before.saturating_sub(after);
            self.learn(before, after, capacity_bytes, started.elapsed());
            changed.map(|()| Resized {
                freed_bytes: freed,
                resident_bytes: after,
                elapsed: started.elapsed(),
            })
        });
        let mut account = self.account.lock();
        account.outstanding_bytes = 0;
        account.failed = result.is_err();
        result
    }

    /// Another process took the place of the server, with a capacity that nobody asked for.
    pub fn found(&self, capacity_bytes: u64) {
        let mut account = self.account.lock();
        account.capacity_bytes = self.bounds.clamp(capacity_bytes);
        account.stuck_bytes = 0;
    }

    fn learn(&self, before: u64, after: u64, capacity_bytes: u64, elapsed: Duration) {
        let mut account = self.account.lock();
        account.stuck_bytes = after.saturating_sub(capacity_bytes);
        let asked = before.saturating_sub(capacity_bytes);
        if asked < LEARN_BYTES_MIN {
            return;
        }
        let freed = before.saturating_sub(after);
        let rate = (freed as f64 / elapsed.as_secs_f64().max(1e-6)) as u64;
        account.release_bytes_per_s = match account.release_bytes_per_s {
            0 => rate,
            known => known / 2 + rate / 2,
        };
        let whole = freed >= asked - asked / 16;
        let fast = whole && account.release_bytes_per_s >= FAST_BYTES_PER_S;
        account.speed = if fast { StoreSpeed::Fast } else { StoreSpeed::Slow };
    }

    /// The state to report; `resident_bytes` is what was last seen, `failed` that nobody answers.
    pub fn state(&self, resident_bytes: u64, failed: bool) -> StoreState {
        let account = self.account.lock();
        let excess = resident_bytes.saturating_sub(account.capacity_bytes);
        StoreState {
            resident_bytes,
            capacity_bytes: account.capacity_bytes,
            capacity_min_bytes: self.bounds.capacity_min_bytes,
            capacity_max_bytes: self.bounds.capacity_max_bytes,
            held_bytes: account.stuck_bytes.min(excess),
            release_bytes_per_s: account.release_bytes_per_s,
            speed: account.speed,
            block_bytes: self.block_bytes,
            outstanding_bytes: account.outstanding_bytes,
            failed: failed || account.failed,
            ..StoreState::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    fn ledger(speed: StoreSpeed) -> Ledger {
        let bounds = Bounds::new("s", ByteSize(10 << 20), ByteSize(1 << 30)).unwrap();
        Ledger::new(bounds, 1 << 30, speed, 1)
    }

    #[test]
    fn only_bytes_seen_count_and_the_rest_is_held() {
        let ledger = ledger(StoreSpeed::Fast);
        let resident = Cell::new(1_u64 << 30);
        let change = |capacity| {
            assert_eq!(capacity, 512 << 20);
            resident.set(768 << 20);
            Ok(())
        };
        let done = ledger.resize(512 << 20, soon(), || Ok(resident.get()), change).unwrap();
        assert_eq!((done.freed_bytes, done.resident_bytes), (256 << 20, 768 << 20));
        let state = ledger.state(768 << 20, false);
        assert_eq!(state.held_bytes, 256 << 20);
        assert_eq!(state.speed, StoreSpeed::Slow);
        assert_eq!(state.outstanding_bytes, 0);
        assert_eq!(ledger.state(600 << 20, false).held_bytes, 88 << 20, "the late part");
    }

    #[test]
    fn commands_keep_the_bounds() {
        let ledger = ledger(StoreSpeed::Slow);
        for (asked, given) in [(0, 10 << 20), (u64::MAX, 1 << 30)] {
            let seen = Cell::new(0);
            let keep = |capacity| {
                seen.set(capacity);
                Ok(())
            };
            ledger.resize(asked, soon(), || Ok(0), keep).unwrap();
            assert_eq!(seen.get(), given);
        }
    }

    #[test]
    fn a_failed_command_fails_the_store_until_one_succeeds() {
        let ledger = ledger(StoreSpeed::Slow);
        let refuse = |_| Err(Error::new(ErrorKind::TimedOut, "asking", ""));
        assert!(ledger.resize(0, soon(), || Ok(0), refuse).is_err());
        assert!(ledger.state(0, false).failed);
        ledger.resize(0, soon(), || Ok(0), |_| Ok(())).unwrap();
        assert!(!ledger.state(0, false).failed);
        assert!(ledger.state(0, true).failed);
    }

    #[test]
    fn impossible_bounds_are_refused() {
        for (least, most) in [(2, 1), (0, 0)] {
            let refused = Bounds::new("s", ByteSize(least), ByteSize(most)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        }
    }
}
