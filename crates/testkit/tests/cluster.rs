//! Random operations of many nodes over one PFS directory: 12,000 of them on three nodes with TLS
//! and on four without, and 4,000 on three with burst buffers, which are killed, paused, stopped
//! and cut off; and 100 kills amid writes. More by the binary `cluster`, and here by
//! `TIDEPOOL_CLUSTER_OPERATIONS`, `TIDEPOOL_CLUSTER_KILLS` and `TIDEPOOL_CLUSTER_SEED`. Without
//! root by the client library alone.

use std::time::Duration;

use tidepool_testkit::cluster::run::{Plan, random, save, shrink};
use tidepool_testkit::machine;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Whether nodes can have mounts here.
fn are_mounted() -> bool {
    match machine::can_mount() {
        Ok(()) => true,
        Err(missing) => {
            machine::print_skip("cluster: mounts", &missing);
            false
        }
    }
}

/// Carries a plan out; where something is wrong, says what, and how to see it again.
fn check(plan: &Plan) {
    let Plan { seed, nodes, .. } = *plan;
    match random(plan).expect("nodes start") {
        Ok(tally) => println!("seed {seed}, {nodes} nodes: {tally}"),
        Err(finding) => {
            println!("{}\n{}", finding.node_logs, finding.describe(plan, 40));
            let finding = shrink(plan, *finding, Duration::from_secs(60));
            let log = std::env::temp_dir().join(format!("cluster-failure-{seed}.jsonl"));
            save(&finding.log, &log).expect("the log of a failure can be written");
            let replay = format!(
                "cluster --nodes {nodes}{}{} --replay {}",
                if plan.is_encrypted { " --tls" } else { "" },
                if plan.has_buffers { " --buffers" } else { "" },
                log.display()
            );
            panic!("{}\nreplay with: {replay}", finding.describe(plan, 40));
        }
    }
}

fn plan(seed: u64, operations: u64, nodes: usize) -> Plan {
    Plan {
        seed,
        operations,
        kills: None,
        nodes,
        pfs: None,
        are_mounted: are_mounted(),
        is_encrypted: false,
        has_buffers: false,
    }
}

#[test]
fn every_open_reads_one_version_and_nothing_that_was_closed_is_lost() {
    let operations = number("TIDEPOOL_CLUSTER_OPERATIONS", 12_000) / 2;
    let seed = number("TIDEPOOL_CLUSTER_SEED", 20_261_126);
    check(&Plan { is_encrypted: true, ..plan(seed, operations, 3) });
    check(&plan(seed + 1, operations, 4));
}

#[test]
fn the_same_on_nodes_with_burst_buffers() {
    let operations = number("TIDEPOOL_CLUSTER_OPERATIONS", 12_000) / 3;
    let seed = number("TIDEPOOL_CLUSTER_SEED", 20_261_128);
    check(&Plan { has_buffers: true, ..plan(seed, operations, 3) });
}

/// Half of the kills that a run makes: 100 here, 1,000 by the binary `cluster`.
fn kills() -> Option<u64> {
    Some(number("TIDEPOOL_CLUSTER_KILLS", 100) / 2)
}

#[test]
fn what_was_promised_outlives_a_node_that_is_killed_amid_what_it_writes() {
    let seed = number("TIDEPOOL_CLUSTER_SEED", 20_261_129);
    check(&Plan { kills: kills(), has_buffers: true, ..plan(seed, 0, 3) });
}

#[test]
fn what_was_promised_outlives_it_also_in_the_memory_of_two_nodes() {
    let seed = number("TIDEPOOL_CLUSTER_SEED", 20_261_130);
    check(&Plan { kills: kills(), ..plan(seed, 0, 3) });
}
