//! The side of a node where a stub is opened: who has the bytes.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tidepool_cluster::NodeName;
use tidepool_pfs::LowerFile;
use tidepool_proto::Version;
use tidepool_proto::stub::{Copies, Mark, StubState};

use super::give_back::{LOOK_INTERVAL, SILENCE_MAX};
use super::held::{Content, Purpose};
use super::message::{Asked, GiveBack};
use super::pass::is_beside;
use super::place::leads_elsewhere;
use super::replace::{Replaced, finish_at};
use crate::cluster::recall::{Answer, NotRecalled, Recalled};
use crate::cluster::shared::Shared;
use crate::cluster::{Cluster, threads};
use crate::core::Core;

impl Cluster {
    /// Has the bytes of a stub come to the PFS, from the node that wrote them or from one that has
    /// a copy; the reason where they stay.
    pub fn recall_or_take_copy(
        &self,
        core: &Arc<Core>,
        mark: &Mark,
        version: &Version,
        lower: &dyn LowerFile,
    ) -> Result<Recalled, String> {
        let copies = mark.copies.as_ref().and_then(|it| Some((it, lower.relative_path()?)));
        let Some((copies, path)) = copies else {
            return self.recall(mark, version).map_err(NotRecalled::reason);
        };
        let of = (Shared::named(version).file, copies.epoch);
        if is_beside(&path, of) {
            self.settle_if_gone(core, of, &path);
            return Err("another file took its place".to_owned());
        }
        if mark.state == StubState::Writing && finish_at(core, &path, of)? {
            return Ok(Recalled::WrittenBack);
        }
        let begun = Instant::now();
        let (reason, is_gone) = loop {
            let was_there = self.is_member(&mark.member);
            let recalled = self.recall(mark, version);
            if recalled == Ok(Recalled::WrittenBack) {
                return Ok(Recalled::WrittenBack);
            }
            // Also while it only says nothing: a holder may hear it.
            let reason = match self.ask_holders(core, copies, &path) {
                Ok(Recalled::WrittenBack) => return Ok(Recalled::WrittenBack),
                Ok(_) => recalled.clone().err().map(NotRecalled::reason),
                Err(reason) => Some(reason),
            };
            let is_silent = matches!(recalled, Err(NotRecalled::Silent(_)));
            if is_silent && was_there && begun.elapsed() < SILENCE_MAX {
                continue; // it is found out soon whether it is gone
            }
            // Of the last case: an earlier start of this node wrote it.
            let is_gone = match recalled {
                Ok(Recalled::OtherStart) => true,
                Err(NotRecalled::Silent(_)) => !was_there,
                Ok(Recalled::NotHeld) => {
                    mark.member == self.me.as_str() && mark.node != core.memory_only.node()
                }
                _ => false,
            };
            break (reason, is_gone);
        };
        if !copies.is_promised && is_gone {
            // Nothing of it was promised, and nobody has it: it is empty.
            let empty = Content::empty(Purpose::Unpromised);
            let (_, running) = self.copies.giving.ask(copies.epoch);
            let _running = running.ok_or("another program opens it")?;
            return match self.replace(core, of, &empty, &path)? {
                Replaced::Promised => Err("its node goes on: open it again".to_owned()),
                _ => Ok(Recalled::WrittenBack),
            };
        }
        reason.map_or(Ok(Recalled::NotHeld), Err)
    }

    /// Whether a node counts as there.
    fn is_member(&self, name: &str) -> bool {
        NodeName::new(name).is_ok_and(|it| self.why_not_asked(&it).is_none())
    }

    /// The other nodes that have the bytes of a stub as far as is known: the one that wrote them,
    /// or where that is gone those that have copies.
    pub fn who_has(&self, mark: &Mark) -> Vec<String> {
        let is_member = |name: &String| *name != self.me.as_str() && self.is_member(name);
        if is_member(&mark.member) && self.is_start(&mark.member, &mark.node) != Some(false) {
            return vec![mark.member.clone()];
        }
        let copies = mark.copies.iter().filter(|copies| copies.is_promised);
        let holders = copies.flat_map(|copies| copies.holders.iter().cloned());
        holders.filter(|name| name == self.me.as_str() || is_member(name)).collect()
    }

    /// Whether a member is still this start of a node, if it answers.
    pub(super) fn is_start(&self, member: &str, node: &str) -> Option<bool> {
        let message = postcard::to_stdvec(&Asked::IsStart(node.to_owned())).ok()?;
        let request = threads::about_copies(&message);
        let reply = self.transport.call(member, &request, self.config.peer_timeout);
        postcard::from_bytes(&reply.ok()?).ok()
    }

    /// Asks one holder of copies after the other to give it back; the reason of the last one that
    /// keeps its own.
    fn ask_holders(
        &self,
        core: &Arc<Core>,
        copies: &Copies,
        path: &Path,
    ) -> Result<Recalled, String> {
        let mut given = Ok(Recalled::NotHeld);
        for holder in &copies.holders {
            let path = path.as_os_str().as_bytes().to_vec();
            let asked = GiveBack { epoch: copies.epoch, path };
            let answer = match holder == self.me.as_str() {
                true => self.give_back_here(core, &asked),
                false => self.ask_for_copy(holder, asked),
            };
            match answer {
                Ok(Recalled::WrittenBack) => return Ok(Recalled::WrittenBack),
                Ok(_) => {}
                Err(reason) => given = Err(reason),
            }
        }
        given
    }

    fn ask_for_copy(&self, holder: &str, asked: GiveBack) -> Result<Recalled, String> {
        let holder = NodeName::new(holder).map_err(|error| error.to_string())?;
        let message = postcard::to_stdvec(&Asked::GiveBack(asked));
        let message = message.map_err(|error| error.to_string())?;
        let given = self.ask_until_done(&holder, &threads::about_copies(&message));
        given.map_err(NotRecalled::reason)
    }

    /// As [`Self::ask_for_copy`] where this node holds it.
    fn give_back_here(&self, core: &Arc<Core>, asked: &GiveBack) -> Result<Recalled, String> {
        let mut has_worked = false;
        loop {
            tidepool_pfs::asked::check().map_err(|error| error.to_string())?;
            match self.answer_give_back(core, asked) {
                Answer::Working if !self.is_stopping() => has_worked = true,
                Answer::Stays(reason) => return Err(reason),
                _ if has_worked => return Ok(Recalled::WrittenBack),
                _ => return Ok(Recalled::NotHeld),
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Puts an empty file in the place of the stub of a time in memory, because an open empties it;
    /// what became of it, or the reason where it stays.
    pub fn empty_stub(
        &self,
        core: &Arc<Core>,
        (epoch, holders): (u64, &[String]),
        version: &Version,
        lower: &dyn LowerFile,
    ) -> Result<Replaced, String> {
        let of = (Shared::named(version).file, epoch);
        let begun = Instant::now();
        let mut is_told = false;
        loop {
            tidepool_pfs::asked::check().map_err(|error| error.to_string())?;
            // Nobody else on this node has the right that this node gets.
            let (_, running) = self.copies.giving.ask(epoch);
            let path = lower.relative_path().ok_or("it has no name any more")?;
            if is_beside(&path, of) {
                return Ok(Replaced::Done);
            }
            let content = Content::empty(Purpose::Emptying);
            let emptied = match &running {
                Some(_) => self.replace(core, of, &content, &path),
                None => Err("this node gives its copy back".to_owned()),
            };
            match emptied {
                Ok(Replaced::Nameless) if !self.is_replaced(core, (version, epoch), lower) => {}
                Ok(emptied) => {
                    if emptied == Replaced::Done {
                        self.copies.note_replaced(epoch);
                    }
                    // A mark that a user made may name any copy.
                    let copy = self.copies.held.get(epoch);
                    if let Some(copy) = copy.filter(|copy| copy.file == of.0) {
                        self.copies.held.drop_copy(&copy);
                    }
                    return Ok(emptied);
                }
                Err(reason) if begun.elapsed() > SILENCE_MAX || self.is_stopping() => {
                    return Err(reason);
                }
                Err(reason) if self.is_replaced(core, (version, epoch), lower) => {
                    return Err(reason);
                }
                Err(_) if !std::mem::replace(&mut is_told, true) => self.hurry(epoch, holders),
                Err(_) => {}
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Has who puts its copy in the place of a file lose no time.
    fn hurry(&self, epoch: u64, holders: &[String]) {
        if let Some(copy) = self.copies.held.get(epoch) {
            copy.hurry();
        }
        let Ok(message) = postcard::to_stdvec(&Asked::Hurry(epoch)) else { return };
        let request = threads::about_copies(&message);
        for holder in holders.iter().filter(|holder| *holder != self.me.as_str()) {
            // One that says nothing is not waited for either.
            let _ = self.transport.call(holder, &request, self.config.peer_timeout);
        }
    }

    /// Whether another file took the place of one that is open.
    pub fn is_replaced(
        &self,
        core: &Core,
        (version, epoch): (&Version, u64),
        lower: &dyn LowerFile,
    ) -> bool {
        let file = Shared::named(version).file;
        let is_gone =
            |path: PathBuf| is_beside(&path, (file, epoch)) || leads_elsewhere(core, &path, file);
        lower.relative_path().is_none_or(is_gone)
    }
}
