//! [`Client`]: stores packets on a pool of servers, and fetches them.
//!
//! It speaks memcached's meta commands as version 1.6.18 has them, so servers may be buffer nodes
//! or stock memcached. What is sent goes in one stream and is answered once, at its end.
//!
//! A server that does not answer in time, or breaks off, fails the call; the next one connects
//! anew. Where a call failed nothing is known of its packets: some may be stored. Of what was sent
//! nothing is carried out once a later call begins, by a server of ours: see its `fences`.

mod connection;
mod stream;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::connection::Connection;
use crate::key::{BlockName, PacketKey, flag};
use crate::placement::{Placement, Pool};

pub use self::stream::{Connect, Stream, messages, tcp, tcp_by_name};

/// How a client works.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// How long a server may take to accept a connection.
    pub connect_timeout: Duration,
    /// How long a call may take. A server that is full delays its answer.
    pub deadline: Duration,
    /// Connections to each server that stay open.
    pub idle_max: usize,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            connect_timeout: Duration::from_secs(1),
            deadline: Duration::from_secs(90),
            idle_max: 4,
        }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub struct ClientError {
    /// Name of the server.
    pub server: String,
    /// What is wrong.
    pub fault: Fault,
}

/// See [`ClientError`].
#[derive(Debug)]
pub enum Fault {
    /// It cannot be reached, or broke off.
    Unreachable(std::io::Error),
    /// It did not answer within so long.
    Late(Duration),
    /// It does not do it, for this reason: it is full, its disk failed, a packet is broken.
    Refused(String),
    /// It answers what no such server does.
    Strange(String),
    /// A packet came back with other bytes than were stored.
    Broken(PacketKey),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = &self.server;
        match &self.fault {
            Fault::Unreachable(error) => write!(f, "buffer server `{server}`: {error}"),
            Fault::Late(limit) => {
                write!(f, "buffer server `{server}` did not answer within {limit:?}")
            }
            Fault::Refused(reason) => write!(f, "buffer server `{server}`: {reason}"),
            Fault::Strange(line) => {
                write!(f, "`{server}` answers as no memcached does: `{}`", line.escape_debug())
            }
            Fault::Broken(key) => {
                write!(f, "buffer server `{server}` gives other bytes of {key} than it was given")
            }
        }
    }
}

impl std::error::Error for ClientError {}

/// What is to become of packets that are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// They may be evicted: the PFS has them.
    Clean,
    /// They stay until the block is settled.
    Owed,
    /// The same, and they are durable, with all that was stored of their block before on the same
    /// servers, when the call returns, as far as those make anything durable.
    Durable,
}

impl Keep {
    fn flags(self) -> u32 {
        match self {
            Keep::Clean => 0,
            Keep::Owed => flag::OWED,
            Keep::Durable => flag::OWED | flag::SYNC,
        }
    }
}

/// Packets that were asked for, in that order; `None` for each that its server does not have.
pub type Packets = Vec<Option<Vec<u8>>>;

/// What a server says that it does with what is owed to the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing: it is a stock memcached, which evicts, and forgets all when it ends.
    AsAnythingElse,
    /// It is not evicted; it is lost when the server ends.
    InMemory,
    /// It is on its disk, and there again when it is started again.
    OnDisk,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// See the module's documentation.
pub struct Client {
    pool: Pool,
    servers: Vec<Server>,
    settings: ClientSettings,
    /// Start of the names of its connections.
    name: String,
    connections: AtomicU64,
}

struct Server {
    connect: Connect,
    idle: Mutex<Vec<Connection>>,
    /// Names of connections that were given up: what was sent by them may still be carried out.
    given_up: Mutex<Vec<String>>,
}

impl Client {
    /// Of a pool; `ways` lead to its members, in their order.
    pub fn new(pool: Pool, ways: Vec<Connect>, settings: ClientSettings) -> Self {
        let server =
            |connect| Server { connect, idle: Mutex::default(), given_up: Mutex::default() };
        let servers = ways.into_iter().map(server).collect();
        let name = format!("{:016x}", RandomState::new().hash_one(Instant::now()));
        Client { pool, servers, settings, name, connections: AtomicU64::new(0) }
    }

    /// Stores packets of a block; which start of its server took them, where they have one server
    /// that tells. What is not durable is gone with that start.
    ///
    /// # Errors
    /// One server did not take all that it was to have.
    pub fn put(
        &self,
        block: &BlockName,
        packets: &[(u32, &[u8])],
        keep: Keep,
    ) -> Result<Option<u64>, ClientError> {
        let mut starts = Vec::new();
        for (server, of_it) in self.by_server(block, packets.iter().map(|(packet, _)| *packet)) {
            let last = of_it.last().copied();
            let start = self.call(server, |connection| {
                for at in &of_it {
                    let (packet, bytes) = packets[*at];
                    // One answer is for all of a block: those before need no sync of their own.
                    let keep = match keep {
                        Keep::Durable if last != Some(*at) => Keep::Owed,
                        keep => keep,
                    };
                    let key = PacketKey { block: *block, packet };
                    connection.store(&key, keep.flags(), bytes)?;
                }
                connection.barrier()?;
                Ok(connection.start())
            })?;
            starts.push(start);
        }
        Ok(if let [start] = starts[..] { start } else { None })
    }

    /// Fetches packets of a block; `None` for each that its server does not have.
    ///
    /// # Errors
    /// A server cannot be asked, or a packet is broken.
    pub fn get(&self, block: &BlockName, packets: &[u32]) -> Result<Packets, ClientError> {
        let mut fetched = vec![None; packets.len()];
        for (server, of_it) in self.by_server(block, packets.iter().copied()) {
            let keys: Vec<_> =
                of_it.iter().map(|at| PacketKey { block: *block, packet: packets[*at] }).collect();
            let found = self.call(server, |connection| {
                let some = keys.chunks(connection.asked_max());
                some.map(|keys| connection.fetch(keys)).collect::<Result<Vec<_>, _>>()
            })?;
            of_it.iter().zip(found.into_iter().flatten()).for_each(|(at, it)| fetched[*at] = it);
        }
        Ok(fetched)
    }

    /// Tells all servers of a block of up to `packets` packets that the PFS has it, or that nobody
    /// needs it, whatever was stored of it and when. Stock memcached evicts it anyway.
    ///
    /// # Errors
    /// A server cannot be told: it keeps what it has.
    pub fn settle(&self, block: &BlockName, packets: u32) -> Result<(), ClientError> {
        let servers: Vec<usize> = match self.pool.placement() {
            Placement::Block => vec![self.pool.server_of(&PacketKey { block: *block, packet: 0 })],
            Placement::Packet => (0..self.servers.len()).collect(),
        };
        let settle = |server| self.call(server, |connection| connection.settle(block, packets));
        // All are told, also after one could not be.
        servers.into_iter().map(settle).collect::<Vec<_>>().into_iter().collect()
    }

    /// Tells all servers that nobody needs a block of a time in memory, whatever was stored of it,
    /// but for the last one ([`LAST_BLOCK`](crate::key::LAST_BLOCK)).
    ///
    /// # Errors
    /// A server cannot be told: it keeps what it has.
    pub fn forget(&self, epoch: u64) -> Result<(), ClientError> {
        let forget = |server| self.call(server, |connection| connection.forget(epoch));
        // All are told, also after one could not be.
        (0..self.servers.len()).map(forget).collect::<Vec<_>>().into_iter().collect()
    }

    /// The servers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Removes packets of a block.
    ///
    /// # Errors
    /// A server cannot be told.
    pub fn remove(&self, block: &BlockName, packets: &[u32]) -> Result<(), ClientError> {
        for (server, of_it) in self.by_server(block, packets.iter().copied()) {
            self.call(server, |connection| {
                for at in &of_it {
                    connection.remove(&PacketKey { block: *block, packet: packets[*at] })?;
                }
                connection.barrier()
            })?;
        }
        Ok(())
    }

    /// What each server does with what is owed to the PFS, in the order of the pool.
    ///
    /// # Errors
    /// A server cannot be asked.
    pub fn kept(&self) -> Result<Vec<Kept>, ClientError> {
        (0..self.servers.len()).map(|server| self.call(server, Connection::kept)).collect()
    }

    /// Packets, by their place in a list, of each server that has any.
    fn by_server(
        &self,
        block: &BlockName,
        packets: impl Iterator<Item = u32>,
    ) -> Vec<(usize, Vec<usize>)> {
        let mut by_server = vec![Vec::new(); self.servers.len()];
        for (at, packet) in packets.enumerate() {
            by_server[self.pool.server_of(&PacketKey { block: *block, packet })].push(at);
        }
        by_server.into_iter().enumerate().filter(|(_, of_it)| !of_it.is_empty()).collect()
    }

    /// Does something by a connection to a server.
    fn call<T>(
        &self,
        server: usize,
        act: impl Fn(&mut Connection) -> Result<T, Fault>,
    ) -> Result<T, ClientError> {
        let named = |fault| {
            let server = self.pool.members()[server].name.clone();
            ClientError { server, fault }
        };
        let of_it = &self.servers[server];
        let until = Instant::now() + self.settings.deadline;
        let kept = of_it.idle.lock().pop().filter(Connection::is_at_rest);
        let was_kept = kept.is_some();
        let mut connection = kept.map_or_else(|| self.connect(of_it, until), Ok).map_err(named)?;
        connection.begin(until);
        let mut done = of_it.fence(&mut connection).and_then(|()| act(&mut connection));
        // A server that was started again closed those of before. All that is sent may be repeated.
        if was_kept && matches!(done, Err(Fault::Unreachable(_))) {
            of_it.give_up(&connection);
            connection = self.connect(of_it, until).map_err(named)?;
            done = of_it.fence(&mut connection).and_then(|()| act(&mut connection));
        }
        // After anything else it is not known what comes next.
        let is_sound = matches!(done, Ok(_) | Err(Fault::Broken(_) | Fault::Refused(_)));
        if !(is_sound && connection.is_at_rest()) {
            of_it.give_up(&connection);
            return done.map_err(named);
        }
        let mut idle = of_it.idle.lock();
        if idle.len() < self.settings.idle_max {
            idle.push(connection);
        }
        drop(idle);
        done.map_err(named)
    }

    fn connect(&self, server: &Server, until: Instant) -> Result<Connection, Fault> {
        let left = until.saturating_duration_since(Instant::now());
        let limit = self.settings.connect_timeout.min(left).max(Duration::from_millis(1));
        let stream = (server.connect)(limit).map_err(Fault::Unreachable)?;
        let mut connection = Connection::new(stream, self.settings.deadline);
        connection.begin(until);
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        connection.introduce(format!("{}-{number}", self.name))?;
        Ok(connection)
    }
}

impl Server {
    /// What is sent by this connection counts no more; it is fenced before anything else is sent.
    fn give_up(&self, connection: &Connection) {
        self.given_up.lock().extend(connection.name().map(str::to_owned));
    }

    /// Has nothing more be carried out that was sent by connections that were given up.
    fn fence(&self, connection: &mut Connection) -> Result<(), Fault> {
        loop {
            let Some(name) = self.given_up.lock().last().cloned() else { return Ok(()) };
            connection.fence(&name)?;
            self.given_up.lock().retain(|other| *other != name);
        }
    }
}
