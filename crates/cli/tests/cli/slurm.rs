//! Tests of the scripts for Slurm, with stand-ins for Slurm's programs, the system log and our own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs that note how they were called; `squeue` and `tidepool` answer as told by files.
const STUB: &str = r#"#!/bin/sh
name=${0##*/}
echo "$name $*" >> "$(dirname "$0")/calls"
cat "$(dirname "$0")/$name.$2.says" 2>/dev/null || cat "$(dirname "$0")/$name.says" 2>/dev/null
exit "$(cat "$(dirname "$0")/$name.$2.exit" 2>/dev/null || echo 0)"
"#;

struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Stage {
        let directory = tempfile::tempdir().unwrap();
        for name in ["squeue", "tidepool", "logger"] {
            let path = directory.path().join(name);
            std::fs::write(&path, STUB).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        Stage(directory)
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    /// Runs a script whose `PATH` begins with the stage, for job 7; its exit code and the calls.
    fn run(&self, name: &str) -> (i32, String) {
        let text = std::fs::read_to_string(script(name)).unwrap();
        let at = self.0.path().display();
        let staged = text.replacen("PATH=", &format!("PATH={at}:"), 1);
        assert_ne!(text, staged, "{name} sets no PATH");
        let path = self.0.path().join(name);
        std::fs::write(&path, staged).unwrap();
        self.call(&path)
    }

    fn call(&self, script: &Path) -> (i32, String) {
        let status = Command::new("/bin/sh")
            .arg(script)
            .env("PATH", self.0.path())
            .env("SLURM_JOB_ID", "7")
            .env("SLURMD_NODENAME", "node1")
            .status()
            .unwrap();
        let calls = std::fs::read_to_string(self.0.path().join("calls")).unwrap_or_default();
        (status.code().unwrap(), calls)
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/slurm").join(name)
}

#[test]
fn the_last_job_ends_the_node() {
    for listed in ["7\n", "", "\n"] {
        let stage = Stage::new();
        stage.put("squeue.says", listed);
        stage.put("tidepool.stop.says", "-- 3 files written");
        let (code, calls) = stage.run("epilog.sh");
        assert_eq!(code, 0, "{calls}");
        assert!(calls.contains("tidepool node stop"), "{calls}");
        assert!(calls.contains("logger -t tidepool-epilog -- -- 3 files written"), "{calls}");
    }
}

#[test]
fn another_job_keeps_the_node() {
    let stage = Stage::new();
    stage.put("squeue.says", "7\n8\n");
    let (code, calls) = stage.run("epilog.sh");
    assert_eq!(code, 0, "{calls}");
    assert!(!calls.contains("node stop"), "{calls}");
}

#[test]
fn a_failing_squeue_keeps_the_node() {
    let stage = Stage::new();
    stage.put("squeue.--nodelist.exit", "1");
    let (code, calls) = stage.run("epilog.sh");
    assert_eq!(code, 0, "{calls}");
    assert!(calls.contains("squeue") && !calls.contains("node stop"), "{calls}");
    assert!(calls.contains("the node goes on"), "{calls}");
}

#[test]
fn a_node_that_cannot_stop_drains_the_machine() {
    let stage = Stage::new();
    stage.put("squeue.says", "7\n");
    stage.put("tidepool.stop.exit", "1");
    let (code, calls) = stage.run("epilog.sh");
    assert_eq!(code, 1, "{calls}");
}

#[test]
fn a_mount_in_use_keeps_the_node_and_drains_nothing() {
    let stage = Stage::new();
    stage.put("squeue.says", "7\n");
    stage.put("tidepool.stop.exit", "6");
    let (code, calls) = stage.run("epilog.sh");
    assert_eq!(code, 0, "{calls}");
    assert!(calls.contains("the node goes on"), "{calls}");
}

#[test]
fn the_prolog_starts_a_node_where_there_is_none() {
    let stage = Stage::new();
    stage.put("tidepool.status.exit", "1");
    let (code, calls) = stage.run("prolog.sh");
    assert_eq!(code, 0, "{calls}");
    assert!(calls.contains("tidepool node start --config"), "{calls}");
}

#[test]
fn programs_of_the_path_that_a_job_brings_are_not_run() {
    for name in ["prolog.sh", "epilog.sh"] {
        let stage = Stage::new();
        let (_, calls) = stage.call(&script(name));
        assert_eq!(calls, "", "{name}");
    }
}
