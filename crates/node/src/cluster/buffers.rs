//! Burst buffers of other nodes: which nodes have one, and the way to it by the peer port.
//!
//! Commands go in messages of the authenticated connections. They are obeyed for members that
//! proved that they see the same files.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidepool_buffer::client::{self, Client, ClientSettings, Connect};
use tidepool_buffer::placement::{Member, Placement, Pool};
use tidepool_cluster::NodeName;

use super::{Cluster, threads};
use crate::burst_buffer::{MESSAGE_BYTES_MAX, PATIENCE};

/// What is asked of a node about its burst buffer. Commands follow the message.
#[derive(Debug, Serialize, Deserialize)]
enum Asked {
    /// Whether it has one.
    Facts,
    /// To obey commands.
    Obey,
}

/// What a node says of its burst buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What it owes is there again after a crash.
    pub is_on_disk: bool,
    /// Its memory, which is its share in what is spread.
    pub memory_bytes: u64,
    /// Which start of it this is: another one may have another disk.
    pub start: u64,
}

/// What is known of burst buffers of other nodes.
#[derive(Default)]
pub struct Buffers {
    known: Mutex<BTreeMap<NodeName, (Option<Facts>, Instant)>>,
    /// That of all which were there last.
    client: Mutex<Option<Arc<Client>>>,
    /// There was none for the last file.
    is_short: AtomicBool,
    /// When a file could not be stored last.
    failed: Mutex<Option<Instant>>,
}

impl Buffers {
    /// Which start of a node's burst buffer was there last, if any was.
    pub fn start_of(&self, node: &NodeName) -> Option<u64> {
        Some(self.known.lock().get(node)?.0?.start)
    }

    /// Files that begin soon are written through: one could not be stored, as a buffer is full or
    /// does not answer.
    pub fn avoid(&self) {
        *self.failed.lock() = Some(Instant::now());
    }

    /// Whether files may begin in burst buffers.
    pub fn are_well(&self) -> bool {
        self.failed.lock().is_none_or(|at| at.elapsed() > AVOIDED_FOR)
    }

    /// Says once, and again after it was otherwise, that there is none.
    pub fn note_placed(&self, is_placed: bool) {
        if !is_placed && !self.is_short.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "no other node has a burst buffer with a disk: files of mode `alw` are written \
                 through; start one with `buffer_bytes` and `buffer_directory`"
            );
        } else if is_placed {
            self.is_short.store(false, Ordering::Relaxed);
        }
    }

    /// A client of these nodes, which files share.
    pub fn shared_client(
        &self,
        members: &[Member],
        make: impl FnOnce() -> Result<Arc<Client>, String>,
    ) -> Option<Arc<Client>> {
        let mut client = self.client.lock();
        if client.as_ref().is_none_or(|it| it.pool().members() != members) {
            *client = make().ok();
        }
        client.clone()
    }
}

/// How long no file begins in burst buffers after one could not be stored.
const AVOIDED_FOR: Duration = Duration::from_secs(10);
/// Time after which a node is asked again.
const ASK_INTERVAL: Duration = Duration::from_secs(2);

/// Answers another node.
pub fn answer(cluster: &Cluster, from: &NodeName, request: &[u8]) -> Vec<u8> {
    let Ok((asked, commands)) = postcard::take_from_bytes::<Asked>(request) else {
        return Vec::new();
    };
    let core = cluster.core.upgrade().filter(|_| !cluster.is_stopping());
    let core = core.filter(|_| cluster.proofs.holds(from));
    let buffer = core.as_ref().and_then(|core| core.burst_buffer.as_deref());
    match asked {
        Asked::Facts => {
            let facts = buffer.map(|buffer| Facts {
                is_on_disk: buffer.is_on_disk(),
                memory_bytes: buffer.memory_bytes(),
                start: buffer.start_number(),
            });
            postcard::to_stdvec(&facts).unwrap_or_default()
        }
        Asked::Obey => {
            let answers =
                buffer.and_then(|it| it.shared().obey(commands, MESSAGE_BYTES_MAX - 1).ok());
            answers
                .unwrap_or_else(|| b"SERVER_ERROR it takes nothing from this node now\r\n".into())
        }
    }
}

fn member(node: &NodeName, memory_bytes: u64) -> Member {
    Member { name: node.to_string(), weight: memory_bytes as f64 }
}

/// The servers of a client and their weights, as nodes tell them to each other.
pub fn weights(client: &Client) -> Vec<(String, u64)> {
    let members = client.pool().members().iter();
    members.map(|member| (member.name.clone(), member.weight as u64)).collect()
}

/// Servers of which a node told so.
pub fn members_of(weights: &[(String, u64)]) -> Vec<Member> {
    let member =
        |(name, weight): &(String, u64)| Member { name: name.clone(), weight: *weight as f64 };
    weights.iter().map(member).collect()
}

impl Cluster {
    /// Asks members whether they have a burst buffer, now and then.
    pub(super) fn look_for_buffers(&self) {
        let members = self.members.lock().members();
        for node in members.into_iter().map(|member| member.name) {
            let is_known = || {
                let known = self.buffers.known.lock();
                known.get(&node).is_some_and(|(_, at)| at.elapsed() < ASK_INTERVAL)
            };
            if node == self.me || !self.proofs.holds(&node) || is_known() {
                continue;
            }
            let answer = self.ask_for_facts(&node);
            let mut known = self.buffers.known.lock();
            // One that does not answer has what it had, as long as it is a member.
            let facts = answer.unwrap_or_else(|| known.get(&node).and_then(|(facts, _)| *facts));
            let before = known.insert(node.clone(), (facts, Instant::now()));
            if facts.is_some() && before.is_none_or(|(before, _)| before != facts) {
                tracing::info!(%node, ?facts, "it has a burst buffer");
            }
        }
    }

    /// Whether a node has a burst buffer; the outer `None` where it does not answer.
    fn ask_for_facts(&self, node: &NodeName) -> Option<Option<Facts>> {
        let request = threads::about_buffers(&postcard::to_stdvec(&Asked::Facts).ok()?);
        let reply = self.transport.call(node.as_str(), &request, self.config.peer_timeout).ok()?;
        postcard::from_bytes(&reply).ok()
    }

    /// What is known of the burst buffers of other nodes that are there.
    fn buffers_there(&self) -> impl Iterator<Item = (NodeName, Facts)> {
        let known = self.buffers.known.lock().clone();
        let members = self.members.lock();
        let is_there = |node: &NodeName| members.is_alive(node) && self.proofs.holds(node);
        let there = known.into_iter().filter(|(node, _)| is_there(node));
        let there = there.filter_map(|(node, (facts, _))| Some((node, facts?)));
        there.collect::<Vec<_>>().into_iter()
    }

    /// The other nodes that are there and have a burst buffer whose blocks outlast a crash, with
    /// their shares.
    pub(super) fn buffer_nodes(&self) -> Vec<Member> {
        let on_disk = self.buffers_there().filter(|(_, facts)| facts.is_on_disk);
        on_disk.map(|(node, facts)| member(&node, facts.memory_bytes)).collect()
    }

    /// All nodes that are there and have a burst buffer, on a disk or not, with their shares; this
    /// one may be among them.
    pub(super) fn all_buffer_nodes(&self) -> Vec<Member> {
        let others = self.buffers_there().map(|(node, facts)| (node, facts.memory_bytes));
        let core = self.core.upgrade();
        let own = core.as_ref().and_then(|core| core.burst_buffer.as_ref());
        let own = own.map(|buffer| (self.me.clone(), buffer.memory_bytes()));
        let mut all: Vec<_> = others.chain(own).collect();
        all.sort_unstable();
        all.iter().map(|(node, bytes)| member(node, *bytes)).collect()
    }

    /// A client of the burst buffers of these nodes, of which this one may be one.
    ///
    /// # Errors
    /// They make no pool; this node has no buffer.
    pub(super) fn buffer_client(
        &self,
        members: Vec<Member>,
        placement: Placement,
    ) -> Result<Client, String> {
        let ways = members.iter().map(|member| self.way_to(&member.name));
        let ways = ways.collect::<Result<Vec<_>, _>>()?;
        let pool = Pool::new(members, placement).map_err(|error| error.to_string())?;
        let deadline = PATIENCE + 2 * self.config.peer_timeout;
        let settings = ClientSettings { deadline, ..ClientSettings::default() };
        Ok(Client::new(pool, ways, settings))
    }

    pub(super) fn way_to(&self, node: &str) -> Result<Connect, String> {
        if node == self.me.as_str() {
            let core = self.core.upgrade().ok_or("it ends")?;
            let buffer = core.burst_buffer.as_ref().ok_or("this node has no burst buffer now")?;
            return Ok(buffer.way());
        }
        let name = NodeName::new(node).map_err(|error| error.to_string())?;
        let (myself, head) = (self.myself.clone(), postcard::to_stdvec(&Asked::Obey));
        let head = threads::about_buffers(&head.map_err(|error| error.to_string())?);
        let call = move |message: &[u8], left: Duration| {
            let cluster = myself.upgrade().ok_or_else(|| io::Error::other("this node ends"))?;
            if let Some(reason) = cluster.why_not_asked(&name) {
                return Err(io::Error::new(io::ErrorKind::NotConnected, reason));
            }
            cluster.transport.call(name.as_str(), message, left).map_err(io::Error::other)
        };
        Ok(client::messages(MESSAGE_BYTES_MAX, head, call))
    }
}
