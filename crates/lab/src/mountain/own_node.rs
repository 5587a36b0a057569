//! A node of one's own for a measurement: started from the `tidepool` beside this program, and
//! ended with the measurement, also when that is killed. Leaves nothing behind in the PFS
//! directory.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tidepool_proto::{Error, ErrorKind, Result};

use tidepool_cli::connection::{Connection, SocketArgument};

/// How long a node may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long it may take to end after it was asked to.
const STOP_LIMIT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Room for what a node writes beside its socket.
const PLACE_BYTES_MIN: u64 = 1 << 20;

/// A directory that goes away with its value, whatever is in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new directory below `parent`.
    pub fn below(parent: &Path) -> Result<Self> {
        let name = format!(".tidepool-measurement-{}", std::process::id());
        for attempt in 0..100 {
            let path = parent.join(format!("{name}-{attempt}"));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Scratch(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    let operation = format!("making a directory in {}", parent.display());
                    return Err(Error::pfs(operation, source));
                }
            }
        }
        let detail = format!("100 directories {name}-* exist in {}", parent.display());
        Err(Error::new(ErrorKind::InUse, "making a directory", detail).remedy("remove them"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tidepool_terminal::output::note(&format!("left behind: {}: {error}", self.0.display()));
        }
    }
}

/// A running node. It ends when this drops.
#[derive(Debug)]
pub struct OwnNode {
    child: Child,
    socket: SocketArgument,
    mount: Option<PathBuf>,
    _scratch: Scratch,
}

/// Refuses a directory for temporary files that has no room for socket, lock and log of a node.
fn check_place(operation: &str, place: &Path) -> Result<()> {
    let remedy = "make room there, or name another directory by TMPDIR";
    let failed = |source: std::io::Error| {
        Error::pfs(format!("{operation} in {}", place.display()), source).remedy(remedy)
    };
    let facts = rustix::fs::statvfs(place).map_err(|error| failed(error.into()))?;
    if facts.f_bavail.saturating_mul(facts.f_frsize) < PLACE_BYTES_MIN {
        return Err(failed(rustix::io::Errno::NOSPC.into()));
    }
    Ok(())
}

/// The `tidepool` that was installed with this program, or the one in PATH.
fn program() -> std::io::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("tidepool");
    Ok(if beside.is_file() { beside } else { PathBuf::from("tidepool") })
}

impl OwnNode {
    /// Starts a node over `pfs` with a store of `capacity_bytes`; `options` are further arguments
    /// of `node start`. With `mounted`, it is mounted in a directory of its own.
    pub fn start(
        pfs: &Path,
        capacity_bytes: u64,
        mounted: bool,
        options: &[String],
    ) -> Result<OwnNode> {
        let operation = "starting a node to measure with";
        let place = std::env::temp_dir();
        check_place(operation, &place)?;
        let scratch = Scratch::below(&place)?;
        let failed = |source| Error::pfs(operation, source);
        let socket = scratch.path().join("node.sock");
        let log = scratch.path().join("node.log");
        let program = program().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["node", "start", "--foreground", "--pfs"]).arg(pfs);
        command.arg("--memory").arg(capacity_bytes.to_string());
        // What is measured shall not change its size meanwhile.
        command.args(["--control", "off"]);
        command.arg("--socket").arg(&socket).arg("--log-file").arg(&log).args(options);
        let mount = mounted.then(|| scratch.path().join("mount"));
        if let Some(mount) = &mount {
            std::fs::create_dir(mount).map_err(failed)?;
            command.arg("--mount").arg(mount);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C in the terminal is for the measurement, which then ends the node in order.
        command.process_group(0);
        // SAFETY: the closure runs between fork and exec and makes one system call; it touches no
        // memory that other threads may have locked.
        unsafe {
            command.pre_exec(|| {
                let end = Some(Signal::TERM);
                rustix::process::set_parent_process_death_signal(end).map_err(Into::into)
            });
        }
        let child = command.spawn().map_err(failed)?;
        let socket = SocketArgument { socket: Some(socket) };
        let mut node = OwnNode { child, socket, mount, _scratch: scratch };
        node.wait_until_it_answers(operation)?;
        Ok(node)
    }

    fn wait_until_it_answers(&mut self, operation: &str) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < START_LIMIT {
            let ended = self.child.try_wait().map_err(|source| Error::pfs(operation, source))?;
            if let Some(status) = ended {
                let mut text = String::new();
                if let Some(mut stderr) = self.child.stderr.take() {
                    // What it said is only an addition to the message.
                    let _ = std::io::Read::read_to_string(&mut stderr, &mut text);
                }
                let detail = format!("it ended with {status}: {}", text.trim());
                return Err(Error::new(ErrorKind::Unsupported, operation, detail)
                    .remedy("`tidepool doctor` says what is missing"));
            }
            if self.connect().status().is_ok() {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let detail = format!("it did not answer within {} s", START_LIMIT.as_secs());
        Err(Error::new(ErrorKind::TimedOut, operation, detail))
    }

    /// A connection to it.
    pub fn connect(&self) -> Connection {
        self.socket.connect()
    }

    /// Where it is mounted.
    pub fn mount(&self) -> Option<&Path> {
        self.mount.as_deref()
    }
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        let Some(id) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) else {
            return;
        };
        // A node that is gone already needs no signal.
        let _ = rustix::process::kill_process(id, Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < STOP_LIMIT {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
