//! `Stage`: the data set that the jobs of the demo read, and how its lower level is held to a rate.

use anyhow::Result;

use crate::cleanup;
use crate::kmeans::data::DataSet;
use crate::loop_volume::LoopVolume;
use crate::node::{Node, NodeOptions};
use crate::scratch::Scratch;
use crate::shaping::Shaping;

/// Where the job reads.
pub struct Stage {
    pub data: DataSet,
    pub shaping: Option<Shaping>,
    pub rate: u64,
    pub threads: usize,
    pub volume: Option<LoopVolume>,
    // Dropped last.
    pub _directories: Vec<Scratch>,
    pub _made: Option<cleanup::Guard>,
}

impl Stage {
    /// A node over the data, with nothing of it in memory yet.
    pub fn start_node(&self, memory_bytes: u64, mut arguments: Vec<String>) -> Result<Node> {
        self.data.drop_page_cache()?;
        if matches!(self.shaping, Some(Shaping::Buckets)) {
            arguments.extend(["--fault".into(), format!("io:rate={}B/s", self.rate)]);
        }
        let pfs = self.data.directory.clone();
        Node::start(&NodeOptions { pfs, memory: memory_bytes.to_string(), arguments })
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.0} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
