//! The memory control of a node: leases, limits, fencing, and what operators may change meanwhile.

mod support;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use support::{BLOCK, CAPACITY, Fixture};
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::control::{
    ALARMS, CEILING_LEASE_MS_MAX, CeilingLease, CeilingLeased, ControlReport, ControlStatus,
    ControlledStore, Govern, Governed, OWN_STORE,
};
use tidepool_proto::{ErrorKind, MemorySize, Result};

const MINIMUM: u64 = 2 * BLOCK;
/// So long that only tests which want it see a lease run out.
const LEASE_MS: u64 = 60_000;

/// A node with a guaranteed part, and a store full of clean blocks.
fn full() -> Fixture {
    let fixture = Fixture::with(|config| {
        config.control.memory_min_bytes = MINIMUM;
        let lease = config.entries.iter_mut().find(|entry| entry.name == "control_lease_ms");
        lease.unwrap().value = LEASE_MS.to_string();
    });
    fixture.put("data", &vec![7; CAPACITY as usize]);
    std::thread::sleep(Duration::from_millis(50)); // time stamps settle
    fixture.read("data");
    assert!(control(&fixture).resident_bytes > MINIMUM, "there is something to give back");
    fixture
}

fn govern(fixture: &Fixture, request: Govern) -> Result<Governed> {
    match fixture.node.admin(AdminRequest::Govern(request), None, 0)? {
        AdminReply::Governed(governed) => Ok(*governed),
        other => panic!("{other:?}"),
    }
}

fn attach(fixture: &Fixture, process_id: u32) -> Result<Governed> {
    govern(fixture, Govern { process_id, ..Govern::default() })
}

/// The last word of a controller whose lease is over a moment later.
fn fall_silent(fixture: &Fixture, fence: u64) {
    govern(fixture, Govern { fence, process_id: 7, lease_ms: 1, ..Govern::default() }).unwrap();
    wait_for(fixture, "the fall", |status| status.lease == "expired");
}

fn command(fixture: &Fixture, fence: u64, capacity_bytes: u64) -> Governed {
    let capacity_bytes = Some(capacity_bytes);
    govern(fixture, Govern { fence, process_id: 7, capacity_bytes, ..Govern::default() }).unwrap()
}

fn control(fixture: &Fixture) -> ControlStatus {
    match fixture.node.admin(AdminRequest::ControlStatus, None, 0).unwrap() {
        AdminReply::Control(status) => *status,
        other => panic!("{other:?}"),
    }
}

fn set(fixture: &Fixture, name: &str, value: &str) -> Result<()> {
    let request = AdminRequest::SetControl { name: name.into(), value: value.into() };
    fixture.node.admin(request, None, 0).map(drop)
}

/// Waits for what the watchdog does in its own time.
fn wait_for(fixture: &Fixture, what: &str, holds: impl Fn(&ControlStatus) -> bool) {
    for _ in 0..2000 {
        if holds(&control(fixture)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} never came: {:?}", control(fixture));
}

#[test]
fn without_a_controller_the_capacity_stays_as_configured() {
    let fixture = full();
    let status = control(&fixture);
    assert_eq!((status.lease.as_str(), status.capacity_bytes), ("never", CAPACITY));
}

#[test]
fn a_silent_controller_loses_all_but_the_guaranteed_part_and_gets_it_back() {
    let fixture = full();
    let fence = attach(&fixture, 7).unwrap().fence;
    assert_eq!(control(&fixture).capacity_bytes, CAPACITY, "attaching changes nothing");
    fall_silent(&fixture, fence);
    wait_for(&fixture, "the room", |status| status.resident_bytes <= MINIMUM);
    let status = control(&fixture);
    assert_eq!((status.capacity_bytes, status.expirations), (MINIMUM, 1));
    let governed = command(&fixture, fence, CAPACITY);
    assert_eq!(governed.capacity_bytes, CAPACITY, "its holder goes on where nobody else came");
    assert_eq!(control(&fixture).lease, "governed");
}

#[test]
fn a_controller_that_never_attaches_costs_all_but_the_guaranteed_part() {
    let fixture = full();
    set(&fixture, "control_lease_ms", "100").unwrap();
    fixture.node.expect_controller().unwrap();
    wait_for(&fixture, "the fall", |status| status.lease == "expired");
    wait_for(&fixture, "the room", |status| status.resident_bytes <= MINIMUM);
    let status = control(&fixture);
    assert_eq!((status.capacity_bytes, status.expirations), (MINIMUM, 1));
    assert_eq!((status.process_id, status.attachments), (None, 0), "nobody is named");
    let late = attach(&fixture, 7).unwrap();
    assert_eq!(command(&fixture, late.fence, CAPACITY).capacity_bytes, CAPACITY);
    fixture.node.release_control();
    assert_eq!(control(&fixture).lease, "released");
    fixture.node.expect_controller().unwrap();
    wait_for(&fixture, "the fall after it was switched on", |status| status.expirations == 2);
}

#[test]
fn a_heartbeat_holds_the_lease_without_messages() {
    let fixture = full();
    let first = attach(&fixture, 7).unwrap();
    let [_, outdated] = fixture.node.control_pages(first.fence).unwrap();
    // Long enough for a busy machine to beat several times within it.
    let lease_ms = 1000;
    let fence = attach(&fixture, 7).unwrap().fence;
    let error = fixture.node.control_pages(first.fence).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "it is another one's: {error}");
    let [page, heartbeat] = fixture.node.control_pages(fence).unwrap();
    assert!(rustix::io::pwrite(&page, &[0; 8], 0).is_err(), "the node alone writes its account");
    govern(&fixture, Govern { fence, process_id: 7, lease_ms, ..Govern::default() }).unwrap();
    let beat = |file: &OwnedFd| {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        assert_eq!(rustix::io::pwrite(file, &now_ns.to_ne_bytes(), 0), Ok(8));
    };
    for _ in 0..3 * lease_ms / 20 {
        beat(&heartbeat);
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = control(&fixture);
    assert_eq!((status.lease.as_str(), status.expirations), ("governed", 0));
    assert!(status.silent_ms.unwrap() < lease_ms, "{:?}", status.silent_ms);
    for _ in 0..500 {
        beat(&outdated);
        std::thread::sleep(Duration::from_millis(5));
        if control(&fixture).lease == "expired" {
            break;
        }
    }
    wait_for(&fixture, "the fall", |status| status.lease == "expired");
    // The controller decides again: only its message brings the lease back.
    beat(&heartbeat);
    assert_eq!(control(&fixture).lease, "expired");
    assert_eq!(command(&fixture, fence, CAPACITY).capacity_bytes, CAPACITY);
    assert_eq!(control(&fixture).lease, "governed");
}

#[test]
fn commands_stay_between_guaranteed_part_and_ceiling() {
    let fixture = full();
    let fence = attach(&fixture, 7).unwrap().fence;
    let low = command(&fixture, fence, 0);
    assert_eq!((low.capacity_bytes, low.resident_bytes), (MINIMUM, MINIMUM));
    assert!(low.freed_bytes > 0);
    assert_eq!(command(&fixture, fence, 9 * CAPACITY).capacity_bytes, CAPACITY);
}

#[test]
fn pinned_bytes_are_never_promised() {
    let fixture = full();
    fixture.put("kept", &vec![1; 4 * BLOCK as usize]);
    std::thread::sleep(Duration::from_millis(50));
    fixture.node.admin(AdminRequest::EvictAll, None, 0).unwrap();
    let kept = std::fs::File::open(fixture.path("kept")).unwrap();
    fixture.node.admin(AdminRequest::Pin, Some(kept.into()), 0).unwrap();
    let fence = attach(&fixture, 7).unwrap().fence;
    let governed = command(&fixture, fence, 0);
    assert_eq!(governed.held_bytes, 4 * BLOCK);
    assert_eq!((governed.guaranteed_bytes, governed.capacity_bytes), (4 * BLOCK, 4 * BLOCK));
    fall_silent(&fixture, fence);
    assert_eq!(control(&fixture).capacity_bytes, 4 * BLOCK);
}

#[test]
fn a_second_controller_is_refused_until_the_first_is_silent() {
    let fixture = full();
    let first = attach(&fixture, 7).unwrap().fence;
    let error = attach(&fixture, 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("process 7"), "{error}");
    fall_silent(&fixture, first);
    attach(&fixture, 8).unwrap();
    let late = Govern { fence: first, capacity_bytes: Some(CAPACITY), ..Govern::default() };
    assert_eq!(govern(&fixture, late).unwrap_err().kind(), ErrorKind::InUse);
    let status = control(&fixture);
    assert_eq!((status.process_id, status.refusals), (Some(8), 2));
    assert_eq!(status.capacity_bytes, MINIMUM, "a controller fenced off commands nothing");
}

#[test]
fn a_resize_while_governed_is_the_new_ceiling() {
    let fixture = full();
    let attached = attach(&fixture, 7).unwrap();
    let fence = attached.fence;
    command(&fixture, fence, 8 * BLOCK);
    let resize = |blocks: u64| {
        let request = AdminRequest::Resize { size: MemorySize::Bytes(blocks * BLOCK) };
        fixture.node.admin(request, None, 0).unwrap()
    };
    resize(12);
    let status = control(&fixture);
    assert_eq!((status.capacity_bytes, status.ceiling_bytes), (8 * BLOCK, 12 * BLOCK));
    assert_eq!(status.foreign_changes, 1);
    resize(4);
    let status = control(&fixture);
    assert_eq!((status.capacity_bytes, status.resident_bytes), (4 * BLOCK, 4 * BLOCK));
    let governed = command(&fixture, fence, CAPACITY);
    assert_eq!(governed.capacity_bytes, 4 * BLOCK);
    assert!(governed.settings_generation > attached.settings_generation, "it is told");
    resize(1);
    assert_eq!(control(&fixture).guaranteed_bytes, BLOCK, "never more than the ceiling");
}

#[test]
fn a_resize_of_a_store_without_its_controller_wins() {
    let fixture = full();
    let fence = attach(&fixture, 7).unwrap().fence;
    fall_silent(&fixture, fence);
    let request = AdminRequest::Resize { size: MemorySize::Bytes(8 * BLOCK) };
    fixture.node.admin(request, None, 0).unwrap();
    assert_eq!(control(&fixture).capacity_bytes, 8 * BLOCK);
}

#[test]
fn a_controller_taken_away_leaves_the_configured_capacity() {
    let fixture = full();
    let fence = attach(&fixture, 7).unwrap().fence;
    command(&fixture, fence, 4 * BLOCK);
    fixture.node.release_control();
    let status = control(&fixture);
    assert_eq!((status.lease.as_str(), status.capacity_bytes), ("released", CAPACITY));
    let late = Govern { fence, capacity_bytes: Some(0), ..Govern::default() };
    assert_eq!(govern(&fixture, late).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(control(&fixture).capacity_bytes, CAPACITY);
}

#[test]
fn settings_reach_the_controller_once() {
    let fixture = full();
    let attached = attach(&fixture, 7).unwrap();
    let value = |governed: &Governed, name: &str| {
        let settings = governed.settings.as_ref().expect("settings are news");
        settings.iter().find(|setting| setting.name == name).unwrap().value.clone()
    };
    assert_eq!(value(&attached, "control_gain"), "0.5");
    let renew = |generation: u64| {
        let fence = attached.fence;
        let request = Govern { fence, settings_generation: generation, ..Govern::default() };
        govern(&fixture, request).unwrap()
    };
    assert_eq!(renew(attached.settings_generation).settings, None);
    set(&fixture, "control_gain", "0.25").unwrap();
    let governed = renew(attached.settings_generation);
    assert_eq!(value(&governed, "control_gain"), "0.25");
    let entry = control(&fixture).settings.into_iter().find(|it| it.name == "control_gain");
    assert_eq!(entry.unwrap().origin, "live change");
}

#[test]
fn settings_that_cannot_work_are_refused_with_the_figure() {
    let fixture = full();
    let cases = [
        ("control_gain", "11", "from 0 to 10"),
        ("control_interval_ms", "10001", "from 0 to 10000"),
        ("control_policy", "guess", "dynims-printed"),
        ("memory_min", "1TiB", "64MiB"),
        ("memory_min", "many", "size"),
        ("memory", "1GiB", "control_gain"),
        ("no_such", "1", "control_gain"),
    ];
    for (name, value, figure) in cases {
        let error = set(&fixture, name, value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(figure), "{name} {value}: {error}");
    }
    set(&fixture, "control_interval_ms", "9000").unwrap();
    let error = set(&fixture, "control_lease_ms", "10000").unwrap_err();
    assert!(error.to_string().contains("at most 5000 ms"), "{error}");
}

#[test]
fn a_raised_guaranteed_part_holds_at_once() {
    let fixture = full();
    let fence = attach(&fixture, 7).unwrap().fence;
    command(&fixture, fence, 0);
    set(&fixture, "memory_min", &(8 * BLOCK).to_string()).unwrap();
    assert_eq!(control(&fixture).capacity_bytes, 8 * BLOCK);
    fall_silent(&fixture, fence);
    set(&fixture, "memory_min", &(3 * BLOCK).to_string()).unwrap();
    assert_eq!(control(&fixture).capacity_bytes, 3 * BLOCK);
}

#[test]
fn senseless_numbers_do_no_harm() {
    let fixture = full();
    let huge = Govern {
        fence: 0,
        process_id: u32::MAX,
        lease_ms: u64::MAX,
        capacity_bytes: Some(u64::MAX),
        settings_generation: u64::MAX,
        ceilings_generation: u64::MAX,
        report: Some(Box::new(ControlReport {
            reason: "\u{1f30a}".repeat(9999),
            alarms: vec!["no such alarm".into(); 9999],
            demand_bytes: u64::MAX,
            ..ControlReport::default()
        })),
    };
    let governed = govern(&fixture, huge).unwrap();
    assert_eq!((governed.lease_ms, governed.capacity_bytes), (LEASE_MS, CAPACITY));
    let status = control(&fixture);
    let report = status.report.as_ref().unwrap();
    assert!(report.reason.len() <= 128 && report.alarms.len() <= ALARMS.len());
    assert!(!status.has_alarm("at-minimum"));
    let unknown = Govern { fence: u64::MAX, ..Govern::default() };
    assert_eq!(govern(&fixture, unknown).unwrap_err().kind(), ErrorKind::InUse);
}

#[test]
fn reports_are_kept_for_operators_and_their_alarms_end_with_them() {
    let fixture = full();
    let report = |at_ms: u64| ControlReport {
        demand_bytes: 5,
        alarms: vec!["actuator-limited".into()],
        events: vec![tidepool_proto::control::ControlEvent { at_ms, ..Default::default() }],
        ..ControlReport::default()
    };
    let request = Govern { report: Some(Box::new(report(0))), ..Govern::default() };
    let fence = govern(&fixture, request).unwrap().fence;
    for at_ms in 1..100 {
        let report = Some(Box::new(report(at_ms)));
        govern(&fixture, Govern { fence, report, ..Govern::default() }).unwrap();
    }
    let status = control(&fixture);
    assert_eq!(status.decisions.len(), 64);
    assert_eq!(status.decisions.last().unwrap().at_ms, 99);
    assert!(status.has_alarm("actuator-limited"));
    let text = || match fixture.node.admin(AdminRequest::Metrics, None, 0).unwrap() {
        AdminReply::Metrics(text) => text,
        other => panic!("{other:?}"),
    };
    assert!(text().contains("tidepool_control_alarm{alarm=\"actuator-limited\"} 1"));
    fall_silent(&fixture, fence);
    assert!(text().contains("tidepool_control_alarm{alarm=\"actuator-limited\"} 0"));
    assert!(text().contains("tidepool_control_lease_expirations_total 1"));
    attach(&fixture, 8).unwrap();
    let status = control(&fixture);
    assert_eq!(status.report, None, "the next controller did not say anything yet");
    assert_eq!(status.decisions.len(), 64, "what was decided stays");
}

#[test]
fn spilling_is_measured() {
    let fixture = full();
    let wish = support::Wish {
        write: Some(tidepool_proto::WriteMode::Memory),
        ..support::Wish::default()
    };
    let file = fixture.writer("scratch", wish);
    file.write_at(0, &vec![3; 4 * BLOCK as usize]).unwrap();
    let fence = attach(&fixture, 7).unwrap().fence;
    let before = control(&fixture);
    assert_eq!((before.memory_only_bytes, before.write_back_bytes_per_s), (4 * BLOCK, 0));
    // A slow PFS is not waited for: the controller says it again, as ever.
    let began = Instant::now();
    while control(&fixture).memory_only_bytes > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "written back to make room");
        command(&fixture, fence, 0);
    }
    assert!(control(&fixture).write_back_bytes_per_s > 0);
}

fn lease(fixture: &Fixture, ceiling_bytes: u64, lease_ms: u64) -> Result<CeilingLeased> {
    let store = OWN_STORE.to_owned();
    let request = CeilingLease { store, ceiling_bytes, lease_ms, source: "plane".into() };
    match fixture.node.admin(AdminRequest::LeaseCeiling(request), None, 0)? {
        AdminReply::CeilingLeased(leased) => Ok(leased),
        other => panic!("{other:?}"),
    }
}

/// Leases of a ceiling: no test sees the first run out, and the second is over a moment later.
const LONG_MS: u64 = 60_000;
const SHORT_MS: u64 = 1;

#[test]
fn a_leased_ceiling_lowers_the_store_and_ends_by_itself() {
    let fixture = full();
    let leased = lease(&fixture, 8 * BLOCK, LONG_MS).unwrap();
    assert_eq!((leased.ceiling_bytes, leased.capacity_bytes), (8 * BLOCK, 8 * BLOCK));
    let status = control(&fixture);
    assert!(status.resident_bytes <= 8 * BLOCK, "what was beyond it is gone: {status:?}");
    assert_eq!(status.ceiling_bytes, CAPACITY, "what is configured is as it was");
    let ceiling = status.leased_ceiling.unwrap();
    assert_eq!((ceiling.ceiling_bytes, ceiling.source.as_str()), (8 * BLOCK, "plane"));
    assert!(ceiling.left_ms <= LONG_MS);
    assert!(lease(&fixture, 8 * BLOCK, SHORT_MS).unwrap().repeated);
    wait_for(&fixture, "its end", |status| status.capacity_bytes == CAPACITY);
    let status = control(&fixture);
    assert_eq!((status.ceiling_leases, status.ceiling_expirations), (2, 1));
    assert_eq!(status.leased_ceiling, None);
}

#[test]
fn no_leased_ceiling_takes_the_guaranteed_part_or_gives_more_than_is_configured() {
    let fixture = full();
    assert_eq!(lease(&fixture, 0, LONG_MS).unwrap().ceiling_bytes, MINIMUM);
    assert_eq!(control(&fixture).capacity_bytes, MINIMUM);
    assert_eq!(lease(&fixture, u64::MAX, LONG_MS).unwrap().ceiling_bytes, CAPACITY);
    assert_eq!(control(&fixture).capacity_bytes, CAPACITY);
    lease(&fixture, 0, LONG_MS).unwrap();
    set(&fixture, "memory_min", &(4 * BLOCK).to_string()).unwrap();
    assert_eq!(control(&fixture).leased_ceiling.unwrap().ceiling_bytes, 4 * BLOCK);
    assert_eq!(control(&fixture).capacity_bytes, 4 * BLOCK, "at once");
    let request = AdminRequest::Resize { size: MemorySize::Bytes(12 * BLOCK) };
    fixture.node.admin(request, None, 0).unwrap();
    let status = control(&fixture);
    assert_eq!((status.capacity_bytes, status.ceiling_bytes), (4 * BLOCK, 12 * BLOCK));
    lease(&fixture, 0, SHORT_MS).unwrap();
    wait_for(&fixture, "its end", |status| status.capacity_bytes == 12 * BLOCK);
}

#[test]
fn a_controller_decides_below_a_leased_ceiling_and_grows_by_itself_after_it() {
    let fixture = full();
    let fence = attach(&fixture, 7).unwrap().fence;
    lease(&fixture, 8 * BLOCK, LONG_MS).unwrap();
    assert_eq!(command(&fixture, fence, CAPACITY).capacity_bytes, 8 * BLOCK);
    assert_eq!(command(&fixture, fence, 4 * BLOCK).capacity_bytes, 4 * BLOCK);
    lease(&fixture, 12 * BLOCK, LONG_MS).unwrap();
    assert_eq!(control(&fixture).capacity_bytes, 4 * BLOCK, "a ceiling raises nothing");
    lease(&fixture, 8 * BLOCK, SHORT_MS).unwrap();
    wait_for(&fixture, "its end", |status| status.leased_ceiling.is_none());
    let status = control(&fixture);
    assert_eq!((status.capacity_bytes, status.lease.as_str()), (4 * BLOCK, "governed"));
    assert_eq!(command(&fixture, fence, CAPACITY).capacity_bytes, CAPACITY);
    assert_eq!(control(&fixture).foreign_changes, 0, "nobody set the capacity");
}

#[test]
fn a_store_that_fell_to_its_guaranteed_part_does_not_rise_with_a_ceiling() {
    let fixture = full();
    let fence = attach(&fixture, 7).unwrap().fence;
    fall_silent(&fixture, fence);
    lease(&fixture, 12 * BLOCK, SHORT_MS).unwrap();
    wait_for(&fixture, "its end", |status| status.ceiling_expirations == 1);
    assert_eq!(control(&fixture).capacity_bytes, MINIMUM);
    fixture.node.release_control();
    lease(&fixture, 8 * BLOCK, LONG_MS).unwrap();
    assert_eq!(control(&fixture).capacity_bytes, 8 * BLOCK, "nobody governs");
}

#[test]
fn ceilings_that_are_none_are_refused() {
    let fixture = full();
    let refused = |request: CeilingLease| {
        let answer = fixture.node.admin(AdminRequest::LeaseCeiling(request), None, 0);
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::InvalidInput);
    };
    let right = CeilingLease { store: OWN_STORE.into(), lease_ms: 1, ..CeilingLease::default() };
    right.check().unwrap();
    refused(CeilingLease { store: "another".into(), ..right.clone() });
    refused(CeilingLease { lease_ms: 0, ..right.clone() });
    refused(CeilingLease { lease_ms: CEILING_LEASE_MS_MAX + 1, ..right.clone() });
    refused(CeilingLease { source: "x".repeat(65), ..right });
    let status = control(&fixture);
    assert_eq!((status.ceiling_leases, status.capacity_bytes), (0, CAPACITY));
}

#[test]
fn a_store_without_a_guaranteed_part_keeps_a_block() {
    let fixture = Fixture::with(|config| config.control.memory_min_bytes = 0);
    assert_eq!(lease(&fixture, 0, LONG_MS).unwrap().ceiling_bytes, BLOCK);
    let status = control(&fixture);
    assert_eq!((status.capacity_bytes, status.guaranteed_bytes), (BLOCK, 0));
}

#[test]
fn ceilings_of_other_stores_are_handed_to_their_controller_until_they_end() {
    let fixture = full();
    let lease = |ceiling_bytes, lease_ms| {
        let store = "cache".to_owned();
        let request = CeilingLease { store, ceiling_bytes, lease_ms, source: "plane".into() };
        match fixture.node.admin(AdminRequest::LeaseCeiling(request), None, 0)? {
            AdminReply::CeilingLeased(leased) => Ok(leased),
            other => panic!("{other:?}"),
        }
    };
    let kind = |answer: Result<CeilingLeased>| answer.unwrap_err().kind();
    assert_eq!(kind(lease(5, LONG_MS)), ErrorKind::InvalidInput, "nobody governs it");
    let fence = attach(&fixture, 7).unwrap().fence;
    let cache = ControlledStore {
        name: "cache".into(),
        capacity_min_bytes: 10,
        capacity_configured_bytes: 100,
        capacity_bytes: 80,
        ..ControlledStore::default()
    };
    let report = ControlReport { stores: vec![cache], ..ControlReport::default() };
    let say = Govern { fence, process_id: 7, ..Govern::default() };
    let known = govern(&fixture, Govern { report: Some(Box::new(report)), ..say.clone() }).unwrap();
    assert_eq!(known.ceilings, Some(vec![]), "none is leased");
    let ask = Govern { ceilings_generation: known.ceilings_generation, ..say.clone() };
    assert_eq!(govern(&fixture, ask.clone()).unwrap().ceilings, None, "no news");
    let leased = lease(40, LONG_MS).unwrap();
    assert_eq!((leased.ceiling_bytes, leased.capacity_bytes), (40, 80));
    assert_eq!(lease(5, LONG_MS).unwrap().ceiling_bytes, 10, "the guaranteed part stays");
    let news = govern(&fixture, ask.clone()).unwrap();
    let ceilings = news.ceilings.unwrap();
    assert_eq!((ceilings.len(), ceilings[0].ceiling_bytes), (1, 5));
    assert!(ceilings[0].lease_ms <= LONG_MS);
    assert_eq!(control(&fixture).other_ceilings[0].store, "cache");
    assert_eq!(control(&fixture).leased_ceiling, None, "ours is as it was");
    lease(5, SHORT_MS).unwrap();
    wait_for(&fixture, "its end", |status| status.other_ceilings.is_empty());
    let after = Govern { ceilings_generation: news.ceilings_generation, ..say };
    assert_eq!(govern(&fixture, after).unwrap().ceilings, Some(vec![]), "the end is news");
}

#[test]
fn what_a_controller_asks_for_is_carried_out_before_jobs_run() {
    let fixture = full();
    let raise = || {
        let thread = rustix::thread::gettid();
        // Not every user may.
        let _ = rustix::process::setpriority_process(Some(thread), -15);
    };
    let nice_after = |work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                work();
                let of = Some(rustix::thread::gettid());
                rustix::process::getpriority_process(of).unwrap()
            });
            thread.join().unwrap()
        })
    };
    let served = nice_after(&|| drop(attach(&fixture, 7).unwrap()));
    assert_eq!(served, nice_after(&raise));
    assert_eq!(nice_after(&|| drop(control(&fixture))), nice_after(&|| ()), "others wait as ever");
}

#[test]
fn the_page_tells_when_other_stores_are_others_than_before() {
    let fixture = full();
    let page = fixture.node.store().control_page();
    let generation = || page.stores_generation.load(std::sync::atomic::Ordering::Relaxed);
    let fence = attach(&fixture, 7).unwrap().fence;
    let say = |own: u64, resident_bytes| {
        let store = |name: &str, resident_bytes| ControlledStore {
            name: name.into(),
            resident_bytes,
            ..ControlledStore::default()
        };
        let stores = vec![store("tidepool", own), store("cache", resident_bytes)];
        let report = Some(Box::new(ControlReport { stores, ..ControlReport::default() }));
        govern(&fixture, Govern { fence, process_id: 7, report, ..Govern::default() }).unwrap();
        generation()
    };
    let none = generation();
    let first = say(1, 5);
    assert!(first > none, "the first report");
    assert_eq!(say(2, 5), first, "our own store has words of its own");
    let moved = say(2, 6);
    assert!(moved > first, "it moved");
    fall_silent(&fixture, fence);
    let gone = generation();
    assert!(gone > moved, "nobody governs it any more");
    let again = attach(&fixture, 8).unwrap().fence;
    assert!(generation() > gone, "another controller, which did not say anything yet");
    let attached = generation();
    govern(&fixture, Govern { fence: again, process_id: 8, ..Govern::default() }).unwrap();
    assert_eq!(generation(), attached, "no report, no news");
    fixture.node.release_control();
    assert!(generation() > attached, "it was taken away");
}

#[test]
fn stores_that_should_be_governed_and_are_not_are_told_while_their_controller_lives() {
    let fixture = full();
    let fence = attach(&fixture, 7).unwrap().fence;
    let bad = "other stores are not governed: reading the stores to control from /s: line 3";
    let notes = vec!["pages are not locked".to_owned(), bad.to_owned()];
    let report = Some(Box::new(ControlReport { notes, ..ControlReport::default() }));
    govern(&fixture, Govern { fence, process_id: 7, report, ..Govern::default() }).unwrap();
    let told = || fixture.node.status().degraded.iter().filter(|line| *line == bad).count();
    assert_eq!(told(), 1);
    assert_eq!(control(&fixture).not_governed().collect::<Vec<_>>(), [bad], "and no other note");
    fall_silent(&fixture, fence);
    assert_eq!(told(), 0, "the next controller may read another file");
}
