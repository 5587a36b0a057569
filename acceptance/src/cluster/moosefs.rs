//! MooseFS: a master on a node of its own, whose link is not shaped, a chunk server a data node.
//! Files are not replicated, and clients keep neither attributes nor names.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::plan::{Node, Plan, Role};
use super::space;
use crate::process;

/// Programs, each with the package of Debian that has it.
pub const PROGRAMS: [(&str, &str); 5] = [
    ("mfsmaster", "moosefs-master"),
    ("mfschunkserver", "moosefs-chunkserver"),
    ("mfsmount", "moosefs-client"),
    ("mfssetgoal", "moosefs-client"),
    ("mfsscadmin", "moosefs-client"),
];
/// Metadata of a file system without files.
const NO_FILES: &str = "MFSM NEW";
/// Options of the mount: nothing is kept that another client may have changed.
const MOUNT_OPTIONS: &str = "mfsattrcacheto=0,mfsentrycacheto=0,mfsdirentrycacheto=0";

/// Starts the master or the chunk server of a node.
pub fn start_server(plan: &Plan, node: &Node) -> Result<()> {
    let files = plan.files(node);
    let data = files.join("mfs");
    fs::create_dir_all(&data)?;
    let (program, lines) = match node.role {
        Role::Manager => ("mfsmaster", master(&files, &data)?),
        _ => ("mfschunkserver", chunk_server(plan, node, &files)?),
    };
    let config = files.join("mfs.cfg");
    let common = format!(
        "WORKING_USER = root\nWORKING_GROUP = root\nSYSLOG_IDENT = {}\nDATA_PATH = {}\n",
        plan.namespace(node),
        data.display()
    );
    fs::write(&config, common + &lines)?;
    let mut start = space::command_on(plan, node, program)?;
    process::read(start.arg("-c").arg(&config).arg("start")).map(drop)
}

/// Lines of the master's configuration.
fn master(files: &Path, data: &Path) -> Result<String> {
    let exports = files.join("exports.cfg");
    fs::write(&exports, "* / rw,alldirs,admin,maproot=0\n")?;
    // One that ran before has files.
    if fs::read_dir(data)?.next().is_none() {
        fs::write(data.join("metadata.mfs"), NO_FILES)?;
    }
    Ok(format!("EXPORTS_FILENAME = {}\n", exports.display()))
}

/// Lines of a chunk server's configuration. It has its disk for itself, or it would take what
/// others use of it for its own.
fn chunk_server(plan: &Plan, node: &Node, files: &Path) -> Result<String> {
    let disks = files.join("disks.cfg");
    let chunks = format!("{}/mfs", space::DISK);
    fs::create_dir_all(space::seen_from_here(plan, node, &chunks)?)?;
    fs::write(&disks, format!("{chunks}\n"))?;
    let address = manager(plan)?;
    let label = label(plan, node)?;
    Ok(format!(
        "HDD_CONF_FILENAME = {}\nMASTER_HOST = {address}\nLABELS = {label}\n",
        disks.display()
    ))
}

/// Label of a data node for its storage class, which has the node's name: A is the first one's.
fn label(plan: &Plan, node: &Node) -> Result<char> {
    let mut data = plan.of(Role::Data).zip('A'..='Z');
    let found = data.find(|(other, _)| other.name == node.name);
    Ok(found.with_context(|| format!("{} has no label", node.name))?.1)
}

/// Makes the storage classes, unless another client has.
fn make_classes(plan: &Plan, node: &Node) -> Result<()> {
    let classes = || -> Result<String> {
        process::read(space::command_on(plan, node, "mfsscadmin")?.args([space::PFS, "list"]))
    };
    for data in plan.of(Role::Data) {
        let exists = |classes: &str| classes.lines().any(|class| class.trim() == data.name);
        if exists(&classes()?) {
            continue;
        }
        let label = label(plan, data)?.to_string();
        let mut make = space::command_on(plan, node, "mfsscadmin")?;
        let made = process::read(make.args([space::PFS, "create", &label, &data.name]));
        // Clients start together.
        made.map(drop).or_else(|error| if exists(&classes()?) { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}

/// Mounts it, with one copy of each file, and a storage class a data node.
pub fn start_client(plan: &Plan, node: &Node) -> Result<()> {
    let mut mount = space::command_on(plan, node, "mfsmount")?;
    mount.args([space::PFS, "-H", &manager(plan)?, "-o", MOUNT_OPTIONS]);
    process::read(&mut mount).context("mounting MooseFS")?;
    make_classes(plan, node)?;
    let mut goal = space::command_on(plan, node, "mfssetgoal")?;
    process::read(goal.args(["-r", "1", space::PFS])).map(drop)
}

fn manager(plan: &Plan) -> Result<String> {
    Ok(plan.of(Role::Manager).next().context("no master in the plan")?.address())
}
