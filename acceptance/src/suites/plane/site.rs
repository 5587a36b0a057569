//! `tidepool plane site` on a real topic of summaries: what it shows while all works, where the job
//! is away, where others write to the topic, and without a broker.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::wait;
use crate::jvm::talk::Talk;
use crate::process;

/// The command on one broker.
#[derive(Debug)]
pub struct SiteCommand {
    /// The program of operators.
    pub tidepool: PathBuf,
    /// Which broker, and as whom.
    pub connection: Vec<String>,
}

impl SiteCommand {
    /// What it prints.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.tidepool);
        process::capture(command.args(["plane", "site"]).args(&self.connection).args(arguments))
    }

    /// Its exit code and what it knows.
    pub fn facts(&self) -> Result<(Option<i32>, Value)> {
        let output = self.run(&["--json"])?;
        let facts = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Ok((output.status.code(), facts))
    }

    /// Two nodes with a ceiling each of `ceiling_bytes`.
    pub fn shows_nodes(&self, ceiling_bytes: u64) -> Result<()> {
        let mut last = Value::Null;
        wait("both nodes in the sums", &mut last, || {
            let (code, facts) = self.facts()?;
            let is_so = facts["nodes"] == 2 && facts["ceiling_bytes"] == 2 * ceiling_bytes;
            Ok((is_so && code == Some(0), facts))
        })?;
        ensure!(last["policy"] == "dynims" && last["is_silent"] == false, "{last}");
        ensure!(last["samples_per_s"].as_f64() > Some(0.0), "no samples: {last}");
        ensure!(last["sites"]["first"][0]["cluster"] == super::CLUSTER, "no site: {last}");
        let text = String::from_utf8(self.run(&[])?.stdout)?;
        for word in ["policy dynims", "2 heard from", "ceilings sent a second", super::CLUSTER] {
            ensure!(text.contains(word), "`{word}` is not in {text}");
        }
        let metrics = String::from_utf8(self.run(&["--metrics"])?.stdout)?;
        ensure!(metrics.contains("\ntidepool_plane_nodes 2\n"), "no metric: {metrics}");
        Ok(())
    }

    /// The job is away: that is an alarm, and the exit code says so.
    pub fn tells_of_silence(&self) -> Result<()> {
        let (code, facts) = self.facts()?;
        ensure!(code == Some(1), "exit code {code:?}: {facts}");
        ensure!(has_alarm(&facts, "silent"), "no alarm: {facts}");
        ensure!(facts["nodes"] == 2, "what was known before is gone: {facts}");
        Ok(())
    }

    /// What others write to the topic commands no terminal, and hides nothing.
    pub fn bears_a_hostile_producer(&self, talk: &mut Talk) -> Result<()> {
        let (_, facts) = self.facts()?;
        let (plane, at_ms) = (&facts["plane"], facts["age_ms"].as_u64().unwrap_or(0));
        let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let at_ms = u64::try_from(now_ms.as_millis())?.saturating_sub(at_ms);
        let rack = serde_json::json!({
            "form": 1, "scope": "rack", "cluster": super::CLUSTER, "plane": plane,
            "rack": "\u{1b}]0;owned\u{7}\u{1b}[2J\nalarms none", "at_ms": at_ms, "span_ms": 1000,
            "nodes": 1, "memory_total_bytes": 1, "available_bytes": 1, "resident_bytes": 1,
            "demand_bytes": u64::MAX, "ceiling_bytes": 1, "samples": u64::MAX, "repeated": 0,
            "late": 0, "garbage": 0, "skewed": 0, "foreign": 0, "incomplete": 0, "refused": 0,
            "trimmed": 0, "decisions": 0, "ceilings": 0,
        });
        let long = format!("\"{}\"", "x".repeat(super::LONG_BYTES));
        let messages = [rack.to_string(), "NaN".to_owned(), "[".repeat(50_000), long];
        talk.send(super::SUMMARIES, "hostile", &messages)?;
        let (_, facts) = self.facts()?;
        ensure!(has_alarm(&facts, "strange"), "no alarm: {facts}");
        let demand_bytes = facts["demand_bytes"].as_u64();
        ensure!(demand_bytes < facts["memory_total_bytes"].as_u64(), "another's sums: {facts}");
        let text = self.run(&[])?.stdout;
        ensure!(!text.contains(&0x1b), "a terminal obeys: {}", String::from_utf8_lossy(&text));
        Ok(())
    }

    /// Waits for an alarm and returns the exit code and facts that come with it.
    pub fn wait_for_alarm(&self, name: &str) -> Result<(Option<i32>, Value)> {
        let (mut last, mut code) = (Value::Null, None);
        wait(&format!("the alarm {name}"), &mut last, || {
            let (exit_code, facts) = self.facts()?;
            code = exit_code;
            Ok((has_alarm(&facts, name), facts))
        })?;
        Ok((code, last))
    }

    /// No broker answers: an error that says so.
    pub fn tells_of_no_broker(&self) -> Result<()> {
        let output = self.run(&[])?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
        ensure!(text.contains("no broker answers") && text.contains("--kafka"), "{text}");
        Ok(())
    }
}

/// Whether an alarm of this name is among the facts.
pub fn has_alarm(facts: &Value, name: &str) -> bool {
    let alarms = facts["alarms"].as_array();
    alarms.is_some_and(|alarms| alarms.iter().any(|alarm| alarm["name"] == name))
}
