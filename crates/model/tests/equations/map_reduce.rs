//! Phase costs against sums by hand.

use tidepool_model::{Cluster, Job, Resource, Storage, job_cost};

use crate::support::{gigabytes, megabytes, nodes, paper, share};

const JOB: fn() -> Job = || Job {
    input: gigabytes(256.0),
    map_output: gigabytes(128.0),
    shuffle_output: gigabytes(64.0),
    output: gigabytes(32.0),
};

/// Seconds of `size` GB on one of 16 nodes at `rate` MB/s.
fn seconds(size: f64, rate: f64) -> f64 {
    size * 1000.0 / 16.0 / rate
}

#[test]
fn phases_by_hand() {
    let cluster = paper(10_000.0);
    let pfs = 10_000.0 / 16.0;
    let two_level = 1.0 / (0.5 / 6267.0 + 0.5 / pfs);
    let half = Storage::TwoLevel { hits: share(0.5) };
    // Input, intermediate reads, intermediate writes, output, each in MB/s.
    let cases = [
        (Storage::HdfsLocal, [237.0, 237.0, 116.0, 116.0 / 3.0]),
        (Storage::Pfs, [pfs, 237.0, 116.0, pfs]),
        (Storage::MemoryLocal, [6267.0, 6267.0, 6267.0, 6267.0]),
        (half, [two_level, 6267.0, 6267.0, pfs]),
    ];
    for (storage, [input, from, to, output]) in cases {
        let cost = job_cost(&cluster, storage, &JOB(), nodes(16)).unwrap();
        let expected = [
            (cost.map.total(), seconds(256.0, input) + seconds(128.0, to)),
            (cost.shuffle.total(), seconds(128.0, from) + seconds(64.0, to)),
            (cost.reduce.total(), seconds(64.0, from) + seconds(32.0, output)),
        ];
        for (number, (found, by_hand)) in expected.iter().enumerate() {
            assert!((found.get() - by_hand).abs() < 1e-9, "{storage:?} {number}: {found:?}");
        }
        let sum: f64 = expected.iter().map(|(_, by_hand)| by_hand).sum();
        assert!((cost.total().get() - sum).abs() < 1e-9);
    }
}

#[test]
fn the_network_holds_the_shuffle_only_where_asked() {
    let mut cluster = paper(10_000.0);
    let shuffle = |cluster: &Cluster| {
        job_cost(cluster, Storage::MemoryLocal, &JOB(), nodes(16)).unwrap().shuffle
    };
    assert_eq!(shuffle(&cluster).read_limit, Resource::Memory);
    cluster.extensions.shuffle_crosses_network = true;
    let found = shuffle(&cluster);
    assert_eq!(found.read_limit, Resource::ComputeNetwork);
    assert!((found.read.get() - seconds(128.0, 1170.0)).abs() < 1e-9);
    cluster.backplane = Some(megabytes(1600.0));
    let found = shuffle(&cluster);
    assert_eq!(found.read_limit, Resource::Backplane);
    assert!((found.read.get() - seconds(128.0, 100.0)).abs() < 1e-9);
}

#[test]
fn intermediate_data_needs_disks_where_it_lies_on_disks() {
    let mut cluster = paper(10_000.0);
    cluster.disk = None;
    let error = job_cost(&cluster, Storage::Pfs, &JOB(), nodes(16)).unwrap_err();
    assert!(error.remedy_text().unwrap().contains("--disk-read"));
    assert!(job_cost(&cluster, Storage::MemoryLocal, &JOB(), nodes(16)).is_ok());
}
