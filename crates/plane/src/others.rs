//! Other stores under control on the node, such as memcached or Alluxio: the agent asks the node
//! for them in a thread of its own, so that samples never wait for the node. A word of the control
//! page tells when they are others than before, so a node at rest is asked now and then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_control::actuator::ObservedState;
use tidepool_proto::control::ControlledStore;

use crate::shared::Shared;

/// Time between two looks where they move, a little less than their controller takes for a report
/// while a ceiling of one is leased.
const LOOK_EVERY: Duration = Duration::from_millis(90);
/// A reader of the control page that is slower than this does not tell in time.
pub const TOLD_WITHIN: Duration = Duration::from_millis(100);
/// Time between two looks at the page where it is not read by anybody else and has none of them.
const LOOK_FOR_EVERY: Duration = Duration::from_secs(2);
/// Time between two looks where the page says nothing of them.
const LOOK_AGAIN_EVERY: Duration = Duration::from_secs(10);
/// Looks in a row without an answer after which they count as gone.
const GONE_AFTER: u32 = 3;
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
pub struct ObservedOthers {
    last: Mutex<Others>,
    /// What the control page had when the thread that looks was woken up last.
    told: Mutex<Option<(u64, u64)>>,
    watcher: OnceLock<Thread>,
    not_governed: Mutex<Vec<String>>,
}

impl ObservedOthers {
    /// All of them; none where nobody knows.
    pub fn last(&self) -> Others {
        Arc::clone(&self.last.lock())
    }

    /// Those that should be under control and are not, one line each.
    pub fn not_governed(&self) -> Vec<String> {
        self.not_governed.lock().clone()
    }

    /// Has the thread look where the control page has another generation of them.
    pub fn tell(&self, generation: Option<(u64, u64)>) {
        let before = std::mem::replace(&mut *self.told.lock(), generation);
        if let Some(watcher) = self.watcher.get().filter(|_| before != generation) {
            watcher.unpark();
        }
    }
}

impl Shared {
    /// Looks at other stores until `ending`; whoever sets that unparks this thread. Where nobody
    /// tells of news as often as they may move, it looks at the control page by itself.
    pub fn watch_others(&self, ending: &AtomicBool, is_told: bool) {
        _ = self.others.watcher.set(std::thread::current());
        let (mut asked, mut known, mut failed) = (None::<Instant>, None, 0);
        while !ending.load(Ordering::Relaxed) {
            let (now, generation) = (Instant::now(), self.store.others_generation());
            let pause = match failed {
                0 if generation == known => LOOK_AGAIN_EVERY,
                0 => LOOK_EVERY,
                _ => LOOK_FOR_EVERY,
            };
            let left = asked.map(|asked| (asked + pause).saturating_duration_since(now));
            if let Some(left) = left.filter(|left| !left.is_zero()) {
                let look = match self.others.last.lock().is_empty() {
                    _ if is_told => left,
                    true => LOOK_FOR_EVERY,
                    false => LOOK_EVERY,
                };
                std::thread::park_timeout(look.min(left));
                continue;
            }
            asked = Some(now);
            let seen = self.store.others();
            failed = if seen.is_err() { failed + 1 } else { 0 };
            // A node that is busy for a moment has them still: without them their ceilings end.
            known = generation.filter(|_| failed == 0);
            if (1..GONE_AFTER).contains(&failed) {
                continue;
            }
            let seen = seen.unwrap_or_default();
            *self.others.last.lock() = seen.stores.into_iter().map(Into::into).collect();
            *self.others.not_governed.lock() = seen.not_governed;
        }
    }
}
