//! Alluxio as a store: what the first level of its worker must not hold is reserved in it, through
//! Alluxio's own client.
//!
//! The capacity of a worker is fixed when it starts. A block that is being written is room that the
//! worker keeps free of others: it evicts for it in the order of its own annotator, and gives it to
//! others again as soon as the writer gives up. Nothing is ever written, so nothing is used. Bytes
//! count when the memory-backed directory of the worker has lost them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::StatVfs;
use serde::Deserialize;
use tidepool_control_policy::{StoreSpeed, StoreState};
use tidepool_proto::size::ByteSize;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::java_program::{JavaConfiguration, JavaProgram};
use crate::ledger::{Bounds, Ledger};
use crate::settle;
use tidepool_control::actuator::{Actuator, Resized};

/// Evicted blocks are gone with the answer, but for those that a client has open.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// An Alluxio worker to control.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlluxioConfiguration {
    /// Name of the store, unique on the node.
    pub name: String,
    /// The mount point of the memory file system that holds the worker's blocks, and nothing else.
    pub ramdisk: PathBuf,
    /// The worker as `HOST:PORT`; the one on this machine where none is given.
    #[serde(default)]
    pub worker: Option<String>,
    /// How the program that speaks to it is started.
    pub java: JavaConfiguration,
    /// Bytes in the memory file system it never goes below.
    pub capacity_min_bytes: ByteSize,
    /// Bytes in the memory file system it never goes above.
    pub capacity_max_bytes: ByteSize,
}

/// An Alluxio worker under control.
pub struct Alluxio {
    configuration: AlluxioConfiguration,
    program: JavaProgram,
    ledger: Ledger,
}

impl Alluxio {
    /// Looks at the worker's memory file system, and starts the program that speaks to the worker.
    ///
    /// # Errors
    /// `InvalidInput` where `ramdisk` is no mount point of a memory file system, or Java or the
    /// classes of Alluxio are not found; `StoreUnavailable` where the worker does not run.
    pub fn open(configuration: &AlluxioConfiguration) -> Result<Self> {
        let configuration = configuration.clone();
        let (least, most) = (configuration.capacity_min_bytes, configuration.capacity_max_bytes);
        let bounds = Bounds::new(&configuration.name, least, most)?;
        check_memory(&configuration.ramdisk)?;
        let arguments: Vec<&str> =
            std::iter::once("alluxio").chain(configuration.worker.as_deref()).collect();
        let program = JavaProgram::start(&configuration.name, &configuration.java, &arguments)?;
        let capacity_bytes = bounds.capacity_max_bytes;
        let ledger = Ledger::new(bounds, capacity_bytes, StoreSpeed::Slow, 1 << 20);
        Ok(Alluxio { configuration, program, ledger })
    }

    fn resident_bytes(&self) -> Result<u64> {
        let facts = statistics(&self.configuration.ramdisk)?;
        Ok((facts.f_blocks - facts.f_bfree) * facts.f_frsize)
    }

    fn change(&self, capacity_bytes: u64, deadline: Instant) -> Result<()> {
        let now_bytes = self.program.resize(capacity_bytes, deadline)?;
        let resident = || self.resident_bytes();
        settle::wait(resident, now_bytes.max(capacity_bytes), SETTLE_TIME, deadline)
    }
}

impl Actuator for Alluxio {
    fn name(&self) -> &str {
        &self.configuration.name
    }

    /// One system call on a memory file system, which never waits. Without the program the worker
    /// has its whole capacity back, and the controller asks anew.
    fn state(&self) -> Result<StoreState> {
        let resident = self.resident_bytes();
        let state = self.ledger.state(*resident.as_ref().unwrap_or(&0), resident.is_err());
        if self.program.is_running() {
            return Ok(state);
        }
        Ok(StoreState { capacity_bytes: state.capacity_max_bytes, held_bytes: 0, ..state })
    }

    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized> {
        let end = Instant::now() + deadline;
        let change = |capacity_bytes| self.change(capacity_bytes, end);
        self.ledger.resize(capacity_bytes, end, || self.resident_bytes(), change)
    }
}

fn wrong(what: String, remedy: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "opening an Alluxio store", what).remedy(remedy)
}

fn statistics(ramdisk: &Path) -> Result<StatVfs> {
    rustix::fs::statvfs(ramdisk)
        .map_err(|error| wrong(ramdisk.display().to_string(), "correct `ramdisk`").caused_by(error))
}

/// Refuses a directory whose use says nothing about the worker's memory.
fn check_memory(ramdisk: &Path) -> Result<()> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    statistics(ramdisk)?;
    let shown = ramdisk.display();
    let failed = |error| wrong(shown.to_string(), "correct `ramdisk`").caused_by(error);
    let kind = rustix::fs::statfs(ramdisk).map_err(failed)?.f_type as u64;
    match kind {
        TMPFS => {}
        RAMFS => {
            let what = format!("{shown} is a ramfs, which does not tell its use");
            return Err(wrong(what, "mount a tmpfs there"));
        }
        _ => {
            let what = format!("{shown} is not in memory");
            return Err(wrong(what, "name the tmpfs of the worker's first level"));
        }
    }
    let device = |path: &Path| rustix::fs::stat(path).map(|facts| facts.st_dev);
    if device(ramdisk).map_err(failed)? == device(&ramdisk.join("..")).map_err(failed)? {
        let what = format!("{shown} shares its file system with others");
        return Err(wrong(what, "mount a tmpfs of its own for the worker"));
    }
    Ok(())
}
