//! Alluxio as a store: its paths are freed one after the other, by Alluxio's own command.
//!
//! Its capacity is fixed when its worker starts, so there is no limit to set: what is read later
//! is cached again, until the next command. Bytes count when the memory-backed directory of the
//! worker has lost them. Paths are given in the order in which they may go; pinned ones stay.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::StatVfs;
use serde::Deserialize;
use tidepool_control_policy::{StoreSpeed, StoreState};
use tidepool_proto::size::ByteSize;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::ledger::{Bounds, Ledger};
use crate::{settle, tool};
use tidepool_control::actuator::{Actuator, Resized};

/// The worker hears of freed blocks with its next heartbeat, each second unless set otherwise.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const COMMAND_DEFAULT: [&str; 2] = ["alluxio", "fs"];

/// An Alluxio worker to control.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlluxioConfiguration {
    /// Name of the store, unique on the node.
    pub name: String,
    /// The mount point of the memory file system that holds the worker's blocks, and nothing else.
    pub ramdisk: PathBuf,
    /// Paths in Alluxio that may be freed, the least useful first.
    pub paths: Vec<String>,
    /// Bytes in the memory file system it never goes below.
    pub capacity_min_bytes: ByteSize,
    /// Bytes in the memory file system it never goes above.
    pub capacity_max_bytes: ByteSize,
    /// Alluxio's file system command, before `free`; `alluxio fs` where none is given.
    #[serde(default)]
    pub command: Option<Vec<String>>,
}

/// An Alluxio worker under control.
pub struct Alluxio {
    configuration: AlluxioConfiguration,
    command: Vec<String>,
    ledger: Ledger,
}

impl Alluxio {
    /// Looks at the worker's memory file system.
    ///
    /// # Errors
    /// `InvalidInput` where `ramdisk` is no mount point of a memory file system, no path is given,
    /// or the command is not there.
    pub fn open(configuration: &AlluxioConfiguration) -> Result<Self> {
        let configuration = configuration.clone();
        let (least, most) = (configuration.capacity_min_bytes, configuration.capacity_max_bytes);
        let bounds = Bounds::new(&configuration.name, least, most)?;
        let command = tool::command(&configuration.command, COMMAND_DEFAULT)?;
        check_paths(&configuration.paths)?;
        check_memory(&configuration.ramdisk)?;
        let capacity_bytes = bounds.capacity_max_bytes;
        let ledger = Ledger::new(bounds, capacity_bytes, StoreSpeed::Slow, 1 << 20);
        Ok(Alluxio { configuration, command, ledger })
    }

    fn resident_bytes(&self) -> Result<u64> {
        let facts = statistics(&self.configuration.ramdisk)?;
        Ok((facts.f_blocks - facts.f_bfree) * facts.f_frsize)
    }

    /// Frees paths until the memory is back, each only where the ones before were not enough.
    fn change(&self, capacity_bytes: u64, deadline: Instant) -> Result<()> {
        for path in &self.configuration.paths {
            if self.resident_bytes()? <= capacity_bytes {
                break;
            }
            let mut command = self.command.clone();
            command.extend(["free".to_owned(), path.clone()]);
            tool::run(&command, deadline)?;
            let resident = || self.resident_bytes();
            settle::wait(resident, capacity_bytes, SETTLE_TIME, deadline)?;
        }
        Ok(())
    }
}

impl Actuator for Alluxio {
    fn name(&self) -> &str {
        &self.configuration.name
    }

    /// One system call on a memory file system, which never waits.
    fn state(&self) -> Result<StoreState> {
        let resident = self.resident_bytes();
        Ok(self.ledger.state(*resident.as_ref().unwrap_or(&0), resident.is_err()))
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

fn check_paths(paths: &[String]) -> Result<()> {
    if paths.is_empty() {
        return Err(wrong("`paths` is empty".into(), "name what may be freed, or `/`"));
    }
    match paths.iter().find(|path| !path.starts_with('/')) {
        Some(path) => Err(wrong(format!("`{path}` is no path in Alluxio"), "begin it with /")),
        None => Ok(()),
    }
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
