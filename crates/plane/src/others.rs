//! Other stores under control on the node, such as memcached or Alluxio: the agent asks the node
//! for them in a thread of its own, so that samples never wait for the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_control::actuator::ObservedState;
use tidepool_proto::control::ControlledStore;

use crate::shared::Shared;

/// Time between two looks where there are others: their controller reports as often while a ceiling
/// of one is leased.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same where there are none.
const LOOK_FOR_EVERY: Duration = Duration::from_secs(2);
/// Other stores at one time.
pub type Others = Arc<[OtherStore]>;

/// Another store under control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherStore {
    /// Its name, unique on the node.
    pub name: String,
    /// What it is seen to be.
    pub state: ObservedState,
    /// Of the bytes it holds, those that are clean page cache: available memory has them.
    pub page_cache_bytes: u64,
}

impl OtherStore {
    /// Bytes that available memory lacks for it.
    pub fn occupied_bytes(&self) -> u64 {
        self.state.resident_bytes.saturating_sub(self.page_cache_bytes)
    }
}

impl From<ControlledStore> for OtherStore {
    fn from(store: ControlledStore) -> OtherStore {
        let state = ObservedState {
            capacity_bytes: store.capacity_bytes,
            resident_bytes: store.resident_bytes,
            held_bytes: store.held_bytes,
            min_bytes: store.capacity_min_bytes.min(store.capacity_configured_bytes),
            max_bytes: store.capacity_configured_bytes,
            block_bytes: store.block_bytes,
        };
        OtherStore { name: store.name, state, page_cache_bytes: store.page_cache_bytes }
    }
}

/// What was seen last.
#[derive(Debug, Default)]
pub struct ObservedOthers(Mutex<Others>);

impl ObservedOthers {
    /// All of them; none where nobody knows.
    pub fn last(&self) -> Others {
        Arc::clone(&self.0.lock())
    }
}

impl Shared {
    /// Looks at other stores until `ending`; whoever sets that unparks this thread.
    pub fn watch_others(&self, ending: &AtomicBool) {
        let mut look = Instant::now();
        while !ending.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now < look {
                std::thread::park_timeout(look - now);
                continue;
            }
            let seen: Others =
                self.store.others().unwrap_or_default().into_iter().map(Into::into).collect();
            look = now + if seen.is_empty() { LOOK_FOR_EVERY } else { LOOK_EVERY };
            *self.others.0.lock() = seen;
        }
    }
}
