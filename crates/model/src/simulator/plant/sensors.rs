//! The simulated sensors: readings of the node that are old, noisy, and wrong where a fault says
//! so.

use std::collections::VecDeque;

use super::fault::{self, FaultKind};
use super::memory::Memory;
use super::store::Store;
use super::{PlantConfig, ns};
use crate::simulator::random::Random;
use tidepool_control_policy::{Limit, MemoryNode, Pressure, Snapshot};

/// Counters at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at_ns: u64,
    available_bytes: u64,
    used_kinds_bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Sensors {
    random: Random,
    /// Readings that may still be told, oldest first.
    readings: VecDeque<Reading>,
    /// Hidden bytes when they were last looked for, and when that was.
    hidden: Option<(u64, u64)>,
    /// What the frozen sensor repeats.
    frozen: Option<Option<u64>>,
    /// Hits of each limit.
    hits: Vec<u64>,
}

impl Sensors {
    pub(super) fn new(random: Random) -> Self {
        let (readings, hits) = (VecDeque::new(), Vec::new());
        Sensors { random, readings, hidden: None, frozen: None, hits }
    }

    /// Remembers the counters of a moment.
    pub(super) fn note(
        &mut self,
        config: &PlantConfig,
        now_ns: u64,
        memory: &Memory,
        stores: &[Store],
    ) {
        let seen = match (config.hidden_read, self.hidden) {
            (None, _) => 0,
            (Some(every), Some((at, bytes))) if now_ns - at < ns(every) => bytes,
            (Some(_), _) => {
                self.hidden = Some((now_ns, memory.hidden_bytes()));
                memory.hidden_bytes()
            }
        };
        let free = memory.available_bytes(config);
        self.readings.push_back(Reading {
            at_ns: now_ns,
            available_bytes: free + seen,
            used_kinds_bytes: memory.used_kinds_bytes(config),
        });
        let told_ns = now_ns.saturating_sub(ns(config.sensor_delay));
        while self.readings.get(1).is_some_and(|next| next.at_ns <= told_ns) {
            self.readings.pop_front();
        }
        self.hits.resize(config.limits.len(), 0);
        for (limit, hits) in config.limits.iter().zip(&mut self.hits) {
            let used = limit.used_bytes(now_ns, stores.iter().map(Store::resident_bytes));
            *hits += u64::from(used > limit.limit_bytes);
        }
    }

    fn noisy(&mut self, bytes: u64, noise_bytes: u64) -> u64 {
        (bytes + self.random.between(0, 2 * noise_bytes)).saturating_sub(noise_bytes)
    }

    /// One reading of everything.
    pub(super) fn read(
        &mut self,
        config: &PlantConfig,
        now_ns: u64,
        memory: &Memory,
        stores: &[Store],
    ) -> Snapshot {
        let old = self.readings.front().copied();
        let noise = config.sensor_noise_bytes;
        let available = old.map(|old| self.noisy(old.available_bytes, noise));
        let used_kinds = old.map(|old| self.noisy(old.used_kinds_bytes, noise));
        let pressure = Pressure { some_us: memory.some_ns / 1000, full_us: memory.full_ns / 1000 };
        let stored: u64 = stores.iter().map(Store::resident_bytes).sum();
        let mut snapshot = Snapshot {
            at_ns: now_ns,
            events_at_ns: None,
            memory_total_bytes: memory.total_bytes(),
            processors: Some(config.processors),
            available_bytes: available,
            has_lists: config.hidden_read.is_some(),
            free_bytes: Some(memory.empty_bytes(config) + memory.hidden_bytes()),
            used_kinds_bytes: used_kinds,
            pressure: Some(pressure),
            swapped_out_pages: Some(memory.swapped_pages()),
            refaulted_pages: Some(memory.refaulted_pages()),
            limits: self.limits(config, now_ns, stores),
            memory_nodes: memory_nodes(config, now_ns, stored),
            stores: stores.iter().map(Store::state).collect(),
        };
        self.spoil(config, now_ns, &mut snapshot);
        snapshot
    }

    fn limits(&self, config: &PlantConfig, now_ns: u64, stores: &[Store]) -> Vec<Limit> {
        let limits = config.limits.iter().enumerate();
        limits
            .map(|(index, limit)| {
                let used = limit.used_bytes(now_ns, stores.iter().map(Store::resident_bytes));
                Limit {
                    name: limit.name.clone(),
                    limit_bytes: limit.limit_bytes,
                    used_bytes: used.min(limit.limit_bytes),
                    holds_store: limit.holds_store,
                    outside: limit.outside.iter().map(|place| 1_u64 << place).sum(),
                    hits: self.hits.get(index).copied().unwrap_or(0),
                }
            })
            .collect()
    }

    fn spoil(&mut self, config: &PlantConfig, now_ns: u64, snapshot: &mut Snapshot) {
        let mut frozen = false;
        for fault in fault::now(&config.faults, now_ns) {
            match fault.kind {
                FaultKind::AvailableFrozen => frozen = true,
                FaultKind::AvailableUnreadable => snapshot.available_bytes = None,
                FaultKind::AvailableTimes(times) => {
                    let told = snapshot.available_bytes.map(|bytes| (bytes as f64 * times) as u64);
                    snapshot.available_bytes = told;
                }
                FaultKind::UsedKindsUnreadable => snapshot.used_kinds_bytes = None,
                FaultKind::PressureAbsent => snapshot.pressure = None,
                FaultKind::ClockAhead(time) => snapshot.at_ns += ns(time),
                FaultKind::StoreSilent(number) => {
                    if let Some(store) = snapshot.stores.get_mut(number) {
                        store.failed = true;
                    }
                }
                FaultKind::ReleaseShare(..)
                | FaultKind::SpillRate(..)
                | FaultKind::Stopped(_)
                | FaultKind::CommandsLost(_)
                | FaultKind::Gone(_)
                | FaultKind::Fragmented(..) => {}
            }
        }
        if frozen {
            snapshot.available_bytes = *self.frozen.get_or_insert(snapshot.available_bytes);
        } else {
            self.frozen = None;
        }
    }
}

/// Stores of a node lie on its NUMA nodes as configured.
fn memory_nodes(config: &PlantConfig, now_ns: u64, stored_bytes: u64) -> Vec<MemoryNode> {
    let kernel = config.kernel_bytes / (config.memory_nodes.len().max(1) as u64);
    (0..)
        .zip(&config.memory_nodes)
        .map(|(number, node)| {
            let stored = (stored_bytes as f64 * node.store_share) as u64;
            let used = kernel + stored + node.demand.demand_bytes(now_ns);
            MemoryNode {
                number,
                total_bytes: node.total_bytes,
                available_bytes: node.total_bytes.saturating_sub(used),
                stored_bytes: stored,
            }
        })
        .collect()
}
