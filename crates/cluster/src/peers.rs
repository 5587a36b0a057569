//! Which peer to ask, by what was measured: rates, latencies, and a breaker for each.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::random::Random;
use crate::{NodeName, Time};

/// Share of the latest small transfer in the average of latencies.
const LATENCY_WEIGHT: f64 = 0.2;
/// What a transfer adds to the rate leaves so much of all that came before: the latest 16 or so
/// tell it. Transfers that ran beside each other end together, so a few would tell nothing.
const RATE_KEPT: f64 = 15.0 / 16.0;
/// Transfers up to this size tell the latency, larger ones the rate.
const SMALL_BYTES: u64 = 64 << 10;
/// Size of a read when peers are compared: a block.
const TYPICAL_BYTES: u64 = 4 << 20;
/// Peers remembered at most, as many as a roster has.
const PEERS_MAX: usize = crate::nodelist::NODES_MAX;

/// Settings of the choice of a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerSettings {
    /// Makes the choices between equals.
    pub seed: u64,
    /// Failures in a row that open the breaker; a timeout opens it at once.
    pub failures_max: u32,
    /// Pause of a breaker that opened, doubled with each probe that fails.
    pub pause: Duration,
    /// Longest pause of a breaker.
    pub pause_max: Duration,
    /// Transfers before a rate counts as measured.
    pub measured_transfers: u32,
    /// How much faster than the peer the PFS must be to be preferred.
    pub pfs_advantage: f64,
    /// One in so many reads goes to the peer though the PFS is preferred, to notice change.
    pub probe_every: u32,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            failures_max: 3,
            pause: Duration::from_secs(1),
            pause_max: Duration::from_secs(30),
            measured_transfers: 8,
            pfs_advantage: 1.5,
            probe_every: 64,
        }
    }
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

/// Averages over transfers, the latest count most.
///
/// The rate is that of all transfers together: bytes by the time in which any was under way. What
/// one of eight beside each other reaches is an eighth of it, and says nothing of the way.
#[derive(Clone, Copy, Default)]
struct Measured {
    /// Bytes of larger transfers.
    bytes: f64,
    /// Seconds in which any of them was under way.
    busy_s: f64,
    /// End of the latest of them.
    ended: Option<Time>,
    /// Seconds of small ones.
    latency: Option<f64>,
    transfers: u32,
}

impl Measured {
    fn add(&mut self, now: Time, bytes: u64, took: Duration) {
        if bytes <= SMALL_BYTES {
            let new = took.as_secs_f64().max(1e-6);
            let average = |old: f64| old + LATENCY_WEIGHT * (new - old);
            self.latency = Some(self.latency.map_or(new, average));
        } else {
            // What is before the end of another one is counted already.
            let alone = self.ended.map_or(took, |ended| took.min(now.saturating_sub(ended)));
            let seconds = alone.as_secs_f64().max(1e-6);
            let latency = self.latency.unwrap_or(0.0).min(seconds / 2.0);
            self.bytes = self.bytes * RATE_KEPT + bytes as f64;
            self.busy_s = self.busy_s * RATE_KEPT + seconds - latency;
            self.ended = self.ended.max(Some(now));
        }
        self.transfers = self.transfers.saturating_add(1);
    }

    /// Bytes a second of larger transfers.
    fn rate(&self) -> Option<f64> {
        (self.busy_s > 0.0).then(|| self.bytes / self.busy_s)
    }

    /// Seconds that `bytes` take, as far as known.
    fn seconds(&self, bytes: u64) -> Option<f64> {
        let rate = self.rate();
        if rate.is_none() && self.latency.is_none() {
            return None;
        }
        let transfer = rate.map_or(0.0, |rate| bytes as f64 / rate);
        Some(self.latency.unwrap_or(0.0) + transfer)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed,
    Open {
        until: Time,
        pause: Duration,
    },
    /// A probe is under way, or may be sent.
    HalfOpen {
        since: Option<Time>,
        pause: Duration,
    },
}

struct Peer {
    measured: Measured,
    in_flight_bytes: u64,
    failures: u32,
    state: State,
    /// Reads for which the PFS was preferred since the last that was not.
    passed_over: u32,
}

/// What was measured of the peers and of the PFS.
pub struct Peers {
    settings: PeerSettings,
    peers: BTreeMap<NodeName, Peer>,
    pfs: Measured,
    random: Random,
}

impl Peers {
    /// Nothing measured.
    #[must_use]
    pub fn new(settings: PeerSettings) -> Self {
        let random = Random::new(settings.seed);
        Self { settings, peers: BTreeMap::new(), pfs: Measured::default(), random }
    }

    /// The candidate from which the answer is expected first; never one whose breaker is open.
    ///
    /// Peers that were never asked come first. A breaker whose pause is over lets one request
    /// through, before others are tried, until that one has ended.
    pub fn choose(&mut self, now: Time, candidates: &[NodeName]) -> Option<NodeName> {
        let mut best: Option<(&NodeName, f64)> = None;
        let mut equals = 1;
        for name in candidates {
            let expected = match self.peers.get_mut(name) {
                Some(peer) => match peer.expected_seconds(now, &self.settings) {
                    Some(expected) => expected,
                    None => continue,
                },
                None => 0.0,
            };
            match best {
                Some((_, least)) if expected > least => {}
                Some((_, least)) if expected == least => {
                    equals += 1;
                    if self.random.below(equals) == 0 {
                        best = Some((name, expected));
                    }
                }
                _ => {
                    equals = 1;
                    best = Some((name, expected));
                }
            }
        }
        let (name, _) = best?;
        if let Some(peer) = self.peers.get_mut(name)
            && let State::HalfOpen { since, .. } = &mut peer.state
        {
            *since = Some(now);
        }
        Some(name.clone())
    }

    /// A read of `bytes` from the peer began.
    pub fn began(&mut self, now: Time, peer: &NodeName, bytes: u64) {
        let _ = now;
        self.peer(peer).in_flight_bytes += bytes;
    }

    /// A read ended well.
    pub fn succeeded(&mut self, now: Time, peer: &NodeName, bytes: u64, took: Duration) {
        let peer = self.peer(peer);
        peer.in_flight_bytes = peer.in_flight_bytes.saturating_sub(bytes);
        peer.measured.add(now, bytes, took);
        peer.failures = 0;
        peer.state = State::Closed;
    }

    /// A read of `bytes` failed; `timed_out`: the peer kept silent, which opens the breaker at
    /// once. That a peer does not hold a block is no failure: [`Self::succeeded`] with the bytes
    /// that came, or [`Self::refused`].
    pub fn failed(&mut self, now: Time, peer: &NodeName, bytes: u64, timed_out: bool) {
        let failures_max = self.settings.failures_max;
        let (pause, pause_max) = (self.settings.pause, self.settings.pause_max);
        let peer = self.peer(peer);
        peer.in_flight_bytes = peer.in_flight_bytes.saturating_sub(bytes);
        peer.failures = peer.failures.saturating_add(1);
        match peer.state {
            State::HalfOpen { pause, .. } => {
                let pause = (pause * 2).min(pause_max);
                peer.state = State::Open { until: now + pause, pause };
            }
            State::Closed if timed_out || peer.failures >= failures_max => {
                peer.state = State::Open { until: now + pause, pause };
            }
            // Reads that began before it opened.
            State::Open { .. } | State::Closed => {}
        }
    }

    /// The peer answered, but with nothing to measure: it has not what was asked for, or it was a
    /// small question. It lives.
    pub fn refused(&mut self, peer: &NodeName, bytes: u64) {
        let peer = self.peer(peer);
        peer.in_flight_bytes = peer.in_flight_bytes.saturating_sub(bytes);
        peer.failures = 0;
        peer.state = State::Closed;
    }

    /// The peer is another process now: nothing that was measured holds.
    pub fn forget(&mut self, peer: &NodeName) {
        self.peers.remove(peer);
    }

    /// A read from the PFS ended well.
    pub fn pfs_read(&mut self, now: Time, bytes: u64, took: Duration) {
        self.pfs.add(now, bytes, took);
    }

    /// Whether the PFS is the better choice for `bytes` than the peer: only when both have been
    /// measured, and but for one read in [`PeerSettings::probe_every`]. What this node has under
    /// way does not count: its own reads must not drive each other to the PFS, which all share.
    pub fn prefers_pfs(&mut self, peer: &NodeName, bytes: u64) -> bool {
        let (least, advantage) = (self.settings.measured_transfers, self.settings.pfs_advantage);
        let (every, pfs) = (self.settings.probe_every, self.pfs);
        let Some(peer) = self.peers.get_mut(peer) else { return false };
        if pfs.transfers < least || peer.measured.transfers < least {
            return false;
        }
        let seconds = (peer.measured.seconds(bytes), pfs.seconds(bytes));
        let (Some(of_peer), Some(of_pfs)) = seconds else { return false };
        if of_pfs * advantage > of_peer {
            return false;
        }
        peer.passed_over += 1;
        if peer.passed_over >= every {
            peer.passed_over = 0;
            return false;
        }
        true
    }

    /// All peers that were asked, by name.
    #[must_use]
    pub fn view(&self) -> Vec<PeerView> {
        let view = |(name, peer): (&NodeName, &Peer)| PeerView {
            name: name.clone(),
            rate_bytes_per_s: peer.measured.rate().unwrap_or(0.0),
            latency: Duration::from_secs_f64(peer.measured.latency.unwrap_or(0.0)),
            in_flight_bytes: peer.in_flight_bytes,
            breaker: match peer.state {
                State::Closed => Breaker::Closed,
                State::Open { .. } => Breaker::Open,
                State::HalfOpen { .. } => Breaker::HalfOpen,
            },
        };
        self.peers.iter().map(view).collect()
    }

    fn peer(&mut self, name: &NodeName) -> &mut Peer {
        if !self.peers.contains_key(name) && self.peers.len() >= PEERS_MAX {
            self.peers.pop_first();
        }
        self.peers.entry(name.clone()).or_insert(Peer {
            measured: Measured::default(),
            in_flight_bytes: 0,
            failures: 0,
            state: State::Closed,
            passed_over: 0,
        })
    }
}

impl Peer {
    /// When an answer would come; `None` while its breaker is open, less than 0 where it is to be
    /// found out whether the peer answers again.
    fn expected_seconds(&mut self, now: Time, settings: &PeerSettings) -> Option<f64> {
        if let State::Open { until, pause } = self.state
            && now >= until
        {
            self.state = State::HalfOpen { since: None, pause };
        }
        match self.state {
            // What is under way goes through the same link before.
            State::Closed => {
                let ahead = self.in_flight_bytes.saturating_add(TYPICAL_BYTES);
                Some(self.measured.seconds(ahead).unwrap_or(0.0))
            }
            State::Open { .. } => None,
            State::HalfOpen { since: None, .. } => Some(-1.0),
            // A probe of which nothing was heard is one that failed.
            State::HalfOpen { since: Some(since), .. } => {
                (now.saturating_sub(since) >= settings.pause_max).then_some(-1.0)
            }
        }
    }
}
