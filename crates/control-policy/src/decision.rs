//! [`Decision`]: the answer of a policy.

use serde::{Deserialize, Serialize};

/// The answer of a policy to one snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Bytes that all stores together may hold from now on.
    pub target_bytes: u64,
    /// Estimated demand of everything that is no store, in bytes.
    pub demand_bytes: u64,
    /// Estimated growth of the demand in bytes per second; 0 where it does not grow.
    pub slope_bytes_per_s: u64,
    /// Why this target.
    pub reason: Reason,
    /// State of the controller.
    pub level: Level,
    /// What the operator should know.
    pub alarms: Vec<Alarm>,
    /// Time in milliseconds after which to decide again: whole intervals, more than one only where
    /// nothing can need a decision before. See [`super::INTERVAL_MAX_MS`].
    pub next_ms: u64,
}

/// Why a target was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Nothing to change.
    #[default]
    Steady,
    /// Jobs need the memory.
    Demand,
    /// Jobs will need it before the next decision: their demand grows.
    Slope,
    /// A control group's limit is nearer than the node's.
    Limit,
    /// One NUMA node is short although the node is not.
    MemoryNode,
    /// Headroom is nearly gone, or tasks stall: everything above the guaranteed part goes.
    Emergency,
    /// Sensors are stale or implausible: no growth, then the guaranteed part.
    Sensors,
    /// There is room, but the hold after the last shrink is not over.
    Hold,
    /// There is room, but the demand still grows, or tasks stalled, or files are read again.
    Brake,
    /// There is room, and the store grows into it.
    Growth,
    /// The policy of the DynIMS paper moved the capacity.
    Law,
    /// The size is fixed.
    Fixed,
    /// The largest size was lowered by hand.
    Ceiling,
    /// A ceiling that is leased from outside the node keeps the stores below what they could have.
    LeasedCeiling,
}

/// State of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Demand is followed.
    #[default]
    Normal,
    /// Shrinks below the target and refuses new bytes until the headroom is back.
    Emergency,
    /// Sensors cannot be trusted.
    Safe,
}

/// Something the operator should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alarm {
    /// Demand grows faster than the stores can give memory back.
    ActuatorLimited,
    /// The two estimates of used memory differ by more than they should.
    SensorDisagreement,
    /// The main sensor was not read in time or is implausible.
    SensorStale,
    /// The stores are at their guaranteed part, or keep what is pinned, borrowed or not yet written
    /// down, and jobs still want more.
    AtMinimum,
    /// Pages were swapped out for want of memory.
    SwapOut,
    /// Jobs read files again and again that were in memory: their page cache does not fit beside
    /// the stores. It counts as free, so the stores keep what they have.
    PageCacheStarved,
    /// A store missed its deadline.
    StoreFailed,
    /// There is room for the stores to grow, and for a minute demand that grows, or tasks that
    /// stall, kept them from it.
    GrowthBraked,
}
