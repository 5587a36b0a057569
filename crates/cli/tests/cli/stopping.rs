//! Tests of `node stop` and `node drain` that are interrupted: the node is as it was before, or a
//! message says how to restore that.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::node::{Daemon, runs};
use super::{stderr, stdout};

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command that drains, and sends it a signal while the node writes back.
fn signal_while_it_drains(daemon: &Daemon, arguments: &[&str], signal: Signal) -> Output {
    // In memory only, on a PFS that takes a while for it.
    std::fs::write(daemon.path("mnt/result"), vec![7; 24 * MIB]).unwrap();
    let mut command = daemon.command(arguments);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while daemon.json(&["status"])["draining"] == false {
        assert!(begun.elapsed() < PATIENCE, "it does not begin to drain");
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&command), signal).unwrap();
    command.wait_with_output().unwrap()
}

#[test]
fn an_interrupted_stop_or_drain_leaves_a_node_that_takes_opens() {
    let daemon = Daemon::start(&["--write-mode", "memory", "--fault", "write:rate=8MB/s"]);
    if !daemon.mounted {
        return;
    }
    let node = daemon.json(&["status"])["process_id"].as_u64().unwrap();
    for arguments in [&["node", "stop"][..], &["node", "drain", "--json"]] {
        let ended = signal_while_it_drains(&daemon, arguments, Signal::INT);
        assert_eq!(ended.status.code(), Some(130), "{arguments:?}: {}", stderr(&ended));
        let said = stderr(&ended);
        assert!(said.contains("interrupted (it runs on and takes new opens again)"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(runs(node));
        assert_eq!(daemon.json(&["status"])["draining"], false, "{arguments:?}");
        assert_eq!(std::fs::read(daemon.path("mnt/result")).unwrap().len(), 24 * MIB);
        if arguments.contains(&"--json") {
            let told: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
            assert_eq!(told["error"]["kind"], "interrupted", "{}", stdout(&ended));
        }
    }
    assert!(daemon.run(&["node", "drain"]).status.success());
    assert_eq!(daemon.json(&["status"])["draining"], true);
}

/// It can say nothing: the node notices that nobody ends it any more.
#[test]
fn a_killed_stop_leaves_a_node_that_takes_opens() {
    let daemon = Daemon::start(&["--write-mode", "memory", "--fault", "write:rate=8MB/s"]);
    if !daemon.mounted {
        return;
    }
    let node = daemon.json(&["status"])["process_id"].as_u64().unwrap();
    signal_while_it_drains(&daemon, &["node", "stop"], Signal::KILL);
    let begun = Instant::now();
    while daemon.json(&["status"])["draining"] == true {
        assert!(begun.elapsed() < PATIENCE, "it stays drained");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(runs(node));
    assert_eq!(std::fs::read(daemon.path("mnt/result")).unwrap().len(), 24 * MIB);
    assert!(daemon.run(&["node", "stop"]).status.success());
}

#[test]
fn a_stop_that_is_interrupted_while_it_waits_for_programs_changes_nothing() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    let mut user = daemon.user_of_the_mount();
    let mut stop = daemon.command(&["node", "stop", "--wait", "600"]);
    let mut stop = stop.stderr(Stdio::piped()).spawn().unwrap();
    // It names the programs that it waits for.
    let mut said = [0; 7];
    std::io::Read::read_exact(stop.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(&said, b"waiting");
    kill_process(Pid::from_child(&stop), Signal::INT).unwrap();
    let ended = stop.wait_with_output().unwrap();
    user.kill().unwrap();
    user.wait().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("it runs on as before"), "{}", stderr(&ended));
    assert_eq!(daemon.json(&["status"])["draining"], false);
}
