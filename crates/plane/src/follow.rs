//! [`Follow`]: which run of the job is followed, and since which number. Pure: the time is an
//! argument.
//!
//! One run is followed until its lease is over; others are refused meanwhile, so that two jobs that
//! run by mistake do not take turns. Within a run numbers rise; what is not above the last one is
//! old. When the lease is over, whoever comes next is followed: a number that was taken too high
//! keeps nobody out for longer than a lease.

use std::time::{Duration, Instant};

use crate::ceiling::{Ceiling, Refusal};

/// The run that is followed.
#[derive(Debug, Default)]
pub struct Follow {
    followed: Option<Followed>,
}

/// A ceiling that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// What it says.
    pub ceiling: Ceiling,
    /// When it is over.
    pub until: Instant,
}

impl Follow {
    /// What holds.
    pub fn followed(&self) -> Option<&Followed> {
        self.followed.as_ref()
    }

    /// Lease of what holds.
    pub fn lease_ms(&self) -> Option<u64> {
        self.followed.as_ref().map(|followed| followed.ceiling.lease_ms)
    }

    /// Whether a ceiling may take the place of what holds at `now`.
    pub fn check(&self, ceiling: &Ceiling, now: Instant) -> Result<(), Refusal> {
        let Some(followed) = self.followed.as_ref().filter(|it| now < it.until) else {
            return Ok(());
        };
        if followed.ceiling.plane != ceiling.plane {
            return Err(Refusal::Plane);
        }
        if ceiling.number <= followed.ceiling.number {
            return Err(Refusal::Number);
        }
        Ok(())
    }

    /// Goes by a ceiling from `now` on.
    pub fn take(&mut self, ceiling: Ceiling, now: Instant) {
        let until = now + Duration::from_millis(ceiling.lease_ms);
        self.followed = Some(Followed { ceiling, until });
    }

    /// Whether the lease ran out by `now`; true once.
    pub fn expire(&mut self, now: Instant) -> bool {
        let is_over = self.followed.as_ref().is_some_and(|followed| now >= followed.until);
        if is_over {
            self.followed = None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE_MS: u64 = 1000;
    const LEASE: Duration = Duration::from_millis(LEASE_MS);

    fn ceiling(plane: &str, number: u64) -> Ceiling {
        let (plane, policy) = (plane.to_owned(), String::new());
        Ceiling { plane, number, stores: Vec::new(), lease_ms: LEASE_MS, policy }
    }

    #[test]
    fn numbers_rise_within_a_run() {
        let (mut follow, now) = (Follow::default(), Instant::now());
        assert_eq!(follow.check(&ceiling("a", 7), now), Ok(()));
        follow.take(ceiling("a", 7), now);
        for number in [0, 6, 7] {
            assert_eq!(follow.check(&ceiling("a", number), now), Err(Refusal::Number));
        }
        assert_eq!(follow.check(&ceiling("a", 8), now), Ok(()));
    }

    #[test]
    fn another_run_waits_until_the_lease_is_over() {
        let (mut follow, now) = (Follow::default(), Instant::now());
        follow.take(ceiling("a", 7), now);
        assert_eq!(follow.check(&ceiling("b", 1), now + LEASE / 2), Err(Refusal::Plane));
        assert!(!follow.expire(now + LEASE / 2));
        assert_eq!(follow.check(&ceiling("b", 1), now + LEASE), Ok(()));
        assert!(follow.expire(now + LEASE) && !follow.expire(now + 2 * LEASE), "told once");
        assert_eq!(follow.followed(), None);
    }

    #[test]
    fn the_highest_number_keeps_nobody_out_for_longer_than_a_lease() {
        let (mut follow, now) = (Follow::default(), Instant::now());
        follow.take(ceiling("a", u64::MAX), now);
        assert_eq!(follow.check(&ceiling("a", 8), now), Err(Refusal::Number));
        assert_eq!(follow.check(&ceiling("a", 8), now + LEASE), Ok(()));
    }

    proptest! {
        #[test]
        fn of_any_ceilings_those_taken_rise_within_a_run_and_a_lease(
            steps in proptest::collection::vec(
                ("[ab]", prop_oneof![0..9_u64, Just(u64::MAX)], 0..1500_u64), 0..60),
        ) {
            let (mut follow, mut now) = (Follow::default(), Instant::now());
            let mut last: Option<(String, u64, Instant)> = None;
            for (plane, number, wait_ms) in steps {
                now += Duration::from_millis(wait_ms);
                let next = ceiling(&plane, number);
                if follow.check(&next, now).is_ok() {
                    if let Some((plane, number, at)) = last.filter(|it| now < it.2 + LEASE) {
                        prop_assert!(plane == next.plane && number < next.number, "at {:?}", at);
                    }
                    last = Some((plane, number, now));
                    follow.take(next, now);
                }
                prop_assert!(follow.followed().is_none_or(|it| it.until <= now + LEASE));
            }
        }
    }
}
