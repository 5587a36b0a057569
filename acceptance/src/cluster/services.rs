//! What runs on a cluster beside its file system and daemons: etcd, HDFS, YARN, Spark,
//! the cluster plane. Each has a
//! head on one node, and a worker on each compute or data node, which ends with the node.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::plan::{Node, Plan, Role};
use super::{at_once, hadoop, pfs, plane, processes, space, wait_until};
use crate::arguments::ClusterService;
use crate::jvm::daemon::last_lines;

/// Port on which etcd answers clients, and the one that members of it would use.
const ETCD_PORTS: (u16, u16) = (2379, 2380);
const START_LIMIT: Duration = Duration::from_secs(90);

/// A program of a service on a node.
pub struct Part {
    /// Word of its command line by which it is found.
    pub mark: String,
    /// It listens here when it is ready, unless it is a worker.
    pub port: Option<u16>,
    /// Its command line.
    pub command: Command,
    /// Name of its log below the files of the node.
    pub log: String,
}

/// Programs that services need, each with the package of Debian that has it.
pub fn programs(services: &[ClusterService]) -> Vec<(&'static str, &'static str)> {
    let mut programs = Vec::new();
    for service in services {
        match service {
            ClusterService::Etcd => programs.push(("etcd", "etcd-server")),
            ClusterService::Hdfs
            | ClusterService::Yarn
            | ClusterService::Spark
            | ClusterService::Plane => {
                programs.extend([("java", "openjdk-17-jdk-headless"), ("mvn", "maven")]);
            }
        }
    }
    programs
}

/// Writes and builds what services need, once a cluster.
///
/// # Errors
/// What cannot be built.
pub fn prepare(plan: &Plan, services: &[ClusterService]) -> Result<()> {
    if services.contains(&ClusterService::Plane) {
        plane::prepare(plan)?;
    }
    hadoop::prepare(plan, services)
}

/// The node with the heads of services.
///
/// # Errors
/// A plan without nodes.
pub fn head(plan: &Plan) -> Result<&Node> {
    let manager = plan.of(Role::Manager).next();
    manager.or_else(|| plan.of(Role::Compute).next()).context("a cluster without nodes")
}

/// Where daemons find the list of nodes in etcd.
pub fn list_in_etcd(plan: &Plan) -> Result<String> {
    let address = head(plan)?.address();
    Ok(format!("etcd:http://{address}:{}/{}", ETCD_PORTS.0, plan.name))
}

/// Starts a service on all nodes, where it does not run, and waits until it has all its workers.
pub fn start(plan: &Plan, service: ClusterService) -> Result<()> {
    let head = head(plan)?;
    start_on(plan, head, service)?;
    let others: Vec<&Node> = plan.nodes.iter().filter(|node| *node != head).collect();
    at_once(&others, |node| start_on(plan, node, service))?;
    match service {
        ClusterService::Etcd => Ok(()),
        ClusterService::Plane => plane::wait_until_whole(plan),
        _ => hadoop::wait_until_whole(plan, service),
    }
}

/// Starts what a service has on a node, where it does not run.
pub fn start_on(plan: &Plan, node: &Node, service: ClusterService) -> Result<()> {
    let parts = match service {
        ClusterService::Etcd if head(plan)? == node => vec![etcd(plan, node)?],
        ClusterService::Etcd => Vec::new(),
        ClusterService::Plane => plane::parts(plan, node)?,
        _ => hadoop::parts(plan, node, service)?,
    };
    for part in parts {
        if find(plan, node, &part.mark).is_empty() {
            if plane::needs_topics(&part) {
                plane::create_topics(plan)?;
            }
            launch(plan, node, part)?;
        }
    }
    Ok(())
}

/// Ends a service on all nodes.
pub fn stop(plan: &Plan, service: ClusterService) -> Result<()> {
    let marks = match service {
        ClusterService::Etcd => vec!["etcd"],
        ClusterService::Plane => plane::MARKS.to_vec(),
        _ => hadoop::marks(service),
    };
    for node in &plan.nodes {
        let search = || marks.iter().flat_map(|mark| find(plan, node, mark)).collect();
        processes::end(search)?;
    }
    Ok(())
}

fn etcd(plan: &Plan, node: &Node) -> Result<Part> {
    let url = |port: u16| format!("http://{}:{port}", node.address());
    let (client, peer) = (url(ETCD_PORTS.0), url(ETCD_PORTS.1));
    let mut command = space::command_on(plan, node, "etcd")?;
    command.args(["--name", &node.name, "--data-dir"]).arg(plan.files(node).join("etcd"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.arg("--initial-cluster").arg(format!("{}={peer}", node.name));
    Ok(Part { mark: "etcd".into(), port: Some(ETCD_PORTS.0), command, log: "etcd.log".into() })
}

/// Starts a program that stays, and waits for its port where it has one.
fn launch(plan: &Plan, node: &Node, mut part: Part) -> Result<()> {
    let log = plan.files(node).join(&part.log);
    let output = File::options().create(true).append(true).open(&log)?;
    // Ctrl-C in a terminal is not for it.
    part.command.process_group(0).stdin(Stdio::null());
    let mut child = part
        .command
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("starting {} on {}", part.mark, node.name))?;
    let mut ended = None;
    let ready = wait_until(START_LIMIT, || {
        ended = child.try_wait().ok().flatten();
        let listens = || part.port.is_none_or(|port| listens(plan, node, port).unwrap_or(false));
        ended.is_some() || listens()
    });
    if let Some(status) = ended {
        bail!("{} on {} ended, {status}; {}:\n{}", part.mark, node.name, log.display(), end(&log));
    }
    if ready.is_err() {
        bail!("{} on {} does not answer; {}:\n{}", part.mark, node.name, log.display(), end(&log));
    }
    if node.role == Role::Data {
        pfs::confine(plan, node)?;
    }
    // Whoever made the cluster collects it when it ends.
    std::thread::spawn(move || child.wait());
    Ok(())
}

fn end(log: &Path) -> String {
    last_lines(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()))
}

/// Whether something listens at a port of a node.
fn listens(plan: &Plan, node: &Node, port: u16) -> Result<bool> {
    let holder = space::holder(plan, node)?;
    let table = |name: &str| fs::read_to_string(format!("/proc/{holder}/net/{name}"));
    let (port, listening) = (format!(":{port:04X}"), "0A");
    let is_it = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1).is_some_and(|at| at.ends_with(&port)) && words.get(3) == Some(&listening)
    };
    let tables = [table("tcp"), table("tcp6")];
    Ok(tables.into_iter().flatten().any(|text| text.lines().any(is_it)))
}

/// Processes on a node with a word in their command line.
pub fn find(plan: &Plan, node: &Node, mark: &str) -> Vec<u32> {
    let mut ids = processes::inside(&plan.namespace(node));
    ids.retain(|id| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    });
    ids
}

/// Where programs that are made for the cluster are, which nodes have in their search path.
pub fn scripts(plan: &Plan) -> PathBuf {
    plan.directory.join("bin")
}
