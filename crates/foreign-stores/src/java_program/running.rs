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
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Of what it says beside its answers, only the end is kept.
const SAID_LINES_MAX: usize = 20;
const SAID_LINE_BYTES_MAX: usize = 300;
/// No answer is as long. Whoever says more in a line says something else.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Answers that nobody asked for yet; a program with more has to wait.
const ANSWERS_MAX: usize = 64;
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

impl Life {
    fn say(&self, text: String) {
        let mut said = self.said.lock();
        if said.len() == SAID_LINES_MAX {
            said.pop_front();
        }
        said.push_back(text);
    }
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
    let (lines, of_caller) = sync_channel(ANSWERS_MAX);
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
    hand_on(&mut BufReader::new(output), &lines, life);
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

/// Hands on its answers until it ends, says what no program of ours says, or nobody hears it.
fn hand_on(output: &mut impl BufRead, lines: &SyncSender<String>, life: &Life) {
    let mut line = Vec::new();
    while let Ok(Some(bytes)) = read_line(output, &mut line, ANSWER_BYTES_MAX) {
        if bytes > ANSWER_BYTES_MAX {
            return life.say(format!("it said a line of {bytes} bytes, which is no answer"));
        }
        let Ok(text) = str::from_utf8(&line) else {
            return life.say("it said a line that is no text".to_owned());
        };
        if lines.send(text.trim_end_matches('\r').to_owned()).is_err() {
            return;
        }
    }
}

fn listen(errors: impl Read, life: &Life) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    while let Ok(Some(_)) = read_line(&mut errors, &mut line, SAID_LINE_BYTES_MAX) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        tracing::debug!("a Java program says: {text}");
        life.say(text);
    }
    life.is_told.store(true, Ordering::Release);
}

/// Reads a line into `line`, of which no more than so many bytes are kept: one that never ends
/// costs no memory. Returns how long it is without its end, and nothing where all is read.
fn read_line(
    from: &mut impl BufRead,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> std::io::Result<Option<usize>> {
    line.clear();
    let (mut bytes, mut is_any) = (0, false);
    loop {
        let came = match from.fill_buf() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            came => came?,
        };
        if came.is_empty() {
            return Ok(is_any.then_some(bytes));
        }
        is_any = true;
        let end = came.iter().position(|byte| *byte == b'\n');
        let part = &came[..end.unwrap_or(came.len())];
        line.extend_from_slice(&part[..part.len().min(bytes_max - line.len())]);
        bytes += part.len();
        let used = part.len() + usize::from(end.is_some());
        from.consume(used);
        if end.is_some() {
            return Ok(Some(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_line_no_more_is_kept_than_it_may_have() {
        let text = b"ab\n\nabcdef\r\nabcdefgh\nend";
        // As it comes from a pipe: in parts that end anywhere.
        let mut from = BufReader::with_capacity(3, &text[..]);
        let mut line = Vec::new();
        let mut next = || {
            let bytes = read_line(&mut from, &mut line, 4).unwrap();
            bytes.map(|bytes| (bytes, String::from_utf8(line.clone()).unwrap()))
        };
        let read: Vec<_> = std::iter::from_fn(&mut next).collect();
        let expected = [(2, "ab"), (0, ""), (7, "abcd"), (8, "abcd"), (3, "end")];
        assert_eq!(read, expected.map(|(bytes, text)| (bytes, text.to_owned())));
    }

    #[test]
    fn a_line_that_never_ends_is_no_answer_and_costs_no_memory() {
        let (lines, of_caller) = sync_channel(ANSWERS_MAX);
        let life = Life::default();
        let endless = std::io::repeat(b'x').take(100 * ANSWER_BYTES_MAX as u64);
        let mut output = BufReader::new(b"1 done 5\n".chain(endless));
        hand_on(&mut output, &lines, &life);
        drop(lines);
        assert_eq!(of_caller.iter().collect::<Vec<_>>(), ["1 done 5"]);
        assert!(life.said.lock()[0].contains("no answer"), "{:?}", life.said.lock());
    }
}
