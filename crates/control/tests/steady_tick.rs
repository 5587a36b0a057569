//! A decision of a quiet node allocates nothing: where memory is short, an allocation may wait for
//! the very memory that the decision would free.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tidepool_control::Governor;
use tidepool_control::actuator::{Actuator, Resized};
use tidepool_control::sensor::{Roots, Sensors};
use tidepool_control_policy::{Parameters, StoreState};
use tidepool_proto::Result;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// A node with plenty of memory: whatever this machine does, no decision raises an alarm.
const MEMINFO: &str = "MemTotal: 67108864 kB\nMemFree: 41943040 kB\nMemAvailable: 50331648 kB\n\
Active(file): 4194304 kB\nInactive(file): 4194304 kB\nAnonPages: 8388608 kB\n\
Shmem: 4096 kB\nSUnreclaim: 524288 kB\n";
/// Where a kernel tells what, and what this node's tells.
const READINGS: [(&str, &str); 4] = [
    ("meminfo", MEMINFO),
    (
        "zoneinfo",
        "Node 0, zone   Normal\n  pages free     10485760\n        min      16384\n\
        \x20       low      20480\n        high     24576\n        managed  16777216\n\
        \x20       protection: (0, 0, 0)\n  pagesets\n    cpu: 0\n              count: 50\n\
        \x20             high:  60\n              batch: 10\n",
    ),
    ("vmstat", "pswpout 2\nworkingset_refault_file 4\nallocstall_normal 2\n"),
    (
        "pressure/memory",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=87372207\n\
        full avg10=0.00 avg60=0.00 avg300=0.00 total=16783225\n",
    ),
];

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: hands every request to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A full store that stays at its target.
struct Still;

impl Actuator for Still {
    fn name(&self) -> &str {
        "still"
    }

    fn state(&self) -> Result<StoreState> {
        Ok(StoreState {
            capacity_bytes: 4 << 20,
            capacity_max_bytes: 4 << 20,
            resident_bytes: 4 << 20,
            block_bytes: 4 << 20,
            ..StoreState::default()
        })
    }

    fn resize(&self, _: u64, _: Duration) -> Result<Resized> {
        Ok(Resized::default())
    }
}

#[test]
fn a_quiet_decision_allocates_nothing() {
    let machine = tempfile::tempdir().unwrap();
    let proc = machine.path().join("proc");
    std::fs::create_dir_all(proc.join("pressure")).unwrap();
    for (name, text) in READINGS {
        std::fs::write(proc.join(name), text).unwrap();
    }
    let roots = Roots { root: machine.path().to_owned(), store_process: None };
    let sensors = Sensors::open(roots).unwrap();
    let stores: Vec<Arc<dyn Actuator>> = vec![Arc::new(Still)];
    let mut governor =
        Governor::new(Box::new(sensors), stores, Parameters::default(), None).unwrap();
    // The search for jobs, once a second, lists directories; it is the first of each hundred.
    let mut at_ms = 0;
    let mut decide = |decisions: u64| {
        let before = ALLOCATIONS.get();
        for _ in 0..decisions {
            governor.tick(at_ms * 1_000_000);
            at_ms += 10;
        }
        ALLOCATIONS.get() - before
    };
    decide(100);
    assert!(decide(1) > 0, "the search counts, so others would");
    assert_eq!(decide(99), 0);
    assert_eq!(governor.report().ticks, 200);
}
