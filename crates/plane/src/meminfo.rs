//! The memory of the machine, from `/proc/meminfo`: opened once, read by `pread` into a buffer that
//! stays.

use std::fs::File;

use tidepool_control::sensor::MemoryCounters;
use tidepool_proto::{Error, Result};

/// More than the file has on any machine; what is beyond is not needed.
const BUFFER_BYTES: usize = 8192;
const PATH: &str = "/proc/meminfo";
/// Lines in which kernels of this century have what is needed.
const FIRST_LINES: usize = 3;

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
        parse(&self.buffer[..length])
    }
}

fn parse(text: &[u8]) -> Option<MachineMemory> {
    let mut ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let first = ends.nth(FIRST_LINES - 1).map_or(text, |(end, _)| &text[..=end]);
    let mut counters = MemoryCounters::parse(first);
    if counters.total.is_none() || counters.available.is_none() {
        counters = MemoryCounters::parse(text);
    }
    let total_bytes = counters.total.filter(|total| *total > 0)?;
    let available = counters.available.or_else(|| counters.derived_available_bytes());
    let available_bytes = available.map(|bytes| bytes.min(total_bytes));
    Some(MachineMemory { total_bytes, available_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = MemoryInfo::open().unwrap().read().unwrap();
        assert!(memory.available_bytes.is_some_and(|bytes| bytes <= memory.total_bytes));
    }

    #[test]
    fn what_is_not_in_the_first_lines_is_looked_for_in_the_others() {
        let total_bytes = 8192;
        let of = |text: &str| parse(text.as_bytes()).map(|it| it.available_bytes);
        let usual = "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 4 kB\nShmem: 1 kB\n";
        assert_eq!(of(usual), Some(Some(4096)));
        let late = "MemTotal: 8 kB\nMemFree: 1 kB\nBuffers: 0 kB\nMemAvailable: 9 kB\n";
        assert_eq!(of(late), Some(Some(total_bytes)), "never more than there is");
        assert_eq!(of("MemTotal: 8 kB\n"), Some(None));
        assert_eq!(of("MemTotal: 0 kB\n"), None);
        assert_eq!(of(""), None);
    }
}
