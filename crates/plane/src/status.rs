//! The status of an agent: it answers on a socket beside that of its node, and `tidepool plane
//! status` asks there. It is made when somebody asks, so it costs nothing else.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use tidepool_cli::facts::Facts;
use tidepool_proto::plane::{
    AgentStatus, FollowedCeiling, StoreAboveCeiling, StoreCeiling, Trouble,
};
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output::{self, Colour, coloured, count, duration, size};

use crate::shared::Shared;

/// Time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Answers between two samples at most.
const ANSWERS_MAX: usize = 8;
/// Of the lock, which stays: nobody else may hold it.
const LOCK_MODE: u32 = 0o600;
/// Every user may ask; what is said is no secret.
const MODE: u32 = 0o666;

/// Where the agent of the node at `socket` answers: beside the socket itself, whatever link leads
/// to it.
fn beside(socket: &Path) -> PathBuf {
    let real = socket.canonicalize().unwrap_or_else(|_| {
        let directory = socket.parent().and_then(|parent| parent.canonicalize().ok());
        directory
            .map_or_else(|| socket.to_owned(), |it| it.join(socket.file_name().unwrap_or_default()))
    });
    let mut name = real.file_name().unwrap_or_default().to_owned();
    name.push(".plane");
    real.with_file_name(name)
}

/// The socket of an agent.
pub struct StatusSocket {
    path: PathBuf,
    bound: Bound,
}

/// A socket that is listened at.
struct Bound {
    listener: UnixListener,
    inode: u64,
    /// Two agents that start in one moment must not take the socket from each other.
    _lock: File,
}

impl StatusSocket {
    /// The socket of the agent of the node at `socket`.
    ///
    /// # Errors
    /// `InUse` where another agent runs there.
    pub fn bind(socket: &Path) -> Result<StatusSocket> {
        let path = beside(socket);
        let bound = listen(&path)?;
        Ok(StatusSocket { path, bound })
    }

    /// Listens again where its directory was made anew, as with another start of the node.
    pub fn keep(&mut self) {
        if inode(&self.path) == Some(self.bound.inode) {
            return;
        }
        // Another agent may be there by now: then that one answers.
        if let Ok(bound) = listen(&self.path) {
            self.bound = bound;
        }
    }

    /// Answers who asks within `timeout`, and returns after that.
    pub fn serve(&self, timeout: Duration, shared: &Shared) {
        let until = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut asked = [PollFd::new(&self.bound.listener, PollFlags::IN)];
        // A signal ends the wait; whoever called looks what it was.
        if !poll(&mut asked, Some(&until)).is_ok_and(|asked| asked > 0) {
            return;
        }
        for _ in 0..ANSWERS_MAX {
            match self.bound.listener.accept() {
                Ok((stream, _)) => answer(stream, shared),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // As without a descriptor to spare: whoever asks is still there at once.
                Err(_) => return std::thread::sleep(timeout),
            }
        }
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        if inode(&self.path) == Some(self.bound.inode) {
            _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|facts| facts.ino())
}

fn listen(path: &Path) -> Result<Bound> {
    let operation = || format!("listening at {}", path.display());
    let failed = |error| Error::pfs(operation(), error);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(LOCK_MODE)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path.with_extension("plane.lock"))
        .map_err(failed)?;
    if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK {
            return Err(failed(error.into()));
        }
        let detail = "another agent of this node answers there";
        return Err(Error::new(ErrorKind::InUse, operation(), detail)
            .remedy("stop that one, or leave it be"));
    }
    // Left by an agent that was killed.
    _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(failed)?;
    let permissions = std::fs::Permissions::from_mode(MODE);
    std::fs::set_permissions(path, permissions).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let inode = inode(path).unwrap_or(0);
    Ok(Bound { listener, inode, _lock: lock })
}

/// Answers one. It fits the socket's buffer: who asks and does not read holds nobody up.
fn answer(mut stream: UnixStream, shared: &Shared) {
    let text = serde_json::to_vec(&shared.status()).unwrap_or_default();
    if stream.set_nonblocking(true).is_ok() {
        _ = stream.write_all(&text);
    }
}

/// Runs `plane status`. It is not so where something does not work.
pub fn status(facts: &Facts) -> Result<Outcome> {
    let status = ask(&facts.socket.path())?;
    if facts.json {
        output::json(&status)?;
    } else {
        print(&status);
    }
    let troubles = [&status.node_trouble, &status.samples_trouble, &status.ceilings_trouble];
    let works = troubles.iter().all(|trouble| trouble.is_none());
    Ok(if works { Outcome::Done } else { Outcome::NotSo })
}

fn ask(socket: &Path) -> Result<AgentStatus> {
    let path = beside(socket);
    let operation = || format!("asking the agent at {}", path.display());
    let stream = UnixStream::connect(&path).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::NodeUnavailable,
        };
        Error::new(kind, operation(), "none answers")
            .caused_by(error)
            .remedy("start one: `tidepool plane agent`, or name the socket of its node: --socket")
    })?;
    let failed = |error| Error::pfs(operation(), error);
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
    let mut text = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| {
        Error::new(ErrorKind::Protocol, operation(), error.to_string())
            .remedy("use the same release on both sides")
    })
}

fn print(status: &AgentStatus) {
    let AgentStatus { cluster, node, kafka, process_id, uptime_s, .. } = status;
    let title =
        format!("agent of {node} in {cluster}: process {process_id} for {}", duration(*uptime_s));
    output::line(&coloured(&title, Colour::Strong));
    let samples = &status.samples;
    let mut rows = vec![
        ("kafka", kafka.clone()),
        (
            "samples",
            format!(
                "{} taken, {} sent, {} dropped, {} refused by Kafka",
                samples.taken, samples.sent, samples.dropped, samples.failed
            ),
        ),
        ("messages", messages(status)),
        ("ceilings", ceilings(status)),
    ];
    rows.push(("ceiling", status.followed.as_ref().map_or("none".to_owned(), followed)));
    for line in &status.degraded {
        rows.push(("degraded", coloured(line, Colour::Bad)));
    }
    for above in &status.above_ceiling {
        rows.push(("above it", coloured(&above_ceiling(above), Colour::Warning)));
    }
    let troubles = [
        ("node", &status.node_trouble),
        ("samples", &status.samples_trouble),
        ("ceilings", &status.ceilings_trouble),
    ];
    for (name, trouble) in troubles {
        if let Some(Trouble { since_ms, why }) = trouble {
            let text = format!("{name}: for {}: {why}", duration(since_ms / 1000));
            rows.push(("trouble", coloured(&text, Colour::Bad)));
        }
    }
    output::pairs(&rows);
}

fn messages(status: &AgentStatus) -> String {
    let AgentStatus { interval_ms, batch, batch_in_force, .. } = status;
    let samples = count(*batch_in_force, "sample");
    let mut text = format!("{samples} in each at rest, one taken each {interval_ms} ms");
    if batch_in_force < batch {
        text += &format!("; for {batch}, as asked for, the lease is too short");
    }
    text
}

fn above_ceiling(above: &StoreAboveCeiling) -> String {
    let StoreAboveCeiling { name, .. } = above;
    let [holds, ceiling, stays] =
        [above.resident_bytes, above.ceiling_bytes, above.held_bytes].map(size);
    format!(
        "{name} holds {holds}, ceiling {ceiling}: {stays} did not go; `tidepool control status` \
         says what may be why"
    )
}

fn ceilings(status: &AgentStatus) -> String {
    let ceilings = &status.ceilings;
    let mut text = format!(
        "{} leased, {} of them the same again, {} not taken by the node; {} ran out",
        ceilings.applied,
        ceilings.renewed,
        ceilings.failed,
        count(ceilings.expired, "lease")
    );
    for refused in &ceilings.refused {
        text += &format!("; {} refused: {}", refused.count, refused.reason);
    }
    text
}

fn followed(followed: &FollowedCeiling) -> String {
    let FollowedCeiling { plane, number, stores, left_ms, policy } = followed;
    let of = |store: &StoreCeiling| format!("{} {}", store.name, size(store.ceiling_bytes));
    let bytes = stores.iter().map(of).collect::<Vec<_>>().join(", ");
    format!("{bytes} for {left_ms} ms more, by {policy}, number {number} of the run {plane}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agent_a_node_whatever_link_leads_there_also_in_a_directory_made_anew() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("run");
        std::fs::create_dir(&directory).unwrap();
        let socket = directory.join("node.sock");
        let mut agent = StatusSocket::bind(&socket).unwrap();
        std::fs::write(&socket, "").unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        for path in [&socket, &link] {
            let second = StatusSocket::bind(path).map(drop);
            assert_eq!(second.unwrap_err().kind(), ErrorKind::InUse, "{}", path.display());
        }
        std::fs::remove_dir_all(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
        agent.keep();
        assert!(UnixStream::connect(beside(&socket)).is_ok(), "it answers again");
        std::fs::remove_dir_all(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
        let second = StatusSocket::bind(&socket).unwrap();
        agent.keep();
        drop(agent);
        assert!(UnixStream::connect(beside(&socket)).is_ok(), "the second one goes on");
        drop(second);
        assert!(!beside(&socket).exists());
    }
}
