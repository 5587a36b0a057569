//! What a cluster is and does: nodes, rates, traffic, mounts, services, partitions.

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use super::plan::{Node, Role};
use super::plane::{self, PlaneStatus};
use super::{Cluster, disk, network, processes};
use crate::arguments::PfsKind;

/// A cluster at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its file system.
    pub pfs: PfsKind,
    /// Whether the daemons know nothing of each other.
    pub single: bool,
    /// Where logs and configurations are.
    pub directory: PathBuf,
    /// Bytes that left the data nodes since they were made, with headers.
    pub pfs_sent_bytes: u64,
    /// Bytes that were read from the disks of data nodes.
    pub disk_read_bytes: u64,
    /// Bytes that were written to them.
    pub disk_written_bytes: u64,
    /// The cluster plane of memory control, where it has one.
    pub plane: Option<PlaneStatus>,
    /// Its nodes.
    pub nodes: Vec<NodeStatus>,
}

/// A node at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// What runs on it.
    pub role: Role,
    /// Its address in the cluster.
    pub address: String,
    /// Its network namespace.
    pub namespace: String,
    /// Rate of its link in each direction; none without a limit.
    pub link_bytes_per_s: Option<u64>,
    /// Rate of its disk in each direction; none without a limit.
    pub disk_bytes_per_s: Option<u64>,
    /// What its link carried into it.
    pub received_bytes: u64,
    /// What its link carried out of it.
    pub sent_bytes: u64,
    /// The state of its daemon or servers.
    pub service: Service,
    /// Their processes.
    pub process_ids: Vec<u32>,
    /// The daemon's mount, as this machine sees it.
    pub mount: Option<PathBuf>,
    /// The bare file system, as this machine sees it.
    pub pfs: Option<PathBuf>,
    /// Nodes to which all that it sends is lost.
    pub lost: Vec<String>,
}

/// What a service does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// It runs.
    Running,
    /// It stands still.
    Paused,
    /// There is none.
    Ended,
}

impl Cluster {
    /// The state of the cluster.
    ///
    /// # Errors
    /// A node that is not up.
    pub fn status(&self) -> Result<Status> {
        let plan = &self.plan;
        let disks = self.disks()?;
        Ok(Status {
            name: plan.name.clone(),
            pfs: plan.pfs,
            single: plan.single,
            directory: plan.directory.clone(),
            pfs_sent_bytes: self.pfs_bytes_read()?,
            disk_read_bytes: disks.read_bytes,
            disk_written_bytes: disks.written_bytes,
            plane: plane::status(plan)?,
            nodes: plan.nodes.iter().map(|node| self.node_status(node)).collect::<Result<_>>()?,
        })
    }

    fn node_status(&self, node: &Node) -> Result<NodeStatus> {
        let traffic = self.link(&node.name)?;
        let process_ids = self.service(node, false)?;
        let is_compute = node.role == Role::Compute;
        let lost = network::lost(&self.plan, node)?;
        Ok(NodeStatus {
            name: node.name.clone(),
            role: node.role,
            address: node.address(),
            namespace: self.plan.namespace(node),
            link_bytes_per_s: node.link.0,
            disk_bytes_per_s: node.disk.0.filter(|_| disk::Limiter::find().is_ok()),
            received_bytes: traffic.received_bytes,
            sent_bytes: traffic.sent_bytes,
            service: Service::of(&process_ids),
            process_ids,
            mount: is_compute.then(|| self.mount(&node.name)).transpose()?,
            pfs: is_compute.then(|| self.pfs(&node.name)).transpose()?,
            lost: lost.iter().map(|node| node.name.clone()).collect(),
        })
    }
}

impl Service {
    pub(super) fn of(process_ids: &[u32]) -> Self {
        let states: Vec<char> = process_ids.iter().filter_map(|id| processes::state(*id)).collect();
        if states.is_empty() {
            Service::Ended
        } else if states.contains(&'T') {
            Service::Paused
        } else {
            Service::Running
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pfs = serde_json::to_string(&self.pfs).map_err(|_| fmt::Error)?;
        let alone = if self.single { ", every daemon alone" } else { "" };
        writeln!(f, "cluster {}: {}{alone}", self.name, pfs.trim_matches('"'))?;
        writeln!(f, "logs: {}", self.directory.display())?;
        if let Some(plane) = &self.plane {
            writeln!(f, "{plane}")?;
        }
        let heads = ["node", "address", "service", "link MB/s", "disk MB/s", "in MB", "out MB"];
        let [node, address, service, link, disk, received, sent] = heads;
        writeln!(
            f,
            "{node:<5} {address:<12} {service:<8} {link:>10} {disk:>10} {received:>10} {sent:>10}"
        )?;
        for node in &self.nodes {
            let rate = |rate: Option<u64>| rate.map_or("-".into(), megabytes);
            let service = node.service.to_string();
            let lost = match node.lost.as_slice() {
                [] => String::new(),
                names => format!("  cannot send to {}", names.join(", ")),
            };
            writeln!(
                f,
                "{:<5} {:<12} {service:<8} {:>10} {:>10} {:>10} {:>10}{lost}",
                node.name,
                node.address,
                rate(node.link_bytes_per_s),
                rate(node.disk_bytes_per_s),
                megabytes(node.received_bytes),
                megabytes(node.sent_bytes),
            )?;
        }
        for node in &self.nodes {
            if let (Some(mount), Some(pfs)) = (&node.mount, &node.pfs) {
                let (mount, pfs) = (mount.display(), pfs.display());
                writeln!(f, "{}: mount {mount}, file system {pfs}", node.name)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}
