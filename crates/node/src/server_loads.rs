//! [`ServerLoads`]: which of the waiting transfers goes next, so that the data servers of the PFS
//! have equal shares of those in flight. What a file's layout does not tell goes in order.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tidepool_pfs::{Layout, LowerFile, LowerStore, Placement, ServerKey};

use crate::core::Core;
use crate::file::cached_version::CachedVersion;

/// Blocks of a file that are read in order without asking for its layout.
const BLOCKS_IN_ORDER: u64 = 4;

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

/// Layouts that take a program to read are asked for beside the reads, one after the other; this
/// many wait, each with a descriptor of its own.
const ASKED_FOR_MAX: usize = 64;

/// The layouts that are waited for.
#[derive(Default)]
pub struct LayoutQueue {
    state: Mutex<Asking>,
}

#[derive(Default)]
struct Asking {
    waiting: VecDeque<(Weak<CachedVersion>, OwnedFd)>,
    is_running: bool,
}

impl LayoutQueue {
    /// Asks for the layout of a file. Reads go in order until it is there; where too many wait or
    /// no thread can be had, that is all.
    fn ask(self: &Arc<Self>, pfs: &Arc<dyn LowerStore>, of: &Arc<CachedVersion>, it: OwnedFd) {
        let mut state = self.state.lock();
        if state.waiting.len() >= ASKED_FOR_MAX {
            return;
        }
        state.waiting.push_back((Arc::downgrade(of), it));
        if !std::mem::replace(&mut state.is_running, true) {
            let (queue, pfs) = (Arc::clone(self), Arc::clone(pfs));
            let thread = std::thread::Builder::new().name("layouts".into()).stack_size(256 << 10);
            if thread.spawn(move || queue.work(&*pfs)).is_err() {
                *state = Asking::default();
            }
        }
    }

    /// Ends once nothing waits.
    fn work(&self, pfs: &dyn LowerStore) {
        loop {
            let mut state = self.state.lock();
            let Some((cached, descriptor)) = state.waiting.pop_front() else {
                state.is_running = false;
                return;
            };
            drop(state);
            if cached.upgrade().is_some_and(|cached| !cached.is_invalidated()) {
                let layout = pfs.layout(descriptor.as_fd());
                if let Some(cached) = cached.upgrade() {
                    cached.placement.take(&layout, cached.id().inode);
                }
            }
        }
    }
}

impl KnownPlacement {
    /// The placement, as far as it was found.
    pub fn get(&self) -> Option<&Placement> {
        self.found.get()
    }

    fn take(&self, layout: &Layout, file: u64) {
        if let Some(placement) = Placement::of(layout, file) {
            let _ = self.found.set(placement);
        }
    }
}

impl Core {
    /// Finds out which servers have the file, where it is so long that the order of its blocks
    /// matters. The PFS is asked once; where that takes a program, nobody waits for it.
    pub fn find_placement(&self, cached: &Arc<CachedVersion>, lower: &dyn LowerFile) {
        let placement = &cached.placement;
        if cached.size() <= BLOCKS_IN_ORDER * self.block_bytes()
            || placement.is_asked.swap(true, Ordering::AcqRel)
        {
            return;
        }
        if !self.pfs.layout_runs_a_tool() {
            placement.take(&self.pfs.layout(lower.descriptor()), lower.id().inode);
        } else if let Ok(descriptor) = lower.descriptor().try_clone_to_owned() {
            self.layouts.ask(&self.pfs, cached, descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
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
