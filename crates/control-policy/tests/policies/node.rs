//! A simulated node whose readings a test sets by hand, and a store that obeys at once.

use tidepool_control_policy::{
    Alarm, ControlPolicy, Decision, Parameters, Policy, Pressure, Snapshot, StoreState,
    headroom_bytes, policy,
};

pub const GIB: u64 = 1 << 30;
pub const BLOCK: u64 = 4 << 20;
pub const TOTAL: u64 = 128 * GIB;

pub struct Node {
    pub snapshot: Snapshot,
    pub parameters: Parameters,
    pub demand: u64,
    /// Used memory that no kind of pages counts.
    pub hidden: u64,
    /// Whether the store obeys.
    pub obeys: bool,
    law: Box<dyn Policy>,
}

impl Node {
    /// A node with one store of at most `max` bytes, which holds `stored`.
    pub fn new(demand: u64, stored: u64, max: u64) -> Self {
        let store = StoreState {
            name: "tidepool".to_owned(),
            resident_bytes: stored,
            capacity_bytes: stored,
            capacity_max_bytes: max,
            release_bytes_per_s: 100 * GIB,
            block_bytes: BLOCK,
            ..StoreState::default()
        };
        let snapshot = Snapshot {
            memory_total_bytes: TOTAL,
            pressure: Some(Pressure::default()),
            swapped_out_pages: Some(0),
            refaulted_pages: Some(0),
            stores: vec![store],
            ..Snapshot::default()
        };
        Node {
            snapshot,
            parameters: Parameters::default(),
            demand,
            hidden: 0,
            obeys: true,
            law: policy(ControlPolicy::Tidepool),
        }
    }

    /// A node whose full store leaves exactly the headroom, settled and past its first hold.
    pub fn full(stored: u64) -> Self {
        // Enough that no step here ends at available memory of zero, where sensors see no further.
        let headroom_bytes = 12 * GIB;
        let mut node = Node::new(TOTAL - headroom_bytes - stored, stored, stored);
        node.parameters.headroom_bytes = headroom_bytes;
        node.run(3_000);
        node
    }

    /// What the stores should leave free.
    pub fn headroom(&self) -> u64 {
        headroom_bytes(TOTAL, &self.parameters)
    }

    pub fn store(&mut self) -> &mut StoreState {
        &mut self.snapshot.stores[0]
    }

    pub fn stored(&self) -> u64 {
        self.snapshot.stored_bytes()
    }

    /// Passes 10 ms, reads, decides, and has the store filled to its capacity.
    pub fn tick(&mut self) -> Decision {
        let used = self.demand + self.stored();
        self.snapshot.available_bytes = Some(TOTAL.saturating_sub(used + self.hidden));
        self.snapshot.used_kinds_bytes = Some(used.min(TOTAL));
        self.tick_as_read()
    }

    /// The same with the readings as they are.
    pub fn tick_as_read(&mut self) -> Decision {
        self.snapshot.at_ns += 10_000_000;
        let decision = self.law.decide(&self.snapshot, &self.parameters);
        if self.obeys {
            let store = &mut self.snapshot.stores[0];
            store.capacity_bytes = decision.target_bytes;
            store.resident_bytes = decision.target_bytes;
        }
        decision
    }

    /// Passes `ms` milliseconds; returns the last decision.
    pub fn run(&mut self, ms: u64) -> Decision {
        let mut last = self.tick();
        for _ in 1..ms / 10 {
            last = self.tick();
        }
        last
    }
}

pub fn has(decision: &Decision, alarm: Alarm) -> bool {
    decision.alarms.contains(&alarm)
}
