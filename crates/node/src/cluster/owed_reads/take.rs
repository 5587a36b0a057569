//! The side of the node that reads: [`Owed`], the bytes of one token.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::de::DeserializeOwned;
use tidepool_cluster::NodeName;
use tidepool_peer::{BlockRequest, PeerError, Refusal};
use tidepool_proto::stub::Mark;
use tidepool_proto::{Error, ErrorKind, Version};

use super::{Asked, Begun, Ended, OF_TOKEN};
use crate::cluster::shared::Shared;
use crate::cluster::{Cluster, threads};
use crate::core::Core;
use crate::file::cached_version::CachedVersion;

/// Files that are read so at a time: a thread waits for each to come to the PFS.
const TAKEN_MAX: usize = 64;
/// Times that a block is asked for where its node is busy, and the pause between them.
const ATTEMPTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(5);

/// What this node reads of files that others owe, by token.
#[derive(Default)]
pub struct Taken(Mutex<HashMap<u64, Weak<CachedVersion>>>);

impl Taken {
    /// What is cached of a token, by `make` where nothing is, and whether that is so. `None` where
    /// too many files are read so.
    pub fn get_or_begin(
        &self,
        token: u64,
        make: impl FnOnce() -> Arc<CachedVersion>,
    ) -> Option<(Arc<CachedVersion>, bool)> {
        let mut taken = self.0.lock();
        if let Some(cached) = taken.get(&token).and_then(Weak::upgrade) {
            return Some((cached, false));
        }
        // One that nobody reads any more is followed for a moment still.
        taken.remove(&token);
        if taken.len() >= TAKEN_MAX {
            return None;
        }
        let cached = make();
        taken.insert(token, Arc::downgrade(&cached));
        Some((cached, true))
    }

    /// What was read of a token is not followed any more.
    pub fn end(&self, token: u64, cached: &Weak<CachedVersion>) {
        let mut taken = self.0.lock();
        if taken.get(&token).is_some_and(|known| known.ptr_eq(cached)) {
            taken.remove(&token);
        }
    }

    /// What is read so of a file.
    pub fn of(&self, version: &Version) -> Vec<Arc<CachedVersion>> {
        let taken = self.0.lock();
        let all = taken.values().filter_map(Weak::upgrade);
        all.filter(|cached| cached.version().is_of_same_file(version)).collect()
    }
}

/// The bytes of a file that another node owes.
#[derive(Debug)]
pub struct Owed {
    /// The node that has them.
    pub holder: NodeName,
    /// The number of these very bytes.
    pub token: u64,
    /// How many they are.
    pub length: u64,
    file: [u64; 2],
    state: Mutex<State>,
    settled: Condvar,
    is_handed_over: AtomicBool,
    /// The holder said that they are not what it has any more.
    is_refused: AtomicBool,
    /// An open of this node found the file on the PFS.
    is_found: AtomicBool,
}

/// The blocks that readers may have got, by offset: the sums of their bytes.
pub type Got = HashMap<u64, blake3::Hash>;

#[derive(Debug)]
enum State {
    /// They are read from the holder.
    Open {
        /// What readers may have got.
        got: Got,
    },
    /// The PFS has them, and they are read as those of any file.
    HandedOver,
    /// They are not to be had, for this reason.
    Over(String),
}

/// Where the bytes are.
pub enum Place {
    /// With the holder still.
    Holder,
    /// On the PFS.
    Pfs,
    /// Nowhere, for this reason.
    Nowhere(String),
}

impl Owed {
    /// Waits until they are elsewhere, or for a moment.
    pub fn wait(&self, limit: Duration) -> Place {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::HandedOver => return Place::Pfs,
                State::Over(reason) => return Place::Nowhere(reason.clone()),
                State::Open { .. } if Instant::now() >= deadline => return Place::Holder,
                State::Open { .. } => _ = self.settled.wait_until(&mut state, deadline),
            }
        }
    }

    /// Whether they are read as those of any file by now.
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    /// Whether the holder has other bytes by now, or the PFS has these.
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    /// Whether an open of this node found the file on the PFS.
    pub fn is_found(&self) -> bool {
        self.is_found.load(Ordering::Acquire)
    }

    /// An open of this node found the file on the PFS: nobody else needs to be asked for it.
    pub fn note_found(&self) {
        self.is_found.store(true, Ordering::Release);
    }

    /// Hands them over by `adopt`, or ends them; neither where it answers nothing. It is told what
    /// readers got: none gets any meanwhile. Whether it is settled.
    pub fn settle(&self, adopt: impl FnOnce(&Got) -> Option<Result<(), String>>) -> bool {
        let mut state = self.state.lock();
        let State::Open { got } = &*state else { return true };
        *state = match adopt(got) {
            None => return false,
            Some(Ok(())) => {
                self.is_handed_over.store(true, Ordering::Release);
                State::HandedOver
            }
            Some(Err(reason)) => {
                let (inode, holder) = (self.file[0], &self.holder);
                tracing::debug!(inode, %holder, reason, "an owed file is to be opened again");
                State::Over(reason)
            }
        };
        self.settled.notify_all();
        true
    }

    /// Ends them.
    pub fn end(&self, reason: &str) {
        self.settle(|_| Some(Err(reason.to_owned())));
    }

    /// What readers may have got.
    pub fn got(&self) -> Got {
        match &*self.state.lock() {
            State::Open { got } => got.clone(),
            _ => Got::new(),
        }
    }

    /// Whether a block may be asked for.
    fn may_ask(&self) -> bool {
        matches!(&*self.state.lock(), State::Open { .. }) && !self.is_refused()
    }

    /// Notes a block that came. False where it is read elsewhere by now: nobody may get it.
    fn note_got(&self, offset: u64, bytes: &[u8]) -> bool {
        let sum = blake3::hash(bytes);
        match &mut *self.state.lock() {
            State::Open { got } => {
                got.insert(offset, sum);
                true
            }
            _ => false,
        }
    }

    /// The error of a read of what is nowhere any more.
    pub fn error(&self, reason: &str) -> Error {
        let detail = format!(
            "its bytes were read from `{}`, which had not brought them to the PFS yet: {reason}",
            self.holder
        );
        Error::new(ErrorKind::Changed, "reading", detail).remedy("open it again")
    }
}

impl Cluster {
    /// What the holder of the bytes of a stub owes, if it is there and they are all promised.
    pub fn ask_owed(&self, core: &Core, mark: &Mark, version: &Version) -> Option<Owed> {
        mark.copies.as_ref().filter(|copies| copies.is_promised)?;
        let holder = NodeName::new(&mark.member).ok().filter(|holder| *holder != self.me)?;
        if self.why_not_asked(&holder).is_some() || !self.proofs.holds(&holder) {
            return None;
        }
        let (file, _) = Shared::named(version).words();
        let block_bytes = core.block_bytes();
        let asked = Asked::Begin { file, node: mark.node.clone(), block_bytes };
        let Begun { token, length } = self.ask_about_owed::<Option<Begun>>(&holder, &asked)??;
        Some(Owed {
            holder,
            token,
            length,
            file,
            state: Mutex::new(State::Open { got: Got::new() }),
            settled: Condvar::new(),
            is_handed_over: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            is_found: AtomicBool::new(false),
        })
    }

    /// What a file was right after the bytes of a token came to the PFS; `None` where the holder
    /// does not know of that, or says nothing before `deadline`.
    pub fn ask_ended(&self, owed: &Owed, deadline: Instant) -> Option<Ended> {
        loop {
            // A connection may end just now.
            if let Some(answer) = self.ask_whether_ended(owed) {
                return answer;
            }
            let is_gone = self.is_stopping() || self.why_not_asked(&owed.holder).is_some();
            if is_gone || Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn ask_whether_ended(&self, owed: &Owed) -> Option<Option<Ended>> {
        self.ask_about_owed(&owed.holder, &Asked::End { token: owed.token })
    }

    fn ask_about_owed<T: DeserializeOwned>(&self, holder: &NodeName, asked: &Asked) -> Option<T> {
        let request = threads::about_owed_reads(&postcard::to_stdvec(asked).ok()?);
        let reply = self.transport.call(holder.as_str(), &request, self.config.peer_timeout);
        postcard::from_bytes(&reply.ok()?).ok()
    }

    /// Brings a block of an owed file into `into`, its whole length. False: not now.
    pub fn fetch_owed(&self, core: &Core, owed: &Owed, offset: u64, into: &mut [u8]) -> bool {
        let request = BlockRequest {
            file: owed.file,
            version: [0, owed.token as i64, OF_TOKEN],
            offset,
            length: into.len() as u32,
            may_fill: false,
        };
        let holder = owed.holder.as_str();
        for _ in 0..ATTEMPTS {
            if self.is_stopping() || !owed.may_ask() {
                return false;
            }
            match self.transport.fetch(holder, &request, into, self.config.peer_timeout) {
                Ok(()) => {
                    self.counts.fetched.add(1);
                    core.counters.peer_read_bytes.add(into.len() as u64);
                    return owed.note_got(offset, into);
                }
                Err(PeerError::Refused(Refusal::Busy)) => std::thread::sleep(PAUSE),
                Err(error) => {
                    self.counts.missed.add(1);
                    tracing::debug!(holder, offset, %error, "a block of an owed file did not come");
                    self.note_refused(owed, &error);
                    return false;
                }
            }
        }
        false
    }
}

impl Cluster {
    fn note_refused(&self, owed: &Owed, error: &PeerError) {
        if !matches!(error, PeerError::Changed | PeerError::Refused(Refusal::Stale)) {
            return;
        }
        owed.is_refused.store(true, Ordering::Release);
        // Where the holder brought them to the PFS, it knew that before it refused.
        if self.ask_whether_ended(owed) == Some(None) {
            owed.end("it was changed there");
        }
    }
}

impl Ended {
    /// Whether a file is still what it was then.
    pub fn is_still(&self, now: &Version) -> bool {
        self.0 == Shared::named(now).words().1
    }
}
