//! [`RequestTracer`]: distributes records of requests to the traces under way. While there is none,
//! front ends and client processes load one word per request.
//!
//! A plain user's trace gets the records of that user only. A trace ends with its [`TraceStream`],
//! which belongs to the connection that started it, so a killed `tidepool trace` leaves nothing on.

mod processes;
mod watch;

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidepool_pfs::LowerStore;
use tidepool_proto::trace::{TraceBatch, TraceRecord, TraceStream, TraceWish, Tracer};
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_store::TracePage;

use crate::pins::is_operator;
use processes::Processes;
use watch::{Sight, Watch, WatchedFile};

/// Traces at a time.
const WATCHES_MAX: usize = 16;
/// Traces at a time of one user that is neither root nor the node's owner.
const USER_WATCHES_MAX: usize = 4;
/// Traces at a time of all those users: they must not keep root from tracing.
const USERS_WATCHES_MAX: usize = WATCHES_MAX - USER_WATCHES_MAX;

/// See the module's documentation.
pub(crate) struct RequestTracer {
    pfs: Arc<dyn LowerStore>,
    switch: Switch,
    watches: Mutex<Vec<Arc<Watch>>>,
    processes: Mutex<Processes>,
    requests: AtomicU64,
}

/// The word that says whether anybody watches.
enum Switch {
    /// Where clients see it, too.
    Shared(TracePage),
    /// The system gave no memory file: clients do not trace.
    Own(AtomicU64),
}

impl Switch {
    fn word(&self) -> &AtomicU64 {
        match self {
            Switch::Shared(page) => &page.words().watchers,
            Switch::Own(word) => word,
        }
    }
}

impl RequestTracer {
    /// A tracer of requests to files of `pfs`, which nobody watches.
    pub fn new(pfs: Arc<dyn LowerStore>) -> Arc<RequestTracer> {
        let switch = TracePage::new().map_or_else(
            |error| {
                tracing::warn!(%error, "requests of client libraries cannot be traced");
                Switch::Own(AtomicU64::new(0))
            },
            Switch::Shared,
        );
        Arc::new(RequestTracer {
            pfs,
            switch,
            watches: Mutex::default(),
            processes: Mutex::default(),
            requests: AtomicU64::new(0),
        })
    }

    /// Traces that go on.
    pub fn under_way(&self) -> u64 {
        self.switch.word().load(Ordering::Relaxed)
    }

    fn watched_file(&self, descriptor: OwnedFd) -> Result<WatchedFile> {
        let file = self.pfs.file(descriptor)?;
        let path = self.path_of(file.descriptor());
        Ok(WatchedFile { inode: file.id().inode, path })
    }

    /// Sets the word, with the lock of the watches held.
    fn publish(&self, watches: &[Arc<Watch>]) {
        let going_on = watches.iter().filter(|watch| !watch.is_stopped()).count();
        self.switch.word().store(going_on as u64, Ordering::Release);
    }
}

/// A tracer that others share.
pub(crate) struct Shared(pub Arc<RequestTracer>);

impl Tracer for Shared {
    fn is_on(&self) -> bool {
        self.0.under_way() != 0
    }

    fn identify(&self, record: &mut TraceRecord) {
        let process = self.0.processes.lock().of(record.process_id);
        (record.process_id, record.process) = (process.id, process.name);
    }

    fn record(&self, mut record: TraceRecord) {
        let watches = self.0.watches.lock();
        if watches.is_empty() {
            return;
        }
        if record.process.is_empty() {
            self.identify(&mut record);
        }
        record.request = self.0.requests.fetch_add(1, Ordering::Relaxed) + 1;
        for watch in watches.iter().filter(|watch| watch.wants(&record)) {
            watch.add(record.clone());
        }
    }

    fn note_dropped(&self, requests: u64, user_id: u32) {
        let watches = self.0.watches.lock();
        // A client does not tell of which process or file they were: better too many than none.
        let sees = |watch: &&Arc<Watch>| watch.sight().sees(user_id);
        for watch in watches.iter().filter(sees) {
            watch.note_dropped(requests);
        }
    }

    fn start(&self, wish: TraceWish) -> Result<Box<dyn TraceStream>> {
        let file = wish.file.map(|file| self.0.watched_file(file)).transpose()?;
        let sight = match is_operator(wish.user_id) {
            true => Sight::All,
            false => Sight::Of(wish.user_id),
        };
        let watch = Arc::new(Watch::new(sight, wish.process_id, file));
        let mut watches = self.0.watches.lock();
        let own = watches.iter().filter(|other| other.sight() == sight).count();
        let of_users = watches.iter().filter(|other| other.sight() != Sight::All).count();
        let is_full = match sight {
            Sight::All => watches.len() >= WATCHES_MAX,
            Sight::Of(_) => own >= USER_WATCHES_MAX || of_users >= USERS_WATCHES_MAX,
        };
        if is_full || watches.len() >= WATCHES_MAX {
            let detail = format!("{} traces are under way, {own} of them yours", watches.len());
            return Err(Error::new(ErrorKind::LimitReached, "starting a trace", detail)
                .remedy("end one of the `tidepool trace` that run"));
        }
        watches.push(watch.clone());
        self.0.publish(&watches);
        drop(watches);
        Ok(Box::new(Stream { tracer: self.0.clone(), watch }))
    }

    fn path_of(&self, file: BorrowedFd<'_>) -> Option<String> {
        self.0.path_of(file)
    }

    fn page(&self) -> Option<OwnedFd> {
        match &self.0.switch {
            Switch::Shared(page) => page.read_only_copy().ok(),
            Switch::Own(_) => None,
        }
    }
}

impl RequestTracer {
    fn path_of(&self, file: BorrowedFd<'_>) -> Option<String> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = std::fs::read_link(link).ok()?;
        let below = path.strip_prefix(self.pfs.root()).ok()?;
        Some(below.to_string_lossy().into_owned())
    }
}

/// A trace under way.
struct Stream {
    tracer: Arc<RequestTracer>,
    watch: Arc<Watch>,
}

impl TraceStream for Stream {
    fn next(&self, patience: Duration, go_on: &dyn Fn() -> bool) -> TraceBatch {
        self.watch.next(patience, go_on)
    }

    fn stop(&self) {
        let watches = self.tracer.watches.lock();
        self.watch.stop();
        self.tracer.publish(&watches);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut watches = self.tracer.watches.lock();
        watches.retain(|watch| !Arc::ptr_eq(watch, &self.watch));
        self.tracer.publish(&watches);
        if watches.is_empty() {
            self.tracer.processes.lock().forget();
        }
    }
}
