//! [`Store`]: one store as the control loop sees it: its state, the commands under way, whether it
//! can be trusted. Decides when a capacity is worth a command; never counts what is not confirmed.

use std::sync::Arc;
use std::time::Duration;

use tidepool_control_policy::{StoreSpeed, StoreState};
use tidepool_proto::Result;

use crate::actuator::Actuator;
use crate::copy;
use crate::courier::{Courier, Progress};
use crate::report::StoreReport;

/// Growth is not urgent: its commands are gathered this long.
const GROWTH_EVERY_NS: u64 = 50_000_000;
/// A store that failed, or holds more than it was asked to, is asked again after this long.
const AGAIN_FAST_NS: u64 = 1_000_000_000;
/// A fast store that must give bytes back and answered with an error: jobs wait for them, and
/// an error such as a connection that broke is over at the next try.
const AGAIN_URGENT_NS: u64 = 20_000_000;
/// A slow one takes seconds, a process and a core for each command.
const AGAIN_SLOW_NS: u64 = 15_000_000_000;
/// Deadlines: at least this long, and at most.
const DEADLINE_MIN: Duration = Duration::from_millis(100);
const DEADLINE_FAST: Duration = Duration::from_secs(2);
const DEADLINE_SLOW: Duration = Duration::from_secs(60);
/// A release may take this many times as long as the learned rate says.
const DEADLINE_FACTOR: u64 = 4;

/// One store.
pub(crate) struct Store {
    actuator: Arc<dyn Actuator>,
    courier: Courier,
    progress: Progress,
    /// What it said last; its name alone before it said anything.
    last: StoreState,
    answers: bool,
    /// Number of the command whose age is counted, and how long it is under way.
    running: u64,
    age_ns: u64,
    late: bool,
    asked_ns: u64,
    /// Number of the answered command, and the capacity that the store then showed.
    settled: Option<(u64, u64)>,
    /// Something else changed the capacity since the last command.
    disturbed: bool,
    freed_bytes: u64,
    report: StoreReport,
}

impl Store {
    pub fn start(actuator: Arc<dyn Actuator>) -> Result<Self> {
        let name = actuator.name().to_owned();
        let last = StoreState { name: name.clone(), ..StoreState::default() };
        let keeps = actuator.keeps().to_owned();
        Ok(Store {
            courier: Courier::start(actuator.clone())?,
            actuator,
            progress: Progress::default(),
            last,
            answers: false,
            running: 0,
            age_ns: 0,
            late: false,
            asked_ns: 0,
            settled: None,
            disturbed: false,
            freed_bytes: 0,
            report: StoreReport { name, keeps, ..StoreReport::default() },
        })
    }

    /// Reads the store and its commands into `state`. `elapsed_ns` is the time since the last look
    /// in which this process ran. Answers whether memory came back since then.
    pub fn look(&mut self, elapsed_ns: u64, state: &mut StoreState) -> bool {
        self.progress = self.courier.progress();
        self.judge_age(elapsed_ns);
        match self.actuator.state() {
            Ok(seen) => {
                let name = std::mem::take(&mut self.last.name);
                self.last = StoreState { name, ..seen };
                self.answers = true;
            }
            Err(error) => {
                self.answers = false;
                self.report.last_error = Some(error.to_string());
            }
        }
        self.judge_capacity();
        copy::store(&self.last, state);
        if self.progress.release_bytes_per_s > 0 {
            state.release_bytes_per_s = self.progress.release_bytes_per_s;
        }
        state.outstanding_bytes = self
            .progress
            .lowest_bytes()
            .map_or(0, |capacity_bytes| state.resident_bytes.saturating_sub(capacity_bytes));
        let failed = self.progress.answered.is_some_and(|(_, done)| !done);
        state.failed |= !self.answers || self.late || failed;
        let freed = self.progress.freed_bytes > self.freed_bytes;
        self.freed_bytes = self.progress.freed_bytes;
        freed
    }

    /// See [`Actuator::lease`].
    pub fn lease(&self) -> Option<Duration> {
        self.actuator.lease()
    }

    /// Whether a command is under way or waits.
    pub fn is_busy(&self) -> bool {
        self.progress.latest_bytes().is_some()
    }

    fn judge_age(&mut self, elapsed_ns: u64) {
        let Some(order) = self.progress.running else {
            self.late = false;
            return;
        };
        if order.number != self.running {
            self.running = order.number;
            self.age_ns = 0;
            self.late = false;
            return;
        }
        self.age_ns = self.age_ns.saturating_add(elapsed_ns);
        if !self.late && u128::from(self.age_ns) > order.deadline.as_nanos() {
            self.late = true;
            self.report.late_commands += 1;
            self.courier.distrust();
        }
    }

    /// Notices a capacity that something else set.
    fn judge_capacity(&mut self) {
        let (Some((order, true)), false) = (self.progress.answered, self.is_busy()) else { return };
        let present = self.last.capacity_bytes;
        let known = match self.settled {
            Some((number, capacity)) if number == order.number => capacity,
            _ => present,
        };
        if present != known && present != order.capacity_bytes {
            self.report.foreign_changes += 1;
            self.disturbed = true;
        }
        self.settled = Some((order.number, present));
    }

    /// Asks for a capacity if that changes anything.
    pub fn ask(&mut self, at_ns: u64, capacity_bytes: u64) {
        self.report.target_bytes = capacity_bytes;
        if !self.is_needed(at_ns, capacity_bytes) {
            return;
        }
        self.asked_ns = at_ns;
        self.disturbed = false;
        self.courier.ask(capacity_bytes, self.deadline(capacity_bytes));
        self.progress = self.courier.progress();
    }

    fn is_needed(&self, at_ns: u64, capacity_bytes: u64) -> bool {
        if let Some(latest) = self.progress.latest_bytes() {
            return latest != capacity_bytes;
        }
        if self.disturbed {
            return true;
        }
        let since_ns = at_ns.saturating_sub(self.asked_ns);
        let (present, resident) = (self.last.capacity_bytes, self.last.resident_bytes);
        let failed = self.progress.answered.is_some_and(|(_, done)| !done);
        let is_fast = self.answers && self.last.speed == StoreSpeed::Fast;
        if failed && is_fast && resident > capacity_bytes {
            return since_ns >= AGAIN_URGENT_NS;
        }
        if !self.answers || failed || (resident > capacity_bytes && present <= capacity_bytes) {
            return since_ns >= self.again_ns();
        }
        // A store may round: what it was asked for is enough.
        if self.progress.answered.is_some_and(|(order, _)| order.capacity_bytes == capacity_bytes) {
            return false;
        }
        match capacity_bytes > present {
            true => since_ns >= GROWTH_EVERY_NS,
            false => capacity_bytes < present,
        }
    }

    fn again_ns(&self) -> u64 {
        match self.last.speed {
            StoreSpeed::Fast => AGAIN_FAST_NS,
            StoreSpeed::Slow => AGAIN_SLOW_NS,
        }
    }

    fn deadline(&self, capacity_bytes: u64) -> Duration {
        let longest = match self.last.speed {
            StoreSpeed::Fast => DEADLINE_FAST,
            StoreSpeed::Slow => DEADLINE_SLOW,
        };
        let rate = match self.progress.release_bytes_per_s {
            0 => self.last.release_bytes_per_s,
            learned => learned,
        };
        if rate == 0 {
            return longest;
        }
        let bytes = self.last.resident_bytes.saturating_sub(capacity_bytes);
        let expected_ms = (u128::from(bytes) * 1000 / u128::from(rate)) as u64;
        let expected = Duration::from_millis(expected_ms.saturating_mul(DEADLINE_FACTOR));
        expected.clamp(DEADLINE_MIN, longest.max(expected))
    }

    /// Its commands so far.
    pub fn report(&self) -> StoreReport {
        let (release_time, error) = self.courier.history();
        StoreReport {
            freed_bytes: self.progress.freed_bytes,
            failed_commands: self.progress.failures,
            last_error: error.or_else(|| self.report.last_error.clone()),
            release_time,
            ..self.report.clone()
        }
    }
}
