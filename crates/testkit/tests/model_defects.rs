//! The model test notices what it is there to notice: on a plain directory it finds nothing, and
//! with each way to misbehave it finds something. Needs neither root nor a node.

use tidepool_testkit::model::defects::Defect;
use tidepool_testkit::model::generator::Cast;
use tidepool_testkit::model::run::{Finding, Plan, Tally, load, random, replay, save, shrink};
use tidepool_testkit::product::{PlainDirectory, Subject};

fn plan(seed: u64, operations: u64) -> Plan {
    Plan {
        seed,
        operations,
        time_limit: None,
        cast: Cast { mounts: 2, libraries: 2, administration: false },
        capacity_bytes: 64 << 20,
        actor: env!("CARGO_BIN_EXE_actor").into(),
    }
}

fn run(seed: u64, operations: u64, defect: Option<Defect>) -> Result<Tally, Box<Finding>> {
    let mut subject = PlainDirectory::create(defect).unwrap();
    random(&plan(seed, operations), &mut subject)
}

#[test]
fn a_plain_directory_is_right() {
    let tally = run(11, 4000, None).unwrap_or_else(|finding| panic!("{}", finding.mismatch));
    assert_eq!(tally.applied, 4000);
    for kind in ["Open", "Read", "ReadMapped", "Write", "Close", "Check", "Rename", "Change"] {
        assert!(tally.kinds[kind] > 0, "no {kind} among {:?}", tally.kinds);
    }
}

#[test]
fn every_defect_is_found() {
    let defects = [
        Defect::StaleOpen,
        Defect::LostWrite,
        Defect::MixedVersions,
        Defect::Zeros,
        Defect::StaleSize,
        Defect::ForgottenBuffer,
    ];
    for defect in defects {
        let found = (1..4).any(|seed| run(seed, 6000, Some(defect)).is_err());
        assert!(found, "{defect:?} went unnoticed");
    }
}

#[test]
fn a_log_shrinks_and_replays() {
    let finding = run(5, 6000, Some(Defect::StaleOpen)).expect_err("the defect shows");
    let plan = plan(5, 6000);
    let long = finding.log.len();
    let mut fresh = || {
        let subject = PlainDirectory::create(Some(Defect::StaleOpen))?;
        Ok(Box::new(subject) as Box<dyn Subject>)
    };
    let shorter = shrink(&plan, *finding, std::time::Duration::from_secs(20), &mut fresh);
    assert!(shorter.log.len() < long, "{} of {long} operations are left", shorter.log.len());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    save(&shorter.log, &path).unwrap();
    let log = load(&path).unwrap();
    assert_eq!(log, shorter.log);
    let again = replay(&plan, &mut *fresh().unwrap(), &log);
    assert!(again.is_err(), "the shorter log still shows it");
}
