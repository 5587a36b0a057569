//! Starts the daemon: the program starts itself again in a session of its own and hears through a
//! pipe whether the node serves. Nothing is forked after threads exist.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tidepool_daemon::Summary;
use tidepool_daemon::place::{default_log_file, open_log};
use tidepool_proto::wire::Failure;
use tidepool_proto::{Error, ErrorKind, NodeConfig, Result};
use tidepool_terminal::interruption;

/// What the daemon tells the program that started it.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Ready(Box<Summary>),
    Failed(Failure),
}

/// The daemon's end of the pipe.
pub struct Readiness {
    pipe: File,
}

impl Readiness {
    /// Takes over the descriptor that the starting program left open for us.
    pub fn adopt(number: RawFd) -> Result<Readiness> {
        // SAFETY: the descriptor is only looked at; a wrong number is refused below.
        let borrowed = unsafe { rustix::fd::BorrowedFd::borrow_raw(number.max(0)) };
        if number <= 2 || rustix::fs::fstat(borrowed).is_err() {
            let detail = format!("descriptor {number} is not open");
            return Err(Error::new(ErrorKind::InvalidInput, "reading --ready-descriptor", detail));
        }
        fcntl_setfd(borrowed, FdFlags::CLOEXEC)
            .map_err(|source| Error::pfs("taking over the readiness pipe", source))?;
        // SAFETY: the descriptor is open (checked above) and, by the meaning of the flag, handed
        // over to this process for this purpose alone.
        let pipe = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Readiness { pipe: File::from(pipe) })
    }

    /// The node serves.
    pub fn ready(&self, summary: &Summary) {
        self.send(&Message::Ready(Box::new(summary.clone())));
    }

    /// The node does not start.
    pub fn failed(&self, error: &Error) {
        self.send(&Message::Failed(Failure::from(error)));
    }

    fn send(&self, message: &Message) {
        let mut line = serde_json::to_vec(message).expect("plain structures become JSON");
        line.push(b'\n');
        // Nobody may be listening any more; the log has the same facts.
        let _ = (&self.pipe).write_all(&line);
    }
}

/// Starts this program again as a daemon and waits until its node serves or fails. Interrupted
/// meanwhile, it has the node stopped again.
pub fn spawn(config: &NodeConfig) -> Result<Summary> {
    let interrupted = interruption::watch()?;
    let log_file = config.log_file.clone().unwrap_or_else(|| default_log_file(&config.socket));
    let log = open_log(&log_file, &config.socket)?;
    let failed = |source| Error::pfs("starting the daemon", source);
    let (listen, report) = std::io::pipe().map_err(failed)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("tidepool")
        .args(std::env::args_os().skip(1))
        .arg(format!("--ready-descriptor={}", report.as_raw_fd()))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log);
    if config.log_file.is_none() {
        let mut flag = std::ffi::OsString::from("--log-file=");
        flag.push(&log_file);
        command.arg(flag).arg("--default-log");
    }
    let log_bytes = std::fs::metadata(&log_file).map_or(0, |facts| facts.len());
    let kept = report.as_raw_fd();
    let prepare = move || {
        // SAFETY: the parent keeps the descriptor open until the child runs the new program.
        let report = unsafe { rustix::fd::BorrowedFd::borrow_raw(kept) };
        fcntl_setfd(report, FdFlags::empty())?;
        rustix::process::setsid()?;
        Ok(())
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn().map_err(failed)?;
    drop(report);
    let summary = listen_until_ready(listen, &mut child).map_err(|error| match error {
        Unready::Failed(error) => error,
        Unready::Ended(status) => ended(&status, &log_file, log_bytes),
    })?;
    if interrupted.load(Ordering::Relaxed) {
        return Err(take_back(&mut child));
    }
    Ok(summary)
}

/// Has a node that nobody wants any more stop, and waits for its end.
fn take_back(child: &mut Child) -> Error {
    // It is in a session of its own, so what interrupted this program did not reach it.
    let told = kill_process(Pid::from_child(child), Signal::TERM);
    let ended = told.map_err(std::io::Error::from).and_then(|()| child.wait());
    let detail = match ended {
        Ok(_) => "interrupted; the node was stopped again".to_owned(),
        Err(error) => format!("interrupted, but the node runs: {error}"),
    };
    Error::new(ErrorKind::TimedOut, "starting the node", detail)
}

/// Why no node serves.
enum Unready {
    /// It said so itself.
    Failed(Error),
    /// It ended without a word; how.
    Ended(String),
}

fn listen_until_ready(mut pipe: PipeReader, child: &mut Child) -> Result<Summary, Unready> {
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    while !text.ends_with(b"\n") {
        match pipe.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Unready::Failed(Error::pfs("hearing the daemon", source))),
        }
    }
    match serde_json::from_slice(&text) {
        Ok(Message::Ready(summary)) => Ok(*summary),
        Ok(Message::Failed(failure)) => {
            // It ends by itself; waiting for it leaves no half-stopped node behind.
            let _ = child.wait();
            Err(Unready::Failed(failure.into()))
        }
        Err(_) => {
            let status = child.wait().map(|status| status.to_string());
            Err(Unready::Ended(status.unwrap_or_else(|error| error.to_string())))
        }
    }
}

/// The error of a daemon that ended without a word: what it logged is the best there is.
fn ended(status: &str, log: &Path, log_bytes_before: u64) -> Error {
    let content = std::fs::read(log).unwrap_or_default();
    let new = content.get(log_bytes_before as usize..).unwrap_or_default();
    let new = String::from_utf8_lossy(new);
    let lines: Vec<&str> = new.lines().filter(|line| !line.trim().is_empty()).take(2).collect();
    let mut detail = format!("the daemon ended before it served ({status})");
    if !lines.is_empty() {
        detail = format!("{detail}: {}", lines.join(" "));
    }
    Error::new(ErrorKind::Internal, "starting the daemon", detail)
        .remedy(format!("read the end of {}", log.display()))
}
