//! [`CapacityLease`]: carries out what a controller of the memory asks for, and watches over its
//! lease. When the controller falls silent, the store falls to its guaranteed part until a
//! controller governs again.
//!
//! It decides nothing about sizes itself. It never lets a controller go below the guaranteed part
//! or above the ceiling, which is what the operator configured or set by `resize`, or a leased one
//! below that.

mod ceilings;
mod other_stores;
mod priority;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use tidepool_proto::admin::{ConfigEntry, FreeReport};
use tidepool_proto::control::{
    ControlEvent, ControlReport, ControlSetting, ControlStatus, Govern, Governed, LEASE_OPTION,
    check_lease, parameter_options, policy_interval_ms,
};
use tidepool_proto::control_page::{ControlPage, LeaseState, WRITE_BACK_PRIOR_BYTES_PER_S};
use tidepool_proto::option::option;
use tidepool_proto::{ByteSize, Error, ErrorKind, NodeConfig, Result};
use tidepool_store::{HeartbeatPage, Store};

use crate::ceiling::Ceiling;
use crate::lease::Lease;
use other_stores::OtherCeilings;

/// How often within a lease the watchdog looks whether it ran itself.
const WATCHES_PER_LEASE: u32 = 4;
const INTERVAL: &str = "control_interval_ms";
const POLICY: &str = "control_policy";
/// Origin of settings that were changed by command.
const LIVE_CHANGE: &str = "live change";

/// Between the store and its controller.
pub struct CapacityLease {
    store: Arc<Store>,
    block_bytes: u64,
    shared: Arc<Shared>,
    watchdog: Mutex<Option<JoinHandle<()>>>,
    /// Other memory of this process, which follows the capacity of the store.
    follower: OnceLock<Follower>,
}

/// Is told the capacity of the store, in bytes.
pub type Follower = Box<dyn Fn(u64) + Send + Sync>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lease: Lease,
    ceiling: Ceiling,
    other_ceilings: OtherCeilings,
    /// Of the controller that attached last.
    heartbeat: Option<HeartbeatPage>,
    /// Settings of the control with their origins, `control` itself included.
    entries: Vec<ConfigEntry>,
    /// Guaranteed part as it was set, before it is cut to the ceiling.
    memory_min_bytes: u64,
    foreign_changes: u64,
    report: Option<ControlReport>,
    events: VecDeque<ControlEvent>,
    stopping: bool,
}

impl CapacityLease {
    /// For a store of the given configuration, governed by nobody yet.
    pub fn new(store: Arc<Store>, config: &NodeConfig) -> CapacityLease {
        let ours = |entry: &&ConfigEntry| is_setting(&entry.name);
        let entries = config.entries.iter().filter(ours).cloned().collect();
        let memory_min_bytes = config.control.memory_min_bytes;
        let page = store.control_page();
        page.capacity_min_bytes.store(memory_min_bytes, Ordering::Relaxed);
        page.settings_generation.store(1, Ordering::Relaxed);
        page.ceilings_generation.store(1, Ordering::Relaxed);
        let ceiling = Ceiling::new(page.capacity_configured_bytes.load(Ordering::Relaxed));
        let state = State { entries, memory_min_bytes, ceiling, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let block_bytes = config.block_bytes;
        let (watchdog, follower) = (Mutex::new(None), OnceLock::new());
        CapacityLease { store, block_bytes, shared, watchdog, follower }
    }

    fn page(&self) -> &ControlPage {
        self.store.control_page()
    }

    /// Sets what else follows the capacity.
    pub fn set_follower(&self, follower: Follower) {
        _ = self.follower.set(follower);
    }

    /// Has it follow: at once where memory is given back, and within a second where it grows.
    pub fn follow(&self) {
        if let Some(follower) = self.follower.get() {
            follower(self.page().capacity_bytes.load(Ordering::Relaxed));
        }
    }

    /// From now on a controller should govern: the store falls to its guaranteed part where none
    /// attaches within a lease.
    ///
    /// # Errors
    ///
    /// `LimitReached` where there is no thread to watch over it.
    pub fn expect(self: &Arc<Self>) -> Result<()> {
        self.start_watchdog()?;
        let mut state = self.shared.state.lock();
        let lease = Duration::from_millis(state.lease_ms().max(1));
        state.lease.expect(lease, Instant::now());
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Waits until a controller governs; whether one does. Gives up after `timeout`, and where the
    /// control is switched off or the node stops.
    pub fn wait_until_governed(&self, timeout: Duration) -> bool {
        let mut state = self.shared.state.lock();
        let is_awaited = |state: &mut State| {
            state.lease.state() != LeaseState::Governed
                && !state.stopping
                && state.check_wanted().is_ok()
        };
        let _ = self.shared.changed.wait_while_for(&mut state, is_awaited, timeout);
        state.lease.state() == LeaseState::Governed
    }

    /// Answers a message of a controller. A shrink evicts before this returns.
    pub fn govern(self: &Arc<Self>, request: Govern) -> Result<Governed> {
        priority::run_before_jobs();
        let page = self.page();
        // First: a lease that nobody watches would never run out.
        self.start_watchdog()?;
        let mut state = self.shared.state.lock();
        state.check_wanted()?;
        let lease_max_ms = state.lease_ms();
        let lease_ms = match request.lease_ms {
            0 => lease_max_ms,
            wanted => wanted.min(lease_max_ms),
        };
        let lease = Duration::from_millis(lease_ms);
        state.listen();
        let before = state.lease.state();
        let heartbeat = (request.fence == 0).then(HeartbeatPage::new).transpose()?;
        let granted = state.lease.grant(request.fence, request.process_id, lease, Instant::now());
        let fence = granted.inspect_err(|error| tracing::warn!(%error, "refused a controller"))?;
        if before != LeaseState::Governed || fence != request.fence {
            let process_id = request.process_id;
            tracing::info!(process_id, was = before.name(), "a controller governs the store");
        }
        if heartbeat.is_some() {
            state.heartbeat = heartbeat;
            // What the last controller thought is no longer so.
            state.report = None;
        }
        page.lease.store(LeaseState::Governed as u64, Ordering::Release);
        let is_news = state.note(request.report.map(|report| *report));
        if is_news || request.fence == 0 || before != LeaseState::Governed {
            self.tell_stores();
        }
        if let Some(wanted) = request.capacity_bytes {
            let ceiling = page.capacity_max_bytes.load(Ordering::Relaxed);
            let capacity_bytes = wanted.max(page.guaranteed()).min(ceiling);
            // Under the lock: a command of a controller whose lease ran out never comes after the
            // watchdog's.
            self.store.set_capacity(capacity_bytes);
        }
        let generation = page.settings_generation.load(Ordering::Relaxed);
        let is_news = generation != request.settings_generation;
        let settings = is_news.then(|| state.parameters());
        let (ceilings_generation, ceilings) =
            state.news_of_ceilings(page, request.ceilings_generation);
        drop(state);
        self.shared.changed.notify_all();
        let freed = match request.capacity_bytes {
            Some(_) => self.settle_and_renew(fence),
            None => FreeReport::default(),
        };
        Ok(Governed {
            fence,
            lease_ms,
            freed_bytes: freed.freed_bytes,
            elapsed_ms: freed.elapsed_ms,
            resident_bytes: page.resident_bytes.load(Ordering::Relaxed),
            held_bytes: page.held_bytes.load(Ordering::Relaxed),
            capacity_bytes: page.capacity_bytes.load(Ordering::Relaxed),
            guaranteed_bytes: page.guaranteed(),
            settings_generation: generation,
            settings,
            ceilings_generation,
            ceilings,
        })
    }

    /// What the controller with this fence shares with the node: the control page, which it reads,
    /// and its heartbeat, which it writes.
    ///
    /// # Errors
    ///
    /// `InUse` where another one attached meanwhile.
    pub fn pages(&self, fence: u64) -> Result<[OwnedFd; 2]> {
        let state = self.shared.state.lock();
        let holds = state.lease.holder().is_some_and(|holder| holder.fence == fence);
        let heartbeat = state.heartbeat.as_ref().filter(|_| holds).ok_or_else(|| {
            let detail = "another controller attached meanwhile";
            Error::new(ErrorKind::InUse, "governing the store", detail).remedy("attach again")
        })?;
        Ok([self.store.control_page_descriptor()?, heartbeat.descriptor()?])
    }

    /// A long eviction is no silence of the controller: it waits for our answer.
    fn settle_and_renew(&self, fence: u64) -> FreeReport {
        let report = self.store.settle();
        self.follow();
        let mut state = self.shared.state.lock();
        let holder = state.lease.holder().copied();
        if let Some(holder) = holder.filter(|holder| holder.fence == fence)
            && state.lease.state() == LeaseState::Governed
        {
            let now = Instant::now();
            // It holds the lease, so this cannot be refused.
            let _ = state.lease.grant(fence, holder.process_id, holder.lease, now);
        }
        drop(state);
        self.shared.changed.notify_all();
        report
    }

    /// Somebody other than a controller sets the capacity. While a controller governs, this is
    /// its new ceiling: the store shrinks to it at once, and grows only as the controller says.
    pub fn resize(&self, capacity_bytes: u64) -> FreeReport {
        let page = self.page();
        let mut state = self.shared.state.lock();
        state.ceiling.configure(capacity_bytes);
        let most = state.keep_bounds(page);
        if state.lease.state() == LeaseState::Governed {
            state.foreign_changes += 1;
            let in_force = page.capacity_bytes.load(Ordering::Relaxed).min(most);
            self.store.set_capacity(in_force);
            page.settings_generation.fetch_add(1, Ordering::Relaxed);
            let ceiling = ByteSize(capacity_bytes);
            tracing::warn!(%ceiling, "the capacity of a governed store was set: its new ceiling");
        } else {
            self.store.set_capacity(most);
        }
        drop(state);
        self.follow();
        self.store.settle()
    }

    /// Changes a setting. Refuses unknown names and values that cannot work, with the figure.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let page = self.page();
        let mut state = self.shared.state.lock();
        check_setting(name, value)?;
        let number = || value.trim().parse::<u64>().unwrap_or(0);
        match name {
            "memory_min" => {
                let bytes = value.trim().parse::<ByteSize>().map_err(|_| share_of_nothing())?.0;
                let ceiling = state.ceiling.configured_bytes();
                // The store has whole blocks: what is within one of it is the same size.
                let block_bytes = self.block_bytes.max(1);
                if bytes / block_bytes * block_bytes > ceiling {
                    let (min, max) = (ByteSize(bytes), ByteSize(ceiling));
                    return Err(invalid(name, format!("{min} is more than the store of {max}"))
                        .remedy("ask for less, or enlarge the store first"));
                }
                state.memory_min_bytes = bytes;
                let most = state.keep_bounds(page);
                self.keep_below(&state, most);
            }
            LEASE_OPTION => {
                let (interval_ms, policy) = (state.number(INTERVAL), state.text(POLICY));
                check_lease(number(), interval_in_force_ms(interval_ms, policy))?;
            }
            INTERVAL => {
                let interval_ms = interval_in_force_ms(number(), state.text(POLICY));
                check_lease(state.lease_ms(), interval_ms)?;
            }
            POLICY => {
                let interval_ms = interval_in_force_ms(state.number(INTERVAL), value.trim());
                check_lease(state.lease_ms(), interval_ms)?;
            }
            _ => {}
        }
        if let Some(entry) = state.entries.iter_mut().find(|entry| entry.name == name) {
            (entry.value, entry.origin) = (value.trim().to_owned(), LIVE_CHANGE.to_owned());
        }
        page.settings_generation.fetch_add(1, Ordering::Relaxed);
        tracing::info!(name, value, "memory control changed");
        let fell = name == "memory_min" && self.keep_guaranteed(state.lease.state());
        drop(state);
        if fell {
            self.store.settle();
        }
        Ok(())
    }

    /// Takes the control away: the capacity is the ceiling again.
    pub fn release(&self) {
        let page = self.page();
        let mut state = self.shared.state.lock();
        state.lease.release();
        // What the last controller thought is no longer so.
        state.report = None;
        self.tell_stores();
        if state.lease.state() != LeaseState::Never {
            page.lease.store(state.lease.state() as u64, Ordering::Release);
            self.store.set_capacity(page.capacity_max_bytes.load(Ordering::Relaxed));
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Notes that the process of a controller ended.
    pub fn note_end(&self, process_id: u32) {
        self.shared.state.lock().lease.note_end(process_id);
    }

    /// The control as operators see it; what only the process around the node knows is left out.
    pub fn status(&self) -> ControlStatus {
        let page = self.page();
        let mut state = self.shared.state.lock();
        state.listen();
        let (lease, holder) = (&state.lease, state.lease.holder());
        let now = Instant::now();
        let since = |at: Instant| now.saturating_duration_since(at);
        let load = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
        ControlStatus {
            lease: lease.state().name().to_owned(),
            lease_ms: holder.map_or(state.lease_ms(), |holder| holder.lease.as_millis() as u64),
            process_id: holder.map(|holder| holder.process_id),
            attached_s: holder.map(|holder| since(holder.since).as_secs()),
            silent_ms: holder.map(|holder| since(holder.heard).as_millis() as u64),
            attachments: lease.attachments,
            expirations: lease.expirations,
            refusals: lease.refusals,
            foreign_changes: state.foreign_changes,
            guaranteed_bytes: page.guaranteed(),
            ceiling_bytes: state.ceiling.configured_bytes(),
            leased_ceiling: state.leased_ceiling(page, now),
            other_ceilings: state.other_ceilings.list(now),
            ceiling_leases: state.ceiling.leases,
            ceiling_expirations: state.ceiling.expirations,
            capacity_bytes: load(&page.capacity_bytes),
            resident_bytes: load(&page.resident_bytes),
            held_bytes: load(&page.held_bytes),
            memory_only_bytes: load(&page.memory_only_bytes),
            write_back_bytes_per_s: load(&page.write_back_bytes_per_s),
            report: state.report.clone(),
            decisions: state.events.iter().cloned().collect(),
            settings: state.entries.clone(),
            ..ControlStatus::default()
        }
    }

    /// Remembers how fast memory-only bytes were written back.
    pub fn note_write_back(&self, bytes: u64, elapsed: Duration) {
        if bytes == 0 {
            return;
        }
        let rate = (bytes as f64 / elapsed.as_secs_f64().max(1e-6)) as u64;
        let word = &self.page().write_back_bytes_per_s;
        let known = word.load(Ordering::Relaxed);
        // The latest counts most: a PFS is as fast as its other users let it be.
        let smoothed = if known == 0 { rate } else { known / 2 + rate / 2 };
        word.store(smoothed.max(1), Ordering::Relaxed);
    }

    /// Remembers that memory-only bytes are written back no faster than this, because they take
    /// longer already.
    pub fn note_write_back_at_most(&self, bytes_per_s: u64) {
        let word = &self.page().write_back_bytes_per_s;
        let known = word.load(Ordering::Relaxed);
        let believed = if known == 0 { WRITE_BACK_PRIOR_BYTES_PER_S } else { known };
        if bytes_per_s < believed {
            word.store(bytes_per_s.max(1), Ordering::Relaxed);
        }
    }

    /// Ends the watchdog.
    pub fn stop(&self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.watchdog.lock().take() {
            let _ = thread.join();
        }
    }

    fn start_watchdog(self: &Arc<Self>) -> Result<()> {
        let mut watchdog = self.watchdog.lock();
        if watchdog.is_some() || self.shared.state.lock().stopping {
            return Ok(());
        }
        let (weak, shared) = (Arc::downgrade(self), self.shared.clone());
        let builder = std::thread::Builder::new().name("lease".into()).stack_size(256 << 10);
        let spawned = builder.spawn(move || watch(&weak, &shared)).map_err(|error| {
            Error::new(ErrorKind::LimitReached, "watching over a controller", "no thread")
                .caused_by(error)
                .remedy("raise the limit of tasks, or switch the control off")
        });
        *watchdog = Some(spawned?);
        Ok(())
    }

    /// Follows a changed guaranteed part; whether the store may have to shrink.
    fn keep_guaranteed(&self, state: LeaseState) -> bool {
        let guaranteed = self.page().guaranteed();
        let capacity = self.page().capacity_bytes.load(Ordering::Relaxed);
        match state {
            LeaseState::Governed => self.store.set_capacity(capacity.max(guaranteed)),
            LeaseState::Expired => self.store.set_capacity(guaranteed),
            LeaseState::Never | LeaseState::Released => {}
        }
        state == LeaseState::Expired
    }

    /// Nobody governs: only the guaranteed part stays.
    fn fall_back(&self, state: &State) {
        let page = self.page();
        let guaranteed = page.guaranteed();
        let capacity = page.capacity_bytes.load(Ordering::Relaxed).min(guaranteed);
        page.lease.store(LeaseState::Expired as u64, Ordering::Release);
        self.tell_stores();
        self.store.set_capacity(capacity);
        let capacity = ByteSize(capacity);
        match state.lease.holder().map(|holder| holder.process_id) {
            Some(process_id) => tracing::warn!(
                process_id,
                %capacity,
                "the controller fell silent: the store falls to its guaranteed part"
            ),
            None => tracing::warn!(
                %capacity,
                "no controller attached in time: the store falls to its guaranteed part"
            ),
        }
    }
}

impl Drop for CapacityLease {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_all();
    }
}

fn watch(capacity_lease: &Weak<CapacityLease>, shared: &Shared) {
    let mut state = shared.state.lock();
    while !state.stopping {
        state.listen();
        let now = Instant::now();
        let (fell, rose) = (state.lease.expire(now), state.ceiling.expire(now));
        let others_rose = state.other_ceilings.expire(now);
        if !fell && !rose && !others_rose {
            match (state.lease.until(), state.ceilings_until()) {
                (Some(lease), ceiling) => wait_awake(shared, &mut state, lease, ceiling),
                (None, Some(ceiling)) => _ = shared.changed.wait_until(&mut state, ceiling),
                (None, None) => shared.changed.wait(&mut state),
            }
            continue;
        }
        let Some(capacity_lease) = capacity_lease.upgrade() else { return };
        if rose {
            capacity_lease.end_ceiling(&mut state);
        }
        if others_rose {
            capacity_lease.tell_ceilings();
        }
        if fell {
            capacity_lease.fall_back(&state);
        }
        drop(state);
        match fell {
            true => _ = capacity_lease.store.settle(),
            false => capacity_lease.follow(),
        }
        drop(capacity_lease);
        state = shared.state.lock();
    }
}

/// Waits for a change, or until the lease of the controller or that of a ceiling is over, in steps
/// of the first. Time in which this process did not run, such as
/// a frozen container or a virtual machine that moves, is no silence of the controller: most
/// likely it did not run either.
fn wait_awake(
    shared: &Shared,
    state: &mut MutexGuard<'_, State>,
    until: Instant,
    ceiling_until: Option<Instant>,
) {
    let Some(lease) = state.lease.length() else { return };
    let step = (lease / WATCHES_PER_LEASE).max(Duration::from_millis(1));
    let planned = until.min(Instant::now() + step);
    let planned = ceiling_until.map_or(planned, |it| it.min(planned));
    let _ = shared.changed.wait_until(state, planned);
    let late = Instant::now().saturating_duration_since(planned);
    if late > step {
        tracing::info!(?late, "this process did not run: the controller's lease is longer by it");
        state.lease.forgive(late);
    }
}

impl State {
    /// Looks at the heartbeat.
    fn listen(&mut self) {
        let age = self.heartbeat.as_ref().and_then(|heartbeat| heartbeat.words().age());
        if let Some(at) = age.and_then(|age| Instant::now().checked_sub(age)) {
            self.lease.hear(at);
        }
    }

    fn text(&self, name: &str) -> &str {
        let entry = self.entries.iter().find(|entry| entry.name == name);
        entry.map_or("", |entry| entry.value.trim())
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn lease_ms(&self) -> u64 {
        self.number(LEASE_OPTION)
    }

    fn check_wanted(&self) -> Result<()> {
        let entry = self.entries.iter().find(|entry| entry.name == "control");
        if entry.is_none_or(|entry| entry.value.trim() != "off") {
            return Ok(());
        }
        let detail = "nobody may: `control` is off";
        Err(Error::new(ErrorKind::Unsupported, "governing the store", detail)
            .remedy("`tidepool control set control on`"))
    }

    fn parameters(&self) -> Vec<ControlSetting> {
        let value = |name: &str| {
            let entry = self.entries.iter().find(|entry| entry.name == name);
            entry.map(|entry| entry.value.clone()).unwrap_or_default()
        };
        let setting = |name: &str| ControlSetting { name: name.to_owned(), value: value(name) };
        parameter_options().map(|spec| setting(spec.name)).collect()
    }
}

/// Time between two decisions, of which 0 leaves the choice to the policy.
fn interval_in_force_ms(set_ms: u64, policy: &str) -> u64 {
    if set_ms == 0 { policy_interval_ms(policy) } else { set_ms }
}

fn is_setting(name: &str) -> bool {
    name == "control"
        || name == "memory_min"
        || name == LEASE_OPTION
        || parameter_options().any(|spec| spec.name == name)
}

fn invalid(name: &str, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("setting `{name}`"), detail)
}

fn share_of_nothing() -> Error {
    invalid("memory_min", "a share means nothing to the store").remedy("give a size such as 8GiB")
}

/// Refuses what is no setting of the control, or not valid by its grammar.
pub fn check_setting(name: &str, value: &str) -> Result<()> {
    let spec = option(name).filter(|spec| is_setting(spec.name)).ok_or_else(|| {
        let names: Vec<&str> = tidepool_proto::option::OPTIONS
            .iter()
            .map(|spec| spec.name)
            .filter(|name| is_setting(name))
            .collect();
        invalid(name, "no setting of the memory control has this name")
            .remedy(format!("valid: {}", names.join(", ")))
    })?;
    spec.kind.check(value).map_err(|why| {
        invalid(name, format!("`{value}` {why}")).remedy(format!("valid: {}", spec.kind.valid()))
    })
}
