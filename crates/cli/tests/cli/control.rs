//! Tests of memory control by the real program: a node, the controller it starts, and operators.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::node::{Daemon, runs, settle};
use super::{run, stderr, stdout, tidepool};

const MINIMUM: u64 = 8 << 20;
const MEMORY: u64 = 64 << 20;

fn governed(extra: &[&str]) -> Daemon {
    let daemon = Daemon::start(&[&["--control", "on", "--memory-min", "8MiB"], extra].concat());
    until(&daemon, "a controller", |status| status["report"]["decisions"].as_u64() > Some(0));
    daemon
}

/// What the control says, whether or not all is well.
fn status(daemon: &Daemon) -> Value {
    let output = daemon.run(&["control", "status", "--json"]);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}\n{}", stderr(&output), daemon.log()))
}

fn until(daemon: &Daemon, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let status = status(daemon);
        if holds(&status) {
            return status;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} never came: {}\n{}", status(daemon), daemon.log());
}

fn set(daemon: &Daemon, name: &str, value: &str) -> String {
    let output = daemon.run(&["control", "set", name, value]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Fills the store, and has the controller think that jobs want all memory.
fn burst(daemon: &Daemon) {
    let file = daemon.write("data", 48 << 20);
    settle();
    assert!(daemon.run(&["load", &file]).status.success(), "{}", daemon.log());
    let total = status(daemon)["report"]["memory_total_bytes"].as_u64().unwrap();
    set(daemon, "headroom-bytes", &(total / 10 * 9).to_string());
    set(daemon, "headroom-bytes", &(total - (64 << 20)).to_string());
}

fn controller(status: &Value) -> Pid {
    Pid::from_raw(status["process_id"].as_i64().unwrap() as i32).unwrap()
}

#[test]
fn a_node_with_a_guaranteed_part_governs_itself() {
    let daemon = governed(&[]);
    let status = status(&daemon);
    for key in [
        "enabled",
        "lease",
        "lease_ms",
        "process_id",
        "attached_s",
        "silent_ms",
        "attachments",
        "expirations",
        "refusals",
        "foreign_changes",
        "restarts",
        "guaranteed_bytes",
        "ceiling_bytes",
        "leased_ceiling",
        "ceiling_leases",
        "ceiling_expirations",
        "capacity_bytes",
        "resident_bytes",
        "held_bytes",
        "memory_only_bytes",
        "write_back_bytes_per_s",
        "pfs_full",
        "report",
        "decisions",
        "settings",
        "warnings",
    ] {
        assert!(status.get(key).is_some(), "{key} is missing in {status}");
    }
    for key in [
        "policy",
        "level",
        "reason",
        "demand_bytes",
        "slope_bytes_per_s",
        "target_bytes",
        "memory_total_bytes",
        "available_bytes",
        "headroom_bytes",
        "alarms",
        "notes",
        "stores",
    ] {
        assert!(status["report"].get(key).is_some(), "{key} is missing in {status}");
    }
    assert_eq!(
        (status["lease"].as_str(), status["enabled"].as_bool()),
        (Some("governed"), Some(true))
    );
    assert_eq!(status["guaranteed_bytes"], MINIMUM);
    assert_eq!(daemon.json(&["status"])["control"]["lease"], "governed");
    let words = stdout(&daemon.run(&["control", "status"]));
    for word in ["governed by process", "guaranteed", "demand", "target", "headroom"] {
        assert!(words.contains(word), "{word} is missing in\n{words}");
    }
    let metrics = stdout(&daemon.run(&["metrics"]));
    assert!(metrics.contains("tidepool_control_governed 1"), "{metrics}");
    let process = controller(&status);
    assert!(daemon.run(&["node", "stop"]).status.success());
    assert!(!runs(process.as_raw_nonzero().get() as u64), "the controller ends with its node");
}

/// A node that is started without a word on the control, beside that of `daemon`.
fn start_beside(daemon: &Daemon, name: &str) -> (String, PathBuf) {
    let socket = daemon.path(name);
    let mut command = tidepool();
    command.args(["node", "start", "--memory", "64MiB", "--pfs"]).arg(daemon.path("pfs"));
    let output = command.arg("--socket").arg(&socket).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    (stdout(&output), socket)
}

#[test]
fn nodes_govern_themselves_by_default_also_two_in_one_directory() {
    let daemon = governed(&[]);
    let (said, socket) = start_beside(&daemon, "second.sock");
    let status_of_second = || {
        let output =
            tidepool().args(["control", "status", "--json", "--socket"]).arg(&socket).output();
        serde_json::from_slice::<Value>(&output.unwrap().stdout).unwrap()
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while status_of_second()["lease"] != "governed" && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (first, second) = (status(&daemon), status_of_second());
    let stopped = tidepool().args(["node", "stop", "--socket"]).arg(&socket).output().unwrap();
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    assert!(!daemon.path("second.sock.control").exists(), "nothing of the controller is left");
    assert!(said.contains("control   on: jobs get the memory back, down to 6.40MiB"), "{said}");
    assert_eq!(second["guaranteed_bytes"], MEMORY / 10);
    for status in [first, second] {
        assert_eq!((&status["lease"], &status["restarts"]), (&"governed".into(), &0.into()));
    }
}

/// A node that is being started while somebody holds the lock of its controller, which ends each
/// time it is tried.
struct HeldStart {
    directory: tempfile::TempDir,
    lock: std::fs::File,
    start: Child,
}

impl HeldStart {
    fn new(extra: &[&str]) -> HeldStart {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("pfs")).unwrap();
        let socket = directory.path().join("s");
        let lock = std::fs::File::create(directory.path().join("s.control")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut command = tidepool();
        command.args(["node", "start", "--memory", "64MiB", "--pfs"]);
        command.arg(directory.path().join("pfs")).arg("--socket").arg(socket).args(extra);
        let start = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let held = HeldStart { directory, lock, start };
        let log = held.directory.path().join("s.log");
        let tried =
            || std::fs::read_to_string(&log).unwrap_or_default().contains("is started again");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !tried() {
            assert!(Instant::now() < deadline, "no controller was tried");
            std::thread::sleep(Duration::from_millis(1));
        }
        held
    }
}

fn at_socket(directory: &Path, arguments: &[&str]) -> std::process::Output {
    tidepool().args(arguments).arg("--socket").arg(directory.join("s")).output().unwrap()
}

#[test]
fn a_start_returns_when_the_controller_governs() {
    let HeldStart { directory, lock, start } = HeldStart::new(&[]);
    drop(lock);
    let started = start.wait_with_output().unwrap();
    let told = at_socket(directory.path(), &["control", "status"]);
    assert!(at_socket(directory.path(), &["node", "stop"]).status.success());
    assert!(started.status.success(), "{}", stderr(&started));
    assert!(!stdout(&started).contains("governs yet"), "{}", stdout(&started));
    assert_eq!(told.status.code(), Some(0), "{}", stdout(&told));
    assert!(stdout(&told).contains("governed by process"), "{}", stdout(&told));
}

#[test]
fn a_node_whose_controller_does_not_come_serves_and_says_so() {
    let HeldStart { directory, lock, start } = HeldStart::new(&["--control-lease-ms", "100"]);
    let started = start.wait_with_output().unwrap();
    let told = at_socket(directory.path(), &["control", "status"]);
    drop(lock);
    assert!(at_socket(directory.path(), &["node", "stop"]).status.success());
    assert!(started.status.success(), "{}", stderr(&started));
    assert!(stdout(&started).contains("no memory controller governs yet"), "{}", stdout(&started));
    assert_eq!(told.status.code(), Some(1), "{}", stdout(&told));
}

#[test]
fn nothing_governs_where_the_control_is_off_until_it_is_switched_on() {
    let daemon = Daemon::start(&["--control", "off"]);
    let off = status(&daemon);
    assert_eq!((off["enabled"].as_bool(), off["lease"].as_str()), (Some(false), Some("never")));
    assert!(off.get("report").is_some_and(Value::is_null), "the key is there: {off}");
    set(&daemon, "control", "on");
    assert_eq!(status(&daemon)["lease"], "governed", "it governs when the command returns");
    set(&daemon, "control", "off");
    let off = status(&daemon);
    assert_eq!(
        (off["lease"].as_str(), off["capacity_bytes"].as_u64()),
        (Some("released"), Some(MEMORY))
    );
    assert!(off["report"].is_null(), "what a controller thought once is no figure of now: {off}");
    let output = daemon.run(&["control", "run"]);
    assert!(stderr(&output).contains("`control` is off"), "{}", stderr(&output));
}

#[test]
fn demand_shrinks_the_store_and_the_decision_is_told() {
    let daemon = governed(&[]);
    burst(&daemon);
    until(&daemon, "the room", |status| status["resident_bytes"].as_u64() <= Some(MINIMUM));
    until(&daemon, "an alarm", |status| {
        status["report"]["alarms"].as_array().unwrap().iter().any(|it| it == "at-minimum")
    });
    set(&daemon, "headroom-bytes", "0");
    let told = until(&daemon, "a decision", |status| !status["decisions"][0].is_null());
    assert!(told["decisions"][0]["reason"].as_str().unwrap().contains("shrink"), "{told}");
    let words = stdout(&daemon.run(&["control", "decisions"]));
    assert!(words.contains("shrink"), "{words}");
}

#[test]
fn a_killed_controller_is_replaced_in_the_midst_of_a_burst() {
    let daemon = governed(&[]);
    burst(&daemon);
    let killed = controller(&status(&daemon));
    kill_process(killed, Signal::KILL).unwrap();
    let status = until(&daemon, "another controller", |status| {
        status["lease"] == "governed" && controller(status) != killed
    });
    assert_eq!(status["restarts"], 1);
    until(&daemon, "the room", |status| status["resident_bytes"].as_u64() <= Some(MINIMUM));
}

#[test]
fn a_stopped_controller_loses_the_store_and_gets_it_back() {
    let daemon = governed(&[]);
    let process = controller(&status(&daemon));
    kill_process(process, Signal::STOP).unwrap();
    let fallen = until(&daemon, "the fall", |status| status["lease"] == "expired");
    assert_eq!(fallen["capacity_bytes"], MINIMUM);
    assert_eq!(daemon.run(&["control", "status"]).status.code(), Some(1), "it should govern");
    kill_process(process, Signal::CONT).unwrap();
    let back = until(&daemon, "the controller", |status| status["lease"] == "governed");
    assert_eq!((controller(&back), back["restarts"].as_u64()), (process, Some(0)));
    until(&daemon, "growth", |status| status["capacity_bytes"].as_u64() > Some(MINIMUM));
}

#[test]
fn node_and_controller_go_by_their_name_and_are_killed_last() {
    let daemon = governed(&[]);
    let node = daemon.json(&["status"]);
    let control = status(&daemon);
    let losses = [node["degraded"].to_string(), control["report"]["notes"].to_string()];
    for (process, lost) in [&node["process_id"], &control["process_id"]].into_iter().zip(losses) {
        let fact = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
        assert_eq!(fact("comm"), "tidepool\n");
        let protected = fact("oom_score_adj").trim().parse::<i32>().unwrap() <= -900;
        assert!(protected || lost.contains("out-of-memory killer"), "not said: {lost}");
    }
}

#[test]
fn a_pause_of_controller_and_node_costs_no_byte() {
    let daemon = governed(&[]);
    let file = daemon.write("data", 48 << 20);
    settle();
    assert!(daemon.run(&["load", &file]).status.success(), "{}", daemon.log());
    let before = status(&daemon);
    let node = daemon.json(&["status"])["process_id"].as_i64().unwrap() as i32;
    let processes = [Pid::from_raw(node).unwrap(), controller(&before)];
    processes.iter().for_each(|process| kill_process(*process, Signal::STOP).unwrap());
    std::thread::sleep(Duration::from_secs(3)); // three leases
    processes.iter().for_each(|process| kill_process(*process, Signal::CONT).unwrap());
    let decisions = before["report"]["decisions"].as_u64();
    let after = until(&daemon, "decisions", |status| {
        status["report"]["decisions"].as_u64() > decisions.map(|count| count + 20)
    });
    // The first of a busy machine may have come late.
    assert_eq!(after["expirations"], before["expirations"], "{}", daemon.log());
    assert_eq!(after["resident_bytes"], before["resident_bytes"]);
}

#[test]
fn a_second_controller_is_refused_and_named() {
    let daemon = governed(&[]);
    let first = controller(&status(&daemon)).as_raw_nonzero();
    let output = daemon.run(&["control", "run"]);
    assert_eq!(output.status.code(), Some(6));
    assert!(stderr(&output).contains(&format!("process {first} ")), "{}", stderr(&output));
    assert_eq!(status(&daemon)["lease"], "governed");
}

#[test]
fn a_second_controller_takes_nothing_from_a_first_that_is_stopped() {
    let daemon = governed(&[]);
    let before = status(&daemon);
    let first = controller(&before);
    kill_process(first, Signal::STOP).unwrap();
    until(&daemon, "the fall", |status| status["lease"] == "expired");
    let output = daemon.run(&["control", "run"]);
    let after = status(&daemon);
    kill_process(first, Signal::CONT).unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    assert_eq!(after["attachments"], before["attachments"], "it attached before it was refused");
    let back = until(&daemon, "the first", |status| status["lease"] == "governed");
    assert_eq!((controller(&back), back["restarts"].as_u64()), (first, Some(0)));
}

const PAGES: &str = "[[store]]\nkind = 'page-cache'\nname = 'pages'\npath = '/'\nfiles_max = 1\n\
                     capacity_min_bytes = 0\ncapacity_max_bytes = '1GiB'\n";

fn make_pipe(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn a_file_of_stores_that_makes_no_sense_is_refused_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("pfs")).unwrap();
    std::fs::write(path("broken"), "[[store]]\nkind = 'riak'\n").unwrap();
    make_pipe(&path("pipe"));
    for (file, word) in [("missing", "No such file"), ("broken", "memcached"), ("pipe", "regular")]
    {
        let mut command = tidepool();
        command.args(["node", "start", "--memory", "64MiB", "--pfs"]).arg(path("pfs"));
        command.arg("--socket").arg(path("s")).arg("--controlled-stores").arg(path(file));
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains(word), "{file}: {said}");
        assert!(said.contains(path(file).to_str().unwrap()), "{said}");
        assert!(!path("s").exists() && !path("s.log").exists(), "{file}: something started");
    }
}

#[test]
fn a_file_of_stores_that_goes_bad_later_leaves_the_store_governed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stores.toml");
    std::fs::write(&file, PAGES).unwrap();
    let daemon = Daemon::start(&["--controlled-stores", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    make_pipe(&file);
    set(&daemon, "control", "on");
    let status = until(&daemon, "a report", |status| status["report"].is_object());
    assert_eq!(
        (status["lease"].as_str(), status["restarts"].as_u64()),
        (Some("governed"), Some(0))
    );
    let notes = status["report"]["notes"].to_string();
    assert!(notes.contains("other stores are not governed"), "{notes}");
}

#[test]
fn the_end_of_a_node_names_limits_that_were_not_put_back() {
    for (process_id, said) in [(std::process::id(), true), (u32::MAX, false)] {
        let daemon = Daemon::start(&[]);
        let left = format!(
            "{{\"sessions\": {{\"process_id\": {process_id}, \"limit_bytes\": 400, \
             \"set_bytes\": [3]}}}}"
        );
        std::fs::write(daemon.path("node.sock.limits"), left).unwrap();
        set(&daemon, "control", "on");
        until(&daemon, "a controller", |status| status["lease"] == "governed");
        let output = daemon.run(&["node", "stop"]);
        assert_eq!(output.status.code(), Some(i32::from(said)), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("`sessions`"), said, "{}", stderr(&output));
        assert!(daemon.path("node.sock.limits").exists(), "the next controller needs it");
    }
}

/// A server of the test's own; killed when dropped.
struct Redis(std::process::Child);

impl Redis {
    /// `None` where the program is not installed.
    fn start(socket: &Path) -> Option<Redis> {
        let mut command = std::process::Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--maxmemory-policy", "allkeys-lru"]);
        command.args(["--maxmemory", "20000000", "--unixsocket"]).arg(socket);
        let child = command.stdout(std::process::Stdio::null()).spawn().ok()?;
        let server = Redis(child);
        let begun = std::time::Instant::now();
        while UnixStream::connect(socket).is_err() {
            assert!(begun.elapsed().as_secs() < 60, "it does not start");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Some(server)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_end_of_a_node_puts_back_what_no_controller_does() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (directory.path().join("r"), directory.path().join("stores.toml"));
    let Some(server) = Redis::start(&socket) else {
        println!("skipped: `redis-server` is not installed");
        return;
    };
    let entry = format!(
        "[[store]]\nkind = 'redis'\nname = 'cache'\naddress = '{}'\ncapacity_min_bytes = 0\n\
         capacity_max_bytes = '1GiB'\n",
        socket.display()
    );
    std::fs::write(&file, entry).unwrap();
    let daemon = Daemon::start(&["--controlled-stores", file.to_str().unwrap()]);
    // As of a controller that was killed, while the next one waits for its turn.
    let left = format!(
        "{{\"cache\": {{\"process_id\": {}, \"limit_bytes\": 400000000, \
         \"set_bytes\": [20000000]}}}}",
        server.0.id()
    );
    std::fs::write(daemon.path("node.sock.limits"), left).unwrap();
    let output = daemon.run(&["node", "stop"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), daemon.log());
    assert!(!daemon.path("node.sock.limits").exists());
    let mut stream = UnixStream::connect(&socket).unwrap();
    write!(stream, "CONFIG GET maxmemory\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("400000000"), "{answer}");
}

#[test]
fn bad_settings_are_refused_with_the_figure() {
    let daemon = governed(&[]);
    for (name, value, figure) in [
        ("gain", "11", "0 to 10"),
        ("interval-ms", "600", "500"),
        ("memory_min", "1TiB", "64MiB"),
        ("headroom-bytes", "1PiB", "leave nothing"),
        ("speed", "1", "control_gain"),
        ("hold-ms", "99999", "60000"),
    ] {
        let output = daemon.run(&["control", "set", name, value]);
        assert_eq!(output.status.code(), Some(2), "{name} {value}");
        assert!(stderr(&output).contains(figure), "{name} {value}: {}", stderr(&output));
    }
    set(&daemon, "gain", "2.5");
    let output = daemon.run(&["control", "set", "policy", "dynims"]);
    assert!(stderr(&output).contains("2.5"), "unstable: {}", stderr(&output));
    set(&daemon, "gain", "0.5");
    assert_eq!(set(&daemon, "policy", "dynims").trim(), "control_policy = dynims");
    until(&daemon, "the policy", |status| status["report"]["policy"] == "dynims");
    let config = stdout(&daemon.run(&["config", "--json"]));
    assert!(config.contains("live change"), "{config}");
    set(&daemon, "memory_min", "67MiB"); // 64 MiB in whole blocks
    assert_eq!(status(&daemon)["guaranteed_bytes"], MEMORY);
    let refused =
        run(&["config", "--check", "--pfs", "/", "--memory-min", "1TiB", "--memory", "1GiB"]);
    assert!(stderr(&refused).contains("more than the store of 1GiB"), "{}", stderr(&refused));
}

#[test]
fn a_resize_by_hand_is_the_new_ceiling() {
    let daemon = governed(&[]);
    let output = daemon.run(&["resize", "48MiB"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let resized = status(&daemon);
    assert_eq!(resized["ceiling_bytes"], 48 << 20);
    assert!(resized["capacity_bytes"].as_u64() <= Some(48 << 20), "{resized}");
    assert_eq!(resized["foreign_changes"], 1);
    assert_eq!(resized["lease"], "governed");
}

#[test]
fn other_users_may_look_and_not_touch() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can try as another user");
        return;
    }
    let daemon = governed(&[]);
    // The way to the socket must be open to the other user.
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(daemon.path("."), permissions).unwrap();
    let program = daemon.path("program");
    std::fs::copy(env!("CARGO_BIN_EXE_tidepool"), &program).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(arguments).arg("--socket").arg(daemon.path("node.sock"));
        command.uid(65_534).gid(65_534).current_dir("/").output().unwrap()
    };
    let looked = as_nobody(&["control", "status"]);
    assert!(looked.status.success(), "{}", stderr(&looked));
    for arguments in [&["control", "set", "gain", "1"][..], &["control", "run"][..]] {
        let output = as_nobody(arguments);
        assert_eq!(output.status.code(), Some(5), "{arguments:?}: {}", stderr(&output));
    }
}
