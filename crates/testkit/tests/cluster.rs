//! Random operations of many nodes over one PFS directory: 12,000 of them on three nodes with TLS
//! and on four without, which are killed, paused, stopped and cut off. More, and nodes with burst
//! buffers, by the binary `cluster`; more here by `TIDEPOOL_CLUSTER_OPERATIONS` and
//! `TIDEPOOL_CLUSTER_SEED`. Without root by the client library alone.

use std::time::Duration;

use tidepool_testkit::cluster::run::{Plan, random, save, shrink};
use tidepool_testkit::machine;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn every_open_reads_one_version_and_nothing_that_was_closed_is_lost() {
    let are_mounted = match machine::can_mount() {
        Ok(()) => true,
        Err(missing) => {
            machine::print_skip("cluster: mounts", &missing);
            false
        }
    };
    let operations = number("TIDEPOOL_CLUSTER_OPERATIONS", 12_000);
    let first = number("TIDEPOOL_CLUSTER_SEED", 20_261_126);
    for (seed, nodes, is_encrypted) in [(first, 3, true), (first + 1, 4, false)] {
        let (operations, pfs, has_buffers) = (operations / 2, None, false);
        let plan = Plan { seed, operations, nodes, pfs, are_mounted, is_encrypted, has_buffers };
        match random(&plan).expect("nodes start") {
            Ok(tally) => println!("seed {seed}, {nodes} nodes: {tally}"),
            Err(finding) => {
                println!("{}\n{}", finding.node_logs, finding.describe(&plan, 40));
                let finding = shrink(&plan, *finding, Duration::from_secs(60));
                let log = std::env::temp_dir().join(format!("cluster-failure-{seed}.jsonl"));
                save(&finding.log, &log).expect("the log of a failure can be written");
                let replay = format!(
                    "cluster --nodes {nodes}{} --replay {}",
                    if is_encrypted { " --tls" } else { "" },
                    log.display()
                );
                panic!("{}\nreplay with: {replay}", finding.describe(&plan, 40));
            }
        }
    }
}
