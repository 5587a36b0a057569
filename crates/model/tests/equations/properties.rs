//! Property tests of the equations: bounds, monotonicity, and limits that reduce to each other.

use proptest::prelude::*;
use tidepool_model::{
    Bytes, Cluster, Direction, Extensions, Input, Latency, LocalDisk, Pfs, Resource, Seconds,
    Storage, aggregate, per_node, sensitivities,
};

use crate::support::{megabytes, nodes, paper, share};

prop_compose! {
    fn extensions()(
        hdfs_replicas in 1_u32..5,
        memory_copies in 1_u32..4,
        remote in 0.0..=1.0_f64,
        processing in proptest::option::of(10.0..1e5_f64),
        data_node_reach in proptest::option::of(1_u32..20),
        taken in 0.0..0.95_f64,
        latency in proptest::option::of((0.0..0.01_f64, 0.0..0.1_f64)),
    ) -> Extensions {
        Extensions {
            hdfs_replicas,
            memory_copies,
            remote_hits: share(remote),
            processing: processing.map(megabytes),
            data_node_reach,
            pfs_taken: share(taken),
            latency: latency.map(|(memory, pfs)| Latency {
                request: Bytes::whole(1 << 20),
                memory: Seconds::new(memory).unwrap(),
                pfs: Seconds::new(pfs).unwrap(),
            }),
            shuffle_crosses_network: false,
        }
    }
}

prop_compose! {
    fn cluster()(
        extensions in extensions(),
        rates in proptest::array::uniform7(1.0..1e6_f64),
        backplane in proptest::option::of(1.0..1e7_f64),
        data_nodes in proptest::option::of(1_u32..500),
    ) -> Cluster {
        let [network, disk_read, disk_write, memory_read, memory_write, read, write] =
            rates.map(megabytes);
        let pfs = match data_nodes {
            None => Pfs::Aggregate { read, write },
            Some(count) => Pfs::DataNodes {
                count: nodes(count), network, disk_read: read, disk_write: write,
            },
        };
        Cluster {
            network,
            backplane: backplane.map(megabytes),
            disk: Some(LocalDisk { read: disk_read, write: disk_write }),
            memory_read,
            memory_write,
            pfs,
            extensions,
        }
    }
}

fn storages(hits: f64) -> [Storage; 6] {
    [
        Storage::HdfsLocal,
        Storage::HdfsRemote,
        Storage::Pfs,
        Storage::MemoryLocal,
        Storage::MemoryRemote,
        Storage::TwoLevel { hits: share(hits) },
    ]
}

fn rate(cluster: &Cluster, storage: Storage, direction: Direction, count: u32) -> f64 {
    per_node(cluster, storage, direction, nodes(count)).unwrap().rate.get()
}

/// The fastest of the resources that a transfer may use.
fn fastest(cluster: &Cluster, storage: Storage, direction: Direction) -> f64 {
    let disk = cluster.disk.unwrap();
    let reading = direction == Direction::Read;
    let memory = if reading { cluster.memory_read } else { cluster.memory_write }.get();
    match storage {
        Storage::HdfsLocal | Storage::HdfsRemote if reading => disk.read.get(),
        Storage::HdfsLocal | Storage::HdfsRemote => disk.write.get(),
        Storage::Pfs => cluster.network.get(),
        Storage::MemoryLocal | Storage::MemoryRemote => memory,
        Storage::TwoLevel { .. } => memory.max(cluster.network.get()),
    }
}

const BOTH: [Direction; 2] = [Direction::Read, Direction::Write];
/// Rounding of a few operations.
const SLACK: f64 = 1.0 + 1e-9;

proptest! {
    #[test]
    fn within_the_fastest_resource_on_the_path(
        cluster in cluster(), hits in 0.0..=1.0_f64, count in 1_u32..5_000,
    ) {
        for direction in BOTH {
            for storage in storages(hits) {
                let found = rate(&cluster, storage, direction, count);
                prop_assert!(found > 0.0);
                prop_assert!(found <= fastest(&cluster, storage, direction) * SLACK,
                    "{:?} {:?}: {}", storage, direction, found);
                if let Some(processing) = cluster.extensions.processing {
                    prop_assert!(found <= processing.get());
                }
            }
        }
    }

    #[test]
    fn more_nodes_never_lower_the_aggregate_nor_raise_the_part_of_one(
        cluster in cluster(), hits in 0.0..=1.0_f64, count in 1_u32..5_000, more in 1_u32..5_000,
    ) {
        for direction in BOTH {
            for storage in storages(hits) {
                let (few, many) = (count, count + more);
                let one = rate(&cluster, storage, direction, few);
                prop_assert!(rate(&cluster, storage, direction, many) <= one * SLACK);
                let all = |count| {
                    aggregate(&cluster, storage, direction, nodes(count)).unwrap().rate.get()
                };
                prop_assert!(all(many) * SLACK >= all(few), "{:?} {:?}", storage, direction);
            }
        }
    }

    #[test]
    fn faster_parts_never_hurt(
        cluster in cluster(), hits in 0.0..=1.0_f64, count in 1_u32..500, factor in 1.0..50.0_f64,
    ) {
        type Change = fn(&mut Cluster, f64);
        let changes: [Change; 6] = [
            |cluster, factor| cluster.network = cluster.network.times(factor),
            |cluster, factor| cluster.backplane = cluster.backplane.map(|rate| rate.times(factor)),
            |cluster, factor| {
                let disk = cluster.disk.as_mut().unwrap();
                (disk.read, disk.write) = (disk.read.times(factor), disk.write.times(factor));
            },
            |cluster, factor| cluster.memory_read = cluster.memory_read.times(factor),
            |cluster, factor| cluster.memory_write = cluster.memory_write.times(factor),
            |cluster, factor| match &mut cluster.pfs {
                Pfs::Aggregate { read, write } => {
                    (*read, *write) = (read.times(factor), write.times(factor));
                }
                Pfs::DataNodes { network, disk_read, disk_write, .. } => {
                    *network = network.times(factor);
                    (*disk_read, *disk_write) = (disk_read.times(factor), disk_write.times(factor));
                }
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut faster = cluster.clone();
            change(&mut faster, factor);
            for direction in BOTH {
                for storage in storages(hits) {
                    let before = rate(&cluster, storage, direction, count);
                    let after = rate(&faster, storage, direction, count);
                    prop_assert!(after * SLACK >= before, "{} {:?}", number, storage);
                }
            }
        }
    }

    #[test]
    fn f_of_0_is_the_pfs_and_f_of_1_is_memory(cluster in cluster(), count in 1_u32..500) {
        let two_level = |cluster: &Cluster, hits: f64| {
            rate(cluster, Storage::TwoLevel { hits: share(hits) }, Direction::Read, count)
        };
        let same = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
        let pfs = rate(&cluster, Storage::Pfs, Direction::Read, count);
        prop_assert!(same(two_level(&cluster, 0.0), pfs));
        let mut local = cluster.clone();
        local.extensions.remote_hits = share(0.0);
        local.extensions.latency = None;
        let memory = rate(&local, Storage::MemoryLocal, Direction::Read, count);
        prop_assert!(same(two_level(&local, 1.0), memory));
        local.extensions.remote_hits = share(1.0);
        let remote = rate(&local, Storage::MemoryRemote, Direction::Read, count);
        prop_assert!(same(two_level(&local, 1.0), remote));
    }

    #[test]
    fn a_larger_share_in_memory_never_hurts_where_memory_is_the_faster_level(
        cluster in cluster(), hits in 0.0..=1.0_f64, more in 0.0..=1.0_f64, count in 1_u32..500,
    ) {
        let two_level = |hits: f64| {
            rate(&cluster, Storage::TwoLevel { hits: share(hits) }, Direction::Read, count)
        };
        if two_level(1.0) >= two_level(0.0) {
            let larger = hits + (1.0 - hits) * more;
            prop_assert!(two_level(larger) * SLACK >= two_level(hits));
        }
    }

    #[test]
    fn data_nodes_give_what_their_aggregate_gives(count in 1_u32..500, data_nodes in 1_u32..100) {
        // With disks slower than the network, M data nodes are one PFS of M times a disk.
        let mut by_nodes = paper(1.0);
        by_nodes.pfs = Pfs::DataNodes {
            count: nodes(data_nodes),
            network: megabytes(1170.0),
            disk_read: megabytes(400.0),
            disk_write: megabytes(200.0),
        };
        let mut as_one = paper(1.0);
        as_one.pfs = Pfs::Aggregate {
            read: megabytes(400.0 * f64::from(data_nodes)),
            write: megabytes(200.0 * f64::from(data_nodes)),
        };
        for direction in BOTH {
            let one = rate(&by_nodes, Storage::Pfs, direction, count);
            let other = rate(&as_one, Storage::Pfs, direction, count);
            prop_assert!((one / other - 1.0).abs() < 1e-9);
        }
    }
}

#[test]
fn few_compute_nodes_cannot_keep_many_data_nodes_busy() {
    let mut cluster = paper(1.0);
    cluster.network = megabytes(1e6);
    cluster.pfs = Pfs::DataNodes {
        count: nodes(100),
        network: megabytes(1170.0),
        disk_read: megabytes(400.0),
        disk_write: megabytes(200.0),
    };
    let read = |cluster: &Cluster| rate(cluster, Storage::Pfs, Direction::Read, 2) / 1e6;
    assert_eq!(read(&cluster), 100.0 * 400.0 / 2.0);
    cluster.extensions.data_node_reach = Some(8);
    assert_eq!(read(&cluster), 16.0 * 400.0 / 2.0);
}

#[test]
fn extensions_do_what_they_say() {
    let mut cluster = paper(10_000.0);
    let read = |cluster: &Cluster, hits: f64| {
        let storage = Storage::TwoLevel { hits: share(hits) };
        per_node(cluster, storage, Direction::Read, nodes(20)).unwrap()
    };
    cluster.extensions.pfs_taken = share(0.5);
    assert!((read(&cluster, 0.0).rate.get() / 250e6 - 1.0).abs() < 1e-12);
    cluster.extensions.processing = Some(megabytes(100.0));
    assert_eq!(read(&cluster, 0.0).resource, Resource::Processor);
    cluster.extensions = Extensions::default();
    cluster.extensions.latency = Some(Latency {
        request: Bytes::whole(1_000_000),
        memory: Seconds::default(),
        pfs: Seconds::new(0.01).unwrap(),
    });
    // 1 MB at 500 MB/s takes 2 ms; with 10 ms before it, 12 ms.
    let slow = read(&cluster, 0.0);
    assert!((slow.rate.get() / 1e6 - 1000.0 / 12.0).abs() < 1e-9, "{slow:?}");
    assert_eq!(slow.resource, Resource::Latency);
    cluster.extensions = Extensions { hdfs_replicas: 1, ..Extensions::default() };
    let write = |cluster: &Cluster, storage| {
        per_node(cluster, storage, Direction::Write, nodes(20)).unwrap().rate
    };
    assert_eq!(write(&cluster, Storage::HdfsLocal), megabytes(116.0));
    cluster.extensions.memory_copies = 2;
    assert_eq!(write(&cluster, Storage::MemoryLocal), megabytes(1170.0));
}

#[test]
fn inputs_without_meaning_are_refused() {
    let changes: [fn(&mut Extensions); 5] = [
        |extensions| extensions.hdfs_replicas = 0,
        |extensions| extensions.memory_copies = 0,
        |extensions| extensions.data_node_reach = Some(0),
        |extensions| extensions.pfs_taken = share(1.0),
        |extensions| {
            let none = Seconds::default();
            extensions.latency =
                Some(Latency { request: Bytes::default(), memory: none, pfs: none });
        },
    ];
    for change in changes {
        let mut cluster = paper(10_000.0);
        change(&mut cluster.extensions);
        let error = per_node(&cluster, Storage::Pfs, Direction::Read, nodes(1)).unwrap_err();
        assert!(error.remedy_text().is_some(), "{error}");
    }
    let mut cluster = paper(10_000.0);
    cluster.disk = None;
    assert!(per_node(&cluster, Storage::HdfsLocal, Direction::Read, nodes(1)).is_err());
}

#[test]
fn sensitivities_name_what_counts() {
    let found = sensitivities(&paper(10_000.0), share(0.5), nodes(40)).unwrap();
    let of = |input| found.iter().find(|one| one.input == input).unwrap();
    // 40 nodes share 10 GB/s: 250 MB/s each. A byte takes 0.5/6267 + 0.5/250 us.
    let (memory, pfs) = (0.5 / 6267.0, 0.5 / 250.0);
    let near = |one: f64, other: f64| (one - other).abs() < 1e-4;
    assert!(near(of(Input::Pfs).elasticity, pfs / (memory + pfs)));
    assert!(near(of(Input::Memory).elasticity, memory / (memory + pfs)));
    assert!(near(of(Input::Network).elasticity, 0.0));
    assert!(near(of(Input::Hits).elasticity, (pfs - memory) / (memory + pfs)));
    let three_quarters = 0.75 / 6267.0 + 0.25 / 250.0;
    assert!(near(of(Input::Hits).gain_if_doubled, (memory + pfs) / three_quarters));
    assert!(found.windows(2).all(|pair| pair[0].elasticity >= pair[1].elasticity));
    assert!(found.iter().all(|one| one.input != Input::Backplane), "there is none to change");
    let all = sensitivities(&paper(10_000.0), share(1.0), nodes(40)).unwrap();
    assert!(all.iter().all(|one| one.elasticity.is_finite()));
}
