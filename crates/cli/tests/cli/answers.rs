//! Tests that the answers of a node and of its commands are true.

use std::time::{Duration, Instant};

use super::node::{Daemon, settle};
use super::{stderr, stdout};

const MIB: usize = 1 << 20;

#[test]
fn the_hit_ratio_allows_for_what_the_kernel_reads_by_itself() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    daemon.write("data", 20 * MIB);
    settle();
    let bytes = std::fs::read(daemon.path("pfs/data")).unwrap();
    for _ in 0..3 {
        assert_eq!(std::fs::read(daemon.path("mnt/data")).unwrap(), bytes);
    }
    let status = daemon.json(&["status"]);
    let ratio = status["hit_ratio_estimated"].as_f64().unwrap();
    assert!((ratio - 2.0 / 3.0).abs() < 0.02, "1 of 3 reads came from the PFS: {ratio}");
    let text = stdout(&daemon.run(&["status"]));
    assert!(text.contains("66.7%"), "{text}");
    if status["transfers"]["passthrough_opens"] != 0 {
        assert_eq!(status["hit_ratio_at_least"].as_f64(), Some(0.0), "what is counted missed");
        assert!(text.contains("at least 0.0% of 20MiB counted; about 66.7% if"), "{text}");
        assert!(text.contains("2 of 3 served from memory by the kernel alone"), "{text}");
        let top = stdout(&daemon.run(&["top", "--json", "1"]));
        let (counted, lent) = (20 * MIB, 40 * MIB);
        let file = format!("\"read_bytes\":{counted},\"passthrough_bytes\":{lent}");
        assert!(top.contains(&file) && top.contains("\"hit_ratio_at_least\":null"), "{top}");
    }
}

#[test]
fn opens_that_read_little_do_not_make_a_hit_ratio() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    daemon.write("data", 20 * MIB);
    settle();
    let path = daemon.path("mnt/data");
    assert_eq!(std::fs::read(&path).unwrap().len(), 20 * MIB);
    // Some at once, which share what the kernel has, and some after each other.
    let heads: Vec<std::fs::File> = (0..10).map(|_| read_head(&path)).collect();
    drop(heads);
    (0..10).for_each(|_| drop(read_head(&path)));
    let status = daemon.json(&["status"]);
    assert_eq!(status["reading_opens"], 21);
    let by_kernel = status["transfers"]["passthrough_opens"].as_u64().unwrap();
    if by_kernel == 0 {
        return;
    }
    assert_eq!(by_kernel, 20, "each open counts, also of those that share a segment");
    let least = status["hit_ratio_at_least"].as_f64().unwrap();
    assert!(least < 0.01, "20 times 4 KiB of 20 MiB: {least}");
    let text = stdout(&daemon.run(&["status"]));
    assert!(text.contains("at least 0.0% of 20MiB counted"), "{text}");
    assert!(text.contains("20 of 21 served from memory by the kernel alone"), "{text}");
}

/// An open file of which the first bytes were read.
fn read_head(path: &std::path::Path) -> std::fs::File {
    let file = std::fs::File::open(path).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; 4096], 0).unwrap();
    file
}

#[test]
fn doctor_leaves_neither_counts_of_reads_nor_its_probe() {
    let daemon = Daemon::start(&[]);
    daemon.write("data", 8 * MIB);
    settle();
    assert!(daemon.run(&["load", daemon.path("pfs/data").to_str().unwrap()]).status.success());
    let before = daemon.json(&["status"]);
    let examined = daemon.run(&["doctor"]);
    assert!(stdout(&examined).contains("bytes verified"), "{}", stderr(&examined));
    let after = daemon.json(&["status"]);
    for key in ["asked_bytes", "served", "hit_ratio_at_least", "reading_opens"] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_ne!(before["probes"], after["probes"], "counted apart");
    assert_eq!(before["store"]["resident_bytes"], after["store"]["resident_bytes"]);
    let top = stdout(&daemon.run(&["top", "--json", "1"]));
    assert!(!top.contains(".tidepool-doctor-"), "{top}");
}

#[test]
fn doctor_that_is_interrupted_ends_and_leaves_nothing() {
    // So slow that it is interrupted while the node loads its probe.
    let daemon = Daemon::start(&["--fault", "read:rate=2MB/s"]);
    let probes = || {
        let names = std::fs::read_dir(daemon.path("pfs")).unwrap().map(|it| it.unwrap());
        names.filter(|it| it.file_name().to_string_lossy().starts_with(".tidepool-doctor-")).count()
    };
    let mut command = daemon.command(&["doctor"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let doctor = command.spawn().unwrap();
    while probes() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let process = rustix::process::Pid::from_raw(doctor.id() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let ended = doctor.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", stdout(&ended));
    assert!(stderr(&ended).contains("interrupted"), "{}", stderr(&ended));
    assert_eq!(probes(), 0);
}

#[test]
fn a_drained_node_says_so_and_takes_opens_again() {
    let daemon = Daemon::start(&[]);
    daemon.write("data", MIB);
    assert!(daemon.run(&["node", "drain"]).status.success());
    let examined = daemon.run(&["doctor"]);
    assert_eq!(examined.status.code(), Some(1), "{}", stdout(&examined));
    assert!(stdout(&examined).contains("node drain --undo"), "{}", stdout(&examined));
    assert_eq!(daemon.json(&["status"])["draining"], true);
    assert!(stdout(&daemon.run(&["status"])).contains("node drain --undo"));
    let undone = daemon.json(&["node", "drain", "--undo"]);
    assert_eq!(undone["draining"], false);
    assert_eq!(daemon.json(&["status"])["draining"], false);
    if daemon.mounted {
        assert_eq!(std::fs::read(daemon.path("mnt/data")).unwrap().len(), MIB);
    }
}

#[test]
fn a_log_that_is_moved_away_is_made_anew_and_tells_who_changed_what() {
    let place = tempfile::tempdir().unwrap();
    let log = place.path().join("node.log");
    let daemon = Daemon::start(&["--log-file", log.to_str().unwrap()]);
    let moved = place.path().join("node.log.1");
    std::fs::rename(&log, &moved).unwrap();
    let node = daemon.json(&["status"])["process_id"].as_i64().unwrap() as i32;
    let node = rustix::process::Pid::from_raw(node).unwrap();
    rustix::process::kill_process(node, rustix::process::Signal::HUP).unwrap();
    while !log.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = || std::fs::read_to_string(&log).unwrap();
    let begun = Instant::now();
    let ask = |policy: &str| assert!(daemon.run(&["policy", policy]).status.success());
    // The new file is there a moment before it takes the place of the old one.
    while !said().contains("asked for: policy lru") {
        assert!(begun.elapsed().as_secs() < 60, "{}", said());
        ask("lru");
        std::thread::sleep(Duration::from_millis(5));
    }
    let line = said().lines().find(|line| line.contains("asked for")).unwrap().to_owned();
    assert!(line.contains("user_id="), "{line}");
    ask("lfu");
    while !said().contains("asked for: policy lfu") {
        assert!(begun.elapsed().as_secs() < 120, "{}", said());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!std::fs::read_to_string(&moved).unwrap().contains("policy lfu"));
}

#[test]
fn a_node_says_that_its_directory_was_made_anew() {
    let daemon = Daemon::start(&[]);
    let degraded = || daemon.json(&["status"])["degraded"].to_string();
    let until = |said: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !said() {
            assert!(begun.elapsed().as_secs() < 60, "{}", degraded());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let (pfs, away) = (daemon.path("pfs"), daemon.path("away"));
    std::fs::rename(&pfs, &away).unwrap();
    until(&|| degraded().contains("pfs is gone: "));
    std::fs::create_dir(&pfs).unwrap();
    until(&|| degraded().contains("leads to another directory now: restart the node"));
    assert!(!degraded().contains("is gone"), "{}", degraded());
    std::fs::remove_dir(&pfs).unwrap();
    std::fs::rename(&away, &pfs).unwrap();
    until(&|| !degraded().contains("pfs"));
}

#[test]
fn a_set_that_fits_is_no_case_for_a_policy() {
    let daemon = Daemon::start(&[]);
    let file = daemon.write("data", 20 * MIB);
    settle();
    for _ in 0..3 {
        assert!(daemon.run(&["load", &file]).status.success());
        if daemon.mounted {
            assert_eq!(std::fs::read(daemon.path("mnt/data")).unwrap().len(), 20 * MIB);
        }
    }
    let said = stdout(&daemon.run(&["policy"]));
    assert_eq!(said, "adaptive: follows cyclic; every policy would have hit the same so far\n");
}

#[test]
fn policy_and_explain_say_what_is_followed_and_what_the_others_would_have_hit() {
    let daemon = Daemon::start(&[]);
    let said = stdout(&daemon.run(&["policy"]));
    assert_eq!(said, "adaptive: follows cyclic; nothing to compare was read yet\n");
    if !daemon.mounted {
        return;
    }
    // A loop over one and a half times the capacity, of which LRU keeps nothing.
    let files: Vec<String> =
        (0..6).map(|number| daemon.write(&format!("data-{number}"), 16 * MIB)).collect();
    settle();
    for _ in 0..8 {
        for number in 0..files.len() {
            let bytes = std::fs::read(daemon.path(&format!("mnt/data-{number}"))).unwrap();
            assert_eq!(bytes.len(), 16 * MIB);
        }
    }
    let report = daemon.json(&["policy"]);
    assert_eq!(report["policy"], "adaptive");
    let choice = &report["choice"];
    let would_hit = |policy: &str| {
        let candidates = choice["candidates"].as_array().unwrap();
        let one = candidates.iter().find(|it| it["policy"] == policy).unwrap();
        one["would_hit_ratio"].as_f64().unwrap()
    };
    let chosen = choice["chosen"].as_str().unwrap();
    assert!(choice["compared_reads"].as_u64().unwrap() > 50, "{choice}");
    assert!(would_hit(chosen) > 0.3 && would_hit("lru") < would_hit(chosen), "{choice}");
    for text in [daemon.run(&["policy"]), daemon.run(&["explain", &files[0]])] {
        let text = stdout(&text);
        // Marks of reads may reach the policy between two looks, so the figures may differ.
        let (before, after) = text.split_once(", which would have hit ").unwrap_or_default();
        assert!(before.ends_with(&format!("follows {chosen}")), "{text}");
        assert!(after.contains("% of the latest reads (") && after.contains("lru "), "{text}");
    }
    let explained = daemon.json(&["explain", &files[0]]);
    assert_eq!(explained[0]["policy_choice"]["chosen"], choice["chosen"]);
    let said = stdout(&daemon.run(&["policy", "lru"]));
    assert_eq!(said, "lru\n", "it follows nothing");
    assert!(daemon.json(&["policy"]).get("choice").is_none());
}

#[test]
fn a_changed_file_is_taken_at_sighup() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.toml");
    std::fs::write(&file, "policy = \"lru\"\nmemory_min = \"4MiB\"\n").unwrap();
    let daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    assert_eq!(stdout(&daemon.run(&["policy"])).trim(), "lru");
    let changed = "memory_min = \"8MiB\"\npolicy = \"s3fifo\"\ntransfers = 3\n";
    std::fs::write(&file, changed).unwrap();
    let process_id = daemon.json(&["status"])["process_id"].as_i64().unwrap() as i32;
    let process = rustix::process::Pid::from_raw(process_id).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    // One option is changed after the other, and the log is written beside that.
    let is_told = || {
        let log = daemon.log();
        log.contains("needs a restart") && log.contains("transfers")
    };
    let are_of_the_file = || {
        let config = daemon.json(&["config"]);
        let mut entries =
            config.as_array().unwrap().iter().filter(|entry| {
                ["policy", "memory_min"].contains(&entry["name"].as_str().unwrap())
            });
        entries.all(|entry| entry["origin"] == "file")
    };
    let is_taken = || stdout(&daemon.run(&["policy"])).trim() == "s3fifo";
    let deadline = Instant::now() + Duration::from_secs(60);
    while !(is_taken() && is_told() && are_of_the_file()) {
        assert!(Instant::now() < deadline, "it was not taken:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}
