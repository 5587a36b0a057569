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
pub struct Fences(Mutex<HashMap<Box<[u8]>, Named>>);

/// The connection of a name, or messages that are being obeyed.
type Named = Vec<Weak<Fence>>;

impl Fences {
    /// A connection, or one of several messages, has this name; false where there are too many.
    pub fn name(&self, name: &[u8], fence: &Arc<Fence>) -> bool {
        let is_there = |fence: &Weak<Fence>| fence.strong_count() > 0;
        let mut fences = self.0.lock();
        if fences.len() >= NAMES_MAX {
            fences.retain(|_, of_it| of_it.iter().any(is_there));
        }
        if fences.len() >= NAMES_MAX {
            return false;
        }
        let of_it = fences.entry(name.into()).or_default();
        of_it.retain(is_there);
        of_it.push(Arc::downgrade(fence));
        true
    }

    /// Nothing more is carried out that comes by the connection of this name.
    pub fn raise(&self, name: &[u8]) {
        let fences = self.0.lock().remove(name).unwrap_or_default();
        for fence in fences.iter().filter_map(Weak::upgrade) {
            *fence.lock() = true;
        }
    }
}
