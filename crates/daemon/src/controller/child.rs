//! The memory controller as a child of the node: started where it is wanted, started again when it
//! ends, replaced when it hangs. It decides nothing; the node's lease guards the store meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tidepool_node::Node;
use tidepool_proto::control::ControlStatus;
use tidepool_proto::{Error, NodeConfig, Result};

use super::{lock_path, put_back_left};

/// How often a living controller is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Leases without a word, the first included, after which a controller that still runs is
/// replaced.
const LEASES_OF_SILENCE_MAX: u64 = 10;
/// Time that a controller has to end by itself.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The same where it has to put limits back: a server that hangs is given up after some answers
/// that did not come.
const END_PATIENCE_WITH_STORES: Duration = Duration::from_secs(12);
/// Time beyond a lease that a controller has from its start to its first word: a busy machine may
/// take a while to start a program.
const START_PATIENCE: Duration = Duration::from_secs(4);
/// Pause before it is started again: doubled each time, back to the first after a minute of life.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(10);
const LONG_LIFE: Duration = Duration::from_secs(60);

/// Keeps a controller running for as long as it is wanted.
pub struct Controller {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    socket: PathBuf,
    stores_file: Option<PathBuf>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: bool,
    ending: bool,
    starts: u64,
    /// Of the child that runs.
    process: Option<Arc<OwnedFd>>,
    trouble: Option<String>,
}

impl Controller {
    /// For a node with `config`; nothing runs until [`Controller::want`].
    pub fn new(config: &NodeConfig) -> Controller {
        let (socket, stores_file) = (config.socket.clone(), config.control.stores_file.clone());
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { socket, stores_file, state, changed });
        Controller { shared, thread: Mutex::new(None) }
    }

    /// Starts or ends the controller. Returns when an unwanted one is gone.
    pub fn want(&self, wanted: bool, node: &Arc<Node>) -> Result<()> {
        self.shared.state.lock().wanted = wanted;
        self.shared.changed.notify_all();
        if !wanted {
            self.shared.end_child();
            self.shared.put_back_left();
            return Ok(());
        }
        // Whatever becomes of the child: the store must not wait for it at full size.
        node.expect_controller()?;
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (shared, node) = (self.shared.clone(), Arc::downgrade(node));
            let look = move || node.upgrade();
            let builder = std::thread::Builder::new().name("controller".into());
            let spawned = builder.spawn(move || shared.keep_running(&look));
            let failed = |source| Error::pfs("starting the memory controller", source);
            *thread = Some(spawned.map_err(failed)?);
        }
        Ok(())
    }

    /// Waits until a controller governs `node`; whether one does in time. Where it is wanted, that
    /// is the time a program takes to start.
    pub fn wait_until_it_governs(&self, node: &Node) -> bool {
        let lease = Duration::from_millis(node.control_status().lease_ms);
        node.wait_for_controller(lease + START_PATIENCE)
    }

    /// Adds what is known here to the status of the control.
    pub fn describe(&self, status: &mut ControlStatus) {
        let state = self.shared.state.lock();
        status.enabled = state.wanted;
        status.restarts = state.starts.saturating_sub(1);
        status.warnings.extend(state.trouble.clone());
    }

    /// Ends the controller for good.
    pub fn stop(&self) {
        {
            let mut state = self.shared.state.lock();
            (state.wanted, state.ending) = (false, true);
        }
        self.shared.changed.notify_all();
        self.shared.end_child();
        let ran = self.thread.lock().take().map(JoinHandle::join).is_some();
        if self.shared.put_back_left() || ran {
            // Nobody else controls a node that ends; where the file stays, it does no harm.
            let _ = std::fs::remove_file(lock_path(&self.shared.socket));
        }
    }
}

impl Shared {
    fn keep_running(&self, node: &dyn Fn() -> Option<Arc<Node>>) {
        let mut pause = PAUSE_FIRST;
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| !state.wanted && !state.ending);
            if state.ending {
                return;
            }
            drop(state);
            let begun = Instant::now();
            let ended = self.run_child(node);
            if begun.elapsed() > LONG_LIFE {
                pause = PAUSE_FIRST;
            }
            let mut state = self.state.lock();
            state.process = None;
            if state.ending || !state.wanted {
                continue;
            }
            tracing::error!(%ended, ?pause, "the memory controller ended and is started again");
            state.trouble = Some(format!("the controller ended ({ended}) and is started again"));
            self.changed.wait_while_for(&mut state, |state| state.wanted && !state.ending, pause);
            pause = (pause * 2).min(PAUSE_LAST);
        }
    }

    /// Runs one controller to its end, in words.
    fn run_child(&self, node: &dyn Fn() -> Option<Arc<Node>>) -> String {
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => return error.to_string(),
        };
        let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let process = process.and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
        match process.map(Arc::new) {
            Some(process) => {
                let mut state = self.state.lock();
                state.starts += 1;
                state.process = Some(process.clone());
                let unwanted = !state.wanted;
                drop(state);
                if unwanted {
                    send(&process, Signal::TERM);
                }
                self.watch_child(child.id(), &process, node);
            }
            // One that cannot be watched could hang unseen.
            None => drop(child.kill()),
        }
        let ended = child.wait();
        if let Some(node) = node() {
            node.controller_ended(child.id());
        }
        ended.map_or_else(|error| error.to_string(), |status| status.to_string())
    }

    /// Returns when the child has ended; kills it where it never attaches, or falls silent.
    fn watch_child(&self, id: u32, process: &OwnedFd, node: &dyn Fn() -> Option<Arc<Node>>) {
        let begun = Instant::now();
        let mut attached = false;
        while !has_ended(process, LOOK_EVERY) {
            let Some(status) = node().map(|node| node.control_status()) else { continue };
            let is_its_own = status.process_id == Some(id);
            attached |= is_its_own;
            if is_its_own && status.lease == "governed" {
                self.state.lock().trouble = None;
            }
            let silent_ms = match attached {
                true => status.silent_ms.filter(|_| is_its_own && status.lease == "expired"),
                false => u64::try_from(begun.elapsed().as_millis()).ok(),
            };
            if silent_ms > Some(LEASES_OF_SILENCE_MAX * status.lease_ms) {
                tracing::error!(process_id = id, attached, "the memory controller hangs");
                send(process, Signal::KILL);
            }
        }
    }

    /// This program again, as a controller that does not outlive the node.
    fn spawn(&self) -> Result<Child> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tidepool").args(["control", "run", "--socket"]).arg(&self.socket);
        let mut journal = self.socket.clone().into_os_string();
        journal.push(".decisions");
        command.arg("--journal").arg(journal);
        if let Some(file) = &self.stores_file {
            command.arg("--stores").arg(file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let prepare = || {
            // Sent when the thread that started it ends, which lives as long as the node.
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            Ok(())
        };
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(prepare) };
        command.spawn().map_err(|source| Error::pfs("starting the memory controller", source))
    }

    /// One that was killed, and whose next did not run yet, has put nothing back. Answers whether
    /// that was so.
    fn put_back_left(&self) -> bool {
        let file = self.stores_file.as_ref();
        let Some(failed) = file.and_then(|file| put_back_left(&self.socket, file)) else {
            return false;
        };
        failed.iter().for_each(|failed| tracing::error!("not put back: {failed}"));
        true
    }

    fn end_child(&self) {
        let Some(process) = self.state.lock().process.clone() else { return };
        send(&process, Signal::TERM);
        let patience = match self.stores_file {
            Some(_) => END_PATIENCE_WITH_STORES,
            None => END_PATIENCE,
        };
        if !has_ended(&process, patience) {
            send(&process, Signal::KILL);
            has_ended(&process, END_PATIENCE);
        }
    }
}

fn send(process: &OwnedFd, signal: Signal) {
    // One that has ended needs no signal.
    let _ = pidfd_send_signal(process, signal);
}

fn has_ended(process: &OwnedFd, patience: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    };
    matches!(
        poll(&mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)], Some(&timeout)),
        Ok(1..)
    )
}
