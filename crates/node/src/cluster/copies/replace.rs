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
//! An open that empties the file puts an empty one in its place, in the same way: the node that had
//! it may go on at any moment, and write into the old one. A program beside Tidepool asks for no
//! right; what it wrote to the stub is looked for again before the copy is renamed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Gid, Mode, RenameFlags, Uid, XattrFlags, renameat_with};
use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_pfs::LowerFile;
use tidepool_proto::Error;
use tidepool_proto::stub::{STUB_ATTRIBUTE, copy_attribute, taken_attribute};
use tidepool_store::Segment;

use super::claim::{Claim, Taker, finish, said};
use super::held::{Bytes, Content, Purpose};
use super::place::{Place, failed, key_of};
use crate::core::Core;
use crate::file::stub;
use crate::file::stub_times::times_of;
use crate::file::write_back_check::Check;

/// Names of attributes that are not taken along.
const OURS: &str = "user.tidepool.";
const ACCESS_LIST: &str = "system.posix_acl_access";

const BARRED: &str = "another node, to which this one was gone, keeps it from that";

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
        let Some(stub) = place.open(file)? else { return Ok(Replaced::Nameless) };
        let stub = &*stub;
        let is_emptied = content.purpose == Purpose::Emptying;
        if !is_emptied && is_over(stub, epoch)? {
            return Ok(Replaced::Over);
        }
        check_names(Facts::of(stub)?.names)?;
        let right = match self.claim(&place, stub, (file, epoch))? {
            Claim::Owners(number) => {
                return finish(&place, stub, (file, epoch), number).map(|()| Replaced::Done);
            }
            Claim::Replaced => return Ok(Replaced::Done),
            Claim::Ours(right) => right,
        };
        let Some((name, beside)) = &right.beside else { return Ok(Replaced::Over) };
        if content.purpose == Purpose::Unpromised && promises(stub)? {
            place.remove(name);
            right.pass_on(stub, epoch)?;
            return Ok(Replaced::Promised);
        }
        // There may be no copies of what is emptied.
        let is_marked = is_emptied
            || stub
                .set_xattr_if(&copy_attribute(epoch), self.me.0.as_bytes(), true)
                .map_err(said)?;
        let done = if is_marked && stub::is_of_epoch(stub, epoch).map_err(said)? {
            mark_copy(beside, &self.copy_mark(beside, name, (file, epoch))?);
            write_beside(core, beside, stub, content).and_then(|facts| {
                if let Bytes::Buffers(owe, owed) = &content.bytes {
                    let copy = key_of(beside).map_err(failed("looking at the new file"))?;
                    owed.note_placing(core, owe, copy);
                }
                exchange(&place, (name, beside), (file, epoch), facts)
            })
        } else {
            Ok(Replaced::Over)
        };
        if !matches!(done, Ok(Replaced::Done)) {
            place.remove_own(name, beside);
        }
        // What came out of an exchange may be under the name still: the claim tells where it goes.
        if done.is_err() && !place.beside(name)?.is_there() {
            right.note_failed(self, stub, epoch);
        }
        if done == Ok(Replaced::Over) {
            right.give_up(stub, epoch)?;
        }
        if done.is_ok() {
            right.tidy(&place, (file, epoch));
        }
        done
    }
}

/// Marks a copy, where the PFS takes marks.
fn mark_copy(file: &File, mark: &[u8]) {
    if let Err(error) = rustix::fs::fsetxattr(file, STUB_ATTRIBUTE, mark, XattrFlags::empty()) {
        tracing::debug!(%error, "a copy takes no mark");
    }
}

/// Takes the mark off a copy that is in the right place. What is left of it is looked at by who
/// opens the file.
fn unmark_copy(file: &File) {
    if let Err(error) = rustix::fs::fremovexattr(file, STUB_ATTRIBUTE) {
        tracing::debug!(%error, "a copy keeps its mark");
    }
}

/// Takes the mark off a file whose node wrote all bytes back and did not get to that; whether the
/// path leads to one.
pub fn finish_at(core: &Core, path: &Path, (file, epoch): (FileKey, u64)) -> Result<bool, String> {
    let Some(place) = Place::find(core, path)? else { return Ok(false) };
    let Some(stub) = place.open(file)? else { return Ok(false) };
    let number = stub::number_of_owner(&*stub, epoch).map_err(said)?;
    let Some(number) = number else { return Ok(false) };
    finish(&place, &*stub, (file, epoch), number).map(|()| true)
}

/// Whether nothing of a time in memory is left at a file. Then it is left alone: each attribute
/// that is set, or removed, would tell its readers that it changed.
fn is_over(stub: &dyn LowerFile, epoch: u64) -> Result<bool, String> {
    for name in [copy_attribute(epoch), taken_attribute(epoch, 1)] {
        if stub.get_xattr(&name).map_err(said)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the mark says by now that bytes were promised.
fn promises(stub: &dyn LowerFile) -> Result<bool, String> {
    let size = stub.version().map_err(said)?.size;
    let mark = stub::find(stub, size).map_err(said)?;
    let stub::Found::Stub(mark) = mark else { return Ok(false) };
    Ok(mark.copies.is_some_and(|it| it.is_promised))
}

/// Writes the copy into the file beside the stub, with owner, mode and attributes, durably.
fn write_beside(
    core: &Core,
    file: &File,
    stub: &dyn LowerFile,
    content: &Content,
) -> Result<Facts, String> {
    let written = |error: io::Error| format!("writing the copy: {error}");
    match &content.bytes {
        Bytes::None => {}
        Bytes::Memory(segment, present) => {
            write_blocks(core, (segment, present), content.length, file)?;
        }
        Bytes::Buffers(owe, owed) => owed.write_into(core, owe, file)?,
    }
    file.set_len(content.length).map_err(written)?;
    file.sync_all().map_err(written)?;
    take_attributes(stub, file)
}

/// What a program may change of a stub while its copy is being written.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    names: u64,
    owner: (u32, u32),
    mode: u32,
    /// Of any of its attributes.
    changed: (i64, i64),
}

impl Facts {
    fn of(stub: &dyn LowerFile) -> Result<Self, String> {
        let facts = rustix::fs::fstat(stub.descriptor()).map_err(failed("looking at the stub"))?;
        Ok(Facts {
            names: facts.st_nlink as u64,
            owner: (facts.st_uid, facts.st_gid),
            mode: facts.st_mode,
            changed: (facts.st_ctime, facts.st_ctime_nsec as i64),
        })
    }

    /// Whether the same can be said of it after it was renamed, which some file systems note as a
    /// change.
    fn is_as(&self, later: &Facts) -> bool {
        (self.names, self.owner, self.mode) == (later.names, later.owner, later.mode)
    }
}

/// What is under a name.
enum Seen {
    /// The stub of this time in memory.
    Stub(Arc<dyn LowerFile>, Facts),
    /// Not that any more.
    Other(Replaced),
}

fn check_names(names: u64) -> Result<(), String> {
    match names {
        0 | 1 => Ok(()),
        _ => Err(format!("it has {names} names: remove all but one, then open it")),
    }
}

/// Writes what was ever written of a copy; the rest is holes.
fn write_blocks(
    core: &Core,
    (segment, present): (&Segment, &BTreeSet<u64>),
    length: u64,
    file: &File,
) -> Result<(), String> {
    let failed = |error: Error| format!("writing the copy: {error}");
    let descriptor = file.try_clone().map_err(|error| format!("writing the copy: {error}"))?;
    let lower = core.pfs.file(descriptor.into()).map_err(failed)?;
    let mut check = Check::new(core, &*lower);
    for block in 0..segment.blocks() {
        let start = block * segment.block_bytes();
        if start >= length {
            break;
        }
        if let Some(pin) = segment.pin_block(block) {
            let part = (length - start).min(pin.len() as u64) as usize;
            let written = file.write_all_at(&pin[..part], start);
            written.map_err(|error| format!("writing the copy: {error}"))?;
            check.note(start, &pin[..part]);
        } else if present.contains(&block) {
            return Err("a block of the copy cannot be mapped, or is gone".to_owned());
        }
    }
    check.look().map_err(failed)
}

/// Owner, mode, access list and attributes, durably; the facts that they are of.
fn take_attributes(stub: &dyn LowerFile, file: &File) -> Result<Facts, String> {
    let facts = Facts::of(stub)?;
    let new = rustix::fs::fstat(file).map_err(failed("looking at the new file"))?;
    if facts.owner != (new.st_uid, new.st_gid) {
        let (owner, group) = (Uid::from_raw(facts.owner.0), Gid::from_raw(facts.owner.1));
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
    rustix::fs::fchmod(file, Mode::from_raw_mode(facts.mode & 0o7777))
        .map_err(failed("setting its mode"))?;
    let times = times_of(stub).map_err(said)?;
    rustix::fs::futimens(file, &times).map_err(failed("setting its times"))?;
    file.sync_all().map_err(|error| format!("writing the copy: {error}"))?;
    Ok(facts)
}

impl Place<'_> {
    /// Renames a copy to the name of the stub, durably.
    fn rename_here(&self, beside: &OsStr) -> Result<Replaced, String> {
        rustix::fs::renameat(&self.directory, beside, &self.directory, &self.name)
            .map_err(failed("renaming the copy"))?;
        self.sync().map(|()| Replaced::Done)
    }
}

/// Looks whether the stub is under a name.
fn look(place: &Place<'_>, (file, epoch): (FileKey, u64)) -> Result<Seen, String> {
    let Some(stub) = place.open(file)? else { return Ok(Seen::Other(Replaced::Nameless)) };
    let facts = Facts::of(&*stub)?;
    let is_it = stub::is_of_epoch(&*stub, epoch).map_err(said)?;
    Ok(if is_it { Seen::Stub(stub, facts) } else { Seen::Other(Replaced::Over) })
}

/// Puts the file beside in the place of the stub. What comes out of that place is looked at: where
/// it is another program's file, or another program wrote to the stub, it goes back.
fn exchange(
    place: &Place<'_>,
    (beside, copy): (&OsStr, &File),
    (file, epoch): (FileKey, u64),
    mut taken: Facts,
) -> Result<Replaced, String> {
    let look = |place: &Place<'_>| look(place, (file, epoch));
    // After the copy was made: who took it out of this node's hands did so by now, or comes later.
    loop {
        match look(place)? {
            Seen::Other(other) => return Ok(other),
            Seen::Stub(_, facts) if facts == taken => break,
            Seen::Stub(stub, facts) => {
                check_names(facts.names)?;
                taken = take_attributes(&*stub, copy)?;
            }
        }
    }
    let is_ours = |name: &OsStr| place.has(name, copy);
    if !is_ours(beside) {
        return Err(BARRED.to_owned());
    }
    let swap = || {
        let (directory, name) = (&place.directory, &place.name);
        renameat_with(directory, beside, directory, name, RenameFlags::EXCHANGE)
    };
    match swap() {
        Ok(()) => {}
        Err(Errno::NOENT) if place.open(file)?.is_none() => return Ok(Replaced::Nameless),
        Err(Errno::NOENT) => return Err(BARRED.to_owned()),
        // Not on every PFS: there what comes between this look and the renaming is not seen.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            return match look(place)? {
                Seen::Stub(_, facts) if facts == taken => {
                    let renamed = place.rename_here(beside);
                    unmark_copy(copy);
                    renamed
                }
                Seen::Stub(..) => Err("it changes just now".to_owned()),
                Seen::Other(other) => Ok(other),
            };
        }
        Err(errno) => return Err(failed("renaming the copy")(errno)),
    }
    // A node to which this one is gone may take it out of its hands from here on, and looks too.
    let out = place.beside(beside)?;
    let came_out = match look(&out)? {
        Seen::Stub(stub, facts) if facts.names <= 1 => {
            if !facts.is_as(&taken) {
                take_attributes(&*stub, copy)?;
            }
            place.remove(beside);
            place.sync()?;
            unmark_copy(copy);
            return Ok(Replaced::Done);
        }
        Seen::Stub(_, facts) => check_names(facts.names).map(|()| Replaced::Over),
        Seen::Other(_) if !out.is_there() => return Err(BARRED.to_owned()),
        Seen::Other(other) => Ok(other),
    };
    swap().map_err(failed("putting a file back"))?;
    if !is_ours(beside) && !is_ours(&place.name) {
        // A third one came there in between: it is the newest.
        let _ = swap();
    }
    came_out
}
