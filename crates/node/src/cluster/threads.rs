//! What runs while the node runs: the thread of the members' datagrams and clocks, the one that
//! sends what they have to say, and the one that looks at new members and at what is held.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tidepool_cluster::{NodeName, Output};
use tidepool_peer::PeerError;
use tidepool_peer::datagram::{Opener, Sealer};
use tidepool_proto::{Error, ErrorKind, Result};

use super::etcd::Etcd;
use super::{Cluster, buffers, clean, copies, measure, owed_reads, recall, spread};

/// First byte of a request: about locations, about the file by which a node is known, or for its
/// facts and counters.
const LOCATIONS: u8 = 0;
const JOIN: u8 = 1;
const STATUS: u8 = 2;
/// Asks for a change of that file, to see whether it shows.
const CHANGE: u8 = 3;
/// Asks for the clock.
const CLOCK: u8 = 4;
/// Asks to measure another node.
const MEASURE: u8 = 5;
/// Asks to bring a split in.
const BRING_IN: u8 = 6;
/// Asks to write back a file that is in memory alone.
const RECALL: u8 = 7;

/// About copies of files that are in memory alone.
const COPIES: u8 = 8;
/// About the burst buffer.
const BUFFERS: u8 = 9;

/// About reads of files that the PFS does not have yet.
const OWED_READS: u8 = 10;

/// Longest datagram.
const DATAGRAM_BYTES_MAX: usize = 2048;
/// Longest time between two looks at members and at what is held.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while a member is not known yet.
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Threads that send clean copies to burst buffers.
const CLEAN_THREADS: usize = 2;
/// Calls that wait to be made; beyond it the oldest is given up.
const CALLS_MAX: usize = 1024;

/// A request about locations.
pub fn about_locations(request: &[u8]) -> Vec<u8> {
    [&[LOCATIONS], request].concat()
}

/// A request for the file by which a node is known.
pub fn about_join() -> Vec<u8> {
    vec![JOIN]
}

/// A request to change that file.
pub fn about_change() -> Vec<u8> {
    vec![CHANGE]
}

/// A request for the clock.
pub fn about_clock() -> Vec<u8> {
    vec![CLOCK]
}

/// A request to measure a node.
pub fn about_measurement(of: &NodeName) -> Vec<u8> {
    [&[MEASURE], of.as_str().as_bytes()].concat()
}

/// A request to bring a split in.
pub fn about_split(request: &[u8]) -> Vec<u8> {
    [&[BRING_IN], request].concat()
}

/// A request to write back a file that is in memory alone.
pub fn about_recall(request: &[u8]) -> Vec<u8> {
    [&[RECALL], request].concat()
}

/// A message about copies of files, the bytes of which may follow.
pub fn about_copies(message: &[u8]) -> Vec<u8> {
    [&[COPIES], message].concat()
}

/// A message about the burst buffer, whose commands may follow.
pub fn about_buffers(message: &[u8]) -> Vec<u8> {
    [&[BUFFERS], message].concat()
}

/// A question about reads of a file that the PFS does not have yet.
pub fn about_owed_reads(request: &[u8]) -> Vec<u8> {
    [&[OWED_READS], request].concat()
}

/// A request for facts and counters.
pub fn about_status() -> Vec<u8> {
    vec![STATUS]
}

/// Answers another node.
pub fn answer(cluster: &Cluster, from: &NodeName, request: &[u8]) -> Vec<u8> {
    match request.split_first() {
        Some((&LOCATIONS, request)) => {
            let reply = cluster.members.lock().serve(cluster.now(), from, request);
            cluster.signal.raise();
            reply
        }
        Some((&JOIN, [])) => {
            let own =
                cluster.core.upgrade().and_then(|core| cluster.proofs.own(&core, cluster).ok());
            own.and_then(|own| postcard::to_stdvec(&own).ok()).unwrap_or_default()
        }
        Some((&CHANGE, [])) => {
            let changed = cluster.core.upgrade().and_then(|core| {
                let own = cluster.proofs.own(&core, cluster).ok()?;
                cluster.sight.change(&core, &own)
            });
            changed.map(|number| number.to_le_bytes().to_vec()).unwrap_or_default()
        }
        Some((&STATUS, [])) => {
            let node = cluster.node();
            let status = node.map(|node| node.status());
            status.and_then(|status| serde_json::to_vec(&status).ok()).unwrap_or_default()
        }
        Some((&CLOCK, [])) => measure::pong(),
        Some((&MEASURE, of)) => {
            let of = std::str::from_utf8(of).ok().and_then(|name| NodeName::new(name).ok());
            let of =
                of.filter(|name| *name != cluster.me && cluster.roster.read().get(name).is_some());
            let report = of.map(|name| cluster.measure_one(&name));
            report.and_then(|it| serde_json::to_vec(&it).ok()).unwrap_or_default()
        }
        Some((&BRING_IN, request)) => spread::answer(cluster, from, request),
        Some((&RECALL, request)) => recall::answer(cluster, from, request),
        Some((&COPIES, message)) => copies::answer(cluster, from, message),
        Some((&BUFFERS, message)) => buffers::answer(cluster, from, message),
        Some((&OWED_READS, request)) => owed_reads::give::answer(cluster, from, request),
        _ => Vec::new(),
    }
}

/// A number that nobody can guess.
pub fn random() -> u128 {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    debug_assert_eq!(filled, Ok(16), "a kernel gives 256 bytes or fewer whole");
    u128::from_le_bytes(bytes)
}

/// Wakes the thread of the members.
pub struct Signal(OwnedFd);

impl Signal {
    /// Not raised.
    pub fn new() -> std::io::Result<Self> {
        Ok(Signal(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Wakes it, now or when it would wait next.
    pub fn raise(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn lower(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Calls to be made, oldest first.
#[derive(Default)]
struct Calls {
    waiting: Mutex<VecDeque<(NodeName, Vec<u8>)>>,
    more: Condvar,
}

/// The socket of the members' datagrams with what protects them.
pub struct Datagrams {
    /// Bound to this node's address.
    pub socket: UdpSocket,
    /// Protects what is sent.
    pub sealer: Sealer,
    /// Checks what is received.
    pub opener: Opener,
}

/// Starts the threads.
pub fn start(cluster: &Arc<Cluster>, datagrams: Datagrams) -> Result<()> {
    let calls = Arc::<Calls>::default();
    let (mut datagrams, for_members) = (datagrams, calls.clone());
    datagrams.socket.set_nonblocking(true).map_err(|error| {
        Error::new(ErrorKind::Unsupported, "preparing the socket of members", "").caused_by(error)
    })?;
    let members = move |cluster: &Cluster| run_members(cluster, &mut datagrams, &for_members);
    spawn(cluster, "members", members)?;
    let for_caller = calls.clone();
    spawn(cluster, "member-calls", move |cluster| run_calls(cluster, &for_caller))?;
    spawn(cluster, "member-looks", run_looks)?;
    let mut memory = copies::Follow::default();
    for _ in 0..CLEAN_THREADS {
        spawn(cluster, "clean-copies", clean::step)?;
    }
    spawn(cluster, "copies", move |cluster| copies::follow(cluster, &mut memory))
}

/// Starts the thread that follows a list in etcd.
pub fn follow_list(cluster: &Arc<Cluster>, mut etcd: Etcd) -> Result<()> {
    let mut was_reached = None;
    let step = move |cluster: &Cluster| cluster.follow_list(&mut etcd, &mut was_reached);
    spawn(cluster, "member-list", step)
}

/// Runs `step` again and again until the cluster stops.
fn spawn(
    cluster: &Arc<Cluster>,
    name: &str,
    mut step: impl FnMut(&Cluster) + Send + 'static,
) -> Result<()> {
    let weak: Weak<Cluster> = Arc::downgrade(cluster);
    let run = move || {
        while let Some(cluster) = weak.upgrade() {
            step(&cluster);
            if cluster.is_stopping() {
                // What is left to be said, such as that this node leaves.
                return step(&cluster);
            }
        }
    };
    let thread = std::thread::Builder::new().name(name.into()).stack_size(512 << 10).spawn(run);
    let thread = thread.map_err(|error| {
        Error::new(ErrorKind::Unsupported, format!("starting the thread `{name}`"), "")
            .caused_by(error)
            .remedy("raise the limit of processes")
    })?;
    cluster.threads.lock().push(thread);
    Ok(())
}

fn run_members(cluster: &Cluster, datagrams: &mut Datagrams, calls: &Calls) {
    let next = cluster.members.lock().tick(cluster.now());
    while let Some(output) = { cluster.members.lock().poll() } {
        carry_out(cluster, datagrams, calls, output);
    }
    if cluster.is_stopping() {
        return;
    }
    wait(cluster, datagrams, next.saturating_sub(cluster.now()));
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    while let Ok((length, _)) = datagrams.socket.recv_from(&mut buffer) {
        match datagrams.opener.open(&buffer[..length]) {
            Ok((_, bytes)) => cluster.members.lock().receive(cluster.now(), &bytes),
            Err(_) => cluster.counts.datagrams_rejected.add(1),
        }
    }
}

/// Waits for a datagram, the signal or the time.
fn wait(cluster: &Cluster, datagrams: &Datagrams, timeout: Duration) {
    let timeout = timeout.min(LOOK_INTERVAL);
    let timespec =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let mut sources = [
        PollFd::from_borrowed_fd(datagrams.socket.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(cluster.signal.0.as_fd(), PollFlags::IN),
    ];
    let _ = poll(&mut sources, Some(&timespec));
    cluster.signal.lower();
}

fn carry_out(cluster: &Cluster, datagrams: &mut Datagrams, calls: &Calls, output: Output) {
    match output {
        Output::Datagram { to, bytes } => {
            if let Some(address) = cluster.address(&to) {
                let sealed = datagrams.sealer.seal(&bytes);
                // Lost ones are sent again, or their receiver counts as down.
                let _ = datagrams.socket.send_to(&sealed, address);
            }
        }
        Output::Call { to, request } => {
            let mut waiting = calls.waiting.lock();
            if waiting.len() >= CALLS_MAX
                && let Some((oldest, _)) = waiting.pop_front()
            {
                cluster.members.lock().call_failed(cluster.now(), &oldest);
            }
            waiting.push_back((to, request));
            calls.more.notify_one();
        }
        Output::Up(node) => tracing::info!(%node, "a node of the cluster is there"),
        Output::Down(node) => {
            tracing::warn!(%node, "a node of the cluster is gone");
            cluster.proofs.forget(&node);
            cluster.transport.forget(node.as_str());
            cluster.peers.lock().forget(&node);
        }
    }
}

fn run_calls(cluster: &Cluster, calls: &Calls) {
    let next = {
        let mut waiting = calls.waiting.lock();
        if waiting.is_empty() && !cluster.is_stopping() {
            calls.more.wait_for(&mut waiting, LOOK_INTERVAL_MIN);
        }
        waiting.pop_front()
    };
    let Some((to, request)) = next else { return };
    let request = about_locations(&request);
    let is_avoided =
        cluster.peers.lock().choose(cluster.now(), std::slice::from_ref(&to)).is_none();
    if is_avoided {
        return cluster.members.lock().call_failed(cluster.now(), &to);
    }
    let reply = cluster.transport.call(to.as_str(), &request, cluster.config.peer_timeout);
    match reply {
        Ok(reply) => {
            cluster.peers.lock().refused(&to, 0);
            cluster.members.lock().call_done(cluster.now(), &to, &reply);
        }
        Err(error) => {
            cluster.members.lock().call_failed(cluster.now(), &to);
            let timed_out = matches!(error, PeerError::TimedOut);
            cluster.peers.lock().failed(cluster.now(), &to, 0, timed_out);
        }
    }
}

fn run_looks(cluster: &Cluster) {
    let Some(core) = cluster.core.upgrade() else { return };
    cluster.prove_members(&core);
    cluster.announce_changes(&core);
    cluster.watch_changes();
    cluster.look_for_buffers();
    cluster.given.close_idle();
    drop(core);
    let mut waited = Duration::ZERO;
    while !cluster.is_stopping() && waited < LOOK_INTERVAL {
        std::thread::sleep(LOOK_INTERVAL_MIN);
        waited += LOOK_INTERVAL_MIN;
        if let Some(core) = cluster.core.upgrade() {
            cluster.prove_members(&core);
        }
    }
}

impl Cluster {
    /// The address of a member now; its host may be a name.
    pub(super) fn address(&self, node: &NodeName) -> Option<SocketAddr> {
        let member = self.roster.read().get(node)?.clone();
        self.addresses.of(&member.host, member.port)
    }
}
