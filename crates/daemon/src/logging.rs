//! Structured logs: text or JSON, to standard error or a file; the level changes while running.
//!
//! A thread of its own writes the lines: a disk that stalls or a reader of standard error that
//! sleeps must not hold up the threads that log. Lines that it cannot take in are dropped and
//! counted.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tidepool_proto::config::{LogFormat, LogLevel};
use tidepool_proto::{Error, ErrorKind, NodeConfig, Result};
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::place::open_log;

/// Lines that wait for the writing thread.
const LINES_WAITING_MAX: usize = 8192;

/// The running log: changes its level, and writes what waits when it is dropped.
pub struct Log {
    level: reload::Handle<LevelFilter, Registry>,
    dropped: ErrorCounter,
    file: Option<LogFile>,
    _writing: WorkerGuard,
}

/// The file of the log, which may be moved away and recreated while it is written.
#[derive(Clone)]
struct LogFile {
    path: PathBuf,
    socket: PathBuf,
    file: Arc<Mutex<File>>,
}

impl LogFile {
    fn open(path: &Path, socket: &Path) -> Result<LogFile> {
        let file = Arc::new(Mutex::new(open_log(path, socket)?));
        Ok(LogFile { path: path.to_owned(), socket: socket.to_owned(), file })
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.lock().flush()
    }
}

impl Log {
    /// Opens the file anew, after it was moved away. The old one goes on where that fails.
    pub fn reopen(&self) -> Result<()> {
        if let Some(log) = &self.file {
            let file = open_log(&log.path, &log.socket)?;
            *log.file.lock() = file;
        }
        Ok(())
    }

    /// Logs from `level` on.
    pub fn set_level(&self, level: LogLevel) {
        // Fails only when the log is gone, at the end of the process.
        let _ = self.level.reload(filter(level));
    }

    /// Lines that were lost because they could not be written in time.
    pub fn dropped_lines(&self) -> usize {
        self.dropped.dropped_lines()
    }
}

/// A writer that never waits. What waits for its thread is written when the guard is dropped.
pub fn never_waits(writer: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .buffered_lines_limit(LINES_WAITING_MAX)
        .lossy(true)
        .thread_name("log")
        .finish(writer)
}

/// Starts the log that `config` wants.
pub fn start(config: &NodeConfig) -> Result<Log> {
    let path = config.log_file.as_ref();
    let file = path.map(|path| LogFile::open(path, &config.socket)).transpose()?;
    let (writer, writing) = match &file {
        None => never_waits(std::io::stderr()),
        Some(file) => never_waits(file.clone()),
    };
    let (level, handle) = reload::Layer::new(filter(config.log_level));
    let dropped = writer.error_counter();
    let form = fmt::layer().with_writer(writer).with_ansi(false);
    let form: Box<dyn Layer<_> + Send + Sync> = match config.log_format {
        LogFormat::Text => form.boxed(),
        LogFormat::Json => form.json().boxed(),
    };
    let started = tracing_subscriber::registry().with(level).with(form).try_init();
    started
        .map_err(|error| Error::new(ErrorKind::Internal, "starting the log", error.to_string()))?;
    log_panics();
    Ok(Log { level: handle, dropped, file, _writing: writing })
}

/// A panic goes to the log like everything else, with its place.
fn log_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let message = text.unwrap_or("no message");
        tracing::error!(thread, place, "panicked: {message}");
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            print(panic);
        }
    }));
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
