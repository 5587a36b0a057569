//! Tests of the whole controller on the real kernel: a store in memory and a job that grows, both
//! inside a control group of the test's own.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, ftruncate, memfd_create};
use tidepool_control::actuator::{Actuator, Resized};
use tidepool_control::sensor::{GroupVersion, Roots, Sensors, places};
use tidepool_control::{Governor, Priority, start};
use tidepool_control_policy::{Parameters, Reason, StoreState};
use tidepool_proto::mounts::MountTable;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::fakes::wait_until;
use crate::skip::skip;

const MIB: u64 = 1 << 20;
const GROUP_BYTES: u64 = 384 * MIB;
const STORE_BYTES: u64 = 256 * MIB;
const JOB_BYTES: u64 = 192 * MIB;
/// Marks a process of this test.
const PART: &str = "TIDEPOOL_TEST_GROUP_PART";

/// A store in a memory file, which frees by punching holes from its front.
struct MemoryStore {
    file: OwnedFd,
    capacity_bytes: Mutex<u64>,
}

impl MemoryStore {
    fn full() -> Arc<Self> {
        let file = memfd_create("store", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, STORE_BYTES).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, STORE_BYTES).unwrap();
        Arc::new(MemoryStore { file, capacity_bytes: Mutex::new(STORE_BYTES) })
    }

    fn resident_bytes(&self) -> u64 {
        fstat(&self.file).unwrap().st_blocks as u64 * 512
    }
}

impl Actuator for MemoryStore {
    fn name(&self) -> &str {
        "memory"
    }

    fn state(&self) -> Result<StoreState> {
        Ok(StoreState {
            name: "memory".to_owned(),
            resident_bytes: self.resident_bytes(),
            capacity_bytes: *self.capacity_bytes.lock(),
            capacity_max_bytes: STORE_BYTES,
            block_bytes: 2 * MIB,
            process_id: std::process::id(),
            ..StoreState::default()
        })
    }

    fn resize(&self, capacity_bytes: u64, _: Duration) -> Result<Resized> {
        let begun = Instant::now();
        *self.capacity_bytes.lock() = capacity_bytes;
        let before = self.resident_bytes();
        let punched = STORE_BYTES.saturating_sub(capacity_bytes);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if punched > 0 {
            fallocate(&self.file, flags, 0, punched).map_err(|error| {
                Error::new(ErrorKind::Internal, "punching", "").caused_by(error)
            })?;
        }
        let resident_bytes = self.resident_bytes();
        let freed_bytes = before.saturating_sub(resident_bytes);
        Ok(Resized { freed_bytes, resident_bytes, elapsed: begun.elapsed() })
    }
}

/// A group with a limit; removed when dropped.
struct Group(PathBuf);

impl Group {
    /// `None` where this user may not make one, or the hierarchy does not count memory.
    fn make() -> Option<Self> {
        let mounts = MountTable::read().ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        places(&own, &mounts).into_iter().find_map(|place| {
            if place.version == GroupVersion::V2 {
                // A group counts only what its parent lets its children count.
                fs::write(place.top.join("cgroup.subtree_control"), "+memory").ok()?;
            }
            let name = format!("tidepool-test-{}", std::process::id());
            let directory = place.top.join(name);
            fs::create_dir(&directory).ok()?;
            let group = Group(directory);
            let limit = match place.version {
                GroupVersion::V1 => "memory.limit_in_bytes",
                GroupVersion::V2 => "memory.max",
            };
            fs::write(group.0.join(limit), GROUP_BYTES.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group of a process that just ended may be busy for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn part(name: &str, argument: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("group::child_{name}"), "--nocapture", "--ignored"])
        .env(PART, argument)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_job_in_the_stores_group_gets_its_memory() {
    let Some(group) = Group::make() else {
        let reason = "needs the right to make a control group with a limit";
        skip("a_job_in_the_stores_group_gets_its_memory", reason);
        return;
    };
    let status = part("governs", &group.0).wait().unwrap();
    assert!(status.success(), "{status}: the group ran out of memory, or see above");
}

/// Enters the group, fills a store there, and starts a job beside it.
#[test]
#[ignore = "a part of another test: a process of its own"]
fn child_governs() {
    let Some(group) = std::env::var_os(PART).map(PathBuf::from) else { return };
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let store = MemoryStore::full();
    let sensors = Box::new(Sensors::open(Roots::default()).unwrap());
    let stores: Vec<Arc<dyn Actuator>> = vec![store.clone()];
    let governor = Governor::new(sensors, stores, Parameters::default(), None).unwrap();
    let handle = start(governor, Priority::Ordinary).unwrap();
    wait_until("the limit", || {
        handle.report().snapshot.limits.iter().any(|limit| {
            limit.holds_store && limit.limit_bytes == GROUP_BYTES && limit.used_bytes >= STORE_BYTES
        })
    });
    let mut job = part("grows", &group);
    let ended = job.wait().unwrap();
    assert!(ended.success(), "the job ended with {ended}");
    let report = handle.report();
    assert!(report.recent.iter().any(|decision| decision.reason == Reason::Limit), "{report:?}");
    assert!(report.stores[0].freed_bytes > 0, "{report:?}");
    assert!(store.resident_bytes() < GROUP_BYTES - JOB_BYTES, "{report:?}");
}

/// Takes its memory step by step: together with a full store more than the group may have.
#[test]
#[ignore = "a part of another test: a process of its own"]
fn child_grows() {
    if std::env::var_os(PART).is_none() {
        return;
    }
    let mut memory = Vec::new();
    for _ in 0..JOB_BYTES / (2 * MIB) {
        memory.push(vec![1_u8; 2 * MIB as usize]);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        memory.iter().map(|piece| u64::from(piece[4096])).sum::<u64>(),
        JOB_BYTES / (2 * MIB)
    );
}
