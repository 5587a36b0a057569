//! Runs a policy over a plant and a trace in virtual time, and keeps what happened.
//!
//! The policy is called as the live controller calls it: at each tick, with a snapshot alone.

use std::time::Duration;

use tidepool_control_policy::{
    Decision, GroupBounds, Level, Parameters, Policy, Snapshot, policy, split,
};

use super::Trace;
use super::plant::{Plant, PlantConfig, Truth};

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The node.
    pub plant: PlantConfig,
    /// Demand of its jobs.
    pub demand: Trace,
    /// Policy and parameters.
    pub parameters: Parameters,
    /// Length of the run.
    pub duration: Duration,
    /// Length of a step of the plant; ticks fall on the first step at or after their time.
    pub step: Duration,
    /// Time of the first tick.
    pub phase: Duration,
    /// Parameters from a moment on.
    pub changes: Vec<(Duration, Parameters)>,
    /// When the controller does not run.
    pub absences: Vec<Absence>,
    /// A second controller that no fence keeps away, and its first tick.
    pub rival: Option<(Parameters, Duration)>,
    /// Capacities that somebody else sets: when, number of the store, bytes.
    pub foreign: Vec<(Duration, usize, u64)>,
}

/// A time without controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Its last tick is before this.
    pub from: Duration,
    /// It runs again from then on.
    pub until: Duration,
    /// Whether it was killed and starts without memory of before, or was only stopped.
    pub killed: bool,
}

impl Simulation {
    /// A run over the whole trace and a second more, in steps of a millisecond.
    pub fn new(plant: PlantConfig, demand: Trace, parameters: Parameters) -> Self {
        let duration = Duration::from_nanos(demand.duration_ns()) + Duration::from_secs(1);
        Simulation {
            plant,
            demand,
            parameters,
            duration,
            step: Duration::from_millis(1),
            phase: Duration::ZERO,
            changes: Vec::new(),
            absences: Vec::new(),
            rival: None,
            foreign: Vec::new(),
        }
    }
}

/// The node after one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time since the start of the run in nanoseconds.
    pub at_ns: u64,
    /// What was true.
    pub truth: Truth,
    /// Capacity of all stores together in bytes.
    pub capacity_bytes: u64,
    /// Latest target of the policy in bytes.
    pub target_bytes: u64,
}

/// A decision and when it was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// Time since the start of the run in nanoseconds.
    pub at_ns: u64,
    /// The decision.
    pub decision: Decision,
}

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The node after each step.
    pub samples: Vec<Sample>,
    /// All decisions of the first controller.
    pub decisions: Vec<Decided>,
    /// Times that the controller changed the capacity of a store.
    pub commands: u64,
    /// Largest capacity of all stores together in bytes.
    pub capacity_max_bytes: u64,
}

/// Receives each decision: the snapshot, the parameters and the answer.
pub type Observer<'a> = &'a mut dyn FnMut(&Snapshot, &Parameters, &Decision);

/// Makes a run.
pub fn simulate(simulation: &Simulation) -> Run {
    simulate_observed(simulation, &mut |_, _, _| {})
}

/// Makes a run and tells an observer of each decision, as a log of a live controller would be.
pub fn simulate_observed(simulation: &Simulation, observer: Observer<'_>) -> Run {
    let capacity_max_bytes =
        simulation.plant.stores.iter().map(|store| store.capacity_max_bytes).sum();
    let mut run = Run { capacity_max_bytes, ..Run::default() };
    let mut plant = Plant::new(simulation.plant.clone(), &simulation.demand);
    let mut main = Controller::new(&simulation.parameters, simulation.phase);
    let mut rival =
        simulation.rival.as_ref().map(|(parameters, at)| Controller::new(parameters, *at));
    let mut foreign = simulation.foreign.clone();
    foreign.sort_by_key(|(at, ..)| *at);
    let mut foreign = foreign.into_iter().peekable();
    let mut changes = simulation.changes.clone();
    changes.sort_by_key(|(at, _)| *at);
    let mut changes = changes.into_iter().peekable();
    let mut was_away = false;
    let (step_ns, end_ns) = (ns(simulation.step).max(1), ns(simulation.duration));
    let mut now_ns = 0;
    while now_ns <= end_ns {
        plant.advance(now_ns, &simulation.demand);
        while let Some((_, store, bytes)) = foreign.next_if(|(at, ..)| ns(*at) <= now_ns) {
            plant.foreign_command(store, bytes);
        }
        while let Some((_, parameters)) = changes.next_if(|(at, _)| ns(*at) <= now_ns) {
            main.set(parameters, now_ns);
        }
        let absence = simulation
            .absences
            .iter()
            .find(|absence| (ns(absence.from)..ns(absence.until)).contains(&now_ns));
        if absence.is_some_and(|absence| absence.killed) && !was_away {
            main.forget();
        }
        was_away = absence.is_some();
        if absence.is_none() && main.is_due(now_ns) {
            let (snapshot, decision) = main.decide(&mut plant, now_ns);
            run.commands += command(&mut plant, &snapshot, &decision);
            observer(&snapshot, &main.parameters, &decision);
            run.decisions.push(Decided { at_ns: now_ns, decision });
        }
        if let Some(rival) = &mut rival
            && rival.is_due(now_ns)
        {
            let (snapshot, decision) = rival.decide(&mut plant, now_ns);
            command(&mut plant, &snapshot, &decision);
        }
        run.samples.push(Sample {
            at_ns: now_ns,
            truth: plant.truth(),
            capacity_bytes: plant.capacities_bytes().sum(),
            target_bytes: run.decisions.last().map_or(0, |last| last.decision.target_bytes),
        });
        now_ns += step_ns;
    }
    run
}

/// A policy and when it is asked next.
struct Controller {
    bounds: GroupBounds,
    policy: Box<dyn Policy>,
    parameters: Parameters,
    due_ns: u64,
}

impl Controller {
    fn new(parameters: &Parameters, phase: Duration) -> Self {
        Controller {
            bounds: GroupBounds::default(),
            policy: policy(parameters.policy),
            parameters: parameters.clone(),
            due_ns: ns(phase),
        }
    }

    fn forget(&mut self) {
        self.bounds = GroupBounds::default();
        self.policy = policy(self.parameters.policy);
    }

    /// Another kind of policy begins without memory of before; the change acts at once.
    fn set(&mut self, parameters: Parameters, now_ns: u64) {
        let other = parameters.policy != self.parameters.policy;
        self.parameters = parameters;
        self.due_ns = self.due_ns.min(now_ns);
        if other {
            self.forget();
        }
    }

    fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    fn decide(&mut self, plant: &mut Plant, now_ns: u64) -> (Snapshot, Decision) {
        let mut snapshot = plant.snapshot();
        self.bounds.apply(&mut snapshot, &self.parameters);
        let decision = self.policy.decide(&snapshot, &self.parameters);
        let interval_ns = ns(Duration::from_millis(self.parameters.interval_ms.max(1)));
        // Ticks missed while the controller was away are not made up for.
        let missed = (now_ns - self.due_ns) / interval_ns;
        let wait_ns = ns(Duration::from_millis(decision.next_ms)).max(interval_ns);
        self.due_ns += interval_ns * missed + wait_ns;
        (snapshot, decision)
    }
}

/// Carries a decision out; returns how many stores got another capacity.
fn command(plant: &mut Plant, snapshot: &Snapshot, decision: &Decision) -> u64 {
    let before: Vec<u64> = snapshot.stores.iter().map(|store| store.capacity_bytes).collect();
    let mut capacities = Vec::new();
    split(decision.target_bytes, &snapshot.stores, &mut capacities);
    plant.command(&capacities, decision.level == Level::Emergency);
    let changed = before.iter().zip(plant.commanded_bytes()).filter(|(old, new)| **old != *new);
    changed.count() as u64
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tidepool_control_policy::ControlPolicy;

    use super::super::{Fault, FaultKind, StoreConfig};
    use super::*;

    const GIB: u64 = 1 << 30;
    const S: Duration = Duration::from_secs(1);

    fn fixed(plant: PlantConfig, demand: Trace) -> Simulation {
        let parameters = Parameters { policy: ControlPolicy::Static, ..Parameters::default() };
        Simulation::new(plant, demand, parameters)
    }

    fn last(run: &Run) -> Truth {
        run.samples.last().unwrap().truth
    }

    #[test]
    fn a_store_of_fixed_size_makes_jobs_wait_and_the_same_run_comes_out_again() {
        let mut plant = PlantConfig::node(100 * GIB, 60 * GIB);
        plant.sensor_noise_bytes = GIB;
        let demand = Trace::step(20 * GIB, 60 * GIB, S, 3 * S);
        let simulation = fixed(plant, demand);
        let run = simulate(&simulation);
        let end = last(&run);
        assert_eq!((end.stored_bytes, end.evicted_bytes), (60 * GIB, 0));
        assert_eq!(end.short_bytes, 21 * GIB, "20 too many, and 1 of the kernel");
        assert_eq!(end.stalled_full_ns, end.stalled_some_ns);
        assert!(end.stalled_full_ns >= 2_900_000_000, "{}", end.stalled_full_ns);
        assert_eq!(simulate(&simulation), run);
    }

    #[test]
    fn swap_takes_what_does_not_fit_and_counts() {
        let mut plant = PlantConfig::node(100 * GIB, 60 * GIB);
        plant.swap = (50 * GIB, 10 * GIB);
        let run = simulate(&fixed(plant, Trace::step(20 * GIB, 60 * GIB, S, 6 * S)));
        let end = last(&run);
        assert_eq!((end.short_bytes, end.swapped_out_bytes), (0, 21 * GIB + GIB / 4));
        assert!((1_900_000_000..2_300_000_000).contains(&end.stalled_some_ns), "{end:?}");
    }

    #[test]
    fn without_a_controller_the_lease_ends_in_the_guaranteed_part_and_held_bytes_stay() {
        let mut plant = PlantConfig::node(100 * GIB, 60 * GIB);
        plant.stores[0].capacity_min_bytes = 5 * GIB;
        let mut simulation = fixed(plant, Trace::constant(0, 5 * S));
        simulation.absences = vec![Absence { from: 2 * S, until: 4 * S, killed: true }];
        let run = simulate(&simulation);
        let stored = |s: f64| run.samples[(s * 1e3) as usize].truth.stored_bytes;
        // The last renewal of the lease may be as old as a wait.
        assert_eq!([stored(2.75), stored(3.9)], [60 * GIB, 5 * GIB]);
        assert!(stored(4.5) > 5 * GIB, "it grows again");
        simulation.plant.stores[0].held_bytes = 8 * GIB;
        simulation.plant.stores[0].memory_only_bytes = GIB / 2;
        let run = simulate(&simulation);
        assert_eq!(run.samples[3_900].truth.stored_bytes, 8 * GIB);
        let second = run.samples[3_250].truth.stored_bytes;
        assert!(second > 8 * GIB, "not written back yet: {second}");
    }

    #[test]
    fn small_pages_hide_in_lists_and_late_bytes_stay_with_the_store() {
        let mut plant = PlantConfig::node(100 * GIB, 0);
        let store = StoreConfig::tidepool(60 * GIB).in_small_pages();
        plant.stores = vec![StoreConfig { return_delay: S, ..store }];
        let mut simulation = fixed(plant, Trace::constant(0, 4 * S));
        simulation.foreign = vec![(S, 0, 50 * GIB)];
        simulation.absences = vec![Absence { from: S / 2, until: 9 * S, killed: false }];
        simulation.plant.stores[0].lease = None;
        let run = simulate(&simulation);
        assert_eq!(run.samples[1_900].truth.stored_bytes, 60 * GIB, "not back yet");
        let at = run.samples[4_500].truth;
        assert_eq!(at.stored_bytes, 50 * GIB);
        assert!((9 * GIB..=10 * GIB).contains(&at.hidden_bytes), "{}", at.hidden_bytes);
        assert!(at.free_bytes < 40 * GIB, "the lists are not free");
    }

    #[test]
    fn a_lost_command_misses_its_deadline_and_the_store_recovers() {
        let mut plant = PlantConfig::node(100 * GIB, 60 * GIB);
        plant.stores[0].capacity_max_bytes = 30 * GIB;
        plant.faults =
            vec![Fault { from: Duration::ZERO, until: 7 * S, kind: FaultKind::CommandsLost(0) }];
        let mut failed = Vec::new();
        let simulation = fixed(plant, Trace::constant(0, 9 * S));
        let run = simulate_observed(&simulation, &mut |snapshot, _, _| {
            failed.push((snapshot.at_ns, snapshot.stores[0].failed));
        });
        let failed_at = |seconds: u64| {
            let seen = failed.iter().rfind(|(at_ns, _)| *at_ns <= seconds * 1_000_000_000);
            seen.is_some_and(|(_, failed)| *failed)
        };
        assert_eq!([4, 6, 9].map(failed_at), [false, true, false]);
        assert_eq!(last(&run).stored_bytes, 30 * GIB);
    }
}
