//! The job of the cluster plane, in one process.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::artifacts;
use super::daemon::Daemon;
use super::java::{self, Java};

/// The job, started or not.
#[derive(Debug)]
pub struct Plane {
    name: &'static str,
    java: Java,
    arguments: Vec<String>,
    logs: PathBuf,
    starts: u32,
    job: Option<Daemon>,
}

impl Plane {
    /// The job with these arguments, built and not started yet.
    pub fn new(arguments: Vec<String>, logs: &Path) -> Result<Self> {
        let flink = artifacts::project("flink")?;
        let jar = artifacts::plane_jar()?.display().to_string();
        let class_path = java::class_path(&[&jar, &flink.dependencies]);
        let java = Java::new(class_path, "256m").light().logged();
        let logs = logs.to_owned();
        Ok(Plane { name: "plane", java, arguments, logs, starts: 0, job: None })
    }

    /// Another one beside it, which must not take its logs, with more arguments. Of two of one name
    /// the later one holds.
    pub fn another(&self, name: &'static str, more: &[&str]) -> Self {
        let (java, logs) = (self.java.clone(), self.logs.clone());
        let arguments = self.arguments.iter().cloned();
        let arguments = arguments.chain(more.iter().map(ToString::to_string)).collect();
        Plane { name, java, arguments, logs, starts: 0, job: None }
    }

    /// Adds arguments for its next start.
    pub fn add(&mut self, more: &[&str]) {
        self.arguments.extend(more.iter().map(ToString::to_string));
    }

    /// The same for measurements, as a site would run it.
    #[must_use]
    pub fn steady(self) -> Self {
        Plane { java: self.java.steady(), ..self }
    }

    /// Its process, while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.job.as_ref().map(Daemon::process_id)
    }

    /// Starts it, after the first time where the last one was killed.
    pub fn start(&mut self) -> Result<()> {
        self.starts += 1;
        let mut command = self.java.command("io.tidepool.plane.Plane", &self.arguments);
        let name = format!("{}-{}", self.name, self.starts);
        self.job = Some(Daemon::start(&name, &mut command, &self.logs)?);
        Ok(())
    }

    /// What it has said since its start.
    pub fn said(&self) -> String {
        self.job.as_ref().map(Daemon::said).unwrap_or_default()
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        if let Some(job) = self.job.take() {
            job.kill();
        }
    }
}
