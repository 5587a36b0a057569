//! [`Server`]: serves the memory of a buffer node by memcached's protocol.
//!
//! A thread serves a connection. Values go from the socket into the memory that keeps them, and
//! from there to the socket. Whoever brings what is owed to the PFS waits where there is no room,
//! and learns what is full when that takes too long.

mod channel;
mod classic;
mod counters;
mod fences;
mod forgotten;
mod meta;
mod packets;
mod session;
mod storing;
mod wire;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use self::channel::Channel;
use self::counters::Counters;
use self::fences::Fences;
use self::forgotten::Forgotten;
use self::packets::{Passing, Stripes};
use self::session::{Session, is_usual_end};
use self::wire::Message;
use crate::disk::Owed;
use crate::key::{BlockName, PACKET_BYTES_MAX, PacketKey};
use crate::memory::{Memory, Room, Usage, Value};

/// How a server works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Most bytes of a value.
    pub value_bytes_max: u64,
    /// Most connections.
    pub connections_max: usize,
    /// How long a writer waits for room for what is owed to the PFS.
    pub patience: Duration,
    /// How long a client may stand still within a message.
    pub message_timeout: Duration,
    /// Connections to the listener may do nothing with blocks, which come by [`Shared::obey`]: who
    /// connects is not known.
    pub blocks_are_guarded: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            value_bytes_max: PACKET_BYTES_MAX as u64,
            connections_max: 1024,
            patience: Duration::from_secs(60),
            message_timeout: Duration::from_secs(60),
            blocks_are_guarded: false,
        }
    }
}

/// A packet that is handed to a keeper.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// Its key.
    pub key: &'a PacketKey,
    /// The client's flags.
    pub flags: u32,
    /// Its value.
    pub value: &'a Arc<Value>,
    /// Number of the change that brings it.
    pub number: u64,
}

/// What else becomes of packets that are owed to the PFS. Calls that change a block come one after
/// the other, in the order in which its packets change in memory, and do not wait; `reserve`,
/// `sync` and `fetch` may.
pub trait Keeper: Send + Sync {
    /// Takes room for a packet of so many bytes, before anything of it is changed.
    ///
    /// # Errors
    /// There was none until then, for this reason, in one line.
    fn reserve(&self, length: usize, until: Instant) -> Result<Option<Room>, String>;

    /// Whether a block takes packets.
    ///
    /// # Errors
    /// It does not, for this reason.
    fn check(&self, block: &BlockName) -> Result<(), String>;

    /// Keeps a packet that is in memory, in room that was taken.
    fn keep(&self, kept: Kept<'_>, room: Option<Room>);

    /// Makes all that became of a block as safe as this keeper makes it.
    ///
    /// # Errors
    /// It is not, for this reason.
    fn sync(&self, block: &BlockName) -> Result<(), String>;

    /// A packet was removed, or is not owed any more; whether it was kept.
    fn removed(&self, key: &PacketKey) -> bool;

    /// The PFS has a block, or nobody needs it; its packets that were kept.
    fn settled(&self, block: &BlockName) -> Vec<u32>;

    /// A packet that is not in memory; `None` where it is not kept either.
    ///
    /// # Errors
    /// It is kept, and cannot be had, for this reason.
    fn fetch(&self, key: &PacketKey) -> Result<Option<Fetched>, String>;

    /// Length of what `fetch` would bring.
    fn length(&self, key: &PacketKey) -> Option<usize>;

    /// Whether what was fetched by this number is still the packet.
    fn is_current(&self, key: &PacketKey, number: u64) -> bool;

    /// Where it keeps what is owed, as `stats settings` tells it: `memory` or `disk`.
    fn place(&self) -> &'static str;

    /// What `stats` tells of it.
    fn figures(&self) -> Vec<(&'static str, String)>;

    /// Blocks of a time in memory that are kept.
    fn blocks_of(&self, epoch: u64) -> Vec<BlockName>;

    /// All blocks that are kept.
    fn owed(&self) -> Vec<Owed>;

    /// What is kept, all in all.
    fn totals(&self) -> Totals;
}

/// What a keeper has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of its disk that are used.
    pub disk_bytes: u64,
    /// Blocks that are owed to the PFS.
    pub owed_blocks: u64,
    /// Those that take nothing, as their disk failed or what they promised is broken.
    pub failed_blocks: u64,
    /// Bytes of packets of all.
    pub owed_bytes: u64,
    /// Age of the oldest one.
    pub oldest: Option<Duration>,
}

/// A packet that was fetched.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Its value.
    pub bytes: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// Number of the change that brought it.
    pub number: u64,
}

/// Keeps nothing: packets are in memory alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl Keeper for InMemory {
    fn reserve(&self, _: usize, _: Instant) -> Result<Option<Room>, String> {
        Ok(None)
    }

    fn check(&self, _: &BlockName) -> Result<(), String> {
        Ok(())
    }

    fn keep(&self, _: Kept<'_>, _: Option<Room>) {}

    fn sync(&self, _: &BlockName) -> Result<(), String> {
        Ok(())
    }

    fn removed(&self, _: &PacketKey) -> bool {
        false
    }

    fn settled(&self, _: &BlockName) -> Vec<u32> {
        Vec::new()
    }

    fn fetch(&self, _: &PacketKey) -> Result<Option<Fetched>, String> {
        Ok(None)
    }

    fn length(&self, _: &PacketKey) -> Option<usize> {
        None
    }

    fn is_current(&self, _: &PacketKey, _: u64) -> bool {
        false
    }

    fn place(&self) -> &'static str {
        "memory"
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn blocks_of(&self, _: u64) -> Vec<BlockName> {
        Vec::new()
    }

    fn owed(&self) -> Vec<Owed> {
        Vec::new()
    }

    fn totals(&self) -> Totals {
        Totals::default()
    }
}

/// What the connections of a server share.
pub struct Shared {
    /// How it works.
    pub settings: Settings,
    /// What it holds.
    pub memory: Arc<Memory>,
    /// What else becomes of it.
    pub keeper: Box<dyn Keeper>,
    /// Which start of a server this is: what another one had in memory is not here.
    start: u64,
    counters: Counters,
    /// Taken by who changes packets of a block: memory and keeper change in one order.
    stripes: Stripes,
    /// Values that are sent and not kept, for want of memory.
    passing: Passing,
    fences: Fences,
    forgotten: Forgotten,
    connections: Mutex<HashMap<u64, Arc<TcpStream>>>,
    is_stopping: AtomicBool,
}

impl Shared {
    /// Which start of a server this is.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Obeys the commands of a message; the answers, of up to so many bytes.
    ///
    /// # Errors
    /// A command without its value, or answers that are longer.
    pub fn obey(self: &Arc<Self>, commands: &[u8], answers_max: usize) -> io::Result<Vec<u8>> {
        let mut message = Message { commands, answers: Vec::new(), answers_max };
        let channel = Channel::over(Box::new(&mut message), self.settings.message_timeout);
        Session::new(self.clone(), channel).run()?;
        Ok(message.answers)
    }
}

/// See the module's documentation.
pub struct Server {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves connections of `listener` from now on; without one, who has its [`Shared`].
    ///
    /// # Errors
    /// No thread, or a listener that does not say where it listens.
    pub fn start(
        listener: Option<TcpListener>,
        settings: Settings,
        memory: Arc<Memory>,
        keeper: Box<dyn Keeper>,
    ) -> io::Result<Self> {
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let settings = within_descriptors(settings);
        let shared = Arc::new(Shared {
            memory,
            settings,
            keeper,
            start: RandomState::new().hash_one(Instant::now()),
            counters: Counters::default(),
            stripes: Stripes::default(),
            passing: Passing::default(),
            fences: Fences::default(),
            forgotten: Forgotten::default(),
            connections: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        });
        let for_thread = shared.clone();
        let accept = |listener: TcpListener| {
            let thread = std::thread::Builder::new().name("buffer-accept".into());
            thread.spawn(move || accept(&listener, &for_thread))
        };
        let accepting = listener.map(accept).transpose()?;
        Ok(Server { shared, address, accepting })
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What it holds.
    pub fn usage(&self) -> Usage {
        self.shared.memory.usage()
    }

    /// Connections that it serves.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().len()
    }

    /// Its memory and what it does.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Server {
    /// Ends all connections, and waits for those who serve them, for a moment.
    fn drop(&mut self) {
        const LIMIT: Duration = Duration::from_secs(5);
        const PAUSE: Duration = Duration::from_millis(1);
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = self.address.map(TcpStream::connect);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        for connection in self.shared.connections.lock().values() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        let begun = Instant::now();
        while Arc::strong_count(&self.shared) > 1 && begun.elapsed() < LIMIT {
            std::thread::sleep(PAUSE);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    /// Time before the next try where the process has no descriptor left.
    const PAUSE: Duration = Duration::from_millis(50);
    let numbers = AtomicU64::new(0);
    loop {
        let accepted = listener.accept();
        if shared.is_stopping.load(Ordering::SeqCst) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "taking a connection of the burst buffer failed");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = serve(shared, stream, number) {
            tracing::warn!(%error, "a connection of the burst buffer is not served");
        }
    }
}

/// Serves a connection by a thread of its own.
fn serve(shared: &Arc<Shared>, stream: TcpStream, number: u64) -> io::Result<()> {
    let stream = Arc::new(stream);
    {
        let mut connections = shared.connections.lock();
        if connections.len() >= shared.settings.connections_max {
            drop(connections);
            shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return refuse(&stream);
        }
        connections.insert(number, stream.clone());
    }
    shared.counters.connections.fetch_add(1, Ordering::Relaxed);
    let served = Served { shared: shared.clone(), number };
    let timeout = shared.settings.message_timeout;
    let thread = std::thread::Builder::new().name("buffer".into());
    thread.spawn(move || {
        let shared = served.shared.clone();
        let channel = match Channel::new(stream, timeout) {
            Ok(channel) => channel,
            Err(error) => return tracing::warn!(%error, "a connection takes no settings"),
        };
        let mut session = match shared.settings.blocks_are_guarded {
            true => Session::of_guest(shared, channel),
            false => Session::new(shared, channel),
        };
        if let Err(error) = session.run()
            && !is_usual_end(&error)
        {
            tracing::info!(%error, "a connection of the burst buffer ended");
        }
    })?;
    Ok(())
}

/// Connections take no more than half of the descriptors of this process.
fn within_descriptors(settings: Settings) -> Settings {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(limit / 2).unwrap_or(usize::MAX);
    if settings.connections_max > most {
        tracing::warn!(connections_max = most, limit, "fewer connections: raise `ulimit -n`");
    }
    Settings { connections_max: settings.connections_max.min(most), ..settings }
}

fn refuse(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let _ = io::Write::write(&mut stream, b"SERVER_ERROR too many open connections\r\n");
    Ok(())
}

/// Takes a connection off the list, also after a panic.
struct Served {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(stream) = self.shared.connections.lock().remove(&self.number) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
