//! One real node with its agent: its store is full and read over and over, and a job beside it
//! takes memory and gives it back.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Bench;
use super::site::{CLUSTER, Site, player, programs};
use crate::bench::control::rig::{Watch, set};
use crate::bench::wait_until;
use crate::hog::remote::{JobOptions, RunningJob};
use crate::jvm::daemon::Daemon;
use crate::node::{Node, NodeOptions};
use crate::scratch::Scratch;
use crate::{environment, process};

const NODE: &str = "node1";
const BLOCK_BYTES: u64 = 4 << 20;
const FILE_BYTES: u64 = 128 << 20;
/// Partitions of the topic of ceilings.
const PARTITIONS: u32 = 4;
/// The job leaves so much to others.
const LEAVE_BYTES: u64 = 1 << 30;
const LIMIT: Duration = Duration::from_secs(60);
const READ_EVERY: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_secs(2);
/// Of the store, how far the threshold is away at rest.
const SLACK_SHARE: u64 = 8;

/// The node and all beside it.
pub struct Rig {
    agent: Option<Daemon>,
    /// Kafka and the job.
    pub site: Site,
    /// The node.
    pub node: Node,
    /// What the job beside it takes at most.
    burst_bytes: u64,
    /// Room before the threshold at rest.
    pub slack_bytes: u64,
    /// What the store may hold at most.
    most_bytes: u64,
    programs: PathBuf,
    lower: Scratch,
}

impl Rig {
    /// Starts broker and node, and makes the files; they are all holes.
    pub fn start(bench: &Bench, pfs: Option<&Path>) -> Result<Rig> {
        let default = environment::target().join("bench");
        let lower = Scratch::below(pfs.unwrap_or(&default))?;
        let store_bytes = bench.scale.store_bytes;
        for index in 0..store_bytes.div_ceil(FILE_BYTES) {
            let file = std::fs::File::create(lower.path().join(format!("hole-{index}")))?;
            file.set_len(FILE_BYTES.min(store_bytes - index * FILE_BYTES))?;
        }
        let most_bytes = store_bytes + 4 * BLOCK_BYTES;
        let block = BLOCK_BYTES.to_string();
        let arguments = ["--control", "off", "--memory-min", "0", "--block-bytes", &block];
        let node = Node::start_unmounted(&NodeOptions {
            pfs: lower.path().to_owned(),
            memory: most_bytes.to_string(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
        })?;
        Ok(Rig {
            agent: None,
            site: Site::start(PARTITIONS)?,
            node,
            burst_bytes: bench.scale.burst_bytes,
            slack_bytes: store_bytes / SLACK_SHARE,
            most_bytes,
            programs: programs()?,
            lower,
        })
    }

    /// Starts the job with this gain and the agent with so many samples in a message, on a full
    /// store that is a little below the threshold; waits for the first ceiling.
    pub fn govern(&mut self, gain: f64, batch: u32) -> Result<()> {
        self.end_plane()?;
        self.fill()?;
        std::thread::sleep(SETTLE);
        let total = environment::memory_field("MemTotal")?;
        let used = total - environment::memory_available_bytes()? + self.slack_bytes;
        self.start_plane(used as f64 / total as f64, gain, batch)
    }

    /// Ends job and agent, and waits until the node is within its own limits again.
    pub fn end_plane(&mut self) -> Result<()> {
        (self.agent, self.site.job) = (None, None);
        wait_until(
            "the end of the lease",
            LIMIT,
            || Ok(self.control()?["leased_ceiling"].is_null()),
        )
    }

    /// Starts the job with this threshold and gain, and the agent with so many samples in a
    /// message; waits for the first ceiling.
    pub fn start_plane(&mut self, used_share: f64, gain: f64, batch: u32) -> Result<()> {
        let arguments = [
            "--policy",
            "dynims",
            "--used-share",
            &format!("{used_share:.5}"),
            "--gain",
            &format!("{gain}"),
        ];
        self.site.start_job(&arguments.map(str::to_owned))?;
        let mut command = self.node.command(&["plane", "agent", "--name", NODE]);
        command.args(["--cluster", CLUSTER, "--kafka", &self.site.kafka.address()]);
        command.args(["--batch", &batch.to_string()]);
        self.agent = Some(Daemon::start("plane-agent", &mut command, &self.site.logs)?);
        wait_until("a ceiling", LIMIT, || Ok(!self.control()?["leased_ceiling"].is_null()))?;
        std::thread::sleep(SETTLE);
        Ok(())
    }

    /// Ends the plane and every policy, and fills the store to its most; returns what is available
    /// beside it then.
    pub fn rest(&mut self) -> Result<u64> {
        self.end_plane()?;
        set(&self.node, "control", "off")?;
        self.node.ask(&["resize", &self.most_bytes.to_string()])?;
        self.fill()?;
        std::thread::sleep(SETTLE);
        let watch = self.watch()?;
        std::thread::sleep(SETTLE / 10);
        Ok(watch.finish()?.available())
    }

    /// What the node says of its size.
    fn control(&self) -> Result<Value> {
        Ok(self.node.status()?["control"].clone())
    }

    /// What the agent counts of its samples.
    pub fn samples(&self) -> Result<Value> {
        let mut command = self.node.command(&["plane", "status", "--json"]);
        let status: Value = serde_json::from_slice(&process::capture(&mut command)?.stdout)?;
        Ok(status["samples"].clone())
    }

    /// Process of the agent.
    pub fn agent(&self) -> Result<u32> {
        Ok(self.agent.as_ref().context("no agent runs")?.process_id())
    }

    /// Reads every file into the store.
    fn fill(&self) -> Result<()> {
        let lower = self.lower.path().to_string_lossy().into_owned();
        // What has no room is no failure of the command that matters here.
        process::capture(&mut self.node.command(&["load", "--recursive", &lower]))?;
        Ok(())
    }

    /// Does `work` while the files are read over and over.
    pub fn while_reading<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| -> Result<()> {
                while !over.load(Ordering::Acquire) {
                    self.fill()?;
                    std::thread::sleep(READ_EVERY);
                }
                Ok(())
            });
            let result = work();
            over.store(true, Ordering::Release);
            let read = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
            read.and(result)
        })
    }

    /// A job that waits for steps and takes the burst at most.
    pub fn job(&self) -> Result<RunningJob> {
        self.job_of(self.burst_bytes)
    }

    /// A job that waits for steps and takes so many bytes at most.
    pub fn job_of(&self, most_bytes: u64) -> Result<RunningJob> {
        RunningJob::start(&JobOptions { most_bytes, huge: true, leave_bytes: LEAVE_BYTES })
    }

    /// Begins to watch the machine and the store.
    pub fn watch(&self) -> Result<Watch> {
        Watch::begin(&self.programs.join("bench-watch"), &self.node)
    }

    /// Begins to listen to the ceilings of the node.
    pub fn listen(&self) -> Result<Daemon> {
        let mut command = player(&self.site, "listen")?;
        command.args(["--node", NODE, "--partitions", &self.site.partitions.to_string()]);
        command.stdin(std::process::Stdio::piped());
        let listener = Daemon::start("plane-listen", &mut command, &self.site.logs)?;
        listener.wait_for("its first line", || listener.said().contains("listening"))?;
        Ok(listener)
    }
}
