//! The control page: the store's account of memory in shared memory, so that a controller reads it
//! at every decision without a message.
//!
//! The node keeps the numbers of its store in this page and hands a read-only descriptor of it to
//! the controller that governs the store. Every word is an atomic of its own: a reader sees each
//! value whole, and two values possibly of slightly different times. The other way goes the
//! [`Heartbeat`], by which a controller that has nothing to say stays alive. This module holds the
//! layouts; it maps no memory and decides nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, ErrorKind, Result};

/// Magic number at the start of the page: `TIDECTRL`.
pub const CONTROL_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"TIDECTRL");
/// Version of the layout; a reader of another version refuses the page.
pub const CONTROL_PAGE_LAYOUT: u64 = 4;
/// Length of the memory file in bytes.
pub const CONTROL_PAGE_BYTES: u64 = 4096;

/// What the page holds. Written by the node alone.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ControlPage {
    /// [`CONTROL_PAGE_MAGIC`].
    pub magic: AtomicU64,
    /// [`CONTROL_PAGE_LAYOUT`].
    pub layout: AtomicU64,
    /// Process id of the node.
    pub process_id: AtomicU64,
    /// Unit in which memory comes and goes, in bytes.
    pub block_bytes: AtomicU64,
    /// Bytes that the store may hold.
    pub capacity_bytes: AtomicU64,
    /// Bytes that the store holds, those under eviction included.
    pub resident_bytes: AtomicU64,
    /// Bytes that cannot be evicted now: pinned, borrowed, or open by passthrough.
    pub held_bytes: AtomicU64,
    /// Bytes that were selected for eviction and are not free yet.
    pub freeing_bytes: AtomicU64,
    /// Bytes that exist in memory only; they must be written back before they can go. Counted
    /// once a second and at every message of a controller.
    pub memory_only_bytes: AtomicU64,
    /// Dirty bytes: the PFS has no durable copy of them yet. Counted once a second.
    pub dirty_bytes: AtomicU64,
    /// Configured guaranteed part; see [`ControlPage::guaranteed`].
    pub capacity_min_bytes: AtomicU64,
    /// Bytes that a controller may give the store at most: the configured most, or a leased
    /// ceiling below it.
    pub capacity_max_bytes: AtomicU64,
    /// Rises with every change of a setting of the control.
    pub settings_generation: AtomicU64,
    /// State of the lease, a [`LeaseState`].
    pub lease: AtomicU64,
    /// Measured rate at which memory-only bytes are written back, or what it can be at most while
    /// they take long; 0 before the first time.
    pub write_back_bytes_per_s: AtomicU64,
    /// The configured most, which `capacity_max_bytes` comes back to when a leased ceiling ends.
    pub capacity_configured_bytes: AtomicU64,
    /// Rises with every change of the ceilings that are leased of other stores.
    pub ceilings_generation: AtomicU64,
    /// Rises where the controller reports other stores than before, or comes or goes: whoever
    /// looks at them need not ask while it stands still.
    pub stores_generation: AtomicU64,
}

/// Rate of writing back that is believed while none was measured: a slow PFS. It is only known once
/// it was asked.
pub const WRITE_BACK_PRIOR_BYTES_PER_S: u64 = 100_000_000;

const _: () = assert!(size_of::<ControlPage>() as u64 <= CONTROL_PAGE_BYTES, "it fits its file");

impl ControlPage {
    /// Sets the words that never change.
    pub fn initialise(&self, block_bytes: u64) {
        self.layout.store(CONTROL_PAGE_LAYOUT, Ordering::Relaxed);
        self.process_id.store(std::process::id().into(), Ordering::Relaxed);
        self.block_bytes.store(block_bytes, Ordering::Relaxed);
        self.magic.store(CONTROL_PAGE_MAGIC, Ordering::Release);
    }

    /// Refuses what is no page of this release.
    pub fn check(&self) -> Result<()> {
        let (magic, layout) =
            (self.magic.load(Ordering::Acquire), self.layout.load(Ordering::Relaxed));
        if (magic, layout) == (CONTROL_PAGE_MAGIC, CONTROL_PAGE_LAYOUT) {
            return Ok(());
        }
        let detail = format!("magic {magic:#x}, layout {layout}, not {CONTROL_PAGE_LAYOUT}");
        Err(Error::new(ErrorKind::Protocol, "reading the control page", detail)
            .remedy("use the same release on both sides"))
    }

    /// Bytes that the store keeps under any controller, and without one: the configured part, and
    /// never less than what is pinned or borrowed, because those bytes cannot go.
    pub fn guaranteed(&self) -> u64 {
        let configured = self.capacity_min_bytes.load(Ordering::Relaxed);
        configured.max(self.held_bytes.load(Ordering::Relaxed))
    }

    /// State of the lease.
    pub fn lease_state(&self) -> LeaseState {
        LeaseState::from_word(self.lease.load(Ordering::Acquire))
    }
}

/// Signs of life of one controller: a word that it writes at every decision, so that it need not
/// send messages only to show that it lives. The node makes one for each attachment, so the last
/// controller's cannot be taken for the next one's.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Heartbeat {
    /// When the controller last decided, in nanoseconds of the monotonic clock, which both sides
    /// share; 0 before the first time.
    pub decided_ns: AtomicU64,
}

/// Length of the memory file of a [`Heartbeat`] in bytes.
pub const HEARTBEAT_BYTES: u64 = 4096;

const _: () = assert!(size_of::<Heartbeat>() as u64 <= HEARTBEAT_BYTES, "it fits its file");

impl Heartbeat {
    /// The controller decides now.
    pub fn beat(&self) {
        self.decided_ns.store(monotonic_ns(), Ordering::Release);
    }

    /// Time since the controller decided. `None` before the first time, and for times to come,
    /// which say nothing.
    pub fn age(&self) -> Option<Duration> {
        let decided_ns = self.decided_ns.load(Ordering::Acquire);
        let age_ns = monotonic_ns().checked_sub(decided_ns);
        age_ns.filter(|_| decided_ns != 0).map(Duration::from_nanos)
    }
}

/// Nanoseconds of a clock that no one can set and that stops while the machine sleeps.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Whether somebody governs the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum LeaseState {
    /// No controller was ever there: the capacity is the configured one.
    #[default]
    Never = 0,
    /// A controller governs.
    Governed = 1,
    /// The controller did not renew its lease: the store fell to its guaranteed part.
    Expired = 2,
    /// The controller was taken away by command: the capacity is the configured one again.
    Released = 3,
}

impl LeaseState {
    /// The stable name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            LeaseState::Never => "never",
            LeaseState::Governed => "governed",
            LeaseState::Expired => "expired",
            LeaseState::Released => "released",
        }
    }

    fn from_word(word: u64) -> LeaseState {
        match word {
            1 => LeaseState::Governed,
            2 => LeaseState::Expired,
            3 => LeaseState::Released,
            _ => LeaseState::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_layout_are_read() {
        let page = ControlPage::default();
        assert_eq!(page.check().unwrap_err().kind(), ErrorKind::Protocol);
        page.initialise(4 << 20);
        page.check().unwrap();
        page.layout.store(CONTROL_PAGE_LAYOUT + 1, Ordering::Relaxed);
        assert!(page.check().unwrap_err().to_string().contains("layout"));
    }

    #[test]
    fn the_guaranteed_part_is_never_below_what_is_pinned() {
        let page = ControlPage::default();
        page.capacity_min_bytes.store(8, Ordering::Relaxed);
        assert_eq!(page.guaranteed(), 8);
        page.held_bytes.store(20, Ordering::Relaxed);
        assert_eq!(page.guaranteed(), 20);
    }

    #[test]
    fn a_heartbeat_says_nothing_before_the_first_decision_and_of_times_to_come() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.age(), None);
        heartbeat.beat();
        assert!(heartbeat.age().unwrap() < Duration::from_secs(60));
        heartbeat.decided_ns.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(heartbeat.age(), None);
    }

    #[test]
    fn states_survive_the_page() {
        use LeaseState::{Expired, Governed, Never, Released};
        for state in [Never, Governed, Expired, Released] {
            assert_eq!(LeaseState::from_word(state as u64), state);
        }
    }
}
