//! A node from start to stop by the real program, with mount where root and FUSE are there.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{run, stderr, stdout, tidepool};

/// A daemon over a directory of its own; stopped and removed at the end.
pub struct Daemon {
    directory: tempfile::TempDir,
    pub mounted: bool,
}

impl Daemon {
    pub fn start(extra: &[&str]) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("pfs")).unwrap();
        let mounted = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
        if !mounted {
            println!("skipped: no root or no /dev/fuse, so the node runs without a mount");
        }
        let daemon = Daemon { directory, mounted };
        let output = daemon.launch(extra);
        assert!(output.status.success(), "{}\n{}", stderr(&output), daemon.log());
        daemon
    }

    fn launch(&self, extra: &[&str]) -> Output {
        let mut command = tidepool();
        command.args(["node", "start", "--memory", "64MiB", "--pfs"]).arg(self.path("pfs"));
        command.arg("--socket").arg(self.path("node.sock"));
        // A machine that is short of memory must not change what a test sees.
        command.env("TIDEPOOL_CONTROL", "off");
        if self.mounted {
            command.arg("--mount").arg(self.path("mnt"));
        }
        command.args(extra).output().unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A process that keeps the mount busy.
    pub fn user_of_the_mount(&self) -> std::process::Child {
        Command::new("sleep").arg("1000").current_dir(self.path("mnt")).spawn().unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("node.sock.log")).unwrap_or_default()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tidepool();
        command.args(arguments).arg("--socket").arg(self.path("node.sock"));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}\n{}", stderr(&output), self.log());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn write(&self, name: &str, bytes: usize) -> String {
        let path = self.path("pfs").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, vec![7; bytes]).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Tests that stopped it themselves leave nothing to stop.
        let _ = self.run(&["node", "stop", "--force"]);
    }
}

/// Whether a thread of the process runs; one that ended may wait for its parent to take notice.
pub fn runs(process_id: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process_id}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // The first thread may be gone before the others, which hold all descriptors as well.
    let (state, threads) = (fields.first(), fields.get(17));
    state.is_some_and(|state| *state != "Z" || threads.is_some_and(|count| *count > "1"))
}

/// Time stamps settle after a tick of the file system's clock; until then nothing is kept.
pub fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(100));
}

#[test]
fn start_returns_when_the_node_serves_and_stop_when_it_is_gone() {
    let daemon = Daemon::start(&[]);
    let status = daemon.json(&["status"]);
    assert_eq!(status["pfs"], daemon.path("pfs").to_str().unwrap());
    assert_eq!(status["store"]["capacity_bytes"], 64 << 20);
    assert_eq!(status["asked_bytes"], 0);
    for key in
        ["process_id", "served", "hit_ratio_at_least", "dirty_bytes", "degraded", "read_mode"]
    {
        assert!(status.get(key).is_some(), "{key} is missing in {status}");
    }
    let process_id = status["process_id"].as_u64().unwrap();
    assert!(runs(process_id));
    if daemon.mounted {
        daemon.write("seen", 3);
        assert_eq!(std::fs::read(daemon.path("mnt/seen")).unwrap(), [7; 3]);
    }
    let node = daemon.json(&["node", "status"]);
    assert_eq!(
        (node["running"].as_bool(), node["process_id"].as_u64()),
        (Some(true), status["process_id"].as_u64())
    );
    let stopped = daemon.json(&["node", "stop"]);
    assert_eq!(stopped["stopped"], true);
    assert!(!runs(process_id), "the process is gone when stop returns");
    assert_eq!(daemon.run(&["status"]).status.code(), Some(3));
    if daemon.mounted {
        assert!(!daemon.path("mnt/seen").exists(), "unmounted");
    }
}

#[test]
fn a_node_notices_that_somebody_else_unmounted() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    assert_eq!(daemon.json(&["status"])["mount"], daemon.path("mnt").to_str().unwrap());
    rustix::mount::unmount(daemon.path("mnt"), rustix::mount::UnmountFlags::DETACH).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !daemon.json(&["status"])["mount"].is_null() {
        assert!(Instant::now() < deadline, "the node still says that it is mounted");
        std::thread::sleep(Duration::from_millis(50));
    }
    let node = stdout(&daemon.run(&["node", "status"]));
    assert!(node.contains("not mounted"), "{node}");
    let degraded = daemon.json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("restart the node to mount again"), "{degraded}");
    assert_eq!(daemon.json(&["node", "stop"])["stopped"], true);
}

#[test]
fn start_prints_what_it_took() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon { directory, mounted: false };
    std::fs::create_dir(daemon.path("pfs")).unwrap();
    let output = daemon.launch(&["--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["capacity_bytes"], 64 << 20);
    assert_eq!(summary["write_mode"], "through");
    let defaults = summary["defaults"].as_array().unwrap();
    assert!(defaults.contains(&"policy".into()) && !defaults.contains(&"memory".into()));
    drop(daemon);
}

#[test]
fn a_failed_start_tells_the_error_of_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon { directory, mounted: false };
    let output = daemon.launch(&[]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("pfs"), "{}", stderr(&output));
}

#[test]
fn a_second_node_on_the_socket_is_refused() {
    let daemon = Daemon::start(&[]);
    let second = Daemon { directory: tempfile::tempdir().unwrap(), mounted: false };
    std::fs::create_dir(second.path("pfs")).unwrap();
    let output = tidepool()
        .args(["node", "start", "--memory", "64MiB", "--pfs"])
        .arg(second.path("pfs"))
        .arg("--socket")
        .arg(daemon.path("node.sock"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    // The second has looked whether somebody is there; its connection may take a moment to end.
    let alone = |status: &Value| status["clients"].as_u64() == Some(1);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !alone(&daemon.json(&["status"])) {
        assert!(Instant::now() < deadline, "the first goes on, alone");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn load_counts_what_is_resident_and_evict_drops_it() {
    let daemon = Daemon::start(&[]);
    let large = daemon.write("set/large", 9 << 20);
    daemon.write("set/deep/small", 5000);
    settle();
    let set = daemon.path("pfs/set");
    let report = daemon.json(&["load", "-r", set.to_str().unwrap()]);
    assert_eq!((report["files"].as_u64(), report["resident_files"].as_u64()), (Some(2), Some(2)));
    assert_eq!(report["resident_bytes"], (9 << 20) + 5000);
    let explained = daemon.json(&["explain", "tide:///set/large"]);
    let file = &explained[0];
    assert_eq!((file["path"].as_str(), file["current"].as_bool()), (Some("set/large"), Some(true)));
    assert_eq!(file["residency_runs"], serde_json::json!([{"state": "clean", "blocks": 3}]));
    let text = stdout(&daemon.run(&["explain", &large]));
    assert!(text.contains("tide:///set/large") && text.contains("9MiB of 9MiB"), "{text}");
    assert!(text.contains("0B  ccc\n"), "{text}");

    let freed = daemon.json(&["evict", &large]);
    assert_eq!(freed["files"], 1);
    assert!(freed["freed_bytes"].as_u64() >= Some(9 << 20), "{freed}");
    assert_eq!(daemon.json(&["explain", &large])[0]["resident_bytes"], 0);
    daemon.json(&["evict", "--all"]);
    assert_eq!(daemon.json(&["status"])["store"]["resident_bytes"], 0);
}

#[test]
fn load_exits_with_1_if_anything_is_not_resident() {
    let daemon = Daemon::start(&[]);
    let too_large = daemon.write("too-large", 80 << 20);
    settle();
    let output = daemon.run(&["load", &too_large]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("not resident"), "{}", stderr(&output));
}

#[test]
fn files_are_refused_where_they_do_not_belong() {
    let daemon = Daemon::start(&[]);
    let code = |arguments: &[&str]| daemon.run(arguments).status.code();
    assert_eq!(code(&["load", "/etc/passwd"]), Some(2));
    assert_eq!(code(&["load", "tide:///../etc/passwd"]), Some(2));
    assert_eq!(code(&["load", "tide:///missing"]), Some(4));
    daemon.write("directory/file", 1);
    assert_eq!(code(&["load", "tide:///directory"]), Some(2));
    assert_eq!(code(&["explain", "tide:///directory"]), Some(2));
}

#[test]
fn size_and_policy_change_while_it_runs() {
    let daemon = Daemon::start(&[]);
    let report = daemon.json(&["resize", "32MiB"]);
    assert_eq!(report["capacity_bytes"], 32 << 20);
    assert_eq!(daemon.json(&["status"])["store"]["capacity_bytes"], 32 << 20);
    assert_eq!(daemon.run(&["resize", "1000TiB"]).status.code(), Some(2));
    assert_eq!(daemon.run(&["resize", "3MB"]).status.code(), Some(2), "less than a block");
    assert_eq!(daemon.json(&["policy", "lfu"])["policy"], "lfu");
    assert_eq!(stdout(&daemon.run(&["policy"])).trim(), "lfu");
    let entries = daemon.json(&["config"]);
    let entry = |name: &str| {
        let entries = entries.as_array().unwrap();
        entries.iter().find(|entry| entry["name"] == name).cloned().unwrap()
    };
    assert_eq!(
        (entry("memory")["value"].as_str(), entry("memory")["origin"].as_str()),
        (Some("32MiB"), Some("live change"))
    );
    assert_eq!(entry("policy")["value"], "lfu");
    // What the program adds for the daemon that it starts is not its user's.
    assert_eq!(
        (&entry("foreground")["value"], &entry("foreground")["origin"]),
        (&"false".into(), &"default".into())
    );
    assert_eq!(entry("log_file")["origin"], "default");
}

#[test]
fn metrics_are_served_and_conserve_bytes() {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap().to_string();
    drop(probe);
    let daemon = Daemon::start(&["--metrics-address", &address]);
    daemon.write("file", 1 << 20);
    settle();
    daemon.json(&["load", "tide:///file"]);
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let text = ask("GET /metrics");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let sum = |prefix: &str| -> u64 {
        let lines = text.lines().filter(|line| line.starts_with(prefix));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    let asked = sum("tidepool_read_bytes_asked_total");
    let served = sum("tidepool_read_bytes_served_total");
    assert_eq!(asked, served + sum("tidepool_read_bytes_failed_total"));
    assert!(ask("GET /").contains("href=\"/metrics\""), "a person finds the way");
    assert!(ask("GET /other").starts_with("HTTP/1.1 404"));
    let samples = daemon.json(&["metrics"]);
    let samples = samples.as_array().unwrap();
    let resident = samples.iter().find(|it| it["name"] == "tidepool_store_resident_bytes").unwrap();
    assert_eq!(resident["value"], f64::from(1 << 20));
    assert!(ask("POST /metrics").starts_with("HTTP/1.1 405"));
    assert!(stdout(&daemon.run(&["metrics"])).contains("tidepool_store_capacity_bytes 67108864"));
}

#[test]
fn stop_names_who_keeps_the_mount_busy() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    let mut user = daemon.user_of_the_mount();
    let output = daemon.run(&["node", "stop", "--wait", "0"]);
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("process {}", user.id())), "{}", stderr(&output));
    let forced = daemon.run(&["node", "stop", "--force"]);
    user.kill().unwrap();
    user.wait().unwrap();
    assert!(forced.status.success(), "{}\n{}", stderr(&forced), daemon.log());
}

#[test]
fn a_container_that_holds_the_mount_keeps_no_node_from_stopping() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    let mount = daemon.path("mnt");
    let status = daemon.json(&["status"]);
    let script = format!(
        "mkdir {0}/in && mount --bind {1} {0}/in && cd / && exec 9> {0}/in/held && exec sleep 1000",
        daemon.path("").display(),
        mount.display()
    );
    let mut holds = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .spawn()
        .unwrap();
    for _ in 0..200 {
        if mount.join("held").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let refused = daemon.run(&["node", "stop", "--wait", "0"]);
    assert_eq!(refused.status.code(), Some(6), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("/in/held"), "{}", stderr(&refused));
    let forced = daemon.run(&["node", "stop", "--force", "--timeout", "20"]);
    holds.kill().unwrap();
    holds.wait().unwrap();
    assert!(forced.status.success(), "{}\n{}", stderr(&forced), daemon.log());
    assert!(!runs(status["process_id"].as_u64().unwrap()));
    let told = format!("process_id={}", holds.id());
    let log = daemon.log();
    assert!(log.contains("mount namespace still holds") && log.contains(&told), "{log}");
}

#[test]
fn who_mounts_something_else_over_the_place_keeps_no_node_from_stopping() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    let mount = daemon.path("mnt");
    let script = format!(
        "mount -t tmpfs none {0} && cd {0} && exec 9> held && touch {1} && exec sleep 1000",
        mount.display(),
        daemon.path("ready").display()
    );
    let mut other = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .spawn()
        .unwrap();
    for _ in 0..200 {
        if daemon.path("ready").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let stopped = daemon.run(&["node", "stop", "--wait", "0", "--timeout", "20"]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(daemon.path("ready").exists());
    assert!(stopped.status.success(), "{}", stderr(&stopped));
}

#[test]
fn a_file_that_a_drained_node_does_not_open_is_not_made() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    let drained = daemon.run(&["node", "drain"]);
    assert!(drained.status.success(), "{}", stderr(&drained));
    assert_eq!(daemon.json(&["node", "status"])["draining"], true);
    assert!(stdout(&daemon.run(&["node", "status"])).contains("; draining"));
    let error = std::fs::write(daemon.path("mnt/new"), b"bytes").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
    assert!(!daemon.path("pfs/new").exists());
}

/// Without a controller: the alarm is the node's own.
#[test]
fn a_full_pfs_is_an_alarm_and_neither_drained_nor_stopped() {
    let daemon = Daemon::start(&["--write-mode", "memory", "--fault", "write:errno=ENOSPC"]);
    if !daemon.mounted {
        return;
    }
    std::fs::write(daemon.path("mnt/file"), [7; 5000]).unwrap();
    assert!(!stdout(&daemon.run(&["status"])).contains("pfs-full"));
    for command in ["drain", "stop"] {
        let refused = daemon.run(&["node", command]);
        assert_eq!(refused.status.code(), Some(1), "{command}: {}", stdout(&refused));
        let said = stderr(&refused);
        for word in ["the PFS is full: 1 file (", "make room on the PFS", "nothing is lost"] {
            assert!(said.contains(word), "{command}: {word} is missing in {said}");
        }
    }
    assert!(stdout(&daemon.run(&["status"])).contains("off; alarms: pfs-full"));
    let words = stdout(&daemon.run(&["control", "status"]));
    for word in ["pfs-full: the PFS", "tried again in", "make room on the PFS"] {
        assert!(words.contains(word), "{word} is missing in\n{words}");
    }
    let told = daemon.json(&["control", "status"]);
    assert!(told["pfs_full"]["why"].as_str().unwrap().contains("No space left"), "{told}");
    assert_eq!(std::fs::read(daemon.path("mnt/file")).unwrap(), [7; 5000]);
    std::fs::remove_file(daemon.path("mnt/file")).unwrap();
    // The kernel tells of the close of the read above when it comes to it.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while stdout(&daemon.run(&["status"])).contains("pfs-full") {
        assert!(std::time::Instant::now() < deadline, "nothing needs room");
    }
    assert!(daemon.run(&["node", "stop"]).status.success());
}

#[test]
fn sigterm_stops_cleanly() {
    let daemon = Daemon::start(&[]);
    let process_id = daemon.json(&["status"])["process_id"].as_i64().unwrap() as i32;
    let process = rustix::process::Pid::from_raw(process_id).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    for _ in 0..200 {
        if !runs(process_id as u64) {
            assert!(daemon.log().contains("stopped"), "{}", daemon.log());
            assert_eq!(daemon.run(&["status"]).status.code(), Some(3));
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it still runs:\n{}", daemon.log());
}

#[test]
fn doctor_proves_the_way_of_a_hit() {
    let daemon = Daemon::start(&[]);
    let report = daemon.json(&["doctor"]);
    assert_eq!(report["healthy"], true, "{report:#}");
    assert_eq!(report["library_served_by"], "mapped", "{report:#}");
    if daemon.mounted {
        assert_eq!(report["mount_served_by"], "passthrough", "{report:#}");
    }
    let left = std::fs::read_dir(daemon.path("pfs")).unwrap().count();
    assert_eq!(left, 0, "the probe is removed");
}

#[test]
fn bench_compare_measures_every_way_and_leaves_nothing() {
    let daemon = Daemon::start(&[]);
    let report = daemon.json(&["bench", "compare", "--size", "4MiB", "--rounds", "2"]);
    let rows = report["rows"].as_array().unwrap();
    let ways = if daemon.mounted { 5 } else { 4 };
    assert_eq!(rows.len(), 4 * ways, "{report:#}");
    for row in rows {
        assert!(row["bytes_per_s"]["median"].as_f64() > Some(0.0), "{row}");
        assert!(row["ratio_to_bare_pfs"]["min"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(std::fs::read_dir(daemon.path("pfs")).unwrap().count(), 0);
    let resident = daemon.json(&["status"])["store"]["resident_bytes"].as_u64();
    assert!(resident <= Some(8 << 20), "what was written may be kept, what was read not");
}

#[test]
fn bench_compare_without_room_says_so_before_it_writes() {
    let daemon = Daemon::start(&[]);
    for (size, cause) in [("1PiB", "of which one part in"), ("256MiB", "of memory needed")] {
        let output = daemon.run(&["bench", "compare", "--size", size]);
        assert!(!output.status.success());
        let message = stderr(&output);
        assert!(message.contains(cause) && message.contains("give --size"), "{message}");
        assert_eq!(std::fs::read_dir(daemon.path("pfs")).unwrap().count(), 0);
    }
}

/// Has a measurement interrupted; it leaves nothing.
fn interrupt_a_comparison(signal: rustix::process::Signal) {
    let daemon = Daemon::start(&[]);
    let arguments = ["bench", "compare", "--size", "4MiB", "--rounds", "1000"];
    let mut child = daemon.command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let has_files = || std::fs::read_dir(daemon.path("pfs")).unwrap().count() > 0;
    while !has_files() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let id = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(id, signal).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    assert!(!has_files());
}

#[test]
fn an_interrupted_bench_compare_leaves_nothing() {
    interrupt_a_comparison(rustix::process::Signal::INT);
}

#[test]
fn a_bench_compare_whose_terminal_closes_leaves_nothing() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    // What outlives its terminal starts what does: `nohup ./x test`.
    if u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 0 {
        interrupt_a_comparison(rustix::process::Signal::HUP);
    }
}

#[test]
fn top_prints_looks_as_lines() {
    let daemon = Daemon::start(&[]);
    for (name, bytes) in [("set/small", 1 << 20), ("set/large", 3 << 20)] {
        let path = daemon.write(name, bytes);
        assert!(daemon.run(&["load", &path]).status.success());
    }
    let output = daemon.run(&["top", "--json", "2", "--interval", "0.1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let lines: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["capacity_bytes"], 64 << 20);
    let files: Vec<_> = lines[1]["files"].as_array().unwrap().iter().collect();
    let facts = |file: &Value| (file["path"].clone(), file["resident_bytes"].clone());
    assert_eq!(facts(files[0]), ("set/large".into(), (3 << 20).into()));
    assert_eq!(facts(files[1]), ("set/small".into(), (1 << 20).into()));
    let output = daemon.run(&["top", "--json", "1", "--interval", "0.1", "--files", "1"]);
    let line: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(line["files"].as_array().unwrap().len(), 1);
    let refused = daemon.run(&["top"]);
    assert_eq!(refused.status.code(), Some(2), "no terminal: {}", stderr(&refused));
    assert!(run(&["top", "--interval", "0"]).status.code() == Some(2));
}

#[test]
fn a_dead_node_is_named_and_its_mount_recovered() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    daemon.write("file", 10);
    let process_id = daemon.json(&["status"])["process_id"].as_i64().unwrap() as i32;
    let process = rustix::process::Pid::from_raw(process_id).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    while runs(process_id as u64) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let output = daemon.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(3));
    let mount = daemon.path("mnt");
    let named = format!("the daemon of {} is dead", mount.display());
    assert!(stdout(&output).contains(&named), "{}", stdout(&output));
    let again = daemon.launch(&[]);
    assert!(again.status.success(), "{}\n{}", stderr(&again), daemon.log());
    assert_eq!(std::fs::read(mount.join("file")).unwrap(), [7; 10]);
}
