//! A node with its jobs, its stores and its sensors, as it behaves, not as it should.
//!
//! Time is virtual and chance comes from a seed, so a run can be repeated exactly. Simplified on
//! purpose: bytes flow evenly within a step, pages have no addresses, and a job that gets no
//! memory waits instead of being killed.

mod fault;
mod memory;
mod sensors;
mod store;

use std::time::Duration;

use tidepool_control_policy::{Snapshot, StoreSpeed};

use super::Trace;
use super::random::Random;

pub use fault::{Fault, FaultKind};
use memory::Memory;
use sensors::Sensors;
use store::Store;

/// Size of the pages that counters count.
const PAGE_BYTES: u64 = 4096;

/// A node.
#[derive(Clone, Debug)]
pub struct PlantConfig {
    /// Memory in bytes (`MemTotal`) over time; a balloon or an unplugged module changes it.
    pub memory_total: Trace,
    /// Processors; they bound how fast a demand may grow.
    pub processors: u32,
    /// Bytes that the kernel and services use all the time.
    pub kernel_bytes: u64,
    /// Bytes below which the kernel reclaims while tasks wait; not part of `MemAvailable`.
    pub watermark_bytes: u64,
    /// Largest share of the memory that per-CPU lists of free 4 KiB pages hide.
    pub hidden_share: f64,
    /// Rate at which these lists are drained, in bytes per second.
    pub hidden_drain_bytes_per_s: u64,
    /// How often the sensors look into these lists; `None`: they never do.
    pub hidden_read: Option<Duration>,
    /// Files that neighbours want in the page cache, in bytes, and the rate of their reads in bytes
    /// per second.
    pub page_cache: Option<(Trace, u64)>,
    /// Dirty file pages over time, in bytes.
    pub dirty: Option<Trace>,
    /// Swap in bytes, and its rate in bytes per second.
    pub swap: (u64, u64),
    /// Share of what is swapped out that stays in memory, compressed.
    pub swap_kept_share: f64,
    /// Rate at which the kernel puts idle pages aside without need, in bytes per second; only
    /// counted, as they are few.
    pub swap_idle_bytes_per_s: u64,
    /// Bytes that are not available and that no kind of page counts, over time: locked pages of
    /// files, memory of drivers.
    pub uncounted: Option<Trace>,
    /// Rate at which jobs read files again that their own groups' limits pushed out, in bytes per
    /// second.
    pub group_refaults_bytes_per_s: u64,
    /// Control groups with limits.
    pub limits: Vec<LimitConfig>,
    /// NUMA nodes; none where memory is uniform.
    pub memory_nodes: Vec<MemoryNodeConfig>,
    /// The stores.
    pub stores: Vec<StoreConfig>,
    /// Age of the readings.
    pub sensor_delay: Duration,
    /// Readings are off by up to this many bytes.
    pub sensor_noise_bytes: u64,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
    /// Seed of everything by chance.
    pub seed: u64,
}

/// A control group.
#[derive(Clone, Debug)]
pub struct LimitConfig {
    /// Its path.
    pub name: String,
    /// Its limit in bytes.
    pub limit_bytes: u64,
    /// Demand within it beside the store, in bytes; part of the node's demand.
    pub demand: Trace,
    /// Whether the stores' pages are charged to it.
    pub holds_store: bool,
    /// Places of the stores that are charged elsewhere.
    pub outside: Vec<usize>,
}

impl LimitConfig {
    /// Bytes charged to the group, of `stored` by each of the stores.
    fn used_bytes(&self, now_ns: u64, stored: impl Iterator<Item = u64>) -> u64 {
        let inside = stored
            .enumerate()
            .filter(|(place, _)| self.holds_store && !self.outside.contains(place));
        self.demand.demand_bytes(now_ns) + inside.map(|(_, bytes)| bytes).sum::<u64>()
    }
}

/// A NUMA node.
#[derive(Clone, Debug)]
pub struct MemoryNodeConfig {
    /// Its memory in bytes.
    pub total_bytes: u64,
    /// Demand bound to it, in bytes; part of the node's demand.
    pub demand: Trace,
    /// Share of the stores' pages that lie on it.
    pub store_share: f64,
}

/// A store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Name, unique on the node.
    pub name: String,
    /// Bytes it holds at the start.
    pub resident_bytes: u64,
    /// Capacity at the start in bytes.
    pub capacity_bytes: u64,
    /// Its guaranteed part in bytes.
    pub capacity_min_bytes: u64,
    /// Its largest capacity in bytes.
    pub capacity_max_bytes: u64,
    /// Unit of its capacity in bytes.
    pub block_bytes: u64,
    /// Pinned or borrowed bytes.
    pub held_bytes: u64,
    /// Bytes to be written back before they can go.
    pub memory_only_bytes: u64,
    /// Rate of that in bytes per second; the controller hears of it once it was measured.
    pub write_back_bytes_per_s: u64,
    /// Rate at which it fills up to its capacity, in bytes per second.
    pub fill_bytes_per_s: u64,
    /// Rate at which it gives memory back, in bytes per second.
    pub release_bytes_per_s: u64,
    /// Rate that the controller believes before it measured one; 0: none.
    pub release_believed_bytes_per_s: u64,
    /// Time from a command to its first effect.
    pub actuation_delay: Duration,
    /// Time from a release in the store's own ledger until the system has the bytes.
    pub return_delay: Duration,
    /// Whether what it gives back comes in 4 KiB pages, which per-CPU lists hide.
    pub small_pages: bool,
    /// Class that the controller is told.
    pub speed: StoreSpeed,
    /// Time without a command after which it falls to its guaranteed part; `None`: never.
    pub lease: Option<Duration>,
    /// Time after which a command counts as missed.
    pub deadline: Duration,
}

impl PlantConfig {
    /// A node with one store of Tidepool in 2 MiB pages, full at the start, and without faults.
    pub fn node(memory_total_bytes: u64, store_bytes: u64) -> Self {
        PlantConfig {
            memory_total: Trace::constant(memory_total_bytes, Duration::from_secs(1)),
            processors: 64,
            kernel_bytes: memory_total_bytes / 100,
            watermark_bytes: memory_total_bytes / 400,
            hidden_share: 0.125,
            hidden_drain_bytes_per_s: 8_000_000,
            hidden_read: Some(Duration::ZERO),
            page_cache: None,
            dirty: None,
            swap: (0, 0),
            swap_kept_share: 0.0,
            swap_idle_bytes_per_s: 0,
            uncounted: None,
            group_refaults_bytes_per_s: 0,
            limits: Vec::new(),
            memory_nodes: Vec::new(),
            stores: vec![StoreConfig::tidepool(store_bytes)],
            sensor_delay: Duration::ZERO,
            sensor_noise_bytes: 0,
            faults: Vec::new(),
            seed: 1,
        }
    }
}

impl StoreConfig {
    /// A full store of Tidepool in 2 MiB pages, with figures measured on a small virtual machine.
    pub fn tidepool(capacity_bytes: u64) -> Self {
        StoreConfig {
            name: "tidepool".to_owned(),
            resident_bytes: capacity_bytes,
            capacity_bytes,
            capacity_min_bytes: 0,
            capacity_max_bytes: capacity_bytes,
            block_bytes: 4 << 20,
            held_bytes: 0,
            memory_only_bytes: 0,
            write_back_bytes_per_s: 1_000_000_000,
            fill_bytes_per_s: 4_000_000_000,
            release_bytes_per_s: 125_000_000_000,
            release_believed_bytes_per_s: 0,
            actuation_delay: Duration::from_millis(1),
            return_delay: Duration::ZERO,
            small_pages: false,
            speed: StoreSpeed::Fast,
            lease: Some(Duration::from_secs(1)),
            deadline: Duration::from_secs(5),
        }
    }

    /// The same store in 4 KiB pages.
    #[must_use]
    pub fn in_small_pages(self) -> Self {
        StoreConfig { release_bytes_per_s: 5_000_000_000, small_pages: true, ..self }
    }
}

/// What the stores and jobs of a node really hold, beside what its sensors say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Truth {
    /// Memory of the node in bytes.
    pub memory_total_bytes: u64,
    /// What everything but the stores wants, kernel included, in bytes.
    pub demand_bytes: u64,
    /// Bytes that the stores still keep from everything else, as the system sees them.
    pub stored_bytes: u64,
    /// Free bytes, clean file pages included; hidden ones are not.
    pub free_bytes: u64,
    /// Free bytes in per-CPU lists.
    pub hidden_bytes: u64,
    /// Bytes wanted and not got.
    pub short_bytes: u64,
    /// Times that memory ran out, where the kernel kills a process.
    pub shortages: u64,
    /// Bytes of the stores that are nowhere else.
    pub memory_only_bytes: u64,
    /// Bytes that the stores gave back so far.
    pub evicted_bytes: u64,
    /// Bytes that the stores took so far.
    pub filled_bytes: u64,
    /// Bytes swapped out so far.
    pub swapped_out_bytes: u64,
    /// Time in which some task waited for memory, in nanoseconds.
    pub stalled_some_ns: u64,
    /// Time in which all tasks waited for memory, in nanoseconds.
    pub stalled_full_ns: u64,
}

/// A node at one moment.
#[derive(Clone, Debug)]
pub struct Plant {
    config: PlantConfig,
    memory: Memory,
    stores: Vec<Store>,
    sensors: Sensors,
    refuse_writes: bool,
    now_ns: u64,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a rate moves in a time.
fn moved(bytes_per_s: u64, time_ns: u64) -> u64 {
    let exact = u128::from(bytes_per_s) * u128::from(time_ns) / 1_000_000_000;
    u64::try_from(exact).unwrap_or(u64::MAX)
}

impl Plant {
    /// The node at its start, where jobs have what they want.
    pub fn new(config: PlantConfig, demand: &Trace) -> Self {
        let stores: Vec<Store> = config.stores.iter().cloned().map(Store::new).collect();
        let sensors = Sensors::new(Random::new(config.seed));
        let memory = Memory::new(&config, demand.demand_bytes(0));
        Plant { config, memory, stores, sensors, refuse_writes: false, now_ns: 0 }
    }

    /// Lets time pass until `now_ns`, in one step.
    pub fn advance(&mut self, now_ns: u64, demand: &Trace) {
        let step_ns = now_ns.saturating_sub(self.now_ns);
        self.now_ns = now_ns;
        let mut returned = 0;
        let mut hidden = 0;
        for (index, store) in self.stores.iter_mut().enumerate() {
            let faults = fault::at(&self.config.faults, now_ns, index);
            let bytes = store.release(now_ns, step_ns, &faults);
            returned += bytes;
            hidden += if store.small_pages() || faults.fragmented() { bytes } else { 0 };
        }
        let stored = self.stores.iter().map(Store::resident_bytes).sum();
        self.memory.hide(&self.config, now_ns, hidden);
        self.memory.advance(&self.config, now_ns, step_ns, demand.demand_bytes(now_ns), stored);
        self.memory.evicted_bytes += returned;
        if !self.refuse_writes {
            for store in &mut self.stores {
                let filled = store.fill(step_ns, self.memory.room_bytes(&self.config));
                self.memory.take(&self.config, filled);
            }
        }
        self.sensors.note(&self.config, now_ns, &self.memory, &self.stores);
    }

    /// One reading of the sensors, wrong where the plant's faults say so.
    pub fn snapshot(&mut self) -> Snapshot {
        self.sensors.read(&self.config, self.now_ns, &self.memory, &self.stores)
    }

    /// Sets the capacity of each store, which also renews its lease; whether new bytes are refused.
    pub fn command(&mut self, capacities_bytes: &[u64], refuse_writes: bool) {
        self.refuse_writes = refuse_writes;
        for (index, (store, bytes)) in self.stores.iter_mut().zip(capacities_bytes).enumerate() {
            let faults = fault::at(&self.config.faults, self.now_ns, index);
            store.command(self.now_ns, *bytes, &faults);
        }
    }

    /// Sets the capacity of one store past the controller, as a human would.
    pub fn foreign_command(&mut self, store: usize, capacity_bytes: u64) {
        if let Some(store) = self.stores.get_mut(store) {
            store.foreign_command(capacity_bytes);
        }
    }

    /// Present capacities of the stores in bytes.
    pub fn capacities_bytes(&self) -> impl Iterator<Item = u64> {
        self.stores.iter().map(Store::capacity_bytes)
    }

    /// Capacities of the stores in bytes once all commands are carried out.
    pub fn commanded_bytes(&self) -> impl Iterator<Item = u64> {
        self.stores.iter().map(Store::commanded_bytes)
    }

    /// What is true, whatever the sensors say.
    pub fn truth(&self) -> Truth {
        let filled_bytes = self.stores.iter().map(Store::filled_bytes).sum();
        let stored_bytes = self.stores.iter().map(Store::resident_bytes).sum();
        let memory_only_bytes = self.stores.iter().map(Store::memory_only_bytes).sum();
        let truth = self.memory.truth(&self.config);
        Truth { stored_bytes, filled_bytes, memory_only_bytes, ..truth }
    }
}
