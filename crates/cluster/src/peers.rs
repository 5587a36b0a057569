//! Which peer to ask, by what was measured: rates, latencies, and a breaker for each.

use std::time::Duration;

use crate::{NodeName, Time};

/// Settings of the choice of a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerSettings {
    /// Makes the choices between equals.
    pub seed: u64,
    /// Failures in a row that open the breaker.
    pub failures_max: u32,
    /// Pause of a breaker that opened, doubled with each probe that fails.
    pub pause: Duration,
    /// Longest pause of a breaker.
    pub pause_max: Duration,
    /// Transfers before a rate counts as measured.
    pub measured_transfers: u32,
    /// How much faster than the peer the PFS must be to be preferred.
    pub pfs_advantage: f64,
    /// One in so many reads goes to the peer though the PFS is preferred.
    pub probe_every: u32,
}

/// State of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// The peer is asked.
    Closed,
    /// The peer is not asked.
    Open,
    /// One request finds out whether the peer answers again.
    HalfOpen,
}

/// A peer as measured.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerView {
    /// Its name.
    pub name: NodeName,
    /// Rate of transfers, bytes a second; 0 while nothing has been measured.
    pub rate_bytes_per_s: f64,
    /// Time of a small transfer; zero while nothing has been measured.
    pub latency: Duration,
    /// Bytes that are asked for and have not come.
    pub in_flight_bytes: u64,
    /// State of its breaker.
    pub breaker: Breaker,
}

/// What was measured of the peers and of the PFS.
pub struct Peers;

#[expect(unused_variables, reason = "being written")]
impl Peers {
    /// Nothing measured.
    #[must_use]
    pub fn new(settings: PeerSettings) -> Self {
        todo!()
    }

    /// The candidate from which the answer is expected first; never one whose breaker is open.
    pub fn choose(&mut self, now: Time, candidates: &[NodeName]) -> Option<NodeName> {
        todo!()
    }

    /// A read of `bytes` from the peer began.
    pub fn began(&mut self, now: Time, peer: &NodeName, bytes: u64) {
        todo!()
    }

    /// A read ended well.
    pub fn succeeded(&mut self, now: Time, peer: &NodeName, bytes: u64, took: Duration) {
        todo!()
    }

    /// A request ended without a transfer to measure: it was refused, or filled from the PFS first.
    pub fn answered(&mut self, now: Time, peer: &NodeName, bytes: u64) {
        todo!()
    }

    /// A read of `bytes` failed; `timed_out`: the peer kept silent, which opens the breaker at
    /// once.
    pub fn failed(&mut self, now: Time, peer: &NodeName, bytes: u64, timed_out: bool) {
        todo!()
    }

    /// A read from the PFS ended well.
    pub fn pfs_read(&mut self, bytes: u64, took: Duration) {
        todo!()
    }

    /// Whether the PFS is the better choice for `bytes` than the peer.
    pub fn prefers_pfs(&mut self, peer: &NodeName, bytes: u64) -> bool {
        todo!()
    }

    /// All peers that were asked, by name.
    #[must_use]
    pub fn view(&self) -> Vec<PeerView> {
        todo!()
    }
}

impl Default for PeerSettings {
    fn default() -> Self {
        todo!()
    }
}
