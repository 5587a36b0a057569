//! Random operations of many processes against the reference model, on a real node: 60,000 of
//! them, with kills, and 3,000 where the kernel's page cache is in between. More by the binary
//! `model`, or by `TIDEPOOL_MODEL_OPERATIONS` and `TIDEPOOL_MODEL_SEED` here.

use std::path::Path;
use std::time::Duration;

use tidepool_testkit::model::generator::Cast;
use tidepool_testkit::model::operation;
use tidepool_testkit::model::run::{Plan, load, random, replay, save, shrink};
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec, Subject, end_of_log};

const MEMORY_MIB: u64 = 64;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Further arguments of a node that is mounted as on kernels before Linux 6.6.
const BY_PAGES: &[&str] = &["--direct-io", "off"];

fn node(arguments: &[&str]) -> std::io::Result<Box<dyn Subject>> {
    let spec = NodeSpec {
        memory: format!("{MEMORY_MIB}MiB"),
        configuration: operation::configuration(),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        ..NodeSpec::default()
    };
    Ok(Box::new(Node::start(spec)?))
}

fn plan(seed: u64, operations: u64) -> Plan {
    Plan {
        seed,
        operations,
        time_limit: None,
        cast: Cast { mounts: 3, libraries: 3, administration: true },
        capacity_bytes: MEMORY_MIB << 20,
        actor: env!("CARGO_BIN_EXE_actor").into(),
    }
}

/// Short logs of what random operations found once; each file is named for its story.
#[test]
fn what_was_found_once_stays_right() {
    needs_mount!();
    let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut wrong = Vec::new();
    for log in std::fs::read_dir(logs).unwrap() {
        let log = log.unwrap().path();
        for arguments in [&[], BY_PAGES] {
            let mut subject = node(arguments).expect("a node starts");
            if let Err(finding) = replay(&plan(0, 0), &mut *subject, &load(&log).unwrap()) {
                let story = finding.describe(&plan(0, 0), 20);
                wrong.push(format!("{} {arguments:?}:\n{story}", log.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn random_operations_agree_with_the_model() {
    needs_mount!();
    agrees(&[], 4, number("TIDEPOOL_MODEL_OPERATIONS", 60_000));
}

#[test]
fn random_operations_through_the_page_cache_agree_with_the_model() {
    needs_mount!();
    agrees(BY_PAGES, 1, number("TIDEPOOL_MODEL_OPERATIONS", 60_000) / 20);
}

fn agrees(arguments: &[&str], seeds: u64, operations: u64) {
    let first = number("TIDEPOOL_MODEL_SEED", 20_260_801);
    for seed in first..first + seeds {
        let plan = plan(seed, operations / seeds);
        let mut subject = node(arguments).expect("a node starts");
        let result = random(&plan, &mut *subject);
        let node_log = subject.log();
        drop(subject);
        match result {
            Ok(tally) => println!("seed {seed}: {} operations {:?}", tally.applied, tally.kinds),
            Err(finding) => {
                println!("log of the node:\n{}", end_of_log(&node_log));
                println!("{}", finding.describe(&plan, 8));
                let finding =
                    shrink(&plan, *finding, Duration::from_secs(60), &mut || node(arguments));
                let log = std::env::temp_dir().join(format!("model-failure-{seed}.jsonl"));
                save(&finding.log, &log).expect("the log of a failure can be written");
                let replay = format!("replay with: model --replay {}", log.display());
                panic!("{}\n{replay}", finding.describe(&plan, 40));
            }
        }
    }
}
