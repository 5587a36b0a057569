//! The job, twice: by mistake beside itself, and after itself with other options. Agents follow one
//! run, numbers rise, and no ceiling is another than it was.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Agent, BY_AGENT, CEILINGS, CLUSTER, MIN_BYTES, Rig, refused, wait};
use crate::jvm::plane::Plane;
use crate::process;

/// Ceilings that are seen refused before it counts.
const REFUSED: u64 = 3;

impl Rig {
    /// A second job is seen and refused, and nothing is otherwise when it is gone.
    pub(super) fn two_jobs_run(&mut self) -> Result<()> {
        let mut second = self.a_second_job_is_refused()?;
        second.kill();
        let agent = &self.agents[0];
        agent.goes_on(agent.count("applied")?)
    }

    /// The one that is followed ends: then the other one is, until it ends as well.
    pub(super) fn the_followed_job_ends(&mut self) -> Result<()> {
        let before = self.followed()?;
        let mut second = self.a_second_job_is_refused()?;
        self.plane.kill();
        for (agent, (plane, _)) in self.agents.iter().zip(&before) {
            agent.wait_status("the other run", |status| {
                status["followed"]["plane"].as_str().is_some_and(|now| now != plane)
            })?;
            agent.wait("its ceiling", |control| {
                control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
            })?;
        }
        self.plane.start()?;
        self.is_refused_beside_the_followed()?;
        second.kill();
        for (agent, (plane, number)) in self.agents.iter().zip(&before) {
            agent.wait_status("the first run again, further on", |status| {
                let followed = &status["followed"];
                followed["plane"] == **plane && followed["number"].as_u64() > Some(*number)
            })?;
        }
        self.ceilings_are_what_they_were()
    }

    /// Starts one with checkpoints of its own.
    fn a_second_job_is_refused(&mut self) -> Result<Plane> {
        let checkpoints = self.starting.directory.join("checkpoints-of-second");
        let checkpoints = checkpoints.display().to_string();
        let mut second = self.plane.another("plane-second", &["--checkpoints", &checkpoints]);
        second.start()?;
        self.is_refused_beside_the_followed()?;
        let (code, facts) = self.site.wait_for_alarm("two_runs")?;
        ensure!(code == Some(1), "it is critical: {facts}");
        Ok(second)
    }

    /// Agents keep to the run that they follow, for as long as its leases go on.
    fn is_refused_beside_the_followed(&self) -> Result<()> {
        for agent in &self.agents {
            let mut before = agent.status()?;
            let first = refused(&before, "plane");
            wait("ceilings of another run to be refused", &mut Value::Null, || {
                let now = agent.status()?;
                let is_same = now["followed"]["plane"] == before["followed"]["plane"];
                let has_expired = now["ceilings"]["expired"] != before["ceilings"]["expired"];
                ensure!(is_same || has_expired, "they take turns: {before}, then {now}");
                before = now.clone();
                Ok((refused(&now, "plane") >= first + REFUSED, now))
            })?;
            let output = process::capture(&mut agent.node.command(&["plane", "status"]))?;
            let text = String::from_utf8_lossy(&output.stdout);
            ensure!(text.contains("refused: plane"), "status does not say so: {text}");
        }
        Ok(())
    }

    /// The same job again with more instances of each function, another gain and one more source.
    pub(super) fn the_job_is_upgraded(&mut self) -> Result<()> {
        let before = self.followed()?;
        self.plane.kill();
        let of_collectd = super::of_collectd();
        let more: Vec<&str> = of_collectd.iter().map(String::as_str).collect();
        self.plane.add(&more);
        self.plane.add(&["--parallelism", "2", "--gain", "0.4"]);
        self.plane.start()?;
        for (agent, (plane, number)) in self.agents.iter().zip(&before) {
            agent.wait_status("ceilings of the same run, further on", |status| {
                let followed = &status["followed"];
                followed["plane"] == **plane && followed["number"].as_u64() > Some(number + 2)
            })?;
        }
        self.ceilings_are_what_they_were()
    }

    /// Run and number that each agent goes by.
    pub(super) fn followed(&self) -> Result<Vec<(String, u64)>> {
        self.agents.iter().map(Agent::followed).collect()
    }

    /// Two ceilings of one number say the same, and a node took each number once at most.
    pub(super) fn ceilings_are_what_they_were(&mut self) -> Result<()> {
        let applied = self.agents[0].count("applied")?;
        let mut known: HashMap<(String, String, u64), Value> = HashMap::new();
        for (node, mut ceiling) in self.talk.read(CEILINGS)? {
            let is_ours = ceiling["policy"] == "dynims" && ceiling["cluster"] == CLUSTER;
            let Some(fields) = ceiling.as_object_mut().filter(|_| is_ours) else { continue };
            // When it was sent, by the clock of the job.
            fields.remove("at_ms");
            let plane = fields["plane"].as_str().context("a run")?.to_owned();
            let number = fields["number"].as_u64().context("a number")?;
            let before = known.entry((node, plane, number)).or_insert_with(|| ceiling.clone());
            ensure!(*before == ceiling, "one number, two ceilings: {before} and {ceiling}");
        }
        let sent = known.keys().filter(|key| key.0 == BY_AGENT).count();
        ensure!(applied <= u64::try_from(sent)?, "{applied} were taken of {sent}");
        Ok(())
    }
}
