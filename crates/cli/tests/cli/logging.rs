//! Tests of the log of a node whose reader is slow.

use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::tidepool;

/// Of a command that needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// The least that a pipe holds.
const PIPE_BYTES: usize = 4096;

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the command succeeded; `None` when it did not end in time.
fn succeeds(command: &mut Command) -> Option<bool> {
    let silent = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Process(silent.spawn().unwrap());
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(status) = process.0.try_wait().unwrap() {
            return Some(status.success());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

#[test]
fn a_log_that_nobody_takes_does_not_stop_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let pfs = directory.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    let mut node = tidepool();
    node.args(["node", "start", "--foreground", "--memory", "16MiB", "--control", "off"]);
    node.arg("--pfs").arg(&pfs).arg("--socket").arg(&socket);
    let mut node = Process(node.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let log = node.0.stderr.take().unwrap();
    rustix::pipe::fcntl_setpipe_size(log.as_fd(), PIPE_BYTES).unwrap();
    let ask =
        |arguments: &[&str]| succeeds(tidepool().args(arguments).arg("--socket").arg(&socket));
    let begun = Instant::now();
    while ask(&["status"]) != Some(true) {
        assert!(begun.elapsed() < PATIENCE, "the node never served");
    }
    for hold_ms in 1..=80 {
        let hold_ms = hold_ms.to_string();
        let done = ask(&["control", "set", "hold-ms", &hold_ms]);
        assert_eq!(done, Some(true), "the node stands still at setting {hold_ms}");
    }
    let full = rustix::io::ioctl_fionread(log.as_fd()).unwrap();
    assert!(full > PIPE_BYTES as u64 / 2, "the log was in the way: {full} bytes");
    assert_eq!(ask(&["status"]), Some(true));
}
