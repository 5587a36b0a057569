//! Structured logs: text or JSON, to standard error or a file; the level changes while running.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Mutex;

use tidepool_proto::config::{LogFormat, LogLevel};
use tidepool_proto::{Error, ErrorKind, NodeConfig, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// Changes the level of the running log.
pub struct LevelHandle(reload::Handle<LevelFilter, Registry>);

impl LevelHandle {
    /// Logs from `level` on.
    pub fn set(&self, level: LogLevel) {
        // Fails only when the log is gone, at the end of the process.
        let _ = self.0.reload(filter(level));
    }
}

/// Starts the log that `config` wants.
pub fn start(config: &NodeConfig) -> Result<LevelHandle> {
    let writer = match &config.log_file {
        None => BoxMakeWriter::new(std::io::stderr),
        Some(path) => {
            let opened = OpenOptions::new().append(true).create(true).mode(0o640).open(path);
            let file = opened.map_err(|source| {
                Error::pfs(format!("opening the log {}", path.display()), source)
                    .remedy("name another file by --log-file")
            })?;
            BoxMakeWriter::new(Mutex::new(file))
        }
    };
    let (level, handle) = reload::Layer::new(filter(config.log_level));
    let form = fmt::layer().with_writer(writer).with_ansi(false);
    let form: Box<dyn Layer<_> + Send + Sync> = match config.log_format {
        LogFormat::Text => form.boxed(),
        LogFormat::Json => form.json().boxed(),
    };
    let started = tracing_subscriber::registry().with(level).with(form).try_init();
    started
        .map_err(|error| Error::new(ErrorKind::Internal, "starting the log", error.to_string()))?;
    log_panics();
    Ok(LevelHandle(handle))
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
