//! The inputs of the models: flags override an input file, which overrides a calibration file. A
//! rate that none of them gives is refused, never guessed.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use tidepool_model::{
    Bytes, BytesPerSecond, Cluster, Doubt, Extensions, Latency, LocalDisk, NodeCount, Pfs, Seconds,
    Share,
};
use tidepool_proto::{Error, ErrorKind, Result};

use super::doubts;
use crate::calibrate::file::Calibration;
use tidepool_terminal::output;

/// Rates of a cluster, each optional. The same names are flags and keys of the input file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Rates of the cluster")]
pub struct Rates {
    /// Network interface of a node, each direction
    #[arg(long, value_name = "RATE")]
    pub network: Option<BytesPerSecond>,
    /// Bisection of the network, all nodes together; without it, it never limits
    #[arg(long, value_name = "RATE")]
    pub backplane: Option<BytesPerSecond>,
    /// Reads from the disks of a compute node
    #[arg(long, value_name = "RATE")]
    pub disk_read: Option<BytesPerSecond>,
    /// Writes to the disks of a compute node
    #[arg(long, value_name = "RATE")]
    pub disk_write: Option<BytesPerSecond>,
    /// Reads from the memory of a node
    #[arg(long, value_name = "RATE")]
    pub memory: Option<BytesPerSecond>,
    /// Writes to the memory of a node [default: --memory]
    #[arg(long, value_name = "RATE")]
    pub memory_write: Option<BytesPerSecond>,
    /// Reads from the PFS, all compute nodes together
    #[arg(long, value_name = "RATE")]
    pub pfs: Option<BytesPerSecond>,
    /// Writes to the PFS, all compute nodes together [default: --pfs]
    #[arg(long, value_name = "RATE")]
    pub pfs_write: Option<BytesPerSecond>,
    /// Data nodes of the PFS, instead of --pfs
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["pfs", "pfs_write"],
          requires = "data_node_disk_read")]
    pub data_nodes: Option<NodeCount>,
    /// Network interface of a data node [default: --network]
    #[arg(long, value_name = "RATE", requires = "data_nodes")]
    pub data_node_network: Option<BytesPerSecond>,
    /// Reads from the disks of a data node
    #[arg(long, value_name = "RATE", requires = "data_nodes")]
    pub data_node_disk_read: Option<BytesPerSecond>,
    /// Writes to the disks of a data node [default: --data-node-disk-read]
    #[arg(long, value_name = "RATE", requires = "data_nodes")]
    pub data_node_disk_write: Option<BytesPerSecond>,
    /// What goes beyond the papers' equations.
    #[command(flatten)]
    #[serde(flatten)]
    pub beyond: Beyond,
}

/// Extensions of the papers' equations; each leaves them as they are where it is not given.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[command(next_help_heading = "Beyond the papers")]
pub struct Beyond {
    /// Copies that HDFS writes [default: 3]
    #[arg(long, value_name = "COUNT")]
    pub hdfs_replicas: Option<u32>,
    /// Copies of data written to memory [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub memory_copies: Option<u32>,
    /// Share of the bytes found in memory that lie on another node [default: 0]
    #[arg(long, value_name = "SHARE")]
    pub remote_hits: Option<Share>,
    /// What the processors of a node can work off
    #[arg(long, value_name = "RATE")]
    pub processing: Option<BytesPerSecond>,
    /// Data nodes that one compute node keeps busy [default: all]
    #[arg(long, value_name = "COUNT")]
    pub data_node_reach: Option<u32>,
    /// Share of the PFS that other users take [default: 0]
    #[arg(long, value_name = "SHARE")]
    pub pfs_taken: Option<Share>,
    /// Length of a request, where latency counts
    #[arg(long, value_name = "SIZE")]
    pub request: Option<Bytes>,
    /// Latency of memory in microseconds, for each request
    #[arg(long, value_name = "MICROSECONDS", requires = "request")]
    pub memory_latency_us: Option<f64>,
    /// Latency of the PFS in microseconds, for each request
    #[arg(long, value_name = "MICROSECONDS", requires = "request")]
    pub pfs_latency_us: Option<f64>,
    /// Whether the network holds the shuffle too
    #[arg(long)]
    pub shuffle_crosses_network: bool,
}

/// Flags of every command that needs the rates of a cluster.
#[derive(Args, Clone, Debug)]
pub struct InputArguments {
    /// Rates and extensions as flags.
    #[command(flatten)]
    pub rates: Rates,
    /// TOML file with the same names, words joined by underscores; flags win
    #[arg(long, value_name = "FILE", help_heading = "Rates of the cluster")]
    pub input: Option<PathBuf>,
    /// File that `tidepool calibrate` wrote; flags and --input win
    #[arg(long, value_name = "FILE", help_heading = "Rates of the cluster")]
    pub calibration: Option<PathBuf>,
}

/// The calibration behind some inputs, for the output.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// Host that was calibrated.
    pub host: String,
    /// Whether that is another machine than this one.
    pub other_machine: bool,
    /// Differences and warnings, one a line.
    pub notes: Vec<String>,
}

/// Inputs put together.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// What the models take.
    pub cluster: Cluster,
    /// Where it was measured, if it was.
    pub origin: Option<Origin>,
    /// The calibration, for further facts.
    pub calibration: Option<Calibration>,
    /// Rates of the calibration that were measured too badly to decide by.
    pub doubts: Vec<Doubt>,
    /// What the rates of the calibration say that cannot be.
    pub contradictions: Vec<String>,
}

fn missing(flag: &str, what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "reading the inputs of the models",
        format!("{what} is not given"),
    )
    .remedy(format!("give {flag}, an --input file, or a --calibration file"))
}

/// Reads a TOML file into a type; the message names the file and the line.
pub fn read_toml<T: serde::de::DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let operation = || format!("reading the {what} {}", path.display());
    let text = std::fs::read_to_string(path).map_err(|source| Error::pfs(operation(), source))?;
    toml::from_str(&text).map_err(|error| {
        let detail = error.to_string().trim().replace('\n', " ");
        Error::new(ErrorKind::InvalidInput, operation(), detail)
    })
}

impl Rates {
    /// What `self` leaves open, taken from `other`.
    fn or(self, other: Rates) -> Rates {
        // A PFS is given in one of two ways; the first that gives one wins whole.
        let by_nodes = self.data_nodes.is_some();
        let by_rate = self.pfs.is_some();
        Rates {
            network: self.network.or(other.network),
            backplane: self.backplane.or(other.backplane),
            disk_read: self.disk_read.or(other.disk_read),
            disk_write: self.disk_write.or(other.disk_write),
            memory: self.memory.or(other.memory),
            memory_write: self
                .memory_write
                .or(other.memory_write.filter(|_| self.memory.is_none())),
            pfs: self.pfs.or(other.pfs.filter(|_| !by_nodes)),
            pfs_write: self.pfs_write.or(other.pfs_write.filter(|_| !by_nodes && !by_rate)),
            data_nodes: self.data_nodes.or(other.data_nodes.filter(|_| !by_rate)),
            data_node_network: self.data_node_network.or(other.data_node_network),
            data_node_disk_read: self.data_node_disk_read.or(other.data_node_disk_read),
            data_node_disk_write: self.data_node_disk_write.or(other.data_node_disk_write),
            beyond: self.beyond.or(other.beyond),
        }
    }

    fn pfs_of(&self, network: BytesPerSecond) -> Result<Pfs> {
        let Some(count) = self.data_nodes else {
            let read = self.pfs.ok_or_else(|| missing("--pfs", "the rate of the PFS"))?;
            return Ok(Pfs::Aggregate { read, write: self.pfs_write.unwrap_or(read) });
        };
        let disk_read = self
            .data_node_disk_read
            .ok_or_else(|| missing("--data-node-disk-read", "the rate of a data node's disks"))?;
        Ok(Pfs::DataNodes {
            count,
            network: self.data_node_network.unwrap_or(network),
            disk_read,
            disk_write: self.data_node_disk_write.unwrap_or(disk_read),
        })
    }

    fn cluster(&self) -> Result<Cluster> {
        let network = self.network.ok_or_else(|| missing("--network", "the network's rate"))?;
        let memory = self.memory.ok_or_else(|| missing("--memory", "the memory's rate"))?;
        let disk = match (self.disk_read, self.disk_write) {
            (Some(read), Some(write)) => Some(LocalDisk { read, write }),
            (Some(read), None) => Some(LocalDisk { read, write: read }),
            (None, Some(_)) => return Err(missing("--disk-read", "the disks' read rate")),
            (None, None) => None,
        };
        let cluster = Cluster {
            network,
            backplane: self.backplane,
            disk,
            memory_read: memory,
            memory_write: self.memory_write.unwrap_or(memory),
            pfs: self.pfs_of(network)?,
            extensions: self.beyond.extensions()?,
        };
        cluster.check()?;
        Ok(cluster)
    }
}

impl Beyond {
    fn or(self, other: Beyond) -> Beyond {
        Beyond {
            hdfs_replicas: self.hdfs_replicas.or(other.hdfs_replicas),
            memory_copies: self.memory_copies.or(other.memory_copies),
            remote_hits: self.remote_hits.or(other.remote_hits),
            processing: self.processing.or(other.processing),
            data_node_reach: self.data_node_reach.or(other.data_node_reach),
            pfs_taken: self.pfs_taken.or(other.pfs_taken),
            request: self.request.or(other.request),
            memory_latency_us: self.memory_latency_us.or(other.memory_latency_us),
            pfs_latency_us: self.pfs_latency_us.or(other.pfs_latency_us),
            shuffle_crosses_network: self.shuffle_crosses_network || other.shuffle_crosses_network,
        }
    }

    fn extensions(&self) -> Result<Extensions> {
        let papers = Extensions::default();
        let microseconds = |time: Option<f64>| Seconds::new(time.unwrap_or(0.0) * 1e-6);
        let latency = match self.request {
            Some(request) => Some(Latency {
                request,
                memory: microseconds(self.memory_latency_us)?,
                pfs: microseconds(self.pfs_latency_us)?,
            }),
            None => None,
        };
        Ok(Extensions {
            hdfs_replicas: self.hdfs_replicas.unwrap_or(papers.hdfs_replicas),
            memory_copies: self.memory_copies.unwrap_or(papers.memory_copies),
            remote_hits: self.remote_hits.unwrap_or(papers.remote_hits),
            processing: self.processing,
            data_node_reach: self.data_node_reach,
            pfs_taken: self.pfs_taken.unwrap_or(papers.pfs_taken),
            latency,
            shuffle_crosses_network: self.shuffle_crosses_network,
        })
    }
}

impl InputArguments {
    /// Puts flags, file and calibration together, and says where a calibration is from.
    pub fn inputs(&self) -> Result<Inputs> {
        let mut rates = self.rates.clone();
        if let Some(path) = &self.input {
            rates = rates.or(read_toml(path, "input file")?);
        }
        let calibration = self.calibration.as_deref().map(Calibration::read).transpose()?;
        let mut origin = None;
        let (mut doubts, mut contradictions) = (Vec::new(), Vec::new());
        if let Some(calibration) = &calibration {
            let mut found = calibration.origin();
            if rates.pfs.is_none() && rates.data_nodes.is_none() && calibration.pfs.is_some() {
                found.notes.push(
                    "the PFS rate is what one node measured; several nodes may get more, give --pfs"
                        .to_owned(),
                );
            }
            doubts = doubts::doubts(calibration, &rates)?;
            contradictions = doubts::contradictions(calibration, &rates)?;
            rates = rates.or(calibration.rates()?);
            for note in &found.notes {
                output::note(&format!("calibration: {note}"));
            }
            origin = Some(found);
        }
        Ok(Inputs { cluster: rates.cluster()?, origin, calibration, doubts, contradictions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str) -> Rates {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn flags_win_over_files_and_a_pfs_is_taken_whole() {
        let flags = rates("network = \"1GB/s\"\npfs = \"5GB/s\"");
        let file = rates(
            "network = \"2GB/s\"\nmemory = \"6GB/s\"\npfs_write = \"1GB/s\"\ndata_nodes = 4\n\
             data_node_disk_read = \"1GB/s\"\nhdfs_replicas = 2",
        );
        let cluster = flags.or(file).cluster().unwrap();
        let rate = |text: &str| text.parse::<BytesPerSecond>().unwrap();
        assert_eq!(cluster.network, rate("1GB/s"));
        assert_eq!(cluster.memory_write, rate("6GB/s"));
        assert_eq!(cluster.pfs, Pfs::Aggregate { read: rate("5GB/s"), write: rate("5GB/s") });
        assert_eq!(cluster.extensions.hdfs_replicas, 2);
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        let error = rates("network = \"1GB/s\"\nmemory = \"1GB/s\"").cluster().unwrap_err();
        assert!(error.to_string().contains("--pfs"), "{error}");
        for text in
            ["netwrk = \"1GB/s\"", "network = \"1G/s\"", "network = -1.0", "pfs_taken = 2.0"]
        {
            assert!(toml::from_str::<Rates>(text).is_err(), "{text}");
        }
    }
}
