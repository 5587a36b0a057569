//! Tests of help, usage errors and exit codes without a node.

use std::path::Path;
use std::process::Command;

use super::{run, stderr, stdout, tidepool};

fn code(arguments: &[&str]) -> i32 {
    run(arguments).status.code().expect("the program was not killed")
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let help = stdout(&output);
    let commands = [
        "node",
        "status",
        "top",
        "explain",
        "load",
        "evict",
        "pin",
        "unpin",
        "resize",
        "policy",
        "doctor",
        "config",
        "bench",
        "metrics",
        "Exit codes",
    ];
    for command in commands {
        assert!(help.contains(command), "{command} is missing in\n{help}");
    }
    assert!(!help.contains("generate"), "generate is for packagers");
    assert!(stdout(&run(&["--version"])).starts_with("tidepool 0."));
}

#[test]
fn every_option_is_in_the_help_of_start() {
    let help = stdout(&run(&["node", "start", "--help"]));
    for spec in tidepool_proto::option::OPTIONS {
        assert!(help.contains(&format!("--{}", spec.flag())), "--{} is missing", spec.flag());
    }
}

#[test]
fn usage_errors_exit_with_2_and_say_what_is_valid() {
    for arguments in [
        &["no-such-command"][..],
        &["load"],
        &["resize"],
        &["resize", "8XiB"],
        &["resize", "101%"],
        &["policy", "random"],
        &["evict"],
        &["evict", "--all", "file"],
        &["load", "--jobs", "0", "file"],
        &["node", "start"],
        &["node", "start", "--pfs", "/", "--memory", "much"],
        &["node", "start", "--pfs", "/", "--memory", "1000TiB"],
        &["node", "start", "--pfs", "/", "--block-bytes", "3MiB"],
        &["node", "start", "--pfs", "/", "--mount", "/mnt"],
        &["node", "start", "--no-such-option"],
        &["bench"],
        &["bench", "compare", "--pattern", "backwards"],
        &["config", "--check", "--pfs", "/", "--transfers", "0"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(!output.stderr.is_empty(), "{arguments:?} says nothing");
    }
    let message = stderr(&run(&["node", "start", "--pfs", "/", "--memory", "1000TiB"]));
    assert!(message.contains("is more than") && message.contains("such as 60%"), "{message}");
    let message = stderr(&run(&["policy", "random"]));
    assert!(message.contains("lru, lfu, s3fifo, cyclic, fixed, adaptive"), "{message}");
    let message = stderr(&run(&["bench", "compare", "--pattern", "backwards"]));
    assert!(message.contains("sequential, random, scan, write"), "{message}");
}

#[test]
fn without_a_node_every_command_exits_with_3() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let socket = socket.to_str().unwrap();
    for arguments in [
        &["status"][..],
        &["node", "status"],
        &["node", "stop"],
        &["node", "drain"],
        &["explain", "/etc/passwd"],
        &["load", "/etc/passwd"],
        &["evict", "--all"],
        &["pin", "/etc/passwd"],
        &["unpin", "/etc/passwd"],
        &["resize", "1GiB"],
        &["resize", "50%"],
        &["policy"],
        &["top", "--json", "1"],
        &["bench", "compare"],
        &["metrics"],
        &["config"],
    ] {
        let output = run(&[arguments, &["--socket", socket]].concat());
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains("none.sock"), "{arguments:?} names no socket: {message}");
    }
    let by_variable = tidepool().arg("status").env("TIDEPOOL_SOCKET", socket).output().unwrap();
    assert_eq!(by_variable.status.code(), Some(3));
    assert!(stderr(&by_variable).contains("none.sock"));
}

#[test]
fn doctor_examines_the_machine_without_a_node() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let output = run(&["doctor", "--json", "--socket", socket.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["healthy"], false);
    let checks = report["checks"].as_array().unwrap();
    for name in ["kernel", "fuse-device", "huge-pages", "memory", "stale-mounts", "hit-path"] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name} is missing");
    }
    let proof = checks.iter().find(|check| check["name"] == "hit-path").unwrap();
    assert_eq!(proof["outcome"], "skipped", "nothing is called proven without a node");
}

#[test]
fn doctor_without_a_node_examines_the_machine_where_the_environment_names_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let output = tidepool().arg("doctor").env("TIDEPOOL_SOCKET", socket).output().unwrap();
    assert_ne!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(super::stdout(&output).contains("start a node"), "{}", super::stdout(&output));
}

#[test]
fn an_argument_that_is_no_text_is_named() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"/mnt/\xff");
    let output = tidepool().args(["node", "start", "--pfs", "/", "--mount"]).arg(odd).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("--mount") && message.contains("UTF-8"), "{message}");
}

#[test]
fn config_check_shows_value_unit_origin_and_doc() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.toml");
    std::fs::write(&file, "pfs = \"/\"\nmemory = \"1GiB\"\ntransfers = 4\n").unwrap();
    let output = tidepool()
        .args(["config", "--check", "--json", "--transfers", "6", "--config"])
        .arg(&file)
        .env("TIDEPOOL_POLICY", "lfu")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let entries: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let entry = |name: &str| {
        let entries = entries.as_array().unwrap();
        entries.iter().find(|entry| entry["name"] == name).cloned().unwrap()
    };
    assert_eq!(
        (entry("memory")["value"].as_str(), entry("memory")["origin"].as_str()),
        (Some("1GiB"), Some("file"))
    );
    assert_eq!(entry("transfers")["value"], "6");
    assert_eq!(entry("transfers")["origin"], "command line");
    assert_eq!(entry("policy")["origin"], "environment");
    assert_eq!(entry("block_bytes")["origin"], "default");
    assert_eq!(entry("block_bytes")["unit"], "bytes");
    assert!(entry("block_bytes")["doc"].as_str().unwrap().len() > 10);
}

#[test]
fn a_corrupted_file_is_refused_with_line_and_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.toml");
    std::fs::write(&file, "pfs = \"/\"\nmemori = \"1GiB\"\n").unwrap();
    let output = tidepool().args(["node", "start", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("node.toml line 2"), "{message}");
    assert!(message.contains("did you mean `memory`?"), "{message}");
}

#[test]
fn output_to_a_closed_pipe_is_no_panic() {
    let mut child = tidepool()
        .arg("--help")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}

#[test]
fn a_live_view_needs_a_terminal_and_missing_directories_are_4() {
    assert_eq!(code(&["doctor", "--pfs", "/no/such/directory"]), 4);
    assert_eq!(code(&["doctor", "--pfs", "/etc/passwd"]), 2);
}

#[test]
fn the_example_configuration_is_valid_as_it_is_and_with_every_line_on() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = top.join("deploy/tidepool.toml");
    let text = std::fs::read_to_string(&example).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("all.toml");
    // Lines with a value begin with `#` and no blank; user names must exist on this machine.
    let on: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .collect();
    std::fs::write(&file, on.join("\n").replace("\"alice\"", "\"root\"")).unwrap();
    for path in [&example, &file] {
        let output = run(&["config", "--check", "--config", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}: {}", path.display(), stderr(&output));
    }
    let all = std::fs::read_to_string(&file).unwrap();
    for spec in tidepool_proto::option::OPTIONS {
        assert!(all.lines().any(|line| line.starts_with(&format!("{} = ", spec.name))));
    }
}

#[test]
fn a_command_of_a_laboratory_that_is_not_installed_is_refused_with_what_to_install() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("tidepool");
    std::fs::copy(env!("CARGO_BIN_EXE_tidepool"), &alone).unwrap();
    let run = |arguments: &[&str]| {
        Command::new(&alone).args(arguments).env("PATH", directory.path()).output().unwrap()
    };
    for arguments in [&["plan", "--json"][..], &["control", "tune", "--json"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("install it: package tidepool-lab"), "{output:?}");
        assert!(stdout(&output).contains("\"unsupported\""), "{output:?}");
    }
    let output = run(&["plane", "status", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("install it: package tidepool-plane"), "{output:?}");
    let output = run(&["plane", "agent", "--cluster", "c"]);
    assert_eq!(output.status.code(), Some(2), "usage needs no other program: {output:?}");
    std::os::unix::fs::symlink("tidepool", directory.path().join("tidepool-lab")).unwrap();
    let output = run(&["plan"]);
    assert_eq!(output.status.code(), Some(1), "it must not start itself for ever");
    assert!(stderr(&output).contains("is `tidepool` itself"), "{output:?}");
    assert!(run(&["help"]).status.success(), "help needs no laboratory");
}
