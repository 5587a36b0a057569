//! [`Site`]: the plane at one moment, as `plane site --json` prints it. Field names are stable.

use std::time::Duration;

use serde::Serialize;

use super::alarms::{self, Alarm};
use super::gathered::Gathered;
use super::summary::{Counts, Scope, Summary, Sums};

/// Younger summaries are no reason to wait: the job sends one a second.
pub const SILENT_AFTER: Duration = Duration::from_secs(3);

/// The plane at one moment.
#[derive(Debug, Serialize)]
pub struct Site {
    /// Topic that this is of.
    pub topic: String,
    /// Run of the job; absent where no summary tells.
    pub plane: Option<String>,
    /// Its policy.
    pub policy: Option<String>,
    /// Age of the newest summary; absent where clocks differ and none came since.
    pub age_ms: Option<u64>,
    /// Whether no summary comes any more.
    pub is_silent: bool,
    /// Sums over all nodes.
    #[serde(flatten)]
    pub sums: Sums,
    /// Names of some nodes that are silent.
    pub silent: Vec<String>,
    /// Samples that were taken.
    pub samples_per_s: f64,
    /// Intervals in which the policy decided.
    pub decisions_per_s: f64,
    /// Ceilings that were sent.
    pub ceilings_per_s: f64,
    /// Time between the broker and a decision, the longest of the last summaries.
    pub lag_ms: Option<u64>,
    /// Time that counts and rates are of.
    pub span_ms: u64,
    /// What was counted in that time.
    pub counts: Counts,
    /// Clusters, those with the most demand first.
    pub sites: Groups,
    /// Racks.
    pub racks: Groups,
    /// Jobs, those with the most memory first.
    pub jobs: Groups,
    /// What should worry.
    pub alarms: Vec<Alarm>,
}

/// Sums of one kind.
#[derive(Debug, Default, Serialize)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// The first of them.
    pub first: Vec<Group>,
}

/// A sum.
#[derive(Debug, Serialize)]
pub struct Group {
    /// Cluster.
    pub cluster: String,
    /// Rack or job; absent for a cluster.
    pub name: Option<String>,
    /// Memory of the job; that of others is in `demand_bytes` as well.
    pub job_bytes: Option<u64>,
    /// Sums over its nodes.
    #[serde(flatten)]
    pub sums: Sums,
}

impl Site {
    /// What was gathered, as of now.
    pub fn new(
        gathered: &Gathered,
        topic: &str,
        top: usize,
        age: Option<Duration>,
        trouble: Option<String>,
    ) -> Site {
        let newest = gathered.newest();
        let (counts, span_ms) = gathered.counts();
        let rate = |count: u64| count as f64 * 1000.0 / span_ms.max(1) as f64;
        let mut site = Site {
            topic: topic.to_owned(),
            plane: newest.map(|it| it.plane().to_owned()).filter(|it| !it.is_empty()),
            policy: newest.and_then(|it| it.policy.clone()),
            age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            is_silent: age.is_none_or(|age| age > SILENT_AFTER),
            sums: newest.map(|it| it.sums).unwrap_or_default(),
            silent: newest.map(|it| it.silent.clone()).unwrap_or_default(),
            samples_per_s: rate(counts.samples),
            decisions_per_s: rate(counts.decisions),
            ceilings_per_s: rate(counts.ceilings),
            lag_ms: gathered.lag_ms(),
            span_ms,
            counts,
            sites: groups(gathered, Scope::Cluster, top),
            racks: groups(gathered, Scope::Rack, top),
            jobs: groups(gathered, Scope::Job, top),
            alarms: Vec::new(),
        };
        site.alarms = alarms::of(&site, gathered, trouble);
        site
    }

    /// Whether the plane does what it is for.
    pub fn works(&self) -> bool {
        self.alarms.iter().all(|alarm| !alarm.is_critical)
    }
}

fn groups(gathered: &Gathered, scope: Scope, top: usize) -> Groups {
    let mut all: Vec<&Summary> = gathered.groups(scope).collect();
    let size = |group: &Summary| match scope {
        Scope::Job => group.job_bytes,
        _ => group.sums.demand_bytes,
    };
    // Those of one size stay in the order of their names.
    all.sort_by_key(|group| std::cmp::Reverse(size(group)));
    let first = all.iter().take(top).map(|group| Group {
        cluster: group.cluster().to_owned(),
        name: (scope != Scope::Cluster).then(|| group.name().to_owned()),
        job_bytes: (scope == Scope::Job).then_some(group.job_bytes),
        sums: group.sums,
    });
    Groups { first: first.collect(), count: all.len() }
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::super::summary::tests::message;
    use super::*;

    /// A site after `rounds`, each with its sums.
    pub fn site(rounds: &[Value], age: Option<Duration>) -> Site {
        let mut gathered = Gathered::default();
        for round in rounds {
            gathered.take(&serde_json::to_vec(round).unwrap());
        }
        Site::new(&gathered, "tidepool-summaries", 2, age, None)
    }

    fn rack(name: &str, demand_bytes: u64) -> Value {
        let mut rack = message("rack", "site1", name, 1);
        rack["demand_bytes"] = json!(demand_bytes);
        rack
    }

    #[test]
    fn the_largest_come_first_and_are_bounded() {
        let racks = [rack("a", 1), rack("b", 3), rack("c", 2), message("plane", "", "", 1)];
        let site = site(&racks, Some(Duration::ZERO));
        let names: Vec<_> = site.racks.first.iter().map(|it| it.name.as_deref()).collect();
        assert_eq!((names, site.racks.count), (vec![Some("b"), Some("c")], 3));
    }

    #[test]
    fn rates_are_of_the_time_that_was_counted() {
        let mut second = message("plane", "", "", 3);
        second["samples"] = json!(70);
        second["span_ms"] = json!(3000);
        let site = site(&[message("plane", "", "", 1), second], Some(Duration::ZERO));
        assert_eq!((site.samples_per_s, site.ceilings_per_s), (25.0, 3.0));
        assert!(site.works() && site.alarms.is_empty(), "{:?}", site.alarms);
    }

    #[test]
    fn names_in_json_are_those_of_the_guide() {
        let site = site(&[message("plane", "", "", 1), rack("a", 1)], Some(Duration::ZERO));
        let facts = serde_json::to_value(&site).unwrap();
        let guide = include_str!("../../../../docs/guide/plane.md");
        let names =
            |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
        let group = &facts["racks"]["first"][0];
        for name in names(&facts).into_iter().chain(names(&facts["counts"])).chain(names(group)) {
            assert!(guide.contains(&format!("`{name}`")), "the guide has no `{name}`");
        }
    }
}
