//! Puts the copy of a memory-only file in the place of its stub, because the node that had the file
//! is gone.
//!
//! That node may only be cut off, or stand still, and go on at any moment; other holders of copies
//! may try the same. So a holder needs the right to it (see `claim`), as that node does before it
//! takes the mark off. It writes a new file beside the stub and renames it: a program, or node,
//! that still has the stub open writes into what has no name any more.
//!
//! Each step, if it is the last one, leaves the stub or the whole file.
//!
//! An open that empties the file needs the same right: no copy comes back over what it writes then.
//! A program beside Tidepool asks for none; what it wrote to the stub is looked for again before
//! the copy is renamed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid, XattrFlags, renameat_with,
};
use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_pfs::LowerFile;
use tidepool_proto::stub::copy_attribute;
use tidepool_store::Segment;

use super::claim::{Claim, Taker, finish, said};
use super::held::Content;
use super::place::{Found, Place, failed};
use crate::core::Core;
use crate::file::stub;

/// Names of attributes that are not taken along.
const OURS: &str = "user.tidepool.";
const ACCESS_LIST: &str = "system.posix_acl_access";

/// What became of a stub.
#[derive(Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The file is there, durably: this copy, or what the node that had it wrote itself.
    Done,
    /// It was finished before, or the time in memory that the copy is of is over.
    Over,
    /// The path does not lead to the stub.
    Nameless,
    /// Of a file of which nothing was to be promised: its node promised bytes meanwhile.
    Promised,
}

impl Taker<'_> {
    /// Puts the copy of the time in memory `epoch` of `file` in its place, found at `path`.
    pub fn replace(
        &self,
        core: &Core,
        (file, epoch): (FileKey, u64),
        content: &Content,
        path: &Path,
    ) -> Result<Replaced, String> {
        let Some(place) = Place::find(core, path)? else { return Ok(Replaced::Nameless) };
        let Some(Found { stub, names }) = place.open(file)? else {
            return Ok(Replaced::Nameless);
        };
        let stub = &*stub;
        if names > 1 {
            return Err(format!("it has {names} names: remove all but one, then open it"));
        }
        let right = match self.claim(&place, stub, epoch)? {
            Claim::Owners(number) => {
                return finish(&place, stub, epoch, number).map(|()| Replaced::Done);
            }
            Claim::Ours(right) => right,
        };
        let Some((name, beside)) = &right.beside else { return Ok(Replaced::Over) };
        if content.is_unpromised && promises(stub)? {
            place.remove(name);
            right.pass_on(stub, epoch)?;
            return Ok(Replaced::Promised);
        }
        let is_marked = stub.set_xattr_if(&copy_attribute(epoch), self.me.0.as_bytes(), true);
        let done = if is_marked.map_err(said)? && stub::is_of_epoch(stub, epoch).map_err(said)? {
            write_beside(beside, stub, content)
                .and_then(|()| exchange(&place, (name, beside), (file, epoch)))
        } else {
            Ok(Replaced::Over)
        };
        if !matches!(done, Ok(Replaced::Done)) {
            place.remove(name);
        }
        if done == Ok(Replaced::Over) {
            right.give_up(stub, epoch)?;
        }
        if done.is_ok() {
            right.tidy(&place, epoch);
        }
        done
    }
}

/// Takes the mark off a file whose node wrote all bytes back and did not get to that; whether the
/// path leads to one.
pub fn finish_at(core: &Core, path: &Path, (file, epoch): (FileKey, u64)) -> Result<bool, String> {
    let Some(place) = Place::find(core, path)? else { return Ok(false) };
    let Some(Found { stub, .. }) = place.open(file)? else { return Ok(false) };
    let is_whole = stub::is_whole(&*stub, epoch).map_err(said)?;
    if is_whole {
        stub::finish(&*stub, epoch).map_err(said)?;
    }
    Ok(is_whole)
}

/// Whether the mark says by now that bytes were promised.
fn promises(stub: &dyn LowerFile) -> Result<bool, String> {
    let size = stub.version().map_err(said)?.size;
    let mark = stub::find(stub, size).map_err(said)?;
    let stub::Found::Stub(mark) = mark else { return Ok(false) };
    Ok(mark.copies.is_some_and(|it| it.is_promised))
}

/// Writes the copy into the file beside the stub, with owner, mode and attributes, durably.
fn write_beside(file: &File, stub: &dyn LowerFile, content: &Content) -> Result<(), String> {
    let written = |error: io::Error| format!("writing the copy: {error}");
    if let Some(segment) = &content.segment {
        write_blocks(content, segment, file)?;
    }
    file.set_len(content.length).map_err(written)?;
    take_attributes(stub, file)?;
    file.sync_all().map_err(written)
}

/// Writes what was ever written of a copy; the rest is holes.
fn write_blocks(content: &Content, segment: &Segment, file: &File) -> Result<(), String> {
    let Content { present, length, .. } = content;
    for block in 0..segment.blocks() {
        let start = block * segment.block_bytes();
        if start >= *length {
            break;
        }
        if let Some(pin) = segment.pin_block(block) {
            let part = (*length - start).min(pin.len() as u64) as usize;
            let written = file.write_all_at(&pin[..part], start);
            written.map_err(|error| format!("writing the copy: {error}"))?;
        } else if present.contains(&block) {
            return Err("a block of the copy cannot be mapped, or is gone".to_owned());
        }
    }
    Ok(())
}

/// Times that a program set, as `cp -p` does: those from before the file was made, or to come.
/// Others are of the moment when the bytes reach the PFS, as after every write-back.
fn keep_set_times(stub: &dyn LowerFile, file: &File) -> Result<(), String> {
    let version = stub.version().map_err(said)?;
    if (version.born_ns..=version.changed_ns).contains(&version.modified_ns) {
        return Ok(());
    }
    let facts = rustix::fs::fstat(stub.descriptor()).map_err(failed("looking at the stub"))?;
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    let times = Timestamps {
        last_access: time(facts.st_atime, facts.st_atime_nsec),
        last_modification: time(facts.st_mtime, facts.st_mtime_nsec),
    };
    rustix::fs::futimens(file, &times).map_err(failed("setting its times"))
}

/// Owner, mode, access list and attributes.
fn take_attributes(stub: &dyn LowerFile, file: &File) -> Result<(), String> {
    let (from, to) = (
        rustix::fs::fstat(stub.descriptor()).map_err(failed("looking at the stub"))?,
        rustix::fs::fstat(file).map_err(failed("looking at the new file"))?,
    );
    if (from.st_uid, from.st_gid) != (to.st_uid, to.st_gid) {
        let (owner, group) = (Uid::from_raw(from.st_uid), Gid::from_raw(from.st_gid));
        rustix::fs::fchown(file, Some(owner), Some(group)).map_err(failed("setting its owner"))?;
    }
    // What the directory hands on is not of this file.
    match rustix::fs::fremovexattr(file, ACCESS_LIST) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(failed("removing an access list")(errno)),
    }
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::flistxattr(stub.descriptor(), &mut names)
        .map_err(failed("listing attributes"))?;
    let names = names[..length].split(|byte| *byte == 0);
    for name in names.filter_map(|name| std::str::from_utf8(name).ok()) {
        let is_list = name == ACCESS_LIST;
        let is_users = name.starts_with("user.") && !name.starts_with(OURS);
        if !is_users && !is_list {
            continue; // what the PFS keeps for itself
        }
        if let Some(value) = stub.get_xattr(name).map_err(said)? {
            rustix::fs::fsetxattr(file, name, &value, XattrFlags::empty())
                .map_err(failed("setting an attribute"))?;
        }
    }
    // Until here nobody but this node gets at it.
    rustix::fs::fchmod(file, Mode::from_raw_mode(from.st_mode & 0o7777))
        .map_err(failed("setting its mode"))?;
    keep_set_times(stub, file)
}

/// Puts the file beside in the place of the stub. What comes out of that place is looked at: where
/// it is another program's file, or another program wrote to the stub, it goes back.
fn exchange(
    place: &Place<'_>,
    (beside, copy): (&OsStr, &File),
    (file, epoch): (FileKey, u64),
) -> Result<Replaced, String> {
    let look = |place: &Place<'_>| -> Result<Replaced, String> {
        let Some(Found { stub, .. }) = place.open(file)? else { return Ok(Replaced::Nameless) };
        let is_it = stub::is_of_epoch(&*stub, epoch).map_err(said)?;
        Ok(if is_it { Replaced::Done } else { Replaced::Over })
    };
    // After the copy was made: who barred its name has put its own there by now, or comes later.
    let before = look(place)?;
    if before != Replaced::Done {
        return Ok(before);
    }
    let swap = || {
        let (directory, name) = (&place.directory, &place.name);
        renameat_with(directory, beside, directory, name, RenameFlags::EXCHANGE)
    };
    match swap() {
        Ok(()) => {}
        Err(Errno::NOENT) if place.open(file)?.is_none() => return Ok(Replaced::Nameless),
        // Not on every PFS: there what came in this moment is not seen.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::renameat(&place.directory, beside, &place.directory, &place.name)
                .map_err(failed("renaming the copy"))?;
            sync(place)?;
            return Ok(Replaced::Done);
        }
        Err(errno) => return Err(failed("renaming the copy")(errno)),
    }
    let came_out = look(&place.beside(beside)?)?;
    if came_out == Replaced::Done {
        place.remove(beside);
        sync(place)?;
        return Ok(Replaced::Done);
    }
    let _ = swap();
    let is_ours = |name: &OsStr| {
        let there = rustix::fs::statat(&place.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let own = rustix::fs::fstat(copy);
        there.is_ok_and(|there| own.is_ok_and(|own| own.st_ino == there.st_ino))
    };
    if !is_ours(beside) && !is_ours(&place.name) {
        // A third one came there in between: it is the newest.
        let _ = swap();
    }
    Ok(came_out)
}

fn sync(place: &Place<'_>) -> Result<(), String> {
    rustix::fs::fsync(&place.directory).map_err(failed("syncing its directory"))
}
