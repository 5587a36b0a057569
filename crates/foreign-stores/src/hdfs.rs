//! HDFS as a store: what the DataNode of this node has locked in memory, and the limit of the cache
//! pool that it does so for, set through Hadoop's own client.
//!
//! Bytes count when the DataNode has unlocked them: the kernel can then drop them at once. A limit
//! holds for all DataNodes together, so a pool has to be cached by this one alone; what it caches
//! for other pools, and what a client still reads from its memory, is reported as held. The limit
//! lies in the NameNode and outlives all processes, so what it was is noted and put back at the
//! end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tidepool_control_policy::{StoreSpeed, StoreState};
use tidepool_proto::size::ByteSize;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::java_program::{BYTES_MAX, JavaConfiguration, JavaProgram};
use crate::ledger::{Bounds, Ledger};
use crate::limit::{Limit, Limited};
use crate::server_process::ServerProcess;
use crate::settle;
use crate::watch::Watch;
use tidepool_control::actuator::{Actuator, LimitBefore, LimitWitness, Resized};

/// How the operating system calls a DataNode's process; the second is one that was started as root.
const NAMES: [&str; 2] = ["java", "jsvc"];
/// Its main class begins with this, however it was started.
const DATA_NODE: &str = "org.apache.hadoop.hdfs.server.datanode.";
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// A NameNode hears each 10 seconds what is cached, and tells a DataNode the next thing after 30,
/// unless set otherwise. The program has it look again meanwhile.
const SETTLE_TIME: Duration = Duration::from_secs(36);
/// Time for the NameNode to tell or take a limit where nobody waits for memory.
const LIMIT_TIME: Duration = Duration::from_secs(10);
/// The same for the first answer, which comes after the start of Java and a login.
const OPENING_TIME: Duration = Duration::from_secs(40);
const OPERATION: &str = "opening an HDFS store";

/// A cache pool to control, on the DataNode of this node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HdfsConfiguration {
    /// Name of the store, unique on the node.
    pub name: String,
    /// The cache pool, which this DataNode alone caches.
    pub pool: String,
    /// The file in which the DataNode's process number is, as Hadoop's scripts write it.
    pub pid_file: PathBuf,
    /// Bytes locked by the DataNode it never goes below.
    pub capacity_min_bytes: ByteSize,
    /// Bytes locked by the DataNode it never goes above.
    pub capacity_max_bytes: ByteSize,
    /// How the program that speaks to the NameNode is started.
    pub java: JavaConfiguration,
}

/// A cache pool under control.
pub struct Hdfs {
    configuration: HdfsConfiguration,
    program: JavaProgram,
    ledger: Ledger,
    process: Watch<Arc<ServerProcess>>,
    limit: Limit,
}

/// The pool as the NameNode has it.
struct Pool<'a> {
    program: &'a JavaProgram,
    deadline: Instant,
}

impl Limited for Pool<'_> {
    /// The limit is no process's.
    fn pid(&mut self) -> Result<u32> {
        Ok(0)
    }

    fn limit_bytes(&mut self) -> Result<u64> {
        self.program.limit(self.deadline)
    }

    fn set_limit(&mut self, limit_bytes: u64) -> Result<()> {
        self.program.resize(limit_bytes, self.deadline).map(drop)
    }

    /// The NameNode looks once more at what to cache.
    fn set_again(&mut self, limit_bytes: u64) -> Result<()> {
        self.set_limit(limit_bytes)
    }
}

impl Hdfs {
    /// Finds the DataNode, begins to watch it, starts the program that speaks to the NameNode, and
    /// asks for the limit of the pool.
    ///
    /// # Errors
    /// `InvalidInput` where there is no such pool, the process is no DataNode, or Java or Hadoop's
    /// classes are not found; `StoreUnavailable` where DataNode or NameNode do not run.
    pub fn open(configuration: &HdfsConfiguration) -> Result<Self> {
        let configuration = configuration.clone();
        let (least, most) = (configuration.capacity_min_bytes, configuration.capacity_max_bytes);
        let bounds = Bounds::new(&configuration.name, least, most)?;
        if configuration.pool.is_empty() {
            let what = format!("`{}` is no name of a cache pool", configuration.pool);
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, what)
                .remedy("name one that `hdfs cacheadmin -listPools` shows in `pool`"));
        }
        let pid = data_node(&configuration.pid_file)?;
        let process = Arc::new(ServerProcess::open(pid, &NAMES)?);
        process.locked_bytes()?;
        let capacity_bytes = bounds.capacity_max_bytes;
        let ledger = Ledger::new(bounds, capacity_bytes, StoreSpeed::Slow, 1 << 20);
        let pid_file = configuration.pid_file.clone();
        let process = Watch::start(&configuration.name, process, WATCH_INTERVAL, move |last| {
            last.unless_replaced_by(data_node(&pid_file)?, &NAMES)
        })?;
        let program = program(&configuration)?;
        let limit_bytes = program.limit(Instant::now() + OPENING_TIME)?;
        Ok(Hdfs { configuration, program, ledger, process, limit: Limit::new(0, limit_bytes) })
    }

    /// Puts back what a killed controller left, of a pool that is not opened.
    pub(crate) fn put_back_left(
        configuration: &HdfsConfiguration,
        left: LimitBefore,
    ) -> Result<()> {
        let program = program(configuration)?;
        let mut pool = pool(&program, Instant::now() + OPENING_TIME);
        let limit = Limit::new(0, pool.limit_bytes()?);
        limit.adopt(left);
        limit.put_back(&mut pool)
    }

    fn locked_bytes(&self) -> Result<u64> {
        self.process.newest().0.locked_bytes()
    }

    fn change(&self, capacity_bytes: u64, deadline: Instant) -> Result<()> {
        let limit_bytes = capacity_bytes.min(BYTES_MAX);
        // No longer, for the end of control waits for it.
        let mut pool = pool(&self.program, deadline.min(Instant::now() + LIMIT_TIME));
        self.limit.set(&mut pool, limit_bytes)?;
        settle::wait(|| self.locked_bytes(), capacity_bytes, SETTLE_TIME, deadline)
    }
}

impl Actuator for Hdfs {
    fn name(&self) -> &str {
        &self.configuration.name
    }

    /// One small read. A DataNode that ended holds nothing.
    fn state(&self) -> Result<StoreState> {
        let (process, failed) = self.process.newest();
        let locked = process.locked_bytes();
        let state = self.ledger.state(*locked.as_ref().unwrap_or(&0), failed || locked.is_err());
        Ok(StoreState { process_id: process.pid(), ..state })
    }

    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized> {
        let end = Instant::now() + deadline;
        let change = |capacity_bytes| self.change(capacity_bytes, end);
        self.ledger.resize(capacity_bytes, end, || self.locked_bytes(), change)
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
        self.limit.put_back(&mut pool(&self.program, Instant::now() + LIMIT_TIME))
    }
}

fn program(configuration: &HdfsConfiguration) -> Result<JavaProgram> {
    let arguments = ["hdfs", &configuration.pool];
    JavaProgram::start(&configuration.name, &configuration.java, &arguments)
}

fn pool(program: &JavaProgram, deadline: Instant) -> Pool<'_> {
    Pool { program, deadline }
}

/// Number of the DataNode's process.
fn data_node(pid_file: &Path) -> Result<u32> {
    let shown = pid_file.display();
    let remedy = "start the DataNode, or correct `pid_file`";
    let gone = |what: String| {
        Error::new(ErrorKind::StoreUnavailable, "looking for an HDFS DataNode", what).remedy(remedy)
    };
    let text = std::fs::read_to_string(pid_file)
        .map_err(|error| gone(shown.to_string()).caused_by(error))?;
    let pid: u32 = text.trim().parse().map_err(|_| gone(format!("no number in {shown}")))?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline"))
        .map_err(|error| gone(format!("process {pid}, as {shown} has it")).caused_by(error))?;
    // A process that waits to be collected by its parent has no command line.
    if command.is_empty() {
        return Err(gone(format!("process {pid}, as {shown} has it, has ended")));
    }
    let is_data_node = |word: &[u8]| word.starts_with(DATA_NODE.as_bytes());
    if command.split(|byte| *byte == 0).any(is_data_node) {
        return Ok(pid);
    }
    let what = format!("process {pid}, as {shown} has it, is no DataNode");
    Err(Error::new(ErrorKind::InvalidInput, OPERATION, what).remedy(remedy))
}
