//! NUMA nodes from `/sys/devices/system/node`. A machine with one of them reports none: its memory
//! is the node's memory.

use std::path::Path;

use tidepool_control_policy::MemoryNode;

use super::file::SensorFile;
use super::meminfo::MemoryCounters;
use super::zones::Zones;

/// The `meminfo` files of all NUMA nodes.
pub(crate) struct MemoryNodes {
    nodes: Vec<(u32, SensorFile)>,
}

impl MemoryNodes {
    /// Finds the nodes below `directory`.
    pub fn open(directory: &Path) -> Self {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut nodes: Vec<(u32, SensorFile)> = entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let number = name.to_str()?.strip_prefix("node")?.parse().ok()?;
                Some((number, SensorFile::single(entry.path().join("meminfo"), 4096)))
            })
            .collect();
        nodes.sort_by_key(|(number, _)| *number);
        if nodes.len() < 2 {
            nodes.clear();
        }
        MemoryNodes { nodes }
    }

    /// How many there are; 0 where memory is uniform.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Reads them all into `found`. A node that cannot be read, or has no memory, is left out.
    pub fn read(&mut self, zones: &Zones, found: &mut Vec<MemoryNode>) {
        found.clear();
        for (number, file) in &mut self.nodes {
            let Some(text) = file.read() else { continue };
            let counters = MemoryCounters::parse(text);
            let (Some(total_bytes), Some(available), Some(stored_bytes)) =
                (counters.total, counters.derived_available_bytes(), counters.shared)
            else {
                continue;
            };
            let written = available.saturating_sub(counters.unwritten_bytes());
            let available_bytes = written.saturating_add(zones.hidden_of(*number));
            if total_bytes == 0 || available > total_bytes || stored_bytes > total_bytes {
                continue;
            }
            found.push(MemoryNode {
                number: *number,
                total_bytes,
                available_bytes: available_bytes.min(total_bytes),
                stored_bytes,
            });
        }
    }
}
