//! [`ServerLoads`]: which of the waiting transfers goes next, so that the data servers of the PFS
//! have equal shares of those in flight. What a file's layout does not tell goes in order.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tidepool_pfs::{LowerFile, LowerStore, Placement, ServerKey};

/// Waiting transfers that are looked at for a server with less to do.
const LOOKED_AT: usize = 128;
/// Times that the oldest one is passed over before it goes in any case.
const PASSED_OVER_MAX: u32 = 32;

/// Transfers in flight by server.
#[derive(Debug, Default)]
pub struct ServerLoads {
    in_flight: HashMap<ServerKey, u32>,
    passed_over: u32,
}

impl ServerLoads {
    /// Position of the waiting transfer that goes next: the first of those whose server has least
    /// to do. `waiting` has the server of each, in order; `None`: there are none.
    pub fn choose(&mut self, waiting: impl Iterator<Item = Option<ServerKey>>) -> Option<usize> {
        let load = |server: Option<ServerKey>| match server {
            Some(server) => self.in_flight.get(&server).copied().unwrap_or(0),
            None => 0,
        };
        let mut best: Option<(usize, u32)> = None;
        for (position, load) in waiting.take(LOOKED_AT).map(load).enumerate() {
            if best.is_none_or(|(_, least)| load < least) {
                best = Some((position, load));
            }
            // Nothing is less than that, and an order without need helps nobody.
            if load == 0 || self.passed_over >= PASSED_OVER_MAX {
                break;
            }
        }
        let (position, _) = best?;
        self.passed_over = if position == 0 { 0 } else { self.passed_over + 1 };
        Some(position)
    }

    /// A transfer begins.
    pub fn begin(&mut self, server: ServerKey) {
        *self.in_flight.entry(server).or_default() += 1;
    }

    /// One ended.
    pub fn end(&mut self, server: ServerKey) {
        if let Some(count) = self.in_flight.get_mut(&server) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&server);
            }
        }
    }
}

/// What is known of where a file's bytes are. The first transfer that gains by it asks.
#[derive(Debug, Default)]
pub struct KnownPlacement {
    is_asked: AtomicBool,
    found: OnceLock<Placement>,
}

impl KnownPlacement {
    /// The placement, as far as it was found.
    pub fn get(&self) -> Option<&Placement> {
        self.found.get()
    }

    /// Asks the PFS, once, unless that costs more than it can gain.
    pub fn find(&self, pfs: &dyn LowerStore, lower: &dyn LowerFile) {
        if !self.is_asked.swap(true, Ordering::AcqRel) && !pfs.layout_runs_a_tool() {
            let layout = pfs.layout(lower.descriptor());
            if let Some(placement) = Placement::of(&layout, lower.id().inode) {
                let _ = self.found.set(placement);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidepool_pfs::Layout;

    use super::*;

    /// Servers of blocks, four to a stripe, three servers in turn.
    fn server(block: u64) -> ServerKey {
        let layout =
            Layout { stripe_size_bytes: Some(4), stripe_count: Some(3), ..Layout::default() };
        Placement::of(&layout, 1).expect("a layout that tells all").server_of(block)
    }

    #[test]
    fn servers_get_equal_shares_and_each_its_blocks_in_order() {
        let mut loads = ServerLoads::default();
        let mut waiting: Vec<u64> = (0..24).collect();
        let mut chosen = Vec::new();
        for _ in 0..6 {
            let next = loads.choose(waiting.iter().map(|it| Some(server(*it)))).unwrap();
            let block = waiting.remove(next);
            loads.begin(server(block));
            chosen.push(block);
        }
        assert_eq!(chosen, [0, 4, 8, 1, 5, 9]);
        loads.end(server(4));
        let next = loads.choose(waiting.iter().map(|it| Some(server(*it)))).unwrap();
        assert_eq!(waiting[next], 6, "of the server that has least to do");
        assert_eq!(loads.choose(std::iter::empty()), None);
    }

    #[test]
    fn what_nothing_is_known_of_goes_in_order_and_nobody_waits_for_ever() {
        let mut loads = ServerLoads::default();
        assert_eq!(loads.choose([None, None].into_iter()), Some(0));
        loads.begin(server(0));
        let waiting = || [Some(server(1)), Some(server(4))].into_iter();
        let passed = (0..=PASSED_OVER_MAX).take_while(|_| loads.choose(waiting()) == Some(1));
        assert_eq!(passed.count() as u32, PASSED_OVER_MAX);
        loads.end(server(0));
        assert!(loads.in_flight.is_empty());
    }
}
