//! The controller as a process: the only one of its node, stopped, killed, and locked in memory.
//! The processes are this test program again, running one of the `child_` tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidepool_control::sensor::{Roots, Sensors};
use tidepool_control::{Governor, NodeLock, Priority, lock_holder, prepare_process, start};
use tidepool_control_policy::Parameters;
use tidepool_proto::ErrorKind;

use crate::fakes::{FakeStore, GIB, wait_until};

/// Names the lock to a child; a `child_` test without it does nothing.
const LOCK: &str = "TIDEPOOL_TEST_LOCK";

/// A child process; killed when dropped.
struct Controller {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Controller {
    fn start(lock: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child_controls", "--nocapture", "--include-ignored"])
            .env(LOCK, lock)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut controller = Controller { child, lines };
        controller.line("controls");
        controller
    }

    /// The next line that begins with `word`.
    fn line(&mut self, word: &str) -> String {
        let found = self.lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(word));
        found.unwrap_or_else(|| panic!("the child ended without `{word}`"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Controls a store that does not exist on the real node until it is killed.
#[test]
#[ignore = "a part of other tests: a process of theirs"]
fn child_controls() {
    let Some(lock) = std::env::var_os(LOCK).map(PathBuf::from) else { return };
    let _lock = NodeLock::take(&lock, Path::new("/run/node.sock")).unwrap();
    let refused = prepare_process();
    let sensors = Box::new(Sensors::open(Roots::default()).unwrap());
    let store = FakeStore::full("store", GIB);
    let governor = Governor::new(sensors, vec![store], Parameters::default(), None).unwrap();
    let handle = start(governor, Priority::Raised).unwrap();
    wait_until("decisions", || handle.report().ticks > 50);
    // From the next line on this process may be stopped.
    let mut told = handle.report().late_ticks;
    println!("controls");
    println!("refused {}", [refused, handle.report().notes].concat().join("; "));
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let report = handle.report();
        if report.late_ticks > told {
            told = report.late_ticks;
            println!("late {told} {}", report.stores[0].late_commands);
        }
    }
}

fn lock_path(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("controller.lock")
}

#[test]
fn a_second_controller_is_refused_and_told_of_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let path = lock_path(&directory);
    assert_eq!(lock_holder(&path), None);
    let first = NodeLock::take(&path, Path::new("/run/first.sock")).unwrap();
    let error = NodeLock::take(&path, Path::new("/run/second.sock")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    let text = error.to_string();
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert!(text.contains("/run/first.sock"), "{text}");
    let holder = lock_holder(&path).unwrap();
    assert_eq!(
        (holder.process_id, holder.socket.to_str()),
        (std::process::id(), Some("/run/first.sock"))
    );
    drop(first);
    assert_eq!(lock_holder(&path), None, "a text without a lock holds nothing");
    NodeLock::take(&path, Path::new("/run/second.sock")).unwrap();
}

#[test]
fn a_lock_that_is_no_file_of_ours_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = lock_path(&directory);
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    let error = NodeLock::take(&path, Path::new("/run/node.sock")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let missing = directory.path().join("missing/lock");
    assert!(NodeLock::take(&missing, Path::new("/run/node.sock")).is_err());
}

#[test]
fn a_killed_controller_leaves_the_node_to_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let path = lock_path(&directory);
    for _ in 0..2 {
        let controller = Controller::start(&path);
        let holder = lock_holder(&path).unwrap();
        assert_eq!(holder.process_id, controller.child.id());
        let error = NodeLock::take(&path, Path::new("/run/other.sock")).unwrap_err();
        assert!(error.to_string().contains(&holder.process_id.to_string()), "{error}");
        controller.signal(Signal::KILL);
        drop(controller);
    }
    NodeLock::take(&path, Path::new("/run/other.sock")).unwrap();
}

#[test]
fn a_stopped_controller_goes_on_and_says_that_it_was_late() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = Controller::start(&lock_path(&directory));
    // Again and again: at its first look, however late that is, it knows of none before.
    let process = Pid::from_child(&controller.child);
    let is_said = AtomicBool::new(false);
    let line = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                if is_said.load(Ordering::Acquire) {
                    return;
                }
                let _ = kill_process(process, Signal::STOP);
                std::thread::sleep(Duration::from_millis(600));
                let _ = kill_process(process, Signal::CONT);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let line = controller.line("late");
        is_said.store(true, Ordering::Release);
        line
    });
    assert!(line.ends_with(" 0"), "no store was late: {line}");
}

#[test]
fn the_process_stays_small_and_says_what_was_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = Controller::start(&lock_path(&directory));
    let refused = controller.line("refused");
    let status = format!("/proc/{}/status", controller.child.id());
    let status = std::fs::read_to_string(status).unwrap();
    let kibibytes = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    };
    let resident = kibibytes("VmRSS:");
    assert!(resident < 20 << 10, "{resident} KiB");
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", controller.child.id()));
    // Each step either worked or is named.
    assert_ne!(kibibytes("VmLck:") > 0, refused.contains("pages are not locked"), "{refused}");
    assert_ne!(score.unwrap().trim() == "-1000", refused.contains("out-of-memory"), "{refused}");
}
