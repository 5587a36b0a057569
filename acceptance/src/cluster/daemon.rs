//! The Tidepool daemon of a compute node: its configuration, its start, its processes.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tidepool_test_authority::{Authority, Files};

use super::plan::{Node, Plan, Role};
use super::{processes, services, space};
use crate::arguments::{ClusterService, PfsKind};
use crate::process;

/// Port on which daemons reach each other.
const PEER_PORT: u16 = 7478;
/// Directory of certificates.
const CERTIFICATES: &str = "certificates";
/// Bytes of the key that daemons prove to each other.
const KEY_BYTES: usize = 32;
const START_LIMIT: Duration = Duration::from_secs(60);

/// Whether a program knows lists of other nodes.
pub fn knows_others(binary: &Path) -> Result<bool> {
    let help = process::read(Command::new(binary).args(["node", "start", "--help"]))?;
    Ok(help.contains("--cluster-nodes"))
}

/// Writes the key that all daemons share.
pub fn write_key(plan: &Plan) -> Result<()> {
    let mut bytes = [0; KEY_BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = plan.directory.join("key");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

/// Issues a certificate for each daemon.
pub fn write_certificates(plan: &Plan) -> Result<()> {
    let directory = plan.directory.join(CERTIFICATES);
    fs::create_dir(&directory)?;
    let authority = Authority::new(&directory)?;
    plan.of(Role::Compute).try_for_each(|node| Ok(authority.issue(&node.name).map(drop)?))
}

/// The files of a daemon's certificate.
fn certificates(plan: &Plan, node: &Node) -> Files {
    Files::in_directory(&plan.directory.join(CERTIFICATES), &node.name)
}

/// Configuration of a node's daemon.
fn configuration(plan: &Plan, node: &Node) -> Result<String> {
    let mut table = toml::Table::new();
    let mut set = |key: &str, value: &str| table.insert(key.into(), value.into());
    set("pfs", space::PFS);
    set("mount", space::MOUNT);
    set("socket", space::SOCKET);
    set("memory", &plan.memory);
    set("log_file", &plan.files(node).join("tidepool.log").display().to_string());
    // All nodes share the memory of this machine: one would shrink for the others.
    set("control", "off");
    if plan.has_buffer(node) {
        set("buffer_bytes", &plan.memory);
        set("buffer_directory", &plan.files(node).join("buffer").display().to_string());
    }
    let mut rules = Vec::new();
    if plan.pfs == PfsKind::Moosefs {
        rules.push(toml::toml! {
            path = "placed"
            stripe_servers = ["pool:d1"]
        });
    }
    if !plan.single {
        let member = |node: &Node| format!("{}={}", node.name, node.address());
        let members: Vec<String> = plan.of(Role::Compute).map(member).collect();
        let nodes = match plan.services.contains(&ClusterService::Etcd) {
            true => services::list_in_etcd(plan)?,
            false => members.join(","),
        };
        set("cluster_nodes", &nodes);
        if plan.is_encrypted {
            for (name, path) in certificates(plan, node).options() {
                set(name, &path.display().to_string());
            }
        }
        set("node_name", &node.name);
        set("cluster_name", &plan.name);
        set("cluster_key_file", &plan.directory.join("key").display().to_string());
        table.insert("peer_port".into(), i64::from(PEER_PORT).into());
        if plan.of(Role::Compute).nth(1).is_some() {
            rules.push(toml::toml! {
                path = "copies"
                write_mode = "memory"
                copies = 2
            });
        }
        for scheme in ["alw", "adw", "bld"].iter().filter(|_| plan.buffers > 0) {
            let mut rule = toml::Table::new();
            rule.insert("path".into(), (*scheme).into());
            rule.insert("write_mode".into(), (*scheme).into());
            rules.push(rule);
        }
    }
    if !rules.is_empty() {
        table.insert("rule".into(), rules.into());
    }
    Ok(toml::to_string(&table)?)
}

/// Starts the daemon of a node where none runs, and waits until its mount answers.
pub fn start(plan: &Plan, node: &Node) -> Result<()> {
    if !find(plan, node).is_empty() {
        return Ok(());
    }
    let config = plan.files(node).join("tidepool.toml");
    fs::write(&config, configuration(plan, node)?)?;
    let mut start = space::command_on(plan, node, &plan.binary.display().to_string())?;
    start.args(["node", "start", "--config"]).arg(&config);
    start.args(plan.node_options.iter().map(|option| format!("--{option}")));
    let output = process::capture_within(&mut start, START_LIMIT)?;
    if !output.status.success() {
        bail!(
            "the daemon of {} does not start, {}: {}",
            node.name,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Processes of the daemon of a node: its own and its controller's.
pub fn find(plan: &Plan, node: &Node) -> Vec<u32> {
    let mut ids = processes::inside(&plan.namespace(node));
    ids.retain(|id| is_daemon(*id).unwrap_or(false));
    ids
}

/// Whether a process is a daemon and not, say, a `tidepool status`.
fn is_daemon(id: u32) -> Result<bool> {
    let line = fs::read(format!("/proc/{id}/cmdline")).context("the process is gone")?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let program = words.first().is_some_and(|word| word.ends_with(b"tidepool"));
    Ok(program && matches!(words.get(1), Some(&b"node" | &b"control")))
}
