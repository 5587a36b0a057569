//! A node whose clock is an hour off, to both sides, and jumps: its ceilings stay in force, and the
//! view says whose fault it is.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::super::site::has_alarm;
use super::super::{Agent, CLUSTER, MIN_BYTES, Rig, wait};
use crate::jvm::daemon::Daemon;

const NAME: &str = "n6";
/// By which the library puts the clock of a process forward or back.
const JUMPS: [&str; 2] = ["+3600", "-3600"];
const RIGHT: &str = "+0";

impl Rig {
    /// The agent's clock is right, then an hour ahead, then an hour behind, then right again.
    pub(super) fn a_clock_is_off(&mut self) -> Result<()> {
        let file = self.starting.directory.join("clock");
        std::fs::write(&file, RIGHT)?;
        let node = self.starting.start_node(NAME, &["--control", "off"])?;
        let mut command = node.command(&["plane", "agent", "--name", NAME, "--cluster", CLUSTER]);
        command.args(&self.starting.connection).env("LD_PRELOAD", library()?);
        command.env("FAKETIME_TIMESTAMP_FILE", &file).env("FAKETIME_NO_CACHE", "1");
        // As with a clock that is set: time goes on as it did.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let agent = Daemon::start("plane-agent-n6", &mut command, &self.starting.logs)?;
        let agent = Agent { agent, node };
        in_force(&agent)?;
        for jump in JUMPS {
            std::fs::write(&file, jump)?;
            let (_, facts) = self.site.wait_for_alarm("skewed")?;
            let alarms = facts["alarms"].as_array().into_iter().flatten();
            let mut skewed = alarms.filter(|alarm| alarm["name"] == "skewed");
            ensure!(skewed.all(|alarm| alarm["is_critical"] == false), "it is critical: {facts}");
            agent.goes_on(agent.count("applied")?)?;
            in_force(&agent)?;
            let expired = agent.count("expired")?;
            ensure!(expired == 0, "its ceilings ended {expired} times");
        }
        std::fs::write(&file, RIGHT)?;
        wait("clocks that agree", &mut serde_json::Value::Null, || {
            let (_, facts) = self.site.facts()?;
            Ok((!has_alarm(&facts, "skewed"), facts))
        })?;
        agent.goes_on(agent.count("applied")?)
    }
}

fn in_force(agent: &Agent) -> Result<()> {
    let holds = |control: &serde_json::Value| {
        control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
            && control["capacity_bytes"] == MIN_BYTES
    };
    agent.wait("a ceiling in force", holds).map(drop)
}

/// The one for programs of several threads, of the package `faketime`.
fn library() -> Result<PathBuf> {
    let places = std::fs::read_dir("/usr/lib")?.flatten();
    let mut files = places.map(|place| place.path().join("faketime/libfaketimeMT.so.1"));
    files.find(|file| file.is_file()).context("no libfaketimeMT.so.1; install faketime")
}
