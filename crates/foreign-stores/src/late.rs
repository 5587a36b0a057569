//! A store that may not be there yet: it is opened by a thread of its own, and looked for again
//! until it is there. Until then it holds nothing, obeys nothing, and counts as failed.
//!
//! A limit that a killed controller left is put back also on a server that cannot be governed any
//! more.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_control_policy::StoreState;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::configuration::{StoreConfiguration, open, put_back_left};
use tidepool_control::actuator::{Actuator, LimitBefore, LimitWitness, Resized};

/// Pause between two tries. Some stores are asked by a program that takes seconds to start.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
const AGAIN_AFTER_PROGRAM: Duration = Duration::from_secs(15);

/// A command waits this long for the store, so that one that came is not taken for failed until it
/// is asked again.
const WAIT: Duration = Duration::from_secs(1);

/// The servers that one controller governs, so that none is governed twice: under two names it
/// would be asked for two capacities, and each would take the other's limit for an administrator's.
#[derive(Clone, Default)]
pub struct Siblings(Arc<Mutex<Vec<Sibling>>>);

/// A server that was opened, and its place.
type Sibling = (Weak<dyn Actuator>, String);

impl Siblings {
    /// Notes a server that was opened, unless it is there already: then answers as what.
    fn note(&self, store: &Arc<dyn Actuator>, place: String) -> Option<Arc<dyn Actuator>> {
        let mut others = self.0.lock();
        others.retain(|(other, _)| other.strong_count() > 0);
        let before = store.limit_before()?;
        let process = |store: &Arc<dyn Actuator>| store.state().ok().map(|state| state.process_id);
        let twin = others.iter().find_map(|(other, its_place)| {
            let other = other.upgrade()?;
            let same = match before.process_id {
                // Stores whose limits are no process's may share one: two pools of a DataNode.
                0 => *its_place == place,
                _ => process(&other) == process(store),
            };
            same.then_some(other)
        });
        if twin.is_none() {
            others.push((Arc::downgrade(store), place));
        }
        twin
    }
}

/// A store that is opened as soon as it is there.
pub struct LateStore {
    name: String,
    configuration: StoreConfiguration,
    shared: Arc<Shared>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    store: Option<Arc<dyn Actuator>>,
    /// Why it is not there.
    trouble: Option<String>,
    /// The same server under another name, which is governed as that.
    twin: Option<Arc<dyn Actuator>>,
    left: Option<LimitBefore>,
    witness: Option<Arc<LimitWitness>>,
}

impl LateStore {
    /// Begins to open the store; not where it is one of `siblings` already.
    ///
    /// # Errors
    /// `LimitReached` where no thread can be started.
    pub fn start(configuration: StoreConfiguration, siblings: &Siblings) -> Result<LateStore> {
        let name = configuration.name().to_owned();
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = channel::<()>();
        let (theirs, of_thread) = (Arc::downgrade(&shared), configuration.clone());
        let siblings = siblings.clone();
        let pause = match configuration {
            StoreConfiguration::Alluxio(_) | StoreConfiguration::Hdfs(_) => AGAIN_AFTER_PROGRAM,
            _ => AGAIN_AFTER,
        };
        let opening = move || {
            while !try_to_open(&of_thread, &theirs, &siblings)
                && stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
            {}
        };
        let thread = std::thread::Builder::new().name(format!("open-{name}")).spawn(opening);
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::LimitReached, format!("opening store `{name}`"), "no thread")
                .caused_by(error)
                .remedy("raise the limit of tasks")
        })?;
        Ok(LateStore { name, configuration, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Waits until the first try to open the store is over, at most until `deadline`. Answers
    /// whether it is there.
    pub fn wait_for_first_try(&self, deadline: Instant) -> bool {
        self.wait_while(deadline, |state| state.store.is_none() && state.trouble.is_none())
    }

    fn wait(&self, deadline: Instant) -> bool {
        self.wait_while(deadline, |state| state.store.is_none())
    }

    fn wait_while(&self, deadline: Instant, absent: impl Fn(&State) -> bool) -> bool {
        let mut state = self.shared.state.lock();
        while absent(&state) {
            if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.store.is_some()
    }

    fn store(&self) -> Result<Arc<dyn Actuator>> {
        let state = self.shared.state.lock();
        state.store.clone().ok_or_else(|| {
            let why = state.trouble.clone().unwrap_or_else(|| "it has not answered yet".to_owned());
            let operation = format!("opening store `{}`", self.name);
            let remedy = match state.twin {
                Some(_) => "remove one of the two entries, then restart the node",
                None => "it is looked for again until it is there",
            };
            Error::new(ErrorKind::StoreUnavailable, operation, why).remedy(remedy)
        })
    }
}

/// Whether the store is open, or nobody wants it any more.
fn try_to_open(
    configuration: &StoreConfiguration,
    shared: &Weak<Shared>,
    siblings: &Siblings,
) -> bool {
    let opened = open(configuration);
    let Some(shared) = shared.upgrade() else { return true };
    let mut state = shared.state.lock();
    match opened {
        Ok(store) => {
            let store: Arc<dyn Actuator> = Arc::from(store);
            if let Some(twin) = siblings.note(&store, configuration.place()) {
                refuse_twin(configuration.name(), twin, &mut state);
                drop(state);
                shared.changed.notify_all();
                return true;
            }
            if let Some(witness) = state.witness.clone() {
                store.on_limit(Box::new(move |before| witness(before)));
            }
            if let Some(left) = state.left.take() {
                store.adopt_limit(left);
            }
            if state.trouble.take().is_some() {
                tracing::info!(name = configuration.name(), "a store is there, and governed");
            }
            state.store = Some(store);
            drop(state);
            shared.changed.notify_all();
            true
        }
        Err(error) => {
            if state.trouble.is_none() {
                let name = configuration.name();
                tracing::error!(name, "a store is not governed, and looked for again: {error}");
            }
            state.trouble = Some(error.to_string());
            let left = state.left.clone().filter(|_| error.kind() == ErrorKind::InvalidInput);
            drop(state);
            shared.changed.notify_all();
            // It is there and may not be governed: it must not keep a limit of ours.
            if let Some(left) = left
                && let Err(error) = put_back_for(configuration, &shared, left)
            {
                tracing::error!(name = configuration.name(), "not put back: {error}");
            }
            false
        }
    }
}

/// The server is governed under the name of `twin`. That gets what a killed controller left here.
fn refuse_twin(name: &str, twin: Arc<dyn Actuator>, state: &mut State) {
    let why = format!("it is the server of store `{}` too, and is governed as that", twin.name());
    tracing::error!(name, "a store is not governed: {why}");
    state.trouble = Some(why);
    if let Some(left) = state.left.take() {
        give_to_twin(&*twin, left, state);
    }
    state.twin = Some(twin);
}

fn give_to_twin(twin: &dyn Actuator, left: LimitBefore, state: &State) {
    twin.adopt_limit(left.clone());
    if let Some(witness) = &state.witness
        && let Err(error) = witness(&LimitBefore { set_bytes: Vec::new(), ..left })
    {
        tracing::error!("{error}");
    }
}

/// Puts back what a killed controller left on a server that is not open here.
fn put_back_for(
    configuration: &StoreConfiguration,
    shared: &Shared,
    left: LimitBefore,
) -> Result<()> {
    put_back_left(configuration, left.clone())?;
    let mut state = shared.state.lock();
    state.left = None;
    let witness = state.witness.clone();
    drop(state);
    if let Some(witness) = witness {
        return witness(&LimitBefore { set_bytes: Vec::new(), ..left });
    }
    Ok(())
}

impl Drop for LateStore {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A try that hangs must not keep the program from ending.
        if let Some(thread) = self.thread.take().filter(|thread| thread.is_finished()) {
            let _ = thread.join();
        }
    }
}

impl Actuator for LateStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn place(&self) -> String {
        self.configuration.place()
    }

    fn state(&self) -> Result<StoreState> {
        self.store()?.state()
    }

    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized> {
        match self.store() {
            Ok(store) => store.resize(capacity_bytes, deadline),
            // The capacity is that of a store of which nothing was known: the next one counts.
            Err(_) if self.wait(Instant::now() + deadline.min(WAIT)) => Ok(Resized::default()),
            Err(absent) => Err(absent),
        }
    }

    fn keeps(&self) -> &'static str {
        self.configuration.keeps()
    }

    fn expect(&self, capacity_bytes: u64) {
        if let Ok(store) = self.store() {
            store.expect(capacity_bytes);
        }
    }

    fn lease(&self) -> Option<Duration> {
        self.store().ok()?.lease()
    }

    fn limit_before(&self) -> Option<LimitBefore> {
        self.store().ok()?.limit_before()
    }

    fn adopt_limit(&self, left: LimitBefore) {
        let mut state = self.shared.state.lock();
        match (&state.store, &state.twin) {
            (Some(store), _) => store.adopt_limit(left),
            (None, Some(twin)) => give_to_twin(&**twin, left, &state),
            (None, None) => state.left = Some(left),
        }
    }

    fn on_limit(&self, witness: LimitWitness) {
        let witness = Arc::new(witness);
        let mut state = self.shared.state.lock();
        if let Some(store) = &state.store {
            let theirs = witness.clone();
            store.on_limit(Box::new(move |before| theirs(before)));
        }
        state.witness = Some(witness);
    }

    fn put_back(&self) -> Result<()> {
        let state = self.shared.state.lock();
        let (store, left) = (state.store.clone(), state.left.clone());
        drop(state);
        match (store, left) {
            (Some(store), _) => store.put_back(),
            (None, Some(left)) => put_back_for(&self.configuration, &self.shared, left),
            (None, None) => Ok(()),
        }
    }
}
