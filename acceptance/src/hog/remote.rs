//! The memory-hungry job as a process of its own, driven by the benchmark.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::{Report, Step};
use crate::cleanup::{self, Guard};
use crate::process;

/// What the job may do.
#[derive(Clone, Copy, Debug)]
pub struct JobOptions {
    /// The most that it ever holds, in bytes.
    pub most_bytes: u64,
    /// In pages of 2 MiB.
    pub huge: bool,
    /// Bytes of available memory that it leaves to others.
    pub leave_bytes: u64,
}

/// A job that runs.
#[derive(Debug)]
pub struct RunningJob {
    child: Child,
    kill: Guard,
}

impl RunningJob {
    /// Starts a job that waits for steps.
    pub fn start(options: &JobOptions) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["hog", "--most", &options.most_bytes.to_string()]);
        command.args(["--leave", &options.leave_bytes.to_string()]);
        if options.huge {
            command.arg("--huge");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().context("starting the job")?;
        let process_id = child.id();
        let kill = cleanup::guard(move || process::signal(process_id, libc::SIGKILL));
        Ok(RunningJob { child, kill })
    }

    /// Hands the job its next step; does not wait for it.
    pub fn step(&mut self, step: Step) -> Result<()> {
        let pipe = self.child.stdin.as_mut().context("the job takes no more steps")?;
        writeln!(pipe, "{}", serde_json::to_string(&step)?).context("the job is gone")?;
        Ok(pipe.flush()?)
    }

    /// What the job holds now, in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        process::resident_bytes(self.child.id())
    }

    /// Waits until the job did all steps and ended.
    pub fn finish(mut self) -> Result<Report> {
        drop(self.child.stdin.take());
        let output = self.child.wait_with_output()?;
        cleanup::forget(self.kill);
        anyhow::ensure!(output.status.success(), "the job ended with {}", output.status);
        serde_json::from_slice(&output.stdout).context("the report of the job")
    }
}

/// Runs a trace from its start to its end.
pub fn run_trace(options: &JobOptions, trace: &[Step]) -> Result<Report> {
    let mut job = RunningJob::start(options)?;
    for step in trace {
        job.step(*step)?;
    }
    job.finish()
}
