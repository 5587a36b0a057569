//! What the rows share: the cluster, files whose bytes are known, readers that compare them.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Scale;
use crate::arguments::{ClusterUpOptions, PfsKind, Rate};
use crate::bench::wait_until;
use crate::cluster::{Cluster, Plan};
use crate::environment;

/// The compute nodes.
pub const NODES: [&str; 4] = ["c1", "c2", "c3", "c4"];
/// Rate of each link, in bytes a second with headers.
pub const LINK: u64 = 100_000_000;
/// Rate of each disk.
pub const DISK: u64 = 65_000_000;
/// Unit of what is compared, the node's block.
pub const BLOCK: u64 = 4 << 20;
const PIECE: usize = 1 << 20;
/// Age from which no node takes the time stamps of a file for racy.
const AGE: Duration = Duration::from_secs(3);
/// Longest wait for what takes seconds.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A cluster with what is measured on it.
pub struct Rig {
    /// Four compute and two data nodes.
    pub cluster: Cluster,
    /// How much is measured.
    pub scale: Scale,
    only: Option<String>,
    /// Whether disks can be held to a rate here.
    disks: bool,
}

/// A file of known bytes.
pub struct Content {
    /// Its name in the directory of the file system.
    pub name: String,
    /// Its length, whole blocks.
    pub bytes: u64,
    sums: Vec<u32>,
}

/// The same file system by two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The daemon's mount.
    Tide,
    /// The client of the file system.
    Bare,
}

impl Content {
    /// Sum of the checksums of its blocks.
    pub fn sum(&self) -> u64 {
        self.sums.iter().map(|sum| u64::from(*sum)).sum()
    }
}

/// How a read went.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Seconds from the open to the last byte.
    pub seconds: f64,
    /// Seconds that the slowest of its reads of 1 MiB took.
    pub longest_s: f64,
}

impl Rig {
    /// Makes the cluster.
    pub fn up(scale: Scale, only: Option<String>) -> Result<Self> {
        let binary = environment::binary()?;
        let options = ClusterUpOptions {
            buffers: 0,
            compute: 4,
            data: 2,
            link: Some(Rate(Some(LINK))),
            disk: Some(Rate(Some(DISK))),
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
        let plan = Plan::new("bench", &options, binary)?;
        let cluster = Cluster::up(&plan)?;
        let disks = cluster.status()?.nodes.iter().any(|node| node.disk_bytes_per_s.is_some());
        let rig = Rig { cluster, scale, only, disks };
        rig.wait_joined(&NODES)?;
        Ok(rig)
    }

    /// Whether the row is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Sets the rates of links of compute nodes, and of links and disks of data nodes.
    pub fn shape(
        &mut self,
        compute: Option<u64>,
        data: Option<u64>,
        disk: Option<u64>,
    ) -> Result<()> {
        let disk = self.disks.then_some(Rate(disk));
        self.cluster.slow("compute", Some(Rate(compute)), None)?;
        self.cluster.slow("data", Some(Rate(data)), disk)
    }

    /// All rates as they were.
    pub fn reshape(&mut self) -> Result<()> {
        self.shape(Some(LINK), Some(LINK), Some(DISK))
    }

    /// Writes files beside the daemons, without limits, and waits until they are old enough to be
    /// given to other nodes.
    pub fn write(&mut self, names: &[String], bytes: u64) -> Result<Vec<Content>> {
        self.shape(None, None, None)?;
        let directory = self.cluster.pfs(NODES[0])?;
        let files: Result<Vec<Content>> =
            names.iter().map(|name| write(&directory, name, bytes)).collect();
        let files = files?;
        self.reshape()?;
        let Some(last) = files.last() else { return Ok(files) };
        let path = directory.join(&last.name);
        wait_until("time stamps to be past", LIMIT, || {
            let modified = std::fs::metadata(&path)?.modified()?;
            Ok(modified.elapsed().is_ok_and(|age| age >= AGE))
        })?;
        Ok(files)
    }

    /// Removes files.
    pub fn remove(&self, files: &[Content]) -> Result<()> {
        let directory = self.cluster.pfs(NODES[0])?;
        for file in files {
            std::fs::remove_file(directory.join(&file.name))?;
        }
        Ok(())
    }

    /// What `tidepool` says on a node.
    pub fn tidepool(&self, node: &str, arguments: &[&str]) -> Result<String> {
        self.cluster.run(node, &[&["tidepool"], arguments].concat())
    }

    /// The state of a node.
    pub fn status(&self, node: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.tidepool(node, &["status", "--json"])?)?)
    }

    /// Sum of a counter over all nodes.
    pub fn sum(&self, pointer: &str) -> Result<u64> {
        NODES.iter().map(|node| number(&self.status(node)?, pointer)).sum()
    }

    /// Drops a file from the memory of a node.
    pub fn evict(&self, node: &str, file: &Content) -> Result<()> {
        self.tidepool(node, &["evict", &format!("/run/tide/{}", file.name)]).map(drop)
    }

    /// Lets the stores hold nothing, at the capacity that they began with.
    pub fn empty(&self) -> Result<()> {
        self.resize(self.scale.memory_bytes)
    }

    /// Gives all stores a capacity, and lets them hold nothing.
    pub fn resize(&self, bytes: u64) -> Result<()> {
        for node in NODES {
            self.tidepool(node, &["resize", "0"])?;
            self.tidepool(node, &["resize", &bytes.to_string()])?;
        }
        self.wait_forgotten()
    }

    /// Waits until no node says that it holds anything.
    fn wait_forgotten(&self) -> Result<()> {
        wait_until("locations to be forgotten", LIMIT, || {
            Ok(self.sum("/cluster/location_entries")? == 0)
        })
    }

    /// Waits until each of these nodes may read from all others.
    pub fn wait_joined(&self, nodes: &[&str]) -> Result<()> {
        wait_until("the nodes to know each other", LIMIT, || {
            for node in nodes {
                let Ok(status) = self.status(node) else { return Ok(false) };
                let members = status.pointer("/cluster/members").and_then(Value::as_array);
                let members = members.context("the node is of no cluster")?;
                if !members.iter().all(|it| it["state"] == "alive" && it["sees_same_pfs"] == true) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn path(&self, node: &str, way: Way, name: &str) -> Result<PathBuf> {
        let directory = match way {
            Way::Tide => self.cluster.mount(node)?,
            Way::Bare => self.cluster.pfs(node)?,
        };
        Ok(directory.join(name))
    }

    /// Reads a file on a node and compares it.
    pub fn read(&self, node: &str, way: Way, file: &Content) -> Result<Reading> {
        self.read_blocks(node, way, file, 0..file.bytes / BLOCK, &AtomicU64::new(0))
    }

    /// The same for some blocks of it; counts them as they come.
    pub fn read_blocks(
        &self,
        node: &str,
        way: Way,
        file: &Content,
        blocks: Range<u64>,
        done: &AtomicU64,
    ) -> Result<Reading> {
        let path = self.path(node, way, &file.name)?;
        let begun = Instant::now();
        let open = File::open(&path).with_context(|| path.display().to_string())?;
        let mut bytes = vec![0; BLOCK as usize];
        let mut longest = Duration::ZERO;
        for block in blocks {
            for (at, piece) in bytes.chunks_mut(PIECE).enumerate() {
                let piece_begun = Instant::now();
                let offset = block * BLOCK + (at * PIECE) as u64;
                let place = || format!("{node}: {} at {offset}", file.name);
                open.read_exact_at(piece, offset).with_context(place)?;
                longest = longest.max(piece_begun.elapsed());
            }
            let is_right = crc32fast::hash(&bytes) == file.sums[block as usize];
            ensure!(is_right, "{node} reads wrong bytes of {}, block {block}", file.name);
            done.fetch_add(1, Ordering::Relaxed);
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Reading { seconds, longest_s: longest.as_secs_f64() })
    }

    /// Does the same for nodes at once. Returns the seconds until all are done.
    pub fn together(
        &self,
        nodes: &[&str],
        work: impl Fn(&Rig, &str) -> Result<()> + Sync,
    ) -> Result<f64> {
        let begun = Instant::now();
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                nodes.iter().map(|node| scope.spawn(move || work(self, node))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect::<Result<()>>()
        })?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// A counter of a status.
pub fn number(status: &Value, pointer: &str) -> Result<u64> {
    status.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("no {pointer}"))
}

/// Names of files.
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}-{at}")).collect()
}

fn write(directory: &std::path::Path, name: &str, bytes: u64) -> Result<Content> {
    let mut file = File::create(directory.join(name))?;
    let mut block = vec![0_u8; BLOCK as usize];
    let mut state = u64::from(crc32fast::hash(name.as_bytes())) << 1 | 1;
    let mut sums = Vec::new();
    for _ in 0..bytes / BLOCK {
        for word in block.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        sums.push(crc32fast::hash(&block));
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(Content { name: name.to_owned(), bytes: bytes / BLOCK * BLOCK, sums })
}
