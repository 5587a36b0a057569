//! Stores that can be resized, behind one trait.
//!
//! A store confirms bytes only when the operating system has them back; what it merely promises
//! is not counted.

mod leased;
mod observed;
mod shared_page;
mod tidepool;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use tidepool_control_policy::StoreState;
use tidepool_proto::Result;

pub use leased::{LeasedCeilings, LeasedStore};
pub use observed::{ObservedState, ObservedStore, OtherStores};
pub use tidepool::TidepoolStore;
pub use tidepool_proto::control::OWN_STORE;

/// A store of this node whose capacity the controller sets.
pub trait Actuator: Send + Sync {
    /// Name of the store, unique on the node.
    fn name(&self) -> &str;

    /// Where it is, whatever it is called: limits that a killed controller left are put back also
    /// where it was given another name. Empty where only the name tells.
    fn place(&self) -> String {
        String::new()
    }

    /// What the store holds now. Called at every decision: a fast store answers in microseconds, a
    /// slow one from what it last saw. The name in it may be empty: the caller knows it.
    fn state(&self) -> Result<StoreState>;

    /// Sets the capacity and returns when the bytes above it are back with the operating system, or
    /// when `deadline` has passed. Called by one thread a store, never twice at a time. Repeating a
    /// command is harmless.
    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized>;

    /// What stays in a store of its kind though it is asked back, for operators. Empty where there
    /// is nothing of that kind.
    fn keeps(&self) -> &'static str {
        ""
    }

    /// Tells what capacity was asked for last, before the command for it comes: it waits while
    /// another one is under way. That one may end where a higher capacity waits for it.
    fn expect(&self, _capacity_bytes: u64) {}

    /// Time without a question for its state after which the store takes its controller for dead.
    /// `None` where it does not care.
    fn lease(&self) -> Option<Duration> {
        None
    }

    /// The limit that [`Actuator::put_back`] sets. `None` where there is none to put back.
    fn limit_before(&self) -> Option<LimitBefore> {
        None
    }

    /// Takes what a controller that was killed had found and set, and did not put back. Ignored
    /// where the present limit is another one: somebody chose that.
    fn adopt_limit(&self, _left: LimitBefore) {}

    /// Calls `witness` whenever what [`Actuator::limit_before`] answers has changed, and before a
    /// limit is set.
    fn on_limit(&self, _witness: LimitWitness) {}

    /// Control ends: sets the limit that was there before. No command that is still under way sets
    /// another one after this.
    fn put_back(&self) -> Result<()> {
        Ok(())
    }
}

/// Records the limits that were set. A limit that could not be recorded must not be set.
pub type LimitWitness = Box<dyn Fn(&LimitBefore) -> Result<()> + Send + Sync>;

/// The limit of a server before it was controlled, and what it was set to since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitBefore {
    /// Process of the server; 0 where the limit is no process's and outlives all of them.
    pub process_id: u32,
    /// The limit in bytes, as the server counts them.
    pub limit_bytes: u64,
    /// Limits that the control set last, of which one is in force; empty where there is nothing to
    /// put back.
    #[serde(default)]
    pub set_bytes: Vec<u64>,
}

/// What a resize did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Resized {
    /// Bytes that came back to the operating system and were seen there.
    pub freed_bytes: u64,
    /// Bytes the store still holds.
    pub resident_bytes: u64,
    /// Time it took.
    pub elapsed: Duration,
}
