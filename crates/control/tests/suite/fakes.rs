//! A simulated node for tests: sensors that read it and stores on it, all set by the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_control::actuator::{Actuator, Resized};
use tidepool_control::sensor::Sense;
use tidepool_control::{Governor, Report};
use tidepool_control_policy::{Parameters, Snapshot, StoreState};
use tidepool_proto::{Error, ErrorKind, Result};

pub const GIB: u64 = 1 << 30;
pub const MILLISECOND: u64 = 1_000_000;
/// A wait of a test that fails; long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A store whose answers the test decides.
pub struct FakeStore {
    state: Mutex<StoreState>,
    asked: Mutex<Vec<u64>>,
    gate: Mutex<bool>,
    opened: Condvar,
    dead: AtomicBool,
    refuses: AtomicBool,
    lease: Mutex<Option<Duration>>,
}

impl FakeStore {
    /// A full store of `bytes` that may hold as much.
    pub fn full(name: &str, bytes: u64) -> Arc<Self> {
        let state = StoreState {
            name: name.to_owned(),
            resident_bytes: bytes,
            capacity_bytes: bytes,
            capacity_max_bytes: bytes,
            block_bytes: 4 << 20,
            ..StoreState::default()
        };
        Arc::new(FakeStore {
            state: Mutex::new(state),
            asked: Mutex::default(),
            gate: Mutex::new(true),
            opened: Condvar::new(),
            dead: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            lease: Mutex::default(),
        })
    }

    /// Changes what it says of itself.
    pub fn change(&self, change: impl FnOnce(&mut StoreState)) {
        change(&mut self.state.lock());
    }

    pub fn resident_bytes(&self) -> u64 {
        self.state.lock().resident_bytes
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.state.lock().capacity_bytes
    }

    /// Commands wait until it is opened again.
    pub fn close_gate(&self) {
        *self.gate.lock() = false;
    }

    pub fn open_gate(&self) {
        *self.gate.lock() = true;
        self.opened.notify_all();
    }

    /// It takes a controller that is silent for so long for dead.
    pub fn set_lease(&self, lease: Duration) {
        *self.lease.lock() = Some(lease);
    }

    /// Whether it refuses everything.
    pub fn set_dead(&self, dead: bool) {
        self.dead.store(dead, Ordering::SeqCst);
    }

    /// Whether it refuses commands but tells its state.
    pub fn refuse_commands(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// All capacities that arrived, in order.
    pub fn asked(&self) -> Vec<u64> {
        self.asked.lock().clone()
    }

    fn answer(&self) -> Result<()> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::StoreUnavailable, "asking the store", "it is dead"));
        }
        Ok(())
    }
}

impl Actuator for FakeStore {
    fn name(&self) -> &str {
        "fake"
    }

    fn state(&self) -> Result<StoreState> {
        self.answer()?;
        Ok(self.state.lock().clone())
    }

    fn resize(&self, capacity_bytes: u64, _: Duration) -> Result<Resized> {
        self.asked.lock().push(capacity_bytes);
        let mut open = self.gate.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
        self.answer()?;
        if self.refuses.load(Ordering::SeqCst) {
            return Err(Error::new(
                ErrorKind::StoreUnavailable,
                "resizing the store",
                "it refuses",
            ));
        }
        let mut state = self.state.lock();
        state.capacity_bytes = capacity_bytes;
        let freed_bytes = state.resident_bytes.saturating_sub(capacity_bytes);
        state.resident_bytes -= freed_bytes;
        let resident_bytes = state.resident_bytes;
        Ok(Resized { freed_bytes, resident_bytes, elapsed: Duration::from_millis(100) })
    }

    fn lease(&self) -> Option<Duration> {
        *self.lease.lock()
    }
}

/// Memory of the made-up node.
#[derive(Clone, Copy)]
pub struct Memory {
    pub total_bytes: u64,
    pub jobs_bytes: u64,
    pub readable: bool,
}

/// Sensors of the made-up node.
pub struct FakeSensors(pub Arc<Mutex<Memory>>);

impl Sense for FakeSensors {
    fn read(&mut self, _: u64, stored_bytes: u64, snapshot: &mut Snapshot) {
        let memory = *self.0.lock();
        let used = memory.jobs_bytes + stored_bytes;
        let readable = memory.readable;
        snapshot.memory_total_bytes = memory.total_bytes;
        snapshot.available_bytes = readable.then(|| memory.total_bytes.saturating_sub(used));
        snapshot.used_kinds_bytes = readable.then_some(used);
    }
}

/// The node with its controller, whose time the test moves.
pub struct FakeNode {
    pub memory: Arc<Mutex<Memory>>,
    pub governor: Governor,
    pub at_ns: u64,
}

impl FakeNode {
    /// 64 GiB with the given stores.
    pub fn new(stores: &[Arc<FakeStore>], parameters: Parameters) -> Self {
        let memory = Memory { total_bytes: 64 * GIB, jobs_bytes: 0, readable: true };
        let memory = Arc::new(Mutex::new(memory));
        let actuators = stores.iter().map(|store| store.clone() as Arc<dyn Actuator>).collect();
        let sensors = Box::new(FakeSensors(memory.clone()));
        let governor = Governor::new(sensors, actuators, parameters, None).unwrap();
        FakeNode { memory, governor, at_ns: 0 }
    }

    /// One decision after 10 ms.
    pub fn tick(&mut self) -> Report {
        self.at_ns += 10 * MILLISECOND;
        self.governor.tick(self.at_ns);
        self.governor.report()
    }

    /// One decision after 10 ms, and how long the controller then waits.
    pub fn next_ms(&mut self) -> u64 {
        self.at_ns += 10 * MILLISECOND;
        (self.governor.tick(self.at_ns) - self.at_ns) / MILLISECOND
    }

    /// Decisions until the condition holds, at most a minute of the node's time beyond what the
    /// stores' threads need.
    pub fn tick_until(&mut self, what: &str, condition: impl Fn(&Report) -> bool) -> Report {
        let begun = Instant::now();
        loop {
            let report = self.tick();
            if condition(&report) {
                return report;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} never came: {report:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Waits for something that other threads do.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}
