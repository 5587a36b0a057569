//! The process of the controller (`tidepool control run`). It attaches to the node, decides and
//! resizes until it is told to end; settings and reports go over the node's lease. The node starts
//! it by itself.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidepool_control::actuator::{Actuator, LeasedStore, TidepoolStore};
use tidepool_control::sensor::{Roots, Sensors};
use tidepool_control::{
    Governor, Handle, JournalFile, JournalOptions, LimitsFile, NodeLock, Priority, Record,
    limits_left, prepare_process, settings, start,
};
use tidepool_proto::{ByteSize, Error, Result};

use super::foreign;
use super::reporting::Reporter;
use crate::logging;

/// Time to the first report: a few decisions.
const FIRST_REPORT_AFTER: Duration = Duration::from_millis(100);
/// How often reports are made then.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The same while a ceiling of another store is leased: whoever leased it goes by what it holds.
const REPORT_LEASED_EVERY: Duration = Duration::from_millis(100);
/// Other stores that are not open by then are governed later: Tidepool's own store must not lose
/// its lease for them.
const OPENING_TIME: Duration = Duration::from_millis(300);
/// The same where limits are put back: each waits for a few answers at most.
const PUTTING_BACK_TIME: Duration = Duration::from_secs(2);
/// Bytes of one of the two parts of the log of decisions.
const JOURNAL_PART_BYTES: usize = 4 << 20;

/// What ends the wait for the next report.
enum Wake {
    SettingsChanged,
    End,
}

/// What a controller governs.
#[derive(Debug)]
pub struct ControllerOptions {
    /// Socket of the node.
    pub socket: PathBuf,
    /// Whether a user named that socket, and so means the node there, whichever user runs it.
    pub is_named: bool,
    /// Other stores to govern too, one `[[store]]` each (TOML).
    pub stores_file: Option<PathBuf>,
    /// Where to keep a log of decisions.
    pub journal: Option<PathBuf>,
}

/// Runs the controller until SIGTERM or SIGINT.
///
/// # Errors
/// `NodeUnavailable` where no node answers, `InUse` where another controller governs it.
pub fn run(options: &ControllerOptions) -> Result<()> {
    // Decisions must not wait for the reader of the log.
    let (writer, _writing) = logging::never_waits(std::io::stderr());
    // Fails only where something logs already.
    let _ = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).try_init();
    let socket = options.socket.as_path();
    let (sender, wakes) = channel();
    listen_to_signals(sender.clone())?;
    let owner = std::fs::metadata(socket).ok().map(|metadata| metadata.uid());
    let trusted = owner.filter(|_| options.is_named);
    // Before it attaches: a second controller must not take the store from the first. Without a
    // node there is nothing to lock, and attaching says so.
    let lock = owner.map(|_| NodeLock::take(&lock_path(socket), socket)).transpose()?;
    let store = Arc::new(TidepoolStore::attach(socket, trusted)?);
    let _lock = match lock {
        Some(lock) => lock,
        None => NodeLock::take(&lock_path(socket), socket)?,
    };
    store.on_settings(move || {
        // The receiver is gone only when the process is ending anyway.
        let _ = sender.send(Wake::SettingsChanged);
    });
    let mut notes = prepare_process();
    let others = foreign::open(options.stores_file.as_deref(), OPENING_TIME, &mut notes);
    let limits = LimitsFile::begin(&limits_path(socket), &others);
    if let Err(error) = limits.try_out() {
        tracing::error!("other stores keep their limits: {error}");
        notes.push(format!("other stores keep their limits: {error}"));
    }
    tell_orphans(&limits, &mut notes);
    let mut actuators: Vec<Arc<dyn Actuator>> = vec![store.clone()];
    let below = |it| Arc::new(LeasedStore::new(it, store.ceilings())) as Arc<dyn Actuator>;
    actuators.extend(others.into_iter().map(below));
    let (generation, text) = store.settings();
    let roots = Roots { store_process: store.node_process_id(), ..Roots::default() };
    let sensors = Box::new(Sensors::open(roots)?);
    let journal = options.journal.as_ref().map(|path| journal(path)).transpose()?;
    let parameters = settings::parameters(&text)?;
    let mut governor = Governor::new(sensors, actuators, parameters, journal)?;
    notes.into_iter().for_each(|note| governor.note(note));
    let mut reporter = Reporter::new();
    let handle = start(governor, Priority::Raised)?;
    follow(&wakes, &store, &handle, &mut reporter, generation);
    // No command comes after this.
    drop(handle);
    for failed in limits.put_back() {
        tracing::error!("not put back: {failed}");
    }
    Ok(())
}

/// Says which stores keep a limit of the control though it controls them no more.
fn tell_orphans(limits: &LimitsFile, notes: &mut Vec<String>) {
    let orphans = limits.orphans();
    if orphans.is_empty() {
        return;
    }
    let had = |(name, bytes): &(String, u64)| format!("`{name}` ({})", ByteSize(*bytes));
    let all = orphans.iter().map(had).collect::<Vec<_>>().join(", ");
    let note = format!(
        "stores that are controlled no more keep the limit that control set; add them again, or \
         give them back by hand what they had: {all}"
    );
    tracing::warn!("{note}");
    notes.push(note);
}

/// The lock of the controller of the node at `socket`. Nodes of one machine have a controller each:
/// they do not swing against each other, and at worst each gives back what one of them would have
/// had to.
pub fn lock_path(socket: &Path) -> PathBuf {
    beside(socket, ".control")
}

/// Limits of other stores that are to be put back.
pub fn limits_path(socket: &Path) -> PathBuf {
    beside(socket, ".limits")
}

fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

fn journal(path: &Path) -> Result<Box<dyn Record>> {
    let options = JournalOptions { part_bytes: JOURNAL_PART_BYTES, ..JournalOptions::at(path) };
    Ok(Box::new(JournalFile::start(options)?))
}

/// Puts back what a controller left that was killed at the node of `socket`, where none runs that
/// would: not while another one has the lock. Answers what failed, one line a store; `None` where
/// there was nothing to do.
pub fn put_back_left(socket: &Path, stores_file: &Path) -> Option<Vec<String>> {
    let path = limits_path(socket);
    if limits_left(&path).is_empty() {
        return None;
    }
    let _lock = NodeLock::take(&lock_path(socket), socket).ok()?;
    let mut failed = Vec::new();
    let others = foreign::open(Some(stores_file), PUTTING_BACK_TIME, &mut failed);
    failed.extend(LimitsFile::begin(&path, &others).put_back());
    Some(failed)
}

/// Takes new settings to the loop and reports to the node, until a signal comes.
fn follow(
    wakes: &Receiver<Wake>,
    store: &TidepoolStore,
    handle: &Handle,
    reporter: &mut Reporter,
    mut generation: u64,
) {
    let mut pause = FIRST_REPORT_AFTER;
    loop {
        let woken = match wakes.recv_timeout(pause) {
            Ok(Wake::SettingsChanged) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Ok(Wake::End) | Err(RecvTimeoutError::Disconnected) => return,
        };
        pause = match store.ceilings().is_any(Instant::now()) {
            true => REPORT_LEASED_EVERY,
            false => REPORT_EVERY,
        };
        let (present, text) = store.settings();
        if present != generation {
            generation = present;
            let taken = settings::parameters(&text).and_then(|it| handle.set_parameters(it));
            if let Err(error) = taken {
                tracing::error!("the settings stay as they are: {error}");
            }
        } else if woken {
            // Ceilings of other stores: they hold from the next decision on.
            handle.wake();
        }
        store.report(reporter.report(&handle.report()));
    }
}

fn listen_to_signals(wakes: Sender<Wake>) -> Result<()> {
    let failed = |source| Error::pfs("listening to signals", source);
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let listen = move || {
        if signals.forever().next().is_some() {
            // The receiver is gone only when the process is ending anyway.
            let _ = wakes.send(Wake::End);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
    Ok(())
}
