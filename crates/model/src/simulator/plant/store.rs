//! A simulated store: takes commands after a delay, gives memory back at a rate, fills up to its
//! capacity. Never evicts pinned bytes, nor memory-only bytes before they are written back.

use std::collections::VecDeque;

use super::fault::StoreFaults;
use super::{StoreConfig, moved, ns};
use tidepool_control_policy::StoreState;

/// Part of the latest measurement in the measured rate.
const RATE_WEIGHT: f64 = 0.2;

#[derive(Clone, Debug)]
pub(super) struct Store {
    config: StoreConfig,
    /// Bytes in its own ledger.
    ledger_bytes: u64,
    /// Bytes that left the ledger and are not back with the system: when, and how many.
    late: VecDeque<(u64, u64)>,
    late_bytes: u64,
    capacity_bytes: u64,
    /// Commands under way: when they take effect, and what they say.
    commands: VecDeque<(u64, u64)>,
    memory_only_bytes: u64,
    /// When the command that is not yet carried out was first given.
    owed_since_ns: Option<u64>,
    renewed_ns: u64,
    measured_bytes_per_s: f64,
    /// Rate of writing back as it was measured; 0 while nothing was written.
    write_back_bytes_per_s: f64,
    /// Whether its process does not run, and for how long it did not since the last command.
    is_stopped: bool,
    stopped_ns: u64,
    filled_bytes: u64,
    missed: bool,
    /// What it said last, once its process ended.
    said_last: Option<StoreState>,
}

/// The value of the first entry, taken out, if its time has come.
fn due(queue: &mut VecDeque<(u64, u64)>, now_ns: u64) -> Option<u64> {
    let (_, bytes) = queue.front().copied().filter(|(at_ns, _)| *at_ns <= now_ns)?;
    queue.pop_front();
    Some(bytes)
}

impl Store {
    pub(super) fn new(config: StoreConfig) -> Self {
        Store {
            ledger_bytes: config.resident_bytes,
            late: VecDeque::new(),
            late_bytes: 0,
            capacity_bytes: config.capacity_bytes,
            commands: VecDeque::new(),
            memory_only_bytes: config.memory_only_bytes,
            owed_since_ns: None,
            renewed_ns: 0,
            measured_bytes_per_s: config.release_believed_bytes_per_s as f64,
            write_back_bytes_per_s: 0.0,
            is_stopped: false,
            stopped_ns: 0,
            filled_bytes: 0,
            missed: false,
            said_last: None,
            config,
        }
    }

    pub(super) fn small_pages(&self) -> bool {
        self.config.small_pages
    }

    /// Bytes that the system does not have.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.ledger_bytes + self.late_bytes
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(super) fn memory_only_bytes(&self) -> u64 {
        self.memory_only_bytes
    }

    pub(super) fn filled_bytes(&self) -> u64 {
        self.filled_bytes
    }

    /// Capacity after all commands under way.
    pub(super) fn commanded_bytes(&self) -> u64 {
        self.commands.back().map_or(self.capacity_bytes, |command| command.1)
    }

    pub(super) fn command(&mut self, now_ns: u64, capacity_bytes: u64, faults: &StoreFaults) {
        (self.renewed_ns, self.stopped_ns) = (now_ns, 0);
        if faults.gone {
            return;
        }
        if faults.commands_lost {
            // Asked and not answered: the deadline runs all the same.
            if capacity_bytes < self.ledger_bytes {
                self.owed_since_ns.get_or_insert(now_ns);
            }
            return;
        }
        let most = capacity_bytes.min(self.config.capacity_max_bytes);
        let wanted = most.max(self.config.capacity_min_bytes);
        if wanted != self.commanded_bytes() {
            self.commands.push_back((now_ns + ns(self.config.actuation_delay), wanted));
        }
    }

    pub(super) fn foreign_command(&mut self, capacity_bytes: u64) {
        self.commands.clear();
        self.capacity_bytes = capacity_bytes.min(self.config.capacity_max_bytes);
    }

    /// Bytes that no command can free at present.
    fn kept_bytes(&self) -> u64 {
        self.config.held_bytes + self.memory_only_bytes
    }

    /// Bytes commanded away and not back with the system.
    fn outstanding_bytes(&self) -> u64 {
        self.resident_bytes().saturating_sub(self.commanded_bytes().max(self.kept_bytes()))
    }

    /// Carries out commands for a step; returns the bytes that the system got back.
    pub(super) fn release(&mut self, now_ns: u64, step_ns: u64, faults: &StoreFaults) -> u64 {
        if faults.gone {
            return self.end();
        }
        self.said_last = None;
        self.is_stopped = faults.stopped;
        if faults.stopped {
            self.stopped_ns += step_ns;
            return 0;
        }
        while let Some(bytes) = due(&mut self.commands, now_ns) {
            self.capacity_bytes = bytes;
        }
        let silence_ns = now_ns.saturating_sub(self.renewed_ns + self.stopped_ns);
        if self.config.lease.is_some_and(|lease| silence_ns > ns(lease)) {
            self.commands.clear();
            self.capacity_bytes = self.config.capacity_min_bytes;
        }
        if self.ledger_bytes > self.capacity_bytes {
            self.spill(step_ns, faults);
        }
        let least = self.config.capacity_min_bytes.min(self.capacity_bytes);
        let keep = self.whole_blocks(self.capacity_bytes).max(least).max(self.kept_bytes());
        let keep = if self.ledger_bytes <= self.capacity_bytes { self.ledger_bytes } else { keep };
        let excess = self.ledger_bytes.saturating_sub(keep);
        let full = faults.release_bytes_per_s.unwrap_or(self.config.release_bytes_per_s);
        let rate = full as f64 * faults.release_share.unwrap_or(1.0);
        let released = if faults.commands_lost { 0 } else { moved(rate as u64, step_ns) };
        let released = released.min(excess);
        self.ledger_bytes -= released;
        if released > 0 {
            self.measure(rate);
            self.late.push_back((now_ns + ns(self.config.return_delay), released));
            self.late_bytes += released;
        }
        let mut returned = 0;
        while let Some(bytes) = due(&mut self.late, now_ns) {
            returned += bytes;
        }
        self.late_bytes -= returned;
        self.watch(now_ns, faults);
        returned
    }

    /// Its process ends, if it did not yet; returns the bytes that the system gets back.
    fn end(&mut self) -> u64 {
        if self.said_last.is_none() {
            self.said_last = Some(StoreState { failed: true, ..self.state() });
        }
        self.is_stopped = true;
        self.commands.clear();
        self.late.clear();
        self.memory_only_bytes = 0;
        std::mem::take(&mut self.ledger_bytes) + std::mem::take(&mut self.late_bytes)
    }

    /// Writes memory-only bytes down, and measures how fast that goes.
    fn spill(&mut self, step_ns: u64, faults: &StoreFaults) {
        let rate = faults.write_back_bytes_per_s.unwrap_or(self.config.write_back_bytes_per_s);
        let spilled = moved(rate, step_ns).min(self.memory_only_bytes);
        self.memory_only_bytes -= spilled;
        if spilled > 0 {
            let weight = if self.write_back_bytes_per_s > 0.0 { RATE_WEIGHT } else { 1.0 };
            self.write_back_bytes_per_s += weight * (rate as f64 - self.write_back_bytes_per_s);
        }
    }

    fn whole_blocks(&self, bytes: u64) -> u64 {
        bytes - bytes % self.config.block_bytes.max(1)
    }

    fn measure(&mut self, bytes_per_s: f64) {
        let weight = if self.measured_bytes_per_s > 0.0 { RATE_WEIGHT } else { 1.0 };
        self.measured_bytes_per_s += weight * (bytes_per_s - self.measured_bytes_per_s);
    }

    /// Whether the last command is overdue.
    fn watch(&mut self, now_ns: u64, faults: &StoreFaults) {
        let owes = self.outstanding_bytes() > 0 || faults.commands_lost;
        match self.owed_since_ns {
            Some(since) if owes => self.missed = now_ns - since > ns(self.config.deadline),
            None if self.outstanding_bytes() > 0 => self.owed_since_ns = Some(now_ns),
            _ => {
                if !owes {
                    self.owed_since_ns = None;
                    self.missed = false;
                }
            }
        }
    }

    /// Fills toward the capacity for a step, within `room_bytes` of free memory.
    pub(super) fn fill(&mut self, step_ns: u64, room_bytes: u64) -> u64 {
        if self.is_stopped {
            return 0;
        }
        let wanted = self.whole_blocks(self.capacity_bytes).saturating_sub(self.ledger_bytes);
        let filled = wanted.min(moved(self.config.fill_bytes_per_s, step_ns)).min(room_bytes);
        self.ledger_bytes += filled;
        self.filled_bytes += filled;
        filled
    }

    /// What the store tells the controller.
    pub(super) fn state(&self) -> StoreState {
        if let Some(said) = &self.said_last {
            return said.clone();
        }
        StoreState {
            name: self.config.name.clone(),
            resident_bytes: self.resident_bytes(),
            capacity_bytes: self.commanded_bytes(),
            capacity_min_bytes: self.config.capacity_min_bytes,
            capacity_max_bytes: self.config.capacity_max_bytes,
            held_bytes: self.config.held_bytes,
            memory_only_bytes: self.memory_only_bytes,
            release_bytes_per_s: self.measured_bytes_per_s as u64,
            write_back_bytes_per_s: self.write_back_bytes_per_s as u64,
            speed: self.config.speed,
            block_bytes: self.config.block_bytes,
            outstanding_bytes: self.outstanding_bytes(),
            failed: self.missed,
            ..StoreState::default()
        }
    }
}
