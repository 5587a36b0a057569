//! [`Snapshot`]: the input of a policy. One reading of all sensors and of all stores, as plain
//! numbers.
//!
//! A sensor that could not be read is `None`, never zero.

use serde::{Deserialize, Serialize};

/// One reading of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Monotonic time of the reading in nanoseconds since the controller's start.
    pub at_ns: u64,
    /// Memory of the node in bytes (`MemTotal`).
    pub memory_total_bytes: u64,
    /// Processors that are online. `None`: unknown.
    pub processors: Option<u32>,
    /// Bytes that jobs could have without touching a store: `MemAvailable` plus free pages in
    /// per-CPU lists. `None`: unreadable or implausible.
    pub available_bytes: Option<u64>,
    /// Whether the per-CPU lists were read, so that `available_bytes` has what is in them.
    pub has_lists: bool,
    /// Bytes that nobody uses, not even as page cache: free pages and those in per-CPU lists.
    /// `None`: unreadable.
    pub free_bytes: Option<u64>,
    /// Bytes used by everything, stores included, summed from the kinds of pages that cannot be
    /// dropped: the second estimate. `None`: unreadable.
    pub used_kinds_bytes: Option<u64>,
    /// Stall totals of memory pressure. `None`: the kernel does not count them.
    pub pressure: Option<Pressure>,
    /// When the two counters of pages below were read, in nanoseconds since the controller's start;
    /// they are read less often than the rest. `None`: with it.
    pub events_at_ns: Option<u64>,
    /// Pages swapped out since boot.
    pub swapped_out_pages: Option<u64>,
    /// Pages of files that were dropped and read again since boot (`workingset_refault_file`).
    pub refaulted_pages: Option<u64>,
    /// Limits other than the node's memory within which store and jobs must fit together.
    pub limits: Vec<Limit>,
    /// NUMA nodes; empty or one entry where memory is uniform.
    pub memory_nodes: Vec<MemoryNode>,
    /// The stores that are controlled, in the order in which they are asked to give.
    pub stores: Vec<StoreState>,
}

impl Snapshot {
    /// Bytes held by all stores together, as the operating system sees them.
    pub fn stored_bytes(&self) -> u64 {
        self.sum(|store| store.resident_bytes)
    }

    /// Bytes held by all stores that available memory does not count: all but page cache.
    pub fn occupied_bytes(&self) -> u64 {
        self.sum(StoreState::occupied_bytes)
    }

    /// Sum of `part` over all stores; stays at the largest number instead of overflowing.
    pub(super) fn sum(&self, part: impl Fn(&StoreState) -> u64) -> u64 {
        self.stores.iter().fold(0, |sum: u64, store| sum.saturating_add(part(store)))
    }
}

/// Microseconds in which some, or all, runnable tasks waited for memory, since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some_us: u64,
    /// All tasks waited.
    pub full_us: u64,
}

/// A limit of a control group that the store's pages are charged to, or of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Path of the control group.
    pub name: String,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Bytes charged to it that cannot be dropped.
    pub used_bytes: u64,
    /// Whether the store's pages are charged to it. A job at its own limit is no reason to shrink.
    pub holds_store: bool,
    /// Stores that are charged elsewhere, by their places in the list: the lowest bit is the first
    /// one. What they give back would not help this group. See [`Limit::charges`].
    pub outside: u64,
    /// Times the limit was hit (`memory.events` max plus oom).
    pub hits: u64,
}

impl Limit {
    /// Whether the memory of the store at this place in the list is charged to the group. One
    /// that is told of nowhere is not: what it has in the group counts as a job's then.
    pub fn charges(&self, store: usize) -> bool {
        u32::try_from(store).is_ok_and(|store| store < u64::BITS && self.outside >> store & 1 == 0)
    }

    /// Whether all of `stores` are charged to the group, so that its limit is one of their sum.
    pub(super) fn charges_all(&self, stores: &[StoreState]) -> bool {
        (0..stores.len()).all(|store| self.charges(store))
    }

    /// Of `stores`, those that are charged to the group.
    pub(super) fn inside<'a>(
        &self,
        stores: &'a [StoreState],
    ) -> impl Iterator<Item = &'a StoreState> {
        let charged = stores.iter().enumerate().filter(|(place, _)| self.charges(*place));
        charged.map(|(_, store)| store)
    }

    /// Bytes in the group that are no store's and cannot be dropped.
    pub fn demand_bytes(&self, stores: &[StoreState]) -> u64 {
        let occupied = self.inside(stores).map(StoreState::occupied_bytes);
        self.used_bytes.saturating_sub(occupied.fold(0, u64::saturating_add))
    }
}

/// Memory of one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNode {
    /// Number of the node.
    pub number: u32,
    /// Its memory in bytes.
    pub total_bytes: u64,
    /// Free bytes plus clean file pages.
    pub available_bytes: u64,
    /// Bytes of stores on it (shared memory pages).
    pub stored_bytes: u64,
}

/// How fast a store gives memory back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreSpeed {
    /// Milliseconds: Tidepool's own store, the page cache.
    #[default]
    Fast,
    /// Seconds, or only after confirmation: HDFS, Redis with small values.
    Slow,
}

/// One store that can be resized.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreState {
    /// Name of the store, unique on the node.
    pub name: String,
    /// Bytes it really holds, seen from the operating system where it can be.
    pub resident_bytes: u64,
    /// Of these, bytes that are clean page cache: available memory counts them already, so they
    /// are no part of what it lacks.
    pub page_cache_bytes: u64,
    /// Bytes it may hold now.
    pub capacity_bytes: u64,
    /// Bytes it never goes below: its guaranteed part.
    pub capacity_min_bytes: u64,
    /// Bytes it never goes above.
    pub capacity_max_bytes: u64,
    /// The same as configured, before limits of groups and leased ceilings; 0 where that is not
    /// told apart.
    #[serde(default)]
    pub capacity_configured_bytes: u64,
    /// Whether that is less than it was configured to be, for the limit of a control group to which
    /// other stores are not charged.
    pub is_limited: bool,
    /// Whether that is less than it was configured to be, for a ceiling that is leased from outside
    /// the node.
    pub is_leased: bool,
    /// Process that its memory is charged to; 0 where that is not known, or nobody's.
    pub process_id: u32,
    /// Bytes that cannot be given back now: pinned, borrowed, dirty.
    pub held_bytes: u64,
    /// Bytes that must be written somewhere before they can be given back.
    pub memory_only_bytes: u64,
    /// Measured rate at which memory comes back; 0 while nothing was measured.
    pub release_bytes_per_s: u64,
    /// Measured rate at which `memory_only_bytes` are written back; 0 while nothing was measured.
    pub write_back_bytes_per_s: u64,
    /// Class of its speed.
    pub speed: StoreSpeed,
    /// Its part of the growth relative to that of other stores; 0 counts as 1.
    pub weight: u32,
    /// Unit in which its capacity changes, in bytes.
    pub block_bytes: u64,
    /// Bytes of a command that is under way and not confirmed yet.
    pub outstanding_bytes: u64,
    /// The store does not answer, or missed the deadline of its last command.
    pub failed: bool,
}

impl StoreState {
    /// Bytes that available memory does not count: all but page cache.
    pub(super) fn occupied_bytes(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.page_cache_bytes)
    }

    /// Bytes below which nothing can be taken now: the guaranteed part, or what is held and what
    /// must be written first. A store that failed is trusted less, but it is asked all the same.
    pub fn floor_bytes(&self) -> u64 {
        let unavailable = self.held_bytes.saturating_add(self.memory_only_bytes);
        self.capacity_min_bytes.max(unavailable.min(self.resident_bytes))
    }
}
