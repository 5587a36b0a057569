//! [`Shares`]: the number of descriptors of the daemon that one user may hold through the mount.
//!
//! Every open of a file or directory costs the daemon a descriptor, and so do the record locks of
//! a process on a file. A user may have three quarters of what others leave, so a user that opens
//! files without end is refused (`ENFILE`) before others are.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::protocol::request::{Answer, Errno};

/// Divisor of the number of all descriptors: this part is not given to opens through the mount,
/// because the node needs descriptors to read `/proc` and to accept clients.
const RESERVE_PART: usize = 16;

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    users: HashMap<u32, usize>,
}

/// The descriptors that are held through a mount.
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
    /// At most `opens_max` shares, in a process that may have `descriptors_max` descriptors.
    pub fn new(opens_max: usize, descriptors_max: usize) -> Self {
        Shares { opens_max, descriptors_max, counts: Mutex::default() }
    }

    /// Takes one more share for `user`.
    ///
    /// # Errors
    /// `ENFILE` if the user has as many as it may have.
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

    /// Refuses a descriptor out of the reserve.
    ///
    /// # Errors
    /// `ENFILE` if it is one.
    pub fn check(&self, descriptor: &impl AsFd) -> Answer {
        if self.has_room(descriptor) { Ok(()) } else { Err(Errno(libc::ENFILE)) }
    }

    /// Whether a descriptor leaves the reserve untouched.
    pub fn has_room(&self, descriptor: &impl AsFd) -> bool {
        // The kernel gives out the lowest free number.
        let number = descriptor.as_fd().as_raw_fd() as usize;
        let reserve = self.descriptors_max / RESERVE_PART;
        number + reserve < self.descriptors_max
    }
}

impl Share {
    /// The user that holds it.
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
