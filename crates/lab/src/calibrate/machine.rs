//! Describes this machine. Reads `/proc` only.

use std::fs;

use serde::{Deserialize, Serialize};
use tidepool_daemon::machine::memory_field;
use tidepool_report::bustle;

/// The machine that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name of the host.
    pub host: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the processors.
    pub processor: String,
    /// Processors that the system may use.
    pub processors: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Load of the last minute when measuring began: processes that wanted a processor.
    pub load: f64,
}

/// What this machine is. Facts that cannot be had are empty or zero.
pub fn describe() -> Machine {
    let system = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processors.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    });
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Machine {
        host: text(system.nodename()),
        kernel: text(system.release()),
        processor: processor.unwrap_or_else(|| text(system.machine())),
        processors: bustle::processors(),
        memory_bytes: memory_field(&memory, "MemTotal").unwrap_or_default(),
        load: bustle::load().unwrap_or_default(),
    }
}
