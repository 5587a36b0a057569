//! Tests of nodes that read from each other's memory: the right bytes, one read from the PFS, and
//! no harm from nodes that are gone, strange or at another PFS.

mod support;

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use support::content;
use support::nodes::certificates::Authority;
use support::nodes::*;
use tidepool_node::Node;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::config::{ClusterConfig, PeerTlsConfig};
use tidepool_proto::locality::{Locality, SplitRange};
use tidepool_proto::{Access, Advice, FileService, OpenRequest, WriteMode};

#[test]
fn a_file_comes_from_the_node_that_holds_it() {
    let nodes = Nodes::joined(3);
    let bytes = content(1, 9 * BLOCK as usize + 777);
    std::fs::write(nodes.pfs("file"), &bytes).unwrap();
    assert!(nodes.read(0, "file").0 == bytes);
    nodes.wait_announced(10);
    for node in [1, 2] {
        let (read, outcome) = nodes.read(node, "file");
        assert!(read == bytes, "node {node} reads other bytes");
        assert_eq!(outcome.levels.peer, bytes.len() as u64, "{outcome:?}");
        assert_eq!(nodes.pfs_read_bytes(node), 0, "all came from another node");
        assert_eq!(nodes.nodes[node].status().peer_read_bytes, bytes.len() as u64);
    }
    let (again, outcome) = nodes.read(1, "file");
    assert!(again == bytes);
    assert_eq!(outcome.levels.store, bytes.len() as u64, "its own from now on");
    let served: u64 = nodes.nodes.iter().map(|node| node.status().peer_served_bytes).sum();
    assert_eq!(served, 2 * bytes.len() as u64);
}

#[test]
fn a_changed_file_is_never_read_at_its_old_version() {
    let nodes = Nodes::joined(2);
    let length = 3 * BLOCK as usize;
    for round in 0..20 {
        let name = format!("file-{round}");
        std::fs::write(nodes.pfs(&name), content(round, length)).unwrap();
        let before = nodes.announced();
        assert!(nodes.read(0, &name).0 == content(round, length));
        // Half of the time the other node asks before this one announced anything.
        if round % 2 == 0 {
            until("what is held is announced", || nodes.announced() >= before + 3);
        }
        let newer = content(1000 + round, length);
        std::fs::write(nodes.pfs(&name), &newer).unwrap();
        assert!(nodes.read(1, &name).0 == newer, "round {round}");
        assert!(nodes.read(0, &name).0 == newer, "round {round}");
    }
}

#[test]
fn bytes_of_racy_time_stamps_stay_where_they_are() {
    // Every change may hide behind the time stamps of the one before it.
    let nodes = Nodes::with(2, |_, config| config.timestamp_granularity_ns = Some(10_000_000_000));
    nodes.wait_joined();
    let bytes = content(3, 2 * BLOCK as usize);
    std::fs::write(nodes.pfs("file"), &bytes).unwrap();
    let _open = nodes.open(0, "file");
    assert!(nodes.read(0, "file").0 == bytes);
    let (read, outcome) = nodes.read(1, "file");
    assert!(read == bytes);
    assert_eq!(outcome.levels.peer, 0);
    assert_eq!(nodes.nodes[0].status().peer_served_bytes, 0);
}

#[test]
fn one_node_writes_while_others_read() {
    let nodes = Nodes::joined(3);
    let blocks = 3;
    // Each version is of one number throughout, so a mix of two shows.
    let version = |number: u8| vec![number; (blocks * BLOCK) as usize];
    std::fs::write(nodes.pfs("file"), version(0)).unwrap();
    let (stop, latest) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for node in [1, 2] {
            let (nodes, stop, latest) = (&nodes, &stop, &latest);
            scope.spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    let least = latest.load(Ordering::Acquire);
                    let open = nodes.open(node, "file");
                    for block in 0..blocks {
                        let mut bytes = vec![0; BLOCK as usize];
                        // An open whose version is gone says so.
                        if open.read_at(block * BLOCK, &mut bytes).is_err() {
                            break;
                        }
                        let first = bytes[0];
                        assert!(u32::from(first) >= least, "{first} after {least} was written");
                        let mixed = bytes.iter().position(|byte| *byte != first);
                        // A write is seen block by block, not in the middle of one that was sent.
                        assert!(mixed.is_none(), "a block of two versions at {mixed:?}");
                    }
                }
            });
        }
        for number in 1..60 {
            let writer = nodes.try_open(0, "file", Access::ReadWrite).unwrap();
            for block in 0..blocks {
                let part = vec![number; BLOCK as usize];
                writer.write_at(block * BLOCK, &part).unwrap();
            }
            drop(writer);
            latest.store(number.into(), Ordering::Release);
            assert_eq!(nodes.read(0, "file").0, version(number));
        }
        stop.store(true, Ordering::Release);
    });
}

#[test]
fn readers_of_one_cold_file_share_the_work() {
    let nodes = Nodes::joined(4);
    let bytes = content(6, 64 * BLOCK as usize);
    std::fs::write(nodes.pfs("file"), &bytes).unwrap();
    std::thread::scope(|scope| {
        for node in 0..4 {
            let (nodes, bytes) = (&nodes, &bytes);
            scope.spawn(move || assert!(nodes.read(node, "file").0 == *bytes, "node {node}"));
        }
    });
    let from_pfs: u64 = (0..4).map(|node| nodes.pfs_read_bytes(node)).sum();
    let share = from_pfs as f64 / bytes.len() as f64;
    println!("the PFS was read {share:.2} times");
    assert!(share < 3.0, "each read its own: {share:.2}");
}

#[test]
fn nodes_at_another_pfs_exchange_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().to_owned();
    let nodes = Nodes::with(2, |number, config| {
        if number == 1 {
            config.pfs = other.clone();
        }
    });
    let refused = |node: usize| {
        let member = nodes.cluster(node).members.remove(0);
        (member.state == "alive").then_some(member.refused_because).flatten()
    };
    until("both say why not", || refused(0).is_some() && refused(1).is_some());
    let because = refused(0).unwrap();
    assert!(because.contains("same directory of the same PFS"), "{because}");
    assert!(!nodes.cluster(0).members[0].sees_same_pfs);
    let bytes = content(7, 2 * BLOCK as usize);
    std::fs::write(nodes.pfs("file"), &bytes).unwrap();
    assert!(nodes.read(0, "file").0 == bytes);
    assert_eq!(nodes.nodes[1].status().peer_served_bytes, 0);
}

#[test]
fn a_node_with_another_key_is_none_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let strange = write_key(directory.path(), 8);
    let nodes = Nodes::with(3, |number, config| {
        if number == 2 {
            config.cluster.as_mut().unwrap().key_file = strange.clone();
        }
    });
    until("two joined", || nodes.cluster(0).members.iter().any(|it| it.sees_same_pfs));
    until("what the third sends is counted", || nodes.cluster(0).messages_rejected > 0);
    let third = nodes.cluster(0).members.into_iter().find(|it| it.node == "n2").unwrap();
    assert!(third.state != "alive" && !third.sees_same_pfs, "{third:?}");
}

#[test]
fn a_node_that_ends_is_missed_by_nobody() {
    let nodes = Nodes::joined(3);
    let bytes = content(9, 6 * BLOCK as usize);
    std::fs::write(nodes.pfs("file"), &bytes).unwrap();
    assert!(nodes.read(0, "file").0 == bytes);
    nodes.wait_announced(6);
    nodes.nodes[0].stop();
    assert!(nodes.read(1, "file").0 == bytes);
    let left = |node: usize| {
        let mut members = nodes.cluster(node).members.into_iter();
        members.any(|it| it.node == "n0" && (it.state == "left" || it.state == "down"))
    };
    until("the others know", || left(1) && left(2));
    until("it is found at its new holder", || {
        nodes.cluster(1).location_entries + nodes.cluster(2).location_entries == 6
    });
    let (read, outcome) = nodes.read(2, "file");
    assert!(read == bytes);
    assert_eq!(outcome.levels.peer, bytes.len() as u64, "{outcome:?}");
}

#[test]
fn a_list_without_this_node_or_a_key_for_all_to_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let key_file = write_key(directory.path(), 7);
    let start = |name: &str| {
        let config = support::config(directory.path(), |config| {
            config.cluster = Some(ClusterConfig {
                nodes: member_list(2),
                cluster_name: "test".into(),
                key_file: key_file.clone(),
                node_name: Some(name.into()),
                peer_port: 7478,
                peer_timeout: Duration::from_millis(500),
                is_integrity_full: false,
                buffer_local_bytes: u64::MAX,
                buffer_servers: Vec::new(),
                tls: None,
                node_address: None,
            });
        });
        Node::start(config).map(|node| node.stop())
    };
    let error = start("n7").unwrap_err().to_string();
    assert!(error.contains("not among `cluster_nodes`"), "{error}");
    start("n1").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = start("n1").unwrap_err().to_string();
    assert!(error.contains("cluster_key_file"), "{error}");
}

/// Splits of the file that is asked about in tests of their places.
const SPLITS: u32 = 500;

#[test]
fn splits_that_nobody_holds_are_each_one_nodes_whoever_is_asked() {
    let nodes = Nodes::joined(3);
    let file = File::create(nodes.pfs("file")).unwrap();
    file.set_len(u64::from(SPLITS) * BLOCK).unwrap();
    let owners = nodes.locate(0, "file", BLOCK, u32::MAX);
    assert_eq!(owners.len(), SPLITS as usize, "to the end of the file and no further");
    for node in [1, 2] {
        assert_eq!(nodes.locate(node, "file", BLOCK, SPLITS), owners, "node {node}");
    }
    for name in ["n0", "n1", "n2"] {
        let share = owners.iter().filter(|it| *it == name).count();
        assert!((100..250).contains(&share), "{name} has {share} of {SPLITS}");
    }
    let explained = nodes.explain(1, "file").split_owners;
    let explained: Vec<_> = explained.into_iter().map(|it| (it.split, it.node)).collect();
    let whole: Vec<_> = (0..).zip(nodes.locate(0, "file", 128 << 20, u32::MAX)).collect();
    assert!(explained == whole && !whole.is_empty(), "{explained:?}");
    // A member that leaves takes its own splits along and no others.
    nodes.nodes[2].stop();
    until("the others know", || !nodes.locate(0, "file", BLOCK, SPLITS).contains(&"n2".into()));
    for (before, after) in owners.iter().zip(nodes.locate(0, "file", BLOCK, SPLITS)) {
        assert!(*before == after || before == "n2", "{before} became {after}");
    }
}

#[test]
fn splits_are_where_they_are_in_memory() {
    let nodes = Nodes::joined(2);
    let bytes = content(12, 8 * BLOCK as usize);
    std::fs::write(nodes.pfs("file"), &bytes).unwrap();
    let absent = nodes.locate(1, "file", 2 * BLOCK, SPLITS);
    let read = |node: usize, blocks: std::ops::Range<u64>| {
        let open = nodes.open(node, "file");
        open.advise(Advice { read_ahead_bytes_max: Some(0), keep: true });
        for block in blocks {
            open.read_at(block * BLOCK, &mut vec![0; BLOCK as usize]).unwrap();
        }
    };
    // All of two splits, half of the third; the fourth stays absent.
    read(0, 0..5);
    read(1, 2..4);
    until("what is held is told", || {
        let held = nodes.locate(1, "file", 2 * BLOCK, SPLITS);
        let both = ["n0+n1*", "n1+n0*"].contains(&&*held[1]);
        (&*held[0], &*held[2], &held[3]) == ("n0*", "n0*", &absent[3]) && both
    });
    until("whichever is asked", || {
        nodes.locate(0, "file", 2 * BLOCK, 9) == nodes.locate(1, "file", 2 * BLOCK, 9)
    });
    let explained = nodes.explain(0, "file");
    assert!(explained.split_owners.is_empty(), "half of its only long split is held");
    // Of another version nobody holds anything.
    std::fs::write(nodes.pfs("file"), content(13, 8 * BLOCK as usize)).unwrap();
    assert_eq!(nodes.locate(0, "file", 2 * BLOCK, SPLITS), absent);
    read(1, 0..8);
    let held = vec!["n1*".to_owned(); 4];
    until("its new holder is told", || nodes.locate(0, "file", 2 * BLOCK, SPLITS) == held);
    nodes.nodes[1].admin(AdminRequest::EvictAll, None, 0).unwrap();
    until("they are absent again", || nodes.locate(0, "file", 2 * BLOCK, SPLITS) == absent);
}

#[test]
fn what_one_node_alone_has_is_there() {
    let nodes = Nodes::joined(2);
    std::fs::write(nodes.pfs("small"), content(14, 1000)).unwrap();
    nodes.read(0, "small");
    assert_eq!(nodes.locate(0, "small", BLOCK, 1), ["n0*"], "packed there");
    let mut options = File::options();
    let lower = options.read(true).write(true).create(true).open(nodes.pfs("file")).unwrap();
    let request = OpenRequest {
        access: Access::ReadWrite,
        write_mode: Some(WriteMode::Memory),
        created: true,
        ..OpenRequest::to_read(lower.into(), 0)
    };
    let file = nodes.nodes[0].open(request).unwrap();
    file.write_at(0, &content(15, 3 * BLOCK as usize)).unwrap();
    file.sync(false).unwrap();
    assert_eq!(nodes.locate(0, "file", BLOCK, SPLITS), ["n0*", "n0*", "n0*"]);
}

#[test]
fn a_node_that_stands_alone_says_so() {
    let fixture = support::Fixture::new();
    let path = fixture.put("file", &content(16, 100));
    let locate = |split_bytes| {
        let range = SplitRange { split_bytes, first: 0, count: 1 };
        let file = File::open(&path).unwrap().into();
        fixture.node.admin(AdminRequest::Locate(range), Some(file), 0)
    };
    assert_eq!(locate(BLOCK).unwrap(), AdminReply::Located(Locality::Alone));
    assert!(locate(0).is_err(), "splits without bytes");
}

/// Nodes whose certificates are of these authorities.
fn certified(authorities: &[&Authority]) -> Nodes {
    Nodes::with(authorities.len(), |number, config| {
        let files = authorities[number].issue(&format!("n{number}"), false);
        let cluster = config.cluster.as_mut().expect("it is one of several");
        cluster.tls = Some(PeerTlsConfig {
            certificate_file: files.certificate,
            private_key_file: files.private_key,
            authority_file: files.authority,
        });
    })
}

#[test]
fn nodes_with_certificates_of_one_authority_read_from_each_other() {
    let ours = Authority::new();
    let nodes = certified(&[&ours, &ours]);
    nodes.wait_joined();
    let bytes = content(3, 3 * BLOCK as usize);
    std::fs::write(nodes.pfs("file"), &bytes).unwrap();
    assert!(nodes.read(0, "file").0 == bytes);
    nodes.wait_announced(3);
    assert!(nodes.read(1, "file").0 == bytes);
    assert_eq!(nodes.pfs_read_bytes(1), 0, "all of it came from the other node");
}

#[test]
fn nodes_with_certificates_of_others_are_given_nothing_and_told_why() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let nodes = certified(&[&ours, &theirs]);
    let because = |node: usize| nodes.cluster(node).members[0].refused_because.clone();
    until("both know why", || because(0).is_some() && because(1).is_some());
    let words = because(0).unwrap_or_default();
    assert!(words.contains("peer_tls_authority_file"), "{words}");
    let bytes = content(3, 3 * BLOCK as usize);
    std::fs::write(nodes.pfs("file"), &bytes).unwrap();
    for node in [0, 1] {
        assert!(nodes.read(node, "file").0 == bytes);
        assert_eq!(nodes.pfs_read_bytes(node), bytes.len() as u64);
    }
}
