//! The log of decisions on disk: two parts of bounded size, written by a thread of its own. The
//! loop hands decisions over and never waits: what the disk cannot take is left out, and said
//! once. Decides nothing about the form of the log, which is that of `JournalWriter`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::OFlags;
use tidepool_control_policy::{Decision, JournalBytes, JournalWriter, Parameters, Snapshot};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::copy;
use crate::governor::{Record, before_the_first};

/// Decisions that wait for the disk at most: two seconds and a half of the shortest usual interval.
const WAITING_MAX: usize = 256;
/// The longest time after which a decision is on its way to the disk.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Where the log is and how long it may become.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// The present part; the one before has `.1` behind its name.
    pub path: PathBuf,
    /// Bytes of a part; the log takes at most twice as many.
    pub part_bytes: usize,
    /// After a failed write, time until the next attempt.
    pub retry: Duration,
}

impl JournalOptions {
    /// A log at `path` of at most 16 MiB.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        JournalOptions { path: path.into(), part_bytes: 8 << 20, retry: Duration::from_secs(10) }
    }

    /// Where the older part is.
    pub fn older(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".1");
        PathBuf::from(name)
    }
}

/// A log on disk. What waits is written when it is dropped.
pub struct JournalFile {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// Decisions on their way; their memory is used again.
#[derive(Default)]
struct Waiting {
    entries: Vec<Entry>,
    used: usize,
    /// Decisions that found no room since the last write.
    lost: bool,
    closed: bool,
    notice: Option<String>,
}

#[derive(Clone)]
struct Entry {
    snapshot: Snapshot,
    parameters: Parameters,
    decision: Decision,
}

impl Default for Entry {
    fn default() -> Self {
        let decision = before_the_first();
        Entry { snapshot: Snapshot::default(), parameters: Parameters::default(), decision }
    }
}

impl JournalFile {
    /// Starts a log. What is at the path already becomes the older part with the first decision.
    ///
    /// # Errors
    ///
    /// `LimitReached` where the system gives no thread. A disk that cannot be written is no error:
    /// see [`Record::notice`].
    pub fn start(options: JournalOptions) -> Result<Self> {
        let waiting =
            Waiting { entries: vec![Entry::default(); WAITING_MAX], ..Waiting::default() };
        let shared = Arc::new(Shared { waiting: Mutex::new(waiting), changed: Condvar::new() });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || write_all(&theirs, Part::new(options)))
            .map_err(|error| {
                Error::new(ErrorKind::LimitReached, "starting the log of decisions", "no thread")
                    .caused_by(error)
                    .remedy("raise the limit of tasks (ulimit -u)")
            })?;
        Ok(JournalFile { shared, thread: Some(thread) })
    }
}

impl Record for JournalFile {
    fn record(&mut self, snapshot: &Snapshot, parameters: &Parameters, decision: &Decision) {
        let mut waiting = self.shared.waiting.lock();
        let used = waiting.used;
        let Some(entry) = waiting.entries.get_mut(used) else {
            waiting.lost = true;
            return;
        };
        copy::snapshot(snapshot, &mut entry.snapshot);
        copy::decision(decision, &mut entry.decision);
        entry.parameters.clone_from(parameters);
        waiting.used += 1;
        if waiting.used == WAITING_MAX / 2 {
            self.shared.changed.notify_one();
        }
    }

    fn notice(&mut self) -> Option<String> {
        self.shared.waiting.lock().notice.take()
    }
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        self.shared.waiting.lock().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_all(shared: &Shared, mut part: Part) {
    let mut taken = vec![Entry::default(); WAITING_MAX];
    loop {
        let mut waiting = shared.waiting.lock();
        if !waiting.closed && waiting.used < WAITING_MAX / 2 {
            shared.changed.wait_for(&mut waiting, WRITE_EVERY);
        }
        std::mem::swap(&mut waiting.entries, &mut taken);
        let used = std::mem::take(&mut waiting.used);
        let lost = std::mem::take(&mut waiting.lost);
        let closed = waiting.closed;
        drop(waiting);
        let notice = part.take(&taken[..used]);
        if lost {
            part.writer.begin_part();
        }
        if notice.is_some() {
            shared.waiting.lock().notice = notice;
        }
        if closed {
            return;
        }
    }
}

/// The part that is written now.
struct Part {
    options: JournalOptions,
    writer: JournalWriter,
    file: Option<File>,
    /// Bytes of whole entries in the file.
    length: u64,
    /// No attempt before this time; set while the disk fails.
    failing: Option<Instant>,
    /// A disk that is full now and then is said once.
    told: bool,
}

impl Part {
    fn new(options: JournalOptions) -> Self {
        let writer = JournalWriter::new(options.part_bytes);
        Part { options, writer, file: None, length: 0, failing: None, told: false }
    }

    /// Writes the decisions. Answers what to tell, once in its life.
    fn take(&mut self, entries: &[Entry]) -> Option<String> {
        if self.failing.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let mut result = Ok(());
        let mut pending = Vec::new();
        for entry in entries {
            match self.writer.write(&entry.snapshot, &entry.parameters, &entry.decision) {
                Ok(JournalBytes::Append(bytes)) => pending.extend(bytes),
                Ok(JournalBytes::Begin(bytes)) => {
                    result = result.and_then(|()| self.append(&std::mem::take(&mut pending)));
                    result = result.and_then(|()| self.begin());
                    pending.extend(bytes);
                }
                Err(error) => return Some(error.to_string()),
            }
        }
        match result.and_then(|()| self.append(&pending)) {
            Ok(()) => {
                if !entries.is_empty() {
                    self.failing = None;
                }
                None
            }
            Err(error) => self.fail(&error),
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        self.file = None;
        self.length = 0;
        match std::fs::rename(&self.options.path, self.options.older()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.file = Some(create(&self.options.path)?);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let file = self.file.as_mut().ok_or_else(|| io::Error::other("the log is not open"))?;
        file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Leaves whole entries behind and begins a new part at the next attempt.
    fn fail(&mut self, error: &io::Error) -> Option<String> {
        if let Some(file) = self.file.take() {
            let _ = file.set_len(self.length);
        }
        self.writer.begin_part();
        self.failing = Some(Instant::now() + self.options.retry);
        let path = self.options.path.display();
        let retry = self.options.retry.as_secs();
        (!std::mem::replace(&mut self.told, true)).then(|| {
            format!("decisions are not logged: {path}: {error}; tried again every {retry} s")
        })
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o640)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}
