//! [`Lease`]: which controller governs the store, and until when. Grants, renewals, expiry,
//! fencing: pure bookkeeping with the time given by the caller, [`crate::capacity_lease`].

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidepool_proto::control_page::LeaseState;
use tidepool_proto::{Error, ErrorKind, Result};

/// A controller that governs, or governed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Number of its attachment.
    pub fence: u64,
    /// Its process.
    pub process_id: u32,
    /// When it attached.
    pub since: Instant,
    /// When it was heard last.
    pub heard: Instant,
    /// How long it counts as alive without a message or heartbeat.
    pub lease: Duration,
    /// Its process is known to have ended, so that another may take over before the lease is over.
    pub ended: bool,
}

impl Holder {
    /// When it counts as dead unless it is heard before.
    pub fn until(&self) -> Instant {
        self.heard + self.lease
    }
}

/// A controller that should attach, and has not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Awaited {
    since: Instant,
    lease: Duration,
}

/// The lease of a store.
#[derive(Debug)]
pub struct Lease {
    holder: Option<Holder>,
    awaited: Option<Awaited>,
    state: LeaseState,
    last_fence: u64,
    /// Times a controller attached.
    pub attachments: u64,
    /// Times the lease ran out.
    pub expirations: u64,
    /// Messages refused because another controller governs.
    pub refusals: u64,
}

impl Default for Lease {
    fn default() -> Self {
        // Fences of an earlier node at the same socket must mean nothing here.
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let last_fence = u64::try_from(epoch.as_micros()).unwrap_or(0);
        let (holder, awaited, state) = (None, None, LeaseState::Never);
        Lease { holder, awaited, state, last_fence, attachments: 0, expirations: 0, refusals: 0 }
    }
}

impl Lease {
    /// State as of the last call.
    pub fn state(&self) -> LeaseState {
        self.state
    }

    /// Who governs, or governed last.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// When the lease runs out, if somebody governs or is expected to.
    pub fn until(&self) -> Option<Instant> {
        match self.state {
            LeaseState::Governed => self.holder.map(|holder| holder.until()),
            LeaseState::Never | LeaseState::Released => {
                self.awaited.map(|awaited| awaited.since + awaited.lease)
            }
            LeaseState::Expired => None,
        }
    }

    /// How long the lease is that [`Lease::until`] tells the end of.
    pub fn length(&self) -> Option<Duration> {
        match self.state {
            LeaseState::Governed => self.holder.map(|holder| holder.lease),
            _ => self.awaited.map(|awaited| awaited.lease),
        }
    }

    /// From `now` on a controller should govern: one that has not attached within `lease` is as
    /// good as silent. Changes nothing where one governs or is expected already.
    pub fn expect(&mut self, lease: Duration, now: Instant) {
        if self.awaited.is_none() && self.state != LeaseState::Governed {
            self.awaited = Some(Awaited { since: now, lease });
        }
    }

    /// Takes a message of a controller at `now`: attaches where `fence` is 0, renews otherwise.
    /// A lease that ran out may be renewed by its holder as long as nobody else took it. Returns
    /// the fence in force; refuses with the name of the controller that governs.
    pub fn grant(
        &mut self,
        fence: u64,
        process_id: u32,
        lease: Duration,
        now: Instant,
    ) -> Result<u64> {
        let granted = self.check(fence, process_id, now).inspect_err(|_| self.refusals += 1)?;
        if let Some(holder) = granted {
            self.holder = Some(Holder { heard: now, lease, ended: false, ..holder });
        } else {
            self.last_fence += 1;
            self.attachments += 1;
            let fence = self.last_fence;
            let (since, heard, ended) = (now, now, false);
            self.holder = Some(Holder { fence, process_id, since, heard, lease, ended });
        }
        self.state = LeaseState::Governed;
        self.awaited = None;
        Ok(self.holder.as_ref().map_or(0, |holder| holder.fence))
    }

    /// The holder that renews, `None` for a new one.
    fn check(&self, fence: u64, process_id: u32, now: Instant) -> Result<Option<Holder>> {
        let holder = self.holder.as_ref();
        if fence != 0 {
            return match holder {
                Some(holder) if holder.fence == fence => Ok(Some(*holder)),
                Some(holder) => Err(governed(holder, now)),
                None => Err(Error::new(
                    ErrorKind::InvalidInput,
                    OPERATION,
                    "this controller is not attached, or was taken away by command",
                )
                .remedy("attach again")),
            };
        }
        match holder {
            // The same process attaches anew after it lost its connection.
            Some(holder)
                if self.state == LeaseState::Governed
                    && now < holder.until()
                    && !holder.ended
                    && holder.process_id != process_id =>
            {
                Err(governed(holder, now))
            }
            _ => Ok(None),
        }
    }

    /// Takes a sign of life that the holder left at `at` without a message. A lease that ran out
    /// only comes back by a message.
    pub fn hear(&mut self, at: Instant) {
        let governing = self.state == LeaseState::Governed;
        if let Some(holder) = self.holder.as_mut().filter(|_| governing) {
            holder.heard = holder.heard.max(at);
        }
    }

    /// Makes up for `pause`, in which nobody could have heard the holder.
    pub fn forgive(&mut self, pause: Duration) {
        let governing = self.state == LeaseState::Governed;
        if let Some(holder) = self.holder.as_mut().filter(|_| governing) {
            holder.heard += pause;
        }
        if let Some(awaited) = &mut self.awaited {
            awaited.since += pause;
        }
    }

    /// Whether the lease ran out by `now`, that of a controller which never came included; true
    /// once.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.until().is_none_or(|until| now < until) {
            return false;
        }
        self.state = LeaseState::Expired;
        self.awaited = None;
        self.expirations += 1;
        true
    }

    /// Notes that the process of a controller ended. Its lease goes on, so that the next one has
    /// time to take over before the store falls.
    pub fn note_end(&mut self, process_id: u32) {
        if let Some(holder) = self.holder.as_mut().filter(|it| it.process_id == process_id) {
            holder.ended = true;
        }
    }

    /// Ends the lease, by command. No controller is expected any more.
    pub fn release(&mut self) {
        self.holder = None;
        self.awaited = None;
        if self.state != LeaseState::Never {
            self.state = LeaseState::Released;
        }
    }
}

const OPERATION: &str = "governing the store";

fn governed(holder: &Holder, now: Instant) -> Error {
    let since_s = now.saturating_duration_since(holder.since).as_secs();
    let detail = format!("process {} governs it, since {since_s} s", holder.process_id);
    Error::new(ErrorKind::InUse, OPERATION, detail)
        .remedy("stop that controller (`tidepool control set control off`), or leave it be")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_runs_out_once_and_comes_back_with_its_holder() {
        let mut lease = Lease::default();
        let now = Instant::now();
        assert_eq!(lease.state(), LeaseState::Never);
        let fence = lease.grant(0, 7, SECOND, now).unwrap();
        assert!(!lease.expire(now + SECOND / 2));
        lease.grant(fence, 7, SECOND, now + SECOND / 2).unwrap();
        assert!(!lease.expire(now + SECOND), "renewed");
        assert!(lease.expire(now + 2 * SECOND));
        assert!(!lease.expire(now + 3 * SECOND), "told once");
        assert_eq!(lease.state(), LeaseState::Expired);
        assert_eq!(lease.grant(fence, 7, SECOND, now + 9 * SECOND).unwrap(), fence);
        assert_eq!((lease.state(), lease.attachments), (LeaseState::Governed, 1));
    }

    #[test]
    fn signs_of_life_hold_a_lease_and_bring_none_back() {
        let mut lease = Lease::default();
        let now = Instant::now();
        lease.hear(now);
        assert_eq!(lease.state(), LeaseState::Never);
        let fence = lease.grant(0, 7, SECOND, now).unwrap();
        lease.hear(now + SECOND / 2);
        lease.hear(now);
        assert_eq!(lease.until(), Some(now + SECOND / 2 + SECOND), "the latest counts");
        assert!(lease.grant(0, 8, SECOND, now + SECOND).is_err(), "the first lives");
        assert!(lease.expire(now + 2 * SECOND));
        lease.hear(now + 2 * SECOND);
        assert_eq!(lease.state(), LeaseState::Expired);
        lease.grant(fence, 7, SECOND, now + 2 * SECOND).unwrap();
        assert_eq!(lease.state(), LeaseState::Governed);
    }

    #[test]
    fn time_in_which_nobody_listened_is_no_silence() {
        let mut lease = Lease::default();
        let now = Instant::now();
        lease.forgive(SECOND);
        lease.grant(0, 7, SECOND, now).unwrap();
        lease.forgive(3 * SECOND);
        assert!(!lease.expire(now + 3 * SECOND));
        assert!(lease.expire(now + 4 * SECOND), "a lease of its own after the pause");
        lease.forgive(9 * SECOND);
        assert_eq!(lease.state(), LeaseState::Expired, "what ran out comes back by a message");
    }

    #[test]
    fn a_second_controller_is_told_of_the_first() {
        let mut lease = Lease::default();
        let now = Instant::now();
        let first = lease.grant(0, 7, SECOND, now).unwrap();
        let error = lease.grant(0, 8, SECOND, now + SECOND / 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(error.to_string().contains("process 7"), "{error}");
        assert_eq!(lease.refusals, 1);
        let second = lease.grant(0, 8, SECOND, now + 2 * SECOND).unwrap();
        assert_ne!(first, second, "what ran out may be taken over");
        let error = lease.grant(first, 7, SECOND, now + 2 * SECOND).unwrap_err();
        assert!(error.to_string().contains("process 8"), "the first is fenced off: {error}");
        assert_ne!(lease.grant(0, 8, SECOND, now + 2 * SECOND).unwrap(), second, "the same again");
    }

    #[test]
    fn the_next_takes_over_from_one_that_ended() {
        let mut lease = Lease::default();
        let now = Instant::now();
        let first = lease.grant(0, 7, SECOND, now).unwrap();
        lease.note_end(6);
        assert!(lease.grant(0, 8, SECOND, now).is_err(), "somebody else ended");
        lease.note_end(7);
        assert!(!lease.expire(now + SECOND / 2), "the store waits for the next one");
        assert_ne!(lease.grant(0, 8, SECOND, now + SECOND / 2).unwrap(), first);
    }

    #[test]
    fn a_released_controller_must_attach_again() {
        let mut lease = Lease::default();
        let now = Instant::now();
        lease.release();
        assert_eq!(lease.state(), LeaseState::Never, "nobody was there");
        let fence = lease.grant(0, 7, SECOND, now).unwrap();
        lease.release();
        assert_eq!((lease.state(), lease.until()), (LeaseState::Released, None));
        let error = lease.grant(fence, 7, SECOND, now).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(!lease.expire(now + 9 * SECOND));
    }

    #[test]
    fn a_controller_that_never_comes_is_as_good_as_silent() {
        let now = Instant::now();
        let mut lease = Lease::default();
        assert!(!lease.expire(now + 9 * SECOND), "nobody was expected");
        lease.expect(SECOND, now);
        lease.expect(SECOND, now + SECOND / 2);
        assert_eq!(lease.until(), Some(now + SECOND), "expected once");
        lease.forgive(SECOND);
        assert!(!lease.expire(now + SECOND) && lease.expire(now + 2 * SECOND));
        assert_eq!((lease.state(), lease.expirations), (LeaseState::Expired, 1));
        assert!(!lease.expire(now + 9 * SECOND), "told once");
        lease.grant(0, 7, SECOND, now + 9 * SECOND).unwrap();
        assert_eq!(lease.until(), Some(now + 10 * SECOND), "who comes late governs");
    }

    #[test]
    fn who_is_expected_has_a_lease_to_come_and_no_longer_when_control_ends() {
        let now = Instant::now();
        let mut lease = Lease::default();
        lease.expect(SECOND, now);
        lease.grant(0, 7, 2 * SECOND, now).unwrap();
        assert!(!lease.expire(now + SECOND), "it came");
        lease.release();
        assert!(!lease.expire(now + 9 * SECOND));
        lease.expect(SECOND, now);
        assert!(lease.expire(now + SECOND), "control is on again, and nobody comes");
        lease.expect(SECOND, now);
        lease.release();
        assert!(!lease.expire(now + 9 * SECOND), "nobody should come any more");
    }

    #[test]
    fn fences_of_another_node_mean_nothing() {
        let mut lease = Lease::default();
        assert!(lease.grant(1, 7, SECOND, Instant::now()).is_err());
    }
}
