//! [`Fences`]: what a client left behind that gave a call up.
//!
//! What was sent by a connection may be carried out long after its client stopped waiting for it:
//! the server stood still, or the value waited for room. It would undo what the client did since by
//! another connection. So a client names each of its connections, and one that failed is fenced
//! before anything else is asked for: nothing that came by it is carried out from then on.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Whether what comes by a connection is carried out. Held while it is.
pub type Fence = Mutex<bool>;

/// Names that are told from each other.
const NAMES_MAX: usize = 100_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Fences(Mutex<HashMap<Box<[u8]>, Weak<Fence>>>);

impl Fences {
    /// A connection has this name; false where there are too many of them.
    pub fn name(&self, name: &[u8], fence: &Arc<Fence>) -> bool {
        let mut fences = self.0.lock();
        if fences.len() >= NAMES_MAX {
            fences.retain(|_, fence| fence.strong_count() > 0);
        }
        let has_room = fences.len() < NAMES_MAX;
        if has_room {
            fences.insert(name.into(), Arc::downgrade(fence));
        }
        has_room
    }

    /// Nothing more is carried out that comes by the connection of this name.
    pub fn raise(&self, name: &[u8]) {
        let fence = self.0.lock().remove(name).and_then(|fence| fence.upgrade());
        if let Some(fence) = fence {
            *fence.lock() = true;
        }
    }
}
