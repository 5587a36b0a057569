//! Becoming a daemon: the program starts itself again in a session of its own and hears through a
//! pipe whether the node serves. Nothing is forked after threads exist.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, NodeConfig, Result};

use super::start::default_log_file;
use super::summary::Summary;

/// What the daemon tells the program that started it.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Ready(Box<Summary>),
    Failed { kind: ErrorKind, operation: String, detail: String, remedy: Option<String> },
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
        let mut detail = error.detail().to_owned();
        if let Some(source) = std::error::Error::source(error) {
            let separator = if detail.is_empty() { "" } else { ": " };
            detail = format!("{detail}{separator}{source}");
        }
        self.send(&Message::Failed {
            kind: error.kind(),
            operation: error.operation().to_owned(),
            detail,
            remedy: error.remedy_text().map(str::to_owned),
        });
    }

    fn send(&self, message: &Message) {
        let mut line = serde_json::to_vec(message).expect("plain structures become JSON");
        line.push(b'\n');
        // Nobody may be listening any more; the log has the same facts.
        let _ = (&self.pipe).write_all(&line);
    }
}

/// Starts this program again as a daemon and waits until its node serves or fails.
pub fn spawn(config: &NodeConfig) -> Result<Summary> {
    let log_file = config.log_file.clone().unwrap_or_else(|| default_log_file(&config.socket));
    let log = open_log(&log_file)?;
    let failed = |source| Error::pfs("starting the daemon", source);
    let (listen, report) = std::io::pipe().map_err(failed)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("tidepool")
        .args(std::env::args_os().skip(1))
        .arg("--foreground=true")
        .arg(format!("--ready-descriptor={}", report.as_raw_fd()))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log);
    if config.log_file.is_none() {
        let mut flag = std::ffi::OsString::from("--log-file=");
        flag.push(&log_file);
        command.arg(flag);
    }
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
    let child = command.spawn().map_err(failed)?;
    drop(report);
    listen_until_ready(listen, child, &log_file)
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path).map_err(|source| {
        Error::pfs(format!("opening the log {}", path.display()), source)
            .remedy("name another file by --log-file")
    })
}

fn listen_until_ready(mut pipe: PipeReader, mut child: Child, log: &Path) -> Result<Summary> {
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    while !text.ends_with(b"\n") {
        match pipe.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::pfs("waiting for the daemon", source)),
        }
    }
    match serde_json::from_slice(&text) {
        Ok(Message::Ready(summary)) => Ok(*summary),
        Ok(Message::Failed { kind, operation, detail, remedy }) => {
            // It ends by itself; waiting for it leaves no half-stopped node behind.
            let _ = child.wait();
            let error = Error::new(kind, operation, detail);
            Err(match remedy {
                Some(remedy) => error.remedy(remedy),
                None => error,
            })
        }
        Err(_) => {
            let status = child.wait().map(|status| status.to_string());
            let status = status.unwrap_or_else(|error| error.to_string());
            let detail = format!("the daemon ended before it served ({status})");
            Err(Error::new(ErrorKind::Internal, "starting the daemon", detail)
                .remedy(format!("read the end of {}", log.display())))
        }
    }
}
