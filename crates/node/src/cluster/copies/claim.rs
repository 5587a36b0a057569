//! The right to finish the file of a stub, or to put an empty one in its place: settled on the PFS,
//! which sets an attribute once however many nodes try it.
//!
//! Claims are numbered. Who finds one of a node that is gone keeps that node from using it any
//! more (`pass`), and makes the next one. A claim tells the name of the file that its copy is
//! written to, which nobody knows before; it is there by then, so no other user can put something
//! in its way.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_peer::Seal;
use tidepool_pfs::LowerFile;
use tidepool_proto::stub::taken_attribute;
use tidepool_proto::{Error, ErrorKind};

use super::give_back::LOOK_INTERVAL;
use super::pass::{Claimed, Passed, claim, fresh_name, is_beside, pass, prefix};
use super::place::{Place, failed, found_beside, key_of, leads_elsewhere};
use super::stuck::Progress;
use crate::cluster::Cluster;
use crate::cluster::shared::Shared;
use crate::core::Core;
use crate::file::copied::Copied;
use crate::file::stub::{self, Afterwards};

/// How long the node that has a file waits for a holder that puts its copy in its place. Others
/// wait for the file meanwhile.
const OWNER_PATIENCE: Duration = Duration::from_secs(3);

/// How often a file has to be found elsewhere than where it was: a program may be renaming it.
const LOOKS: u32 = 3;

/// Who gets the right. On one node nobody else tries it for the same file meanwhile.
pub struct Taker<'a> {
    /// Name of this node among those of the cluster, and which start of it.
    pub me: (&'a str, &'a str),
    /// Whether another node is there, as the start of it that is told second.
    pub is_there: &'a dyn Fn(&str, &str) -> bool,
    /// Whether a claim of this time in memory does not get on any more.
    pub is_stuck: &'a IsStuck<'a>,
    /// What tells words of nodes from those of users.
    pub seal: &'a Seal,
}

/// Whether a claim of a time in memory, whose file is so far, gets no further.
pub type IsStuck<'a> = dyn Fn(u64, &[u8], Option<Progress>) -> bool + 'a;

/// What a claim on a stub leads to.
pub enum Claim {
    /// This node has the right.
    Ours(Right),
    /// The node that had the file had it, as the first or a later one: all bytes are on the PFS.
    Owners(u32),
    /// Another node had it, and its copy is in the place of the stub.
    Replaced,
}

/// The right to finish a file.
pub struct Right {
    number: u32,
    /// File beside the stub, and its name; `None` of the node that had the file.
    pub beside: Option<(OsString, File)>,
}

pub fn said(error: Error) -> String {
    error.to_string()
}

/// What a node says that failed. It has no seal, as anything that a user writes there.
fn failed_words(me: &str) -> Vec<u8> {
    format!("failed {me}").into_bytes()
}

/// What is claimed by an attribute that is set: its value, and the file that goes with it.
type Value = (Vec<u8>, Option<(OsString, File)>);

impl Taker<'_> {
    /// Gets the right to put a copy in the place of a stub.
    pub fn claim(
        &self,
        place: &Place<'_>,
        stub: &dyn LowerFile,
        of: (FileKey, u64),
    ) -> Result<Claim, String> {
        let name = fresh_name(of);
        let file = place.create(&name)?;
        let copy = key_of(&file).map_err(failed("looking at the new file"))?;
        let value = claim((self.seal, of), self.me, (&name, copy), &place.name);
        let claimed = self.claim_as(place, stub, of, (value, Some((name.clone(), file))));
        if !matches!(claimed, Ok(Claim::Ours(_))) {
            place.remove(&name);
        }
        claimed
    }

    fn claim_as(
        &self,
        place: &Place<'_>,
        stub: &dyn LowerFile,
        of: (FileKey, u64),
        (value, beside): Value,
    ) -> Result<Claim, String> {
        let attribute = |number| taken_attribute(of.1, number);
        let read = |number| stub.get_xattr(&attribute(number)).map_err(said);
        let set = |number, is_there| {
            stub.set_xattr_if(&attribute(number), &value, is_there).map_err(said)
        };
        let mut before: Option<Vec<u8>> = None;
        for number in 1..=stub::TAKERS_MAX {
            let found = match read(number)? {
                Some(found) => found,
                None if set(number, false)? => {
                    // It may have begun anew meanwhile, and looks for this claim after that.
                    let again = if number > 1 { read(number - 1)? } else { None };
                    if again.as_deref() == Some(stub::OWNER_TAKES) {
                        return Ok(Claim::Owners(number - 1));
                    }
                    let anew = again.filter(|again| before.as_ref() != Some(again));
                    if let Some(anew) = anew.map(|anew| Claimed::parse(&anew, (self.seal, of)))
                        && pass(place, stub, of, &anew)? == Passed::Replaced
                    {
                        return Ok(Claim::Replaced);
                    }
                    return Ok(Claim::Ours(Right { number, beside }));
                }
                None => read(number)?.ok_or("another node just gave it up")?,
            };
            if found == stub::OWNER_TAKES {
                return Ok(Claim::Owners(number));
            }
            let claimed = Claimed::parse(&found, (self.seal, of));
            // In few bytes: where the PFS fails for long there are many of them.
            let is_own_failed = found == failed_words(self.me.0);
            let is_own = is_own_failed || claimed.member == self.me.0;
            let is_waited_for = !is_own
                && !claimed.has_failed()
                && (self.is_there)(&claimed.member, &claimed.start)
                && !(self.is_stuck)(of.1, &found, claimed.progress(place));
            if is_waited_for {
                return Err(format!("`{}` puts its copy in its place", claimed.member));
            }
            if pass(place, stub, of, &claimed)? == Passed::Replaced {
                return Ok(Claim::Replaced);
            }
            // An earlier try failed: this one follows, unless another node went on from there.
            let is_ended = is_own_failed || is_own && claimed.start == self.me.1;
            if is_ended && read(number + 1)?.is_none() {
                let is_set = set(number, true)?;
                if is_set && read(number + 1)?.is_none() {
                    return Ok(Claim::Ours(Right { number, beside }));
                }
            }
            before = Some(found);
        }
        Err("many nodes failed at it".to_owned())
    }
}

impl Right {
    /// Says on the PFS that nobody has, or gets, the right: it is no stub of this time in memory
    /// any more. In this order: who comes late finds no right to take.
    pub fn give_up(&self, stub: &dyn LowerFile, epoch: u64) -> Result<(), String> {
        stub::forget_epoch(stub, epoch).and_then(|()| stub::clear_if_remains(stub)).map_err(said)
    }

    /// Says that this node failed at it, and nothing of it is left: others need not wait for it.
    pub fn note_failed(&self, taker: &Taker<'_>, stub: &dyn LowerFile, epoch: u64) {
        let failed = failed_words(taker.me.0);
        let noted = stub.set_xattr_if(&taken_attribute(epoch, self.number), &failed, true);
        if let Err(error) = noted {
            tracing::debug!(%error, "others wait for a node that failed to put its copy in place");
        }
    }

    /// Leaves the right to others, before anything was done with it.
    pub fn pass_on(&self, stub: &dyn LowerFile, epoch: u64) -> Result<(), String> {
        stub.remove_xattr(&taken_attribute(epoch, self.number)).map_err(said)
    }

    /// Removes what those who failed at it before left beside the file.
    pub fn tidy(&self, place: &Place<'_>, of: (FileKey, u64)) {
        tidy(place, of, self.number);
    }
}

fn tidy(place: &Place<'_>, of: (FileKey, u64), number: u32) {
    if number > 1 {
        place.remove_all(&prefix(of));
    }
}

/// Ends what the node that had the file did not, which had the right by this number.
pub fn finish(
    place: &Place<'_>,
    stub: &dyn LowerFile,
    of: (FileKey, u64),
    number: u32,
) -> Result<(), String> {
    stub::finish(stub, of.1).map_err(said)?;
    tidy(place, of, number);
    Ok(())
}

/// Whether a file has a name, as far as this node's client of the PFS knows.
fn has_name(lower: &dyn LowerFile) -> bool {
    match rustix::fs::fstat(lower.descriptor()) {
        Ok(facts) => facts.st_nlink > 0,
        Err(errno) => !matches!(errno, Errno::STALE | Errno::NOENT),
    }
}

/// Where a file of this node is. The name that its descriptor was opened by may have been removed
/// while another one leads to it.
fn path_of(core: &Core, lower: &dyn LowerFile, of: FileKey) -> Option<PathBuf> {
    let beside = || found_beside(core, &lower.relative_path_known()?, of);
    lower.relative_path().or_else(beside)
}

/// Whether another node claimed the right to finish a file.
fn is_claimed(lower: &dyn LowerFile, epoch: u64) -> tidepool_proto::Result<bool> {
    let taken = lower.get_xattr(&taken_attribute(epoch, 1))?;
    Ok(taken.is_some_and(|taken| taken != stub::OWNER_TAKES))
}

impl Taker<'_> {
    /// Gets the right for the node that had the file, found at `path`: by which number, and where;
    /// the inner `None` where a copy took its place, the outer where it is not there.
    fn claim_own<'c>(
        &self,
        core: &'c Core,
        of: (FileKey, u64),
        (path, lower): (&Path, &dyn LowerFile),
    ) -> Result<Option<Option<(u32, Place<'c>)>>, String> {
        let Some(place) = Place::find(core, path)? else { return Ok(None) };
        if place.open(of.0)?.is_none() {
            return Ok(None);
        }
        let value = (stub::OWNER_TAKES.to_vec(), None);
        Ok(Some(match self.claim_as(&place, lower, of, value)? {
            Claim::Owners(number) | Claim::Ours(Right { number, .. }) => Some((number, place)),
            Claim::Replaced => None,
        }))
    }
}

impl Cluster {
    /// Gets the right to finish a file of this node, all of whose bytes are on the PFS. A holder
    /// that is at it is waited for, up to a limit: it may fail. `Lost` where its copy took the
    /// place of the file.
    pub fn take_as_owner<'a>(
        &'a self,
        core: &'a Core,
        copied: &Copied,
        lower: &'a Arc<dyn LowerFile>,
    ) -> tidepool_proto::Result<Afterwards<'a>> {
        let epoch = copied.copies.epoch;
        let of = Shared::named(&lower.version()?).file;
        let (begun, mut looks, mut found_at) = (Instant::now(), 0, None);
        let what = "writing a memory-only file back";
        let lost = || Error::new(ErrorKind::Lost, what, "another node put its copy in its place");
        let is_claimed = || is_claimed(&**lower, epoch);
        loop {
            if !has_name(&**lower) {
                // It was removed, or a copy came in its place.
                return match is_claimed()? {
                    true => Err(lost()),
                    false => Ok(Box::new(|| ())),
                };
            }
            let Some(path) = path_of(core, &**lower, of) else {
                // By a name that this node does not know.
                let name = taken_attribute(epoch, 1);
                if !is_claimed()? && lower.set_xattr_if(&name, stub::OWNER_TAKES, false)? {
                    return Ok(Box::new(|| ()));
                }
                if begun.elapsed() > OWNER_PATIENCE {
                    return Err(Error::new(ErrorKind::Changed, what, "its name is not known"));
                }
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            };
            if is_beside(&path, (of, epoch)) {
                self.settle_if_gone(core, (of, epoch), &path);
                return Err(lost());
            }
            // What is renamed again and again is elsewhere in each moment.
            if found_at.replace(path.clone()).is_some_and(|before| before != path) {
                looks = 0;
            }
            let taken =
                self.as_taker(core, |taker| taker.claim_own(core, (of, epoch), (&path, &**lower)));
            match taken {
                Ok(Some(Some((number, place)))) => {
                    return Ok(Box::new(move || tidy(&place, (of, epoch), number)));
                }
                Ok(Some(None)) => return Err(lost()),
                Ok(None) if leads_elsewhere(core, &path, of) => {
                    looks += 1;
                    if looks >= LOOKS && is_claimed()? {
                        return Err(lost());
                    }
                }
                Ok(None) => {}
                Err(reason) if begun.elapsed() > OWNER_PATIENCE => {
                    return Err(Error::new(ErrorKind::Changed, what, reason));
                }
                Err(_) => {}
            }
            if begun.elapsed() > OWNER_PATIENCE {
                return Err(Error::new(ErrorKind::Changed, what, "it is being moved"));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}
