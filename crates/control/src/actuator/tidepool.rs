//! Tidepool's own store as one that can be resized.
//!
//! State comes from the node's control page in shared memory, and every question for it is a
//! heartbeat there, so the lease is held without messages, and only while the controller still
//! decides: a controller that hangs must lose it as one that dies does. Commands go over the node's
//! socket. A thread takes reports there, fetches changed settings, and attaches again after a
//! restart of the node. It never governs a store that another controller governs, and never trusts
//! a page of another layout.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_client::{Client, ClientOptions};
use tidepool_control_policy::StoreState;
use tidepool_proto::control::{ControlReport, ControlSetting, Govern, Governed, OWN_STORE};
use tidepool_proto::control_page::{ControlPage, Heartbeat, LeaseState};
use tidepool_proto::{Error, ErrorKind, Result};

use super::shared_page::Page;
use super::{Actuator, LeasedCeilings, Resized};

/// Time for an answer that waits for nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Leases until a node that nothing needs to be told is asked whether it still knows us.
const LEASES_OF_SILENCE: u32 = 2;
/// Attempts in a lease to reach a node that did not answer.
const ATTEMPTS_PER_LEASE: u32 = 4;

/// The store of a node, governed through its socket. When it is dropped or asked no more, the
/// store falls to its guaranteed part once the lease runs out.
pub struct TidepoolStore {
    shared: Arc<Shared>,
    speaking: Option<JoinHandle<()>>,
}

struct Shared {
    /// Commands may wait for an eviction, other messages must not wait for them.
    commands: Client,
    messages: Client,
    attachment: Mutex<Attachment>,
    /// There is something to say, or the end has come.
    changed: Condvar,
    ceilings: Arc<LeasedCeilings>,
}

struct Attachment {
    page: Option<Arc<Page<ControlPage>>>,
    heartbeat: Option<Page<Heartbeat>>,
    fence: u64,
    lease: Duration,
    settings_generation: u64,
    settings: Vec<ControlSetting>,
    ceilings_generation: u64,
    /// Told when settings or ceilings of other stores came that were changed.
    settings_changed: Option<Box<dyn Fn() + Send>>,
    report: Option<Box<ControlReport>>,
    /// A message is wanted now.
    due: bool,
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
            heartbeat: None,
            fence: 0,
            lease: Duration::from_secs(1),
            settings_generation: 0,
            settings: Vec::new(),
            ceilings_generation: 0,
            settings_changed: None,
            report: None,
            due: false,
            asked: Instant::now(),
            trouble: None,
            ending: false,
        };
        let shared = Arc::new(Shared {
            commands: client(),
            messages: client(),
            attachment: Mutex::new(attachment),
            changed: Condvar::new(),
            ceilings: Arc::default(),
        });
        shared.exchange()?;
        let theirs = shared.clone();
        let spawned = std::thread::Builder::new()
            .name("lease".to_owned())
            .stack_size(256 << 10)
            .spawn(move || speak(&theirs));
        let speaking = spawned.map_err(|error| {
            Error::new(ErrorKind::LimitReached, "attaching to the node", "no thread")
                .caused_by(error)
        })?;
        Ok(TidepoolStore { shared, speaking: Some(speaking) })
    }

    /// Settings of the node and their generation, which rises when one of them or the ceiling of
    /// the store was changed.
    pub fn settings(&self) -> (u64, Vec<ControlSetting>) {
        let attachment = self.shared.attachment.lock();
        (attachment.settings_generation, attachment.settings.clone())
    }

    /// The ceilings that are leased of other stores.
    pub fn ceilings(&self) -> Arc<LeasedCeilings> {
        Arc::clone(&self.shared.ceilings)
    }

    /// Calls `tell` from now on whenever settings, or ceilings of other stores, came that were
    /// changed. It must not call this.
    pub fn on_settings(&self, tell: impl Fn() + Send + 'static) {
        self.shared.attachment.lock().settings_changed = Some(Box::new(tell));
    }

    /// Process id of the node, whose control group the store's pages are charged to.
    pub fn node_process_id(&self) -> Option<u32> {
        let attachment = self.shared.attachment.lock();
        let word = &attachment.page.as_ref()?.words().process_id;
        u32::try_from(word.load(Ordering::Relaxed)).ok()
    }

    /// Tells the node what the controller thinks. Events of a report that was not sent yet are
    /// kept.
    pub fn report(&self, mut report: ControlReport) {
        let mut attachment = self.shared.attachment.lock();
        if let Some(unsent) = attachment.report.take() {
            let later = std::mem::replace(&mut report.events, unsent.events);
            report.events.extend(later);
        }
        report.fit();
        attachment.report = Some(Box::new(report));
        self.shared.speak_soon(&mut attachment);
    }

    /// Why the store is not governed at the moment, in words.
    pub fn trouble(&self) -> Option<String> {
        self.shared.attachment.lock().trouble.clone()
    }
}

impl Drop for TidepoolStore {
    fn drop(&mut self) {
        self.shared.attachment.lock().ending = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.speaking.take() {
            let _ = thread.join();
        }
    }
}

impl Actuator for TidepoolStore {
    fn name(&self) -> &str {
        OWN_STORE
    }

    fn state(&self) -> Result<StoreState> {
        let mut attachment = self.shared.attachment.lock();
        attachment.asked = Instant::now();
        if let Some(heartbeat) = &attachment.heartbeat {
            heartbeat.words().beat();
        }
        // A page outlives its node; only the connection tells that the node is gone.
        let page = attachment.page.clone().filter(|_| self.shared.messages.is_connected());
        let has_news = page.as_ref().is_none_or(|page| attachment.has_news(page.words()));
        if has_news && attachment.trouble.is_none() {
            self.shared.speak_soon(&mut attachment);
        }
        let trouble = attachment.trouble.clone().filter(|_| page.is_none());
        drop(attachment);
        let page = page.ok_or_else(|| {
            let detail = trouble.unwrap_or_else(|| "the node is gone".to_owned());
            Error::new(ErrorKind::NodeUnavailable, "reading the control page", detail)
                .remedy("the controller attaches again when the node is back")
        })?;
        Ok(page.state())
    }

    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized> {
        let begun = Instant::now();
        let (message, page) = {
            let attachment = self.shared.attachment.lock();
            let message = Govern { capacity_bytes: Some(capacity_bytes), ..attachment.message() };
            (message, attachment.page.clone())
        };
        let before = page.as_ref().map_or(0, |page| page.state().resident_bytes);
        let answer = self.shared.commands.govern(message, deadline);
        let elapsed = begun.elapsed();
        match answer {
            Ok((governed, _)) => {
                self.shared.attachment.lock().take_answer(&governed, &self.shared.ceilings);
                Ok(Resized {
                    freed_bytes: governed.freed_bytes,
                    resident_bytes: governed.resident_bytes,
                    elapsed,
                })
            }
            // The node goes on with the eviction; what came back so far is seen in the page.
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                let resident_bytes = page.map_or(before, |it| it.state().resident_bytes);
                let freed_bytes = before.saturating_sub(resident_bytes);
                Ok(Resized { freed_bytes, resident_bytes, elapsed })
            }
            Err(error) => Err(error),
        }
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.shared.attachment.lock().lease)
    }
}

impl Attachment {
    /// Whether the node has something that only a message brings: settings, ceilings of other
    /// stores, or a lease that ran out while the controller could not decide.
    fn has_news(&self, page: &ControlPage) -> bool {
        page.settings_generation.load(Ordering::Relaxed) != self.settings_generation
            || page.ceilings_generation.load(Ordering::Relaxed) != self.ceilings_generation
            || page.lease_state() != LeaseState::Governed
    }

    /// A message that says nothing but that there is a controller.
    fn message(&self) -> Govern {
        Govern {
            fence: self.fence,
            process_id: std::process::id(),
            settings_generation: self.settings_generation,
            ceilings_generation: self.ceilings_generation,
            ..Govern::default()
        }
    }

    fn take_pages(&mut self, descriptors: &[OwnedFd]) -> Result<()> {
        let [control, heartbeat] = descriptors else {
            let detail = format!("{} descriptors came, not 2", descriptors.len());
            return Err(Error::new(ErrorKind::Protocol, "attaching to the node", detail));
        };
        let page = Page::<ControlPage>::map(control)?;
        page.words().check()?;
        self.heartbeat = Some(Page::map(heartbeat)?);
        self.page = Some(Arc::new(page));
        Ok(())
    }

    fn take_answer(&mut self, governed: &Governed, ceilings: &LeasedCeilings) {
        self.fence = governed.fence;
        self.lease = Duration::from_millis(governed.lease_ms.max(1));
        if let Some(settings) = &governed.settings {
            self.settings.clone_from(settings);
            self.settings_generation = governed.settings_generation;
        }
        if let Some(leased) = &governed.ceilings {
            ceilings.replace(leased, Instant::now());
            self.ceilings_generation = governed.ceilings_generation;
        }
        let is_news = governed.settings.is_some() || governed.ceilings.is_some();
        if let Some(tell) = self.settings_changed.as_ref().filter(|_| is_news) {
            tell();
        }
        self.trouble = None;
    }
}

impl Shared {
    fn speak_soon(&self, attachment: &mut Attachment) {
        attachment.due = true;
        self.changed.notify_all();
    }

    /// Attaches, or reports and learns what changed; renews the lease in any case.
    fn exchange(&self) -> Result<()> {
        let mut attachment = self.attachment.lock();
        if !self.messages.is_connected() {
            // A node that was started anew knows nothing of us.
            (attachment.fence, attachment.settings_generation) = (0, 0);
            attachment.ceilings_generation = 0;
        }
        let report = attachment.report.take();
        let message = Govern { report: report.clone(), ..attachment.message() };
        drop(attachment);
        let answer = self.messages.govern(message, ANSWER_TIMEOUT);
        let mut attachment = self.attachment.lock();
        let answered = answer.and_then(|(governed, descriptors)| {
            if !descriptors.is_empty() {
                attachment.take_pages(&descriptors)?;
            }
            attachment.take_answer(&governed, &self.ceilings);
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

fn speak(shared: &Shared) {
    let mut told = false;
    let mut attachment = shared.attachment.lock();
    while !attachment.ending {
        let pause = match attachment.trouble {
            Some(_) => attachment.lease / ATTEMPTS_PER_LEASE,
            None => attachment.lease * LEASES_OF_SILENCE,
        };
        if !attachment.due {
            let _ = shared.changed.wait_for(&mut attachment, pause);
        }
        attachment.due = false;
        // A controller that hangs must not look alive by its other threads.
        if attachment.ending || attachment.asked.elapsed() > attachment.lease {
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
