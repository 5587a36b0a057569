//! What the agent of the cluster plane says of itself: what `tidepool plane status --json` prints.

use serde::{Deserialize, Serialize};

/// What an agent has done since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Release of the agent.
    pub version: String,
    /// Its process id.
    pub process_id: u32,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// Cluster that it is of.
    pub cluster: String,
    /// Name of the node in samples and ceilings.
    pub node: String,
    /// Brokers that it was told of.
    pub kafka: String,
    /// Milliseconds between two samples.
    pub interval_ms: u64,
    /// Samples in a message at most, as asked for; fewer while something moves.
    pub batch: u64,
    /// The same as the lease of the ceiling that holds allows it.
    pub batch_in_force: u64,
    /// What the node should govern and does not, one line each.
    pub degraded: Vec<String>,
    /// Why the node is not seen; absent where it is.
    pub node_trouble: Option<Trouble>,
    /// Why samples do not reach Kafka; absent where the last ones did.
    pub samples_trouble: Option<Trouble>,
    /// Why ceilings do not come from Kafka; absent where they could.
    pub ceilings_trouble: Option<Trouble>,
    /// Samples.
    pub samples: SampleCounts,
    /// Ceilings.
    pub ceilings: CeilingCounts,
    /// The ceiling that holds; absent where there is none.
    pub followed: Option<FollowedCeiling>,
    /// Stores that do not come down to their ceiling.
    pub above_ceiling: Vec<StoreAboveCeiling>,
}

/// A store that was asked to come down to its ceiling, and could not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreAboveCeiling {
    /// Its name.
    pub name: String,
    /// Bytes that it may hold at most.
    pub ceiling_bytes: u64,
    /// Bytes that it holds.
    pub resident_bytes: u64,
    /// Bytes that did not go when they were asked back.
    pub held_bytes: u64,
}

/// Something that does not work at present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Milliseconds since it was found.
    pub since_ms: u64,
    /// What it is, in words.
    pub why: String,
}

/// What became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleCounts {
    /// Taken of the node.
    pub taken: u64,
    /// Confirmed by Kafka, or handed to it where `--acks` is 0.
    pub sent: u64,
    /// Dropped because they were not sent in time, the oldest first, or the queue was full.
    pub dropped: u64,
    /// Refused by Kafka.
    pub failed: u64,
}

/// What became of ceilings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CeilingCounts {
    /// Leased of the node, those among them that were the same as before too.
    pub applied: u64,
    /// Of those, the same as before: only their lease was new.
    pub renewed: u64,
    /// That the node did not take, or not in time.
    pub failed: u64,
    /// Leases that ran out because no ceiling came.
    pub expired: u64,
    /// Of other nodes that share the partition, not looked at.
    pub of_others: u64,
    /// Refused, by reason; reasons of which there was none are left out.
    pub refused: Vec<RefusedCount>,
}

/// Ceilings that were refused for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCount {
    /// Name of the reason.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// The ceiling that holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedCeiling {
    /// Run of the job that sent it.
    pub plane: String,
    /// Its number.
    pub number: u64,
    /// The stores that it is of.
    pub stores: Vec<StoreCeiling>,
    /// Milliseconds until it is over.
    pub left_ms: u64,
    /// Policy that decided.
    pub policy: String,
}

/// The most that a store may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCeiling {
    /// Name of the store.
    pub name: String,
    /// Bytes that it may hold at most.
    pub ceiling_bytes: u64,
}
