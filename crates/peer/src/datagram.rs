//! Datagrams of membership: sealed by the sender, opened once by each receiver.
//!
//! | bytes | |
//! |---|---|
//! | 0-3 | `TPd1` |
//! | 4-11 | which cluster, hashed |
//! | 12-19 | start of the sender: its clock then, nanoseconds since 1970 |
//! | 20-27 | number since that start, from 0 |
//! | 28 | length of the sender's name |
//! | | the sender's name, the message |
//! | last 16 | code: keyed BLAKE3 over all before |
//!
//! A number is accepted once. A start that is earlier than the sender's last one is accepted only
//! after the sender was silent: a node whose clock went back while it was down is heard again, and
//! what an attacker recorded before is not, while the node lives. The message has to bear that a
//! dead node's old datagrams come once more: membership has incarnations for that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::Identity;
use crate::frame::{CODE_BYTES, code, same_code};
use crate::key::{NAME_BYTES_MAX, overwrite};

const MAGIC: [u8; 4] = *b"TPd1";
/// Magic, cluster, start, number, length of the name.
const FIXED_BYTES: usize = 4 + 8 + 8 + 8 + 1;
/// Bytes that a sealed datagram has more than its message, at most.
pub const OVERHEAD_BYTES_MAX: usize = FIXED_BYTES + NAME_BYTES_MAX + CODE_BYTES;
/// How long a sender must be silent before an earlier start of it is believed.
const SILENCE: Duration = Duration::from_secs(10);
/// Starts of a sender whose numbers are remembered.
const STARTS_MAX: usize = 4;
/// Senders that are remembered; the one that was silent for the longest goes.
const SENDERS_MAX: usize = 1 << 16;

/// Why a datagram is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejected {
    /// Not a datagram of this protocol, or cut.
    Garbage,
    /// Of another cluster.
    Cluster,
    /// Not sealed with the key.
    Forged,
    /// Opened before, or too old to tell.
    Replayed,
    /// One's own, come back; or from a node with the same name.
    Reflected,
}

/// The key of datagrams of a cluster, and which cluster it is.
struct Sealed {
    key: [u8; 32],
    cluster: [u8; 8],
    node: String,
}

impl Sealed {
    fn new(identity: &Identity) -> Self {
        let key = identity.key.derive("tidepool peer 1 datagram", &identity.cluster);
        let mut cluster = [0; 8];
        cluster.copy_from_slice(&blake3::hash(identity.cluster.as_bytes()).as_bytes()[..8]);
        Self { key, cluster, node: identity.node.clone() }
    }

    fn code(&self, bytes: &[u8]) -> [u8; CODE_BYTES] {
        code(&blake3::keyed_hash(&self.key, bytes))
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        overwrite(&mut self.key);
    }
}

/// Seals datagrams of one node.
pub struct Sealer {
    sealed: Sealed,
    start: u64,
    next: AtomicU64,
}

impl Sealer {
    /// A sealer for the datagrams of this node. Its start is now, by the clock of the node.
    ///
    /// # Panics
    /// The node's name has not 1 to 64 bytes.
    pub fn new(identity: &Identity) -> Self {
        let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::with_start(identity, u64::try_from(start.as_nanos()).unwrap_or(u64::MAX))
    }

    /// A sealer with a start that the caller chooses: greater than that of any earlier sealer of
    /// this node.
    ///
    /// # Panics
    /// As [`Sealer::new`].
    pub fn with_start(identity: &Identity, start: u64) -> Self {
        assert!((1..=NAME_BYTES_MAX).contains(&identity.node.len()), "a node has a name");
        Self { sealed: Sealed::new(identity), start, next: AtomicU64::new(0) }
    }

    /// The datagram for `message`, up to [`OVERHEAD_BYTES_MAX`] longer.
    pub fn seal(&self, message: &[u8]) -> Vec<u8> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let node = self.sealed.node.as_bytes();
        let mut datagram = Vec::with_capacity(FIXED_BYTES + node.len() + message.len() + 16);
        datagram.extend_from_slice(&MAGIC);
        datagram.extend_from_slice(&self.sealed.cluster);
        datagram.extend_from_slice(&self.start.to_le_bytes());
        datagram.extend_from_slice(&number.to_le_bytes());
        datagram.push(node.len() as u8);
        datagram.extend_from_slice(node);
        datagram.extend_from_slice(message);
        let code = self.sealed.code(&datagram);
        datagram.extend_from_slice(&code);
        datagram
    }
}

/// The numbers of one start that were seen: the greatest, and which of the 128 up to it.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: u64,
    greatest: u64,
    seen: u128,
}

impl Window {
    fn new(start: u64) -> Self {
        Self { start, greatest: 0, seen: 0 }
    }

    /// Whether `number` is new, and from now on it is not.
    fn take(&mut self, number: u64) -> bool {
        if self.seen == 0 || number > self.greatest {
            let shift = if self.seen == 0 { 128 } else { number - self.greatest };
            let shift = u32::try_from(shift).unwrap_or(u32::MAX);
            self.seen = self.seen.checked_shl(shift).unwrap_or(0) | 1;
            self.greatest = number;
            return true;
        }
        let age = self.greatest - number;
        if age >= 128 || self.seen >> age & 1 == 1 {
            return false;
        }
        self.seen |= 1 << age;
        true
    }
}

/// What is remembered of a sender. The first window is of the start that is believed.
struct Sender {
    windows: Vec<Window>,
    heard: Instant,
}

impl Sender {
    /// Whether a datagram is new.
    fn take(&mut self, start: u64, number: u64, now: Instant) -> bool {
        let silent = now.saturating_duration_since(self.heard) >= SILENCE;
        let believed = self.windows.first().map(|window| window.start);
        if believed.is_some_and(|believed| start < believed) && !silent {
            return false;
        }
        let known = self.windows.iter().position(|window| window.start == start);
        let mut window = known.map_or(Window::new(start), |index| self.windows[index]);
        if !window.take(number) {
            return false;
        }
        if let Some(index) = known {
            self.windows.remove(index);
        }
        self.windows.insert(0, window);
        self.windows.truncate(STARTS_MAX);
        self.heard = now;
        true
    }
}

/// Opens datagrams of the other nodes.
pub struct Opener {
    sealed: Sealed,
    senders: Mutex<HashMap<String, Sender>>,
}

impl Opener {
    /// An opener for the datagrams that this node receives.
    pub fn new(identity: &Identity) -> Self {
        Self { sealed: Sealed::new(identity), senders: Mutex::default() }
    }

    /// The sender and the message.
    ///
    /// # Errors
    /// Why it is not to be used.
    pub fn open(&self, datagram: &[u8]) -> Result<(String, Vec<u8>), Rejected> {
        self.open_at(datagram, Instant::now())
    }

    fn open_at(&self, datagram: &[u8], now: Instant) -> Result<(String, Vec<u8>), Rejected> {
        let signed = datagram.len().checked_sub(CODE_BYTES).ok_or(Rejected::Garbage)?;
        let (signed, sent) = datagram.split_at(signed);
        let (fixed, rest) = signed.split_at_checked(FIXED_BYTES).ok_or(Rejected::Garbage)?;
        if fixed[..4] != MAGIC {
            return Err(Rejected::Garbage);
        }
        if fixed[4..12] != self.sealed.cluster {
            return Err(Rejected::Cluster);
        }
        let sent: &[u8; CODE_BYTES] = sent.try_into().map_err(|_| Rejected::Garbage)?;
        if !same_code(&self.sealed.code(signed), sent) {
            return Err(Rejected::Forged);
        }
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&fixed[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (name, message) =
            rest.split_at_checked(usize::from(fixed[28])).ok_or(Rejected::Garbage)?;
        let name = std::str::from_utf8(name).map_err(|_| Rejected::Garbage)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Rejected::Garbage);
        }
        if name == self.sealed.node {
            return Err(Rejected::Reflected);
        }
        self.take(name, number(12), number(20), now)?;
        Ok((name.to_owned(), message.to_owned()))
    }

    fn take(&self, name: &str, start: u64, number: u64, now: Instant) -> Result<(), Rejected> {
        let mut senders = self.senders.lock();
        if !senders.contains_key(name) {
            if senders.len() >= SENDERS_MAX {
                let silent = senders.iter().min_by_key(|(_, sender)| sender.heard);
                let silent = silent.map(|(name, _)| name.clone());
                silent.map(|name| senders.remove(&name));
            }
            senders.insert(name.to_owned(), Sender { windows: Vec::new(), heard: now });
        }
        let sender = senders.get_mut(name).ok_or(Rejected::Garbage)?;
        if sender.take(start, number, now) { Ok(()) } else { Err(Rejected::Replayed) }
    }
}

#[cfg(test)]
#[path = "tests/datagram.rs"]
mod tests;
