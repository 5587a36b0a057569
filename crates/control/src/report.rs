//! The report of a running controller for operators: readings, decisions and their reasons in
//! words.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tidepool_control_policy::{Decision, Level, Parameters, Reason, Snapshot};
use tidepool_proto::ByteSize;

use crate::latency::Histogram;

/// Decisions that are remembered.
const RECENT_MAX: usize = 64;

/// State of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Decisions since the start.
    pub ticks: u64,
    /// Decisions that came more than two intervals late: the controller was stopped or starved.
    pub late_ticks: u64,
    /// Present parameters.
    pub parameters: Parameters,
    /// What was read last.
    pub snapshot: Snapshot,
    /// What was decided last.
    pub decision: Decision,
    /// What was decided before, oldest first.
    pub recent: Vec<RecentDecision>,
    /// The stores' commands, in the order of the snapshot.
    pub stores: Vec<StoreReport>,
    /// What is missing on this machine, one line each.
    pub notes: Vec<String>,
    /// Time from the first sensor until all commands were handed out.
    pub tick_time: Histogram,
}

/// Commands of one store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReport {
    /// Name of the store.
    pub name: String,
    /// Capacity that was asked for last.
    pub target_bytes: u64,
    /// Bytes that came back since the start.
    pub freed_bytes: u64,
    /// Commands that missed their deadline.
    pub late_commands: u64,
    /// Commands that failed.
    pub failed_commands: u64,
    /// Times at which the capacity was another than the one asked for: something else sets it too.
    pub foreign_changes: u64,
    /// What stays in a store of its kind though it is asked back; empty for nothing.
    pub keeps: String,
    /// The last failure, in words.
    pub last_error: Option<String>,
    /// Time from a command until the memory was back.
    pub release_time: Histogram,
}

/// Decisions of one reason that followed one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentDecision {
    /// When the first was made, in nanoseconds since the controller's start.
    pub from_ns: u64,
    /// When the last was made.
    pub until_ns: u64,
    /// Their reason.
    pub reason: Reason,
    /// State of the controller.
    pub level: Level,
    /// The target before the first.
    pub before_bytes: u64,
    /// The target after the last.
    pub target_bytes: u64,
    /// The demand that the last saw.
    pub demand_bytes: u64,
    /// The steepest growth of the demand, in bytes per second.
    pub slope_bytes_per_s: u64,
}

impl RecentDecision {
    /// The decision in one sentence.
    pub fn words(&self) -> String {
        let change = match self.target_bytes.cmp(&self.before_bytes) {
            std::cmp::Ordering::Equal => format!("stores stay at {}", ByteSize(self.target_bytes)),
            std::cmp::Ordering::Less => {
                format!(
                    "stores shrink from {} to {}",
                    ByteSize(self.before_bytes),
                    ByteSize(self.target_bytes)
                )
            }
            std::cmp::Ordering::Greater => {
                format!(
                    "stores grow from {} to {}",
                    ByteSize(self.before_bytes),
                    ByteSize(self.target_bytes)
                )
            }
        };
        format!("{change}: {}", self.because())
    }

    fn because(&self) -> String {
        let demand = ByteSize(self.demand_bytes);
        match self.reason {
            Reason::Steady => format!("nothing to change, jobs hold {demand}"),
            Reason::Demand => format!("jobs need {demand}"),
            Reason::Slope => {
                let slope = ByteSize(self.slope_bytes_per_s);
                format!("jobs hold {demand} and take {slope} more a second")
            }
            Reason::Limit => "a control group's limit is nearer than the node's".to_owned(),
            Reason::MemoryNode => "one NUMA node is short of memory".to_owned(),
            Reason::Emergency => format!("headroom is nearly gone, jobs hold {demand}"),
            Reason::Sensors => "the sensors cannot be trusted".to_owned(),
            Reason::Hold => "there is room, but the last shrink was a short time ago".to_owned(),
            Reason::Brake => "there is room, but jobs grow, wait or read files again".to_owned(),
            Reason::Growth => format!("there is room, jobs hold {demand}"),
            Reason::Law => format!("the law of the DynIMS paper, jobs hold {demand}"),
            Reason::Fixed => "the size is fixed".to_owned(),
            Reason::Ceiling => "its largest size was lowered by hand".to_owned(),
            Reason::LeasedCeiling => "a ceiling is leased from outside the node".to_owned(),
        }
    }
}

/// The last decisions, those of one reason drawn together.
#[derive(Default)]
pub(crate) struct Recent(VecDeque<RecentDecision>);

impl Recent {
    /// With room for all that it will hold.
    pub fn new() -> Self {
        Recent(VecDeque::with_capacity(RECENT_MAX + 1))
    }

    /// Adds a decision.
    pub fn add(&mut self, at_ns: u64, decision: &Decision) {
        let before = self.0.back().map_or(decision.target_bytes, |last| last.target_bytes);
        if let Some(last) = self.0.back_mut()
            && last.reason == decision.reason
            && last.level == decision.level
        {
            last.until_ns = at_ns;
            last.target_bytes = decision.target_bytes;
            last.demand_bytes = decision.demand_bytes;
            last.slope_bytes_per_s = last.slope_bytes_per_s.max(decision.slope_bytes_per_s);
            return;
        }
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(RecentDecision {
            from_ns: at_ns,
            until_ns: at_ns,
            reason: decision.reason,
            level: decision.level,
            before_bytes: before,
            target_bytes: decision.target_bytes,
            demand_bytes: decision.demand_bytes,
            slope_bytes_per_s: decision.slope_bytes_per_s,
        });
    }

    /// Oldest first.
    pub fn list(&self) -> Vec<RecentDecision> {
        self.0.iter().copied().collect()
    }
}
