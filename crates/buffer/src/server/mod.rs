//! [`Server`]: serves the memory of a buffer node by memcached's protocol.
//!
//! A thread serves a connection. Values go from the socket into the memory that keeps them, and
//! from there to the socket. Whoever brings what is owed to the PFS waits where there is no room,
//! and learns what is full when that takes too long.

mod channel;
mod classic;
mod counters;
mod meta;
mod session;
mod storing;

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use self::channel::Channel;
use self::counters::Counters;
use self::session::{Session, is_usual_end};
use crate::key::{BlockName, PACKET_BYTES_MAX, PacketKey};
use crate::memory::{Memory, Usage, Value};

/// How a server works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Most bytes that it holds.
    pub capacity_bytes: u64,
    /// Most bytes of a value.
    pub value_bytes_max: u64,
    /// Most connections.
    pub connections_max: usize,
    /// How long a writer waits for room for what is owed to the PFS.
    pub patience: Duration,
    /// How long a client may stand still within a message.
    pub message_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            capacity_bytes: 1 << 30,
            value_bytes_max: PACKET_BYTES_MAX as u64,
            connections_max: 1024,
            patience: Duration::from_secs(60),
            message_timeout: Duration::from_secs(60),
        }
    }
}

/// What else becomes of packets that are owed to the PFS.
pub trait Keeper: Send + Sync {
    /// Keeps a packet that is in memory. With `is_sync` it, and what was kept of its block before,
    /// is as safe as this keeper makes it when this returns.
    ///
    /// # Errors
    /// It is not, for this reason, in one line.
    fn keep(&self, key: &PacketKey, value: &Arc<Value>, is_sync: bool) -> Result<(), String>;

    /// A packet was removed.
    fn removed(&self, key: &PacketKey);

    /// The PFS has a block.
    fn settled(&self, block: &BlockName);
}

/// Keeps nothing: packets are in memory alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl Keeper for InMemory {
    fn keep(&self, _: &PacketKey, _: &Arc<Value>, _: bool) -> Result<(), String> {
        Ok(())
    }

    fn removed(&self, _: &PacketKey) {}

    fn settled(&self, _: &BlockName) {}
}

/// What the connections of a server share.
pub struct Shared {
    /// How it works.
    pub settings: Settings,
    /// What it holds.
    pub memory: Memory,
    /// What else becomes of it.
    pub keeper: Box<dyn Keeper>,
    counters: Counters,
    connections: Mutex<HashMap<u64, TcpStream>>,
    is_stopping: AtomicBool,
}

impl Shared {
    /// The PFS has all packets of a block: they may be evicted. How many there were.
    pub fn settle(&self, block: &BlockName, packets: u32) -> u64 {
        let settle = |packet| {
            let key = PacketKey { block: *block, packet }.to_string();
            self.memory.with(key.as_bytes(), |slot| slot.settle())
        };
        let settled = (0..packets).filter(|packet| settle(*packet)).count();
        self.keeper.settled(block);
        settled as u64
    }

    fn note_removed(&self, key: &[u8]) {
        if let Some(packet) = PacketKey::parse(key) {
            self.keeper.removed(&packet);
        }
    }
}

/// See the module's documentation.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves connections of `listener` from now on.
    ///
    /// # Errors
    /// No thread, or a listener that does not say where it listens.
    pub fn start(
        listener: TcpListener,
        settings: Settings,
        keeper: Box<dyn Keeper>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            memory: Memory::new(settings.capacity_bytes),
            settings,
            keeper,
            counters: Counters::default(),
            connections: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new().name("buffer-accept".into());
        let accepting = Some(thread.spawn(move || accept(&listener, &for_thread))?);
        Ok(Server { shared, address, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it holds.
    pub fn usage(&self) -> Usage {
        self.shared.memory.usage()
    }

    /// Its memory and what it does.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Server {
    /// Ends all connections.
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        for connection in self.shared.connections.lock().values() {
            let _ = connection.shutdown(Shutdown::Both);
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
    {
        let mut connections = shared.connections.lock();
        if connections.len() >= shared.settings.connections_max {
            drop(connections);
            shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return refuse(&stream);
        }
        connections.insert(number, stream.try_clone()?);
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
        if let Err(error) = (Session { shared, channel }).run()
            && !is_usual_end(&error)
        {
            tracing::info!(%error, "a connection of the burst buffer ended");
        }
    })?;
    Ok(())
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
