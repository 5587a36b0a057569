//! Looks for mounts of nodes that died or hang. Never waits for one longer than a moment.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use tidepool_pfs::contract::Outcome as Found;

use super::Findings;

/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Errno of a FUSE mount whose daemon is gone.
const ENOTCONN: i32 = 107;

/// File system type of a node's mount.
const FILE_SYSTEM_TYPE: &str = "fuse.tidepool";

/// Looks at the mount of every node on this machine.
pub fn run(findings: &mut Findings) {
    findings.check("stale-mounts", || {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = mounts_of_nodes(&mountinfo);
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

/// Mount points of nodes.
fn mounts_of_nodes(mountinfo: &str) -> Vec<PathBuf> {
    let point = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let ours = after.split(' ').next()? == FILE_SYSTEM_TYPE;
        let point = before.split(' ').nth(4)?;
        ours.then(|| PathBuf::from(unescaped(point)))
    };
    mountinfo.lines().filter_map(point).collect()
}

/// Undoes the octal escapes of blanks in `/proc` tables.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
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
    fn mounts_of_nodes_are_found_and_others_left_alone() {
        let table = "60 27 0:50 / /mnt/a\\040b rw - fuse.tidepool tidepool rw\n\
                     61 27 0:51 / /proc rw - proc proc rw\n\
                     62 27 0:52 / /mnt/c rw - fuse.sshfs host:/ rw\n";
        assert_eq!(mounts_of_nodes(table), [PathBuf::from("/mnt/a b")]);
    }

    #[test]
    fn a_directory_that_answers_is_no_trouble() {
        assert_eq!(trouble(Path::new("/")), None);
    }
}
