//! What a node left that had the right to finish a file, and is gone, or failed at it: its file
//! beside the stub is taken out of its hands, and what it had done is brought to an end.
//!
//! The file is renamed to a name that only this node knows, so each of two nodes that do this, and
//! the one that may go on at any moment, finds it or finds nothing. A node makes the file of a
//! claim once, before the claim: what is taken does not come back.
//!
//! A node that exchanged its file for the stub has done its work, wherever it stopped then: the
//! stub is under the name of its file, and its copy, whole and durable, is in the place. Only what
//! another program brought there between its last look and the exchange goes back.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{RenameFlags, Stat, renameat, renameat_with};
use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_pfs::LowerFile;
use tidepool_proto::stub::taken_attribute;

use super::claim::{Taker, said};
use super::place::{Place, failed};
use crate::cluster::threads;
use crate::core::Core;
use crate::file::stub;

/// Start of the names of files beside stubs.
const PREFIX: &str = ".tidepool-copy-";

/// The same of those of one file and time in memory: what a user writes into a stub of his leads to
/// no other one's.
pub fn prefix((file, epoch): (FileKey, u64)) -> String {
    format!("{PREFIX}{epoch:016x}-{:x}-", file.inode)
}

/// A name that nobody knows.
pub fn fresh_name(of: (FileKey, u64)) -> OsString {
    OsString::from(format!("{}{:016x}", prefix(of), threads::random() as u64))
}

/// Whether a path of this file leads to what a node put beside it as a stub: it has been replaced.
/// A user's own file may be called like that of another one.
pub fn is_beside(path: &Path, of: (FileKey, u64)) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(prefix(of).as_bytes()))
}

/// A claim that was made.
pub struct Claimed {
    /// Of which node.
    pub member: String,
    /// Which start of it.
    pub start: String,
    /// Name of its file beside the stub; empty of who failed and removed it.
    beside: OsString,
    /// That file, and the name of the stub, which it is to get.
    copy: FileKey,
    name: OsString,
}

/// The value of the attribute that says so.
pub fn claim(me: (&str, &str), file: Option<(&OsStr, FileKey)>, name: &OsStr) -> Vec<u8> {
    let none = (OsStr::new(""), FileKey { inode: 0, generation: 0 });
    let (beside, FileKey { inode, generation }) = file.unwrap_or(none);
    let head = format!("{}:{}:{}:{inode}.{generation}:", me.0, me.1, beside.to_string_lossy());
    [head.as_bytes(), name.as_bytes()].concat()
}

impl Claimed {
    /// Reads one of a file. What a user writes there leads to no other file.
    pub fn parse(value: &[u8], of: (FileKey, u64)) -> Self {
        let mut words = value.splitn(5, |byte| *byte == b':');
        let mut word = || words.next().unwrap_or_default();
        let mut text = || String::from_utf8_lossy(word()).into_owned();
        let (member, start, beside) = (text(), text(), text());
        let numbers = text();
        let (inode, generation) = numbers.split_once('.').unwrap_or_default();
        let number = |text: &str| text.parse().unwrap_or(0);
        let copy = FileKey { inode: number(inode), generation: number(generation) };
        let is_name = |name: &[u8]| !name.contains(&b'/') && !matches!(name, b"." | b"..");
        let is_ours = beside.starts_with(&prefix(of)) && is_name(beside.as_bytes());
        let beside = OsString::from(if is_ours { beside } else { String::new() });
        let name = Some(word()).filter(|name| is_name(name)).unwrap_or_default();
        Claimed { member, start, beside, copy, name: OsString::from_vec(name.to_vec()) }
    }
}

impl Claimed {
    /// Whether its node said that it failed.
    pub fn has_failed(&self) -> bool {
        self.beside.is_empty()
    }
}

/// What became of a claim.
#[derive(Debug, PartialEq, Eq)]
pub enum Passed {
    /// It leads to nothing any more.
    Barred,
    /// It led to the end: its copy is in the place of the stub, durably.
    Replaced,
}

/// Has a claim lead to nothing any more, if it did not lead to the end.
pub fn pass(
    place: &Place<'_>,
    stub: &dyn LowerFile,
    (file, epoch): (FileKey, u64),
    claimed: &Claimed,
) -> Result<Passed, String> {
    if claimed.beside.is_empty() {
        return Ok(Passed::Barred);
    }
    let out = place.beside(&fresh_name((file, epoch)))?;
    match renameat(&place.directory, &claimed.beside, &place.directory, &out.name) {
        Ok(()) => {}
        Err(Errno::NOENT) => return ended(place, stub),
        Err(errno) => return Err(failed("keeping another node off")(errno)),
    }
    let is_stub = out.open(file)?.is_some();
    if is_stub && is_settled(stub, epoch)? {
        place.remove(&out.name);
        return ended(place, stub);
    }
    let is_its_copy = out.look(&out.name).is_some_and(|(it, _)| it == claimed.copy);
    match is_its_copy && !is_stub {
        true => place.remove(&out.name),
        false => {
            // A user who makes claims up gets nothing but files of his own.
            let owner = rustix::fs::fstat(stub.descriptor()).map(|it| it.st_uid).ok();
            put_back(&out, &claimed.name, &|it, user| it == claimed.copy && Some(user) == owner)?;
        }
    }
    Ok(Passed::Barred)
}

/// Whether a stub that was exchanged for a copy may go: no program wrote to it before, or gave it
/// another name.
pub fn is_settled(stub: &dyn LowerFile, epoch: u64) -> Result<bool, String> {
    let has_one = look(stub)?.is_none_or(|it| it.st_nlink <= 1);
    Ok(has_one && stub::is_of_epoch(stub, epoch).map_err(said)?)
}

/// The facts of a stub; `None` where it is gone.
fn look(stub: &dyn LowerFile) -> Result<Option<Stat>, String> {
    match rustix::fs::fstat(stub.descriptor()) {
        Ok(facts) => Ok(Some(facts)),
        Err(Errno::STALE | Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed("looking at the stub")(errno)),
    }
}

/// A stub without a name was replaced.
fn ended(place: &Place<'_>, stub: &dyn LowerFile) -> Result<Passed, String> {
    match look(stub)?.is_none_or(|it| it.st_nlink == 0) {
        true => place.sync().map(|()| Passed::Replaced),
        false => Ok(Passed::Barred),
    }
}

/// Puts what came out of an exchange where it was, at `name`, if the copy is still there. What came
/// there later is newer, and stays.
pub fn put_back(
    out: &Place<'_>,
    name: &OsStr,
    is_copy: &dyn Fn(FileKey, u32) -> bool,
) -> Result<(), String> {
    let is_copy = |name: &OsStr| out.look(name).is_some_and(|(it, user)| is_copy(it, user));
    let directory = &out.directory;
    let swap = || {
        renameat_with(directory, &out.name, directory, name, RenameFlags::EXCHANGE)
            .map_err(failed("putting a file back"))
    };
    if is_copy(name) {
        swap()?;
        if !is_copy(&out.name) {
            swap()?;
        }
    }
    out.remove(&out.name);
    Ok(())
}

impl Taker<'_> {
    /// Brings to an end what another node began that is gone: the stub is at `path`, under the name
    /// of its file.
    pub fn settle(
        &self,
        core: &Core,
        (file, epoch): (FileKey, u64),
        path: &Path,
    ) -> Result<(), String> {
        let Some(place) = Place::find(core, path)? else { return Ok(()) };
        let Some(stub) = place.open(file)? else { return Ok(()) };
        let mut last = None;
        for number in 1..=stub::TAKERS_MAX {
            match stub.get_xattr(&taken_attribute(epoch, number)).map_err(said)? {
                Some(value) => last = Some(Claimed::parse(&value, (file, epoch))),
                None => break,
            }
        }
        let Some(mut claimed) = last else { return Ok(()) };
        let (member, start) = (&claimed.member, &claimed.start);
        if member != self.me.0 && (self.is_there)(member, start) {
            return Err(format!("`{}` puts its copy in its place", claimed.member));
        }
        claimed.beside.clone_from(&place.name);
        match pass(&place, &*stub, (file, epoch), &claimed)? {
            Passed::Replaced => place.remove_all(&prefix((file, epoch))),
            Passed::Barred => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: (FileKey, u64) = (FileKey { inode: 9, generation: 1 }, 7);
    const OTHER: FileKey = FileKey { inode: 77, generation: u64::MAX };

    #[test]
    fn a_claim_is_read_as_it_was_written_and_leads_nowhere_else() {
        let name = OsStr::from_bytes(b"a:b\xff");
        let beside = fresh_name(OF);
        let read = Claimed::parse(&claim(("n1", "start"), Some((&beside, OTHER)), name), OF);
        assert_eq!((&*read.member, &*read.start, read.copy), ("n1", "start", OTHER));
        assert_eq!((read.beside, read.name), (beside, name.to_owned()));
        let read = Claimed::parse(&claim(("n1", "start"), None, name), OF);
        assert!(read.beside.is_empty());
        let others = FileKey { inode: 8, ..OF.0 };
        let read =
            Claimed::parse(&claim(("n1", ""), Some((&fresh_name((others, 7)), OTHER)), name), OF);
        assert!(read.beside.is_empty(), "it is beside another file");
        for forged in ["a:b:.tidepool-copy-/x:1:../x", "a:b:x:1:..", "", "a", "::::"] {
            let read = Claimed::parse(forged.as_bytes(), OF);
            assert!(read.beside.is_empty() && read.name.is_empty(), "{forged}");
        }
    }

    #[test]
    fn what_is_beside_a_stub_is_known_by_its_name() {
        let path = Path::new("d").join(fresh_name(OF));
        assert!(is_beside(&path, OF));
        assert!(!is_beside(&path, (OF.0, 8)), "a user's own file");
        assert!(
            !is_beside(Path::new("d/.tidepool-copy-mine"), OF) && !is_beside(Path::new(""), OF)
        );
    }
}
