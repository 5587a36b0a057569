//! Files of write mode `memory` that are opened on another node than the one that holds their
//! bytes: that one is asked to write them back to the PFS, where the other one reads them.
//!
//! The question is asked again and again until the file is written, so that a holder which hangs,
//! or is cut off, is found out soon, and a large file may take its time. Only who could read the
//! stub knows by which number this start of the holder is named in it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidepool_cluster::{FileKey, NodeName};
use tidepool_pfs::asked;
use tidepool_proto::stub::Mark;
use tidepool_proto::{FileId, Version};

use super::shared::Shared;
use super::{Cluster, threads};
use crate::core::Core;
use crate::file::memory_only;
use crate::file::state::FileState;

/// Files that are written back for other nodes at a time; the rest waits for its turn.
const RUNNING_MAX: usize = 4;
/// One that takes longer than this is not counted so; but there are no more than so many at all.
const HELD_UP: Duration = Duration::from_secs(10);
const HELD_UP_MAX: usize = 64;
/// Failures that are kept to be told.
const FAILED_MAX: usize = 64;
/// How long each is: who asked may have given up.
const FAILED_FOR: Duration = Duration::from_secs(15);
/// How long a holder may not answer.
const SILENCE: Duration = Duration::from_secs(3);
/// The same of one that said that it works: where it is gone, that is found out before.
const SILENCE_AT_WORK: Duration = Duration::from_secs(15);
/// Time between two questions, at first and at last.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Which file another node is to write back.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    /// See [`Shared::words`].
    file: [u64; 2],
    /// Which start of a node its mark names.
    node: String,
}

/// What became of it, or of a copy of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Nothing of it is in memory alone here: written back, or removed.
    NotHeld,
    /// It was in the memory of an earlier start of this node, or is given up to a copy.
    OtherStart,
    /// It is written back now, or about to be.
    Working,
    /// It stays where it is, for this reason.
    Stays(String),
    /// It is not known yet whether both see the same files.
    NotMet,
}

/// What asking the holder of a file came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recalled {
    /// The PFS has the bytes.
    WrittenBack,
    /// The holder has nothing of it.
    NotHeld,
    /// It was in the memory of an earlier start of the holder, or is given up to a copy.
    OtherStart,
}

/// Why a file stays in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRecalled {
    /// The node that was asked says so.
    Stays(String),
    /// It says nothing.
    Silent(String),
}

impl NotRecalled {
    /// In words.
    pub fn reason(self) -> String {
        let (NotRecalled::Stays(reason) | NotRecalled::Silent(reason)) = self;
        reason
    }
}

/// Files that are written back for other nodes, or copies that are given back.
pub struct Recalls<K = FileId>(Mutex<Files<K>>);

struct Files<K> {
    /// Since when.
    running: HashMap<K, Instant>,
    /// Why they stay in memory, and since when that is to be told.
    failed: HashMap<K, (String, Instant)>,
}

impl<K> Default for Recalls<K> {
    fn default() -> Self {
        Recalls(Mutex::new(Files { running: HashMap::new(), failed: HashMap::new() }))
    }
}

/// A file that is being written back for another node.
pub(super) struct Running<K: Copy + Eq + Hash = FileId> {
    recalls: Arc<Recalls<K>>,
    id: K,
}

impl<K: Copy + Eq + Hash> Recalls<K> {
    /// What to answer about a file that is in memory alone, and whether to begin with it.
    pub(super) fn ask(self: &Arc<Self>, id: K) -> (Answer, Option<Running<K>>) {
        let mut files = self.0.lock();
        let failed = files.failed.remove(&id).filter(|(_, at)| at.elapsed() < FAILED_FOR);
        if let Some((reason, _)) = failed {
            return (Answer::Stays(reason), None);
        }
        let begins = files.has_turn() && !files.running.contains_key(&id);
        if begins {
            files.running.insert(id, Instant::now());
        }
        (Answer::Working, begins.then(|| Running { recalls: self.clone(), id }))
    }
}

impl<K> Files<K> {
    /// Whether another one may begin. What a PFS holds up that does not answer holds up no other
    /// file.
    fn has_turn(&self) -> bool {
        let is_short = |since: &&Instant| since.elapsed() < HELD_UP;
        let short = self.running.values().filter(is_short).count();
        short < RUNNING_MAX && self.running.len() < HELD_UP_MAX
    }
}

impl<K: Copy + Eq + Hash> Recalls<K> {
    /// Whether another one may begin.
    pub(super) fn has_turn(&self) -> bool {
        self.0.lock().has_turn()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.lock().running.len()
    }

    /// What failed is not told: it is tried in another way.
    pub(super) fn forget_failure(&self, id: K) {
        self.0.lock().failed.remove(&id);
    }
}

impl<K: Copy + Eq + Hash> Running<K> {
    /// It stays in memory, for this reason.
    pub(super) fn failed(&self, reason: String) {
        let failed = &mut self.recalls.0.lock().failed;
        if failed.len() >= FAILED_MAX
            && let Some(oldest) = failed.iter().min_by_key(|(_, (_, at))| *at).map(|(id, _)| *id)
        {
            failed.remove(&oldest);
        }
        failed.insert(self.id, (reason, Instant::now()));
    }
}

/// Also after a panic, which the node outlives: who asks begins anew.
impl<K: Copy + Eq + Hash> Drop for Running<K> {
    fn drop(&mut self) {
        self.recalls.0.lock().running.remove(&self.id);
    }
}

/// Answers another node.
pub fn answer(cluster: &Cluster, from: &NodeName, request: &[u8]) -> Vec<u8> {
    let answer = match cluster.proofs.holds(from) {
        true => answer_member(cluster, from, request),
        false => cluster.proofs.differs_because(from).map_or(Answer::NotMet, Answer::Stays),
    };
    postcard::to_stdvec(&answer).unwrap_or_default()
}

fn answer_member(cluster: &Cluster, from: &NodeName, request: &[u8]) -> Answer {
    let stays = |reason: &str| Answer::Stays(reason.to_owned());
    let Ok(asked) = postcard::from_bytes::<Asked>(request) else {
        return stays("it is asked what its release does not understand");
    };
    let Some(core) = cluster.core.upgrade() else { return stays("it ends") };
    let shared = Shared::from_words(asked.file, [0; 3]);
    if asked.node != core.memory_only.node() {
        return Answer::OtherStart;
    }
    let file = core.files.get(shared.id(&core));
    if let Some(file) = &file
        && !is_held(file, &shared)
        && file.try_close_gate().is_none()
    {
        return Answer::Working; // it may be just being put in memory
    }
    let Some(file) = file.filter(|file| is_held(file, &shared)) else {
        let is_given_up = cluster.copies.was_given_up(shared.id(&core));
        return if is_given_up { Answer::OtherStart } else { Answer::NotHeld };
    };
    cluster.given.note_asked(file.id);
    let (answer, running) = cluster.recalls.ask(file.id);
    if let Some(running) = running {
        tracing::info!(inode = file.id.inode, %from, "a file in memory alone is opened elsewhere");
        begin(core, file, running);
    }
    answer
}

/// Whether the bytes of this very file are in memory alone.
fn is_held(file: &FileState, shared: &Shared) -> bool {
    let cached = file.cached().filter(|cached| cached.is_memory_only());
    cached.is_some_and(|cached| Shared::named(&cached.version()).file == shared.file)
}

/// Writes a file back beside the connection that asked for it, which the PFS does not keep from
/// being answered.
fn begin(core: Arc<Core>, file: Arc<FileState>, running: Running) {
    let run = move || {
        if memory_only::is_expendable(&core, &file) {
            running.failed("its rule says `expendable`".to_owned());
        } else if let Err(error) = memory_only::write_back_for_another(&core, &file) {
            running.failed(error.to_string());
        }
    };
    let started = std::thread::Builder::new().name("recall".into()).spawn(run);
    if let Err(error) = started {
        tracing::warn!(%error, "a file that another node opens is not written back yet");
    }
}

impl Cluster {
    /// Has the node that holds the bytes of a stub write them back; the reason where they stay in
    /// its memory.
    pub fn recall(&self, mark: &Mark, version: &Version) -> Result<Recalled, NotRecalled> {
        match NodeName::new(&mark.member).ok().filter(|holder| *holder != self.me) {
            Some(holder) => self.recall_of(&holder, Shared::named(version).file, &mark.node),
            None => Ok(Recalled::NotHeld),
        }
    }

    /// As [`Cluster::recall`], of a file that this start of a node wrote.
    pub(super) fn recall_of(
        &self,
        holder: &NodeName,
        file: FileKey,
        node: &str,
    ) -> Result<Recalled, NotRecalled> {
        let asked = Asked { file: [file.inode, file.generation], node: node.to_owned() };
        let request =
            postcard::to_stdvec(&asked).map_err(|error| NotRecalled::Stays(error.to_string()))?;
        self.ask_until_done(holder, &threads::about_recall(&request))
    }

    /// Asks a node again and again until it is done, or said why it is not.
    pub(super) fn ask_until_done(
        &self,
        holder: &NodeName,
        request: &[u8],
    ) -> Result<Recalled, NotRecalled> {
        if let Some(reason) = self.why_not_asked(holder) {
            return Err(NotRecalled::Silent(reason));
        }
        let (mut heard, mut interval, mut has_worked) = (Instant::now(), INTERVALS.0, false);
        loop {
            asked::check().map_err(|error| NotRecalled::Stays(error.to_string()))?;
            if self.is_stopping() {
                return Err(NotRecalled::Stays("this node ends".to_owned()));
            }
            match self.ask_to_write_back(holder, request) {
                Ok(Answer::NotHeld) if has_worked => return Ok(Recalled::WrittenBack),
                Ok(Answer::NotHeld) => return Ok(Recalled::NotHeld),
                Ok(Answer::OtherStart) => return Ok(Recalled::OtherStart),
                Ok(Answer::Stays(reason)) => return Err(NotRecalled::Stays(reason)),
                Ok(Answer::Working) => (heard, has_worked) = (Instant::now(), true),
                Ok(Answer::NotMet) if heard.elapsed() > SILENCE => {
                    let reason = "it did not find out yet that both see the same files";
                    return Err(NotRecalled::Silent(reason.to_owned()));
                }
                Ok(Answer::NotMet) => {}
                Err(reason) => {
                    let most = if has_worked { SILENCE_AT_WORK } else { SILENCE };
                    // It may have become known that it is gone.
                    let reason = self.why_not_asked(holder).or_else(|| {
                        let is_silent = heard.elapsed() > most;
                        is_silent.then_some(reason)
                    });
                    if let Some(reason) = reason {
                        return Err(NotRecalled::Silent(reason));
                    }
                }
            }
            std::thread::sleep(interval);
            interval = (interval * 2).min(INTERVALS.1);
        }
    }

    /// Why a holder is not worth asking, where that is known.
    pub(crate) fn why_not_asked(&self, holder: &NodeName) -> Option<String> {
        let is_alive = self.members.lock().is_alive(holder);
        // Members are met within the first moments.
        let is_early = self.started.elapsed() < SILENCE;
        let is_gone = !is_alive && !is_early;
        let differs_because = || self.proofs.differs_because(holder);
        if is_gone { Some(format!("`{holder}` is not there")) } else { differs_because() }
    }

    fn ask_to_write_back(&self, holder: &NodeName, request: &[u8]) -> Result<Answer, String> {
        if !self.proofs.holds(holder) {
            return Ok(Answer::NotMet);
        }
        let reply = self.transport.call(holder.as_str(), request, self.config.peer_timeout);
        let reply = reply.map_err(|error| format!("`{holder}`: {error}"))?;
        postcard::from_bytes(&reply)
            .map_err(|_| "it answers what this release does not understand".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(inode: u64) -> FileId {
        FileId { device: 1, inode }
    }

    #[test]
    fn a_file_is_begun_once_and_a_failure_is_told_once() {
        let recalls = Arc::<Recalls>::default();
        let (answer, running) = recalls.ask(id(1));
        assert!(matches!(answer, Answer::Working) && running.is_some());
        assert!(matches!(recalls.ask(id(1)), (Answer::Working, None)), "it is under way");
        let running = running.unwrap();
        running.failed("no".into());
        drop(running);
        assert!(matches!(recalls.ask(id(1)), (Answer::Stays(_), None)));
        assert!(matches!(recalls.ask(id(1)), (Answer::Working, Some(_))), "who asks again");
    }

    #[test]
    fn few_are_written_at_a_time_and_a_panic_ends_one() {
        let recalls = Arc::<Recalls>::default();
        let mut begun: Vec<_> = (0..RUNNING_MAX as u64).map(|it| recalls.ask(id(it)).1).collect();
        assert!(begun.iter().all(Option::is_some));
        assert!(matches!(recalls.ask(id(99)), (Answer::Working, None)), "it waits for its turn");
        let last = begun.pop();
        let ended = std::thread::spawn(move || {
            let _last = last;
            panic!("on purpose");
        });
        assert!(ended.join().is_err());
        assert!(recalls.ask(id(99)).1.is_some());
    }
}
