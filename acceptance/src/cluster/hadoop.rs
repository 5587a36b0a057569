//! Hadoop and Spark on the nodes of a cluster: HDFS with a data node on each disk, YARN with a node
//! manager on each compute node, Spark's own master with a worker on each compute node; and a
//! program `hadoop` that runs theirs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::plan::{Node, Plan, Role};
use super::services::{self, Part, head};
use super::{processes, space, wait_until};
use crate::arguments::ClusterService;
use crate::jvm::artifacts;
use crate::jvm::hadoop::Hadoop;
use crate::jvm::java::Java;
use crate::jvm::spark::SparkHome;
use crate::process;

/// Where HDFS, YARN's clients and Spark's master are reached.
const NAME_NODE_PORT: u16 = 8020;
const MANAGER_PORT: u16 = 8032;
const SPARK_PORT: u16 = 7077;
/// Copies of a block of HDFS, where there are so many data nodes.
const REPLICATION_MAX: usize = 3;
const WHOLE_LIMIT: Duration = Duration::from_secs(90);
const NAME_NODE: &str = "org.apache.hadoop.hdfs.server.namenode.NameNode";
const DATA_NODE: &str = "org.apache.hadoop.hdfs.server.datanode.DataNode";
const MANAGER: &str = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager";
const NODE_MANAGER: &str = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";
const SPARK_MASTER: &str = "org.apache.spark.deploy.master.Master";
const SPARK_WORKER: &str = "org.apache.spark.deploy.worker.Worker";
/// Short names of programs, for the script.
const PROGRAMS: [(&str, &str); 9] = [
    ("fs", "org.apache.hadoop.fs.FsShell"),
    ("dfs", "org.apache.hadoop.fs.FsShell"),
    ("dfsadmin", "org.apache.hadoop.hdfs.tools.DFSAdmin"),
    ("fsck", "org.apache.hadoop.hdfs.tools.DFSck"),
    ("distcp", "org.apache.hadoop.tools.DistCp"),
    ("node", "org.apache.hadoop.yarn.client.cli.NodeCLI"),
    ("application", "org.apache.hadoop.yarn.client.cli.ApplicationCLI"),
    ("job", "org.apache.hadoop.mapred.JobClient"),
    ("testdfsio", "org.apache.hadoop.fs.TestDFSIO"),
];

/// Words by which the programs of a service are found.
pub fn marks(service: ClusterService) -> Vec<&'static str> {
    match service {
        ClusterService::Etcd | ClusterService::Plane => Vec::new(),
        ClusterService::Hdfs => vec![NAME_NODE, DATA_NODE],
        ClusterService::Yarn => vec![MANAGER, NODE_MANAGER],
        ClusterService::Spark => vec![SPARK_MASTER, SPARK_WORKER],
    }
}

/// What a service has on a node.
pub fn parts(plan: &Plan, node: &Node, service: ClusterService) -> Result<Vec<Part>> {
    let is_head = head(plan)? == node;
    let runs = |role: Role| node.role == role;
    let mut parts = Vec::new();
    match service {
        ClusterService::Etcd | ClusterService::Plane => {}
        ClusterService::Hdfs => {
            if is_head {
                format_name_node(plan, node)?;
                parts.push(part(plan, node, NAME_NODE, Some(NAME_NODE_PORT))?);
            }
            if runs(Role::Data) {
                parts.push(part(plan, node, DATA_NODE, None)?);
            }
        }
        ClusterService::Yarn => {
            if is_head {
                parts.push(part(plan, node, MANAGER, Some(MANAGER_PORT))?);
            }
            if runs(Role::Compute) {
                parts.push(part(plan, node, NODE_MANAGER, None)?);
            }
        }
        ClusterService::Spark => {
            if is_head {
                parts.push(spark_part(plan, node, SPARK_MASTER)?);
            }
            if runs(Role::Compute) {
                parts.push(spark_part(plan, node, SPARK_WORKER)?);
            }
        }
    }
    Ok(parts)
}

fn directory(plan: &Plan) -> PathBuf {
    plan.directory.join("hadoop")
}

/// The jar of `tide://`, the cluster's own: what is built later does not change it under programs
/// that run. It is there after [`prepare`].
fn tide_jar(plan: &Plan) -> Result<PathBuf> {
    let own = directory(plan).join("tidepool-hadoop.jar");
    if !own.exists() {
        fs::create_dir_all(directory(plan))?;
        fs::copy(artifacts::tide_jar()?, &own)?;
    }
    Ok(own)
}

/// Hadoop with the configuration that all nodes share.
pub fn installation(plan: &Plan) -> Result<Hadoop> {
    let directory = directory(plan);
    let mut hadoop = Hadoop::at(&directory, &directory.join("logs"))?;
    hadoop.add_jar(&tide_jar(plan)?);
    let head = head(plan)?;
    hadoop.spread_over_nodes(&head.name, processes::MARK)?;
    let site = &mut hadoop.site;
    let data_nodes = plan.of(Role::Data).count();
    site.set("dfs.replication", data_nodes.clamp(1, REPLICATION_MAX));
    site.set("dfs.namenode.rpc-address", format!("{}:{NAME_NODE_PORT}", head.name));
    let names = plan.files(head).join("names");
    site.set("dfs.namenode.name.dir", format!("file://{}", names.display()));
    site.set("dfs.datanode.data.dir", format!("file://{}/hdfs", space::DISK));
    site.set("dfs.datanode.du.reserved", 0);
    site.set("dfs.blocksize", 128 << 20);
    site.set("dfs.namenode.safemode.extension", 0);
    site.set("dfs.namenode.datanode.registration.ip-hostname-check", false);
    site.set("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", 5);
    Ok(hadoop)
}

/// Writes what all nodes need, once a cluster.
pub fn prepare(plan: &Plan, services: &[ClusterService]) -> Result<()> {
    let is_other = |it: &ClusterService| matches!(it, ClusterService::Etcd | ClusterService::Plane);
    if services.iter().all(is_other) {
        return Ok(());
    }
    let hadoop = installation(plan)?;
    let java = hadoop.java()?.light();
    write_script(plan, "hadoop", &java, &PROGRAMS)?;
    if services.contains(&ClusterService::Spark) {
        let home = SparkHome::at(&directory(plan).join("spark"), &hadoop)?;
        let url = spark_url(plan)?;
        let driver = home.driver("1g", &url, "spark");
        let driver = Java { environment: home.daemon("1g").environment, ..driver };
        write_script(plan, "spark", &driver, &[])?;
    }
    Ok(())
}

/// A program that runs classes, some of them by short names.
fn write_script(plan: &Plan, name: &str, java: &Java, programs: &[(&str, &str)]) -> Result<()> {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let mut text = String::from("#!/bin/sh\n# Runs a class with its arguments.\n");
    for (variable, value) in &java.environment {
        text.push_str(&format!("export {variable}={}\n", quoted(value)));
    }
    text.push_str("export SPARK_LOCAL_HOSTNAME=\"$(hostname)\"\nproperties=\n");
    text.push_str("while :; do case \"${1:-}\" in\n");
    text.push_str("-D*) properties=\"$properties $1\"; shift ;;\n*) break ;;\nesac; done\n");
    text.push_str("case \"${1:-}\" in\n");
    for (short, main) in programs {
        text.push_str(&format!("{short}) main={main} ;;\n"));
    }
    let names: Vec<&str> = programs.iter().map(|(short, _)| *short).collect();
    let usage = format!(
        "usage: {name} [-DNAME=VALUE...] CLASS [ARGUMENT...]; a class, or one of: {}",
        names.join(" ")
    );
    text.push_str(&format!(
        "'') echo {} >&2; exit 2 ;;\n*) main=$1 ;;\nesac\nshift\n",
        quoted(&usage)
    ));
    let plain = java.command::<&str>("\"$main\"", &[]);
    let words = plain.get_args().map(|word| word.to_string_lossy().into_owned());
    let words = words.map(|word| match word.as_str() {
        // The last one of equal properties counts.
        "\"$main\"" => "$properties \"$main\"".to_owned(),
        word => quoted(word),
    });
    let words: Vec<String> = words.collect();
    text.push_str(&format!("exec java {} \"$@\"\n", words.join(" ")));
    let path = services::scripts(plan).join(name);
    fs::write(&path, text)?;
    Ok(fs::set_permissions(&path, Permissions::from_mode(0o755))?)
}

/// A command line of Java on a node.
pub fn on(
    plan: &Plan,
    node: &Node,
    java: &Java,
    main: &str,
    arguments: &[&str],
) -> Result<Command> {
    let plain = java.command(main, arguments);
    let mut command = space::command_on(plan, node, "java")?;
    command.args(plain.get_args());
    for (name, value) in plain.get_envs() {
        value.map(|value| command.env(name, value));
    }
    Ok(command)
}

fn log_of(main: &str) -> String {
    format!("{}.log", main.rsplit('.').next().unwrap_or(main).to_lowercase())
}

fn part(plan: &Plan, node: &Node, main: &str, port: Option<u16>) -> Result<Part> {
    let java = installation(plan)?.server()?;
    let command = on(plan, node, &java, main, &[])?;
    Ok(Part { mark: main.to_owned(), port, command, log: log_of(main) })
}

fn format_name_node(plan: &Plan, node: &Node) -> Result<()> {
    if plan.files(node).join("names/current").exists() {
        return Ok(());
    }
    let java = installation(plan)?.server()?;
    let words = ["-format", "-force", "-nonInteractive"];
    let mut format = on(plan, node, &java, NAME_NODE, &words)?;
    process::read(&mut format).map(drop).context("formatting the name node of HDFS")
}

/// Address of HDFS.
pub fn address(plan: &Plan) -> Result<String> {
    Ok(format!("hdfs://{}:{NAME_NODE_PORT}", head(plan)?.name))
}

fn spark_url(plan: &Plan) -> Result<String> {
    Ok(format!("spark://{}:{SPARK_PORT}", head(plan)?.name))
}

fn spark_part(plan: &Plan, node: &Node, main: &str) -> Result<Part> {
    let home = SparkHome::at(&directory(plan).join("spark"), &installation(plan)?)?;
    let (port, url) = (SPARK_PORT.to_string(), spark_url(plan)?);
    let words = match main {
        SPARK_MASTER => vec!["--host", &node.name, "--port", &port, "--webui-port", "0"],
        _ => {
            vec!["--host", &node.name, "--cores", "1", "--memory", "1g", "--webui-port", "0", &url]
        }
    };
    let mut command = on(plan, node, &home.daemon("256m"), main, &words)?;
    command.env("SPARK_LOCAL_HOSTNAME", &node.name);
    let port = (main == SPARK_MASTER).then_some(SPARK_PORT);
    Ok(Part { mark: main.to_owned(), port, command, log: log_of(main) })
}

/// Waits until a service has all its workers.
pub fn wait_until_whole(plan: &Plan, service: ClusterService) -> Result<()> {
    let head = head(plan)?;
    let count = |role: Role| plan.of(role).count();
    let says = |words: &[&str], wanted: &str| -> Result<bool> {
        let mut command = space::command_on(plan, head, "hadoop")?;
        let output = process::capture(command.args(words))?;
        Ok(String::from_utf8_lossy(&output.stdout).contains(wanted))
    };
    let uri = address(plan)?;
    let is_whole = || match service {
        ClusterService::Etcd | ClusterService::Plane => Ok(true),
        ClusterService::Hdfs => says(
            &["dfsadmin", "-fs", &uri, "-report"],
            &format!("Live datanodes ({})", count(Role::Data)),
        ),
        ClusterService::Yarn => {
            says(&["node", "-list"], &format!("Total Nodes:{}", count(Role::Compute)))
        }
        ClusterService::Spark => {
            let log = plan.files(head).join(log_of(SPARK_MASTER));
            let text = fs::read_to_string(log).unwrap_or_default();
            Ok(text.matches("Registering worker").count() >= count(Role::Compute))
        }
    };
    let mut problem = None;
    let whole = wait_until(WHOLE_LIMIT, || match is_whole() {
        Ok(whole) => whole,
        Err(error) => {
            problem = Some(error);
            true
        }
    });
    match (problem, whole) {
        (Some(error), _) => Err(error),
        (None, Err(_)) => bail!(
            "{service:?} has not all its workers after {} s; logs are in {}",
            WHOLE_LIMIT.as_secs(),
            plan.directory.display()
        ),
        (None, Ok(())) => Ok(()),
    }
}
