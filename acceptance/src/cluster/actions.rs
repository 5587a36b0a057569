//! What is done to a cluster that is up: partitions, slow links and disks, services that are
//! killed, started, paused and resumed.

use anyhow::{Context, Result, bail};

use super::plan::{Node, Role};
use super::{
    Cluster, at_once, daemon, disk, network, pfs, processes, services, space, state, wait_until,
};
use crate::arguments::Rate;
use crate::cleanup::{self, Guard};
use crate::process;

const GONE_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

impl Cluster {
    /// Loses every packet from `one` side to the `other`, and back unless `one_way`. Sides are
    /// lists of names with commas, `compute`, `data` or `all`; a node never loses packets to
    /// itself.
    ///
    /// # Errors
    /// A node that is not there.
    pub fn partition(&self, one: &str, other: &str, one_way: bool) -> Result<()> {
        let (one, other) = (self.plan.select(one)?, self.plan.select(other)?);
        for from in &one {
            for to in other.iter().filter(|to| *to != from) {
                network::lose(&self.plan, from, to)?;
                if !one_way {
                    network::lose(&self.plan, to, from)?;
                }
            }
        }
        Ok(())
    }

    /// Ends all partitions.
    ///
    /// # Errors
    /// Where the kernel refuses it.
    pub fn heal(&self) -> Result<()> {
        for from in &self.plan.nodes {
            for to in network::lost(&self.plan, from)? {
                network::find_again(&self.plan, from, to)?;
            }
        }
        Ok(())
    }

    /// Changes rates of links and disks; `None` leaves them as they are.
    ///
    /// # Errors
    /// A node that is not there, a disk that is not there or cannot be held to a rate here.
    pub fn slow(&mut self, nodes: &str, link: Option<Rate>, disk: Option<Rate>) -> Result<()> {
        let names: Vec<String> =
            self.plan.select(nodes)?.iter().map(|node| node.name.clone()).collect();
        let mut plan = self.plan.clone();
        for node in plan.nodes.iter_mut().filter(|node| names.contains(&node.name)) {
            if let Some(rate) = link {
                network::shape(&self.plan, node, rate)?;
                node.link = rate;
            }
            if let Some(rate) = disk {
                disk::limit(&self.plan, node, rate)?;
                node.disk = rate;
            }
        }
        state::change(&plan)?;
        self.plan = plan;
        Ok(())
    }

    /// Holds how many bytes for each data node's disk the kernel keeps in memory until it writes
    /// them, until the guard is dropped.
    ///
    /// # Errors
    /// The kernel has no such limit, as before Linux 6.2.
    pub fn hold_dirty(&self, bytes: u64) -> Result<Guard> {
        let nodes = self.plan.nodes.iter().filter(|node| node.role == Role::Data);
        let devices: Vec<_> =
            nodes.map(|node| disk::device_of(&self.plan, node)).collect::<Result<_>>()?;
        let held = devices.clone();
        let guard = cleanup::guard(move || {
            for device in &held {
                let _ = disk::hold_dirty(device, None);
            }
        });
        for device in &devices {
            disk::hold_dirty(device, Some(bytes))
                .context("a limit for what is not on a disk yet needs Linux 6.2")?;
        }
        Ok(guard)
    }

    /// Kills the service of nodes by SIGKILL: the daemon of a compute node, the servers of a data
    /// node; or, `whole`, all that runs on them.
    ///
    /// # Errors
    /// A node that is not there, and a process that does not end.
    pub fn kill(&self, nodes: &str, whole: bool) -> Result<()> {
        for node in self.plan.select(nodes)? {
            processes::end(|| self.service(node, whole).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Starts what nodes lack: servers, the client of the file system, the daemon.
    ///
    /// # Errors
    /// A node that is not there, and a service that does not start.
    pub fn start(&self, nodes: &str) -> Result<()> {
        // Compute nodes need the servers of data nodes.
        let (compute, servers): (Vec<&Node>, Vec<&Node>) =
            self.plan.select(nodes)?.into_iter().partition(|node| node.role == Role::Compute);
        at_once(&servers, |node| {
            pfs::start_server(&self.plan, node)?;
            self.start_services_on(node)
        })?;
        at_once(&compute, |node| {
            pfs::start_client(&self.plan, node)?;
            daemon::start(&self.plan, node)?;
            self.start_services_on(node)
        })
    }

    fn start_services_on(&self, node: &Node) -> Result<()> {
        let mut services = self.plan.services.iter();
        services.try_for_each(|service| services::start_on(&self.plan, node, *service))
    }

    /// Stops the service of nodes, or all that runs on them, without ending it. Returns when it
    /// stands still.
    ///
    /// # Errors
    /// A node that is not there, or where nothing runs.
    pub fn pause(&self, nodes: &str, whole: bool) -> Result<()> {
        for node in self.plan.select(nodes)? {
            let ids = self.service(node, whole)?;
            if ids.is_empty() {
                bail!("nothing runs on {}; ./x cluster start {}", node.name, node.name);
            }
            ids.iter().for_each(|id| process::signal(*id, libc::SIGSTOP));
            let stands = |id: &u32| matches!(processes::state(*id), None | Some('T' | 'Z'));
            wait_until(GONE_LIMIT, || ids.iter().all(stands))?;
        }
        Ok(())
    }

    /// Lets all that stands still on nodes go on.
    ///
    /// # Errors
    /// A node that is not there.
    pub fn resume(&self, nodes: &str) -> Result<()> {
        for node in self.plan.select(nodes)? {
            for id in self.service(node, true)? {
                process::signal(id, libc::SIGCONT);
            }
        }
        Ok(())
    }

    /// Processes of the service of a node, or all but the one that holds its namespaces.
    pub(super) fn service(&self, node: &Node, whole: bool) -> Result<Vec<u32>> {
        if node.role == Role::Compute && !whole {
            space::holder(&self.plan, node)?;
            return Ok(daemon::find(&self.plan, node));
        }
        pfs::servers(&self.plan, node)
    }
}
