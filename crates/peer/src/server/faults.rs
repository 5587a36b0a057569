//! Why connections are closed: counted by kind, and logged at most once a minute of each kind.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Shortest time between two lines of the log about the same kind of fault.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Why the server closed a connection, or refused one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What came is no message of the protocol.
    Garbage,
    /// The stream ended within a message.
    Truncated,
    /// A message longer than allowed.
    Oversized,
    /// Another version of the protocol.
    Version,
    /// Another cluster.
    Cluster,
    /// Meant for another node, or from one with this node's name.
    Name,
    /// No proof of the key, or a frame made without it.
    Forged,
    /// A frame again, or out of order.
    Replayed,
    /// Nothing came in time, or nothing was taken.
    TimedOut,
    /// More connections than allowed.
    Crowded,
    /// The socket failed.
    Socket,
    /// TLS where this node has none, none where it has, or a certificate that is not taken.
    Tls,
}

impl Fault {
    /// All kinds, in the order of their counters.
    pub const ALL: [Self; 12] = [
        Self::Garbage,
        Self::Truncated,
        Self::Oversized,
        Self::Version,
        Self::Cluster,
        Self::Name,
        Self::Forged,
        Self::Replayed,
        Self::TimedOut,
        Self::Crowded,
        Self::Socket,
        Self::Tls,
    ];

    /// The kind in a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Garbage => "garbage",
            Self::Truncated => "truncated",
            Self::Oversized => "oversized",
            Self::Version => "version",
            Self::Cluster => "cluster",
            Self::Name => "name",
            Self::Forged => "forged",
            Self::Replayed => "replayed",
            Self::TimedOut => "timed-out",
            Self::Crowded => "crowded",
            Self::Socket => "socket",
            Self::Tls => "tls",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Garbage => "it is no Tidepool node: its bytes are not of the protocol",
            Self::Truncated => "it closed the connection within a message",
            Self::Oversized => "it sent a message that is too long",
            Self::Version => "it runs another release: the protocol has another version",
            Self::Cluster => "it belongs to another cluster: check the cluster names",
            Self::Name => "it looks for another node, or has this node's name: check the list",
            Self::Forged => "it does not prove that it holds the key: check the key files",
            Self::Replayed => "it sent a frame again: somebody changes packets on the network",
            Self::TimedOut => "it said or took nothing for too long",
            Self::Crowded => "there are more connections than allowed",
            Self::Socket => "the connection broke",
            Self::Tls => {
                "no TLS came about: check that all nodes have certificates of one authority, each \
                 of its node and in date, or none has"
            }
        })
    }
}

/// Counts faults and logs some of them.
#[derive(Default)]
pub(super) struct Faults {
    counts: [AtomicU64; Fault::ALL.len()],
    logged: Mutex<[Option<Instant>; Fault::ALL.len()]>,
}

impl Faults {
    /// Counts a fault, and logs it if its kind was not logged in the last minute.
    pub fn note(&self, fault: Fault, address: SocketAddr, peer: Option<&str>) {
        let total = self.counts[fault as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if self.may_log(fault, Instant::now()) {
            let peer = peer.unwrap_or("unknown");
            tracing::warn!(
                %address, peer, kind = fault.name(), total,
                "a peer's connection was closed: {fault}"
            );
        }
    }

    fn may_log(&self, fault: Fault, now: Instant) -> bool {
        let mut logged = self.logged.lock();
        let last = &mut logged[fault as usize];
        let may = last.is_none_or(|last| now.saturating_duration_since(last) >= LOG_INTERVAL);
        if may {
            *last = Some(now);
        }
        may
    }

    /// How often each kind was noted.
    pub fn counts(&self) -> [u64; Fault::ALL.len()] {
        std::array::from_fn(|kind| self.counts[kind].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once_a_minute() {
        let faults = Faults::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(faults.may_log(Fault::Garbage, start));
        assert!(!faults.may_log(Fault::Garbage, after(59)));
        assert!(faults.may_log(Fault::Forged, after(59)));
        assert!(faults.may_log(Fault::Garbage, after(60)));
        assert!(!faults.may_log(Fault::Garbage, after(61)));
    }

    #[test]
    fn each_kind_has_its_counter() {
        for (index, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, index);
        }
    }
}
