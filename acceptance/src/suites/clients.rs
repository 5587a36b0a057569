//! Clients that others wrote, on the burst buffer's server and on memcached: the tools of
//! libmemcached, and pymemcache.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::conformance;
use crate::environment;
use crate::outcome::Outcome;
use crate::process;

const PYMEMCACHE: &str = "pymemcache==4.0.0";
const LIMIT: Duration = Duration::from_secs(20);

/// Both clients on both servers. What fails on memcached says nothing about ours, and is a failure
/// all the same: then these checks are wrong.
pub fn run(ours: &Path, theirs: &Path) -> Result<Vec<Outcome>> {
    let packages = environment::python_packages("pymemcache-4.0.0", &[PYMEMCACHE])?;
    let mut outcomes = Vec::new();
    for (name, program) in [("memcached", theirs), ("buffer", ours)] {
        let server = Server::start(program)?;
        let mut outcome = Outcome::new(format!("clients of others on {name}"));
        for result in [tools(server.port), python(server.port, &packages)] {
            match result {
                Ok(checked) => outcome.passed += checked,
                Err(error) => outcome.failed.push(format!("{error:#}")),
            }
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// A server at a port of its own, ended when this goes.
struct Server {
    child: std::process::Child,
    port: u16,
}

impl Server {
    fn start(program: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let port_word = port.to_string();
        let words = ["-l", "127.0.0.1", "-p", &port_word, "-U", "0", "-u", "nobody"];
        let mut command = process::command(program, &words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server { child: command.spawn()?, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(started.elapsed() < LIMIT, "{} does not answer", program.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stores a file, asks for it, sets its time and removes it; tells how much was checked.
fn tools(port: u16) -> Result<u64> {
    let servers = format!("--servers=127.0.0.1:{port}");
    let tool = |name: &str, words: &[&str]| -> Result<(bool, Vec<u8>)> {
        let mut command = process::command(name, &[servers.as_str()]);
        let output = process::capture_within(command.args(words), LIMIT)?;
        Ok((output.status.success(), output.stdout))
    };
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("value");
    let text: String = (0..20_000).map(|at| format!("{at},")).collect();
    std::fs::write(&file, &text)?;
    let path = file.to_str().context("a path in UTF-8")?;
    let key = "value";
    ensure!(tool("memccp", &["--set", path])?.0, "memccp failed");
    let (is_found, bytes) = tool("memccat", &[key])?;
    ensure!(is_found && bytes.starts_with(text.as_bytes()), "memccat read something else");
    ensure!(tool("memcexist", &[key])?.0, "memcexist finds no key");
    ensure!(tool("memctouch", &["--expire=100", key])?.0, "memctouch failed");
    ensure!(tool("memcrm", &[key])?.0, "memcrm failed");
    ensure!(!tool("memcexist", &[key])?.0, "memcexist finds what was removed");
    let (_, said) = tool("memcstat", &[])?;
    ensure!(String::from_utf8_lossy(&said).contains("curr_items"), "memcstat tells nothing");
    Ok(7)
}

fn python(port: u16, packages: &Path) -> Result<u64> {
    let mut command = process::command("python3", &[conformance("memcached/clients.py")]);
    command.arg(port.to_string());
    let output = process::capture_within(command.env("PYTHONPATH", packages), LIMIT)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let checked = said.trim().strip_suffix(" checked").and_then(|text| text.parse().ok());
    match checked {
        Some(checked) if output.status.success() => Ok(checked),
        _ => bail!("pymemcache: {said}{}", String::from_utf8_lossy(&output.stderr)),
    }
}
