//! Tests of commands on whole directories: how much is resident, what cannot be pinned, and an
//! interrupted load, which stops in the node, too.

use std::os::unix::fs::FileExt;
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
    let unpinned = daemon.json(&["unpin", "-r", set.to_str().unwrap()]);
    assert_eq!((&unpinned["files"], &unpinned["not_pinned_files"]), (&1.into(), &30.into()));
    let found = &daemon.json(&["explain", "-r", set.to_str().unwrap()])[0];
    assert_eq!(found["pinned_files"], 0);
    let alone = daemon.run(&["pin", set.join("1").to_str().unwrap()]);
    assert_eq!(alone.status.code(), Some(1), "nothing was pinned: {}", stderr(&alone));
}

#[test]
fn what_is_not_there_is_said_as_the_table_of_codes_has_it() {
    let daemon = Daemon::start(&[]);
    let empty = daemon.path("pfs/empty");
    std::fs::create_dir(&empty).unwrap();
    for command in ["load", "explain"] {
        let found = daemon.run(&[command, "-r", empty.to_str().unwrap()]);
        assert!(stderr(&found).contains("is it mounted?"), "{command}: {}", stderr(&found));
        let missing = daemon.run(&[command, empty.join("missing").to_str().unwrap()]);
        assert_eq!(missing.status.code(), Some(4), "{command}: {}", stderr(&missing));
    }
}

#[test]
fn a_file_that_is_in_and_cannot_be_pinned_is_called_not_pinned() {
    let daemon = Daemon::start(&["--pinned-share-max", "0.25"]);
    let files = ["a", "b"].map(|name| daemon.write(&format!("set/{name}"), 12 * MIB));
    settle();
    assert!(daemon.run(&["pin", &files[0]]).status.success());
    let refused = daemon.run(&["pin", &files[1]]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("not pinned: "), "{}", stderr(&refused));
    assert!(!stderr(&refused).contains("not resident"), "{}", stderr(&refused));
    let report = daemon.run(&["pin", "--json", &files[1]]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["not_pinned"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["not_resident"].as_array().unwrap().len(), 0, "{report}");
}

#[test]
fn files_that_change_or_go_while_they_are_loaded_are_told_as_they_are() {
    let daemon = Daemon::start(&["--fault", "read:rate=16MB/s"]);
    for number in 0..4 {
        daemon.write(&format!("set/a-shrinks-{number}"), 8 * MIB);
    }
    for number in 0..30 {
        daemon.write(&format!("set/b-goes-{number}"), MIB);
    }
    settle();
    let set = daemon.path("pfs/set");
    let mut load = daemon.command(&["load", "-r", "--jobs", "1", set.to_str().unwrap()]);
    let load = load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    // The second is under way, so the first is in.
    while pfs_read_bytes(&daemon) < 12 * MIB as u64 {
        assert!(begun.elapsed() < PATIENCE, "the load does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.write("set/a-shrinks-0", 7 * MIB + 1);
    for number in 0..30 {
        std::fs::remove_file(set.join(format!("b-goes-{number}"))).unwrap();
    }
    let ended = load.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", stdout(&ended));
    let said = stderr(&ended);
    assert!(said.contains("30 files went away meanwhile"), "{said}");
    assert!(said.contains("a-shrinks-0 (0B of 7.00MiB): the PFS has another version"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(stdout(&ended).starts_with("3 of 34 files resident: 24MiB of"), "{}", stdout(&ended));
    let text = stdout(&daemon.run(&["explain", "tide:///set/a-shrinks-0"]));
    let held = "0B of 7.00MiB (0.0%); 8MiB as segment of a version that is gone";
    assert!(text.contains(held), "{text}");
}

#[test]
fn a_link_that_leads_out_of_the_pfs_is_no_file_of_it() {
    let daemon = Daemon::start(&[]);
    std::fs::write(daemon.path("elsewhere"), "x").unwrap();
    std::os::unix::fs::symlink(daemon.path("elsewhere"), daemon.path("pfs/link")).unwrap();
    for command in ["load", "explain", "evict"] {
        let refused = daemon.run(&[command, "tide:///link"]);
        assert_eq!(refused.status.code(), Some(2), "{command}: {}", stdout(&refused));
        assert!(stderr(&refused).contains("a link that leads to"), "{}", stderr(&refused));
    }
}

#[test]
fn what_another_user_may_not_evict_is_one_line() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can try as another user");
        return;
    }
    let daemon = Daemon::start(&[]);
    for number in 0..12 {
        daemon.write(&format!("set/{number}"), 100);
    }
    let open = || std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(daemon.path("."), open()).unwrap();
    let program = daemon.path("program");
    std::fs::copy(env!("CARGO_BIN_EXE_tidepool"), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    command.args(["evict", "-r", "tide:///set", "--socket"]).arg(daemon.path("node.sock"));
    let refused = command.uid(65_534).gid(65_534).current_dir("/").output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert_eq!(stderr(&refused).lines().count(), 1, "{}", stderr(&refused));
    assert!(stderr(&refused).ends_with("(12 times)\n"), "{}", stderr(&refused));
}

#[test]
fn explain_maps_a_file_of_many_blocks_whole() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    daemon.write("sparse", 0);
    let file = std::fs::OpenOptions::new().write(true).open(daemon.path("pfs/sparse")).unwrap();
    file.set_len(100 << 30).unwrap();
    settle();
    let file = std::fs::File::open(daemon.path("mnt/sparse")).unwrap();
    for block in [0, 20_000, 25_599] {
        file.read_exact_at(&mut vec![0; MIB], (block * 4) << 20).unwrap();
    }
    let explained = &daemon.json(&["explain", "tide:///sparse"])[0];
    let runs = explained["residency_runs"].as_array().unwrap();
    assert!(runs.len() < 10, "{runs:?}");
    assert_eq!(runs.iter().map(|run| run["blocks"].as_u64().unwrap()).sum::<u64>(), 25_600);
    assert_eq!((&runs[0]["state"], &runs[1]["state"]), (&"clean".into(), &"absent".into()));
    let text = stdout(&daemon.run(&["explain", "tide:///sparse"]));
    assert!(text.contains("a character is 25 of them, 100MiB"), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains('|')).collect();
    assert_eq!(lines.len(), 16, "{text}");
    assert!(lines[0].starts_with("        0B  |."), "{text}");
    assert_eq!(lines[12].as_bytes()[13 + 32], b'.', "{text}");
    assert!(lines[15].ends_with(".|"), "{text}");
}
