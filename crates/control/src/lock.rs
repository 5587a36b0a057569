//! The lock of the controller: one controller a node. The kernel releases it when its holder dies,
//! in whatever way; its file names the holder, for the messages of a second controller. A lock of
//! another process is never removed.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

/// Longest text of a lock file; more is not ours.
const TEXT_MAX_BYTES: u64 = 4096;

/// The controller of the memory of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process.
    pub process_id: u32,
    /// When it took over, in seconds since 1970.
    pub since_unix_s: u64,
    /// Socket of the node whose store it controls.
    pub socket: PathBuf,
}

/// The right to control this node's memory; given up when it is dropped or its process dies.
#[derive(Debug)]
pub struct NodeLock {
    _file: File,
}

impl NodeLock {
    /// Takes the lock at `path` for the controller of the node at `socket`.
    ///
    /// # Errors
    ///
    /// `InUse` naming the holder where there is one; `PermissionDenied` where the file cannot be
    /// opened or written.
    pub fn take(path: &Path, socket: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            let operation = format!("locking {}", path.display());
            Error::new(ErrorKind::PermissionDenied, operation, "no lock file")
                .caused_by(error)
                .remedy("use a directory that this user may write, and a file of its own")
        };
        let mut file = open(path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(path, holder(&mut file))),
            Err(error) => return Err(failed(error.into())),
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let holder = Holder {
            process_id: std::process::id(),
            since_unix_s: since,
            socket: socket.to_owned(),
        };
        write(&mut file, &holder).map_err(failed)?;
        Ok(NodeLock { _file: file })
    }
}

/// The holder of the lock at `path`, if there is one.
pub fn lock_holder(path: &Path) -> Option<Holder> {
    let mut file = File::open(path).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => holder(&mut file),
        _ => None,
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

/// The file stays when the lock goes, so that nobody locks a file that another just removed.
fn write(file: &mut File, holder: &Holder) -> std::io::Result<()> {
    let text = serde_json::to_string(holder)?;
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{text}")
}

fn holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.take(TEXT_MAX_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn in_use(path: &Path, holder: Option<Holder>) -> Error {
    let operation = "starting the memory controller";
    let detail = match &holder {
        Some(holder) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            let age_s = now.saturating_sub(holder.since_unix_s);
            format!(
                "process {} controls this node's memory for {age_s} s, for the node at {}",
                holder.process_id,
                holder.socket.display()
            )
        }
        None => format!("another process holds {}", path.display()),
    };
    let remedy = match &holder {
        Some(holder) => format!("stop process {} first; one controller a node", holder.process_id),
        None => "stop the other controller first; one controller a node".to_owned(),
    };
    Error::new(ErrorKind::InUse, operation, detail).remedy(remedy)
}
