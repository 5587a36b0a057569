//! The product under test: a node started and stopped through its command line; and a plain
//! directory in its place, for the proof of the tests themselves.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tidepool_proto::admin::Status;
use tidepool_proto::mounts::MountTable;

use crate::machine;
use crate::model::defects::Defect;

/// What the model test drives.
pub trait Subject {
    /// Directory that programs use.
    fn mount(&self) -> &Path;
    /// Directory of the PFS.
    fn pfs(&self) -> &Path;
    /// Socket of the node.
    fn socket(&self) -> Option<&Path>;
    /// Kills the node as a crash would.
    fn kill(&mut self) -> io::Result<()>;
    /// Starts it again.
    fn start_again(&mut self) -> io::Result<()>;
    /// No node: programs share a plain directory, so that handles follow every change.
    fn is_plain(&self) -> bool {
        false
    }
    /// Whether what is open to append can be mapped.
    fn maps_appends(&self) -> bool {
        true
    }
    /// What the node logged.
    fn log(&self) -> String {
        String::new()
    }
    /// Misbehaviour that its actors are started with.
    fn defect(&self) -> Option<Defect> {
        None
    }
}

/// A directory that plays both mount and PFS.
#[derive(Debug)]
pub struct PlainDirectory {
    directory: tempfile::TempDir,
    defect: Option<Defect>,
}

impl PlainDirectory {
    /// A directory of its own, with a defect or without.
    pub fn create(defect: Option<Defect>) -> io::Result<Self> {
        Ok(PlainDirectory { directory: tempfile::tempdir()?, defect })
    }
}

impl Subject for PlainDirectory {
    fn mount(&self) -> &Path {
        self.directory.path()
    }

    fn pfs(&self) -> &Path {
        self.directory.path()
    }

    fn socket(&self) -> Option<&Path> {
        None
    }

    fn kill(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn start_again(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn defect(&self) -> Option<Defect> {
        self.defect
    }
}

/// How to start a node.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Capacity, as the command line takes it.
    pub memory: String,
    /// Text of the configuration file.
    pub configuration: String,
    /// Further arguments of `node start`.
    pub arguments: Vec<String>,
    /// The PFS directory; `None` makes one.
    pub pfs: Option<PathBuf>,
    /// Whether it has a mount, which needs root.
    pub is_mounted: bool,
}

impl Default for NodeSpec {
    fn default() -> Self {
        NodeSpec {
            memory: "64MiB".into(),
            configuration: String::new(),
            arguments: Vec::new(),
            pfs: None,
            is_mounted: true,
        }
    }
}

/// A real node with a mount. Everything it leaves is removed when it drops.
#[derive(Debug)]
pub struct Node {
    directory: tempfile::TempDir,
    binary: PathBuf,
    spec: NodeSpec,
    pfs: PathBuf,
    mount: PathBuf,
    socket: PathBuf,
}

/// How long a command may take before it counts as hanging.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// How long a node may take to come to rest, on a machine whose disk is busy with other work.
const REST_LIMIT: Duration = Duration::from_secs(60);

/// Whether every byte that was asked for is accounted for. Reads that go on count in two steps.
pub fn adds_up(status: &Status) -> bool {
    status.asked_bytes == status.served.total() + status.failed_bytes
}

impl Node {
    /// Starts a node in a directory of its own.
    pub fn start(spec: NodeSpec) -> io::Result<Node> {
        let node = Node::prepare(spec)?;
        let output = node.try_start()?;
        if output.status.success() {
            return Ok(node);
        }
        Err(io::Error::other(format!("node start: {}", said(&output))))
    }

    /// Makes the directories of a node without starting it.
    pub fn prepare(spec: NodeSpec) -> io::Result<Node> {
        let directory = tempfile::Builder::new().prefix("tidepool-test-").tempdir()?;
        machine::open_to_all(directory.path())?;
        let at = |name: &str| directory.path().join(name);
        let (mount, socket) = (at("mount"), at("node.sock"));
        let pfs = spec.pfs.clone().unwrap_or_else(|| at("pfs"));
        std::fs::create_dir_all(&pfs)?;
        std::fs::create_dir_all(&mount)?;
        std::fs::write(at("node.toml"), &spec.configuration)?;
        Ok(Node { binary: machine::binary(), spec, pfs, mount, socket, directory })
    }

    /// The command that starts it.
    pub fn start_command(&self) -> Command {
        let mut start = program(&self.binary);
        start.args(["node", "start", "--pfs"]).arg(&self.pfs);
        start.args(["--memory", &self.spec.memory]);
        if self.spec.is_mounted {
            start.arg("--mount").arg(&self.mount);
        }
        start.arg("--socket").arg(&self.socket);
        start.arg("--config").arg(self.directory.path().join("node.toml"));
        // A machine that is short of memory must not change what a test sees.
        start.env("TIDEPOOL_CONTROL", "off");
        start.args(&self.spec.arguments);
        start
    }

    /// Starts it, and returns what the command said.
    pub fn try_start(&self) -> io::Result<Output> {
        run_within(&mut self.start_command(), COMMAND_LIMIT)
    }

    /// A command to this node, not started.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = program(&self.binary);
        command.args(arguments).arg("--socket").arg(&self.socket);
        command
    }

    /// Runs a command against this node, whatever comes of it.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> io::Result<Output> {
        run_within(&mut self.command(arguments), COMMAND_LIMIT)
    }

    /// Runs a command that must succeed; returns what it printed.
    pub fn ask<S: AsRef<OsStr>>(&self, arguments: &[S]) -> io::Result<String> {
        let output = self.run(arguments)?;
        if !output.status.success() {
            return Err(io::Error::other(said(&output)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Facts and counters.
    pub fn status(&self) -> io::Result<Status> {
        let text = self.ask(&["status", "--json"])?;
        serde_json::from_str(&text).map_err(|error| io::Error::other(format!("{error}: {text}")))
    }

    /// The status as soon as `wanted` holds of it, or the last one after `REST_LIMIT`: what a
    /// program had of the node is given up a moment after the program's own call or its end.
    pub fn status_when(&self, wanted: impl Fn(&Status) -> bool) -> io::Result<Status> {
        let deadline = Instant::now() + REST_LIMIT;
        loop {
            let status = self.status()?;
            if wanted(&status) || Instant::now() > deadline {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The directory of this node, where its socket, log and configuration are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The program under test.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Directory that programs use.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Directory of the PFS.
    pub fn pfs(&self) -> &Path {
        &self.pfs
    }

    /// Socket of the node.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether it answers.
    pub fn is_alive(&self) -> bool {
        self.status().is_ok()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        let mut path = self.socket.as_os_str().to_owned();
        path.push(".log");
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// The process that serves the socket, by the credentials of a connection: also where it does
    /// not answer requests.
    pub fn process_id(&self) -> io::Result<u32> {
        let stream = std::os::unix::net::UnixStream::connect(&self.socket)?;
        let credentials = rustix::net::sockopt::socket_peercred(&stream)?;
        Ok(credentials.pid.as_raw_nonzero().get() as u32)
    }

    /// Kills the node as a crash would, and waits until it is gone.
    pub fn kill(&self) -> io::Result<()> {
        let process_id = self.process_id()?;
        signal(process_id, libc::SIGKILL);
        let path = PathBuf::from(format!("/proc/{process_id}/stat"));
        let deadline = Instant::now() + COMMAND_LIMIT;
        while std::fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z ")) {
            if Instant::now() > deadline {
                return Err(io::Error::other("the node survives SIGKILL"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Stops it in order.
    pub fn stop(&self) -> io::Result<()> {
        self.ask(&["node", "stop"]).map(drop)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.stop().is_err() && self.process_id().is_ok() {
            let _ = self.kill();
        }
        if std::thread::panicking() {
            eprintln!("log of the node:\n{}", end_of_log(&Node::log(self)));
        }
        unmount(&self.mount);
    }
}

impl Subject for Node {
    fn mount(&self) -> &Path {
        &self.mount
    }

    fn pfs(&self) -> &Path {
        &self.pfs
    }

    fn socket(&self) -> Option<&Path> {
        Some(&self.socket)
    }

    fn kill(&mut self) -> io::Result<()> {
        Node::kill(self)
    }

    fn maps_appends(&self) -> bool {
        !self.spec.arguments.windows(2).any(|pair| pair == ["--direct-io", "off"])
    }

    fn log(&self) -> String {
        Node::log(self)
    }

    fn start_again(&mut self) -> io::Result<()> {
        let output = self.try_start()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("node start after a kill: {}", said(&output)))),
        }
    }
}

/// The end of a log, without those lines of backtraces that are not of the product.
pub fn end_of_log(text: &str) -> String {
    let foreign = |line: &&str| line.starts_with(' ') && !line.contains(" crates/");
    let lines: Vec<&str> = text.lines().filter(|line| !foreign(line)).collect();
    tail(&lines.join("\n"), 4000).to_owned()
}

fn tail(text: &str, bytes: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// The program under test, without those variables of the environment that are for the tests.
pub fn program(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TIDEPOOL_") {
            command.env_remove(name);
        }
    }
    command
}

/// How a command ended and what it said.
pub fn said(output: &Output) -> String {
    format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Sends a signal; a process that is gone already is fine.
pub fn signal(process_id: u32, signal: i32) {
    if process_id > 1 {
        // SAFETY: kill(2) takes two numbers and touches no memory of ours.
        unsafe { libc::kill(process_id as libc::pid_t, signal) };
    }
}

/// Whether something is mounted at `path`. Asks the mount table, so it cannot hang.
pub fn is_mounted(path: &Path) -> bool {
    MountTable::read().unwrap_or_default().at(path).is_some()
}

/// Unmounts whatever is mounted at `path`, also if it is dead or busy.
pub fn unmount(path: &Path) {
    while is_mounted(path) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        if rustix::mount::unmount(path, flags).is_err() {
            return;
        }
    }
}

/// Runs to the end with both outputs kept; kills the program after `limit` and says so.
pub fn run_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    // Files, not pipes: a daemon that is started inherits them, and a pipe would not end.
    let mut streams = [tempfile::tempfile()?, tempfile::tempfile()?];
    let [stdout, stderr] = &streams;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .spawn()?;
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("{command:?} still ran after {limit:?}")));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let mut texts = streams.iter_mut().map(|file| -> io::Result<Vec<u8>> {
        use std::io::Seek;
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let mut next = || texts.next().unwrap_or_else(|| Ok(Vec::new()));
    Ok(Output { status, stdout: next()?, stderr: next()? })
}
