//! Test of memory shortage: a job takes the memory of a store that holds memory-only bytes. None of
//! them is lost, and the node lives.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidepool_testkit::machine::print_skip;
use tidepool_testkit::memory_group::MemoryGroup;
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec};

const MIB: usize = 1 << 20;
const GROUP_BYTES: u64 = 512 << 20;
/// Whole blocks: nothing of them is given back by rounding.
const FILE_BYTES: usize = 40 * MIB;
const FILES: usize = 8;
/// What the job takes each tenth of a second, and how often.
const STEP_BYTES: usize = 64 * MIB;
const STEPS: usize = 5;
/// Names the control group to the process of the job.
const GROUP: &str = "TIDEPOOL_TEST_SHORTAGE_GROUP";

fn enter(group: &Path, process_id: u32) {
    fs::write(group.join("cgroup.procs"), process_id.to_string()).unwrap();
}

fn contents(number: usize) -> Vec<u8> {
    let seed = number as u64 * 7919;
    (0..FILE_BYTES as u64 / 8).flat_map(|word| (word ^ seed).to_le_bytes()).collect()
}

/// Whether the kernel was asked to spare a process when memory is short.
fn is_spared(process_id: u32) -> bool {
    let score = fs::read_to_string(format!("/proc/{process_id}/oom_score_adj"));
    score.is_ok_and(|score| score.trim().starts_with('-'))
}

fn job(group: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_takes_memory", "--ignored"])
        .env(GROUP, group)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn memory_only_bytes_outlive_a_job_that_takes_the_memory() {
    needs_mount!();
    let group = match MemoryGroup::create(GROUP_BYTES) {
        Ok(group) => group,
        Err(missing) => return print_skip("memory_only_bytes_outlive_a_job", &missing),
    };
    let arguments = ["--control", "on", "--memory-min", "0", "--write-mode", "memory"]
        .map(str::to_owned)
        .into();
    let memory = "400MiB".into();
    let node = Node::start(NodeSpec { memory, arguments, ..NodeSpec::default() }).unwrap();
    let process_id = node.process_id().unwrap();
    enter(group.path(), process_id);
    let written: HashMap<PathBuf, Vec<u8>> = (0..FILES)
        .map(|number| (PathBuf::from(format!("file{number}")), contents(number)))
        .inspect(|(name, bytes)| fs::write(node.mount().join(name), bytes).unwrap())
        .collect();
    let status = node.status().unwrap();
    assert_eq!(status.memory_only_bytes, (FILES * FILE_BYTES) as u64, "nothing is on the PFS yet");
    // Idle segments are unmapped, so that the kernel does not take them for memory of the node.
    std::thread::sleep(Duration::from_secs(3));
    let is_spared = is_spared(process_id);
    let ended = job(group.path()).wait().unwrap();
    println!("the job: {ended}");
    // A disk that is busy with others takes the bytes too slowly. Then the kernel ends somebody,
    // and where the node may not ask to be spared, once in a while the node after the job.
    if !ended.success() && !is_spared && node.status().is_err() {
        println!(
            "the disk was too slow, and the kernel chose the node, which nothing protects here"
        );
        return;
    }
    assert!(Path::new(&format!("/proc/{process_id}")).exists(), "the node was killed");
    for (name, bytes) in &written {
        let read = fs::read(node.mount().join(name)).unwrap();
        assert!(read == *bytes, "{} through the mount", name.display());
    }
    node.ask(&["node", "stop"]).unwrap();
    for (name, bytes) in &written {
        assert!(
            fs::read(node.pfs().join(name)).unwrap() == *bytes,
            "{} on the PFS",
            name.display()
        );
    }
}

/// The job: enters the group and takes its memory step by step.
#[test]
#[ignore = "a part of another test: a process of its own"]
fn child_takes_memory() {
    let Some(group) = std::env::var_os(GROUP).map(PathBuf::from) else { return };
    enter(&group, std::process::id());
    let mut taken = Vec::new();
    for _ in 0..STEPS {
        taken.push(vec![1_u8; STEP_BYTES]);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(taken.iter().map(|step| usize::from(step[4096])).sum::<usize>(), STEPS);
}
