//! What the rows share: the cluster, the rates of its disks, and jobs that run on it.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Scale;
use super::place::Place;
use crate::arguments::{ClusterService, ClusterUpOptions, PfsKind, Rate};
use crate::bench::wait_until;
use crate::cleanup::Guard;
use crate::cluster::{Cluster, Plan};
use crate::environment;
use crate::jvm::java::Ran;

/// The compute nodes; the last two have a burst buffer.
pub const NODES: [&str; 4] = ["c1", "c2", "c3", "c4"];
/// Those with one.
pub const BUFFERS: [&str; 2] = ["c3", "c4"];
/// Rate of each link, in bytes a second with headers.
const LINK: u64 = 1_000_000_000;
/// Bytes that the kernel keeps for each data node's disk until it writes them: nodes share the
/// memory of one machine, and the paper's data was larger than that of its nodes.
const DIRTY_BYTES: u64 = 8 << 20;
/// Longest wait for what takes minutes.
const LIMIT: Duration = Duration::from_secs(900);

/// Rates of a disk below the file system and below HDFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaping {
    /// Below the file system.
    pub pfs: u64,
    /// Below HDFS.
    pub hdfs: u64,
}

/// One disk of about 100 MB/s for 8 cores, as on the paper's cluster A; here 2 disks and 2 cores.
pub const ALIKE: Shaping = Shaping { pfs: 15_000_000, hdfs: 15_000_000 };
/// A fast file system beside poor local disks, as on its cluster B.
pub const POOR_LOCAL: Shaping = Shaping { pfs: 120_000_000, hdfs: 5_000_000 };

/// A cluster with what is measured on it.
pub struct Rig {
    /// Four compute nodes, of which two have a burst buffer, and two data nodes.
    pub cluster: Cluster,
    /// How much is measured.
    pub scale: Scale,
    only: Option<String>,
    services: bool,
    runs: u32,
    _dirty: Guard,
}

impl Rig {
    /// Makes the cluster.
    pub fn up(scale: Scale, only: Option<String>) -> Result<Self> {
        let options = ClusterUpOptions {
            buffers: BUFFERS.len() as u8,
            compute: NODES.len() as u8,
            data: 2,
            link: Some(Rate(Some(LINK))),
            disk: Some(Rate(Some(ALIKE.pfs))),
            disk_size: 24 << 30,
            memory: scale.memory_bytes.to_string(),
            pfs: PfsKind::Gluster,
            with: Vec::new(),
            plane: false,
            plane_policy: String::new(),
            plane_option: Vec::new(),
            tls: false,
            single: false,
            node_option: Vec::new(),
            directory: "/var/tmp/tidepool-cluster".into(),
        };
        let plan = Plan::new("bursts", &options, environment::binary()?)?;
        let cluster = Cluster::up(&plan)?;
        let dirty = cluster.hold_dirty(DIRTY_BYTES)?;
        let rig = Rig { cluster, scale, only, services: false, runs: 0, _dirty: dirty };
        wait_until("the nodes to know each other's buffers", LIMIT, || {
            let members = |node: &str| -> Result<usize> {
                let status = rig.status(node)?;
                let members = status.pointer("/cluster/members").and_then(Value::as_array);
                let is_met = |it: &&Value| it["state"] == "alive" && it["sees_same_pfs"] == true;
                Ok(members.map_or(0, |members| members.iter().filter(is_met).count()))
            };
            Ok(NODES.iter().all(|node| members(node).is_ok_and(|it| it == NODES.len() - 1)))
        })?;
        let mount = rig.cluster.mount(NODES[0])?;
        for mode in ["alw", "adw", "bld", "plain"] {
            fs::create_dir(mount.join(mode))?;
        }
        // What buffers a node has is told a moment later.
        std::thread::sleep(Duration::from_secs(5));
        Ok(rig)
    }

    /// Whether the row is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Sets the rates of disks to those of a place.
    pub fn shape_for(&mut self, place: Place, shaping: Shaping) -> Result<()> {
        let rate = if place == Place::Hdfs { shaping.hdfs } else { shaping.pfs };
        self.cluster.slow("data", None, Some(Rate(Some(rate))))
    }

    /// Starts HDFS and YARN, once.
    pub fn start_services(&mut self) -> Result<()> {
        if !self.services {
            self.cluster.slow("data", None, Some(Rate(None)))?;
            self.cluster.start_service(ClusterService::Hdfs)?;
            self.cluster.start_service(ClusterService::Yarn)?;
            self.services = true;
        }
        Ok(())
    }

    /// Runs a program of Hadoop on the first node; what it said, and the seconds it took.
    pub fn job(&mut self, words: &[String]) -> Result<(Ran, f64)> {
        self.runs += 1;
        let logs = environment::target().join("bench-logs");
        fs::create_dir_all(&logs)?;
        let main = words.first().context("no program")?;
        let name = main.rsplit('.').next().unwrap_or(main);
        let log = logs.join(format!("bursts-{:03}-{name}.log", self.runs));
        let mut command = self.cluster.command(NODES[0], "hadoop")?;
        command.args(words).stdin(Stdio::null());
        let begun = Instant::now();
        let ran = Ran::of(&mut command, main, &log)?;
        Ok((ran, begun.elapsed().as_secs_f64()))
    }

    /// What `tidepool` says on a node.
    pub fn tidepool(&self, node: &str, arguments: &[&str]) -> Result<String> {
        self.cluster.run(node, &[&["tidepool"], arguments].concat())
    }

    /// The state of a node.
    pub fn status(&self, node: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.tidepool(node, &["status", "--json"])?)?)
    }

    /// Waits until nothing is owed to the file system and to disks; the seconds it took.
    pub fn settle(&self) -> Result<f64> {
        let begun = Instant::now();
        for node in NODES {
            self.tidepool(node, &["flush"])?;
        }
        rustix::fs::sync();
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Lets no store hold anything.
    pub fn empty_stores(&self) -> Result<()> {
        NODES.iter().try_for_each(|node| self.tidepool(node, &["evict", "--all"]).map(drop))
    }

    /// Removes what a place has below a name, and all that nodes and the kernel keep of it.
    pub fn remove(&mut self, place: Place, name: &str) -> Result<()> {
        self.cluster.slow("data", None, Some(Rate(None)))?;
        match place {
            Place::Hdfs => {
                let path = place.uri(&self.cluster, name)?;
                let words = ["fs", "-rm", "-r", "-f", "-skipTrash", &path];
                self.job(&words.map(str::to_owned))?;
            }
            _ => {
                let path = self.directory(place)?.join(name);
                if path.exists() {
                    fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
                }
            }
        }
        self.empty_stores()?;
        self.cluster.drop_caches()
    }

    /// Where this machine sees the files of a place, on the first node.
    pub fn directory(&self, place: Place) -> Result<PathBuf> {
        self.directory_on(NODES[0], place)
    }

    /// The same on another node.
    pub fn directory_on(&self, node: &str, place: Place) -> Result<PathBuf> {
        Ok(match place {
            Place::Mode(mode) => self.cluster.mount(node)?.join(mode),
            Place::Pfs | Place::Hdfs => self.cluster.pfs(node)?.join("plain"),
        })
    }
}
