//! Looks for mounts of nodes that died or hang. Never waits for one longer than a moment.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidepool_pfs::contract::Outcome as Found;
use tidepool_proto::mounts::{Mount, MountTable};

use super::Findings;

/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked for an answer.
const LOOK: Duration = Duration::from_millis(5);
/// What is said of a FUSE mount whose daemon is gone.
const NOT_CONNECTED: &str = "Transport endpoint is not connected";

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

/// What is wrong with a mount, if anything. Asked by a process of its own, which is left behind
/// where the mount hangs: a thread in a call that nothing ends would keep this program from ending.
fn trouble(point: &Path) -> Option<String> {
    let mut asking = Command::new("stat");
    asking.arg("--").arg(point).env("LC_ALL", "C");
    asking.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Where there is no such program, nothing is known.
    let mut child = asking.spawn().ok()?;
    let until = Instant::now() + PATIENCE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() >= until {
            return Some(format!("{} does not answer", point.display()));
        }
        std::thread::sleep(LOOK);
    }
    let mut said = String::new();
    child.stderr.take()?.read_to_string(&mut said).ok()?;
    said.contains(NOT_CONNECTED).then(|| format!("the daemon of {} is dead", point.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_answers_is_no_trouble() {
        assert_eq!(trouble(Path::new("/")), None);
    }
}
