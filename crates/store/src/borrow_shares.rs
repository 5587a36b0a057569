//! How much of what may be held each user has by loans to the kernel. Whoever opens file after file
//! is refused before others find no room.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Bytes lent to the kernel, by the user whose open was the first.
#[derive(Default)]
pub(crate) struct LoanShares {
    users: Mutex<HashMap<u32, u64>>,
}

impl LoanShares {
    /// Books `bytes` on `user`, who may have three quarters of what others leave: `held` of
    /// `held_max` bytes are held in all, his among them. False: he has as many as he may.
    pub fn book(&self, user: u32, bytes: u64, held: u64, held_max: u64) -> bool {
        let mut users = self.users.lock();
        let own = users.get(&user).copied().unwrap_or(0);
        let left = held_max.saturating_sub(held.saturating_sub(own));
        let after = own.saturating_add(bytes);
        let fits = after <= left - left / 4;
        if fits && bytes > 0 {
            users.insert(user, after);
        }
        fits
    }

    /// Takes booked bytes off.
    pub fn release(&self, user: u32, bytes: u64) {
        let mut users = self.users.lock();
        if let Some(own) = users.get_mut(&user) {
            *own -= bytes;
            if *own == 0 {
                users.remove(&user);
            }
        }
    }
}
