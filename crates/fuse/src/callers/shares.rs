//! How many descriptors of the node one user may hold through the mount.
//!
//! Every open of a file or directory costs the node a descriptor, and so do the record locks of a
//! process on a file. A user may have three quarters of what others leave, so whoever opens without
//! end is refused (`ENFILE`) before others are.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::protocol::request::{Answer, Errno};

/// Part of all descriptors that no open through the mount takes: the node needs them to look at
/// callers and to let clients in.
const RESERVE_PART: usize = 16;

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    users: HashMap<u32, usize>,
}

/// The books of a mount.
#[derive(Debug)]
pub struct Shares {
    opens_max: usize,
    descriptors_max: usize,
    counts: Mutex<Counts>,
}

/// The right to one descriptor, given back when it drops.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    user: u32,
}

impl Shares {
    /// `opens_max` shares in a process that may have `descriptors_max` descriptors.
    pub fn new(opens_max: usize, descriptors_max: usize) -> Self {
        Shares { opens_max, descriptors_max, counts: Mutex::default() }
    }

    /// One more of `user`.
    ///
    /// # Errors
    /// `ENFILE` where the user has as many as he may.
    pub fn take(self: &Arc<Self>, user: u32) -> Answer<Share> {
        let mut counts = self.counts.lock();
        let own = counts.users.get(&user).copied().unwrap_or(0);
        let left = self.opens_max.saturating_sub(counts.all - own);
        if own >= (left * 3).div_ceil(4) {
            return Err(Errno(libc::ENFILE));
        }
        counts.all += 1;
        *counts.users.entry(user).or_default() += 1;
        Ok(Share { shares: self.clone(), user })
    }

    /// Refuses a descriptor that is one of the last ones.
    ///
    /// # Errors
    /// `ENFILE` where it is.
    pub fn check(&self, descriptor: &impl AsFd) -> Answer {
        if self.has_room(descriptor) { Ok(()) } else { Err(Errno(libc::ENFILE)) }
    }

    /// Whether a descriptor is none of the last ones.
    pub fn has_room(&self, descriptor: &impl AsFd) -> bool {
        // The kernel gives the lowest number that is free.
        let number = descriptor.as_fd().as_raw_fd() as usize;
        let reserve = self.descriptors_max / RESERVE_PART;
        number + reserve < self.descriptors_max
    }
}

impl Share {
    /// Whose it is.
    pub fn user(&self) -> u32 {
        self.user
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.shares.counts.lock();
        counts.all -= 1;
        if let Some(own) = counts.users.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                counts.users.remove(&self.user);
            }
        }
    }
}
