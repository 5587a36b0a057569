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

use rustix::fs::{AtFlags, RenameFlags, Stat, renameat, renameat_with, statat};
use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_peer::Seal;
use tidepool_pfs::LowerFile;
use tidepool_proto::stub::taken_attribute;

use super::claim::{Taker, said};
use super::place::{Place, failed};
use super::stuck::Progress;
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
    /// Name of its file beside the stub; empty where a node failed, or none made the claim.
    beside: OsString,
    /// That file, and the name of the stub, which it is to get.
    copy: FileKey,
    name: OsString,
}

/// What the seal of a claim is of: whoever may write a stub could copy one from another file.
fn sealed_words((file, epoch): (FileKey, u64), words: &[u8]) -> Vec<u8> {
    let of = format!("claim {:x}.{:x} {epoch:x} ", file.inode, file.generation);
    [of.as_bytes(), words].concat()
}

/// The value of the attribute that says so.
pub fn claim(
    (seal, of): (&Seal, (FileKey, u64)),
    me: (&str, &str),
    (beside, FileKey { inode, generation }): (&OsStr, FileKey),
    name: &OsStr,
) -> Vec<u8> {
    let head = format!("{}:{}:{}:{inode}.{generation}:", me.0, me.1, beside.to_string_lossy());
    let words = [head.as_bytes(), name.as_bytes()].concat();
    let sealed = seal.of_words(&sealed_words(of, &words));
    [sealed.as_bytes(), b":", &words].concat()
}

impl Claimed {
    /// Reads one of a file. What a user writes there is that of a node which failed.
    pub fn parse(value: &[u8], (seal, of): (&Seal, (FileKey, u64))) -> Self {
        let mut parts = value.splitn(2, |byte| *byte == b':');
        let (given, words) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let is_sealed = std::str::from_utf8(given)
            .is_ok_and(|given| seal.is_of(&sealed_words(of, words), given));
        let mut words =
            Some(words).filter(|_| is_sealed).unwrap_or_default().splitn(5, |it| *it == b':');
        let mut word = || words.next().unwrap_or_default();
        let mut text = || String::from_utf8_lossy(word()).into_owned();
        let (member, start, beside) = (text(), text(), text());
        let numbers = text();
        let (inode, generation) = numbers.split_once('.').unwrap_or_default();
        let number = |text: &str| text.parse().unwrap_or(0);
        let copy = FileKey { inode: number(inode), generation: number(generation) };
        let (beside, name) = (OsString::from(beside), OsString::from_vec(word().to_vec()));
        Claimed { member, start, beside, copy, name }
    }
}

impl Claimed {
    /// How far its file is, if it is there.
    pub fn progress(&self, place: &Place<'_>) -> Option<Progress> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let facts = statat(&place.directory, &self.beside, flags).ok()?;
        Some((facts.st_size as u64, facts.st_mtime, facts.st_mtime_nsec as i64))
    }

    /// Whether its node said that it failed, or none made it.
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
    let is_its_copy = out.look(&out.name) == Some(claimed.copy);
    match is_its_copy && !is_stub {
        true => place.remove(&out.name),
        false => put_back(&out, &claimed.name, &|it| it == claimed.copy)?,
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
    is_copy: &dyn Fn(FileKey) -> bool,
) -> Result<(), String> {
    let is_copy = |name: &OsStr| out.look(name).is_some_and(is_copy);
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
                Some(value) => {
                    let claimed = Claimed::parse(&value, (self.seal, (file, epoch)));
                    // Who failed left nothing here.
                    last = Some(claimed).filter(|claimed| !claimed.has_failed()).or(last);
                }
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
    use tidepool_peer::{Identity, SharedKey};

    use super::*;

    const OF: (FileKey, u64) = (FileKey { inode: 9, generation: 1 }, 7);
    const OTHER: FileKey = FileKey { inode: 77, generation: u64::MAX };

    #[test]
    fn a_claim_is_read_as_it_was_written_and_only_if_a_node_wrote_it_there() {
        let key = SharedKey::from_bytes(&[1; 32]).unwrap();
        let seal = &Seal::of(&Identity { cluster: "c".into(), node: "n".into(), key, tls: None });
        let (name, me) = (OsStr::from_bytes(b"a:b\xff"), ("n1", "start"));
        let beside = fresh_name(OF);
        let text = claim((seal, OF), me, (&beside, OTHER), name);
        let read = Claimed::parse(&text, (seal, OF));
        assert_eq!((&*read.member, &*read.start, read.copy), ("n1", "start", OTHER));
        assert_eq!((&read.beside, read.name.as_os_str()), (&beside, name));
        let failed = Claimed::parse(b"failed n1", (seal, OF));
        assert!(failed.has_failed() && failed.member.is_empty());
        for others in [(FileKey { inode: 8, ..OF.0 }, OF.1), (OF.0, 8)] {
            assert!(Claimed::parse(&text, (seal, others)).has_failed(), "of another file");
        }
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            let read = Claimed::parse(&changed, (seal, OF));
            assert!(read.has_failed() && read.member.is_empty(), "byte {at}");
        }
        assert!(Claimed::parse(b"", (seal, OF)).has_failed());
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
