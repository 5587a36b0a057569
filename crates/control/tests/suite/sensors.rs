//! Sensors on recorded machines and on this one.

use proptest::prelude::*;
use tidepool_control::sensor::{
    Events, JobFacts, JobSensor, MemoryCounters, Roots, Sense, Sensors, Zones, parse_pressure,
    places,
};
use tidepool_control_policy::{Limit, Pressure, Snapshot, StoreState};
use tidepool_proto::mounts::MountTable;

use crate::machine::{MEMINFO, MEMINFO_OLD, Machine, PRESSURE, VMSTAT, ZONEINFO, reading};

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;

/// Pages above the floor of four batches each, on machines with any page size.
fn hidden_bytes() -> u64 {
    (60_000 - 2 * 4 * 63) * rustix::param::page_size() as u64
}

#[test]
fn a_recorded_machine_is_read_whole() {
    let machine = Machine::recorded();
    let sensors = machine.open().unwrap();
    assert!(sensors.notes().iter().all(|note| note.contains("trigger") || note.contains("group")));
    let snapshot = machine.snapshot();
    assert_eq!(snapshot.memory_total_bytes, 64 * GIB);
    assert_eq!(snapshot.available_bytes, Some(26 * GIB - (1 << 20) + hidden_bytes()));
    assert_eq!(snapshot.pressure, Some(Pressure { some_us: 1234, full_us: 567 }));
    assert_eq!((snapshot.swapped_out_pages, snapshot.refaulted_pages), (Some(42), Some(99)));
    let used = snapshot.used_kinds_bytes.unwrap();
    assert!((34 * GIB..36 * GIB).contains(&used), "{used}");
    assert!(snapshot.limits.is_empty());
    assert!(snapshot.memory_nodes.is_empty(), "one node is no news");
}

#[test]
fn what_is_missing_is_none_and_said_in_one_line() {
    let machine = Machine::empty().with("proc/meminfo", MEMINFO);
    let snapshot = machine.snapshot();
    assert_eq!(snapshot.available_bytes, Some(26 * GIB - (1 << 20)));
    assert_eq!(snapshot.pressure, None);
    assert_eq!((snapshot.swapped_out_pages, snapshot.refaulted_pages), (None, None));
    let notes = machine.open().unwrap().notes();
    for word in ["per-CPU", "pswpout", "refaults", "pressure", "control group"] {
        let said = notes.iter().filter(|note| note.contains(word)).count();
        assert_eq!(said, 1, "{word}: {notes:?}");
    }
    assert!(notes.iter().all(|note| !note.contains('\n')));
}

#[test]
fn old_kernels_are_estimated() {
    let machine = Machine::empty().with("proc/meminfo", MEMINFO_OLD);
    // Free, clean pages of files, half of the reclaimable slabs; less what is dirty.
    let expected = 20 * GIB + 8 * GIB + GIB / 4 - (1 << 20);
    assert_eq!(machine.snapshot().available_bytes, Some(expected));
    assert!(machine.open().unwrap().notes()[0].contains("3.14"));
}

#[test]
fn a_machine_without_meminfo_cannot_be_controlled() {
    for machine in [Machine::empty(), Machine::empty().with("proc/meminfo", "MemTotal: 0 kB\n")] {
        let error = machine.open().err().unwrap();
        assert!(error.to_string().contains("MemTotal is missing (mount /proc"), "{error}");
    }
}

#[test]
fn a_sensor_that_fails_later_is_none_and_recovers() {
    let machine = Machine::recorded();
    let mut sensors = machine.open().unwrap();
    let good = reading(&mut sensors, 0);
    for bad in ["", "MemTotal:", "\u{fffd}garbage\n\n", "MemAvailable: 99999999999999999999 kB\n"] {
        machine.set("proc/meminfo", bad);
        let mut snapshot = good.clone();
        sensors.read(SECOND, 0, &mut snapshot);
        assert_eq!((snapshot.available_bytes, snapshot.used_kinds_bytes), (None, None), "{bad}");
        assert_eq!(snapshot.memory_total_bytes, 64 * GIB, "what is known stays");
    }
    machine.set("proc/meminfo", MEMINFO);
    assert_eq!(reading(&mut sensors, 2 * SECOND).available_bytes, good.available_bytes);
    machine.set("proc/pressure/memory", &PRESSURE[..50]);
    assert_eq!(reading(&mut sensors, 3 * SECOND).pressure, None);
}

#[test]
fn ten_times_as_much_is_not_believed() {
    let machine = Machine::recorded();
    let jumped = MEMINFO.replace("MemAvailable:   27262976", "MemAvailable:   67000000");
    machine.set("proc/meminfo", jumped);
    assert_eq!(machine.snapshot().available_bytes, None);
}

#[test]
fn memory_that_comes_or_goes_is_followed_at_once() {
    let machine = Machine::recorded();
    let mut sensors = machine.open().unwrap();
    reading(&mut sensors, 0);
    machine.set("proc/meminfo", MEMINFO.replace("67108864", "62914560"));
    assert_eq!(reading(&mut sensors, 1).memory_total_bytes, 60 * GIB);
}

#[test]
fn hidden_lists_are_read_at_once_where_memory_moved() {
    let machine = Machine::recorded();
    let mut sensors = machine.open().unwrap();
    let before = reading(&mut sensors, 0).available_bytes.unwrap();
    machine.set("proc/zoneinfo", ZONEINFO.replace("40000", "0").replace("20000", "0"));
    let lazily = reading(&mut sensors, 10_000_000).available_bytes;
    assert_eq!(lazily, Some(before), "an idle machine is not read all the time");
    sensors.memory_moved();
    let after = reading(&mut sensors, 20_000_000).available_bytes;
    assert_eq!(after, Some(before - hidden_bytes()));
    machine.set("proc/zoneinfo", ZONEINFO);
    assert_eq!(reading(&mut sensors, SECOND / 2).available_bytes, Some(before), "for a while");
    let exited = MEMINFO.replace("AnonPages:      31457280", "AnonPages:      30457280");
    machine.set("proc/zoneinfo", ZONEINFO.replace("40000", "0").replace("20000", "0"));
    reading(&mut sensors, 2 * SECOND);
    machine.set("proc/zoneinfo", ZONEINFO);
    machine.set("proc/meminfo", exited);
    let after_exit = reading(&mut sensors, 2 * SECOND + 1).available_bytes;
    assert_eq!(after_exit, Some(before), "an exit moves memory too");
}

#[test]
fn two_nodes_are_told_apart() {
    let node = |number: u32, free: u64| {
        format!(
            "Node {number} MemTotal: 33554432 kB\nNode {number} MemFree: {free} kB\n\
             Node {number} Active(file): 1024 kB\nNode {number} Inactive(file): 1024 kB\n\
             Node {number} Shmem: 2048 kB\n"
        )
    };
    let machine = Machine::recorded()
        .with("sys/devices/system/node/node0/meminfo", node(0, 4096))
        .with("sys/devices/system/node/node1/meminfo", node(1, 16384))
        .with("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 0 kB\n");
    let nodes = machine.snapshot().memory_nodes;
    assert_eq!(nodes.iter().map(|node| node.number).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(nodes[0].available_bytes, (6 << 20) + hidden_bytes());
    assert_eq!((nodes[1].available_bytes, nodes[1].stored_bytes), (18 << 20, 2 << 20));
}

#[test]
fn groups_of_the_second_version_limit() {
    let machine = Machine::recorded()
        .with("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        .with("proc/self/cgroup", "0::/tide/controller\n")
        .with("proc/77/cgroup", "0::/tide/node\n")
        .with("sys/fs/cgroup/tide/memory.max", "8589934592\n")
        .with("sys/fs/cgroup/tide/memory.high", "4294967296\n")
        .with("sys/fs/cgroup/tide/memory.current", "3221225472\n")
        .with("sys/fs/cgroup/tide/memory.stat", "inactive_file 1073741824\nfile_dirty 0\n")
        .with("sys/fs/cgroup/tide/memory.events", "low 0\nhigh 5\nmax 2\noom 1\noom_kill 0\n")
        .with("sys/fs/cgroup/tide/controller/memory.max", "1024\n")
        .with("sys/fs/cgroup/tide/controller/memory.current", "512\n")
        .with("sys/fs/cgroup/tide/node/memory.max", "max\n")
        .with("sys/fs/cgroup/tide/node/memory.current", "99\n");
    let mut sensors = machine.open_for(Some(77)).unwrap();
    let limits = reading(&mut sensors, 0).limits;
    assert_eq!(limits.len(), 1, "the controller's own group holds no store: {limits:?}");
    assert_eq!((limits[0].name.as_str(), limits[0].holds_store), ("/tide", true));
    assert_eq!((limits[0].limit_bytes, limits[0].used_bytes), (4 * GIB, 2 * GIB));
    assert_eq!(limits[0].hits, 3);

    machine.set("sys/fs/cgroup/tide/memory.high", "2147483648\n");
    let lowered = reading(&mut sensors, 1).limits;
    assert_eq!(lowered[0].limit_bytes, 2 * GIB, "a limit that changes counts at the next tick");
    machine.set("sys/fs/cgroup/tide/memory.current", "garbage");
    assert!(reading(&mut sensors, 2).limits.is_empty(), "unreadable is not zero");
    machine.remove("sys/fs/cgroup/tide");
    assert!(reading(&mut sensors, 2 * SECOND).limits.is_empty());
}

#[test]
fn a_store_counts_against_the_groups_that_its_process_is_in() {
    let mut machine = Machine::recorded()
        .with("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        .with("proc/77/cgroup", "0::/tide/node\n")
        .with("proc/78/cgroup", "0::/tide/node\n")
        .with("proc/79/cgroup", "0::/tide/other\n")
        .with("proc/80/cgroup", "0::/elsewhere\n");
    for group in ["tide", "tide/node", "tide/other"] {
        machine = machine
            .with(&format!("sys/fs/cgroup/{group}/memory.max"), "8589934592\n")
            .with(&format!("sys/fs/cgroup/{group}/memory.current"), "1\n");
    }
    let mut sensors = machine.open_for(Some(77)).unwrap();
    // The node, one beside it, one in the group above, one elsewhere, one that is not known.
    let stores = [77, 78, 79, 80, 0]
        .map(|process_id| StoreState { process_id, ..StoreState::default() })
        .to_vec();
    let mut snapshot = Snapshot { stores, ..Snapshot::default() };
    sensors.read(0, 0, &mut snapshot);
    let inside = |snapshot: &Snapshot| -> Vec<(String, Vec<bool>)> {
        let of = |limit: &Limit| (0..5).map(|store| limit.charges(store)).collect();
        snapshot.limits.iter().map(|limit| (limit.name.clone(), of(limit))).collect()
    };
    let innermost = |third| vec![true, true, third, false, false];
    let expected = |third| {
        vec![
            ("/tide/node".to_owned(), innermost(third)),
            ("/tide".to_owned(), vec![true, true, true, false, false]),
        ]
    };
    assert_eq!(inside(&snapshot), expected(false));
    machine.set("proc/79/cgroup", "0::/tide/node\n");
    sensors.read(2 * SECOND, 0, &mut snapshot);
    assert_eq!(inside(&snapshot), expected(true), "it moved");
    snapshot.stores[2].process_id = 80;
    sensors.read(2 * SECOND + 1, 0, &mut snapshot);
    assert!(!snapshot.limits[0].charges(2) && !snapshot.limits[1].charges(2), "started again");
}

#[test]
fn near_its_limit_a_group_trades_page_cache_for_a_job_and_each_decision_sees_it() {
    let group = "sys/fs/cgroup/tide";
    let (limit, cache) = (GIB, GIB / 2);
    let machine = Machine::recorded()
        .with("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        .with("proc/self/cgroup", "0::/tide\n")
        .with(&format!("{group}/memory.max"), format!("{limit}\n"))
        .with(&format!("{group}/memory.current"), format!("{limit}\n"))
        .with(&format!("{group}/memory.stat"), format!("inactive_file {cache}\n"))
        .with(&format!("{group}/memory.events"), "max 1\n");
    let mut sensors = machine.open().unwrap();
    assert_eq!(reading(&mut sensors, 0).limits[0].used_bytes, GIB / 2);
    machine.set(&format!("{group}/memory.stat"), "inactive_file 0\n");
    machine.set(&format!("{group}/memory.events"), "max 9\n");
    let traded = reading(&mut sensors, 1).limits;
    assert_eq!((traded[0].used_bytes, traded[0].hits), (GIB, 9));
    // Far from the limit nothing is traded, and the statistics are not worth their price.
    machine.set(&format!("{group}/memory.current"), format!("{}\n", GIB / 2));
    machine.set(&format!("{group}/memory.stat"), format!("inactive_file {cache}\n"));
    assert_eq!(reading(&mut sensors, 2).limits[0].used_bytes, GIB / 2);
    assert_eq!(reading(&mut sensors, SECOND).limits[0].used_bytes, 0);
}

#[test]
fn slurm_jobs_come_and_go() {
    let scope = "sys/fs/cgroup/system.slice/node1_slurmstepd.scope";
    let machine = Machine::recorded()
        .with("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        .with("proc/self/cgroup", "0::/system.slice/tidepool.service\n")
        .with("sys/fs/cgroup/system.slice/tidepool.service/memory.max", "max\n");
    let mut sensors = machine.open().unwrap();
    assert!(reading(&mut sensors, 0).limits.is_empty());
    machine.set(&format!("{scope}/job_7/memory.max"), "1073741824\n");
    machine.set(&format!("{scope}/job_7/memory.current"), "1048576\n");
    let limits = reading(&mut sensors, 2 * SECOND).limits;
    assert_eq!(limits.len(), 1);
    assert!(!limits[0].holds_store, "a job at its own limit is no reason to shrink");
    assert_eq!(limits[0].name, "/system.slice/node1_slurmstepd.scope/job_7");
    machine.remove(&format!("{scope}/job_7"));
    assert!(reading(&mut sensors, 4 * SECOND).limits.is_empty());
}

fn roots(machine: &Machine) -> Roots {
    Roots { root: machine.path().to_owned(), store_process: None }
}

#[test]
fn jobs_are_told_with_their_owners_and_their_memory() {
    let me = rustix::process::geteuid().as_raw();
    let scope = "sys/fs/cgroup/system.slice/slurmstepd.scope";
    let machine = Machine::recorded()
        .with("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        .with("proc/self/cgroup", "0::/system.slice/tidepool.service\n")
        .with("sys/fs/cgroup/system.slice/tidepool.service/memory.max", "max\n")
        .with("proc/71/status", "")
        .with(&format!("{scope}/job_7/memory.current"), "1048576\n")
        .with(&format!("{scope}/job_7/step_0/slurm/cgroup.procs"), "1\n")
        .with(&format!("{scope}/job_7/step_0/user/cgroup.procs"), "")
        .with(&format!("{scope}/job_7/step_0/user/task_0/cgroup.procs"), "70\n71\n")
        .with(&format!("{scope}/job_8/memory.current"), "5\n")
        .with(&format!("{scope}/job_9/step_0/user/cgroup.procs"), "71\n");
    let job = |name: &str, user_id, used_bytes| JobFacts { name: name.into(), user_id, used_bytes };
    let mut sensor = JobSensor::new(roots(&machine));
    let expected = [job("7", Some(me), 1 << 20), job("8", None, 5)];
    assert_eq!(sensor.look(), expected, "the third one just ended");
    let machine = machine
        .with(&format!("{scope}/job_7/memory.current"), "4096\n")
        .with(&format!("{scope}/job_7/step_0/user/task_0/cgroup.procs"), "")
        .with(&format!("{scope}/job_8/step_0/user/task_0/cgroup.procs"), "71\n")
        .with(&format!("{scope}/job_9/memory.current"), "6\n");
    let expected = [job("7", Some(me), 4096), job("8", Some(me), 5), job("9", Some(me), 6)];
    assert_eq!(sensor.look(), expected, "an owner stays the one that was seen");
    let many: Vec<String> = (100..300).map(|number| format!("job_{number}")).collect();
    let add = |machine: Machine, name: &String| {
        machine.with(&format!("{scope}/{name}/memory.current"), "1\n")
    };
    let _machine = many.iter().fold(machine, add);
    assert_eq!(sensor.look().len(), many.len() + 3, "none is left out");
    let top = "sys/fs/cgroup/memory";
    let machine = Machine::recorded()
        .with("proc/self/mountinfo", "3 2 0:2 / /sys/fs/cgroup/memory rw - cgroup c rw,memory\n")
        .with("proc/self/cgroup", "4:memory:/tide\n")
        .with(&format!("{top}/tide/memory.usage_in_bytes"), "5\n")
        .with(&format!("{top}/slurm/uid_5/job_9/memory.usage_in_bytes"), "4096\n");
    assert_eq!(JobSensor::new(roots(&machine)).look(), [job("9", Some(5), 4096)]);
}

#[test]
fn groups_of_the_first_version_limit() {
    let top = "sys/fs/cgroup/memory";
    let machine = Machine::recorded()
        .with("proc/self/mountinfo", "3 2 0:2 / /sys/fs/cgroup/memory rw - cgroup c rw,memory\n")
        .with("proc/self/cgroup", "4:memory:/tide\n1:cpu:/\n")
        .with(&format!("{top}/memory.limit_in_bytes"), "9223372036854771712\n")
        .with(&format!("{top}/memory.usage_in_bytes"), "5\n")
        .with(&format!("{top}/tide/memory.limit_in_bytes"), "1073741824\n")
        .with(&format!("{top}/tide/memory.usage_in_bytes"), "536870912\n")
        .with(&format!("{top}/tide/memory.stat"), "total_inactive_file 4096\n")
        .with(&format!("{top}/tide/memory.failcnt"), "6\n")
        .with(&format!("{top}/slurm/uid_5/job_9/memory.limit_in_bytes"), "4096\n")
        .with(&format!("{top}/slurm/uid_5/job_9/memory.usage_in_bytes"), "4096\n");
    let limits = machine.snapshot().limits;
    assert_eq!(limits.len(), 2);
    assert_eq!((limits[0].limit_bytes, limits[0].hits), (GIB, 6));
    assert_eq!(limits[0].used_bytes, GIB / 2 - 4096);
    assert_eq!((limits[1].name.as_str(), limits[1].holds_store), ("/slurm/uid_5/job_9", false));
}

#[test]
fn this_kernel_is_read_sanely() {
    let mut sensors = Sensors::open(Roots::default()).unwrap();
    let snapshot = reading(&mut sensors, 0);
    let total = snapshot.memory_total_bytes;
    let available = snapshot.available_bytes.unwrap();
    assert!(available > 0 && available <= total, "{snapshot:?}");
    let used = snapshot.used_kinds_bytes.unwrap();
    assert!(used > 0 && used < total, "{snapshot:?}");
    // Drivers may hold memory that is of no kind; more than a tenth would make the second
    // estimate useless.
    assert!(used.abs_diff(total - available) < total / 10, "{used} of {total}, {available} free");
    for limit in &snapshot.limits {
        assert!(limit.limit_bytes < total, "{limit:?}");
    }
    assert_eq!(snapshot.pressure.is_some(), std::fs::read("/proc/pressure/memory").is_ok());
}

proptest! {
    #[test]
    fn parsers_survive_garbage(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        parse_everything(&bytes);
    }

    #[test]
    fn parsers_survive_damage(
        which in 0_usize..4,
        at in 0.0..1.0_f64,
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        keep_tail in any::<bool>(),
    ) {
        let text = [MEMINFO, ZONEINFO, PRESSURE, VMSTAT][which].as_bytes();
        let cut = (text.len() as f64 * at) as usize;
        let mut damaged = text[..cut].to_vec();
        damaged.extend(&bytes);
        if keep_tail {
            damaged.extend(&text[cut..]);
        }
        parse_everything(&damaged);
    }

    #[test]
    fn a_truncated_meminfo_is_never_misread(length in 0..MEMINFO.len()) {
        let machine = Machine::recorded();
        let mut sensors = machine.open().unwrap();
        machine.set("proc/meminfo", &MEMINFO[..length]);
        let mut snapshot = Snapshot::default();
        sensors.read(0, 0, &mut snapshot);
        let expected = 26 * GIB + hidden_bytes();
        if let Some(available) = snapshot.available_bytes {
            prop_assert!(available == expected || available == expected - (1 << 20));
        }
    }
}

fn parse_everything(bytes: &[u8]) {
    let mut zones = Zones::default();
    zones.read(bytes, 4096);
    let counters = MemoryCounters::parse(bytes);
    counters.used_kinds_bytes(Some(&zones));
    counters.available_ceiling_bytes();
    counters.derived_available_bytes();
    Events::parse(bytes);
    parse_pressure(bytes);
    let text = String::from_utf8_lossy(bytes);
    places(&text, &MountTable::from_text(text.as_bytes()));
}
