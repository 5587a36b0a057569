//! The table of decisions that the law of the DynIMS paper is held to on a node, and by the plane
//! of memory control, which has it in Java: both give the same bytes.

use std::path::Path;

use tidepool_control_policy::{ControlPolicy, Parameters, Policy, Snapshot, StoreState, policy};

/// The table is with the tests of the Java side, which reads it as well.
const TABLE: &str = "../../java/plane/src/test/resources/dynims-vectors.csv";

fn number(text: &str) -> u64 {
    text.parse().expect("a number of bytes")
}

#[test]
fn decisions_are_those_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    let table = std::fs::read_to_string(path).expect("the table is there");
    let mut run = ("", policy(ControlPolicy::Dynims));
    let mut rows = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(',').collect();
        if run.0 != fields[0] {
            run = (fields[0], policy(kind(fields[1])));
        }
        let decided = decide(&mut *run.1, &fields);
        assert_eq!(decided, number(fields[10]), "{line}");
        rows += 1;
    }
    assert!(rows > 300, "{rows} rows");
}

fn kind(name: &str) -> ControlPolicy {
    match name {
        "dynims" => ControlPolicy::Dynims,
        "dynims-printed" => ControlPolicy::DynimsPrinted,
        other => panic!("no policy {other}"),
    }
}

fn decide(law: &mut dyn Policy, fields: &[&str]) -> u64 {
    let share = |text: &str| text.parse::<f64>().expect("a share");
    let parameters = Parameters {
        policy: kind(fields[1]),
        gain: share(fields[2]),
        used_share_target: share(fields[3]),
        ..Parameters::default()
    };
    let store = StoreState {
        capacity_bytes: number(fields[6]),
        capacity_min_bytes: number(fields[7]),
        capacity_max_bytes: number(fields[8]),
        block_bytes: number(fields[9]),
        ..StoreState::default()
    };
    let snapshot = Snapshot {
        memory_total_bytes: number(fields[4]),
        available_bytes: fields[5].parse().ok(),
        stores: vec![store],
        ..Snapshot::default()
    };
    law.decide(&snapshot, &parameters).target_bytes
}
