//! [`Cluster`]: the input of the models: the rates of the parts of a cluster, and which extensions
//! of the papers' equations apply. Holds numbers only; `throughput` computes with them.

use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::quantity::{Bytes, BytesPerSecond, NodeCount, Seconds, Share};

/// Rates of the parts of a cluster of equal nodes. Symbols are those of the papers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// ρ: network interface of a node, each direction.
    pub network: BytesPerSecond,
    /// Φ: bisection of the network, all nodes together; nothing if it never limits.
    #[serde(default)]
    pub backplane: Option<BytesPerSecond>,
    /// μ: disks of one compute node; nothing if it has none worth using.
    #[serde(default)]
    pub disk: Option<LocalDisk>,
    /// ν: reads from the memory of one node, all its threads together.
    pub memory_read: BytesPerSecond,
    /// ν for writes; the papers take both as one.
    pub memory_write: BytesPerSecond,
    /// The parallel file system.
    pub pfs: Pfs,
    /// What is computed beyond the papers.
    #[serde(default)]
    pub extensions: Extensions,
}

/// μ: the disks of one compute node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalDisk {
    /// Reads.
    pub read: BytesPerSecond,
    /// Writes.
    pub write: BytesPerSecond,
}

/// A parallel file system, by what it gives to all or by what its data nodes are made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "given-as")]
pub enum Pfs {
    /// The rates that all compute nodes get together.
    Aggregate {
        /// Reads.
        read: BytesPerSecond,
        /// Writes.
        write: BytesPerSecond,
    },
    /// M data nodes, as equation (3) has it.
    DataNodes {
        /// M.
        count: NodeCount,
        /// ρ of a data node.
        network: BytesPerSecond,
        /// μ' for reads.
        disk_read: BytesPerSecond,
        /// μ' for writes.
        disk_write: BytesPerSecond,
    },
}

/// Latency that each request pays on top of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Length of a request.
    pub request: Bytes,
    /// Time before the first byte from memory.
    pub memory: Seconds,
    /// Time before the first byte from the PFS.
    pub pfs: Seconds,
}

/// What goes beyond the papers; each extension at its default leaves their equations as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Extensions {
    /// R: copies that HDFS writes. The papers' equation (2) has 3.
    pub hdfs_replicas: u32,
    /// Copies of data written to memory, on different nodes. The papers have 1.
    pub memory_copies: u32,
    /// Share of the bytes found in memory that lie in the memory of another node. The papers'
    /// equation (7) has 0.
    pub remote_hits: Share,
    /// What the processors of a node can work off; reads and writes never go faster.
    pub processing: Option<BytesPerSecond>,
    /// Data nodes that one compute node reaches at a time: with fewer compute nodes than data
    /// nodes, not all data nodes can be busy.
    pub data_node_reach: Option<u32>,
    /// Share of the PFS that other users take, less than 1.
    pub pfs_taken: Share,
    /// Latency of requests.
    pub latency: Option<Latency>,
    /// Whether the shuffle of a MapReduce job is held by the network too.
    pub shuffle_crosses_network: bool,
}

impl Default for Extensions {
    fn default() -> Self {
        Extensions {
            hdfs_replicas: 3,
            memory_copies: 1,
            remote_hits: Share::NONE,
            processing: None,
            data_node_reach: None,
            pfs_taken: Share::NONE,
            latency: None,
            shuffle_crosses_network: false,
        }
    }
}

fn refuse(detail: &str, remedy: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "checking the inputs of the models", detail).remedy(remedy)
}

impl Cluster {
    /// Refuses counts and shares that no type refuses yet.
    pub fn check(&self) -> Result<()> {
        let extensions = &self.extensions;
        if extensions.hdfs_replicas == 0 {
            return Err(refuse("0 HDFS replicas", "HDFS keeps at least 1"));
        }
        if extensions.memory_copies == 0 {
            return Err(refuse("0 copies in memory", "memory keeps at least 1"));
        }
        if extensions.data_node_reach == Some(0) {
            return Err(refuse("a compute node that reaches 0 data nodes", "give at least 1"));
        }
        if extensions.pfs_taken.get() >= 1.0 {
            return Err(refuse("other users take all of the PFS", "leave a share above 0"));
        }
        if extensions.latency.is_some_and(|latency| latency.request.get() == 0.0) {
            return Err(refuse("requests of 0 bytes", "give the length of a request, as 1MiB"));
        }
        Ok(())
    }

    /// The disks of a compute node, or the reason why HDFS cannot be modelled.
    pub fn local_disk(&self) -> Result<LocalDisk> {
        let missing =
            || refuse("HDFS needs disks in the compute nodes", "give --disk-read and --disk-write");
        self.disk.ok_or_else(missing)
    }
}
