//! The administration command of a store, run with a time limit.
//!
//! No shell stands in between; a command that is late is killed with all that it started.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tidepool_proto::{Error, ErrorKind, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Of what a command says, only the end is looked at.
const SAID_BYTES_MAX: u64 = 4096;

/// The command as `given`, else `default`. Refuses one whose program is not there.
pub(crate) fn command(given: &Option<Vec<String>>, default: [&str; 2]) -> Result<Vec<String>> {
    let command = given.clone().unwrap_or_else(|| default.map(str::to_owned).to_vec());
    check(&command)?;
    Ok(command)
}

fn check(command: &[String]) -> Result<()> {
    let operation = "looking for the command of a store";
    let Some(program) = command.first() else {
        let error = Error::new(ErrorKind::InvalidInput, operation, "`command` is empty");
        return Err(error.remedy("name the program and its first arguments"));
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A name with a slash stands for itself, wherever it is joined to.
    let found = match program.contains('/') {
        true => std::path::Path::new(program).is_file(),
        false => std::env::split_paths(&path).any(|place| place.join(program).is_file()),
    };
    if found {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, operation, format!("no program `{program}`"))
        .remedy("give its full path in `command`"))
}

/// Runs a command to its end.
///
/// # Errors
/// `TimedOut` where it was killed at the deadline, `StoreUnavailable` with its last words where it
/// failed.
pub(crate) fn run(command: &[String], deadline: Instant) -> Result<()> {
    let operation = || match command {
        // Virtual machines get many options, which say nothing.
        [program, .., one, two] => format!("running `{program} .. {one} {two}`"),
        _ => format!("running `{}`", command.join(" ")),
    };
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::InvalidInput, operation(), "").caused_by(error)
    };
    // A file, so that nobody need empty a pipe.
    let memory = rustix::fs::memfd_create("tool", rustix::fs::MemfdFlags::CLOEXEC);
    let mut said = File::from(memory.map_err(|error| failed(error.into()))?);
    let (program, arguments) = command.split_first().expect("it was checked not to be empty");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(said.try_clone().map_err(failed)?)
        .stderr(said.try_clone().map_err(failed)?)
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    // A tool may be large, and must not inherit that this process is never killed.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "0");
    match wait(&mut child, deadline).map_err(failed)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            let detail = format!("{status}: {}", last_words(&mut said));
            Err(Error::new(ErrorKind::StoreUnavailable, operation(), detail)
                .remedy("run the same command by hand"))
        }
        None => Err(Error::new(ErrorKind::TimedOut, operation(), "killed at the deadline")),
    }
}

/// The end of the process, or nothing where it had to be killed.
fn wait(child: &mut Child, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            if let Some(group) = Pid::from_raw(child.id() as i32) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Its last lines, without the indented ones of a stack trace.
fn last_words(said: &mut File) -> String {
    let length = said.metadata().map_or(0, |facts| facts.len());
    let mut text = Vec::new();
    let from = SeekFrom::Start(length.saturating_sub(SAID_BYTES_MAX));
    let read = said.seek(from).and_then(|_| said.read_to_end(&mut text));
    if read.is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&text);
    let says = |line: &&str| !line.trim().is_empty() && !line.starts_with(char::is_whitespace);
    let mut lines: Vec<&str> = text.lines().rev().filter(says).take(2).collect();
    lines.reverse();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<()> {
        let command = ["sh", "-c", script].map(str::to_owned);
        check(&command)?;
        run(&command, Instant::now() + limit)
    }

    #[test]
    fn the_end_of_a_command_is_told() {
        let long = Duration::from_secs(60);
        shell("seq 1 100000", long).unwrap();
        let error =
            shell("seq 1 100000; echo wrong path >&2; echo '\t at f'; exit 3", long).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreUnavailable);
        assert!(error.detail().contains("wrong path"), "{error}");
    }

    #[test]
    fn a_late_command_goes_with_its_children() {
        let place = tempfile::tempdir().unwrap();
        let pid = place.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid.display());
        let error = shell(&script, Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        // On a machine too busy to have started it within the time, there is nothing to look for.
        let Ok(child) = std::fs::read_to_string(&pid) else { return };
        let status = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        let is_gone = || status().map_or(true, |text| text.contains(") Z "));
        // A signal takes its time to be noticed.
        let begun = std::time::Instant::now();
        while !is_gone() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        for command in [&[][..], &["no-such-program".to_owned()], &["/no/such".to_owned()]] {
            assert_eq!(check(command).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
