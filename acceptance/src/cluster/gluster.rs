//! GlusterFS over the data nodes: a volume that puts each file on one of them, or shards of each
//! file on all. Options turn off what would make its clients serve what others have changed.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::plan::{Node, Plan, Role};
use super::{space, wait_until};
use crate::arguments::PfsKind;
use crate::process;

/// Programs, each with the package of Debian that has it.
pub const PROGRAMS: [(&str, &str); 3] = [
    ("glusterd", "glusterfs-server"),
    ("gluster", "glusterfs-server"),
    ("glusterfs", "glusterfs-client"),
];
/// Name of the volume.
const VOLUME: &str = "vol";
const START_LIMIT: Duration = Duration::from_secs(60);
/// Options of the volume. Clients keep neither attributes nor small files, and a file is written
/// when `close` returns: otherwise a node would see the old file after another one has closed it.
const OPTIONS: [[&str; 2]; 5] = [
    ["performance.stat-prefetch", "off"],
    ["performance.quick-read", "off"],
    ["performance.io-cache", "off"],
    ["performance.flush-behind", "off"],
    // With shards it makes requests so small that reads take four times as long.
    ["performance.read-ahead", "off"],
];
/// Options for shards.
const SHARDS: [[&str; 2]; 2] = [["features.shard", "on"], ["features.shard-block-size", "16MB"]];

/// Starts the server of a data node and waits until it answers. It starts the brick that it knows.
pub fn start_server(plan: &Plan, node: &Node) -> Result<()> {
    let brick = space::seen_from_here(plan, node, space::DISK)?.join("brick");
    fs::create_dir_all(brick)?;
    let mut start = space::command_on(plan, node, "glusterd")?;
    process::read(start.args(["--log-level", "WARNING"]))?;
    let answers = || ask(plan, node, &["pool", "list"]).is_ok();
    wait_until(START_LIMIT, answers)
        .with_context(|| format!("glusterd on {} does not answer", node.name))
}

/// Joins the servers and makes the volume.
pub fn make(plan: &Plan) -> Result<()> {
    let nodes: Vec<&Node> = plan.of(Role::Data).collect();
    let (first, others) = nodes.split_first().context("no data nodes")?;
    for node in others {
        ask(plan, first, &["peer", "probe", &node.address()])?;
    }
    // Each of them must know all, or the volume is refused.
    let joined = || {
        let connected = |node: &&Node| {
            ask(plan, node, &["peer", "status"]).is_ok_and(|text| {
                text.matches("Peer in Cluster (Connected)").count() == others.len()
            })
        };
        nodes.iter().all(connected)
    };
    wait_until(START_LIMIT, joined).context("the servers of GlusterFS do not find each other")?;
    let brick = |node: &&Node| format!("{}:{}/brick", node.address(), space::DISK);
    let bricks: Vec<String> = nodes.iter().map(brick).collect();
    let mut create = vec!["volume", "create", VOLUME];
    create.extend(bricks.iter().map(String::as_str));
    ask(plan, first, &create)?;
    let shards = if plan.pfs == PfsKind::GlusterSharded { &SHARDS[..] } else { &[] };
    let mut set = vec!["volume", "set", VOLUME];
    set.extend(OPTIONS.iter().chain(shards).flatten());
    ask(plan, first, &set)?;
    ask(plan, first, &["volume", "start", VOLUME])?;
    let served = || {
        ask(plan, first, &["volume", "status", VOLUME, "--xml"])
            .is_ok_and(|text| bricks_online(&text) == nodes.len())
    };
    wait_until(START_LIMIT, served).context("not all bricks of GlusterFS are served")
}

/// Bricks that are served, by the status of a volume.
fn bricks_online(xml: &str) -> usize {
    let bricks = xml.split("<node>").skip(1).map(|node| node.split("</node>").next());
    bricks.flatten().filter(|node| node.contains("<status>1</status>")).count()
}

/// Mounts the volume. The kernel keeps no attributes and names of it either.
pub fn start_client(plan: &Plan, node: &Node) -> Result<()> {
    let server = plan.of(Role::Data).next().context("no data nodes")?.address();
    let log = plan.files(node).join("glusterfs.log").display().to_string();
    let mut client = space::command_on(plan, node, "glusterfs")?;
    client.args([
        &format!("--volfile-server={server}"),
        &format!("--volfile-id={VOLUME}"),
        &format!("--log-file={log}"),
        "--attribute-timeout=0",
        "--entry-timeout=0",
        space::PFS,
    ]);
    process::read(&mut client).map(drop).context("mounting GlusterFS")
}

/// Asks the server of a node by its command line.
fn ask(plan: &Plan, node: &Node, arguments: &[&str]) -> Result<String> {
    let mut gluster = space::command_on(plan, node, "gluster")?;
    process::read(gluster.arg("--mode=script").args(arguments))
}

#[cfg(test)]
mod tests {
    use super::bricks_online;

    #[test]
    fn served_bricks_are_counted() {
        let xml = "<status>1</status><node><path>a</path><status>1</status></node>\
                   <node><path>b</path><status>0</status></node>";
        assert_eq!(bricks_online(xml), 1);
        assert_eq!(bricks_online(""), 0);
    }
}
