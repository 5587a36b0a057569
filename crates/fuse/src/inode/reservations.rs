//! What is kept ready for a request that was answered with `ESTALE`: the kernel looks the name up
//! and asks once more, and not a third time. Decides nothing; forgets by itself.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How long it is waited for that the kernel comes back. Longer than it is held up on a machine
/// that has too much to do.
const RESERVED: Duration = Duration::from_secs(5);

/// Until when a request is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    until: Instant,
}

impl Reservation {
    /// From now on.
    pub fn begin() -> Self {
        Reservation { until: Instant::now() + RESERVED }
    }

    /// Whether the request may still come.
    pub fn lasts(&self) -> bool {
        Instant::now() < self.until
    }
}

/// Reservations by what they are for.
#[derive(Debug)]
pub struct Reservations<K> {
    by_key: HashMap<K, Reservation>,
    /// Those that are over are dropped as seldom as they end.
    next_sweep: Reservation,
}

impl<K> Default for Reservations<K> {
    fn default() -> Self {
        Reservations { by_key: HashMap::new(), next_sweep: Reservation::begin() }
    }
}

impl<K: Eq + Hash> Reservations<K> {
    /// Adds one.
    pub fn add(&mut self, key: K, reservation: Reservation) {
        if !self.next_sweep.lasts() {
            self.by_key.retain(|_, earlier| earlier.lasts());
            self.next_sweep = Reservation::begin();
        }
        self.by_key.insert(key, reservation);
    }

    /// The one of `key`, if it lasts.
    pub fn get(&self, key: &K) -> Option<Reservation> {
        self.by_key.get(key).copied().filter(Reservation::lasts)
    }

    /// Ends the one of `key`; whether it lasted.
    pub fn take(&mut self, key: &K) -> bool {
        self.by_key.remove(key).is_some_and(|reservation| reservation.lasts())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}
