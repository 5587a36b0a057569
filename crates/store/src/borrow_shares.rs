//! The share of what may be pinned that each user has through files that the kernel borrowed. A
//! user who opens file after file is refused before others find no room.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Bytes that the kernel borrowed, by the user whose open was the first.
#[derive(Default)]
pub(crate) struct BorrowShares {
    users: Mutex<HashMap<u32, u64>>,
}

impl BorrowShares {
    /// Books `bytes` on `user`, who may have three quarters of what others leave: `pinned` of
    /// `pinned_max` bytes are pinned in all, the user's own included. False: this user has as many
    /// as allowed.
    pub fn book(&self, user: u32, bytes: u64, pinned: u64, pinned_max: u64) -> bool {
        let mut users = self.users.lock();
        let own = users.get(&user).copied().unwrap_or(0);
        let left = pinned_max.saturating_sub(pinned.saturating_sub(own));
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
