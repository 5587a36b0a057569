//! What a test cluster consists of: nodes with names, roles and addresses, rates, the file system.
//! Pure: nothing here touches the machine.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::arguments::{ClusterService, ClusterUpOptions, PfsKind, Rate};

/// The network of every cluster. Each has a bridge in a namespace of its own, so that several
/// clusters use the same addresses and none is an address of this machine.
const NETWORK: &str = "10.77.0";
/// Last part of the first compute node's address.
const FIRST_COMPUTE: u8 = 11;
/// Last part of the first data node's address.
const FIRST_DATA: u8 = 101;
/// Last part of the address of MooseFS's master, and of the heads of services.
const MANAGER: u8 = 2;
/// Longest name, so that paths of sockets stay below their limit.
const NAME_LENGTH_MAX: usize = 20;

/// What to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the cluster, in the names of its namespaces.
    pub name: String,
    /// Compute nodes, data nodes and what the file system needs besides.
    pub nodes: Vec<Node>,
    /// Size of each data node's disk, in bytes; the images are sparse.
    pub disk_bytes: u64,
    /// Capacity of each daemon's store, as its command line takes it.
    pub memory: String,
    /// The parallel file system.
    pub pfs: PfsKind,
    /// What else runs.
    #[serde(default)]
    pub services: Vec<ClusterService>,
    /// Policy of the cluster plane, where that runs.
    #[serde(default)]
    pub plane_policy: String,
    /// Options of its job, `name=value`.
    #[serde(default)]
    pub plane_options: Vec<String>,
    /// Whether daemons have certificates.
    #[serde(default)]
    pub is_encrypted: bool,
    /// How many compute nodes, the last ones, have a burst buffer.
    #[serde(default)]
    pub buffers: u8,
    /// Whether daemons know nothing of each other.
    pub single: bool,
    /// Options of the daemons, `name=value`.
    pub node_options: Vec<String>,
    /// Images of disks, logs and configurations are below it; on a disk, not in memory.
    pub directory: PathBuf,
    /// The daemon's program.
    pub binary: PathBuf,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// `c1`, `d1` and so on.
    pub name: String,
    /// What runs on it.
    pub role: Role,
    /// Last part of its address.
    pub number: u8,
    /// Rate of its link in each direction, in bytes a second with headers.
    pub link: Rate,
    /// Rate of its disk in each direction, in bytes a second.
    pub disk: Rate,
}

/// What runs on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A Tidepool daemon over a client of the file system.
    Compute,
    /// A disk and a server of the file system.
    Data,
    /// Metadata of a file system that keeps it apart, and heads of services; its link is not
    /// shaped.
    Manager,
}

impl Plan {
    /// The plan of a command line.
    ///
    /// # Errors
    /// A name that cannot be the name of namespaces and directories.
    pub fn new(name: &str, options: &ClusterUpOptions, binary: PathBuf) -> Result<Self> {
        check_name(name)?;
        let link = options.link.unwrap_or(Rate(None));
        let disk = options.disk.unwrap_or(Rate(None));
        let node = |prefix: &str, role: Role, first: u8, at: u8| Node {
            name: format!("{prefix}{}", at + 1),
            role,
            number: first + at,
            link,
            disk: if role == Role::Data { disk } else { Rate(None) },
        };
        let data = (0..options.data).map(|at| node("d", Role::Data, FIRST_DATA, at));
        let compute = (0..options.compute).map(|at| node("c", Role::Compute, FIRST_COMPUTE, at));
        let services = options.services();
        let needs_manager = options.pfs == PfsKind::Moosefs || !services.is_empty();
        let manager = needs_manager.then(|| Node {
            name: "mgr".into(),
            link: Rate(None),
            ..node("", Role::Manager, MANAGER, 0)
        });
        Ok(Plan {
            name: name.to_owned(),
            nodes: manager.into_iter().chain(data).chain(compute).collect(),
            disk_bytes: options.disk_size,
            memory: options.memory.clone(),
            pfs: options.pfs,
            services,
            plane_policy: options.plane_policy.clone(),
            plane_options: options.plane_option.clone(),
            is_encrypted: options.tls,
            buffers: options.buffers,
            single: options.single,
            node_options: options.node_option.clone(),
            directory: options.directory.join(name),
            binary,
        })
    }

    /// Nodes of a role, in their order.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.role == role)
    }

    /// Nodes by a list of names with commas, or `all`, `compute` or `data`.
    ///
    /// # Errors
    /// A name that no node has, with those that there are.
    pub fn select(&self, names: &str) -> Result<Vec<&Node>> {
        match names {
            "all" => return Ok(self.nodes.iter().collect()),
            "compute" => return Ok(self.of(Role::Compute).collect()),
            "data" => return Ok(self.of(Role::Data).collect()),
            _ => {}
        }
        names.split(',').map(|name| self.node(name)).collect()
    }

    /// A node by its name.
    ///
    /// # Errors
    /// A name that no node has, with those that there are.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let found = self.nodes.iter().find(|node| node.name == name);
        let Some(node) = found else {
            let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            bail!("cluster {} has no node `{name}`; it has {}", self.name, names.join(", "));
        };
        Ok(node)
    }

    /// Name of a node's network namespace.
    pub fn namespace(&self, node: &Node) -> String {
        format!("tp-{}-{}", self.name, node.name)
    }

    /// Name of the network namespace with the bridge.
    pub fn switch(&self) -> String {
        format!("tp-{}-switch", self.name)
    }

    /// Whether a compute node has a burst buffer.
    pub fn has_buffer(&self, node: &Node) -> bool {
        let compute: Vec<&Node> = self.of(Role::Compute).collect();
        let first = compute.len().saturating_sub(usize::from(self.buffers));
        compute[first..].contains(&node)
    }

    /// Directory of a node's files: its image, its configuration, its logs.
    pub fn files(&self, node: &Node) -> PathBuf {
        self.directory.join(&node.name)
    }

    /// Image of a data node's disk.
    pub fn image(&self, node: &Node) -> PathBuf {
        self.files(node).join("disk.img")
    }

    /// Mark that all processes of the cluster, or of one node, carry in their environment.
    pub fn mark(&self, node: &Node) -> String {
        format!("{}/{}", self.name, node.name)
    }
}

impl Node {
    /// Its address.
    pub fn address(&self) -> String {
        format!("{NETWORK}.{}", self.number)
    }

    /// Address of its link; fixed, so that the bridge need not learn it.
    pub fn link_address(&self) -> String {
        format!("02:00:0a:4d:00:{:02x}", self.number)
    }
}

/// Whether namespaces and directories can have this name.
///
/// # Errors
/// One that they cannot have.
pub fn check_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > NAME_LENGTH_MAX || !name.chars().all(fits) {
        bail!(
            "`{name}` is no name of a cluster: take 1 to {NAME_LENGTH_MAX} lower-case letters, \
             digits and dashes"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use clap::Parser;

    use super::{Plan, Role};
    use crate::arguments::{ClusterOptions, ClusterTask};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ClusterOptions,
    }

    fn plan(arguments: &[&str]) -> anyhow::Result<Plan> {
        let line = Line::try_parse_from([&["x"], arguments].concat())?;
        let ClusterTask::Up(up) = line.options.task else { anyhow::bail!("not `up`") };
        Plan::new(&line.options.name, &up, PathBuf::from("/bin/tidepool"))
    }

    #[test]
    fn the_largest_cluster_has_an_address_for_each_node() {
        let largest = ["up", "--compute", "64", "--data", "16", "--pfs", "moosefs"];
        let plan = plan(&largest).unwrap();
        let addresses: BTreeSet<String> = plan.nodes.iter().map(super::Node::address).collect();
        assert_eq!(plan.nodes.len(), 81);
        assert_eq!(addresses.len(), plan.nodes.len());
    }

    #[test]
    fn only_disks_of_data_nodes_have_the_rate_of_disks() {
        let plan = plan(&["up", "--link", "100MB/s", "--disk", "65MB/s"]).unwrap();
        for node in &plan.nodes {
            assert_eq!(node.link.0, Some(100_000_000), "{}", node.name);
            let disk = (node.role == Role::Data).then_some(65_000_000);
            assert_eq!(node.disk.0, disk, "{}", node.name);
        }
    }

    #[test]
    fn nodes_are_selected_by_names_and_roles() {
        let plan = plan(&["up", "--compute", "3", "--data", "2"]).unwrap();
        let names = |text: &str| -> Vec<String> {
            plan.select(text).unwrap().iter().map(|node| node.name.clone()).collect()
        };
        assert_eq!(names("compute"), ["c1", "c2", "c3"]);
        assert_eq!(names("c3,d1"), ["c3", "d1"]);
        assert_eq!(names("all").len(), 5);
        let error = plan.select("c1,c9").unwrap_err().to_string();
        assert!(error.contains("`c9`") && error.contains("d1, d2, c1, c2, c3"), "{error}");
    }

    #[test]
    fn names_that_leave_their_directory_are_refused() {
        for name in ["", "..", "a/b", "A", "a-name-that-is-far-too-long"] {
            assert!(plan(&["up", "--name", name]).is_err(), "{name}");
        }
        assert!(plan(&["up", "--disk", "0"]).is_err());
    }
}
