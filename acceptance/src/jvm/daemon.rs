//! [`Daemon`]: a server program that a task starts. Its output goes to a log, its port is awaited,
//! and it ends with the task.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup::{self, Guard};
use crate::process;

const START_LIMIT: Duration = Duration::from_secs(90);
/// After SIGTERM; then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);
const LINES_SHOWN: usize = 25;

/// A running daemon; dropping it ends it.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    log: PathBuf,
    child: Arc<Mutex<std::process::Child>>,
    _stop: Guard,
}

impl Daemon {
    /// Starts `command` with both outputs in `NAME.log` of `logs`.
    pub fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        let child = command
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let child = Arc::new(Mutex::new(child));
        let stopped = Arc::clone(&child);
        let guard = cleanup::guard(move || stop(&stopped));
        Ok(Daemon { name: name.to_owned(), log, child, _stop: guard })
    }

    /// Kills it as a crash would, and waits until it is gone.
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        _ = child.kill();
        _ = child.wait();
    }

    /// Its process.
    pub fn process_id(&self) -> u32 {
        lock(&self.child).id()
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until something listens at `port`.
    pub fn wait_for_port(&self, port: u16) -> Result<()> {
        self.wait_for(&format!("port {port}"), || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })
    }

    /// Waits until `ready`; an error names the log, with its last lines.
    pub fn wait_for(&self, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let started = Instant::now();
        while !ready() {
            let ended = lock(&self.child).try_wait()?;
            if ended.is_some() || started.elapsed() > START_LIMIT {
                let how = ended.map_or("does not answer".into(), |status| format!("{status}"));
                let text = std::fs::read(&self.log).unwrap_or_default();
                let text = last_lines(&String::from_utf8_lossy(&text));
                bail!("{}, {what}: {how}; {}:\n{text}", self.name, self.log.display());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

fn stop(child: &Mutex<std::process::Child>) {
    let mut child = lock(child);
    process::signal(child.id(), libc::SIGTERM);
    let started = Instant::now();
    while started.elapsed() < STOP_LIMIT {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(POLL),
            _ => return,
        }
    }
    // It may have ended between the two.
    let _ = child.kill();
    let _ = child.wait();
}

fn lock(child: &Mutex<std::process::Child>) -> std::sync::MutexGuard<'_, std::process::Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a log.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}

/// Ports that nobody has now, all different. Another program may take one before it is used; then
/// the daemon says so and ends.
pub fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let mut listeners = Vec::new();
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Daemon, free_ports};

    #[test]
    fn one_that_ends_early_is_told_with_its_log() {
        let logs = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such luck; exit 3"]);
        let daemon = Daemon::start("early", &mut command, logs.path()).unwrap();
        let [port] = free_ports().unwrap();
        let error = daemon.wait_for_port(port).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.contains("early.log"), "{error}");
        assert!(error.contains("no such luck"), "{error}");
    }

    #[test]
    fn dropping_ends_it() {
        let logs = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        let daemon = Daemon::start("sleeper", command.arg("1000"), logs.path()).unwrap();
        let id = daemon.child.lock().unwrap().id();
        drop(daemon);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }
}
