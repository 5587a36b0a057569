//! Looks for mounts of nodes that died or hang. Never waits for one longer than a moment.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use tidepool_pfs::contract::Outcome as Found;
use tidepool_proto::mounts::{Mount, MountTable};

use super::Findings;

/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Errno of a FUSE mount whose daemon is gone.
const ENOTCONN: i32 = 107;

/// Looks at the mount of every node on this machine.
pub fn run(findings: &mut Findings) {
    findings.check("stale-mounts", || {
        let table = MountTable::read().unwrap_or_default();
        let points: Vec<PathBuf> =
            table.mounts().filter(Mount::is_of_a_node).map(|mount| mount.point()).collect();
        let bad: Vec<String> = points.iter().filter_map(|point| trouble(point)).collect();
        if bad.is_empty() {
            return (
                Found::Ok,
                format!("{} mounts of nodes, all answer", points.len()),
                String::new(),
            );
        }
        let cure = "start the node there again, which recovers its mount, or umount -l it";
        // Not necessarily the node that is asked about, whose own mount is read later on.
        (Found::Degraded, bad.join("; "), cure.to_owned())
    });
}

/// What is wrong with a mount, if anything.
fn trouble(point: &Path) -> Option<String> {
    let (sender, receiver) = channel();
    let path = point.to_owned();
    // A hung mount keeps this thread; the program ends all the same.
    std::thread::spawn(move || {
        let answer = std::fs::metadata(&path).map(drop);
        let _ = sender.send(answer);
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(Err(error)) if error.raw_os_error() == Some(ENOTCONN) => {
            Some(format!("the daemon of {} is dead", point.display()))
        }
        Ok(_) => None,
        Err(_) => Some(format!("{} does not answer", point.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_answers_is_no_trouble() {
        assert_eq!(trouble(Path::new("/")), None);
    }
}
