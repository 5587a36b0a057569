//! A store of another maker under the plane: a real memcached on a node, whose limit follows the
//! ceilings of the job, and is its own again when no more come.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{Agent, MIB, MIN_BYTES, Rig, wait};
use crate::jvm::daemon::Daemon;
use crate::process;

const NAME: &str = "sessions";
/// Of the whole process.
const LEAST_BYTES: u64 = 48 * MIB;
const MOST_BYTES: u64 = 192 * MIB;
const VALUE_BYTES: usize = 100_000;
const VALUES: usize = 1200;

impl Rig {
    /// The ceilings of a node with two stores reach both.
    pub(super) fn another_store_follows(&mut self) -> Result<()> {
        let directory = &self.starting.directory;
        let socket = directory.join("memcached");
        // The user counts for root alone.
        let arguments = ["-u", "root", "-m", "160", "-s", &socket.display().to_string()];
        let mut command = process::command("memcached", &arguments);
        command.env("MALLOC_MMAP_THRESHOLD_", "131072");
        let server = Daemon::start("plane-memcached", &mut command, &self.starting.logs)?;
        server.wait_for("its socket", || UnixStream::connect(&socket).is_ok())?;
        fill(&socket)?;
        let file = directory.join("stores.toml");
        std::fs::write(&file, configuration(&socket))?;
        let node = ["--control", "on", "--controlled-stores", &file.display().to_string()];
        let agent = self.starting.start_with("n5", &node, &[])?;
        let sent = agent.wait("both ceilings", |control| {
            let of_other = &control["other_ceilings"][0];
            control["leased_ceiling"]["ceiling_bytes"] == MIN_BYTES
                && of_other["store"] == NAME
                && of_other["ceiling_bytes"] == LEAST_BYTES
        })?;
        let state = wait_for_store(&agent, "memory that is back", |store| {
            let resident_bytes = store["resident_bytes"].as_u64().unwrap_or(u64::MAX);
            store["capacity_max_bytes"] == LEAST_BYTES && resident_bytes < 2 * LEAST_BYTES
        })?;
        ensure!(state["capacity_configured_bytes"] == MOST_BYTES, "its own most moved: {sent}");
        let status = agent.status()?;
        let stores = status["followed"]["stores"].as_array().map_or(0, Vec::len);
        ensure!(stores == 2, "the agent leases both: {status}");
        agent.agent.kill();
        agent.wait("the end of the lease", |it| it["other_ceilings"] == Value::Array(vec![]))?;
        wait_for_store(&agent, "its own most", |store| store["capacity_max_bytes"] == MOST_BYTES)?;
        Ok(())
    }
}

/// Waits until the controller says so of the other store.
fn wait_for_store(agent: &Agent, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    wait(what, &mut last, || {
        let control = agent.control()?;
        let stores = control["report"]["stores"].as_array().cloned().unwrap_or_default();
        let ours = stores.into_iter().find(|store| store["name"] == NAME).unwrap_or_default();
        Ok((holds(&ours), ours))
    })?;
    Ok(last)
}

fn configuration(socket: &Path) -> String {
    format!(
        "[[store]]\nkind = \"memcached\"\nname = \"{NAME}\"\naddress = \"{}\"\n\
         capacity_min_bytes = {LEAST_BYTES}\ncapacity_max_bytes = {MOST_BYTES}\n",
        socket.display()
    )
}

/// Puts in more than the least that it may keep.
fn fill(socket: &Path) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let value = vec![b'v'; VALUE_BYTES];
    for number in 0..VALUES {
        write!(stream, "set key{number} 0 0 {VALUE_BYTES}\r\n")?;
        stream.write_all(&value)?;
        stream.write_all(b"\r\n")?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        ensure!(&answer == b"STORED\r\n", "memcached: {}", String::from_utf8_lossy(&answer));
    }
    Ok(())
}
