//! A server whose limit is set over a connection, as a store: opened, watched, commanded and given
//! its limit back in one way, whatever server it is. What is said on the connection, and how its
//! memory comes back, is the server's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidepool_control_policy::{StoreSpeed, StoreState};
use tidepool_proto::Result;
use tidepool_proto::size::ByteSize;

use crate::connection::ANSWER_TIME;
use crate::ledger::{Bounds, Ledger};
use crate::limit::{Limit, Limited};
use crate::server_process::ServerProcess;
use crate::watch::Watch;
use tidepool_control::actuator::{Actuator, LimitBefore, LimitWitness, Resized};

const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// Unit in which the capacity of a server changes.
const UNIT_BYTES: u64 = 1 << 20;

/// A conversation with a server.
pub trait Conversation: Limited + Sized + 'static {
    /// What is configured of the server.
    type Configuration: Clone + Send + Sync + 'static;

    /// What the names of its processes begin with.
    const NAMES: &'static [&'static str];
    /// What it counts as until a release was measured.
    const SPEED: StoreSpeed;

    /// Begins; no answer is waited for beyond `deadline`.
    fn connect(configuration: &Self::Configuration, deadline: Instant) -> Result<Self>;

    /// Goes on until another deadline.
    fn set_deadline(&mut self, deadline: Instant);

    /// Refuses a server that cannot be governed.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// The bytes of data it holds by its own count, once it has shown that it can be resized.
    fn data_bytes(&mut self, process: &ServerProcess, limit_bytes: u64) -> Result<u64>;

    /// Finds out whether the control set the limit, and whether the server may be cut. Answers its
    /// process.
    fn guard(&mut self, limit: &Limit) -> Result<u32> {
        limit.look(self)
    }

    /// Brings the server to a capacity, as far as the deadline allows.
    fn change(store: &ServerStore<Self>, server: &mut Self, capacity_bytes: u64) -> Result<()>;
}

/// A server under control.
pub struct ServerStore<S: Conversation> {
    name: String,
    pub(crate) configuration: S::Configuration,
    ledger: Arc<Ledger>,
    pub(crate) process: Watch<Arc<ServerProcess>>,
    pub(crate) limit: Arc<Limit>,
    /// The capacity that was asked for last; 0 before.
    expected_bytes: AtomicU64,
    /// What it held by its own count when it held no data; 0 where that was never seen.
    pub(crate) fixed_bytes: AtomicU64,
}

impl<S: Conversation> ServerStore<S> {
    /// Connects to the server, checks that it can be governed, and begins to watch it.
    pub(crate) fn open_server(
        name: &str,
        (least, most): (ByteSize, ByteSize),
        configuration: &S::Configuration,
    ) -> Result<Self> {
        let bounds = Bounds::new(name, least, most)?;
        let mut server = S::connect(configuration, Instant::now() + ANSWER_TIME)?;
        server.check()?;
        let process_id = server.pid()?;
        let process = Arc::new(ServerProcess::open(process_id, S::NAMES)?);
        let limit_bytes = server.limit_bytes()?;
        let data_bytes = server.data_bytes(&process, limit_bytes)?;
        let overhead_bytes = process.resident_bytes()?.saturating_sub(data_bytes);
        let capacity_bytes = match limit_bytes {
            0 => bounds.capacity_max_bytes,
            limit => bounds.clamp(limit.saturating_add(overhead_bytes)),
        };
        let limit = Arc::new(Limit::new(process_id, limit_bytes));
        let ledger = Arc::new(Ledger::new(bounds, capacity_bytes, S::SPEED, UNIT_BYTES));
        let (of_watch, watched) = (configuration.clone(), limit.clone());
        let of_server = ledger.clone();
        let process = Watch::start(name, process, WATCH_INTERVAL, move |last| {
            let mut server = S::connect(&of_watch, Instant::now() + ANSWER_TIME)?;
            let present = last.unless_replaced_by(server.guard(&watched)?, S::NAMES)?;
            if !Arc::ptr_eq(&present, last) {
                // It has the limit that it was started with: the next decision sets another one.
                let resident_bytes = present.resident_bytes()?;
                of_server.found(match server.limit_bytes()? {
                    0 => u64::MAX,
                    limit_bytes => limit_bytes.saturating_add(resident_bytes),
                });
            }
            Ok(present)
        })?;
        let (name, configuration) = (name.to_owned(), configuration.clone());
        let (expected_bytes, fixed_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(ServerStore { name, configuration, ledger, process, limit, expected_bytes, fixed_bytes })
    }

    /// Whether more than `capacity_bytes` is wanted by now, so that nobody needs what a command for
    /// that would still bring back.
    pub(crate) fn is_overtaken(&self, capacity_bytes: u64) -> bool {
        self.expected_bytes.load(Ordering::Relaxed) > capacity_bytes
    }

    /// Puts back what a killed controller left, on a server that is not opened.
    pub(crate) fn put_back_left(configuration: &S::Configuration, left: LimitBefore) -> Result<()> {
        let mut server = S::connect(configuration, Instant::now() + ANSWER_TIME)?;
        let limit = Limit::new(server.pid()?, server.limit_bytes()?);
        limit.adopt(left);
        limit.put_back(&mut server)
    }
}

impl<S: Conversation> Actuator for ServerStore<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> Result<StoreState> {
        Ok(self.process.state(&self.ledger))
    }

    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized> {
        let started = Instant::now();
        let mut server = S::connect(&self.configuration, started + ANSWER_TIME)?;
        let process_id = server.guard(&self.limit)?;
        let current = self.process.newest().0.unless_replaced_by(process_id, S::NAMES)?;
        self.process.put(current);
        server.set_deadline(started + deadline);
        self.ledger.resize(
            capacity_bytes,
            started + deadline,
            || self.process.resident_bytes(),
            |capacity_bytes| S::change(self, &mut server, capacity_bytes),
        )
    }

    fn expect(&self, capacity_bytes: u64) {
        self.expected_bytes.store(capacity_bytes, Ordering::Relaxed);
    }

    fn limit_before(&self) -> Option<LimitBefore> {
        Some(self.limit.before())
    }

    fn adopt_limit(&self, left: LimitBefore) {
        self.limit.adopt(left);
    }

    fn on_limit(&self, witness: LimitWitness) {
        self.limit.on_change(witness);
    }

    fn put_back(&self) -> Result<()> {
        self.limit.end();
        let mut server = S::connect(&self.configuration, Instant::now() + ANSWER_TIME)?;
        self.limit.put_back(&mut server)
    }
}
