//! Puts a node together (store and PFS side, socket server, mount, metrics), keeps it until a
//! signal or `node stop`, and takes it apart in the reverse order.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::fs::{Mode, OFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidepool_control::survive_out_of_memory;
use tidepool_fuse::{Mount, MountConfig};
use tidepool_node::Node;
use tidepool_node::server::Server;
use tidepool_proto::config::Feature;
use tidepool_proto::{Error, ErrorKind, NodeConfig, Result};

use crate::endpoint::Endpoint;
use crate::limits::{raise_descriptors, server_limits};
use crate::logging::{self, Log};
use crate::mount_point::MountPoint;
use crate::notify::notify;
use crate::summary::Summary;
use crate::supervisor::Supervisor;
use crate::{Sources, reload, root};

/// What ends or changes a running node.
enum Event {
    Stop(&'static str),
    Reload,
    /// Somebody else unmounted.
    MountGone,
    /// The PFS directory is not the one of the start, in words, or it is again.
    Root(Option<String>),
}

/// A node with all its front ends.
pub struct Running {
    config: NodeConfig,
    sources: Sources,
    node: Arc<Node>,
    supervisor: Arc<Supervisor>,
    server: Arc<Server>,
    mount: Option<Mount>,
    /// Removed again where the start made it, after the mount.
    mount_point: Option<MountPoint>,
    endpoint: Option<Endpoint>,
    log: Log,
    events: Receiver<Event>,
    summary: Summary,
    /// What is wrong with the PFS directory, as `status` has it.
    root_note: Option<String>,
}

/// Starts everything that `config` asks for; on an error, what was started is taken down again.
pub fn start(config: NodeConfig, sources: Sources) -> Result<Running> {
    let log = logging::start(&config)?;
    raise_descriptors();
    let (sender, events) = channel();
    listen_to_signals(sender.clone())?;
    let mount_point = config.mount.as_deref().map(MountPoint::prepare).transpose()?;
    let node = Node::start(config.clone())?;
    let told = sender.clone();
    let supervisor = Arc::new(Supervisor::new(node.clone(), &config, move || {
        // The receiver is gone only when the process is ending anyway.
        let _ = told.send(Event::Stop("node stop"));
    }));
    let limits = server_limits(&config.client_limits);
    let server = Server::start(&config.socket, node.clone(), supervisor.clone(), limits);
    let server = Arc::new(server.inspect_err(|_| node.stop())?);
    supervisor.count_clients_of(&server);
    let front_ends = start_front_ends(&config, &node, &supervisor).inspect_err(|_| {
        server.stop();
        node.stop();
    });
    let (mount, endpoint) = front_ends?;
    if let Some(mount) = &mount {
        supervisor.change_front_ends(|front_ends| {
            front_ends.mount = config.mount.as_ref().map(|path| path.display().to_string());
            front_ends.notes = mount.notes();
        });
        let sender = sender.clone();
        // While the node stops nobody asks any more.
        let watched = mount.when_gone(move || drop(sender.send(Event::MountGone)));
        watched.map_err(|source| Error::pfs("watching the mount", source))?;
    }
    root::watch(&config.pfs, move |change| sender.send(Event::Root(change)).is_ok())?;
    supervisor.change_front_ends(|front_ends| front_ends.notes.extend(survive_out_of_memory()));
    supervisor.start_control()?;
    // The working directory must not keep another file system busy.
    let _ = std::env::set_current_dir("/");
    let machine = sources.machine();
    let limit = (machine.memory_bytes, machine.memory_limit.as_str());
    let mut notes: Vec<String> = mount_point.iter().flat_map(MountPoint::notes).collect();
    notes.extend(supervisor.wait_for_control());
    let summary = Summary::new(&config, &supervisor.status(), limit, notes);
    tracing::info!(pfs = summary.pfs, socket = summary.socket, mount = summary.mount, "serving");
    for degraded in &summary.degraded {
        tracing::warn!("degraded: {degraded}");
    }
    for note in &summary.notes {
        tracing::warn!("{note}");
    }
    notify("READY=1");
    #[rustfmt::skip]
    let running = Running {
        config, sources, node, supervisor, server, mount, mount_point, endpoint, log, events,
        summary, root_note: None,
    };
    Ok(running)
}

/// Starts what `sources` ask for; what is probably a mistake in them goes to the log.
///
/// # Errors
/// Those of the configuration and of [`start`].
pub fn start_from(sources: Sources) -> Result<Running> {
    let (config, warnings) = sources.read()?;
    let running = start(config, sources)?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(running)
}

fn start_front_ends(
    config: &NodeConfig,
    node: &Arc<Node>,
    supervisor: &Arc<Supervisor>,
) -> Result<(Option<Mount>, Option<Endpoint>)> {
    require(config.huge_pages, "huge_pages", node.status().store.huge_pages)?;
    let address = config.metrics_address;
    let endpoint = address.map(|address| Endpoint::start(address, supervisor.clone()));
    let endpoint = endpoint.transpose()?;
    let mount_point = config.mount.as_deref();
    let mount = mount_point.map(|mount_point| mount(config, mount_point, node)).transpose()?;
    if let Some(mount) = &mount {
        require(config.passthrough, "passthrough", mount.has_passthrough())?;
        require(config.direct_io, "direct_io", mount.has_direct_io())?;
    }
    Ok((mount, endpoint))
}

fn mount(config: &NodeConfig, mount_point: &Path, node: &Arc<Node>) -> Result<Mount> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd = rustix::fs::open(&config.pfs, flags, Mode::empty())
        .map_err(|source| Error::pfs(format!("opening {}", config.pfs.display()), source))?;
    tidepool_fuse::mount(
        node.clone(),
        MountConfig {
            threads: config.fuse_threads as usize,
            request_bytes_max: config.read_buffer_bytes as usize,
            passthrough: config.passthrough.wanted(),
            direct_io: config.direct_io.wanted(),
            ..MountConfig::new(root, config.pfs.clone(), mount_point.to_owned())
        },
    )
}

fn require(feature: Feature, name: &str, present: bool) -> Result<()> {
    if feature != Feature::On || present {
        return Ok(());
    }
    let detail = format!("`{name}` is `on`, but this machine lacks it");
    Err(Error::new(ErrorKind::Unsupported, "starting the node", detail)
        .remedy("`tidepool doctor` says why; use `auto` to go on without it"))
}

fn listen_to_signals(sender: Sender<Event>) -> Result<()> {
    let failed = |source| Error::pfs("listening to signals", source);
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let listen = move || {
        let mut stops = 0;
        for signal in signals.forever() {
            let event = match signal {
                SIGHUP => Event::Reload,
                SIGINT => Event::Stop("SIGINT"),
                _ => Event::Stop("SIGTERM"),
            };
            if let Event::Stop(name) = event {
                stops += 1;
                if stops > 2 {
                    tracing::error!(signal = name, "asked to stop three times: ending at once");
                    std::process::exit(1);
                }
            }
            if sender.send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
    Ok(())
}

impl Running {
    /// What the start took.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Serves until a signal or `node stop`, then takes everything down.
    pub fn run(mut self) -> Result<()> {
        let reason = loop {
            match self.events.recv() {
                Ok(Event::Reload) => self.reload(),
                Ok(Event::MountGone) => self.mount_gone(),
                Ok(Event::Root(change)) => self.root_changed(change),
                Ok(Event::Stop(reason)) => break reason,
                Err(_) => break "no one can ask for anything any more",
            }
        };
        tracing::info!(reason, "stopping");
        notify("STOPPING=1");
        self.take_down()
    }

    /// The node goes on serving its socket.
    fn mount_gone(&self) {
        let place = self.config.mount.as_deref().unwrap_or(Path::new("")).display();
        let line = format!(
            "the mount at {place} was unmounted from outside; restart the node to mount again"
        );
        tracing::warn!("{line}");
        self.supervisor.change_front_ends(|front_ends| {
            front_ends.mount = None;
            front_ends.notes.push(line);
        });
    }

    fn root_changed(&mut self, change: Option<String>) {
        match &change {
            Some(line) => tracing::warn!("{line}"),
            None => tracing::info!("the PFS directory is the one of the start again"),
        }
        let before = std::mem::replace(&mut self.root_note, change.clone());
        self.supervisor.change_front_ends(|front_ends| {
            front_ends.notes.retain(|note| Some(note) != before.as_ref());
            front_ends.notes.extend(change);
        });
    }

    fn reload(&mut self) {
        notify("RELOADING=1");
        // First: what follows belongs into the new file.
        if let Err(error) = self.log.reopen() {
            tracing::error!("the log goes on where it was: {error}");
        }
        let applied = self.sources.read().and_then(|(wanted, warnings)| {
            warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            reload::apply(&self.config, wanted, &*self.supervisor, &self.log)
        });
        match applied {
            Ok(in_force) => {
                self.supervisor.reloaded(&in_force);
                self.config = in_force;
            }
            Err(error) => tracing::error!("the configuration stays as it is: {error}"),
        }
        notify("READY=1");
    }

    /// New opens are refused and dirty bytes written back first; then the front ends go, then the
    /// node.
    fn take_down(self) -> Result<()> {
        if let Err(error) = self.node.drain() {
            tracing::warn!("not everything is written back yet: {error}");
        }
        let unmounted = self.mount.as_ref().map_or(Ok(()), Mount::unmount);
        if let Err(error) = &unmounted {
            tracing::error!("unmounting: {error}");
        }
        self.supervisor.stop_control();
        drop(self.mount);
        drop(self.mount_point);
        drop(self.endpoint);
        self.server.stop();
        // What programs went on to write until their front end was gone.
        let drained = self.node.drain_to_end().inspect_err(|error| {
            tracing::error!("bytes that exist in memory only are lost: {error}");
        });
        self.node.stop();
        let lines = self.log.dropped_lines();
        if lines > 0 {
            tracing::warn!(lines, "the log could not be written in time: lines are missing");
        }
        tracing::info!("stopped");
        drained.and(unmounted)
    }
}
