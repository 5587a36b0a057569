//! Whether another node sees the same files: each node keeps a small file in the PFS directory, and
//! the others look for it there. Only nodes that see it with the inode number and birth time that
//! its maker sees are given bytes, or asked for any.
//!
//! Where a node may not write there, the directory itself stands for the file, if its file system
//! tells when it was made.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use serde::{Deserialize, Serialize};
use tidepool_cluster::NodeName;
use tidepool_proto::Version;

use super::{Cluster, threads};
use crate::core::Core;

/// Begin of the names of these files.
const PREFIX: &str = ".tidepool-join-";
/// Why a node is not asked which says that it does not know this one.
pub const UNKNOWN_THERE: &str = "it has not yet found out that this node sees the same files";
/// Time between two looks at a node that could not be proven, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// How long another sight of a file may be that of an earlier moment.
const SETTLED: Duration = Duration::from_secs(10);

/// What a node says of its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinFile {
    /// Its name; empty where the directory stands for it.
    name: String,
    content: String,
    inode: u64,
    born_ns: i128,
}

/// What is known of the other nodes.
#[derive(Default)]
pub struct Proofs {
    own: Mutex<Option<JoinFile>>,
    known: Mutex<HashMap<NodeName, Proof>>,
    proven: AtomicUsize,
}

/// Why a node is not known to see the same files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// What it said did not come, or is not known yet: it may be proven at the next look.
    NotYet(String),
    /// What it sees is something else.
    Differs(String),
}

impl Refused {
    fn because(&self) -> &String {
        let (Refused::NotYet(because) | Refused::Differs(because)) = self;
        because
    }
}

struct Proof {
    refused: Option<Refused>,
    /// Since when it is refused; 0 before it was looked at.
    since: Duration,
    next_look: Duration,
    pause: Duration,
}

impl Proofs {
    /// Whether any other node sees the same files.
    pub fn any(&self) -> bool {
        self.proven.load(Ordering::Acquire) > 0
    }

    /// Whether this node does.
    pub fn holds(&self, node: &NodeName) -> bool {
        self.known.lock().get(node).is_some_and(|proof| proof.refused.is_none())
    }

    /// Why it is not known to.
    pub fn refused_because(&self, node: &NodeName) -> Option<String> {
        self.known.lock().get(node)?.refused.as_ref().map(|it| it.because().clone())
    }

    /// Why it sees other files, where that was seen: it is not worth to wait for it.
    pub fn differs_because(&self, node: &NodeName) -> Option<String> {
        match self.known.lock().get(node)?.refused.as_ref()? {
            Refused::NotYet(_) => None,
            Refused::Differs(because) => Some(because.clone()),
        }
    }

    /// Asks this node nothing before it was looked at again.
    pub fn doubt(&self, node: &NodeName, because: &str) {
        self.note(node, Some(Refused::NotYet(because.to_owned())), Duration::ZERO);
    }

    /// Forgets a node that went away: it may come back with another PFS.
    pub fn forget(&self, node: &NodeName) {
        let mut known = self.known.lock();
        known.remove(node);
        self.count(&known);
    }

    pub(super) fn note(&self, node: &NodeName, refused: Option<Refused>, now: Duration) {
        let mut known = self.known.lock();
        let before = known.get(node);
        let pause = before.map_or(PAUSES.0, |proof| (proof.pause * 2).min(PAUSES.1));
        let pause = if refused.is_none() { PAUSES.0 } else { pause };
        let since = before.filter(|it| it.refused.is_some() && !it.since.is_zero());
        let since = since.map_or(now, |it| it.since);
        let refused = refused.map(|refused| match refused {
            // A client of the PFS may show for a while what was there before the node started.
            Refused::Differs(because) if now.saturating_sub(since) < SETTLED => {
                Refused::NotYet(because)
            }
            other => other,
        });
        known.insert(node.clone(), Proof { refused, since, next_look: now + pause, pause });
        self.count(&known);
    }

    fn count(&self, known: &HashMap<NodeName, Proof>) {
        let proven = known.values().filter(|proof| proof.refused.is_none()).count();
        self.proven.store(proven, Ordering::Release);
    }

    fn is_due(&self, node: &NodeName, now: Duration) -> bool {
        let known = self.known.lock();
        let is_due = |proof: &Proof| proof.refused.is_some() && proof.next_look <= now;
        known.get(node).is_none_or(is_due)
    }

    /// What this node says of its file, made now if there is none.
    pub fn own(&self, core: &Core, cluster: &Cluster) -> std::io::Result<JoinFile> {
        let mut own = self.own.lock();
        match &*own {
            Some(file) => Ok(file.clone()),
            None => Ok(own.insert(JoinFile::make(core, cluster)?).clone()),
        }
    }

    /// Removes this node's file.
    pub fn remove_own(&self, core: Option<&Core>) {
        let own = self.own.lock().take();
        if let (Some(core), Some(file)) = (core, own.filter(|file| !file.name.is_empty())) {
            let root = core.pfs.root_descriptor();
            let _ = rustix::fs::unlinkat(root, &file.name, AtFlags::empty());
        }
    }
}

impl JoinFile {
    fn make(core: &Core, cluster: &Cluster) -> std::io::Result<JoinFile> {
        let root = core.pfs.root_descriptor();
        let name = format!("{PREFIX}{}-{}", cluster.config.cluster_name, cluster.me);
        // Another file than the one of an earlier start, which clients of the PFS may remember.
        let _ = rustix::fs::unlinkat(root, &name, AtFlags::empty());
        let content = format!("{:032x}\n", threads::random());
        let flags =
            OFlags::CREATE | OFlags::RDWR | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let file = match rustix::fs::openat(root, &name, flags, mode) {
            Ok(file) => file,
            Err(_) => return JoinFile::directory(core),
        };
        let mut file = std::fs::File::from(file);
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        let (inode, born_ns) = identity(&file)?;
        Ok(JoinFile { name, content, inode, born_ns })
    }

    fn directory(core: &Core) -> std::io::Result<JoinFile> {
        let (inode, born_ns) = identity(core.pfs.root_descriptor())?;
        Ok(JoinFile { name: String::new(), content: String::new(), inode, born_ns })
    }

    /// Why this node does not see the file as its maker says; `None` where it does.
    fn compare(&self, core: &Core) -> Option<String> {
        if self.name.is_empty() {
            return self.compare_directory(core);
        }
        let file = match self.open(core) {
            Ok(file) => std::fs::File::from(file),
            Err(error) => {
                return Some(format!(
                    "its file {} is not in this node's PFS directory ({error}): both nodes must \
                     serve the same directory of the same PFS",
                    self.name
                ));
            }
        };
        let mut content = String::new();
        // Further in it has what `super::sight` writes.
        let read = (&file).take(self.content.len() as u64).read_to_string(&mut content);
        if read.is_err() || content != self.content {
            return Some(format!(
                "its file {} holds something else here: another PFS, or one whose client still \
                 shows an earlier state",
                self.name
            ));
        }
        match identity(&file) {
            Ok(seen) if seen == (self.inode, self.born_ns) => None,
            Ok((inode, _)) => Some(format!(
                "its file {} has inode number {} there and {inode} here: the PFS's client invents \
                 them, so files cannot be told apart",
                self.name, self.inode
            )),
            Err(error) => Some(format!("asking for its file {}: {error}", self.name)),
        }
    }

    /// Opens it to read.
    pub(super) fn open(&self, core: &Core) -> std::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let root = core.pfs.root_descriptor();
        Ok(rustix::fs::openat(root, &self.name, flags, Mode::empty())?)
    }

    /// Opens this node's own to write, if it still is the one that this node made. `None`: the
    /// directory stands for it.
    pub(super) fn open_own(&self, core: &Core) -> std::io::Result<Option<std::fs::File>> {
        if self.name.is_empty() {
            return Ok(None);
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let root = core.pfs.root_descriptor();
        let file = rustix::fs::openat(root, &self.name, flags, Mode::empty())?;
        match identity(&file)? == (self.inode, self.born_ns) {
            true => Ok(Some(file.into())),
            false => Err(std::io::Error::other("it was replaced")),
        }
    }

    /// Whether a file was made, and the directory does not stand for it.
    pub(super) fn is_file(&self) -> bool {
        !self.name.is_empty()
    }

    fn compare_directory(&self, core: &Core) -> Option<String> {
        let seen = identity(core.pfs.root_descriptor());
        if self.born_ns != 0 && seen.is_ok_and(|seen| seen == (self.inode, self.born_ns)) {
            return None;
        }
        Some(
            "it may not create a file in its PFS directory, and the directory does not tell that \
             it is this one: let the node's user write there"
                .to_owned(),
        )
    }
}

/// Inode number and birth time.
fn identity(file: impl std::os::fd::AsFd) -> std::io::Result<(u64, i128)> {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags)?;
    let version = Version::from(&statx);
    Ok((version.id.inode, version.born_ns))
}

impl Cluster {
    /// Looks at the nodes that are alive and whose sight of the files is not known.
    pub(super) fn prove_members(&self, core: &Core) {
        let alive: Vec<NodeName> = {
            let members = self.members.lock();
            let names = members.members().into_iter().map(|member| member.name);
            names.filter(|node| members.is_alive(node)).collect()
        };
        for node in alive {
            if node == self.me || !self.proofs.is_due(&node, self.now()) {
                continue;
            }
            let refused = self.prove(core, &node).err();
            let before = self.proofs.refused_because(&node);
            match refused.as_ref().map(Refused::because) {
                None => {
                    tracing::info!(%node, "joined: it sees the same files");
                    self.watch_changes_of(&node);
                }
                Some(because) if before.as_ref() != Some(because) => {
                    tracing::warn!(%node, "no bytes go between it and this node: {because}");
                }
                Some(_) => {}
            }
            self.proofs.note(&node, refused, self.now());
        }
    }

    fn prove(&self, core: &Core, node: &NodeName) -> Result<(), Refused> {
        let file = self.join_file(node).map_err(Refused::NotYet)?;
        file.compare(core).map_or(Ok(()), |because| Err(Refused::Differs(because)))
    }

    /// What a node says of its file.
    pub(super) fn join_file(&self, node: &NodeName) -> Result<JoinFile, String> {
        let request = threads::about_join();
        let reply = self.transport.call(node.as_str(), &request, self.config.peer_timeout);
        let reply = reply.map_err(|error| error.to_string())?;
        let file: JoinFile = postcard::from_bytes(&reply)
            .map_err(|_| "it could not make a file in its PFS directory".to_owned())?;
        let is_of_a_node = file.name.is_empty() || file.name.starts_with(PREFIX);
        match is_of_a_node && !file.name.contains('/') {
            true => Ok(file),
            false => Err("it names a file that no node makes".to_owned()),
        }
    }
}
