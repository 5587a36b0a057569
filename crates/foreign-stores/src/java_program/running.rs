//! One process of the program: its lines, its last words, its end.
//!
//! A thread of its own starts it and reads what it says, for as long as it lives: the kernel ends
//! the process with the thread that started it, and nobody else waits for a pipe.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Of what it says beside its answers, only the end is kept.
const SAID_LINES_MAX: usize = 20;
const SAID_LINE_BYTES_MAX: usize = 300;
/// Its last words come by a pipe of their own.
const LAST_WORDS_TIME: Duration = Duration::from_millis(500);

/// Why there is no line.
pub enum Silence {
    /// It ended.
    Ended,
    /// Nothing for so long.
    Still(Duration),
}

/// A process; killed when dropped.
pub struct Running {
    /// Whether it has found the store.
    pub is_ready: bool,
    process: OwnedFd,
    input: ChildStdin,
    lines: Receiver<String>,
    life: Arc<Life>,
    /// Since when an answer is owed.
    silent_since: Option<Instant>,
}

#[derive(Default)]
struct Life {
    is_over: AtomicBool,
    /// Its errors were read to their end.
    is_told: AtomicBool,
    said: Mutex<VecDeque<String>>,
}

impl Running {
    /// Starts the command.
    pub fn start(store: &str, command: &[String]) -> std::io::Result<Running> {
        let life = Arc::new(Life::default());
        let (started, first) = channel();
        let (of_thread, command) = (Arc::clone(&life), command.to_vec());
        let name = format!("java-{store}");
        std::thread::Builder::new()
            .name(name)
            .spawn(move || live(&command, &of_thread, &started))?;
        let ended = || std::io::Error::other("its thread ended");
        let (process, input, lines) = first.recv().map_err(|_| ended())??;
        let silent_since = Some(Instant::now());
        Ok(Running { is_ready: false, process, input, lines, life, silent_since })
    }

    /// Whether it has not ended. Never waits.
    pub fn is_alive(&self) -> bool {
        !self.life.is_over.load(Ordering::Acquire)
    }

    /// Sends a line. Answers whether it took it.
    pub fn say(&mut self, line: &str) -> bool {
        self.silent_since.get_or_insert_with(Instant::now);
        self.input.write_all(format!("{line}\n").as_bytes()).is_ok()
    }

    /// Its next line.
    pub fn hear(&mut self, deadline: Instant) -> Result<String, Silence> {
        let patience = deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(patience) {
            Ok(line) => {
                self.silent_since = None;
                Ok(line)
            }
            Err(RecvTimeoutError::Disconnected) => Err(Silence::Ended),
            Err(RecvTimeoutError::Timeout) => {
                Err(Silence::Still(self.silent_since.map_or(Duration::ZERO, |at| at.elapsed())))
            }
        }
    }

    /// What it said at its end, without the indented lines of a stack trace.
    pub fn last_words(self) -> String {
        let until = Instant::now() + LAST_WORDS_TIME;
        while !self.life.is_told.load(Ordering::Acquire) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = self.life.said.lock();
        let says = |line: &&String| !line.trim().is_empty() && !line.starts_with('\t');
        let mut lines: Vec<&str> =
            said.iter().rev().filter(says).take(3).map(String::as_str).collect();
        lines.reverse();
        lines.join("; ")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }
}

type Started = std::io::Result<(OwnedFd, ChildStdin, Receiver<String>)>;

/// The life of one process: started, read, collected.
fn live(command: &[String], life: &Arc<Life>, started: &Sender<Started>) {
    let mut child = match spawn(command) {
        Ok(child) => child,
        Err(error) => return drop(started.send(Err(error))),
    };
    let (Some(input), Some(output), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return;
    };
    let (lines, of_caller) = channel();
    let process = Pid::from_raw(child.id() as i32).ok_or_else(|| std::io::Error::other("no id"));
    let process = process.and_then(|id| Ok(pidfd_open(id, PidfdFlags::empty())?));
    let failed = process.is_err();
    if started.send(process.map(|process| (process, input, of_caller))).is_err() || failed {
        let _ = child.kill();
    }
    let of_errors = Arc::clone(life);
    let listening = std::thread::Builder::new()
        .name("java-errors".into())
        .spawn(move || listen(errors, &of_errors));
    for line in BufReader::new(output).lines() {
        // Nobody hears it any more.
        let Ok(line) = line else { break };
        if lines.send(line).is_err() {
            break;
        }
    }
    life.is_over.store(true, Ordering::Release);
    let _ = child.kill();
    let _ = child.wait();
    drop(lines);
    drop(listening);
}

fn spawn(command: &[String]) -> std::io::Result<Child> {
    let mut words = command.iter();
    let mut command = Command::new(words.next().map_or("java", String::as_str));
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Signals of a terminal are for this process, which ends the other.
    command.process_group(0);
    let prepare = || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        Ok(())
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn()?;
    // A virtual machine is large, and must not inherit that this process is never killed.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "0");
    Ok(child)
}

fn listen(errors: impl Read, life: &Life) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    while errors.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        line.truncate(SAID_LINE_BYTES_MAX);
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        let mut said = life.said.lock();
        if said.len() == SAID_LINES_MAX {
            said.pop_front();
        }
        tracing::debug!("a Java program says: {text}");
        said.push_back(text);
        line.clear();
    }
    life.is_told.store(true, Ordering::Release);
}
