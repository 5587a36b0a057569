//! Kafka and the job, as a site would run them, and the program beside them that plays nodes.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::jvm::kafka::Kafka;
use crate::jvm::plane::Plane;
use crate::scratch::Scratch;
use crate::{environment, process};

/// The cluster of all nodes here.
pub const CLUSTER: &str = "bench";
/// Partitions of the topic of samples.
pub const SAMPLES_PARTITIONS: u32 = 4;

/// A broker with its topics, and no job yet.
pub struct Site {
    /// The job; it ends before the broker.
    pub job: Option<Plane>,
    /// The broker.
    pub kafka: Kafka,
    /// Partitions of the topic of ceilings.
    pub partitions: u32,
    /// Where its parts write their logs.
    pub logs: PathBuf,
    directory: Scratch,
}

impl Site {
    /// Starts the broker.
    pub fn start(partitions: u32) -> Result<Site> {
        let logs = environment::target().join("bench-logs");
        std::fs::create_dir_all(&logs)?;
        let kafka = Kafka::start_steady(&logs)?;
        kafka.create(SAMPLES_PARTITIONS, &["tidepool-samples"])?;
        kafka.create(partitions, &["tidepool-ceilings"])?;
        kafka.create(1, &["tidepool-summaries"])?;
        let directory = Scratch::below(&environment::target().join("bench"))?;
        Ok(Site { job: None, kafka, partitions, logs, directory })
    }

    /// A file with this text, as long as the site is there.
    pub fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// Starts the job; the last one ends before.
    pub fn start_job(&mut self, arguments: &[String]) -> Result<()> {
        self.job = None;
        let address = self.kafka.address();
        let checkpoints = self.directory.path().join("checkpoints").display().to_string();
        let all = [["--kafka", &address], ["--cluster", CLUSTER], ["--checkpoints", &checkpoints]];
        let all = all.as_flattened().iter().map(ToString::to_string);
        let all = all.chain(arguments.iter().cloned()).collect();
        let mut job = Plane::new(all, &self.logs)?.steady();
        job.start()?;
        self.job = Some(job);
        Ok(())
    }

    /// Processes of the broker and the job.
    pub fn processes(&self) -> Result<[u32; 2]> {
        let job = self.job.as_ref().and_then(Plane::process_id).context("no job runs")?;
        Ok([self.kafka.process_id().context("no broker runs")?, job])
    }
}

/// Builds the programs beside the plane; returns where they are.
pub fn programs() -> Result<PathBuf> {
    let build = ["build", "--quiet", "--release", "--package", "acceptance"];
    let mut build = environment::cargo(&build);
    build.args(["--features", "library,plane", "--bin", "bench-plane", "--bin", "bench-watch"]);
    process::show(&mut build)?;
    Ok(environment::target().join("release"))
}

/// The program that plays nodes.
pub fn player(site: &Site, action: &str) -> Result<Command> {
    let mut command = Command::new(programs()?.join("bench-plane"));
    command.arg(action).args(["--kafka", &site.kafka.address()]);
    Ok(command)
}
