//! Inputs that several tests share.

use tidepool_model::{
    Bytes, BytesPerSecond, Cluster, Extensions, LocalDisk, NodeCount, Pfs, Share,
};

pub fn megabytes(rate: f64) -> BytesPerSecond {
    BytesPerSecond::megabytes(rate).unwrap()
}

pub fn nodes(count: u32) -> NodeCount {
    NodeCount::new(count).unwrap()
}

pub fn share(value: f64) -> Share {
    Share::new(value).unwrap()
}

pub fn gigabytes(size: f64) -> Bytes {
    Bytes::new(size * 1e9).unwrap()
}

/// The inputs of section 4.5 of the paper, in MB/s: averages over five clusters.
pub fn paper(pfs_aggregate: f64) -> Cluster {
    Cluster {
        network: megabytes(1170.0),
        backplane: None,
        disk: Some(LocalDisk { read: megabytes(237.0), write: megabytes(116.0) }),
        memory_read: megabytes(6267.0),
        memory_write: megabytes(6267.0),
        pfs: Pfs::Aggregate { read: megabytes(pfs_aggregate), write: megabytes(pfs_aggregate) },
        extensions: Extensions::default(),
    }
}
