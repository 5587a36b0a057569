//! Search and closed form against each other, and against plain counting.

use proptest::prelude::*;
use tidepool_model::{
    Cluster, Direction, Extensions, GREATER_BY, LocalDisk, NodeCount, Pfs, Storage, per_node,
    read_crossover, write_crossover,
};

use crate::support::{megabytes, nodes, share};

prop_compose! {
    fn any_cluster()(
        network in 50.0..20_000.0_f64,
        backplane in proptest::option::of(1_000.0..1e6_f64),
        disk_read in 10.0..5_000.0_f64,
        disk_write in 10.0..5_000.0_f64,
        memory in 100.0..50_000.0_f64,
        pfs in 100.0..2e5_f64,
        data_nodes in proptest::option::of(1_u32..300),
        replicas in 1_u32..5,
        taken in 0.0..0.9_f64,
    ) -> Cluster {
        let pfs = match data_nodes {
            Some(count) => Pfs::DataNodes {
                count: nodes(count),
                network: megabytes(network),
                disk_read: megabytes(disk_read * 2.0),
                disk_write: megabytes(disk_write),
            },
            None => Pfs::Aggregate { read: megabytes(pfs), write: megabytes(pfs / 2.0) },
        };
        Cluster {
            network: megabytes(network),
            backplane: backplane.map(megabytes),
            disk: Some(LocalDisk { read: megabytes(disk_read), write: megabytes(disk_write) }),
            memory_read: megabytes(memory),
            memory_write: megabytes(memory),
            pfs,
            extensions: Extensions {
                hdfs_replicas: replicas,
                pfs_taken: share(taken),
                ..Extensions::default()
            },
        }
    }
}

fn hdfs_wins(cluster: &Cluster, hits: f64, direction: Direction, count: u32) -> bool {
    let other = Storage::TwoLevel { hits: share(hits) };
    let rate = |storage| per_node(cluster, storage, direction, nodes(count)).unwrap().rate.get();
    rate(Storage::HdfsLocal) > rate(other) * (1.0 + GREATER_BY)
}

/// The fewest nodes by counting up.
fn counted(cluster: &Cluster, hits: f64, direction: Direction, most: u32) -> Option<NodeCount> {
    (1..=most).find(|count| hdfs_wins(cluster, hits, direction, *count)).map(nodes)
}

proptest! {
    #[test]
    fn search_closed_form_and_counting_agree(cluster in any_cluster(), hits in 0.0..=1.0_f64) {
        const MOST: u32 = 2_000;
        let read = read_crossover(&cluster, share(hits)).unwrap();
        prop_assert!(read.has_closed_form);
        prop_assert_eq!(read.nodes, read.closed_form, "reads");
        let write = write_crossover(&cluster).unwrap();
        prop_assert_eq!(write.nodes, write.closed_form, "writes");
        for (found, direction) in [(read, Direction::Read), (write, Direction::Write)] {
            let within = found.nodes.filter(|nodes| nodes.get() <= MOST);
            prop_assert_eq!(within, counted(&cluster, hits, direction, MOST), "{:?}", direction);
        }
    }

    #[test]
    fn search_works_where_no_closed_form_does(
        cluster in any_cluster(), hits in 0.0..=1.0_f64, reach in 1_u32..20, remote in 0.0..1.0_f64,
    ) {
        let mut cluster = cluster;
        cluster.extensions.data_node_reach = Some(reach);
        cluster.extensions.remote_hits = share(remote);
        let found = read_crossover(&cluster, share(hits)).unwrap();
        prop_assert!(!found.has_closed_form && found.closed_form.is_none());
        let within = found.nodes.filter(|nodes| nodes.get() <= 2_000);
        prop_assert_eq!(within, counted(&cluster, hits, Direction::Read, 2_000));
    }
}

#[test]
fn an_exact_tie_is_not_greater() {
    let mut cluster = crate::support::paper(10_000.0);
    cluster.disk = Some(LocalDisk { read: megabytes(100.0), write: megabytes(300.0) });
    // 100 nodes reach 10,000 MB/s exactly, in both directions.
    let read = read_crossover(&cluster, share(0.0)).unwrap();
    assert_eq!((read.nodes, read.closed_form), (Some(nodes(101)), Some(nodes(101))));
    let write = write_crossover(&cluster).unwrap();
    assert_eq!((write.nodes, write.closed_form), (Some(nodes(101)), Some(nodes(101))));
}

#[test]
fn there_may_be_no_crossover() {
    let mut cluster = crate::support::paper(10_000.0);
    let all = read_crossover(&cluster, share(1.0)).unwrap();
    assert_eq!((all.nodes, all.closed_form), (None, None), "disks never overtake memory");
    cluster.backplane = Some(megabytes(15_000.0));
    let write = write_crossover(&cluster).unwrap();
    assert_eq!((write.nodes, write.closed_form), (None, None), "copies fill the bisection");
}
