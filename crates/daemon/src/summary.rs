//! The summary of a start: sizes, modes, defaults and degradations, for people and programs.

use serde::{Deserialize, Serialize};
use tidepool_proto::NodeConfig;
use tidepool_proto::admin::Status;

use crate::machine::available_bytes;

/// What a node runs with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Process id of the node.
    pub process_id: u32,
    /// The PFS directory.
    pub pfs: String,
    /// Its file system type.
    pub pfs_type: String,
    /// Mount point, if there is one.
    pub mount: Option<String>,
    /// Path of the socket.
    pub socket: String,
    /// Memory as it was asked for.
    pub memory: String,
    /// The same in bytes.
    pub capacity_bytes: u64,
    /// Bytes of memory that the node may use at most, and what sets the limit.
    pub memory_limit_bytes: u64,
    /// What sets that limit, in words.
    pub memory_limit: String,
    /// Whether the store gives memory back to jobs by itself.
    pub control: bool,
    /// What it keeps in any case, in bytes.
    pub memory_min_bytes: u64,
    /// Bytes that programs can have without swapping, at the start; absent where not known.
    pub available_bytes: Option<u64>,
    /// Block size in bytes.
    pub block_bytes: u64,
    /// Whether memory comes in 2 MiB pages.
    pub huge_pages: bool,
    /// What segments are made of.
    pub backing: String,
    /// Name of the eviction policy.
    pub policy: String,
    /// Default read mode.
    pub read_mode: String,
    /// Default write mode.
    pub write_mode: String,
    /// Address of the metrics, if any.
    pub metrics_address: Option<String>,
    /// Log file; absent for standard error.
    pub log_file: Option<String>,
    /// Options that nobody set, so that their defaults apply.
    pub defaults: Vec<String>,
    /// What this machine lacks, one line each.
    pub degraded: Vec<String>,
    /// What the user that started the node may not have meant.
    pub notes: Vec<String>,
}

impl Summary {
    /// Of a node with `config` that answered `status`.
    pub fn new(
        config: &NodeConfig,
        status: &Status,
        limit: (u64, &str),
        notes: Vec<String>,
    ) -> Summary {
        let text = |path: &std::path::PathBuf| path.display().to_string();
        let defaults = config.entries.iter().filter(|entry| entry.origin == "default");
        Summary {
            process_id: status.process_id,
            pfs: status.pfs.clone(),
            pfs_type: status.pfs_type.clone(),
            mount: status.mount.clone(),
            socket: status.socket.clone(),
            memory: config.memory.to_string(),
            capacity_bytes: config.capacity_bytes,
            memory_limit_bytes: limit.0,
            memory_limit: limit.1.to_owned(),
            control: config.control.is_on,
            memory_min_bytes: config.control.memory_min_bytes,
            available_bytes: available_bytes(),
            block_bytes: config.block_bytes,
            huge_pages: status.store.huge_pages,
            backing: status.store.backing.clone(),
            policy: config.policy.clone(),
            read_mode: config.read_mode.to_string(),
            write_mode: config.write_mode.to_string(),
            metrics_address: config.metrics_address.map(|address| address.to_string()),
            log_file: config.log_file.as_ref().map(text),
            defaults: defaults.map(|entry| entry.name.clone()).collect(),
            degraded: status.degraded.clone(),
            notes,
        }
    }
}
