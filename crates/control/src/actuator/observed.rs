//! [`ObservedStore`]: Tidepool's own store as somebody sees it who does not govern it, and who may
//! lease a ceiling of it: the agent of the cluster plane.
//!
//! State comes from the node's control page without a message. A page outlives its node, so it
//! counts only while the connection is there.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidepool_client::{Client, ClientOptions};
use tidepool_proto::Result;
use tidepool_proto::control::{CeilingLease, CeilingLeased, ControlledStore};
use tidepool_proto::control_page::{ControlPage, LeaseState};

use super::shared_page::Page;

/// Time for an answer that waits for nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same where the store evicts first.
const LEASE_TIMEOUT: Duration = Duration::from_secs(4);

/// What a store is seen to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedState {
    /// Bytes it may hold now.
    pub capacity_bytes: u64,
    /// Bytes it holds.
    pub resident_bytes: u64,
    /// Bytes that cannot be evicted now.
    pub held_bytes: u64,
    /// Bytes that no ceiling takes from it.
    pub min_bytes: u64,
    /// Bytes that it may hold at most, as configured: what a ceiling is leased of.
    pub max_bytes: u64,
    /// Unit in which its capacity changes.
    pub block_bytes: u64,
}

/// Other stores of a node.
#[derive(Clone, Debug, Default)]
pub struct OtherStores {
    /// Those under control.
    pub stores: Vec<ControlledStore>,
    /// Those that should be and are not, one line each.
    pub not_governed: Vec<String>,
}

/// The store of a node, seen through its socket.
pub struct ObservedStore {
    client: Client,
    page: Mutex<Option<Page<ControlPage>>>,
}

impl ObservedStore {
    /// The store of the node at `socket`, which need not answer yet. Nodes of users other than
    /// root, the caller and `trusted_user_id` are not talked to.
    pub fn new(socket: &Path, trusted_user_id: Option<u32>) -> ObservedStore {
        let client = Client::connect(ClientOptions {
            socket: Some(socket.to_owned()),
            trusted_user_id,
            notice: Arc::new(|_| {}),
            ..ClientOptions::default()
        });
        ObservedStore { client, page: Mutex::new(None) }
    }

    /// Its state now. Costs no message but the first time, and `None` where the node is away; then
    /// [`ObservedStore::find`] looks for it.
    pub fn state(&self) -> Option<ObservedState> {
        self.last_state().filter(|_| self.client.is_connected())
    }

    /// The same for as long as nobody found out that the node is away: cheaper.
    pub fn last_state(&self) -> Option<ObservedState> {
        let page = self.page.lock();
        let words = page.as_ref()?.words();
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (block_bytes, max_bytes) =
            (load(&words.block_bytes), load(&words.capacity_configured_bytes));
        Some(ObservedState {
            capacity_bytes: load(&words.capacity_bytes),
            resident_bytes: load(&words.resident_bytes),
            held_bytes: load(&words.held_bytes),
            min_bytes: load(&words.capacity_min_bytes).max(block_bytes).min(max_bytes),
            max_bytes,
            block_bytes,
        })
    }

    /// Another one where other stores are not as [`ObservedStore::others`] said last, or the node
    /// is another. Costs no message.
    pub fn others_generation(&self) -> Option<(u64, u64)> {
        let page = self.page.lock();
        let words = page.as_ref()?.words();
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Some((load(&words.process_id), load(&words.stores_generation)))
    }

    /// Other stores that are under control beside it, as the controller saw them last.
    ///
    /// # Errors
    ///
    /// As the node says, or `TimedOut`.
    pub fn others(&self) -> Result<OtherStores> {
        if !self.client.is_connected() {
            return Ok(OtherStores::default());
        }
        let status = self.client.control_status(ANSWER_TIMEOUT)?;
        let not_governed = status.not_governed().map(str::to_owned).collect();
        // What a controller saw that is gone is not so any more.
        let governed = status.lease == LeaseState::Governed.name();
        let report = status.report.as_ref().filter(|_| governed);
        let others = report.into_iter().flat_map(|report| report.others());
        let stores = others.filter(|store| !store.failed).cloned().collect();
        Ok(OtherStores { stores, not_governed })
    }

    /// Connects to the node, where it answers.
    ///
    /// # Errors
    ///
    /// `NodeUnavailable` where none answers; `PermissionDenied` where the caller may not change it
    /// or must not trust it; `Protocol` for one of another release.
    pub fn find(&self) -> Result<()> {
        let found = self.client.observe(ANSWER_TIMEOUT).and_then(|descriptor| {
            let page = Page::<ControlPage>::map(&descriptor)?;
            page.words().check()?;
            Ok(page)
        });
        let mut page = self.page.lock();
        // What is not found is not there any more, or another node.
        *page = None;
        *page = Some(found?);
        Ok(())
    }

    /// Leases a ceiling of it, or of another store under control. The node carries it out also
    /// where its answer does not come in time.
    ///
    /// # Errors
    ///
    /// As the node says, or `TimedOut`.
    pub fn lease_ceiling(&self, request: CeilingLease) -> Result<CeilingLeased> {
        if !self.client.is_connected() {
            // The page that is there is of a node that is gone.
            self.find()?;
        }
        self.client.lease_ceiling(request, LEASE_TIMEOUT)
    }
}
