//! Where a job's files are.

use anyhow::Result;

use crate::cluster::Cluster;

/// Where a job's files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `tide://`, in the directory of a write mode.
    Mode(&'static str),
    /// The bare client of the file system.
    Pfs,
    /// HDFS on the same disks.
    Hdfs,
}

impl Place {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Place::Mode(mode) => mode,
            Place::Pfs => "PFS",
            Place::Hdfs => "HDFS",
        }
    }

    /// Address of the file system, as Hadoop's default.
    pub fn root(self, cluster: &Cluster) -> Result<String> {
        Ok(match self {
            Place::Mode(mode) => format!("tide:///{mode}"),
            Place::Pfs => "file:///".to_owned(),
            Place::Hdfs => cluster.hdfs()?,
        })
    }

    /// Address of a directory.
    pub fn uri(self, cluster: &Cluster, name: &str) -> Result<String> {
        Ok(match self {
            Place::Mode(mode) => format!("tide:///{mode}/{name}"),
            Place::Pfs => format!("file:///run/pfs/plain/{name}"),
            Place::Hdfs => format!("{}/{name}", self.root(cluster)?),
        })
    }
}
