//! A real node under test: started, asked and stopped through its command line alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cleanup::{self, Guard};
use crate::loop_volume::{is_mounted, unmount_hard};
use crate::scratch::Scratch;
use crate::{environment, process};

/// What to start.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The lower level.
    pub pfs: PathBuf,
    /// Capacity of the store, as the command line takes it.
    pub memory: String,
    /// Further arguments of `node start`.
    pub arguments: Vec<String>,
}

/// A running node with a mount.
#[derive(Debug)]
pub struct Node {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Its socket.
    pub socket: PathBuf,
    binary: PathBuf,
    options: NodeOptions,
    mounted: bool,
    stop: Option<Guard>,
    // Last: it goes away after the node has.
    _state: Scratch,
}

const START_LIMIT: Duration = Duration::from_secs(30);
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

impl Node {
    /// Starts a node with a mount point and a socket of its own.
    pub fn start(options: &NodeOptions) -> Result<Self> {
        Self::start_with(options, true)
    }

    /// Starts a node without a mount: programs reach it by its socket alone, and no root is needed.
    pub fn start_unmounted(options: &NodeOptions) -> Result<Self> {
        Self::start_with(options, false)
    }

    fn start_with(options: &NodeOptions, mounted: bool) -> Result<Self> {
        let state = Scratch::short()?;
        let mut node = Node {
            mount: state.path().join("mount"),
            socket: state.path().join("node.sock"),
            binary: environment::binary()?,
            options: options.clone(),
            mounted,
            stop: None,
            _state: state,
        };
        std::fs::create_dir_all(&node.mount)?;
        node.start_again()?;
        Ok(node)
    }

    /// Starts the daemon, after the first time also where the last one was killed.
    pub fn start_again(&mut self) -> Result<()> {
        let mut start = Command::new(&self.binary);
        start.args(["node", "start", "--pfs"]).arg(&self.options.pfs);
        start.args(["--memory", &self.options.memory]);
        if self.mounted {
            start.arg("--mount").arg(&self.mount);
        }
        start.arg("--socket").arg(&self.socket).args(&self.options.arguments);
        // The size of the store changes only where the caller asked for the control.
        start.env("TIDEPOOL_CONTROL", "off");
        let (binary, socket, mount) =
            (self.binary.clone(), self.socket.clone(), self.mount.clone());
        let process_id = Arc::new(AtomicU32::new(0));
        let known = Arc::clone(&process_id);
        // Registered before the start: a start that fails half-way leaves nothing either.
        let guard = cleanup::guard(move || stop(&binary, &socket, &mount, &known));
        let output = process::capture_within(&mut start, START_LIMIT).context("node start")?;
        if !output.status.success() {
            anyhow::bail!(
                "`{}` ended with {}: {}",
                process::describe(&start),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        if self.mounted && !is_mounted(&self.mount) {
            anyhow::bail!("node start returned, but nothing is mounted at {:?}", self.mount);
        }
        self.forget_guard();
        self.stop = Some(guard);
        // Asked for now: a node that hangs later answers no more, and must still be ended.
        process_id.store(self.process_id()?, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a command against this node and returns what it printed.
    pub fn ask<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Result<String> {
        let mut command = self.command(arguments);
        let output = process::capture_within(&mut command, COMMAND_LIMIT)?;
        if !output.status.success() {
            anyhow::bail!(
                "`{}` ended with {}: {}",
                process::describe(&command),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The program that it runs, which is that of operators as well.
    pub fn program(&self) -> &Path {
        &self.binary
    }

    /// The command line of [`Node::ask`], not started.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).arg("--socket").arg(&self.socket);
        command
    }

    /// Facts and counters.
    pub fn status(&self) -> Result<Value> {
        let text = self.ask(&["status", "--json"])?;
        serde_json::from_str(&text).with_context(|| format!("status is no JSON: {text}"))
    }

    /// Process id of the daemon.
    pub fn process_id(&self) -> Result<u32> {
        let status = self.status()?;
        let id = status["process_id"].as_u64().context("status names no process_id")?;
        Ok(u32::try_from(id)?)
    }

    /// Kills the daemon as a crash would, and waits until it is gone.
    pub fn kill(&self) -> Result<()> {
        let process_id = self.process_id()?;
        process::signal(process_id, libc::SIGKILL);
        let path = PathBuf::from(format!("/proc/{process_id}"));
        for _ in 0..500 {
            let gone = !path.exists()
                || std::fs::read_to_string(path.join("stat"))
                    .is_ok_and(|stat| stat.contains(") Z "));
            if gone {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        anyhow::bail!("process {process_id} survives SIGKILL")
    }

    fn forget_guard(&mut self) {
        if let Some(guard) = self.stop.take() {
            cleanup::forget(guard);
        }
    }
}

fn stop(binary: &Path, socket: &Path, mount: &Path, process_id: &AtomicU32) {
    let mut stop = Command::new(binary);
    stop.args(["node", "stop", "--socket"]).arg(socket);
    let stopped = process::capture_within(&mut stop, Duration::from_secs(20))
        .is_ok_and(|output| output.status.success());
    if !stopped {
        process::signal(process_id.load(Ordering::Relaxed), libc::SIGKILL);
    }
    if is_mounted(mount) {
        unmount_hard(mount);
    }
}
