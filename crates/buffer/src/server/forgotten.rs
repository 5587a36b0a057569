//! [`Forgotten`]: times in memory of files that are over. A packet of one may come late, after its
//! server was told to forget them all; nobody would ever settle it.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;

/// Those that are remembered, the last ones.
const FORGOTTEN_MAX: usize = 100_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Forgotten(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    epochs: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Forgotten {
    /// Nothing more of this one is stored.
    pub fn add(&self, epoch: u64) {
        let mut state = self.0.lock();
        if !state.epochs.insert(epoch) {
            return;
        }
        state.order.push_back(epoch);
        if state.order.len() > FORGOTTEN_MAX
            && let Some(oldest) = state.order.pop_front()
        {
            state.epochs.remove(&oldest);
        }
    }

    /// Whether it is over, as far as is remembered.
    pub fn has(&self, epoch: u64) -> bool {
        self.0.lock().epochs.contains(&epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered() {
        let forgotten = Forgotten::default();
        (0..FORGOTTEN_MAX as u64 + 2).for_each(|epoch| forgotten.add(epoch));
        forgotten.add(5);
        let has = [0, 1, 2, FORGOTTEN_MAX as u64 + 1].map(|epoch| forgotten.has(epoch));
        assert_eq!(has, [false, false, true, true]);
        assert_eq!(forgotten.0.lock().order.len(), FORGOTTEN_MAX);
    }
}
