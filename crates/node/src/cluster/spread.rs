//! `tidepool load --spread`: each split of a file comes into the memory of its owner among the
//! nodes, and into no other.
//!
//! A node opens the file by the name that another one tells, with its own rights, and only brings
//! it in: who reads it there must still show a descriptor. The file must be the one that the
//! asking node was shown a descriptor of, at the same version, or nothing is brought in. What comes
//! in is charged to the user who asked.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidepool_cluster::NodeName;
use tidepool_proto::admin::{SpreadReport, SpreadShare};
use tidepool_proto::locality::{Locality, SPLITS_MAX, SplitRange};
use tidepool_proto::{Error, ErrorKind, OpenFile, Result, Version, hadoop};

use super::shared::Shared;
use super::{Cluster, beneath, threads};
use crate::core::Core;
use crate::node::Node;
use crate::ticket::Origin;

/// Longest wait for another node to bring a split in.
const LIMIT: Duration = Duration::from_secs(120);

/// A split that another node is to bring in.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    /// Path below the PFS directory.
    pub path: Vec<u8>,
    /// See [`Shared::words`].
    pub file: ([u64; 2], [i64; 3]),
    /// Whose quota pays.
    pub user_id: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Whether they come from who holds them, and not each from the PFS.
    pub from_peers: bool,
}

/// What became of it: bytes that are resident now, or why not.
pub(super) type Answer = std::result::Result<u64, String>;

/// Answers another node.
pub fn answer(cluster: &Cluster, from: &NodeName, request: &[u8]) -> Vec<u8> {
    let answer: Answer = match cluster.proofs.holds(from) {
        true => bring_in(cluster, request).map_err(|error| error.to_string()),
        false => Err("it has not yet found out that both see the same files".to_owned()),
    };
    postcard::to_stdvec(&answer).unwrap_or_default()
}

fn refused(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "bringing in for another node", detail)
}

fn bring_in(cluster: &Cluster, request: &[u8]) -> Result<u64> {
    let asked: Asked = postcard::from_bytes(request)
        .map_err(|_| refused("it asks what this release does not understand"))?;
    let node = cluster.node();
    let node = node.ok_or_else(|| refused("the node is starting or ending"))?;
    let file = open_below(&node.core, &asked.path)?;
    node.bring_in_split(file, &asked, &|| !cluster.is_stopping())
}

/// Opens a regular file by its path below the PFS directory, and nothing else.
fn open_below(core: &Core, path: &[u8]) -> Result<OwnedFd> {
    let failed = |error| Error::pfs("opening a file for another node", error);
    let path = Path::new(OsStr::from_bytes(path));
    let found = beneath::regular_file(core.pfs.root_descriptor(), path).map_err(failed)?;
    let found = found.ok_or_else(|| refused("it is no regular file"))?;
    beneath::reopen(&found).map_err(failed)
}

/// Another descriptor of the same open.
fn again(descriptor: &OwnedFd) -> Result<OwnedFd> {
    descriptor.try_clone().map_err(|error| {
        Error::new(ErrorKind::LimitReached, "spreading a file over the nodes", "").caused_by(error)
    })
}

impl Node {
    fn bring_in_split(
        &self,
        file: OwnedFd,
        asked: &Asked,
        go_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let open = self.open_for_admin(file, asked.user_id)?;
        if Shared::named(&open.version()).words() != asked.file {
            return Err(Error::new(ErrorKind::Changed, "bringing in for another node", "")
                .remedy("load it again: it changed meanwhile"));
        }
        let ahead = u64::from(self.core.config.transfers) * self.core.block_bytes();
        let turn = self.loads.turn(asked.user_id, go_on)?;
        let range = asked.offset..asked.offset.saturating_add(asked.length);
        // Two owners of neighbouring splits would share their reading otherwise, and both keep it.
        let origin = if asked.from_peers { Origin::Servers } else { Origin::OwnShare };
        open.bring_in_part((range, origin), ahead, go_on)?;
        drop(turn);
        Ok(self.resident_of(&open.version(), asked))
    }

    /// Bytes of the range that are in memory.
    fn resident_of(&self, version: &Version, asked: &Asked) -> u64 {
        let small = self.core.store.small_state(version.id);
        if small.is_some_and(|(cached, _)| cached.agrees_with(version)) {
            return asked.length;
        }
        let cached = self.core.files.get(version.id).and_then(|file| file.cached());
        let segment = cached.and_then(|cached| cached.segment().cloned());
        let Some(segment) = segment else { return 0 };
        let block_bytes = self.core.block_bytes();
        let end = (asked.offset + asked.length).min(segment.size());
        let blocks = asked.offset / block_bytes..end.div_ceil(block_bytes);
        let bytes = |block: u64| {
            let from = (block * block_bytes).max(asked.offset);
            ((block + 1) * block_bytes).min(end).saturating_sub(from)
        };
        blocks.filter(|block| segment.pin_block(*block).is_some()).map(bytes).sum()
    }

    /// Has each split that nobody holds brought in by its owner. Owners work at the same time, each
    /// on one split after the other.
    pub(crate) fn spread(
        &self,
        descriptor: OwnedFd,
        user_id: u32,
        go_on: &dyn Fn() -> bool,
    ) -> Result<SpreadReport> {
        let operation = "spreading a file over the nodes";
        let cluster = self.core.cluster().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, operation, "this node stands alone")
                .remedy("load it without --spread, or list the nodes (`cluster_nodes`)")
        })?;
        let lower = self.core.pfs.file(again(&descriptor)?)?;
        let version = lower.version()?;
        let path = lower.relative_path().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, operation, "the file has no name any more")
        })?;
        drop(lower);
        let (held_bytes, absent) = self.absent_splits(&descriptor, &version)?;
        let file = Shared::named(&version).words();
        let path = path.into_os_string().into_vec();
        let split_bytes = hadoop::split_bytes_default();
        let asked = |split: u64| Asked {
            path: path.clone(),
            file,
            user_id,
            offset: split * split_bytes,
            length: split_bytes.min(version.size - split * split_bytes),
            from_peers: false,
        };
        let ended = AtomicBool::new(false);
        let nodes = std::thread::scope(|scope| {
            let bring = |(owner, splits): (String, Vec<u64>)| {
                let (asked, ended, descriptor) = (&asked, &ended, &descriptor);
                scope.spawn(move || {
                    let all = splits.into_iter().map(asked).collect();
                    let go_on = || !ended.load(Ordering::Relaxed);
                    self.share(cluster, owner, all, descriptor, &go_on)
                })
            };
            let working: Vec<_> = absent.into_iter().map(bring).collect();
            while working.iter().any(|thread| !thread.is_finished()) {
                ended.store(!go_on(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
            working.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        crate::loads::check(go_on)?;
        Ok(SpreadReport { size_bytes: version.size, held_bytes, nodes })
    }

    /// Bytes of splits that are in memory somewhere, and the others by their owners.
    fn absent_splits(
        &self,
        descriptor: &OwnedFd,
        version: &Version,
    ) -> Result<(u64, BTreeMap<String, Vec<u64>>)> {
        let split_bytes = hadoop::split_bytes_default();
        let splits = version.size.div_ceil(split_bytes);
        let (mut held_bytes, mut absent) = (0, BTreeMap::<String, Vec<u64>>::new());
        let mut first = 0;
        while first < splits {
            let range = SplitRange { split_bytes, first, count: SPLITS_MAX };
            let Locality::Splits(hosts) = self.locate(again(descriptor)?, range)? else { break };
            for (split, number) in hosts.splits.iter().zip(first..) {
                let length = split_bytes.min(version.size - number * split_bytes);
                match hosts.names_of(split).next() {
                    Some(owner) if !split.in_memory => {
                        absent.entry(owner.to_owned()).or_default().push(number);
                    }
                    _ => held_bytes += length,
                }
            }
            if hosts.splits.is_empty() {
                break;
            }
            first += hosts.splits.len() as u64;
        }
        Ok((held_bytes, absent))
    }

    /// Has one node bring its splits in. What one split fails for is told, and ends it.
    fn share(
        &self,
        cluster: &Cluster,
        owner: String,
        splits: Vec<Asked>,
        descriptor: &OwnedFd,
        go_on: &dyn Fn() -> bool,
    ) -> SpreadShare {
        let asked_bytes = splits.iter().map(|asked| asked.length).sum();
        let mut share = SpreadShare { node: owner, asked_bytes, ..SpreadShare::default() };
        for asked in splits {
            let brought = match share.node == cluster.me.as_str() {
                true => again(descriptor)
                    .and_then(|file| self.bring_in_split(file, &asked, go_on))
                    .map_err(|error| error.to_string()),
                false => cluster.have_brought_in(&share.node, &asked, LIMIT),
            };
            match brought {
                Ok(bytes) => share.resident_bytes += bytes,
                Err(error) => {
                    share.error = Some(error);
                    break;
                }
            }
            if !go_on() {
                break;
            }
        }
        if share.resident_bytes < asked_bytes && share.error.is_none() {
            share.error = Some("its store has no room for all of it".to_owned());
        }
        share
    }
}

impl Cluster {
    /// Has another node bring a part in. The bytes of it that are in its memory then.
    pub(super) fn have_brought_in(&self, node: &str, asked: &Asked, limit: Duration) -> Answer {
        let request = postcard::to_stdvec(asked).map_err(|error| error.to_string())?;
        let reply = self.transport.call(node, &threads::about_split(&request), limit);
        let reply = reply.map_err(|error| error.to_string())?;
        postcard::from_bytes::<Answer>(&reply)
            .map_err(|_| "it answers what this release does not understand".to_owned())?
    }
}
