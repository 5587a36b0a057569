//! The cluster plane of memory control on a test cluster: Kafka and the job on `mgr`, an agent
//! beside each compute node's daemon.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::plan::{Node, Plan, Role};
use super::services::{self, Part, head};
use super::status::Service;
use super::{hadoop, space, wait_until};
use crate::arguments::ClusterService;
use crate::jvm::java::{self, Java};
use crate::jvm::{artifacts, kafka};
use crate::process;

/// Ports of the broker, and of the part of it that keeps metadata.
const PORTS: (u16, u16) = (9092, 9093);
const TOPICS: [&str; 3] = ["tidepool-samples", "tidepool-ceilings", "tidepool-summaries"];
const PARTITIONS: &str = "4";
const BROKER: &str = "kafka.Kafka";
const JOB: &str = "io.tidepool.plane.Plane";
/// Word of the agent's command line.
const AGENT: &str = "agent";
const WHOLE_LIMIT: Duration = Duration::from_secs(60);

/// Words by which the programs of the plane are found.
pub const MARKS: [&str; 3] = [JOB, AGENT, BROKER];

/// The plane at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct PlaneStatus {
    /// Policy of the job.
    pub policy: String,
    /// Where clients in the cluster find the broker.
    pub kafka: String,
    /// The state of the broker.
    pub broker: Service,
    /// The state of the job.
    pub job: Service,
    /// Processes of the job.
    pub job_process_ids: Vec<u32>,
    /// Compute nodes without a running agent.
    pub without_agent: Vec<String>,
}

impl fmt::Display for PlaneStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlaneStatus { policy, kafka, broker, job, .. } = self;
        write!(f, "plane: policy {policy}, Kafka at {kafka} {broker}, job {job}")?;
        let ids: Vec<String> = self.job_process_ids.iter().map(ToString::to_string).collect();
        if !ids.is_empty() {
            write!(f, " (process {})", ids.join(", "))?;
        }
        match self.without_agent.as_slice() {
            [] => f.write_str(", agents running"),
            names => write!(f, ", no agent on {}", names.join(", ")),
        }
    }
}

/// The plane of a cluster that has one.
pub fn status(plan: &Plan) -> Result<Option<PlaneStatus>> {
    if !plan.services.contains(&ClusterService::Plane) {
        return Ok(None);
    }
    let head = head(plan)?;
    let job_process_ids = services::find(plan, head, JOB);
    let runs = |node: &&Node| Service::of(&services::find(plan, node, AGENT)) == Service::Running;
    let without_agent = plan.of(Role::Compute).filter(|node| !runs(node));
    Ok(Some(PlaneStatus {
        policy: plan.plane_policy.clone(),
        kafka: address(plan)?,
        broker: Service::of(&services::find(plan, head, BROKER)),
        job: Service::of(&job_process_ids),
        job_process_ids,
        without_agent: without_agent.map(|node| node.name.clone()).collect(),
    }))
}

/// Builds what runs, and copies it: what is built later does not change it under programs that run.
pub fn prepare(plan: &Plan) -> Result<()> {
    if !program(plan).is_file() {
        bail!("no {} here: build it with `cargo build -p tidepool-plane`", program(plan).display());
    }
    fs::create_dir_all(directory(plan))?;
    fs::copy(artifacts::plane_jar()?, jar(plan))?;
    artifacts::project("kafka")?;
    artifacts::project("flink").map(drop)
}

/// What the plane has on a node.
pub fn parts(plan: &Plan, node: &Node) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    if head(plan)? == node {
        format(plan, node)?;
        let settings = settings_file(plan).display().to_string();
        let command = hadoop::on(plan, node, &broker()?, BROKER, &[&settings])?;
        let port = Some(PORTS.0);
        parts.push(Part { mark: BROKER.into(), port, command, log: "kafka.log".into() });
        parts.push(job(plan, node)?);
    }
    if node.role == Role::Compute {
        parts.push(agent(plan, node)?);
    }
    Ok(parts)
}

/// Creates the topics, once the broker runs for the first time.
pub fn create_topics(plan: &Plan) -> Result<()> {
    let made = directory(plan).join("topics");
    if made.exists() {
        return Ok(());
    }
    let address = address(plan)?;
    let arguments = [&[address.as_str(), PARTITIONS], &TOPICS[..]].concat();
    let java = broker()?.heap("64m");
    let mut command =
        hadoop::on(plan, head(plan)?, &java, "io.tidepool.examples.Topics", &arguments)?;
    process::read(&mut command).context("creating the topics of the plane")?;
    Ok(fs::write(made, "")?)
}

/// Whether a part needs the topics.
pub fn needs_topics(part: &Part) -> bool {
    part.mark == JOB
}

/// Waits until the job hears from all agents.
pub fn wait_until_whole(plan: &Plan) -> Result<()> {
    let (head, address) = (head(plan)?, address(plan)?);
    let wanted = plan.of(Role::Compute).count();
    let hears_all = || {
        let tidepool = plan.binary.display().to_string();
        let mut site = space::command_on(plan, head, &tidepool)?;
        let output = process::capture(site.args(["plane", "site", "--kafka", &address, "--json"]))?;
        let facts: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        anyhow::Ok(facts["nodes"].as_u64() == Some(wanted as u64))
    };
    if wait_until(WHOLE_LIMIT, || hears_all().unwrap_or(false)).is_err() {
        bail!(
            "the job of the plane does not hear from all agents after {} s; logs are in {}",
            WHOLE_LIMIT.as_secs(),
            plan.files(head).display()
        );
    }
    Ok(())
}

fn directory(plan: &Plan) -> PathBuf {
    plan.directory.join("plane")
}

fn jar(plan: &Plan) -> PathBuf {
    directory(plan).join("tidepool-plane.jar")
}

fn settings_file(plan: &Plan) -> PathBuf {
    directory(plan).join("server.properties")
}

/// The agent's program, beside that of the daemon.
fn program(plan: &Plan) -> PathBuf {
    plan.binary.with_file_name("tidepool-plane")
}

fn address(plan: &Plan) -> Result<String> {
    Ok(format!("{}:{}", head(plan)?.name, PORTS.0))
}

fn broker() -> Result<Java> {
    let project = artifacts::project("kafka")?;
    let jar = project.jar.display().to_string();
    Ok(Java::new(java::class_path(&[&jar, &project.dependencies]), "192m").light().logged())
}

/// Lays out the broker's data, the first time.
fn format(plan: &Plan, node: &Node) -> Result<()> {
    let data = plan.files(node).join("kafka");
    if data.exists() {
        return Ok(());
    }
    let listener = |port: u16| kafka::Listener { host: &node.name, port };
    let text = kafka::settings(listener(PORTS.0), None, listener(PORTS.1), &data);
    fs::write(settings_file(plan), text)?;
    let file = settings_file(plan).display().to_string();
    let words = ["format", "-t", kafka::CLUSTER_ID, "-c", &file];
    let mut command = hadoop::on(plan, node, &broker()?, kafka::STORAGE_TOOL, &words)?;
    process::read(&mut command).map(drop).context("formatting the disk of Kafka")
}

fn job(plan: &Plan, node: &Node) -> Result<Part> {
    let flink = artifacts::project("flink")?;
    let jar = jar(plan).display().to_string();
    let java = Java::new(java::class_path(&[&jar, &flink.dependencies]), "256m").light().logged();
    let (address, checkpoints) = (address(plan)?, plan.files(node).join("checkpoints"));
    let checkpoints = checkpoints.display().to_string();
    let mut words = vec!["--kafka", &address, "--cluster", &plan.name];
    words.extend(["--policy", &plan.plane_policy, "--checkpoints", &checkpoints]);
    words.extend(["--restore", "latest"]);
    let options: Vec<(String, &str)> = plan
        .plane_options
        .iter()
        .map(|option| option.split_once('=').unwrap_or((option, "")))
        .map(|(name, value)| (format!("--{name}"), value))
        .collect();
    words.extend(options.iter().flat_map(|(name, value)| [name.as_str(), *value]));
    let command = hadoop::on(plan, node, &java, JOB, &words)?;
    Ok(Part { mark: JOB.into(), port: None, command, log: "plane-job.log".into() })
}

fn agent(plan: &Plan, node: &Node) -> Result<Part> {
    let mut command: Command = space::command_on(plan, node, &program(plan).display().to_string())?;
    command.args([AGENT, "--kafka", &address(plan)?, "--cluster", &plan.name]);
    command.args(["--name", &node.name, "--socket", space::SOCKET]);
    Ok(Part { mark: AGENT.into(), port: None, command, log: "plane-agent.log".into() })
}
