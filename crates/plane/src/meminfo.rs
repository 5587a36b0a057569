//! The memory of the machine, from `/proc/meminfo`: opened once, read by `pread` into a buffer that
//! stays.

use std::fs::File;

use tidepool_control::sensor::MemoryCounters;
use tidepool_proto::{Error, Result};

/// More than the file has on any machine; what is beyond is not needed.
const BUFFER_BYTES: usize = 8192;
const PATH: &str = "/proc/meminfo";

/// The file.
pub struct MemoryInfo {
    file: File,
    buffer: Box<[u8; BUFFER_BYTES]>,
}

/// What a sample tells of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineMemory {
    /// All memory.
    pub total_bytes: u64,
    /// What can be had without a store.
    pub available_bytes: Option<u64>,
}

impl MemoryInfo {
    /// Opens it.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub fn open() -> Result<MemoryInfo> {
        let file =
            File::open(PATH).map_err(|error| Error::pfs(format!("opening {PATH}"), error))?;
        Ok(MemoryInfo { file, buffer: Box::new([0; BUFFER_BYTES]) })
    }

    /// Its present word; `None` where it cannot be read.
    pub fn read(&mut self) -> Option<MachineMemory> {
        let length = rustix::io::pread(&self.file, &mut self.buffer[..], 0).ok()?;
        let counters = MemoryCounters::parse(&self.buffer[..length]);
        let total_bytes = counters.total.filter(|total| *total > 0)?;
        let available = counters.available.or_else(|| counters.derived_available_bytes());
        Some(MachineMemory {
            total_bytes,
            available_bytes: available.map(|bytes| bytes.min(total_bytes)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = MemoryInfo::open().unwrap().read().unwrap();
        assert!(memory.available_bytes.is_some_and(|bytes| bytes <= memory.total_bytes));
    }
}
