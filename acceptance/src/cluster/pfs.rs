//! The parallel file system of a cluster: which programs it needs, its servers on the data nodes,
//! its client on the compute nodes. One file a file system beside this one knows the commands.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::journal::Journal;
use super::plan::{Node, Plan, Role};
use super::{disk, gluster, moosefs, processes, space, together, wait_until};
use crate::arguments::PfsKind;
use crate::process;

const READY_LIMIT: Duration = Duration::from_secs(60);

/// Programs that a file system needs, each with the package of Debian that has it.
pub fn programs(kind: PfsKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        PfsKind::Gluster | PfsKind::GlusterSharded => &gluster::PROGRAMS,
        PfsKind::Moosefs => &moosefs::PROGRAMS,
    }
}

/// Starts all servers and makes the file system.
pub fn make(plan: &Plan, journal: &mut Journal) -> Result<()> {
    // A master first: the others look for it.
    for role in [Role::Manager, Role::Data] {
        together(plan, role, "servers", journal, |node| start_server(plan, node))?;
    }
    match plan.pfs {
        PfsKind::Gluster | PfsKind::GlusterSharded => gluster::make(plan),
        PfsKind::Moosefs => Ok(()),
    }
}

/// Starts the server of a node where none runs.
pub fn start_server(plan: &Plan, node: &Node) -> Result<()> {
    if !servers(plan, node)?.is_empty() {
        return Ok(());
    }
    match plan.pfs {
        // It has no managers.
        PfsKind::Gluster | PfsKind::GlusterSharded if node.role == Role::Manager => Ok(()),
        PfsKind::Gluster | PfsKind::GlusterSharded => gluster::start_server(plan, node),
        PfsKind::Moosefs => moosefs::start_server(plan, node),
    }?;
    confine(plan, node)
}

/// Puts servers where the limit of their disk is, if that is a group of their own. What they start
/// later is born in it.
pub fn confine(plan: &Plan, node: &Node) -> Result<()> {
    let group = disk::group(plan, node);
    if node.role != Role::Data || !group.is_dir() {
        return Ok(());
    }
    for id in processes::inside(&plan.namespace(node)) {
        // One that ended meanwhile needs no limit.
        let _ = fs::write(group.join("cgroup.procs"), id.to_string());
    }
    Ok(())
}

/// Servers on a node: all its processes, because nothing else runs on data nodes.
pub fn servers(plan: &Plan, node: &Node) -> Result<Vec<u32>> {
    let holder = space::holder(plan, node)?;
    let mut ids = processes::inside(&plan.namespace(node));
    ids.retain(|id| *id != holder);
    Ok(ids)
}

/// Mounts the file system on a compute node, where it is not, and waits until it takes writes.
pub fn start_client(plan: &Plan, node: &Node) -> Result<()> {
    if is_mounted(plan, node)? {
        if fs::metadata(space::seen_from_here(plan, node, space::PFS)?).is_ok() {
            return Ok(());
        }
        // Its client was killed.
        let mut unmount = space::command_on(plan, node, "umount")?;
        process::read(unmount.args(["--lazy", space::PFS]))?;
    }
    match plan.pfs {
        PfsKind::Gluster | PfsKind::GlusterSharded => gluster::start_client(plan, node),
        PfsKind::Moosefs => moosefs::start_client(plan, node),
    }?;
    let path = space::seen_from_here(plan, node, space::PFS)?;
    let probe = path.join(format!(".probe-{}", node.name));
    let mut problem = None;
    let ready = wait_until(READY_LIMIT, || {
        let mounted = is_mounted(plan, node).unwrap_or(false);
        let wrote = || fs::write(&probe, "probe").and_then(|()| fs::remove_file(&probe));
        problem = mounted.then(wrote).and_then(Result::err);
        mounted && problem.is_none()
    });
    match ready {
        Err(_) => bail!(
            "{} cannot write to the file system: {}; logs are in {}",
            node.name,
            problem.map_or("it is not mounted".into(), |error| error.to_string()),
            plan.directory.display()
        ),
        Ok(()) => Ok(()),
    }
}

/// Whether the client of a compute node is mounted.
pub fn is_mounted(plan: &Plan, node: &Node) -> Result<bool> {
    let id = space::holder(plan, node)?;
    let mounts = fs::read_to_string(format!("/proc/{id}/mounts")).context("mounts of a node")?;
    Ok(mounts.lines().any(|line| line.split(' ').nth(1) == Some(space::PFS)))
}
