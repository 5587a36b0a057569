//! [`Budget`], the account of memory: how much there may be, how much there is (invariants 1 and 2
//! of [`crate::engine`]). Counters only; those that a controller needs are words of the control
//! page.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidepool_proto::Result;
use tidepool_proto::control_page::ControlPage;

use crate::account_page::AccountPage;
use crate::borrow_shares::BorrowShares;

/// Bytes of the store.
pub(crate) struct Budget {
    page: AccountPage,
    peak: AtomicU64,
    evicted_blocks: AtomicU64,
    pinned_share_max: f64,
    tables: Mutex<Tables>,
    borrows: BorrowShares,
}

/// Bytes of tables and reference bits, which are memory beside the capacity, by payer.
#[derive(Default)]
struct Tables {
    all: u64,
    payers: HashMap<u16, u64>,
}

/// Tables together are at most this part of the capacity,
const TABLES_SHARE: u64 = 8;
/// or this, and those of one payer half of it.
const TABLES_BYTES_MIN: u64 = 16 << 20;

impl Budget {
    pub fn new(capacity_bytes: u64, block_bytes: u64, pinned_share_max: f64) -> Result<Self> {
        let page = AccountPage::new(block_bytes)?;
        page.words().capacity_bytes.store(capacity_bytes, Ordering::SeqCst);
        page.words().capacity_max_bytes.store(capacity_bytes, Ordering::SeqCst);
        page.words().capacity_configured_bytes.store(capacity_bytes, Ordering::SeqCst);
        let (peak, evicted_blocks) = (AtomicU64::new(0), AtomicU64::new(0));
        let tables = Mutex::default();
        let borrows = BorrowShares::default();
        Ok(Budget { page, peak, evicted_blocks, pinned_share_max, tables, borrows })
    }

    /// The page that holds the account.
    pub fn page(&self) -> &AccountPage {
        &self.page
    }

    fn words(&self) -> &ControlPage {
        self.page.words()
    }

    pub fn capacity(&self) -> u64 {
        self.words().capacity_bytes.load(Ordering::Relaxed)
    }

    pub fn set_capacity(&self, bytes: u64) {
        self.words().capacity_bytes.store(bytes, Ordering::SeqCst);
    }

    pub fn used(&self) -> u64 {
        self.words().resident_bytes.load(Ordering::SeqCst)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub fn pinned(&self) -> u64 {
        self.words().held_bytes.load(Ordering::Relaxed)
    }

    pub fn freeing(&self) -> u64 {
        self.words().freeing_bytes.load(Ordering::SeqCst)
    }

    pub fn evicted_blocks(&self) -> u64 {
        self.evicted_blocks.load(Ordering::Relaxed)
    }

    /// Bytes above the capacity.
    pub fn excess(&self) -> u64 {
        self.used().saturating_sub(self.capacity())
    }

    /// Books `bytes`, or tells how many are missing.
    pub fn reserve(&self, bytes: u64) -> std::result::Result<(), u64> {
        let words = self.words();
        let mut used = self.used();
        loop {
            let after = used.saturating_add(bytes);
            let missing = after.saturating_sub(words.capacity_bytes.load(Ordering::SeqCst));
            if missing > 0 {
                return Err(missing);
            }
            let resident = &words.resident_bytes;
            match resident.compare_exchange_weak(used, after, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    self.peak.fetch_max(after, Ordering::Relaxed);
                    return Ok(());
                }
                Err(seen) => used = seen,
            }
        }
    }

    /// Returns bytes whose memory is free.
    pub fn release(&self, bytes: u64) {
        let before = self.words().resident_bytes.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "released {bytes} of {before} bytes");
    }

    pub fn start_freeing(&self, bytes: u64) {
        self.words().freeing_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    pub fn finish_freeing(&self, bytes: u64, blocks: u64) {
        self.release(bytes);
        self.words().freeing_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.evicted_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Whether `pin` would book `bytes` now.
    pub fn may_pin(&self, bytes: u64) -> bool {
        self.pinned().saturating_add(bytes) <= self.pinned_max()
    }

    fn pinned_max(&self) -> u64 {
        (self.capacity() as f64 * self.pinned_share_max) as u64
    }

    /// Books `bytes` as pinned, within the cap.
    pub fn pin(&self, bytes: u64) -> bool {
        let cap = self.pinned_max();
        self.words()
            .held_bytes
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| {
                held.checked_add(bytes).filter(|after| *after <= cap)
            })
            .is_ok()
    }

    pub fn unpin(&self, bytes: u64) {
        self.words().held_bytes.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Books `bytes` that the kernel borrows on the user of the open. False: this user has as many
    /// as allowed.
    pub fn book_borrow(&self, user: u32, bytes: u64) -> bool {
        self.borrows.book(user, bytes, self.pinned(), self.pinned_max())
    }

    /// Releases bytes that the kernel borrowed.
    pub fn release_borrow(&self, user: u32, bytes: u64) {
        self.borrows.release(user, bytes);
    }

    /// Books memory for a table and its reference bits on a payer. False: there are too many.
    pub fn book_table(&self, payer: u16, bytes: u64) -> bool {
        let most = (self.capacity() / TABLES_SHARE).max(TABLES_BYTES_MIN);
        let mut tables = self.tables.lock();
        let of_payer = tables.payers.get(&payer).copied().unwrap_or(0) + bytes;
        if tables.all + bytes > most || of_payer > most / 2 {
            return false;
        }
        tables.all += bytes;
        tables.payers.insert(payer, of_payer);
        true
    }

    /// Takes booked tables off.
    pub fn release_table(&self, payer: u16, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut tables = self.tables.lock();
        tables.all -= bytes;
        let left = tables.payers.get_mut(&payer).map(|of_payer| {
            *of_payer -= bytes;
            *of_payer
        });
        if left == Some(0) {
            tables.payers.remove(&payer);
        }
    }
}
