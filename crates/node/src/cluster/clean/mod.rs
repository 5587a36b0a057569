//! Clean copies in burst buffers, of files that are written in mode `adw` or `bld`: the PFS has the
//! bytes, and readers have them from memory.
//!
//! * `writing`: which packets the servers have. `push`: sends them beside the writer. `tell`: the
//!   records.
//! * `find`: where a reader looks before it asks the PFS.
//!
//! Packets go to the servers while a file is written, under a random number. Once it is closed, and
//! durable on the PFS, a *record* for each 4 GiB tells which there are. It is stored under a name
//! made of the file and its version, so a reader that sees that version on the PFS finds it without
//! asking anybody else. It has a digest of each packet, and the seal of the cluster, so nobody who
//! reaches the servers can have other bytes taken for those of a file.
//!
//! # Invariants
//!
//! 1. Packets are copied from the store under the file's gate, so they are bytes of the version
//!    that this node records (invariant 3 of [`crate::file`]). A change is noted before the version
//!    that it makes is recorded.
//! 2. Who reads compares each packet with the digest that its record has of it: a packet that was
//!    sent again since, as the file changed, is no packet of that record.
//! 3. Nothing here is needed. Servers may forget what they like, and who finds nothing, or finds it
//!    too late, reads the PFS.

mod find;
mod push;
mod tell;
mod writing;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use tidepool_buffer::client::{self, Client, ClientSettings};
use tidepool_buffer::key::{BlockName, LAST_BLOCK, PacketKey};
use tidepool_buffer::placement::{Member, Placement, Pool};
use tidepool_pfs::LowerFile;
use tidepool_proto::cluster::CleanCopiesStatus;

use self::tell::Told;
use super::Cluster;
use super::shared::Shared;
use crate::counters::Counter;
use crate::file::cached_version::CachedVersion;
use crate::file::state::FileState;

pub use self::find::Found;
pub use self::push::{Change, note_change, send, step};
pub use self::writing::{Digest, Writing};

/// First byte of a record, before the rest: another release may tell more.
const FORM: u8 = 1;
/// Longest time that a call takes: who waits can read the PFS.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long no server is asked after one could not be.
const AVOIDED_FOR: Duration = Duration::from_secs(10);
/// Files that wait at a time, each with a descriptor. Where servers are that slow the next ones get
/// no copies.
const QUEUE_MAX: usize = 128;
/// Pools for which a client is kept.
const CLIENTS_MAX: usize = 8;

/// Packets of which one record tells.
const CHUNK_PACKETS: u64 = 8192;

/// Which packets there are of a part of a version.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// See [`Shared::words`].
    file: [u64; 2],
    version: [i64; 3],
    /// Which part: its packets, counted through the file, divided by [`CHUNK_PACKETS`].
    chunk: u64,
    epoch: u64,
    /// Each packet has its own place, and not that of its block.
    is_by_packet: bool,
    /// The servers, and their weights.
    servers: Vec<(String, u64)>,
    /// Packets, counted through the file, and what their bytes are known by.
    packets: BTreeMap<u64, Digest>,
}

/// A file that waits for its packets to be sent.
struct Job {
    cached: Arc<CachedVersion>,
    /// Who removes the file does not wait for what is sent of it.
    file: Weak<FileState>,
    lower: Arc<dyn LowerFile>,
    writing: Arc<Writing>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct CleanCopies {
    queue: Mutex<VecDeque<Job>>,
    wake: Condvar,
    told: Mutex<VecDeque<Told>>,
    /// When these were looked at last.
    looked: Mutex<Option<Instant>>,
    clients: Mutex<Vec<Arc<Client>>>,
    /// When a server could not be asked last.
    failed: Mutex<Option<Instant>>,
    pushed_bytes: Counter,
    fetched_bytes: Counter,
}

impl CleanCopies {
    fn are_avoided(&self) -> bool {
        self.failed.lock().is_some_and(|at| at.elapsed() < AVOIDED_FOR)
    }

    fn avoid(&self) {
        *self.failed.lock() = Some(Instant::now());
    }

    /// What was done so far.
    pub fn status(&self) -> CleanCopiesStatus {
        CleanCopiesStatus {
            pushed_bytes: self.pushed_bytes.get(),
            fetched_bytes: self.fetched_bytes.get(),
        }
    }

    /// Lets the threads see that the node stops.
    pub fn stop(&self) {
        drop(self.queue.lock());
        self.wake.notify_all();
    }
}

impl Cluster {
    /// Where the record of a part of a version is. Nobody without the cluster's key can tell.
    fn record_key(&self, shared: &Shared, chunk: u64) -> PacketKey {
        let (file, version) = shared.words();
        let words = format!("clean copies {file:?} {version:?} {chunk}");
        let seal = self.seal.digest(words.as_bytes());
        let epoch = u64::from_le_bytes(*seal.first_chunk().expect("it has 32 bytes"));
        PacketKey { block: BlockName { epoch, block: LAST_BLOCK }, packet: 0 }
    }

    /// What the bytes of a packet are known by.
    fn digest(&self, bytes: &[u8]) -> Digest {
        *self.seal.digest(bytes).first_chunk().expect("it has 32 bytes")
    }

    /// A client of all servers that are there, this node's among them.
    fn clean_client(&self, placement: Placement) -> Option<Arc<Client>> {
        if self.clean.are_avoided() || self.is_stopping() {
            return None;
        }
        let member = |name: &String| Member { name: name.clone(), weight: 1.0 };
        let members = match &self.config.buffer_servers[..] {
            [] => self.all_buffer_nodes(),
            stock => stock.iter().map(member).collect(),
        };
        if members.is_empty() { None } else { self.clean_client_of(members, placement) }
    }

    /// A client of these servers.
    fn clean_client_of(&self, members: Vec<Member>, placement: Placement) -> Option<Arc<Client>> {
        let mut clients = self.clean.clients.lock();
        let is_it = |client: &&Arc<Client>| {
            client.pool().members() == members && client.pool().placement() == placement
        };
        if let Some(client) = clients.iter().find(is_it) {
            return Some(client.clone());
        }
        let settings = ClientSettings { deadline: DEADLINE, ..ClientSettings::default() };
        let is_stock = |name: &String| self.config.buffer_servers.contains(name);
        let ways = members.iter().map(|member| match is_stock(&member.name) {
            true => Ok(client::tcp_by_name(member.name.clone())),
            false => self.way_to(&member.name),
        });
        let ways = ways.collect::<Result<Vec<_>, String>>();
        let made = ways.and_then(|ways| {
            let pool = Pool::new(members, placement).map_err(|error| error.to_string())?;
            Ok(Arc::new(Client::new(pool, ways, settings)))
        });
        let client = made.inspect_err(|reason| tracing::debug!(reason, "no burst buffer")).ok()?;
        if clients.len() >= CLIENTS_MAX {
            clients.remove(0);
        }
        clients.push(client.clone());
        Some(client)
    }
}
