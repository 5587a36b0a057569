//! The side of the node that holds a copy: giving it back, because somebody opens the file, memory
//! is needed, this node goes, or the node that had the file is gone.
//!
//! That node is asked to write the file back, as for any open elsewhere (`recall`). Where it is
//! gone, the copy is put in the place of the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidepool_cluster::{FileKey, NodeName};
use tidepool_proto::admin::ForgottenFile;
use tidepool_proto::{Error, ErrorKind, Result};

use super::claim::Taker;
use super::held::{Content, HeldCopy};
use super::message::{Asked, GiveBack, path_of};
use super::pass::is_beside;
use super::place::{Whereabouts, found_beside, is_placed, leads_elsewhere, whereabouts};
use super::replace::Replaced;
use crate::cluster::recall::{Answer, NotRecalled, Recalled};
use crate::cluster::{Cluster, threads};
use crate::core::Core;

/// Time between two looks at what is being given back.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How long the node that has a file may take to write it back when this one goes: it keeps the
/// bytes in any case.
const OWNER_LIMIT: Duration = Duration::from_secs(10);
/// How long a node that says nothing is asked again: by then it counts as gone, or is cut off from
/// this one alone.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How long a change of the capacity waits for copies to be given back.
const ROOM_LIMIT: Duration = Duration::from_secs(5);

impl Cluster {
    /// Answers another node that needs a copy, or this one.
    pub(in crate::cluster) fn answer_give_back(
        &self,
        core: &Arc<Core>,
        asked: &GiveBack,
    ) -> Answer {
        let Some(copy) = self.copies.held.get(asked.epoch) else { return Answer::NotHeld };
        // A mark that a user made may name any copy.
        let path = path_of(&asked.path);
        let of = (copy.file, copy.epoch);
        if !is_beside(&path, of) && !leads_elsewhere(core, &path, copy.file) && copy.set_path(path)
        {
            // What failed was tried by the old name.
            self.copies.giving.forget_failure(copy.epoch);
        }
        self.begin_to_give_back(core, copy)
    }

    /// Begins to give a copy back, if that is not under way.
    pub(super) fn begin_to_give_back(&self, core: &Arc<Core>, copy: Arc<HeldCopy>) -> Answer {
        copy.hurry();
        let (answer, running) = self.copies.giving.ask(copy.epoch);
        let (Some(running), Some(cluster)) = (running, self.myself.upgrade()) else {
            return answer;
        };
        let core = core.clone();
        let run = move || {
            if let Err(reason) = cluster.give_back(&core, &copy) {
                running.failed(reason);
            }
        };
        let started = std::thread::Builder::new().name("copies-back".into()).spawn(run);
        if let Err(error) = started {
            tracing::warn!(%error, "a copy of another node's file is not given back yet");
        }
        answer
    }

    /// Gives a copy back, if that is not under way; the reason where it stays.
    pub(super) fn give_back_now(
        &self,
        core: &Arc<Core>,
        copy: &HeldCopy,
    ) -> std::result::Result<(), String> {
        match self.copies.giving.ask(copy.epoch) {
            (_, Some(_running)) => self.give_back(core, copy),
            (Answer::Stays(reason), None) => Err(reason),
            (_, None) => Ok(()),
        }
    }

    /// Gives a copy back, and frees it; the reason where it stays.
    fn give_back(&self, core: &Arc<Core>, copy: &HeldCopy) -> std::result::Result<(), String> {
        let begun = Instant::now();
        // It may be found this time, and fail for another reason.
        copy.is_nameless.store(false, Ordering::Release);
        // Once it has the right to finish the file, its node may have given the bytes up to that.
        while !(copy.is_closed() || self.is_gone(copy)) {
            match self.recall_of(&copy.owner, copy.file, &copy.node) {
                Ok(Recalled::OtherStart) => copy.is_orphan.store(true, Ordering::Release),
                Ok(_) => {
                    self.copies.held.drop_copy(copy);
                    return Ok(());
                }
                Err(NotRecalled::Stays(reason)) => return Err(reason),
                // It is found out soon whether it is gone.
                Err(NotRecalled::Silent(_)) if begun.elapsed() < SILENCE_MAX => {}
                Err(NotRecalled::Silent(reason)) => return Err(reason),
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        let Some(content) = copy.close() else {
            // Nothing was told of it, so nothing was promised, or it is gone already.
            self.copies.held.drop_copy(copy);
            return Ok(());
        };
        let of = (copy.file, copy.epoch);
        let mut path = copy.path();
        loop {
            let (name, owner) = (path.display(), &copy.owner);
            match self.replace(core, of, &content, &path)? {
                Replaced::Done => {
                    tracing::warn!(%name, %owner, "its node is gone: the copy is in its place");
                    self.copies.note_put_in_place(copy.epoch);
                    break;
                }
                Replaced::Over | Replaced::Promised => break,
                // Right before this node was killed.
                Replaced::Nameless if self.is_in_place(core, copy, &path)? => {
                    self.copies.note_put_in_place(copy.epoch);
                    break;
                }
                Replaced::Nameless if self.was_placed(&copy.holders, copy.epoch) => break,
                Replaced::Nameless if copy.path() == path => {
                    match self.found_elsewhere(core, copy, &path)? {
                        Some(elsewhere) => path = elsewhere,
                        None => break,
                    }
                }
                // Somebody found it by another name meanwhile.
                Replaced::Nameless => path = copy.path(),
            }
        }
        self.copies.held.drop_copy(copy);
        Ok(())
    }

    /// Whether the copy that an earlier start of this node was about to put in the place of its
    /// file is there.
    fn is_in_place(
        &self,
        core: &Core,
        copy: &HeldCopy,
        path: &Path,
    ) -> std::result::Result<bool, String> {
        let Some(placing) = copy.placing() else { return Ok(false) };
        let of = (copy.file, copy.epoch);
        self.settle_copy_at(core, of, path)?;
        Ok(is_placed(core, path, (placing, of)))
    }

    /// Where a file is that is not at `path`; `None` where it was removed.
    fn found_elsewhere(
        &self,
        core: &Core,
        copy: &HeldCopy,
        path: &Path,
    ) -> std::result::Result<Option<PathBuf>, String> {
        let (name, of) = (path.display(), (copy.file, copy.epoch));
        self.settle_copy_at(core, of, path)?;
        // Programs write a file beside its place and rename it.
        let found = match found_beside(core, path, copy.file) {
            Some(beside) if is_beside(&beside, of) => Some(Whereabouts::Replaced(beside)),
            Some(beside) => Some(Whereabouts::At(beside)),
            None => copy.stub.as_ref().map(|it| whereabouts(core, it, of)),
        };
        match found {
            Some(Whereabouts::Removed) => Ok(None),
            Some(Whereabouts::At(elsewhere)) => {
                copy.set_path(elsewhere.clone());
                Ok(Some(elsewhere))
            }
            Some(Whereabouts::Replaced(beside)) => {
                self.as_taker(core, |taker| taker.settle(core, of, &beside))?;
                // It has no name now, or its own.
                Ok(Some(path.to_owned()))
            }
            Some(Whereabouts::Moved) => Err(format!("{name} was moved, and is not found")),
            Some(Whereabouts::Unknown) => {
                copy.is_nameless.store(true, Ordering::Release);
                Err(format!("{name} was moved or removed"))
            }
            None if copy.is_in_buffers() => {
                copy.is_nameless.store(true, Ordering::Release);
                Err(format!(
                    "{name} was moved or removed while this node was away, or got its bytes right \
                     before that: open it by its new name, if it has one; if it has its bytes \
                     there, `tidepool flush --forget-missing` ends this"
                ))
            }
            None => Err(format!(
                "{name} was moved or removed, and too many copies are held to follow each"
            )),
        }
    }

    /// Brings to an end what the node left that exchanged a stub for its copy, if it is gone: the
    /// stub is at `path`, beside the file. Where that fails the stub stays, and harms nobody.
    pub(super) fn settle_if_gone(&self, core: &Core, of: (FileKey, u64), path: &Path) {
        if let Err(reason) = self.as_taker(core, |taker| taker.settle(core, of, path)) {
            tracing::debug!(path = %path.display(), reason, "a stub that was replaced stays");
        }
    }

    /// Puts a copy in the place of a stub.
    pub(super) fn replace(
        &self,
        core: &Core,
        of: (FileKey, u64),
        content: &Content,
        path: &Path,
    ) -> std::result::Result<Replaced, String> {
        self.as_taker(core, |taker| taker.replace(core, of, content, path))
    }

    /// This node as one that gets the right to finish a file.
    pub(super) fn as_taker<T>(&self, core: &Core, act: impl FnOnce(&Taker<'_>) -> T) -> T {
        // One that was started anew knows nothing of what it had begun.
        let is_there = |name: &str, start: &str| {
            NodeName::new(name).is_ok_and(|it| self.members.lock().is_alive(&it))
                && self.is_start(name, start) != Some(false)
        };
        act(&Taker {
            me: (self.me.as_str(), core.memory_only.node()),
            is_there: &is_there,
            is_stuck: &|epoch, claim, file| self.copies.watched.is_stuck(epoch, claim, file),
            seal: &self.seal,
        })
    }

    /// Whether another holder says that its copy took the place of the file.
    pub(super) fn was_placed(&self, holders: &[String], epoch: u64) -> bool {
        let Ok(message) = postcard::to_stdvec(&Asked::WasPlaced(epoch)) else { return false };
        let request = threads::about_copies(&message);
        let others = holders.iter().filter(|holder| *holder != self.me.as_str());
        let says_so = |holder: &String| {
            let reply = self.transport.call(holder, &request, self.config.peer_timeout);
            reply.is_ok_and(|reply| postcard::from_bytes(&reply).unwrap_or(false))
        };
        others.into_iter().any(says_so)
    }

    /// Whether the node that had the file is not there any more.
    pub(super) fn is_gone(&self, copy: &HeldCopy) -> bool {
        copy.is_orphan.load(Ordering::Acquire) || self.why_not_asked(&copy.owner).is_some()
    }

    /// Has copies given back until so many bytes went, for a moment; whether any went.
    pub fn copies_went(&self, bytes: u64) -> bool {
        let (begun, before) = (Instant::now(), self.copies.held().1);
        let went = || before.saturating_sub(self.copies.held().1);
        while went() < bytes.min(before) && begun.elapsed() < ROOM_LIMIT {
            self.copies.make_room(bytes);
            std::thread::sleep(LOOK_INTERVAL);
        }
        went() > 0
    }

    /// Waits until it is known which nodes are gone, or were started again, whose files in burst
    /// buffers this one answers for: one that does not answer now is soon known to be gone. The
    /// error where that does not become known.
    fn wait_until_owners_are_known(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let what = "bringing files from burst buffers to the PFS";
        let wait = |holds: &dyn Fn() -> bool, detail: &str, remedy: &str| {
            let begun = Instant::now();
            while !holds() && go_on() && !self.is_stopping() {
                if begun.elapsed() > SILENCE_MAX {
                    return Err(Error::new(ErrorKind::Pfs, what, detail).remedy(remedy));
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            Ok(())
        };
        wait(
            &|| self.copies.is_owed_read.load(Ordering::Acquire),
            "what this node answers for is still being read from its burst buffer",
            "repeat this in a moment",
        )?;
        wait(
            &|| self.find_orphans(&|copy| copy.is_in_buffers()),
            "a node whose files are in burst buffers does not answer whether it has them still",
            "`tidepool status --cluster` shows which: end it, or have it go on, and repeat this",
        )
    }

    /// Brings files in burst buffers to the PFS whose nodes are gone; an error where one stays. One
    /// that is nowhere to be found may be forgotten: those that were.
    pub fn bring_orphans(
        &self,
        core: &Arc<Core>,
        forgets_missing: bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<ForgottenFile>> {
        let known = self.wait_until_owners_are_known(go_on);
        let is_due = |copy: &Arc<HeldCopy>| copy.is_in_buffers() && self.is_gone(copy);
        let mut forgotten = Vec::new();
        let mut stay: Vec<(PathBuf, String)> = Vec::new();
        for copy in self.copies.held.all().into_iter().filter(is_due) {
            while self.copies.held.get(copy.epoch).is_some() && go_on() && !self.is_stopping() {
                if let Answer::Stays(reason) = self.begin_to_give_back(core, copy.clone()) {
                    if forgets_missing && copy.is_nameless.load(Ordering::Acquire) {
                        let path = copy.path().display().to_string();
                        let bytes = copy.owed().map_or(0, |(owe, _)| owe.length);
                        let node = copy.owner.to_string();
                        tracing::warn!(path, node, bytes, "it is forgotten, as it is missing");
                        self.copies.held.drop_copy(&copy);
                        forgotten.push(ForgottenFile { path, node, bytes });
                        break;
                    }
                    copy.is_reason_new(&reason);
                    stay.push((copy.path(), reason));
                    break;
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        for (file, may_be_forgotten) in self.unknown_owed_files(core) {
            let (path, reason) = (PathBuf::from(file.path), file.stays_because.unwrap_or_default());
            if !forgets_missing || !may_be_forgotten {
                stay.push((path, reason));
                continue;
            }
            let path = path.display().to_string();
            tracing::warn!(path, bytes = file.bytes, reason, "it is forgotten, as it is not known");
            forgotten.push(ForgottenFile { path, node: file.node, bytes: file.bytes });
        }
        if forgets_missing && let Err(reason) = self.forget_unknown(core) {
            stay.push((PathBuf::from("(files that are not known)"), reason));
        }
        let Some((path, reason)) = stay.first() else { return known.map(|()| forgotten) };
        let detail = format!(
            "{} of nodes that are gone stay in burst buffers, such as {}: {reason}",
            if stay.len() == 1 { "1 file".to_owned() } else { format!("{} files", stay.len()) },
            path.display()
        );
        Err(Error::new(ErrorKind::Pfs, "bringing files from burst buffers to the PFS", detail)
            .remedy(
                "mend what is said and repeat this; `tidepool status --owed` lists them, and \
                 `tidepool flush --forget-missing` drops those whose files were removed",
            ))
    }

    /// Gives all copies back, because this node goes. What the node of the file cannot write now
    /// stays there; an error where a copy is the only one and cannot be put in its place, unless it
    /// is on a disk: it is there again when the node is started again. Where the
    /// PFS cannot tell whether a file was moved or removed its copy keeps nobody.
    pub fn give_back_all(&self, core: &Arc<Core>, go_on: &dyn Fn() -> bool) -> Result<()> {
        let (begun, mut failed) = (Instant::now(), None);
        for copy in self.copies.held.all() {
            while self.copies.held.get(copy.epoch).is_some() && go_on() && !self.is_stopping() {
                let is_gone = self.is_gone(&copy);
                match self.begin_to_give_back(core, copy.clone()) {
                    Answer::Stays(reason) if copy.is_nameless.load(Ordering::Acquire) => {
                        tracing::warn!(reason, "a copy of another node's file is given up");
                        break;
                    }
                    Answer::Stays(reason) if copy.is_in_buffers() => {
                        tracing::warn!(reason, "a file stays on the disk of the burst buffer");
                        break;
                    }
                    Answer::Stays(reason) if is_gone => {
                        failed = Some((copy.path(), reason));
                        break;
                    }
                    Answer::Stays(_) => break,
                    _ if !is_gone && begun.elapsed() > OWNER_LIMIT => break,
                    _ => std::thread::sleep(LOOK_INTERVAL),
                }
            }
        }
        let Some((path, reason)) = failed else { return Ok(()) };
        let detail = format!("the copy of {} is the only one left: {reason}", path.display());
        let what = "giving copies of other nodes' files back";
        Err(Error::new(ErrorKind::Lost, what, detail).remedy(
            "mend what is said and repeat this; where the file was moved, open it by its new name",
        ))
    }
}
