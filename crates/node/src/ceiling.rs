//! [`Ceiling`]: the most that the store may hold. The operator configures one, and somebody who
//! sees more than this node, such as the cluster plane, may lease a lower one for a while. Pure
//! bookkeeping with the time given by the caller, [`crate::capacity_lease`].
//!
//! A leased ceiling only ever lowers the configured one, never below the guaranteed part, and is
//! gone when its lease is over.

use std::time::{Duration, Instant};

use tidepool_proto::control::ceiling_within;

/// A ceiling that is leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// When it is over.
    pub until: Instant,
    /// Who leased it.
    pub source: String,
}

/// The most that the store may hold.
#[derive(Debug, Default)]
pub struct Ceiling {
    configured_bytes: u64,
    leased: Option<Leased>,
    /// Times a ceiling was leased, the same again included.
    pub leases: u64,
    /// Times a lease ran out.
    pub expirations: u64,
}

impl Ceiling {
    /// As configured.
    pub fn new(configured_bytes: u64) -> Ceiling {
        Ceiling { configured_bytes, ..Ceiling::default() }
    }

    /// What the operator configured, or set last.
    pub fn configured_bytes(&self) -> u64 {
        self.configured_bytes
    }

    /// The operator sets another most. A lease goes on below it.
    pub fn configure(&mut self, bytes: u64) {
        self.configured_bytes = bytes;
    }

    /// Leases a ceiling from `now` on, in place of one that is leased.
    pub fn lease(&mut self, asked_bytes: u64, lease: Duration, source: &str, now: Instant) {
        let until = now + lease;
        match &mut self.leased {
            // Most are the same again: no allocation.
            Some(leased) if leased.source == source => {
                (leased.asked_bytes, leased.until) = (asked_bytes, until);
            }
            _ => self.leased = Some(Leased { asked_bytes, until, source: source.to_owned() }),
        }
        self.leases += 1;
    }

    /// The ceiling that is leased.
    pub fn leased(&self) -> Option<&Leased> {
        self.leased.as_ref()
    }

    /// Bytes that the store may hold at most, of which `memory_min_bytes` are its in any case.
    pub fn in_force_bytes(&self, memory_min_bytes: u64) -> u64 {
        let asked = self.leased.as_ref().map_or(u64::MAX, |leased| leased.asked_bytes);
        ceiling_within(asked, memory_min_bytes, self.configured_bytes)
    }

    /// When the lease is over.
    pub fn until(&self) -> Option<Instant> {
        self.leased.as_ref().map(|leased| leased.until)
    }

    /// Whether a lease ran out by `now`; true once.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.until().is_none_or(|until| now < until) {
            return false;
        }
        self.leased = None;
        self.expirations += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_lowers_the_ceiling_until_it_is_over() {
        let (mut ceiling, now) = (Ceiling::new(100), Instant::now());
        assert!(!ceiling.expire(now + 9 * SECOND), "there is none");
        ceiling.lease(60, SECOND, "plane", now);
        assert_eq!((ceiling.in_force_bytes(10), ceiling.configured_bytes()), (60, 100));
        ceiling.lease(50, SECOND, "plane", now + SECOND / 2);
        assert!(!ceiling.expire(now + SECOND), "leased again");
        assert_eq!(ceiling.in_force_bytes(10), 50);
        assert!(ceiling.expire(now + 2 * SECOND));
        assert!(!ceiling.expire(now + 3 * SECOND), "told once");
        assert_eq!((ceiling.in_force_bytes(10), ceiling.leased()), (100, None));
        assert_eq!((ceiling.leases, ceiling.expirations), (2, 1));
    }

    #[test]
    fn the_operator_goes_first() {
        let (mut ceiling, now) = (Ceiling::new(100), Instant::now());
        ceiling.lease(60, SECOND, "plane", now);
        ceiling.configure(40);
        assert_eq!(ceiling.in_force_bytes(10), 40, "a lease never raises");
        ceiling.configure(80);
        assert_eq!(ceiling.in_force_bytes(10), 60, "and goes on");
        assert_eq!(ceiling.in_force_bytes(70), 70, "the guaranteed part stays");
        assert_eq!(ceiling.in_force_bytes(200), 80, "as far as there is one");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Lease(u64, u64),
        Configure(u64),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = || prop_oneof![Just(0), Just(u64::MAX), 0..200_u64, any::<u64>()];
        prop_oneof![
            (bytes(), 1..60_000_u64).prop_map(|(bytes, ms)| Step::Lease(bytes, ms)),
            bytes().prop_map(Step::Configure),
            (0..70_000_u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn whatever_is_leased_stays_within_bounds_and_ends(
            steps in proptest::collection::vec(step(), 0..40),
            least in 0..200_u64,
        ) {
            let (mut ceiling, mut now) = (Ceiling::new(100), Instant::now());
            let mut last_until = now;
            for step in steps {
                match step {
                    Step::Lease(bytes, ms) => {
                        ceiling.lease(bytes, Duration::from_millis(ms), "plane", now);
                        last_until = now + Duration::from_millis(ms);
                    }
                    Step::Configure(bytes) => ceiling.configure(bytes),
                    Step::Wait(ms) => now += Duration::from_millis(ms),
                }
                ceiling.expire(now);
                let (in_force, most) = (ceiling.in_force_bytes(least), ceiling.configured_bytes());
                prop_assert!(in_force <= most && in_force >= least.min(most));
                prop_assert!(now < last_until || in_force == most, "over, and still lower");
            }
            ceiling.expire(last_until.max(now));
            prop_assert_eq!(ceiling.in_force_bytes(least), ceiling.configured_bytes());
        }
    }
}
