//! Tidepool's own store as one that can be resized.
//!
//! State comes from the node's control page in shared memory, without a message; commands go over
//! the node's socket. A thread renews the lease four times in its length, and only while the
//! controller still decides: who hangs must lose the lease as who dies does. After a restart of the
//! node it attaches again. It never governs a store that another controller governs, and never
//! trusts a page of another layout.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::mm::{MapFlags, ProtFlags};
use tidepool_client::{Client, ClientOptions};
use tidepool_model::control::{REST_MAX_MS, StoreSpeed, StoreState};
use tidepool_proto::control::{ControlReport, ControlSetting, Govern, Governed};
use tidepool_proto::control_page::{CONTROL_PAGE_BYTES, ControlPage};
use tidepool_proto::{Error, ErrorKind, Result};

use super::{Actuator, Resized};

/// Name of the store in snapshots and reports.
const NAME: &str = "tidepool";
/// Time for an answer that waits for nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time between two decisions of a calm node.
const REST_MAX: Duration = Duration::from_millis(REST_MAX_MS);
/// Part of the lease between two renewals.
const RENEWALS_PER_LEASE: u32 = 4;

/// The store of a node, governed through its socket. Dropping it ends the renewals, so that the
/// store falls to its guaranteed part when the lease runs out.
pub struct TidepoolStore {
    shared: Arc<Shared>,
    renewing: Option<JoinHandle<()>>,
}

struct Shared {
    /// Commands may wait for an eviction, renewals must not wait for them.
    commands: Client,
    renewals: Client,
    attachment: Mutex<Attachment>,
    ended: Condvar,
}

struct Attachment {
    page: Option<Arc<Page>>,
    fence: u64,
    lease: Duration,
    settings_generation: u64,
    settings: Vec<ControlSetting>,
    report: Option<Box<ControlReport>>,
    /// When the controller last asked for the state.
    asked: Instant,
    /// Why nobody governs through this at the moment.
    trouble: Option<String>,
    ending: bool,
}

impl TidepoolStore {
    /// Attaches to the node at `socket`. Nodes of users other than root, the caller and
    /// `trusted_user_id` are refused.
    ///
    /// # Errors
    ///
    /// `InUse` where another controller governs, naming it; `NodeUnavailable` where no node
    /// answers; `PermissionDenied` where the caller may not govern it or must not trust it.
    pub fn attach(socket: &Path, trusted_user_id: Option<u32>) -> Result<TidepoolStore> {
        let client = || {
            Client::connect(ClientOptions {
                socket: Some(socket.to_owned()),
                trusted_user_id,
                notice: Arc::new(|_| {}),
                ..ClientOptions::default()
            })
        };
        let attachment = Attachment {
            page: None,
            fence: 0,
            lease: Duration::from_secs(1),
            settings_generation: 0,
            settings: Vec::new(),
            report: None,
            asked: Instant::now(),
            trouble: None,
            ending: false,
        };
        let shared = Arc::new(Shared {
            commands: client(),
            renewals: client(),
            attachment: Mutex::new(attachment),
            ended: Condvar::new(),
        });
        shared.exchange()?;
        let theirs = shared.clone();
        let spawned = std::thread::Builder::new()
            .name("lease".to_owned())
            .stack_size(256 << 10)
            .spawn(move || renew(&theirs));
        let renewing = spawned.map_err(|error| {
            Error::new(ErrorKind::LimitReached, "attaching to the node", "no thread")
                .caused_by(error)
        })?;
        Ok(TidepoolStore { shared, renewing: Some(renewing) })
    }

    /// Settings of the node and their generation, which rises when one of them or the ceiling of
    /// the store was changed.
    pub fn settings(&self) -> (u64, Vec<ControlSetting>) {
        let attachment = self.shared.attachment.lock();
        (attachment.settings_generation, attachment.settings.clone())
    }

    /// Process id of the node, whose control group the store's pages are charged to.
    pub fn node_process_id(&self) -> Option<u32> {
        let attachment = self.shared.attachment.lock();
        let word = &attachment.page.as_ref()?.words().process_id;
        u32::try_from(word.load(Ordering::Relaxed)).ok()
    }

    /// Tells the node with the next renewal what the controller thinks. Events of a report that
    /// was not sent yet are kept.
    pub fn report(&self, mut report: ControlReport) {
        let mut attachment = self.shared.attachment.lock();
        if let Some(unsent) = attachment.report.take() {
            let later = std::mem::replace(&mut report.events, unsent.events);
            report.events.extend(later);
        }
        report.fit();
        attachment.report = Some(Box::new(report));
    }

    /// Why the store is not governed at the moment, in words.
    pub fn trouble(&self) -> Option<String> {
        self.shared.attachment.lock().trouble.clone()
    }
}

impl Drop for TidepoolStore {
    fn drop(&mut self) {
        self.shared.attachment.lock().ending = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.renewing.take() {
            let _ = thread.join();
        }
    }
}

impl Actuator for TidepoolStore {
    fn name(&self) -> &str {
        NAME
    }

    fn state(&self) -> Result<StoreState> {
        let mut attachment = self.shared.attachment.lock();
        attachment.asked = Instant::now();
        // A page outlives its node; only the connection tells that the node is gone.
        let page = attachment.page.clone().filter(|_| self.shared.renewals.is_connected());
        let trouble = attachment.trouble.clone();
        drop(attachment);
        let page = page.ok_or_else(|| {
            let detail = trouble.unwrap_or_else(|| "the node is gone".to_owned());
            Error::new(ErrorKind::NodeUnavailable, "reading the control page", detail)
                .remedy("the controller attaches again when the node is back")
        })?;
        Ok(page.words().state())
    }

    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized> {
        let begun = Instant::now();
        let (message, page) = {
            let attachment = self.shared.attachment.lock();
            let message = Govern { capacity_bytes: Some(capacity_bytes), ..attachment.message() };
            (message, attachment.page.clone())
        };
        let before = page.as_ref().map_or(0, |page| page.words().state().resident_bytes);
        let answer = self.shared.commands.govern(message, deadline);
        let elapsed = begun.elapsed();
        match answer {
            Ok((governed, _)) => {
                self.shared.attachment.lock().take_answer(&governed);
                Ok(Resized {
                    freed_bytes: governed.freed_bytes,
                    resident_bytes: governed.resident_bytes,
                    elapsed,
                })
            }
            // The node goes on with the eviction; what came back so far is seen in the page.
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                let resident_bytes = page.map_or(before, |it| it.words().state().resident_bytes);
                let freed_bytes = before.saturating_sub(resident_bytes);
                Ok(Resized { freed_bytes, resident_bytes, elapsed })
            }
            Err(error) => Err(error),
        }
    }
}

impl Attachment {
    /// A renewal.
    fn message(&self) -> Govern {
        Govern {
            fence: self.fence,
            process_id: std::process::id(),
            settings_generation: self.settings_generation,
            ..Govern::default()
        }
    }

    fn take_answer(&mut self, governed: &Governed) {
        self.fence = governed.fence;
        self.lease = Duration::from_millis(governed.lease_ms.max(1));
        if let Some(settings) = &governed.settings {
            self.settings.clone_from(settings);
            self.settings_generation = governed.settings_generation;
        }
        self.trouble = None;
    }
}

impl Shared {
    /// Attaches, or renews the lease and reports.
    fn exchange(&self) -> Result<()> {
        let mut attachment = self.attachment.lock();
        if !self.renewals.is_connected() {
            // A node that was started anew knows nothing of us.
            (attachment.fence, attachment.settings_generation) = (0, 0);
        }
        let report = attachment.report.take();
        let message = Govern { report: report.clone(), ..attachment.message() };
        drop(attachment);
        let answer = self.renewals.govern(message, ANSWER_TIMEOUT);
        let mut attachment = self.attachment.lock();
        let answered = answer.and_then(|(governed, descriptor)| {
            if let Some(descriptor) = descriptor {
                attachment.page = Some(Arc::new(Page::map(&descriptor)?));
            }
            attachment.take_answer(&governed);
            Ok(())
        });
        if let Err(error) = &answered {
            if attachment.report.is_none() {
                attachment.report = report;
            }
            // Fenced off, or taken away by command: only a new attachment helps, if any does.
            attachment.fence = 0;
            attachment.trouble = Some(error.to_string());
        }
        answered
    }
}

fn renew(shared: &Shared) {
    let mut told = false;
    let mut attachment = shared.attachment.lock();
    while !attachment.ending {
        let lease = attachment.lease;
        let _ = shared.ended.wait_for(&mut attachment, lease / RENEWALS_PER_LEASE);
        // A controller that rests between two decisions is alive.
        if attachment.ending || attachment.asked.elapsed() > lease.max(2 * REST_MAX) {
            continue;
        }
        drop(attachment);
        match shared.exchange() {
            Ok(()) if told => {
                told = false;
                tracing::info!("the controller governs the store again");
            }
            Err(error) if !told => {
                told = true;
                tracing::warn!("the controller does not govern the store: {error}");
            }
            Ok(()) | Err(_) => {}
        }
        attachment = shared.attachment.lock();
    }
}

/// The control page of a node, mapped for reading.
struct Page(NonNull<ControlPage>);

// SAFETY: the mapping has no thread affinity and is only ever read, through atomics.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn map(descriptor: &OwnedFd) -> Result<Page> {
        let failed = |error: rustix::io::Errno| {
            Error::new(ErrorKind::Protocol, "mapping the control page", "").caused_by(error)
        };
        let status = rustix::fs::fstat(descriptor).map_err(failed)?;
        // A node that cut its page off would end this process: only a sealed file is mapped.
        let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(failed)?;
        let is_sealed = seals.contains(rustix::fs::SealFlags::SHRINK);
        if !is_sealed || u64::try_from(status.st_size).unwrap_or(0) < CONTROL_PAGE_BYTES {
            let detail = "it is too short, or not sealed against shrinking";
            return Err(Error::new(ErrorKind::Protocol, "mapping the control page", detail)
                .remedy("use the same release on both sides"));
        }
        // SAFETY: the kernel chooses an unused range, so no memory of the process is replaced.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                CONTROL_PAGE_BYTES as usize,
                ProtFlags::READ,
                MapFlags::SHARED,
                descriptor.as_fd(),
                0,
            )
        };
        let base = base.map_err(failed)?.cast::<ControlPage>();
        let page = Page(NonNull::new(base).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?);
        page.words().check()?;
        Ok(page)
    }

    fn words(&self) -> &ControlPage {
        // SAFETY: mapped by `map` for as long as `self` lives, long enough by its check, aligned
        // as every mapping is; the file cannot shrink. All words are atomics, so whatever the node
        // writes is a valid value.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, unmapped only here; references do not outlive `self`.
        let unmapped =
            unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), CONTROL_PAGE_BYTES as usize) };
        debug_assert!(unmapped.is_ok(), "unmapping a page that is mapped");
    }
}

/// What the words of a page say of the store.
trait PageState {
    fn state(&self) -> StoreState;
}

impl PageState for ControlPage {
    fn state(&self) -> StoreState {
        let load = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
        // No name: this runs at every decision, and a name is an allocation.
        StoreState {
            resident_bytes: load(&self.resident_bytes),
            capacity_bytes: load(&self.capacity_bytes),
            capacity_min_bytes: self.guaranteed(),
            capacity_max_bytes: load(&self.capacity_max_bytes),
            held_bytes: load(&self.held_bytes),
            memory_only_bytes: load(&self.memory_only_bytes),
            spill_bytes_per_s: load(&self.spill_bytes_per_s),
            speed: StoreSpeed::Fast,
            block_bytes: load(&self.block_bytes),
            ..StoreState::default()
        }
    }
}
