//! Tests of what nodes find out of each other and do for each other when they are asked: whether
//! changes show, latency and rate, splits that are brought in by their owners.

mod support;

use std::collections::HashSet;
use std::fs::File;

use support::content;
use support::nodes::*;
use tidepool_proto::FileService;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService, SpreadReport};
use tidepool_proto::cluster::PairReport;
use tidepool_proto::config::NodeConfig;

#[test]
fn nothing_is_kept_where_changes_of_another_node_do_not_show() {
    let nodes = Nodes::with(2, |node, config| {
        // Attributes of files that it saw are as they were, but for what it changes itself.
        config.fault = (node == 1).then(|| "version:stale=1000s".into());
    });
    std::fs::write(nodes.pfs("file"), content(1, 300_000)).unwrap();
    assert!(nodes.read(1, "file").0 == content(1, 300_000));
    let is_said = |node: usize| {
        let degraded = nodes.nodes[node].status().degraded;
        degraded.iter().any(|line| line.contains("did not show here"))
    };
    until("the hidden change is found", || is_said(1));
    let shown = nodes.cluster(1).changes_shown.unwrap();
    assert_eq!((shown.node.as_str(), shown.version_ms), ("n0", None));
    assert!(shown.bytes_ms.is_some());
    std::fs::write(nodes.pfs("file"), content(2, 300_000)).unwrap();
    assert!(nodes.read(1, "file").0 == content(2, 300_000), "old bytes are kept");
    assert_eq!(nodes.nodes[1].status().store.resident_bytes, 0);
    until("the other node looked too", || nodes.cluster(0).changes_shown.is_some());
    assert!(!is_said(0), "its own client hides nothing");
}

#[test]
fn what_shows_late_counts_as_racy_for_longer() {
    let nodes = Nodes::with(2, |node, config| {
        config.fault = (node == 1).then(|| "version:stale=2s".into());
    });
    until("it is measured", || nodes.cluster(1).changes_shown.is_some());
    let shown = nodes.cluster(1).changes_shown.unwrap();
    let took = shown.version_ms.expect("it shows");
    // Asked anew at the end of a time that began before the change.
    assert!(took > 200, "{shown:?}");
    std::fs::write(nodes.pfs("file"), content(1, 1000)).unwrap();
    let version = nodes.open(1, "file").version();
    assert!(nodes.nodes[1].is_racy(&version), "a change may not show yet");
    assert!(!nodes.nodes[0].is_racy(&nodes.open(0, "file").version()));
}

#[test]
fn every_pair_is_measured_and_one_that_is_gone_says_so() {
    let nodes = Nodes::joined(3);
    let measure = |shift| {
        let reply = nodes.nodes[0].admin(AdminRequest::MeasureNodes { shift }, None, 0);
        let AdminReply::Measured(pairs) = reply.unwrap() else { panic!("other facts") };
        pairs
    };
    let name = |pair: &PairReport| format!("{}-{}", pair.from, pair.to);
    let pairs = [measure(1), measure(2)].concat();
    let names: Vec<String> = pairs.iter().map(name).collect();
    assert_eq!(names, ["n0-n1", "n1-n2", "n2-n0", "n0-n2", "n1-n0", "n2-n1"]);
    for pair in &pairs {
        assert!(pair.error.is_none() && pair.rate_bytes_per_s > Some(0), "{pair:?}");
        assert!(pair.latency_us_max >= pair.latency_us && pair.latency_us.is_some(), "{pair:?}");
        assert_eq!(pair.release.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    }
    for shift in [0, 3] {
        let refused = nodes.nodes[0].admin(AdminRequest::MeasureNodes { shift }, None, 0);
        assert!(refused.is_err(), "{shift}");
    }
    nodes.nodes[2].stop();
    let failed: Vec<bool> = measure(1).iter().map(|pair| pair.error.is_some()).collect();
    assert_eq!(failed, [false, true, true]);
}

#[test]
fn a_node_ends_while_others_read_from_it() {
    for round in 0..6 {
        let nodes = Nodes::joined(2);
        let bytes = content(round, 8 * BLOCK as usize);
        std::fs::write(nodes.pfs("file"), &bytes).unwrap();
        nodes.read(0, "file");
        nodes.wait_announced(8);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for _ in 0..20 {
                    assert!(nodes.read(1, "file").0 == bytes);
                    nodes.nodes[1].admin(AdminRequest::EvictAll, None, 0).unwrap();
                    nodes.nodes[1].admin(AdminRequest::ClusterStatus, None, 0).unwrap();
                }
            });
            while nodes.cluster(0).blocks_served == 0 && !reader.is_finished() {
                std::thread::yield_now();
            }
            nodes.nodes[0].stop();
        });
    }
}

/// Length of a split, as owners are found by.
fn split_bytes() -> u64 {
    tidepool_proto::hadoop::split_bytes_default()
}

fn spread(nodes: &Nodes, node: usize, name: &str) -> SpreadReport {
    let file = File::open(nodes.pfs(name)).unwrap().into();
    match nodes.nodes[node].admin(AdminRequest::Spread, Some(file), 0).unwrap() {
        AdminReply::Spread(report) => report,
        other => panic!("{other:?}"),
    }
}

/// Stores with room for what these tests bring in.
fn roomy(count: usize, change: impl Fn(usize, &mut NodeConfig)) -> Nodes {
    let nodes = Nodes::with(count, |node, config| {
        config.capacity_bytes = 1 << 30;
        change(node, config);
    });
    nodes.wait_joined();
    nodes
}

#[test]
fn each_split_comes_into_the_memory_of_its_owner_alone() {
    let nodes = roomy(3, |_, _| ());
    let length = 2 * split_bytes() + 3 * BLOCK + 100;
    File::create(nodes.pfs("file")).unwrap().set_len(length).unwrap();
    let owners = nodes.locate(0, "file", split_bytes(), 3);
    let report = spread(&nodes, 1, "file");
    assert_eq!((report.size_bytes, report.held_bytes), (length, 0));
    let asked: u64 = report.nodes.iter().map(|share| share.asked_bytes).sum();
    assert_eq!(asked, length);
    for share in &report.nodes {
        assert_eq!((share.resident_bytes, &share.error), (share.asked_bytes, &None));
    }
    let named: HashSet<&str> = owners.iter().map(String::as_str).collect();
    assert_eq!(named.len(), report.nodes.len());
    let read: u64 = (0..3).map(|node| nodes.pfs_read_bytes(node)).sum();
    assert_eq!(read, length, "each byte left the PFS once");
    nodes.wait_announced(length.div_ceil(BLOCK));
    let held: Vec<String> = owners.iter().map(|owner| format!("{owner}*")).collect();
    assert_eq!(nodes.locate(2, "file", split_bytes(), 3), held);
    let again = spread(&nodes, 2, "file");
    assert_eq!((again.held_bytes, again.nodes.len()), (length, 0));
}

#[test]
fn what_cannot_be_brought_in_is_told_by_node() {
    let nodes = roomy(2, |node, config| {
        config.fault = (node == 1).then(|| "read:errno=EIO".into());
    });
    let is_of_both = |name: &String| {
        File::create(nodes.pfs(name)).unwrap().set_len(2 * split_bytes()).unwrap();
        let owners = nodes.locate(0, name, split_bytes(), 2);
        owners.contains(&"n0".to_owned()) && owners.contains(&"n1".to_owned())
    };
    let name = (0..).map(|number| format!("file-{number}")).find(is_of_both).unwrap();
    let report = spread(&nodes, 0, &name);
    assert_eq!(report.nodes.len(), 2, "{report:?}");
    for share in &report.nodes {
        let is_whole = share.resident_bytes == share.asked_bytes;
        assert_eq!(is_whole, share.node == "n0", "{share:?}");
        assert_eq!(share.error.is_some(), share.node == "n1", "{share:?}");
    }
}

#[test]
fn a_node_that_goes_hands_on_what_it_holds() {
    let nodes = Nodes::joined(3);
    let files: Vec<(String, Vec<u8>)> = (0..3)
        .map(|seed| (format!("file-{seed}"), content(seed, 5 * BLOCK as usize + 9)))
        .collect();
    for (name, bytes) in &files {
        std::fs::write(nodes.pfs(name), bytes).unwrap();
        assert!(&nodes.read(0, name).0 == bytes);
    }
    nodes.wait_announced(18);
    let before: Vec<u64> = [1, 2].map(|node| nodes.pfs_read_bytes(node)).into();
    nodes.nodes[0].admin(AdminRequest::Drain { stop: false }, None, 0).unwrap();
    let reply = nodes.nodes[0].admin(AdminRequest::HandOn { limit_ms: 60_000 }, None, 0).unwrap();
    let AdminReply::HandedOn(report) = reply else { panic!("{reply:?}") };
    let total: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    assert_eq!((report.held_bytes, report.resident_bytes), (total, total), "{report:?}");
    assert!(report.errors.is_empty() && report.nodes >= 1, "{report:?}");
    let after: Vec<u64> = [1, 2].map(|node| nodes.pfs_read_bytes(node)).into();
    assert_eq!(after, before, "all of it came from memory");
    // Gone, and everything is still in memory.
    nodes.nodes[0].stop();
    until("it is seen to be gone", || nodes.cluster(1).members[0].state != "alive");
    let entries = |node: usize| nodes.cluster(node).location_entries;
    until("those that are left know of all", || entries(1) + entries(2) == 18);
    for (name, bytes) in &files {
        assert!(&nodes.read(1, name).0 == bytes);
    }
    assert_eq!(nodes.pfs_read_bytes(1), before[0], "nothing had to be read again");

    // No time, or nobody to take it.
    let reply = nodes.nodes[1].admin(AdminRequest::HandOn { limit_ms: 0 }, None, 0).unwrap();
    let AdminReply::HandedOn(report) = reply else { panic!("{reply:?}") };
    assert_eq!((report.asked_bytes, report.resident_bytes), (0, 0));
    let alone = support::Fixture::new();
    let refused = alone.node.admin(AdminRequest::HandOn { limit_ms: 1 }, None, 0).unwrap_err();
    assert!(refused.to_string().contains("--hand-on"), "{refused}");
}
