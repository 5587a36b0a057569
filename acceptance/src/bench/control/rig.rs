//! The fixture of the benchmark: a node whose store is full, a policy that governs it, and a
//! watcher beside it. One node serves all policies, so that they meet the same store on the same
//! pages.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::super::{Bench, wait_until};
use super::recording::Recording;
use crate::cleanup::{self, Guard};
use crate::environment;
use crate::node::Node;
use crate::process;

/// The policy that decides what the store may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// The policy `tidepool`.
    Tidepool,
    /// The policy of the DynIMS paper with the paper's interval and gain.
    Dynims,
    /// A size that nobody changes.
    Fixed,
    /// No store: the kernel's page cache alone.
    PageCache,
}

impl Contender {
    /// All, in the order of the table.
    pub const ALL: [Contender; 4] =
        [Contender::Tidepool, Contender::Dynims, Contender::Fixed, Contender::PageCache];

    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Tidepool => "tidepool",
            Contender::Dynims => "dynims",
            Contender::Fixed => "static",
            Contender::PageCache => "page cache only",
        }
    }
}

/// The paper has 0.5.
const GAIN_OF_SLOW_STORES: &str = "0.05";

/// A node and files that fill it.
pub struct Rig {
    /// The node.
    pub node: Node,
    /// Capacity of its store.
    pub store_bytes: u64,
    /// Bytes that must stay available at present.
    pub headroom: u64,
    /// The store is in 2 MiB pages.
    pub huge: bool,
    lower: PathBuf,
    watcher: PathBuf,
}

/// What `control_used_share_target` may be at least.
const USED_SHARE_MIN: f64 = 0.1;
const GOVERNED_LIMIT: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_millis(600);
const FILE_BYTES: u64 = 256 << 20;

impl Rig {
    /// Starts a node with a store of this size, and makes the files; they are all holes.
    pub fn start(bench: &Bench, store_bytes: u64, pages: &str) -> Result<Self> {
        let build =
            ["build", "--quiet", "--release", "--package", "acceptance", "--features", "library"];
        process::show(environment::cargo(&build).args(["--bin", "bench-watch"]))?;
        let lower = bench.lower.join("control");
        std::fs::create_dir_all(&lower)?;
        for index in 0..store_bytes.div_ceil(FILE_BYTES) {
            let file = std::fs::File::create(lower.join(format!("hole-{index}")))?;
            file.set_len(FILE_BYTES.min(store_bytes - index * FILE_BYTES))?;
        }
        let arguments = ["--huge-pages", pages, "--memory-min", "0", "--control", "off"];
        let node = bench.node(store_bytes + (16 << 20), &arguments)?;
        let huge = node.status()?["store"]["huge_pages"].as_bool().unwrap_or(false);
        let watcher = environment::target().join("release/bench-watch");
        Ok(Rig { node, store_bytes, headroom: 0, huge, lower, watcher })
    }

    /// Fills the store and lets the contender govern it, with `slack` bytes to its threshold.
    pub fn prepare(&mut self, contender: Contender, slack: u64) -> Result<()> {
        set(&self.node, "control", "off")?;
        if contender == Contender::PageCache {
            self.node.ask(&["resize", "0"])?;
        } else {
            self.node.ask(&["resize", &(self.store_bytes + (16 << 20)).to_string()])?;
            self.fill()?;
        }
        std::thread::sleep(SETTLE);
        let watch = self.watch()?;
        std::thread::sleep(Duration::from_millis(200));
        self.headroom = watch.finish()?.available().saturating_sub(slack);
        if contender != Contender::PageCache {
            govern(&self.node, contender, self.headroom)?;
        }
        Ok(())
    }

    /// Reads every file into the store.
    pub fn fill(&self) -> Result<()> {
        let lower = self.lower.to_string_lossy().into_owned();
        // What has no room is no failure of the command that matters here.
        process::capture(&mut self.node.command(&["load", "--recursive", &lower]))?;
        Ok(())
    }

    /// What the controller says.
    pub fn control(&self) -> Result<Value> {
        control(&self.node)
    }

    /// Begins to watch.
    pub fn watch(&self) -> Result<Watch> {
        Watch::begin(&self.watcher, &self.node)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.lower);
    }
}

/// Lets the contender govern the node and keep `headroom` bytes available.
pub fn govern(node: &Node, contender: Contender, headroom: u64) -> Result<()> {
    let total = environment::memory_field("MemTotal")? as f64;
    // The policy takes no smaller share; only an empty machine with a small store is below it.
    let target = (1.0 - headroom as f64 / total).max(USED_SHARE_MIN);
    let (policy, interval) = match contender {
        Contender::Tidepool => ("tidepool", "10"),
        Contender::Dynims => ("dynims", "100"),
        Contender::Fixed | Contender::PageCache => ("static", "10"),
    };
    set(node, "control_policy", "static")?;
    set(node, "control_interval_ms", interval)?;
    set(node, "control_headroom_bytes", &headroom.to_string())?;
    set(node, "control_used_share_target", &format!("{target:.6}"))?;
    if let Err(refused) = set(node, "control_policy", policy) {
        // A store in small pages gives back too slowly for the paper's gain to settle.
        eprintln!("x: {refused:#}\nx: {policy} goes on with a gain of {GAIN_OF_SLOW_STORES}");
        set(node, "control_gain", GAIN_OF_SLOW_STORES)?;
        set(node, "control_policy", policy)?;
    }
    set(node, "control", "on")?;
    wait_until("the controller", GOVERNED_LIMIT, || {
        let status = control(node)?;
        let says = status["report"]["policy"].as_str();
        Ok(status["lease"] == "governed" && says == Some(policy))
    })?;
    std::thread::sleep(SETTLE);
    Ok(())
}

/// Changes a setting of the control.
pub fn set(node: &Node, name: &str, value: &str) -> Result<()> {
    node.ask(&["control", "set", name, value]).map(drop)
}

/// What the controller of a node says.
fn control(node: &Node) -> Result<Value> {
    // The exit code tells that nobody governs; the text says it as well.
    let output = process::capture(&mut node.command(&["control", "status", "--json"]))?;
    serde_json::from_slice(&output.stdout).context("control status")
}

/// A watcher at work.
pub struct Watch {
    child: Child,
    text: BufReader<ChildStdout>,
    kill: Guard,
}

impl Watch {
    /// Begins to watch a node by the watcher at this path.
    pub fn begin(watcher: &Path, node: &Node) -> Result<Watch> {
        let mut command = process::command(watcher, &["--node"]);
        command.arg(node.process_id()?.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let process_id = child.id();
        let kill = cleanup::guard(move || process::signal(process_id, libc::SIGKILL));
        let mut text = BufReader::new(child.stdout.take().context("the watcher has an output")?);
        text.read_line(&mut String::new())?;
        Ok(Watch { child, text, kill })
    }

    /// Ends it and returns what it saw.
    pub fn finish(mut self) -> Result<Recording> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.text.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        cleanup::forget(self.kill);
        anyhow::ensure!(status.success(), "the watcher ended with {status}");
        let recording = Recording::parse(&text);
        anyhow::ensure!(!recording.0.is_empty(), "the watcher saw nothing");
        Ok(recording)
    }
}
