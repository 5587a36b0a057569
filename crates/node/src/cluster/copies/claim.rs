//! The right to finish the file of a stub, or to empty it: settled on the PFS, which sets an
//! attribute once however many nodes try it.
//!
//! Claims are numbered. Who finds one of a node that is gone keeps that node from using it any
//! more, and makes the next one: the name under which its copy would come is made a directory. A
//! claim tells that name, which nobody knows before; its file is there by then, so no other user
//! can put something in its way.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_cluster::FileKey;
use tidepool_pfs::LowerFile;
use tidepool_proto::stub::taken_attribute;
use tidepool_proto::{Error, ErrorKind};

use super::give_back::LOOK_INTERVAL;
use super::place::{Place, leads_elsewhere};
use crate::cluster::shared::Shared;
use crate::cluster::{Cluster, threads};
use crate::core::Core;
use crate::file::copied::Copied;
use crate::file::stub::{self, Afterwards};

/// How long the node that has a file waits for a holder that puts its copy in its place. Others
/// wait for the file meanwhile.
const OWNER_PATIENCE: Duration = Duration::from_secs(3);

/// Who gets the right. On one node nobody else tries it for the same file meanwhile.
pub struct Taker<'a> {
    /// Name of this node among those of the cluster, and which start of it.
    pub me: (&'a str, &'a str),
    /// Whether another node is there.
    pub is_there: &'a dyn Fn(&str) -> bool,
}

/// What a claim on a stub leads to.
pub enum Claim {
    /// This node has the right.
    Ours(Right),
    /// The node that had the file had it, as the first or a later one: all bytes are on the PFS.
    Owners(u32),
}

/// The right to finish a file.
pub struct Right {
    number: u32,
    /// File beside the stub, and its name; `None` of who only empties it.
    pub beside: Option<(OsString, File)>,
}

pub fn said(error: Error) -> String {
    error.to_string()
}

/// Start of the names of files beside the stub.
fn prefix(epoch: u64) -> String {
    format!(".tidepool-copy-{epoch:016x}-")
}

/// A claim that was made: of which node, which start of it, and the name of its file.
struct Claimed {
    member: String,
    start: String,
    beside: OsString,
}

impl Claimed {
    fn parse(value: &[u8]) -> Self {
        let text = String::from_utf8_lossy(value);
        let mut words = text.split(':').map(str::to_owned);
        let mut word = || words.next().unwrap_or_default();
        let (member, start, beside) = (word(), word(), word());
        // What a user writes there leads to no other name.
        let is_ours = beside.starts_with(".tidepool-copy-") && !beside.contains('/');
        Claimed { member, start, beside: if is_ours { beside } else { String::new() }.into() }
    }
}

impl Taker<'_> {
    fn value(&self, beside: &OsStr) -> String {
        format!("{}:{}:{}", self.me.0, self.me.1, beside.to_string_lossy())
    }

    /// Gets the right to put a copy in the place of a stub.
    pub fn claim(
        &self,
        place: &Place<'_>,
        stub: &dyn LowerFile,
        epoch: u64,
    ) -> Result<Claim, String> {
        let name = OsString::from(format!("{}{:016x}", prefix(epoch), threads::random() as u64));
        let file = place.create(&name)?;
        let claimed = self.claim_with(place, stub, epoch, Some((name.clone(), file)));
        let is_used = matches!(&claimed, Ok(Claim::Ours(right)) if right.is_beside(&name));
        if !is_used {
            place.remove(&name);
        }
        claimed
    }

    fn claim_with(
        &self,
        place: &Place<'_>,
        stub: &dyn LowerFile,
        epoch: u64,
        beside: Option<(OsString, File)>,
    ) -> Result<Claim, String> {
        let name = beside.as_ref().map(|(name, _)| name.as_os_str()).unwrap_or_default();
        self.claim_as(place, stub, epoch, (self.value(name).into_bytes(), beside))
    }

    fn claim_as(
        &self,
        place: &Place<'_>,
        stub: &dyn LowerFile,
        epoch: u64,
        (value, beside): (Vec<u8>, Option<(OsString, File)>),
    ) -> Result<Claim, String> {
        let read = |number| stub.get_xattr(&taken_attribute(epoch, number)).map_err(said);
        for number in 1..=stub::TAKERS_MAX {
            let found = match read(number)? {
                Some(found) => found,
                None => {
                    let attribute = taken_attribute(epoch, number);
                    let set = stub.set_xattr_if(&attribute, &value, false);
                    if set.map_err(said)? {
                        return Ok(Claim::Ours(Right { number, beside }));
                    }
                    read(number)?.ok_or("another node just gave it up")?
                }
            };
            if found == stub::OWNER_TAKES {
                return Ok(Claim::Owners(number));
            }
            let claimed = Claimed::parse(&found);
            if claimed.member != self.me.0 {
                if (self.is_there)(&claimed.member) {
                    return Err(format!("`{}` puts its copy in its place", claimed.member));
                }
                place.bar(&claimed.beside)?;
                continue;
            }
            // An earlier try failed. It is this one's, unless another node went on from there.
            place.remove(&claimed.beside);
            let is_last = claimed.start == self.me.1 && read(number + 1)?.is_none();
            if is_last && beside.is_none() {
                return Ok(Claim::Ours(Right { number, beside: None }));
            }
            if is_last && let Ok(file) = place.create(&claimed.beside) {
                return Ok(Claim::Ours(Right { number, beside: Some((claimed.beside, file)) }));
            }
        }
        Err("many nodes failed at it".to_owned())
    }

    /// Makes the stub of the time in memory `epoch` of `file`, found at `path`, an empty ordinary
    /// file; `lower` is its opener's. False where it is not that stub any more; the reason where
    /// another node finishes the file meanwhile.
    pub fn empty(
        &self,
        core: &Core,
        (file, epoch): (FileKey, u64),
        path: &Path,
        lower: &dyn LowerFile,
    ) -> Result<bool, String> {
        let place = Place::find(core, path)?;
        let found = place.as_ref().map(|place| place.open(file)).transpose()?.flatten();
        let (Some(place), Some(stub)) = (place, found) else {
            return Err("it was moved".to_owned());
        };
        let stub = &*stub;
        match self.claim_with(&place, stub, epoch, None)? {
            Claim::Owners(number) => finish(&place, stub, epoch, number)?,
            Claim::Ours(right) => {
                let is_it = stub::is_of_epoch(stub, epoch).map_err(said)?;
                match is_it {
                    true => stub::clear(lower).map_err(said)?,
                    false => right.give_up(stub, epoch)?,
                }
                right.tidy(&place, epoch);
                return Ok(is_it);
            }
        }
        Ok(false)
    }
}

impl Right {
    fn is_beside(&self, name: &OsStr) -> bool {
        self.beside.as_ref().is_some_and(|(beside, _)| beside == name)
    }

    /// Says on the PFS that nobody has, or gets, the right: it is no stub of this time in memory
    /// any more. In this order: who comes late finds no right to take.
    pub fn give_up(&self, stub: &dyn LowerFile, epoch: u64) -> Result<(), String> {
        stub::forget_epoch(stub, epoch).and_then(|()| stub::clear_if_remains(stub)).map_err(said)
    }

    /// Leaves the right to others, before anything was done with it.
    pub fn pass_on(&self, stub: &dyn LowerFile, epoch: u64) -> Result<(), String> {
        stub.remove_xattr(&taken_attribute(epoch, self.number)).map_err(said)
    }

    /// Removes what those who failed at it before left beside the file.
    pub fn tidy(&self, place: &Place<'_>, epoch: u64) {
        tidy(place, epoch, self.number);
    }
}

fn tidy(place: &Place<'_>, epoch: u64, number: u32) {
    if number > 1 {
        place.remove_all(&prefix(epoch));
    }
}

/// Ends what the node that had the file did not, which had the right by this number.
pub fn finish(
    place: &Place<'_>,
    stub: &dyn LowerFile,
    epoch: u64,
    number: u32,
) -> Result<(), String> {
    stub::finish(stub, epoch).map_err(said)?;
    tidy(place, epoch, number);
    Ok(())
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
        let begun = Instant::now();
        loop {
            let what = "writing a memory-only file back";
            let lost = || {
                let detail = "another node put its copy in its place";
                Error::new(ErrorKind::Lost, what, detail)
            };
            let Some(path) = lower.relative_path() else {
                // It was removed, or a copy came in its place.
                return match lower.get_xattr(&taken_attribute(epoch, 1))? {
                    Some(taken) if taken != stub::OWNER_TAKES => Err(lost()),
                    _ => Ok(Box::new(|| ())),
                };
            };
            let taken = self.as_taker(core, |taker| -> Result<_, String> {
                let Some(place) = Place::find(core, &path)? else { return Ok(None) };
                if place.open(of)?.is_none() {
                    return Ok(None);
                }
                let value = (stub::OWNER_TAKES.to_vec(), None);
                let claim = taker.claim_as(&place, &**lower, epoch, value)?;
                let (Claim::Owners(number) | Claim::Ours(Right { number, .. })) = claim;
                Ok(Some((number, place)))
            });
            match taken {
                Ok(Some((number, place))) => {
                    return Ok(Box::new(move || tidy(&place, epoch, number)));
                }
                Ok(None) if leads_elsewhere(core, &path, of) => return Err(lost()),
                Err(reason) if begun.elapsed() > OWNER_PATIENCE => {
                    return Err(Error::new(ErrorKind::Changed, what, reason));
                }
                Ok(None) | Err(_) => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }
}
