//! A node's own view of the machine: a mount and a host name namespace beside the network's, held
//! by a process that sleeps. `/run` is the node's own, so that servers of several nodes do not
//! meet; the disk, the file system and the daemon's mount are below it, and this machine sees none.
//!
//! All of it ends with the last process of the node.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::plan::{Node, Plan, Role};
use super::{disk, processes, services, wait_until};
use crate::process::{self, command};

/// The parallel file system, as compute nodes see it without Tidepool.
pub const PFS: &str = "/run/pfs";
/// The daemon's mount.
pub const MOUNT: &str = "/run/tide";
/// The disk of a data node.
pub const DISK: &str = "/run/disk";
/// The daemon's socket, where its command line looks for it by itself.
pub const SOCKET: &str = "/run/tidepool/node.sock";
/// Directories of servers on the node's own `/run`.
const DIRECTORIES: [&str; 6] = [PFS, MOUNT, DISK, "/run/tidepool", "/run/gluster", "/run/lock"];
/// Directories of this machine that a data node has its own of, with their names below its files.
pub const OWN: [(&str, &str); 2] = [("/var/lib/glusterd", "lib"), ("/var/log/glusterfs", "log")];
/// What lies here belongs to the cluster alone.
const HOLDER: &str = "holder";
const START_LIMIT: Duration = Duration::from_secs(10);

/// Starts the process that holds the node's namespaces, and lays out what is in them.
pub fn make(plan: &Plan, node: &Node) -> Result<()> {
    let own = fs::read_link("/proc/self/ns/mnt")?;
    let network = format!("--net=/run/netns/{}", plan.namespace(node));
    let apart = ["unshare", "--mount", "--uts", "--propagation", "slave", "sleep", "infinity"];
    let mut sleep = command("nsenter", &[network.as_str()]);
    sleep.args(apart).env(processes::MARK, plan.mark(node));
    sleep.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C in a terminal is not for it.
    sleep.process_group(0);
    let mut child = sleep.spawn().context("starting the holder of a node")?;
    let id = child.id();
    wait_until(START_LIMIT, || {
        let apart = fs::read_link(format!("/proc/{id}/ns/mnt")).is_ok_and(|space| space != own);
        (apart && processes::name(id).as_deref() == Some("sleep"))
            || child.try_wait().is_ok_and(|ended| ended.is_some())
    })?;
    fs::write(plan.files(node).join(HOLDER), id.to_string())?;
    holder(plan, node)?;
    // Whoever made the cluster collects it when it ends.
    std::thread::spawn(move || child.wait());
    lay_out(plan, node)
}

/// The process that holds the node's namespaces.
///
/// # Errors
/// Where the node is not up.
pub fn holder(plan: &Plan, node: &Node) -> Result<u32> {
    let text = fs::read_to_string(plan.files(node).join(HOLDER)).unwrap_or_default();
    let id: Option<u32> = text.trim().parse().ok();
    // The id may be another's by now.
    let id = id.filter(|id| processes::inside(&plan.namespace(node)).contains(id));
    id.with_context(|| {
        format!("node {} of cluster {} is not up; run `down`, then `up`", node.name, plan.name)
    })
}

/// A command on a node.
///
/// # Errors
/// Where the node is not up.
pub fn command_on(plan: &Plan, node: &Node, program: &str) -> Result<Command> {
    let id = holder(plan, node)?.to_string();
    let mut command = command("nsenter", &["--target", &id, "--net", "--mount", "--uts", "--"]);
    command.arg(program).env(processes::MARK, plan.mark(node));
    let programs = plan.binary.parent().unwrap_or(Path::new("/")).to_path_buf();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = [programs, services::scripts(plan)].into_iter();
    let path = std::env::join_paths(own.chain(std::env::split_paths(&path)))?;
    command.env("PATH", path);
    // Settings of whoever calls are not the cluster's.
    let settings = std::env::vars_os().map(|(name, _)| name);
    let settings = settings.filter(|name| name.to_string_lossy().starts_with("TIDEPOOL_"));
    for name in settings {
        command.env_remove(name);
    }
    Ok(command)
}

/// Where this machine sees a path of a node, while the node is up.
///
/// # Errors
/// Where the node is not up.
pub fn seen_from_here(plan: &Plan, node: &Node, path: &str) -> Result<PathBuf> {
    let id = holder(plan, node)?;
    Ok(Path::new(&format!("/proc/{id}/root")).join(path.trim_start_matches('/')))
}

fn lay_out(plan: &Plan, node: &Node) -> Result<()> {
    let on = |program: &str, arguments: &[&str]| -> Result<()> {
        process::read(command_on(plan, node, program)?.args(arguments)).map(drop)
    };
    on("hostname", &[&node.name])?;
    let_go(plan, node)?;
    let hosts = plan.directory.join("hosts").display().to_string();
    if Path::new("/etc/hosts").exists() {
        on("mount", &["--bind", &hosts, "/etc/hosts"])?;
    }
    if node.role == Role::Data {
        for (place, name) in OWN.iter().filter(|(place, _)| Path::new(place).exists()) {
            let own = plan.files(node).join(name);
            fs::create_dir_all(&own)?;
            on("mount", &["--bind", &own.display().to_string(), place])?;
        }
    }
    on("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])?;
    on("mkdir", &[&["-p"], &DIRECTORIES[..]].concat())?;
    if node.role == Role::Data {
        let device = disk::device_of(plan, node)?.display().to_string();
        on("mount", &["-t", "ext4", "-o", "noatime", &device, DISK])?;
    }
    Ok(())
}

/// Lets go of mounts of others that were copied into the node's namespace: whoever unmounts them
/// would wait for the device until the cluster is down.
fn let_go(plan: &Plan, node: &Node) -> Result<()> {
    let needed = [plan.directory.as_path(), plan.binary.as_path()];
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let foreign = foreign_mounts(&mounts, &needed);
    for chunk in foreign.chunks(64) {
        let mut unmount = command_on(plan, node, "umount")?;
        // Mounts below the first ones go with them, and are not there any more.
        process::capture(unmount.arg("--lazy").args(chunk))?;
    }
    Ok(())
}

/// Mounts of devices and programs that come and go, without those that `needed` lies on.
fn foreign_mounts<'a>(mounts: &'a str, needed: &[&Path]) -> Vec<&'a str> {
    let foreign = |line: &'a str| {
        let mut words = line.split(' ');
        let (device, place, kind) = (words.next()?, words.next()?, words.next()?);
        let comes_and_goes = device.starts_with("/dev/loop")
            || kind == "fuseblk"
            || kind.starts_with("fuse.")
            || kind == "fuse"
            || place == "/run/netns";
        let in_use = needed.iter().any(|path| path.starts_with(place));
        (comes_and_goes && !in_use).then_some(place)
    };
    mounts.lines().filter_map(foreign).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::foreign_mounts;

    #[test]
    fn mounts_of_others_are_let_go_but_not_what_is_needed() {
        let mounts = "/dev/vda / ext4 rw 0 0\n/dev/loop3 /tmp/a ext4 rw 0 0\n\
                      tidepool /tmp/m fuse.tidepool rw 0 0\n/dev/loop4 /data xfs rw 0 0\n\
                      tmpfs /dev/shm tmpfs rw 0 0\n/dev/vda /run/netns ext4 rw 0 0\n";
        let found = foreign_mounts(mounts, &[Path::new("/data/cluster")]);
        assert_eq!(found, ["/tmp/a", "/tmp/m", "/run/netns"]);
    }
}
