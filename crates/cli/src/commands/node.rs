//! `tidepool node stop|status|drain`: stops, examines and drains the daemon.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use tidepool_proto::admin::{AdminRequest, HandOnReport, Status};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::arguments::{DrainArguments, Facts, StopArguments};
use crate::busy::{User, users_of};
use crate::connection::Connection;
use tidepool_daemon::controller::{limits_left, limits_path};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::{interruption, output};

/// How often programs that use the mount are looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What keeps the node from ending is said this often.
const SAY_EVERY: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct StopReport {
    stopped: bool,
    process_id: u32,
    dirty_bytes_before: u64,
    /// Files of other nodes in burst buffers for which it answered: those that did not come to the
    /// PFS are on its disk.
    answered_for_before: u64,
    elapsed_ms: f64,
    /// Stores under control that did not get back the limit that they had before.
    limits_not_put_back: Vec<String>,
}

/// Runs `node stop`: waits for programs to leave the mount, has the node write back what is dirty,
/// and returns when its process is gone.
pub fn stop(arguments: &StopArguments) -> Result<Outcome> {
    let begun = Instant::now();
    let interrupted = interruption::watch()?;
    let node = arguments.socket.connect();
    let status = node.status()?;
    let process = open_process(status.process_id)?;
    if !arguments.force {
        wait_until_free(&status, Duration::from_secs(arguments.wait), &interrupted)?;
    }
    // In one request: where this process ends before it is answered, the node runs on as before.
    match drain_unless_interrupted(true, &node, &status, &interrupted) {
        // All that was dirty is durable, and the node may be gone before its answer is here.
        Err(error) if error.kind() == ErrorKind::NodeUnavailable => {}
        drained => drained?,
    }
    wait_for_end(&process, &status, Duration::from_secs(arguments.timeout), &interrupted)?;
    check_unmounted(&status)?;
    let socket = Path::new(&status.socket);
    let left = limits_left(socket);
    let report = StopReport {
        stopped: true,
        process_id: status.process_id,
        dirty_bytes_before: status.dirty_bytes + status.memory_only_bytes,
        answered_for_before: answered_for(&status),
        elapsed_ms: begun.elapsed().as_secs_f64() * 1e3,
        limits_not_put_back: left.iter().map(|(name, _)| name.clone()).collect(),
    };
    if arguments.json {
        output::json(&report)?;
    } else {
        let written = match report.dirty_bytes_before {
            0 => "nothing was left to write".to_owned(),
            bytes => format!("{} were written to the PFS first", output::size(bytes)),
        };
        output::line(&format!("node {} stopped; {written}", report.process_id));
    }
    if report.answered_for_before > 0 {
        output::note(&format!(
            "it answered for {} of other nodes: what of them the PFS does not have is on the disk \
             of its burst buffer, and comes to the PFS when it is started again",
            output::count(report.answered_for_before, "file")
        ));
    }
    for (name, limit_bytes) in &left {
        output::note(&format!(
            "warning: store `{name}` did not get its limit of {limit_bytes} bytes back; set it by \
             hand, or the next node at this socket puts it back when it stops ({})",
            limits_path(socket).display()
        ));
    }
    Ok(if left.is_empty() { Outcome::Done } else { Outcome::NotSo })
}

const STOPPING: &str = "stopping the node";
const DRAINING: &str = "draining the node";

fn interruption_of(operation: &str, what_now: impl Into<String>) -> Error {
    Error::new(ErrorKind::TimedOut, operation, "interrupted").remedy(what_now)
}

/// Has the node write back what is dirty and refuse new opens. Where that is interrupted the node
/// takes them again, unless it was drained before.
fn drain_unless_interrupted(
    stop: bool,
    node: &Connection,
    before: &Status,
    interrupted: &AtomicBool,
) -> Result<()> {
    let operation = if stop { STOPPING } else { DRAINING };
    let is_done = AtomicBool::new(false);
    let drained = std::thread::scope(|scope| {
        scope.spawn(|| say_what_hangs(node, before, &is_done));
        let drained = node.order_until(AdminRequest::Drain { stop }, interrupted);
        is_done.store(true, Ordering::Relaxed);
        drained
    });
    if drained? {
        return Ok(());
    }
    if before.draining {
        return Err(interruption_of(operation, "it was drained before, and stays so"));
    }
    let undone = node.order(AdminRequest::Resume, None).and_then(|()| node.status());
    Err(interruption_of(
        operation,
        match undone {
            Ok(status) if !status.draining => "it runs on and takes new opens again",
            _ if stop => {
                "`tidepool status` tells whether it ended before that; if it refuses \
                          new opens, `tidepool node drain --undo` ends that"
            }
            _ => "it may refuse new opens still: `tidepool node drain --undo` ends that",
        },
    ))
}

/// Says what the node waits for since it was asked, until that is done.
fn say_what_hangs(node: &Connection, before: &Status, is_done: &AtomicBool) {
    let mut asked = Instant::now();
    let mut said = before.degraded.clone();
    while !is_done.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_AGAIN / 4);
        if asked.elapsed() < SAY_EVERY {
            continue;
        }
        asked = Instant::now();
        let Ok(status) = node.status() else { return };
        let news = status.degraded.iter().filter(|note| !said.contains(note));
        news.for_each(|note| output::note(note));
        said.extend(status.degraded);
    }
}

fn open_process(process_id: u32) -> Result<OwnedFd> {
    let failed = |source: std::io::Error| {
        Error::pfs(format!("watching process {process_id} of the node"), source)
            .remedy("run this on the machine, and in the container, of the node")
    };
    let pid = i32::try_from(process_id).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| failed(std::io::ErrorKind::InvalidInput.into()))?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))
}

fn wait_until_free(status: &Status, patience: Duration, interrupted: &AtomicBool) -> Result<()> {
    let Some(mount) = status.mount.as_ref().map(PathBuf::from) else { return Ok(()) };
    let begun = Instant::now();
    let mut told = false;
    loop {
        let users: Vec<User> = users_of(&mount)
            .into_iter()
            .filter(|user| user.process_id != status.process_id)
            .collect();
        if users.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = users.iter().map(User::to_string).collect();
        if begun.elapsed() >= patience {
            let detail = format!("{} is used by {}", mount.display(), list.join(", "));
            return Err(Error::new(ErrorKind::InUse, STOPPING, detail)
                .remedy("end these programs, or add --force: their open files will fail"));
        }
        if !told {
            told = true;
            output::note(&format!("waiting for {} to leave {}", list.join(", "), mount.display()));
        }
        std::thread::sleep(LOOK_AGAIN);
        if interrupted.load(Ordering::Relaxed) {
            return Err(interruption_of(STOPPING, "it runs on as before"));
        }
    }
}

fn wait_for_end(
    process: &OwnedFd,
    status: &Status,
    patience: Duration,
    interrupted: &AtomicBool,
) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        if interrupted.load(Ordering::Relaxed) {
            let what_now = "it was told to stop, which cannot be undone: it ends by itself when \
                            its transfers are done; `tidepool node status` tells";
            return Err(interruption_of(STOPPING, what_now));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => break,
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(source) => return Err(Error::pfs("waiting for the node to end", source)),
        }
    }
    let detail = format!("process {} still runs", status.process_id);
    Err(Error::new(ErrorKind::TimedOut, "waiting for the node to end", detail)
        .remedy("look into its log; it ends by itself when its transfers are done"))
}

/// A node that may not unmount leaves a dead mount behind.
fn check_unmounted(status: &Status) -> Result<()> {
    let Some(mount) = &status.mount else { return Ok(()) };
    // Whatever lives there now is another node's.
    if !tidepool_fuse::is_stale(Path::new(mount)).unwrap_or(false) {
        return Ok(());
    }
    let detail = format!("the node has ended, but {mount} is still mounted and answers no more");
    Err(Error::new(ErrorKind::InUse, "unmounting", detail).remedy(format!(
        "unmount it as root: `umount --lazy {mount}`; a plain user's `fusermount3` needs /etc/mtab \
         for it, a link to /proc/self/mounts"
    )))
}

#[derive(Serialize)]
struct NodeReport {
    running: bool,
    process_id: u32,
    uptime_s: u64,
    pfs: String,
    mount: Option<String>,
    /// Whether the mount answers; absent without a mount.
    mount_answers: Option<bool>,
    /// It finishes what is unwritten and refuses new opens.
    draining: bool,
    socket: String,
}

/// Runs `node status`: whether the node answers, by socket and by mount.
pub fn status(facts: &Facts) -> Result<Outcome> {
    let status = facts.socket.connect().status()?;
    let mount_answers = status.mount.as_ref().map(|mount| std::fs::symlink_metadata(mount).is_ok());
    let report = NodeReport {
        running: true,
        process_id: status.process_id,
        uptime_s: status.uptime_s,
        pfs: status.pfs,
        mount: status.mount,
        mount_answers,
        draining: status.draining,
        socket: status.socket,
    };
    if facts.json {
        output::json(&report)?;
    } else {
        let mount = match (&report.mount, report.mount_answers) {
            (Some(mount), Some(true)) => format!("mounted at {mount}"),
            (Some(mount), _) => format!("its mount at {mount} does not answer"),
            (None, _) => "not mounted".to_owned(),
        };
        output::line(&format!(
            "node {} serves {} for {}, {mount}{}",
            report.process_id,
            report.pfs,
            output::duration(report.uptime_s),
            if report.draining { "; draining: it refuses new opens" } else { "" }
        ));
    }
    Ok(if mount_answers == Some(false) { Outcome::NotSo } else { Outcome::Done })
}

#[derive(Serialize)]
struct DrainReport {
    /// What other nodes took over; absent where they were not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    handed_on: Option<HandOnReport>,
    draining: bool,
    dirty_bytes: u64,
    memory_only_bytes: u64,
}

/// Runs `node drain`.
pub fn drain(arguments: &DrainArguments) -> Result<Outcome> {
    let facts = &arguments.facts;
    let node = facts.socket.connect();
    if arguments.undo {
        node.order(AdminRequest::Resume, None)?;
        return report_drain(&node.status()?, None, facts.json, "new opens are taken again");
    }
    let interrupted = interruption::watch()?;
    drain_unless_interrupted(false, &node, &node.status()?, &interrupted)?;
    let handed_on = match arguments.hand_on {
        Some(seconds) => node.hand_on_until(Duration::from_secs(seconds), &interrupted)?,
        None => None,
    };
    let status = node.status()?;
    report_drain(&status, handed_on, facts.json, &drained_words(&status))
}

/// Files of other nodes in burst buffers that it would bring to the PFS.
fn answered_for(status: &Status) -> u64 {
    status.cluster.as_ref().map_or(0, |cluster| cluster.copies.answered_for)
}

/// That it is drained, and what its burst buffer has for others.
fn drained_words(status: &Status) -> String {
    let refused = "new opens are refused until `node drain --undo`";
    match answered_for(status) {
        0 => format!("drained: all data is on the PFS, {refused}"),
        files => format!(
            "drained: all data of this node is on the PFS, {refused}; {} of other nodes stay on \
             the disk of its burst buffer (`tidepool status --owed`)",
            output::count(files, "file")
        ),
    }
}

/// What the others took over, in words.
fn handed_on_words(report: &HandOnReport) -> String {
    let HandOnReport { held_bytes, resident_bytes, nodes, errors, elapsed_ms, .. } = report;
    let first = errors.first().map(|why| format!("; {why}")).unwrap_or_default();
    format!(
        "{} of {} in memory are at {} now, after {:.1} s{first}",
        output::size(*resident_bytes),
        output::size(*held_bytes),
        output::count(*nodes, "other node"),
        *elapsed_ms as f64 / 1e3
    )
}

fn report_drain(
    status: &Status,
    handed_on: Option<HandOnReport>,
    json: bool,
    done: &str,
) -> Result<Outcome> {
    let report = DrainReport {
        handed_on,
        draining: status.draining,
        dirty_bytes: status.dirty_bytes,
        memory_only_bytes: status.memory_only_bytes,
    };
    let dirty_bytes = report.dirty_bytes + report.memory_only_bytes;
    let is_done = dirty_bytes == 0 || !report.draining;
    if json {
        output::json(&report)?;
    } else if is_done {
        output::line(done);
        report.handed_on.iter().for_each(|it| output::line(&handed_on_words(it)));
    } else {
        output::line(&format!("{} of data are still dirty", output::size(dirty_bytes)));
    }
    Ok(if is_done { Outcome::Done } else { Outcome::NotSo })
}
