//! Churn while a suite runs: the store is resized, emptied and given another policy, over and over,
//! by the command line of the node. The suite must not notice.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use super::tail;
use crate::node::Node;
use crate::process;

const CAPACITIES: [&str; 5] = ["64MiB", "0", "8MiB", "256MiB", "16MiB"];
const POLICIES: [&str; 4] = ["lru", "lfu", "s3fifo", "cyclic"];
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(30);

/// Runs `work` while the node is being troubled. Returns its result and the number of commands.
///
/// # Errors
/// A command of the unrest failed, or `work` did.
pub fn during<T>(node: &Node, file: &Path, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let over = Arc::new(AtomicBool::new(false));
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (over_there, done_there) = (Arc::clone(&over), &done);
        let file = file.to_path_buf();
        let unrest = scope.spawn(move || trouble(node, &file, &over_there, done_there));
        let result = work();
        over.store(true, Ordering::Release);
        let unrest = unrest.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the unrest panicked")));
        // Both, where both failed: a node that hangs shows in its commands as well.
        match (result, unrest) {
            (Ok(result), Ok(())) => Ok((result, done.load(Ordering::Relaxed))),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(other)) => Err(error.context(format!("{other:#}"))),
        }
    })
}

fn trouble(node: &Node, file: &Path, over: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let mut round = 0;
    while !over.load(Ordering::Acquire) {
        let step: Vec<PathBuf> = match round % 3 {
            0 => vec!["resize".into(), CAPACITIES[round / 3 % CAPACITIES.len()].into()],
            1 => vec!["evict".into(), file.to_path_buf()],
            _ => vec!["policy".into(), POLICIES[round / 3 % POLICIES.len()].into()],
        };
        let gone = step[0] == Path::new("evict") && !file.exists();
        if !gone {
            order(node, &step)?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        round += 1;
        std::thread::sleep(PAUSE);
    }
    order(node, &["resize".into(), "256MiB".into()])
}

/// Runs one command. That bytes are in use and stay is an answer, not a failure.
fn order(node: &Node, step: &[PathBuf]) -> Result<()> {
    let mut command = node.command(step);
    let output = process::capture_within(command.arg("--json"), LIMIT)?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let held = answer["held_bytes"].as_u64().is_some_and(|held| held > 0);
    if !output.status.success() && !held {
        bail!(
            "`{}` ended with {}: {}",
            process::describe(&command),
            output.status,
            tail(&output.stderr, 4)
        );
    }
    Ok(())
}
