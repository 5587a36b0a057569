//! [`Governor`]: the control loop, one decision after another. It reads sensors and stores into a
//! snapshot, and turns the policy's answer into commands. Knows no clock and no thread but those of
//! the stores: the time is an argument, so tests drive it as they like.

use std::sync::Arc;
use std::time::Instant;

use tidepool_control_policy::{
    Alarm, Decision, GroupBounds, Level, NodeFacts, Parameters, Policy, Reason, Snapshot,
    StoreState, policy, split,
};
use tidepool_proto::Result;

use crate::actuator::Actuator;
use crate::latency::Histogram;
use crate::report::{Recent, Report};
use crate::sensor::Sense;
use crate::store::Store;

/// Of a longer pause this much counts as time that a store had: this process did not run either.
const ELAPSED_MAX_NS: u64 = 200_000_000;
/// Decisions within the lease of a store, even where nothing else needs them.
const DECISIONS_PER_LEASE: u32 = 4;

/// Keeps what was decided, for replay.
pub trait Record: Send {
    /// Takes one decision and the parameters that it was made with. Must not block.
    fn record(&mut self, snapshot: &Snapshot, parameters: &Parameters, decision: &Decision);

    /// What went wrong since the last question, at most one line.
    fn notice(&mut self) -> Option<String> {
        None
    }
}

/// The controller without its clock.
pub struct Governor {
    sensors: Box<dyn Sense>,
    stores: Vec<Store>,
    record: Option<Box<dyn Record>>,
    bounds: GroupBounds,
    policy: Box<dyn Policy>,
    parameters: Parameters,
    snapshot: Snapshot,
    decision: Decision,
    capacities: Vec<u64>,
    recent: Recent,
    notes: Vec<String>,
    ticks: u64,
    late_ticks: u64,
    /// How long after the last decision this one was due.
    period_ns: u64,
    tick_time: Histogram,
}

impl Governor {
    /// A controller of `stores`, which are asked to give in this order.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for parameters that [`Parameters::check`] refuses, `LimitReached` where no
    /// thread can be started for a store.
    pub fn new(
        sensors: Box<dyn Sense>,
        stores: Vec<Arc<dyn Actuator>>,
        parameters: Parameters,
        record: Option<Box<dyn Record>>,
    ) -> Result<Self> {
        parameters.check(&NodeFacts::default())?;
        let stores: Vec<Store> = stores.into_iter().map(Store::start).collect::<Result<_>>()?;
        let states = vec![StoreState::default(); stores.len()];
        Ok(Governor {
            notes: sensors.notes(),
            sensors,
            capacities: Vec::with_capacity(stores.len()),
            stores,
            record,
            bounds: GroupBounds::default(),
            policy: policy(parameters.policy),
            period_ns: parameters.interval_ms.saturating_mul(1_000_000),
            parameters,
            snapshot: Snapshot { stores: states, ..Snapshot::default() },
            decision: before_the_first(),
            recent: Recent::new(),
            ticks: 0,
            late_ticks: 0,
            tick_time: Histogram::default(),
        })
    }

    /// Decides once, at `at_ns` since the start, and says when to decide next. A time before that
    /// of the last decision counts as that time.
    pub fn tick(&mut self, at_ns: u64) -> u64 {
        let started = Instant::now();
        let at_ns = at_ns.max(self.snapshot.at_ns);
        let elapsed_ns = at_ns - self.snapshot.at_ns;
        if self.ticks > 0 && elapsed_ns > self.period_ns.saturating_mul(3) {
            self.late_ticks += 1;
        }
        self.snapshot.at_ns = at_ns;
        self.look(elapsed_ns.min(ELAPSED_MAX_NS));
        self.bounds.apply(&mut self.snapshot, &self.parameters);
        self.decision = self.policy.decide(&self.snapshot, &self.parameters);
        split(self.decision.target_bytes, &self.snapshot.stores, &mut self.capacities);
        for (store, capacity_bytes) in self.stores.iter_mut().zip(&self.capacities) {
            store.ask(at_ns, *capacity_bytes);
        }
        self.tick_time.add(started.elapsed());
        self.recent.add(at_ns, &self.decision);
        self.keep();
        self.ticks += 1;
        self.period_ns = self.period_ms().saturating_mul(1_000_000);
        at_ns.saturating_add(self.period_ns)
    }

    fn look(&mut self, elapsed_ns: u64) {
        let mut moved = false;
        for (store, state) in self.stores.iter_mut().zip(&mut self.snapshot.stores) {
            moved |= store.look(elapsed_ns, state);
        }
        if moved {
            self.sensors.memory_moved();
        }
        let stored_bytes = self.snapshot.stored_bytes();
        self.sensors.read(self.snapshot.at_ns, stored_bytes, &mut self.snapshot);
    }

    fn keep(&mut self) {
        let Some(record) = &mut self.record else { return };
        record.record(&self.snapshot, &self.parameters, &self.decision);
        if let Some(notice) = record.notice() {
            self.notes.push(notice);
        }
    }

    /// Time until the next decision: what the policy says and the leases of the stores allow, and
    /// the interval while a command is under way.
    fn period_ms(&self) -> u64 {
        let interval_ms = self.parameters.interval_ms.max(1);
        if self.stores.iter().any(Store::is_busy) {
            return interval_ms;
        }
        let leases = self.stores.iter().filter_map(Store::lease);
        let allowed = leases.map(|lease| (lease / DECISIONS_PER_LEASE).as_millis() as u64).min();
        self.decision.next_ms.min(allowed.unwrap_or(u64::MAX)).max(interval_ms)
    }

    /// Changes the parameters from the next decision on. Another policy starts without history.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for parameters that [`Parameters::check`] refuses; those before stay.
    pub fn set_parameters(&mut self, parameters: Parameters) -> Result<()> {
        let memory_total_bytes = self.snapshot.memory_total_bytes;
        parameters.check(&NodeFacts { memory_total_bytes, ..NodeFacts::default() })?;
        if parameters.policy != self.parameters.policy {
            self.policy = policy(parameters.policy);
        }
        self.parameters = parameters;
        Ok(())
    }

    /// The present parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Adds a line about this machine to the report.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// The sensors, for what wakes a sleeping loop.
    pub fn sensors(&self) -> &dyn Sense {
        &*self.sensors
    }

    /// What the operator should know now.
    pub fn alarms(&self) -> &[Alarm] {
        &self.decision.alarms
    }

    /// All there is to tell.
    pub fn report(&self) -> Report {
        Report {
            ticks: self.ticks,
            late_ticks: self.late_ticks,
            parameters: self.parameters.clone(),
            snapshot: self.snapshot.clone(),
            decision: self.decision.clone(),
            recent: self.recent.list(),
            stores: self.stores.iter().map(Store::report).collect(),
            notes: self.notes.clone(),
            tick_time: self.tick_time.clone(),
        }
    }
}

/// The decision before the first.
pub(crate) fn before_the_first() -> Decision {
    Decision {
        target_bytes: 0,
        demand_bytes: 0,
        slope_bytes_per_s: 0,
        reason: Reason::Steady,
        level: Level::Normal,
        alarms: Vec::new(),
        next_ms: 0,
    }
}
