//! Tests of failing commands: an object where JSON was asked for, the answers for other files, and
//! hints that help.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::node::Daemon;
use super::{run, stderr, stdout, tidepool};

const MIB: usize = 1 << 20;

fn error_of(output: &std::process::Output) -> Value {
    let whole: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON: {}{}", stdout(output), stderr(output)));
    whole["error"].clone()
}

#[test]
fn with_json_a_failure_is_json_too() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let socket = socket.to_str().unwrap();
    for arguments in [
        &["status"][..],
        &["node", "stop"],
        &["node", "drain"],
        &["load", "/etc/passwd"],
        &["explain", "/etc/passwd"],
        &["evict", "--all"],
        &["unpin", "/etc/passwd"],
        &["resize", "1GiB"],
        &["policy"],
        &["control", "status"],
        &["metrics"],
        &["config"],
        &["bench", "compare"],
        &["top", "--json", "1"],
    ] {
        let output = run(&[arguments, &["--socket", socket], &json(arguments)].concat());
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        let error = error_of(&output);
        assert_eq!(error["kind"], "node-unavailable", "{arguments:?}");
        assert!(error["message"].as_str().unwrap().contains("none.sock"), "{error}");
        assert!(error["remedy"].as_str().unwrap().contains("--socket"), "{error}");
        assert!(stderr(&output).contains("none.sock"), "people are told as before");
    }
    let plain = run(&["status", "--socket", socket]);
    assert_eq!(stdout(&plain), "");
    for arguments in [&["resize", "8XiB", "--json"][..], &["status", "--jsn", "--json"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(error_of(&output)["kind"], "invalid-input", "{arguments:?}");
    }
    let start =
        run(&["node", "start", "--pfs", "/no/such/directory", "--json", "--socket", socket]);
    assert_eq!(start.status.code(), Some(4), "{}", stderr(&start));
    assert_eq!(error_of(&start)["kind"], "invalid-input");
}

fn json(arguments: &[&str]) -> Vec<&'static str> {
    if arguments.contains(&"--json") { vec![] } else { vec!["--json"] }
}

#[test]
fn explain_tells_what_it_knows_beside_what_fails() {
    let daemon = Daemon::start(&[]);
    let good = daemon.write("good", MIB);
    let both = daemon.run(&["explain", "--json", "tide:///bad", &good]);
    assert_eq!(both.status.code(), Some(4), "{}", stderr(&both));
    let answers: Value = serde_json::from_slice(&both.stdout).unwrap();
    assert_eq!(answers[0]["path"], "tide:///bad");
    assert_eq!(answers[0]["error"]["kind"], "pfs");
    assert_eq!((&answers[1]["path"], &answers[1]["size_bytes"]), (&"good".into(), &MIB.into()));
    let text = daemon.run(&["explain", "tide:///bad", &good]);
    assert_eq!(text.status.code(), Some(4));
    assert!(stdout(&text).starts_with("tide:///good"), "{}", stdout(&text));
    assert!(stderr(&text).contains("pfs/bad"), "{}", stderr(&text));
    let sets = daemon.run(&["explain", "-r", "--json", "tide:///bad", "tide:///"]);
    assert_eq!(sets.status.code(), Some(4), "{}", stderr(&sets));
    let sets: Value = serde_json::from_slice(&sets.stdout).unwrap();
    assert_eq!((&sets[0]["error"]["kind"], &sets[1]["files"]), (&"pfs".into(), &1.into()));
}

#[test]
fn an_answer_that_cannot_be_printed_is_a_failure() {
    let daemon = Daemon::start(&[]);
    let answers =
        [&["status"][..], &["status", "--json"], &["config"], &["metrics"], &["status", "-h"]];
    for arguments in answers {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = daemon.command(arguments);
        let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("No space left"), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_node_does_not_mount_in_the_mount_of_another() {
    let daemon = Daemon::start(&[]);
    if !daemon.mounted {
        return;
    }
    let socket = daemon.path("other.sock");
    for inner in ["mnt/inner", "mnt/a/b"] {
        let mut start = tidepool();
        start.args(["node", "start", "--memory", "16MiB", "--control", "off", "--pfs"]);
        start.arg(daemon.path("pfs")).arg("--mount").arg(daemon.path(inner));
        let output = start.arg("--socket").arg(&socket).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("mount of another node"), "{}", stderr(&output));
        assert_eq!(std::fs::read_dir(daemon.path("pfs")).unwrap().count(), 0);
    }
}

/// Standard outputs that take nothing, with the exit code of a program that meets them.
fn deaf_outputs() -> [(Stdio, i32); 2] {
    // Shut down rather than closed: a process that is just being made may hold a descriptor still.
    let (gone, output) = UnixStream::pair().unwrap();
    gone.shutdown(Shutdown::Both).unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    [(OwnedFd::from(output).into(), 0), (full.into(), 1)]
}

#[test]
fn a_command_whose_answer_is_not_taken_puts_away_what_it_made() {
    let directory = tempfile::tempdir().unwrap();
    let compare = ["bench", "compare", "--size", "4MiB", "--rounds", "1"];
    for arguments in [&compare[..], &["doctor"]] {
        for (output, code) in deaf_outputs() {
            let mut command = tidepool();
            command.args(arguments).arg("--pfs").arg(directory.path()).stdout(output);
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            let id = child.id();
            assert_eq!(child.wait().unwrap().code(), Some(code), "{arguments:?}, not {code}");
            let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
            assert!(left.is_empty(), "{arguments:?}: {left:?}");
            let memory = format!("/dev/shm/.tidepool-measurement-{id}-0");
            assert!(!std::path::Path::new(&memory).exists(), "{memory}");
        }
    }
}

#[test]
fn a_node_in_front_serves_on_where_nobody_takes_its_summary() {
    for (output, _) in deaf_outputs() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("node.sock");
        let mut node = tidepool();
        node.args(["node", "start", "--foreground", "--memory", "16MiB", "--control", "off"]);
        node.arg("--pfs").arg(directory.path()).arg("--socket").arg(&socket);
        let mut node = node.stdout(output).stderr(Stdio::null()).spawn().unwrap();
        let ask = |word: &str| tidepool().args(["node", word, "--socket"]).arg(&socket).output();
        while !ask("status").unwrap().status.success() {
            assert_eq!(node.try_wait().unwrap(), None, "it ended");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // After the summary, too.
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(ask("stop").unwrap().status.success());
        assert!(node.wait().unwrap().success());
    }
}

fn end(process_id: u32, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_raw(process_id.cast_signed()).unwrap();
    rustix::process::kill_process(id, signal).unwrap();
}

#[test]
fn a_start_that_is_interrupted_leaves_no_node() {
    let mut interrupted = 0;
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("pfs")).unwrap();
        let mut start = tidepool();
        start.args(["node", "start", "--memory", "16MiB", "--control", "off", "--pfs"]);
        start.arg(path("pfs")).arg("--socket").arg(path("s")).stdout(Stdio::null());
        let start = start.stderr(Stdio::piped()).spawn().unwrap();
        while !path("s.log").exists() {
            std::thread::yield_now();
        }
        end(start.id(), rustix::process::Signal::TERM);
        let output = start.wait_with_output().unwrap();
        let ask = |word: &str| tidepool().args(["node", word, "--socket"]).arg(path("s")).output();
        if output.status.code() == Some(130) {
            interrupted += 1;
            assert!(stderr(&output).contains("stopped again"), "{}", stderr(&output));
            assert_eq!(ask("status").unwrap().status.code(), Some(3), "a node was left");
        } else {
            // It served before the signal came.
            assert!(output.status.success(), "{}", stderr(&output));
            assert!(ask("stop").unwrap().status.success());
        }
    }
    assert!(interrupted > 0, "no start was met in time");
}

#[test]
fn a_view_that_a_signal_ends_leaves_the_terminal_as_it_was() {
    let daemon = Daemon::start(&[]);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::HUP] {
        let mut command = Command::new("script");
        let top = "stty -echo; echo $$ > id; exec \"$program\" top --socket \"$socket\"";
        command.args(["-qfec", top, "/dev/null"]).current_dir(daemon.path("."));
        command
            .env("program", env!("CARGO_BIN_EXE_tidepool"))
            .env("socket", daemon.path("node.sock"));
        command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut screen = child.stdout.take().unwrap();
        let (mut shown, mut chunk) = (String::new(), [0; 4096]);
        let mut asked = false;
        loop {
            let count = std::io::Read::read(&mut screen, &mut chunk).unwrap();
            if count == 0 {
                break;
            }
            shown += &String::from_utf8_lossy(&chunk[..count]);
            if !asked && shown.contains("\x1b[?1049h") {
                let id = std::fs::read_to_string(daemon.path("id")).unwrap();
                end(id.trim().parse().unwrap(), signal);
                asked = true;
            }
        }
        assert_eq!(child.wait().unwrap().code(), Some(130), "{shown}");
        assert!(shown.contains("\x1b[?1049l") && shown.contains("interrupted"), "{shown}");
    }
}

#[test]
fn a_resize_to_more_than_now_is_done_also_where_pins_are_in_the_way() {
    let daemon = Daemon::start(&["--pinned-share-max", "1"]);
    let file = daemon.write("pinned", 24 * MIB);
    super::node::settle();
    assert!(daemon.run(&["pin", &file]).status.success());
    let down = daemon.run(&["resize", "8MiB"]);
    assert_eq!(down.status.code(), Some(1), "{}", stderr(&down));
    let up = daemon.run(&["resize", "16MiB"]);
    assert_eq!(up.status.code(), Some(0), "{}", stderr(&up));
    assert!(stderr(&up).contains("8MiB beyond it are still held"), "{}", stderr(&up));
    let enough = daemon.run(&["resize", "32MiB"]);
    assert_eq!((enough.status.code(), stderr(&enough)), (Some(0), String::new()));
    // A size that reads the same in whole blocks is told once.
    let odd = ((48 << 20) + 1000).to_string();
    let odd = daemon.run(&["resize", &odd]);
    assert!(odd.status.success() && stderr(&odd).contains("48.00MiB is 48MiB"), "{}", stderr(&odd));
}

#[test]
fn memory_and_its_guaranteed_part_may_be_the_same() {
    let check = |size: &str| {
        let output = run(&[
            "config",
            "--check",
            "--json",
            "--pfs",
            "/",
            "--memory",
            size,
            "--memory-min",
            size,
        ]);
        assert!(output.status.success(), "{size}: {}", stderr(&output));
    };
    check("33.3%");
    check("50%");
    check("10MB");
    let message = stderr(&run(&["config", "--check", "--pfs", "/", "--memory", "120%"]));
    assert!(message.contains("`120%` is more than 100%"), "{message}");
}

#[test]
fn config_and_status_show_rules_and_quotas() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.toml");
    let rules = "[[rule]]\npath = \"scratch\"\nwrite_mode = \"memory\"\nadmit = false\n\
                 [[rule]]\npath = \"logs\"\nread_mode = \"bypass\"\n\
                 [[quota]]\nuser = \"root\"\nbytes = \"1GiB\"\n";
    std::fs::write(&file, rules).unwrap();
    let daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    let of_node = daemon.json(&["config"]);
    let mut check = tidepool();
    check.args(["config", "--check", "--json", "--pfs", "/", "--config"]).arg(&file);
    let checked: Value = serde_json::from_slice(&check.output().unwrap().stdout).unwrap();
    for entries in [of_node, checked] {
        let entry = |name: &str| {
            let entries = entries.as_array().unwrap();
            entries.iter().find(|entry| entry["name"] == name).cloned().unwrap()
        };
        assert_eq!(entry("rule scratch")["value"], "write_mode = memory, admit = false");
        assert_eq!(entry("rule scratch")["origin"], "file");
        assert_eq!(entry("rule logs")["value"], "read_mode = bypass");
        assert_eq!(entry("quota root")["value"], "bytes = 1GiB");
    }
    let text = stdout(&daemon.run(&["config"]));
    assert!(text.contains("rule scratch") && text.contains("quota root"), "{text}");
    let text = stdout(&daemon.run(&["status"]));
    assert!(text.contains("2 directory rules, 1 user quota"), "{text}");
    let status = daemon.json(&["status"]);
    assert_eq!((&status["directory_rules"], &status["user_quotas"]), (&2.into(), &1.into()));
}

#[test]
fn an_empty_socket_is_told_by_its_name() {
    for arguments in [&["status"][..], &["config"], &["load", "x"]] {
        let output = tidepool().args(arguments).env("TIDEPOOL_SOCKET", "").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains("TIDEPOOL_SOCKET") && message.contains("unset"), "{message}");
    }
}

/// Runs a script of a shell with a file system `small` of 8 MiB below directory `$1`, full but for
/// `$2` KiB; `$3` is the program.
fn with_a_full_file_system(free_kib: &str, script: &str) -> Option<std::process::Output> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can make a file system of its own");
        return None;
    }
    const STAGE: &str = r#"
set -e
cd "$1"
mkdir small; mount -t tmpfs -o size=8m none small
head -c $(((8192 - $2) * 1024)) /dev/zero > small/filler
set +e
"#;
    let directory = tempfile::tempdir().unwrap();
    let whole = format!("{STAGE}{script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &whole, "sh"]);
    command.arg(directory.path()).args([free_kib, env!("CARGO_BIN_EXE_tidepool")]);
    command.env_remove("TIDEPOOL_SOCKET").env("TIDEPOOL_CONTROL", "off");
    Some(command.output().unwrap())
}

#[test]
fn what_a_full_pfs_leaves_undone_is_told_with_what_helps() {
    let script = r#"
program=$3; s=$1/s
"$program" node start --pfs small --memory 64MiB --socket "$s" > start.out || exit 9
"$program" bench compare --size 1MiB --socket "$s"; echo "bench $?" >&2
"$program" doctor --socket "$s"; echo "doctor $?" >&2
"$program" node stop --socket "$s"
"#;
    let Some(output) = with_a_full_file_system("0", script) else { return };
    let said = stderr(&output);
    assert!(said.contains("make room there, or measure in another directory"), "{said}");
    assert!(!said.contains("0B or less"), "{said}");
    let examined = stdout(&output);
    assert!(examined.contains("make room there: the proof writes"), "{examined}{said}");
    assert!(!examined.contains("as a user who may write there"), "{examined}");
}

#[test]
fn a_measurement_without_room_for_temporary_files_names_their_place() {
    let script = r#"
mkdir pfs
TMPDIR=$1/small "$3" bench compare --pfs pfs --size 1MiB --rounds 1; echo "bench $?" >&2
TMPDIR=$1/small "$3" calibrate --memory --memory-bytes 16MiB
"#;
    let Some(output) = with_a_full_file_system("0", script) else { return };
    let said = stderr(&output);
    let (bench, calibrate) = said.split_once("bench 1\n").unwrap_or_else(|| panic!("{said}"));
    for said in [bench, calibrate] {
        assert!(said.contains("/small") && said.contains("TMPDIR"), "{said}");
    }
    assert!(!calibrate.contains("--bytes-max"), "that is for --pfs and --disk: {calibrate}");
}
