//! `tidepool control run`: the controller. It attaches to the node, decides and resizes until it
//! is told to end; settings and reports go over the node's lease. The node starts it by itself.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidepool_control::actuator::{Actuator, TidepoolStore};
use tidepool_control::sensor::{Roots, Sensors};
use tidepool_control::{Governor, Handle, Priority, prepare_process, settings, start};
use tidepool_proto::{Error, Result};

use super::arguments::RunArguments;
use super::reporting::Reporter;
use crate::exit::Outcome;

/// How often settings are looked at and reports are made.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// Runs the controller until SIGTERM or SIGINT.
pub fn run(arguments: &RunArguments) -> Result<Outcome> {
    // A node that has a subscriber of its own does not come here.
    let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).try_init();
    let socket = arguments.socket.path();
    let ends = listen_to_signals()?;
    // Whoever names a socket means the node there, whichever user runs it.
    let owner = std::fs::metadata(&socket).ok().map(|metadata| metadata.uid());
    let trusted = owner.filter(|_| arguments.socket.socket.is_some());
    let store = Arc::new(TidepoolStore::attach(&socket, trusted)?);
    let (generation, text) = store.settings();
    let roots = Roots { store_process: store.node_process_id(), ..Roots::default() };
    let sensors = Box::new(Sensors::open(roots)?);
    let actuators: Vec<Arc<dyn Actuator>> = vec![store.clone()];
    let mut governor = Governor::new(sensors, actuators, settings::parameters(&text)?, None)?;
    prepare_process().into_iter().for_each(|note| governor.note(note));
    let mut reporter = Reporter::new();
    let handle = start(governor, Priority::Raised)?;
    follow(&ends, &store, &handle, &mut reporter, generation);
    Ok(Outcome::Done)
}

/// Takes new settings to the loop and reports to the node, until a signal comes.
fn follow(
    ends: &Receiver<()>,
    store: &TidepoolStore,
    handle: &Handle,
    reporter: &mut Reporter,
    mut generation: u64,
) {
    while let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(REPORT_EVERY) {
        let (present, text) = store.settings();
        if present != generation {
            generation = present;
            match settings::parameters(&text) {
                Ok(parameters) => handle.set_parameters(parameters),
                Err(error) => tracing::error!("the settings stay as they are: {error}"),
            }
        }
        store.report(reporter.report(&handle.report()));
    }
}

fn listen_to_signals() -> Result<Receiver<()>> {
    let failed = |source| Error::pfs("listening to signals", source);
    let (sender, ends) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let listen = move || {
        // The receiver is gone only when the process is ending anyway.
        if signals.forever().next().is_some() {
            let _ = sender.send(());
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
    Ok(ends)
}
