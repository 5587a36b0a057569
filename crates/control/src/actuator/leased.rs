//! [`LeasedStore`]: a store of another maker below a ceiling that is leased from outside the node.
//!
//! The node keeps the leases and hands them to its controller, for which a leased ceiling is the
//! most that the store may hold. A lease ends here by itself too: a node that is gone holds no
//! store down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_control_policy::StoreState;
use tidepool_proto::Result;
use tidepool_proto::control::{CeilingLease, ceiling_within};

use super::{Actuator, LimitBefore, LimitWitness, Resized};

/// Ceilings of other stores that are leased at present.
#[derive(Debug, Default)]
pub struct LeasedCeilings(Mutex<Vec<Leased>>);

#[derive(Debug)]
struct Leased {
    store: String,
    ceiling_bytes: u64,
    until: Instant,
}

impl LeasedCeilings {
    /// These are leased from `now` on, and no others.
    pub fn replace(&self, ceilings: &[CeilingLease], now: Instant) {
        let leased = ceilings.iter().map(|it| Leased {
            store: it.store.clone(),
            ceiling_bytes: it.ceiling_bytes,
            until: now + Duration::from_millis(it.lease_ms),
        });
        let leased = leased.collect();
        *self.0.lock() = leased;
    }

    /// Whether one is leased at `now`, of whatever store.
    pub fn is_any(&self, now: Instant) -> bool {
        self.0.lock().iter().any(|leased| now < leased.until)
    }

    fn of(&self, store: &str, now: Instant) -> Option<u64> {
        let leased = self.0.lock();
        let found = leased.iter().find(|leased| leased.store == store && now < leased.until);
        found.map(|leased| leased.ceiling_bytes)
    }
}

/// A store below the ceiling that is leased of it, if one is.
pub struct LeasedStore {
    store: Arc<dyn Actuator>,
    ceilings: Arc<LeasedCeilings>,
}

impl LeasedStore {
    /// Holds `store` below its ceiling among `ceilings`.
    pub fn new(store: Arc<dyn Actuator>, ceilings: Arc<LeasedCeilings>) -> LeasedStore {
        LeasedStore { store, ceilings }
    }
}

impl Actuator for LeasedStore {
    fn name(&self) -> &str {
        self.store.name()
    }

    /// Its most is the ceiling where one is leased, and never below its guaranteed part. What
    /// cannot go now is asked back all the same: it may go later, and no more comes meanwhile.
    fn state(&self) -> Result<StoreState> {
        let mut state = self.store.state()?;
        state.capacity_configured_bytes = state.capacity_max_bytes;
        if let Some(ceiling_bytes) = self.ceilings.of(self.store.name(), Instant::now()) {
            let least = state.capacity_min_bytes;
            state.capacity_max_bytes =
                ceiling_within(ceiling_bytes, least, state.capacity_max_bytes);
            state.is_leased = state.capacity_max_bytes < state.capacity_configured_bytes;
        }
        Ok(state)
    }

    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized> {
        self.store.resize(capacity_bytes, deadline)
    }

    fn keeps(&self) -> &'static str {
        self.store.keeps()
    }

    fn expect(&self, capacity_bytes: u64) {
        self.store.expect(capacity_bytes);
    }

    fn lease(&self) -> Option<Duration> {
        self.store.lease()
    }

    fn limit_before(&self) -> Option<LimitBefore> {
        self.store.limit_before()
    }

    fn adopt_limit(&self, left: LimitBefore) {
        self.store.adopt_limit(left);
    }

    fn on_limit(&self, witness: LimitWitness) {
        self.store.on_limit(witness);
    }

    fn put_back(&self) -> Result<()> {
        self.store.put_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(StoreState);

    impl Actuator for Fixed {
        fn name(&self) -> &'static str {
            "cache"
        }

        fn state(&self) -> Result<StoreState> {
            Ok(self.0.clone())
        }

        fn resize(&self, capacity_bytes: u64, _: Duration) -> Result<Resized> {
            Ok(Resized { resident_bytes: capacity_bytes, ..Resized::default() })
        }
    }

    fn most(held_bytes: u64, ceilings: &[(&str, u64, u64)]) -> (u64, bool) {
        let (capacity_min_bytes, capacity_max_bytes) = (10, 100);
        let state = StoreState {
            capacity_min_bytes,
            capacity_max_bytes,
            held_bytes,
            ..StoreState::default()
        };
        let leased = Arc::new(LeasedCeilings::default());
        let lease = |&(store, ceiling_bytes, lease_ms): &(&str, u64, u64)| CeilingLease {
            store: store.into(),
            ceiling_bytes,
            lease_ms,
            ..CeilingLease::default()
        };
        leased.replace(&ceilings.iter().map(lease).collect::<Vec<_>>(), Instant::now());
        let state = LeasedStore::new(Arc::new(Fixed(state)), leased).state().unwrap();
        assert_eq!(state.capacity_configured_bytes, 100);
        (state.capacity_max_bytes, state.is_leased)
    }

    #[test]
    fn a_leased_ceiling_is_the_most_of_its_store_within_its_bounds() {
        assert_eq!(most(0, &[]), (100, false));
        assert_eq!(most(0, &[("other", 20, 60_000)]), (100, false), "of another one");
        assert_eq!(most(0, &[("other", 20, 60_000), ("cache", 40, 60_000)]), (40, true));
        assert_eq!(most(0, &[("cache", 0, 60_000)]), (10, true), "the guaranteed part stays");
        assert_eq!(most(30, &[("cache", 0, 60_000)]), (10, true), "what is held is asked back");
        assert_eq!(most(0, &[("cache", u64::MAX, 60_000)]), (100, false), "it never raises");
    }

    #[test]
    fn a_lease_ends_by_itself() {
        assert_eq!(most(0, &[("cache", 40, 0)]), (100, false));
    }
}
