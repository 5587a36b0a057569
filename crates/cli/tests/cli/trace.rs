//! Tests of `tidepool trace`: requests of the mount and of the library as they come, by file,
//! process and time; and that it leaves nothing switched on.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tidepool_client::{Client, ClientOptions, OpenOptions};

use super::node::{Daemon, settle};
use super::{run, stderr, stdout, tidepool};

const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65_534;
const KEYS: [&str; 16] = [
    "begun_us",
    "bytes",
    "elapsed_us",
    "errno",
    "front",
    "inode",
    "length",
    "level",
    "offset",
    "operation",
    "path",
    "pfs_us",
    "process",
    "process_id",
    "request",
    "user_id",
];

/// A trace that runs.
struct Trace {
    child: Child,
    _stderr: BufReader<ChildStderr>,
}

impl Trace {
    /// Returns when it traces.
    fn start(daemon: &Daemon, arguments: &[&str]) -> Trace {
        Trace::of(&mut daemon.command(&[&["trace", "--json"], arguments].concat()))
    }

    fn of(command: &mut Command) -> Trace {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("tidepool: tracing requests"), "{line}");
        Trace { child, _stderr: stderr }
    }

    /// Ends it as Ctrl-C does; its requests, and its summary.
    fn end(self) -> (Vec<Value>, Value) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let output = self.child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stdout(&output));
        lines(&stdout(&output))
    }
}

fn lines(text: &str) -> (Vec<Value>, Value) {
    let lines = text.lines().map(|line| serde_json::from_str(line).expect(line));
    let mut lines: Vec<Value> = lines.collect();
    let mut last = lines.pop().expect("a summary");
    (lines, last["summary"].take())
}

fn read_by_library(daemon: &Daemon, path: &str) {
    let socket = Some(daemon.path("node.sock"));
    let client = Client::connect(ClientOptions { socket, ..ClientOptions::default() });
    let file = client.open(path, OpenOptions::read()).unwrap();
    for _ in 0..2 {
        file.read_at(0, &mut [0; 4096]).unwrap();
    }
    file.close().unwrap();
}

/// Reads a file by the mount in a process of its own, which is no other that it may be known by.
fn read_by_mount(daemon: &Daemon, name: &str) -> u32 {
    let path = daemon.path("mnt").join(name);
    let child = Command::new("cat").arg(path).stdout(Stdio::null()).spawn().unwrap();
    let process_id = child.id();
    assert!(child.wait_with_output().unwrap().status.success());
    process_id
}

fn of<'a>(records: &'a [Value], front: &str, operation: &str) -> Vec<&'a Value> {
    let is_it = |it: &&Value| it["front"] == front && it["operation"] == operation;
    records.iter().filter(is_it).collect()
}

#[test]
fn requests_of_mount_and_library_have_all_keys() {
    let daemon = Daemon::start(&[]);
    let path = daemon.write("set/data", 5 << 20);
    settle();
    let trace = Trace::start(&daemon, &[]);
    assert_eq!(daemon.json(&["status"])["traces"], 1);
    let cat = daemon.mounted.then(|| read_by_mount(&daemon, "set/data"));
    read_by_library(&daemon, &path);
    let (records, summary) = trace.end();
    for record in &records {
        let keys: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys.iter().filter(|key| KEYS.contains(key)).count(), KEYS.len(), "{keys:?}");
        assert_eq!(keys.len(), KEYS.len(), "{keys:?}");
    }
    let reads = of(&records, "library", "read");
    assert_eq!(reads.len(), 2, "{records:#?}");
    assert_eq!(reads[1]["level"], "memory");
    for read in reads {
        assert_eq!((&read["path"], &read["bytes"]), (&"set/data".into(), &4096.into()));
        assert_eq!((&read["user_id"], &read["errno"]), (&own_user().into(), &0.into()));
        assert_eq!(read["process_id"], std::process::id());
    }
    if let Some(cat) = cat {
        let reads = of(&records, "mount", "read");
        let bytes: u64 = reads.iter().filter_map(|read| read["bytes"].as_u64()).sum();
        assert_eq!(bytes, 5 << 20, "{reads:#?}");
        // Requests that are answered at the same time come in any order.
        let first = reads.iter().find(|read| read["offset"] == 0).expect("it begins there");
        assert_eq!(first["level"], "pfs");
        assert!(first["pfs_us"].as_u64() > Some(0), "{first}");
        for record in reads.iter().chain(&of(&records, "mount", "open")) {
            assert_eq!((&record["process"], &record["process_id"]), (&"cat".into(), &cat.into()));
            assert_eq!(record["path"], "set/data");
        }
    }
    assert_eq!(summary["requests"], records.len());
    assert_eq!(summary["dropped"], 0);
    let operations = summary["operations"].as_array().unwrap();
    let is_hit = |row: &&Value| row["operation"] == "read" && row["level"] == "memory";
    let hits = operations.iter().find(is_hit).expect("the library read twice");
    assert!(hits["p50_us"].as_u64() <= hits["p99_us"].as_u64());
    assert_eq!(daemon.json(&["status"])["traces"], 0);
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn a_process_is_traced_with_all_its_threads_and_no_other() {
    let daemon = Daemon::start(&[]);
    let path = daemon.write("data", 5 << 20);
    settle();
    let trace = Trace::start(&daemon, &[&std::process::id().to_string()]);
    read_by_library(&daemon, &path);
    if daemon.mounted {
        read_by_mount(&daemon, "data");
        let path = daemon.path("mnt/data");
        std::thread::spawn(move || std::fs::read(path).unwrap()).join().unwrap();
    }
    let (records, _) = trace.end();
    assert_eq!(of(&records, "library", "read").len(), 2, "{records:#?}");
    assert_eq!(of(&records, "mount", "open").len(), usize::from(daemon.mounted), "{records:#?}");
    for record in &records {
        assert_eq!(record["process_id"], std::process::id(), "{record}");
    }
}

#[test]
fn a_file_is_traced_by_all_its_names() {
    let daemon = Daemon::start(&[]);
    let path = daemon.write("set/data", 5 << 20);
    let other = daemon.write("set/other", 5 << 20);
    settle();
    let mut names = vec![path.clone(), "tide:///set/data".to_owned()];
    if daemon.mounted {
        names.push(daemon.path("mnt/set/data").to_str().unwrap().to_owned());
    }
    for name in names {
        let trace = Trace::start(&daemon, &[&name]);
        read_by_library(&daemon, &path);
        read_by_library(&daemon, &other);
        if daemon.mounted {
            read_by_mount(&daemon, "set/other");
            read_by_mount(&daemon, "set/data");
        }
        let (records, _) = trace.end();
        assert_eq!(of(&records, "library", "read").len(), 2, "{name}: {records:#?}");
        assert_eq!(of(&records, "mount", "open").len(), usize::from(daemon.mounted), "{name}");
        for record in &records {
            assert_eq!(record["path"], "set/data", "{name}: {record}");
        }
    }
}

#[test]
fn it_ends_after_its_time_and_people_read_aligned_lines() {
    let daemon = Daemon::start(&[]);
    let path = daemon.write("data", 5 << 20);
    settle();
    read_by_library(&daemon, &path);
    let mut trace = Trace::of(&mut daemon.command(&["trace", "2s"]));
    if daemon.mounted {
        daemon.json(&["load", &path]);
        read_by_mount(&daemon, "data");
    }
    read_by_library(&daemon, &path);
    let ended = trace.child.wait().unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut trace.child.stdout.take().unwrap(), &mut text).unwrap();
    assert_eq!(ended.code(), Some(0), "{text}");
    let header = text.lines().next().unwrap();
    let column = header.find("SERVED BY").unwrap();
    let hits: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("  library ") && line.contains(" read "))
        .collect();
    assert_eq!(hits.len(), 2, "{text}");
    for hit in hits {
        assert!(hit[column..].starts_with("memory") && hit.ends_with("  ok       data"), "{hit}");
    }
    assert!(text.contains("OPERATION  SERVED BY") && text.contains(" requests in 2."), "{text}");
    if daemon.mounted && text.contains("passthrough") {
        assert!(text.contains("the kernel serves this open by itself"), "{text}");
    }
    assert_eq!(daemon.json(&["status"])["traces"], 0);
}

#[test]
fn a_trace_that_is_killed_leaves_nothing_on() {
    let daemon = Daemon::start(&[]);
    let mut traces: Vec<Trace> = (0..2).map(|_| Trace::start(&daemon, &[])).collect();
    assert_eq!(daemon.json(&["status"])["traces"], 2);
    for trace in &mut traces {
        trace.child.kill().unwrap();
        trace.child.wait().unwrap();
    }
    let begun = Instant::now();
    while daemon.json(&["status"])["traces"] != 0 {
        assert!(begun.elapsed() < PATIENCE, "it is traced still");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn another_user_sees_nothing_of_others() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let path = daemon.write("secret", 5 << 20);
    daemon.write("own", 100);
    let program = daemon.path("tidepool");
    std::fs::copy(env!("CARGO_BIN_EXE_tidepool"), &program).unwrap();
    open(&program, 0o755);
    open(program.parent().unwrap(), 0o755);
    open(Path::new(&path), 0o600);
    settle();
    let mut command = Command::new(&program);
    command.args(["trace", "--json", "--socket"]).arg(daemon.path("node.sock"));
    let trace = Trace::of(command.uid(NOBODY).gid(NOBODY).env_remove("TIDEPOOL_SOCKET"));
    let whole = Trace::start(&daemon, &[]);
    read_by_library(&daemon, &path);
    read_by_mount(&daemon, "secret");
    let cat = Command::new("cat").arg(daemon.path("mnt/own")).uid(NOBODY).gid(NOBODY).output();
    assert_eq!(cat.unwrap().stdout.len(), 100);
    let (all, _) = whole.end();
    let (records, summary) = trace.end();
    assert!(!of(&all, "library", "read").is_empty() && !of(&all, "mount", "read").is_empty());
    assert!(of(&records, "mount", "read").iter().any(|it| it["path"] == "own"), "{records:#?}");
    assert!(records.iter().all(|it| it["user_id"] == NOBODY), "{records:#?}");
    assert!(!format!("{records:?}").contains("secret"), "{records:#?}");
    assert_eq!(summary["requests"], records.len());
    // Nor does it name a file that the user may not read.
    let mut command = Command::new(&program);
    command.arg("trace").arg(&path).arg("--socket").arg(daemon.path("node.sock"));
    let refused = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    assert_eq!(refused.status.code(), Some(5), "{}", stderr(&refused));
}

#[test]
fn what_cannot_be_traced_is_refused() {
    let daemon = Daemon::start(&[]);
    daemon.write("set/data", 1);
    let code = |arguments: &[&str]| {
        let output = daemon.run(&[&["trace"], arguments].concat());
        assert!(output.stdout.is_empty(), "{}", stdout(&output));
        (output.status.code(), stderr(&output))
    };
    let (missing, said) = code(&["tide:///missing"]);
    assert_eq!(missing, Some(4), "{said}");
    let (directory, said) = code(&["tide:///set"]);
    assert!(directory == Some(2) && said.contains("no regular file"), "{said}");
    let (outside, said) = code(&["/etc/hostname"]);
    assert!(outside == Some(2) && said.contains("does not belong to this node"), "{said}");
    let (process, said) = code(&["4194999"]);
    assert!(process == Some(2) && said.contains("for a time write 4194999s"), "{said}");
    assert_eq!(code(&["1s", "2s"]).0, Some(2));
    assert_eq!(daemon.json(&["status"])["traces"], 0, "nothing was begun");
    let nobody = run(&["trace", "1s", "--socket", "/nowhere/node.sock"]);
    assert_eq!(nobody.status.code(), Some(3), "{}", stderr(&nobody));
    let json = tidepool().args(["trace", "--json", "--socket", "/nowhere"]).output().unwrap();
    let failure: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(failure["error"]["kind"], "node-unavailable", "{failure}");
}
