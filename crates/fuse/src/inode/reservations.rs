//! [`Reservations`]: what is kept ready for a request that was answered with `ESTALE`. The kernel
//! looks the name up and asks once more, and not a third time. Reservations end by themselves.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How long the second request is waited for: longer than a busy machine delays it.
const RESERVED: Duration = Duration::from_secs(5);

/// The end of the wait for a request.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    until: Instant,
}

impl Reservation {
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
    /// When ended reservations are removed next.
    next_sweep: Reservation,
}

impl<K> Default for Reservations<K> {
    fn default() -> Self {
        Reservations { by_key: HashMap::new(), next_sweep: Reservation::begin() }
    }
}

impl<K: Eq + Hash> Reservations<K> {
    pub fn add(&mut self, key: K, reservation: Reservation) {
        if !self.next_sweep.lasts() {
            self.by_key.retain(|_, earlier| earlier.lasts());
            self.next_sweep = Reservation::begin();
        }
        self.by_key.insert(key, reservation);
    }

    /// The reservation of `key`, if it lasts.
    pub fn get(&self, key: &K) -> Option<Reservation> {
        self.by_key.get(key).copied().filter(Reservation::lasts)
    }

    /// Removes the reservation of `key`. Returns whether it lasted.
    pub fn take(&mut self, key: &K) -> bool {
        self.by_key.remove(key).is_some_and(|reservation| reservation.lasts())
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}
