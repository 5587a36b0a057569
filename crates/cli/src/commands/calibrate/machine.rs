//! Describes this machine, and says whether it is quiet enough to measure on. Reads `/proc` only.

use std::fs;

use super::file::Machine;
use crate::machine::memory_field;

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
        processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        memory_bytes: memory_field(&memory, "MemTotal").unwrap_or_default(),
        load: load().unwrap_or_default(),
    }
}

/// Processes that wanted a processor during the last minute.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// A warning if others use the processors.
pub fn busy(machine: &Machine) -> Option<String> {
    let share = machine.load / f64::from(machine.processors.max(1));
    (share > 0.5).then(|| {
        format!(
            "the machine was busy: a load of {:.1} on {} processors",
            machine.load, machine.processors
        )
    })
}
