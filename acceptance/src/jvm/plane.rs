//! The job of the cluster plane, in one process.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::artifacts;
use super::daemon::Daemon;
use super::java::{self, Java};

/// The job, started or not.
#[derive(Debug)]
pub struct Plane {
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
        Ok(Plane { java, arguments, logs: logs.to_owned(), starts: 0, job: None })
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
        let name = format!("plane-{}", self.starts);
        self.job = Some(Daemon::start(&name, &mut command, &self.logs)?);
        Ok(())
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        if let Some(job) = self.job.take() {
            job.kill();
        }
    }
}
