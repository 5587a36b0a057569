//! Processes of a node: found by the network namespace they are in and by a mark in their
//! environment, never by an id that was kept, which may be another's by now.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::wait_until;
use crate::process;

/// Variable with the mark `CLUSTER/NODE` in the environment of all that runs on a node.
pub const MARK: &str = "TEST_CLUSTER_NODE";
const END_LIMIT: Duration = Duration::from_secs(15);

/// Processes in a network namespace, which is known by its name.
pub fn inside(namespace: &str) -> Vec<u32> {
    let Ok(wanted) = fs::metadata(Path::new("/run/netns").join(namespace)) else {
        return Vec::new();
    };
    let wanted = (wanted.dev(), wanted.ino());
    all(|id| {
        fs::metadata(format!("/proc/{id}/ns/net"))
            .is_ok_and(|found| (found.dev(), found.ino()) == wanted)
    })
}

/// Processes with this mark.
fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}").into_bytes();
    all(|id| {
        fs::read(format!("/proc/{id}/environ"))
            .is_ok_and(|found| found.split(|byte| *byte == 0).any(|word| word == wanted))
    })
}

/// All processes but this one that fulfil a condition.
fn all(condition: impl Fn(u32) -> bool) -> Vec<u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| *id != own && condition(*id)).collect()
}

/// Kills all that runs on a node and waits until it is gone.
///
/// # Errors
/// Processes that do not end, with their ids.
pub fn end_all(namespace: &str, mark: &str) -> Result<()> {
    end(|| {
        let mut found = inside(namespace);
        found.extend(marked(mark));
        found
    })
}

/// Kills all that is in a namespace and waits until it is gone.
///
/// # Errors
/// Processes that do not end, with their ids.
pub fn end_inside(namespace: &str) -> Result<()> {
    end(|| inside(namespace))
}

/// Kills what a search finds until it finds nothing more. Children may be born meanwhile.
pub fn end(mut search: impl FnMut() -> Vec<u32>) -> Result<()> {
    let mut left = Vec::new();
    let ended = wait_until(END_LIMIT, || {
        left = search();
        left.iter().for_each(|id| process::signal(*id, libc::SIGKILL));
        left.is_empty()
    });
    if ended.is_err() {
        let left: Vec<String> = left.iter().map(|id| described(*id)).collect();
        bail!("still running after SIGKILL: {}", left.join(", "));
    }
    Ok(())
}

/// Id and name, for a reader.
fn described(id: u32) -> String {
    format!("{id} ({})", name(id).unwrap_or_default())
}

/// Name of a process.
pub fn name(id: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{id}/comm")).ok()?.trim().to_owned())
}

/// State of a process, the letter that the kernel shows: `T` is stopped.
pub fn state(id: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}
