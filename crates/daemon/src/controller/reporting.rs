//! Converts the report of the control loop to the status that the node shows its operators.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tidepool_control::{RecentDecision, Report};
use tidepool_control_policy::{Snapshot, StoreState, headroom_bytes};
use tidepool_proto::ByteSize;
use tidepool_proto::control::{ControlEvent, ControlReport, ControlledStore, GroupReport};

/// Turns reports of the loop into those for the node; remembers what was told.
pub struct Reporter {
    /// Start of the loop on the clock of the wall.
    begun: SystemTime,
    /// Begin of the latest decision that was told, in nanoseconds since the start.
    told_ns: Option<u64>,
}

impl Reporter {
    /// For a loop that starts now.
    pub fn new() -> Reporter {
        Reporter { begun: SystemTime::now(), told_ns: None }
    }

    /// What the node is to know now. Decisions come once, when the next one has ended them.
    pub fn report(&mut self, report: &Report) -> ControlReport {
        let snapshot = &report.snapshot;
        let own = report.stores.first();
        let reaction =
            |share: f64| own.and_then(|own| own.release_time.quantile_us(share)).unwrap_or(0);
        let release = snapshot.stores.first().map_or(0, |store| store.release_bytes_per_s);
        ControlReport {
            policy: name(&report.parameters.policy),
            level: name(&report.decision.level),
            reason: report.recent.last().map(RecentDecision::words).unwrap_or_default(),
            demand_bytes: report.decision.demand_bytes,
            slope_bytes_per_s: report.decision.slope_bytes_per_s,
            target_bytes: report.decision.target_bytes,
            memory_total_bytes: snapshot.memory_total_bytes,
            available_bytes: snapshot.available_bytes,
            group: nearest_group(snapshot),
            headroom_bytes: headroom_bytes(snapshot.memory_total_bytes, &report.parameters),
            release_bytes_per_s: release,
            decisions: report.ticks,
            reaction_us_median: reaction(0.5),
            reaction_us_max: reaction(1.0),
            alarms: report.decision.alarms.iter().map(name).collect(),
            notes: notes(report),
            stores: snapshot.stores.iter().map(store).collect(),
            events: self.events(report),
        }
    }

    fn events(&mut self, report: &Report) -> Vec<ControlEvent> {
        let ended = report.recent.split_last().map_or(&[][..], |(_, ended)| ended);
        let told_ns = self.told_ns;
        let news = ended.iter().filter(|it| told_ns.is_none_or(|told| it.from_ns > told));
        let changes = news.filter(|it| it.before_bytes != it.target_bytes);
        let resident_bytes = report.snapshot.stored_bytes();
        let events = changes.map(|it| self.event(it, resident_bytes)).collect();
        self.told_ns = ended.last().map(|last| last.from_ns).or(told_ns);
        events
    }

    fn event(&self, decision: &RecentDecision, resident_bytes: u64) -> ControlEvent {
        let at = self.begun + Duration::from_nanos(decision.from_ns);
        let at_ms = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        ControlEvent {
            at_ms: u64::try_from(at_ms).unwrap_or(u64::MAX),
            target_bytes: decision.target_bytes,
            demand_bytes: decision.demand_bytes,
            slope_bytes_per_s: decision.slope_bytes_per_s,
            resident_bytes,
            reason: decision.words(),
        }
    }
}

/// The group whose limit leaves least room, where that is less than the machine's.
fn nearest_group(snapshot: &Snapshot) -> Option<GroupReport> {
    let groups = snapshot.limits.iter().filter(|limit| limit.holds_store);
    let groups = groups.map(|limit| GroupReport {
        name: limit.name.clone(),
        limit_bytes: limit.limit_bytes,
        demand_bytes: limit.demand_bytes(&snapshot.stores),
        available_bytes: limit.limit_bytes.saturating_sub(limit.used_bytes),
    });
    let nearest = groups.min_by_key(|group| group.available_bytes)?;
    (nearest.available_bytes < snapshot.available_bytes.unwrap_or(u64::MAX)).then_some(nearest)
}

/// What this machine lacks, and why stores fail or do not come down to what they may hold.
fn notes(report: &Report) -> Vec<String> {
    let failing = report.snapshot.stores.iter().zip(&report.stores).filter(|(it, _)| it.failed);
    let why = failing.filter_map(|(state, store)| {
        store.last_error.as_ref().map(|error| format!("store `{}` fails: {error}", state.name))
    });
    let pairs = report.snapshot.stores.iter().zip(&report.stores);
    let kept = pairs.filter_map(|(state, store)| kept(state, &store.keeps));
    report.notes.iter().cloned().chain(why).chain(kept).collect()
}

/// What a store did not give back, and what may be why.
fn kept(state: &StoreState, keeps: &str) -> Option<String> {
    let StoreState { name, resident_bytes, capacity_bytes, held_bytes, .. } = state;
    let is_told = !keeps.is_empty() && *held_bytes > 0 && resident_bytes > capacity_bytes;
    let [holds, may, stays] = [resident_bytes, capacity_bytes, held_bytes].map(|it| ByteSize(*it));
    is_told.then(|| {
        format!(
            "store `{name}` holds {holds}, and may hold {may}: {stays} did not go ({keeps} stay)"
        )
    })
}

fn store(state: &StoreState) -> ControlledStore {
    ControlledStore {
        name: state.name.clone(),
        resident_bytes: state.resident_bytes,
        capacity_bytes: state.capacity_bytes,
        capacity_min_bytes: state.capacity_min_bytes,
        capacity_configured_bytes: state.capacity_configured_bytes,
        capacity_max_bytes: state.capacity_max_bytes,
        page_cache_bytes: state.page_cache_bytes,
        held_bytes: state.held_bytes,
        block_bytes: state.block_bytes,
        failed: state.failed,
    }
}

/// The stable name of a plain value.
fn name<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use tidepool_control_policy::Limit;

    use super::*;

    #[test]
    fn the_group_that_leaves_least_is_told_where_the_machine_has_more() {
        let limit = |name: &str, limit_bytes, used_bytes, holds_store| Limit {
            name: name.to_owned(),
            limit_bytes,
            used_bytes,
            holds_store,
            ..Limit::default()
        };
        let store = StoreState { resident_bytes: 300, ..StoreState::default() };
        let mut snapshot = Snapshot {
            available_bytes: Some(500),
            stores: vec![store],
            limits: vec![
                limit("/job", 1000, 800, true),
                limit("/", 2000, 1000, true),
                limit("/other", 100, 100, false),
            ],
            ..Snapshot::default()
        };
        let group = nearest_group(&snapshot).unwrap();
        assert_eq!((group.name.as_str(), group.limit_bytes), ("/job", 1000));
        assert_eq!((group.demand_bytes, group.available_bytes), (500, 200));
        snapshot.available_bytes = Some(100);
        assert_eq!(nearest_group(&snapshot), None, "the machine is nearer");
    }

    #[test]
    fn what_a_store_does_not_give_back_is_told_with_what_may_be_why() {
        let mut state = StoreState {
            name: "warm".into(),
            resident_bytes: 5 << 30,
            capacity_bytes: 1 << 30,
            held_bytes: 4 << 30,
            ..StoreState::default()
        };
        let said = kept(&state, "pinned files").unwrap();
        for part in ["`warm`", "holds 5GiB", "may hold 1GiB", "4GiB did not go", "pinned files"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(kept(&state, ""), None);
        state.held_bytes = 0;
        assert_eq!(kept(&state, "pinned files"), None, "it is on its way");
    }
}
