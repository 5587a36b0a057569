//! Commands on whole directories: how much is in, what cannot be pinned, and a load that is
//! interrupted stops in the node, too.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::node::{Daemon, settle};
use super::{stderr, stdout};

const MIB: usize = 1 << 20;
/// Whatever has to happen happens by then, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn pfs_read_bytes(daemon: &Daemon) -> u64 {
    daemon.json(&["status"])["pfs_read_bytes"].as_u64().unwrap()
}

#[test]
fn an_interrupted_load_stops_in_the_node() {
    let daemon = Daemon::start(&["--fault", "read:rate=8MB/s"]);
    let size = 56 * MIB;
    let path = daemon.write("large", size);
    settle();
    let mut load = daemon.command(&["load", &path]);
    let load = load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while pfs_read_bytes(&daemon) == 0 {
        assert!(begun.elapsed() < PATIENCE, "the load does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&load), Signal::INT).unwrap();
    let ended = load.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("of 56MiB; what came in stays cached"), "{}", stderr(&ended));
    assert!(!stderr(&ended).contains("at 56MiB"), "{}", stderr(&ended));
    let (begun, mut before) = (Instant::now(), 0);
    // What is under way comes in; nothing is begun any more.
    loop {
        let now = pfs_read_bytes(&daemon);
        let open_files = daemon.json(&["status"])["open_files"].as_u64().unwrap();
        if now == before && open_files == 0 {
            break;
        }
        before = now;
        assert!(begun.elapsed() < PATIENCE, "the node reads on");
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(before < size as u64, "all {before} bytes were read");
}

#[test]
fn a_directory_says_how_much_of_it_is_cached() {
    let daemon = Daemon::start(&[]);
    daemon.write("set/a", 8 * MIB);
    daemon.write("set/below/b", 8 * MIB);
    daemon.write("set/below/small", 100);
    settle();
    let set = daemon.path("pfs/set");
    let set = set.to_str().unwrap();
    let refused = daemon.run(&["explain", set]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("add -r"), "{}", stderr(&refused));
    let found = &daemon.json(&["explain", "-r", set])[0];
    assert_eq!((&found["files"], &found["resident_bytes"]), (&3.into(), &0.into()));
    let loaded = daemon.run(&["load", &format!("{set}/a")]);
    assert!(stdout(&loaded).starts_with("1 of 1 file resident"), "{}", stdout(&loaded));
    let found = &daemon.json(&["explain", "-r", "tide:///set"])[0];
    assert_eq!(found["resident_files"], 1);
    assert_eq!(found["resident_bytes"], 8 * MIB);
    assert_eq!(found["size_bytes"], 16 * MIB + 100);
    assert_eq!(found["why_not"][0]["absent_bytes"], 8 * MIB + 100);
    let text = stdout(&daemon.run(&["explain", "-r", set]));
    assert!(text.contains("8MiB of 16.00MiB (50.0%)"), "{text}");
}

#[test]
fn small_files_that_cannot_be_pinned_are_counted_in_one_line() {
    let daemon = Daemon::start(&[]);
    daemon.write("set/large", 8 * MIB);
    for number in 0..30 {
        daemon.write(&format!("set/{number}"), 100);
    }
    settle();
    let set = daemon.path("pfs/set");
    let pinned = daemon.run(&["pin", "-r", set.to_str().unwrap()]);
    assert!(pinned.status.success(), "{}", stderr(&pinned));
    assert!(stderr(&pinned).contains("not pinned: 30 small files"), "{}", stderr(&pinned));
    assert_eq!(stderr(&pinned).lines().count(), 1, "{}", stderr(&pinned));
    let found = &daemon.json(&["explain", "-r", set.to_str().unwrap()])[0];
    assert_eq!((&found["pinned_files"], &found["files"]), (&1.into(), &31.into()));
    assert_eq!(daemon.json(&["unpin", "-r", set.to_str().unwrap()])["files"], 31);
    let found = &daemon.json(&["explain", "-r", set.to_str().unwrap()])[0];
    assert_eq!(found["pinned_files"], 0);
}
