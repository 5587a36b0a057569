//! Takes a socket path for this node alone: a lock file beside it, stale sockets removed, nodes
//! that are alive named. Removes nothing that is not a socket.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use tidepool_proto::wire::socket::{connect_at_once, peer};
use tidepool_proto::{Error, ErrorKind, Result};

/// Longest path of a Unix socket in bytes (`sun_path` less the final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A socket that this process holds until the value drops.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: UnixListener,
    path: PathBuf,
    lock_path: PathBuf,
    inode: Option<(u64, u64)>,
    _lock: File,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only our own socket: somebody may have removed it and started another node by hand.
        let present = fs::symlink_metadata(&self.path).ok().map(|found| (found.dev(), found.ino()));
        if present.is_some() && present == self.inode {
            let _ = fs::remove_file(&self.path);
        }
        // Still locked while it goes, and takers check that they locked the file of that name.
        let _ = fs::remove_file(&self.lock_path);
    }
}

fn failed(path: &Path, what: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidInput,
    };
    Error::new(kind, operation(path), what)
        .remedy("choose another --socket, or create its directory")
        .caused_by(error)
}

fn operation(path: &Path) -> String {
    format!("taking the socket {}", path.display())
}

fn in_use(path: &Path, process_id: Option<u32>) -> Error {
    let detail = match process_id {
        Some(id) => format!("a node with process id {id} serves there"),
        None => "another node serves there".to_owned(),
    };
    Error::new(ErrorKind::InUse, operation(path), detail).remedy(format!(
        "stop it (`tidepool node stop --socket {}`) or choose another --socket",
        path.display()
    ))
}

/// Takes the socket at `path`.
pub(super) fn listen(path: &Path) -> Result<Listener> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        let detail =
            format!("the path has {length} bytes, and sockets allow {SOCKET_PATH_BYTES_MAX}");
        return Err(Error::new(ErrorKind::InvalidInput, operation(path), detail)
            .remedy("choose a shorter --socket, for instance below /run"));
    }
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let lock = take_lock(path, &lock_path)?;
    // While it is ours, nothing of it may stay behind when the socket cannot be had.
    let bound = bind(path).inspect_err(|_| {
        let _ = fs::remove_file(&lock_path);
    });
    let socket = bound?;
    let inode = fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()));
    Ok(Listener { socket, path: path.to_owned(), lock_path, inode, _lock: lock })
}

fn bind(path: &Path) -> Result<UnixListener> {
    clear_stale(path)?;
    let socket = UnixListener::bind(path).map_err(|error| failed(path, "cannot bind", error))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
        .map_err(|error| failed(path, "cannot open it to all users", error))?;
    Ok(socket)
}

/// How long a node that was killed may take to go.
const ENDING_MAX: Duration = Duration::from_secs(10);
/// Pause before it is looked at again.
const ENDING_PAUSE: Duration = Duration::from_millis(10);

fn take_lock(path: &Path, lock_path: &Path) -> Result<File> {
    let begun = Instant::now();
    let mut looks_left = 2;
    loop {
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(lock_path)
            .map_err(|error| failed(path, "cannot open its lock file", error))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = (&mut lock).take(32).read_to_string(&mut text);
                let recorded = text.trim().parse().ok();
                let holder = peer_of(path).unwrap_or(recorded);
                let going = match holder.map(state_of) {
                    Some(Process::Ending) => begun.elapsed() < ENDING_MAX,
                    // It went between the lock and the look.
                    Some(Process::Gone) if looks_left > 0 => {
                        looks_left -= 1;
                        true
                    }
                    _ => false,
                };
                if !going {
                    return Err(in_use(path, holder));
                }
                std::thread::sleep(ENDING_PAUSE);
                continue;
            }
            Err(error) => return Err(failed(path, "cannot lock", error.into())),
        }
        // The holder before us may have removed the file between our open and our lock.
        let locked = lock.metadata().map(|found| (found.dev(), found.ino()));
        let named = fs::symlink_metadata(lock_path).map(|found| (found.dev(), found.ino()));
        if let (Ok(locked), Ok(named)) = (locked, named)
            && locked == named
        {
            lock.set_len(0)
                .and_then(|()| writeln!(lock, "{}", std::process::id()))
                .map_err(|error| failed(path, "cannot write its lock file", error))?;
            return Ok(lock);
        }
    }
}

/// What becomes of a process.
#[derive(Debug, PartialEq, Eq)]
enum Process {
    Lives,
    /// It was killed, and gives back what it has.
    Ending,
    Gone,
}

fn state_of(process_id: u32) -> Process {
    let read = |name: &str| fs::read_to_string(format!("/proc/{process_id}/{name}"));
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else { return Process::Gone };
    if is_ending(&stat, &status) { Process::Ending } else { Process::Lives }
}

/// By the files `stat` and `status` of a process: it is exiting, or the signal to kill it waits.
fn is_ending(stat: &str, status: &str) -> bool {
    const EXITING: u64 = 0x4; // PF_EXITING of the kernel, in the ninth field.
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = after_name.split_whitespace();
    let is_dead = fields.next().is_some_and(|state| matches!(state, "Z" | "X"));
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    let waits = |field: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & KILL != 0)
    };
    is_dead || flags & EXITING != 0 || waits("SigPnd:") || waits("ShdPnd:")
}

/// `None`: nobody serves there. `Some(None)`: somebody whose process id is hidden.
fn peer_of(path: &Path) -> Option<Option<u32>> {
    let stream = connect_at_once(path).ok()?;
    Some(peer(stream.as_fd()).ok().and_then(|peer| peer.process_id))
}

fn clear_stale(path: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(path, "cannot look at it", error)),
    };
    if !found.file_type().is_socket() {
        return Err(Error::new(ErrorKind::InUse, operation(path), "it exists and is no socket")
            .remedy("choose another --socket, or move the file away"));
    }
    match connect_at_once(path) {
        Ok(stream) => Err(in_use(path, peer(stream.as_fd()).ok().and_then(|peer| peer.process_id))),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "removing the socket of a node that ended");
            fs::remove_file(path).map_err(|error| failed(path, "cannot remove it", error))
        }
        // A full backlog answers `try again`: somebody is alive there.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(in_use(path, None)),
        Err(error) => Err(failed(path, "cannot tell who serves there", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lock of `path`, held here in the name of a process.
    fn held(path: &Path, process_id: u32) -> File {
        let lock_path = format!("{}.lock", path.display());
        fs::write(&lock_path, format!("{process_id}\n")).unwrap();
        let lock = File::open(lock_path).unwrap();
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        lock
    }

    #[test]
    fn a_node_that_was_killed_is_waited_for_and_one_that_lives_is_not() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("node.sock");
        let lock = held(&path, std::process::id());
        assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::InUse);
        drop(lock);
        let mut killed = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        killed.kill().unwrap();
        // Not waited for yet, so it stays among the processes; its lock takes a moment longer.
        while state_of(killed.id()) == Process::Lives {
            std::thread::yield_now();
        }
        let lock = held(&path, killed.id());
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(lock);
        });
        listen(&path).unwrap();
        release.join().unwrap();
        killed.wait().unwrap();
        assert_eq!(state_of(killed.id()), Process::Gone);
    }

    #[test]
    fn a_process_that_is_to_end_is_known_by_its_state_its_flags_or_the_signal() {
        let stat = |state, flags| format!("7 (a (b) c) {state} 1 7 7 0 -1 {flags} 10 0");
        let signals = |own, shared| format!("Name:\ta\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
        let none = signals("0000000000000000", "0000000000000002");
        assert!(!is_ending(&stat("S", 4_194_304), &none));
        assert!(is_ending(&stat("Z", 4_194_304), &none));
        assert!(is_ending(&stat("D", 4_194_308), &none));
        let killed = signals("0000000000000100", "0000000000000000");
        assert!(is_ending(&stat("R", 4_194_304), &killed));
        assert!(is_ending(&stat("R", 4_194_304), &signals("0", "0000000000000100")));
    }
}
