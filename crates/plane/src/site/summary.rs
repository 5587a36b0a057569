//! Reads summaries as the job sends them. Pure: anybody may have written a message, so its size and
//! the names in it are bounded before anything is kept of it.

use serde::{Deserialize, Serialize};

/// The form of summaries that is understood.
const FORM: u64 = 1;
/// Longest message that is looked at: a summary has a kilobyte, and names of silent nodes.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Longest name of anything.
const NAME_BYTES_MAX: usize = 253;
/// As many as the job tells.
const SILENT_NAMES_MAX: usize = 8;

/// What a summary is the sum of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// All that the job serves.
    Plane,
    /// A cluster.
    Cluster,
    /// A rack of a cluster.
    Rack,
    /// A job of a cluster.
    Job,
}

/// A summary.
#[derive(Clone, Debug, Deserialize)]
pub struct Summary {
    form: u64,
    /// What it is the sum of.
    pub scope: Scope,
    cluster: Option<String>,
    rack: Option<String>,
    job: Option<String>,
    plane: Option<String>,
    /// Policy of the run; absent where an older job does not tell.
    pub policy: Option<String>,
    /// When, by the clock of the job.
    pub at_ms: u64,
    /// Time that the counts are of.
    pub span_ms: u64,
    /// Time between the broker and a decision, the longest.
    pub lag_ms: Option<u64>,
    /// Names of some nodes that are silent.
    #[serde(default)]
    pub silent: Vec<String>,
    /// Sums.
    #[serde(flatten)]
    pub sums: Sums,
    /// Memory of the job that is summed up.
    #[serde(default)]
    pub job_bytes: u64,
    /// Counts.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Sums over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Sums {
    /// Nodes that were heard from in the last ten seconds.
    pub nodes: u64,
    /// Nodes that were heard from in the last ten minutes, and not in the last ten seconds.
    #[serde(default)]
    pub silent_nodes: u64,
    /// Memory of the nodes.
    pub memory_total_bytes: u64,
    /// What jobs could have more.
    pub available_bytes: u64,
    /// What jobs use.
    pub demand_bytes: u64,
    /// What is in the stores.
    pub resident_bytes: u64,
    /// What the stores may hold at present.
    #[serde(default)]
    pub capacity_bytes: u64,
    /// Ceilings in force.
    pub ceiling_bytes: u64,
}

/// What was counted of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Counts {
    /// Samples that were taken.
    pub samples: u64,
    /// Samples that came again.
    pub repeated: u64,
    /// Samples behind a newer one.
    pub late: u64,
    /// What was not understood.
    pub garbage: u64,
    /// Samples of a clock that is more than a minute off.
    pub skewed: u64,
    /// Samples of clusters that are not served.
    pub foreign: u64,
    /// Readings of collectd with parts missing.
    pub incomplete: u64,
    /// Messages of nodes beyond the bound.
    pub refused: u64,
    /// Jobs beyond the bound.
    pub trimmed: u64,
    /// Intervals in which the policy decided.
    pub decisions: u64,
    /// Ceilings that were sent.
    pub ceilings: u64,
}

impl Counts {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Counts) -> Counts {
        Counts {
            samples: self.samples.saturating_add(other.samples),
            repeated: self.repeated.saturating_add(other.repeated),
            late: self.late.saturating_add(other.late),
            garbage: self.garbage.saturating_add(other.garbage),
            skewed: self.skewed.saturating_add(other.skewed),
            foreign: self.foreign.saturating_add(other.foreign),
            incomplete: self.incomplete.saturating_add(other.incomplete),
            refused: self.refused.saturating_add(other.refused),
            trimmed: self.trimmed.saturating_add(other.trimmed),
            decisions: self.decisions.saturating_add(other.decisions),
            ceilings: self.ceilings.saturating_add(other.ceilings),
        }
    }
}

impl Summary {
    /// Reads a message; nothing where it is none.
    pub fn read(message: &[u8]) -> Option<Summary> {
        if message.len() > MESSAGE_BYTES_MAX {
            return None;
        }
        let summary: Summary = serde_json::from_slice(message).ok()?;
        let names = [&summary.cluster, &summary.rack, &summary.job, &summary.policy];
        let names = names.into_iter().chain([&summary.plane]).flatten().chain(&summary.silent);
        let is_bounded = names.into_iter().all(|name| name.len() <= NAME_BYTES_MAX)
            && summary.silent.len() <= SILENT_NAMES_MAX;
        (summary.form == FORM && is_bounded).then_some(summary)
    }

    /// Run of the job; empty where it heard nothing since its restart.
    pub fn plane(&self) -> &str {
        self.plane.as_deref().unwrap_or_default()
    }

    /// Name of the cluster; empty for the plane.
    pub fn cluster(&self) -> &str {
        self.cluster.as_deref().unwrap_or_default()
    }

    /// Name of the rack or the job; empty where it is of neither.
    pub fn name(&self) -> &str {
        let name = if self.scope == Scope::Job { &self.job } else { &self.rack };
        name.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// As the job sends it, `at_s` seconds after something.
    pub fn message(scope: &str, cluster: &str, name: &str, at_s: u64) -> Value {
        let name_of = |of: &str| if scope == of { json!(name) } else { Value::Null };
        json!({
            "form": 1, "scope": scope, "cluster": cluster, "rack": name_of("rack"),
            "job": name_of("job"), "plane": "p1", "policy": "dynims",
            "at_ms": 1_000_000 + 1000 * at_s, "span_ms": 1000, "nodes": 3, "silent_nodes": 0,
            "silent": [], "memory_total_bytes": 64_u64 << 30, "available_bytes": 20_u64 << 30,
            "demand_bytes": 40_u64 << 30, "resident_bytes": 1 << 30, "capacity_bytes": 2_u64 << 30,
            "ceiling_bytes": 3_u64 << 30, "job_bytes": 7, "samples": 30, "repeated": 0, "late": 0,
            "garbage": 0, "skewed": 0, "foreign": 0, "incomplete": 0, "refused": 0, "trimmed": 0,
            "decisions": 30, "ceilings": 6, "decisions_per_s": 30, "lag_ms": 4,
        })
    }

    fn read(value: &Value) -> Option<Summary> {
        Summary::read(&serde_json::to_vec(value).unwrap())
    }

    #[test]
    fn a_summary_of_the_job_is_read() {
        let summary = read(&message("rack", "site1", "r1", 2)).unwrap();
        assert_eq!(
            (summary.scope, summary.cluster(), summary.name()),
            (Scope::Rack, "site1", "r1")
        );
        assert_eq!((summary.at_ms, summary.sums.nodes, summary.counts.ceilings), (1_002_000, 3, 6));
        assert_eq!(read(&message("job", "site1", "8", 0)).unwrap().name(), "8");
        let mut silent = message("plane", "", "", 0);
        silent["plane"] = Value::Null;
        assert_eq!(read(&silent).unwrap().plane(), "", "after a restart");
        let mut of_before = message("plane", "", "", 0);
        for field in ["policy", "silent_nodes", "silent", "capacity_bytes"] {
            of_before.as_object_mut().unwrap().remove(field);
        }
        assert_eq!(read(&of_before).unwrap().policy, None, "an older job");
    }

    #[test]
    fn what_is_no_summary_is_refused() {
        let with = |field: &str, value: Value| {
            let mut message = message("rack", "site1", "r1", 0);
            message[field] = value;
            read(&message)
        };
        assert!(with("nodes", json!(3)).is_some());
        assert!(with("form", json!(2)).is_none());
        assert!(with("scope", json!("site")).is_none());
        assert!(with("nodes", json!(-1)).is_none());
        assert!(with("rack", json!("r".repeat(254))).is_none(), "a long name");
        assert!(with("plane", json!("r".repeat(254))).is_none(), "a long run");
        assert!(with("silent", json!(["n"; 9].to_vec())).is_none(), "many names");
        assert!(with("ignored", json!("x".repeat(MESSAGE_BYTES_MAX))).is_none(), "a long message");
        for garbage in [&b""[..], b"[]", b"null", b"{}", b"\xff"] {
            assert!(Summary::read(garbage).is_none());
        }
    }
}
