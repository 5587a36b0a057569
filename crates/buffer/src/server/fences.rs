//! [`Fences`]: what a client left behind that gave a call up.
//!
//! What was sent by a connection may be carried out long after its client stopped waiting for it:
//! the server stood still, the value waited for room, a message was late. It would undo what the
//! client did since by another connection. So a client names each of its connections, and one that
//! failed is fenced before anything else is asked for: nothing that came by it, or comes yet, is
//! carried out from then on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Whether what comes by a connection is carried out. Held while it is.
pub type Fence = Mutex<bool>;

/// Names that are told from each other.
const NAMES_MAX: usize = 100_000;
/// Names of connections that were fenced which are remembered, the last ones.
const FENCED_MAX: usize = 100_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Fences(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The connection of a name, or messages that are being obeyed.
    named: HashMap<Box<[u8]>, Vec<Weak<Fence>>>,
    /// Those that were fenced, and their order.
    fenced: HashSet<Box<[u8]>>,
    order: VecDeque<Box<[u8]>>,
}

impl Fences {
    /// A connection, or one of several messages, has this name; false where there are too many.
    pub fn name(&self, name: &[u8], fence: &Arc<Fence>) -> bool {
        let is_there = |fence: &Weak<Fence>| fence.strong_count() > 0;
        let mut state = self.0.lock();
        if state.fenced.contains(name) {
            // It was late.
            drop(state);
            *fence.lock() = true;
            return true;
        }
        if state.named.len() >= NAMES_MAX {
            state.named.retain(|_, of_it| of_it.iter().any(is_there));
        }
        if state.named.len() >= NAMES_MAX {
            return false;
        }
        let of_it = state.named.entry(name.into()).or_default();
        of_it.retain(is_there);
        of_it.push(Arc::downgrade(fence));
        true
    }

    /// Nothing more is carried out that comes by the connection of this name.
    pub fn raise(&self, name: &[u8]) {
        let fences = {
            let mut state = self.0.lock();
            if state.fenced.insert(name.into()) {
                state.order.push_back(name.into());
            }
            while state.order.len() > FENCED_MAX
                && let Some(oldest) = state.order.pop_front()
            {
                state.fenced.remove(&oldest);
            }
            state.named.remove(name).unwrap_or_default()
        };
        for fence in fences.iter().filter_map(Weak::upgrade) {
            *fence.lock() = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_the_fence_is_fenced_too_and_memory_is_bounded() {
        let fences = Fences::default();
        let (early, late, other) = (Arc::default(), Arc::default(), Arc::default());
        assert!(fences.name(b"a", &early));
        fences.raise(b"a");
        assert!(fences.name(b"a", &late) && fences.name(b"b", &other));
        assert_eq!([*early.lock(), *late.lock(), *other.lock()], [true, true, false]);
        for number in 0..FENCED_MAX + 10 {
            fences.raise(&number.to_le_bytes());
        }
        let state = fences.0.lock();
        assert_eq!((state.fenced.len(), state.order.len()), (FENCED_MAX, FENCED_MAX));
    }
}
