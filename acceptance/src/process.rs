//! Running other programs: output kept or shown, failures with the command and what it said.
//!
//! No shell is involved anywhere.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup;

const POLL: Duration = Duration::from_millis(2);

/// The command line as a person would type it.
pub fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Runs to the end and keeps both outputs, whatever the exit status.
pub fn capture(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null());
    command.output().with_context(|| format!("starting `{}`", describe(command)))
}

/// Runs to the end and returns the standard output; a failure carries both outputs.
pub fn read(command: &mut Command) -> Result<String> {
    let output = capture(command)?;
    if !output.status.success() {
        bail!(
            "`{}` ended with {}: {}{}",
            describe(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs with its output shown.
pub fn show(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting `{}`", describe(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", describe(command));
    }
    Ok(())
}

/// A command with arguments of any path-like type.
pub fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Runs like [`capture`] and kills the program after `limit`; then the error says so.
pub fn capture_within(command: &mut Command, limit: Duration) -> Result<Output> {
    let started = Instant::now();
    let mut child = spawn_heard(command)?;
    let process_id = child.id();
    let kill = cleanup::guard(move || signal(process_id, libc::SIGKILL));
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            drop(kill);
            // Not waited for: a program that hangs in a mount ends only when the mount does.
            bail!("`{}` was still running after {:?}", describe(command), started.elapsed());
        }
        std::thread::sleep(POLL);
    };
    cleanup::forget(kill);
    let collect = |reader: std::thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    Ok(Output { status, stdout: collect(stdout), stderr: collect(stderr) })
}

/// Starts with both outputs piped, and without input.
fn spawn_heard(command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}`", describe(command)))
}

/// Runs to the end, shows the error output as it comes, and keeps both outputs.
pub fn follow(command: &mut Command) -> Result<(ExitStatus, String)> {
    let mut child = spawn_heard(command)?;
    let stdout = drain(child.stdout.take());
    let mut text = String::new();
    let errors = child.stderr.take().context("the error output is a pipe")?;
    let mut lines = BufReader::new(errors);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let words = String::from_utf8_lossy(&line);
        eprint!("{words}");
        text.push_str(&words);
        line.clear();
    }
    let status = child.wait()?;
    text.push_str(&String::from_utf8_lossy(&stdout.join().unwrap_or_default()));
    Ok((status, text))
}

fn drain<R: std::io::Read + Send + 'static>(pipe: Option<R>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // A program that was killed ends its pipe early; what came until then is kept.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Memory that a process has, in bytes.
pub fn resident_bytes(process_id: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process_id}/status"))
        .with_context(|| format!("process {process_id} is gone"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: u64 = line.split_whitespace().next().context("no VmRSS")?.parse()?;
    Ok(kibibytes << 10)
}

/// Processor time that a process took so far, its own and the kernel's for it, in seconds.
pub fn processor_seconds(process_id: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process_id}/stat"))
        .with_context(|| format!("process {process_id} is gone"))?;
    let (_, rest) = text.rsplit_once(") ").context("no name in its state")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |at: usize| -> Result<f64> { Ok(fields.get(at).context("too short")?.parse()?) };
    // Fields 14 and 15 of the line, of which the first here is the third.
    Ok((ticks(11)? + ticks(12)?) / rustix::param::clock_ticks_per_second() as f64)
}

/// Sends a signal; a process that is gone already is fine.
pub fn signal(process_id: u32, signal: i32) {
    if process_id == 0 {
        return;
    }
    // SAFETY: kill(2) takes two numbers and touches no memory of ours.
    unsafe { libc::kill(process_id as libc::pid_t, signal) };
}
