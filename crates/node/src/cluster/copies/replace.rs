//! Puts the copy of a memory-only file in the place of its stub, because the node that had the file
//! is gone.
//!
//! That node may only be cut off, or stand still, and go on at any moment; other holders of copies
//! may try the same. So who finishes the file is settled on the PFS, which sets an attribute once
//! however many try: the node that had the file before it takes the mark off, a holder before it
//! writes. A holder writes a new file beside the stub and renames it: a program, or node, that
//! still has the stub open writes into what has no name any more.
//!
//! Each step, if it is the last one, leaves the stub or the whole file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid, XattrFlags};
use tidepool_cluster::FileKey;
use tidepool_pfs::LowerFile;
use tidepool_proto::Error;
use tidepool_proto::stub::{copy_attribute, taken_attribute};
use tidepool_store::Segment;

use super::held::Content;
use super::place::{Found, Place, failed};
use crate::core::Core;
use crate::file::stub;

/// Nodes that may have failed at it before.
const TAKERS_MAX: u32 = 16;
/// Names of attributes that are not taken along.
const OURS: &str = "user.tidepool.";

/// What became of a stub.
#[derive(Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The file is there, durably: this copy, or what the node that had it wrote itself.
    Done,
    /// It was finished before, or the time in memory that the copy is of is over.
    Over,
    /// The path does not lead to the stub.
    Nameless,
}

/// Who puts a copy in the place of a stub.
pub struct Taker<'a> {
    /// Name of this node among those of the cluster, and which start of it.
    pub me: (&'a str, &'a str),
    /// Whether another node is there.
    pub is_there: &'a dyn Fn(&str) -> bool,
}

fn said(error: Error) -> String {
    error.to_string()
}

/// Name of the file that is written beside the stub by the taker of this number.
fn name_beside(epoch: u64, number: u32) -> OsString {
    format!(".tidepool-copy-{epoch:016x}-{number}").into()
}

/// What a claim on a stub leads to.
enum Claim {
    /// This node has the right, as the taker of this number.
    Ours(u32),
    /// The node that had the file had it: all bytes are on the PFS.
    Owners,
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
        let number = match self.claim(&place, stub, epoch)? {
            Claim::Owners => {
                return stub::finish(stub, epoch).map(|()| Replaced::Done).map_err(said);
            }
            Claim::Ours(number) => number,
        };
        let is_marked = stub.set_xattr_if(&copy_attribute(epoch), self.value().as_bytes(), true);
        if !is_marked.map_err(said)? {
            stub.remove_xattr(&taken_attribute(epoch, number)).map_err(said)?;
            return Ok(Replaced::Over);
        }
        let beside = name_beside(epoch, number);
        let done = write_beside(&place, &beside, stub, content)
            .and_then(|()| rename(&place, &beside, file));
        if !matches!(done, Ok(Replaced::Done)) {
            place.remove(&beside);
        }
        if done.is_ok() {
            (1..number).for_each(|number| place.unbar(&name_beside(epoch, number)));
        }
        done
    }

    fn value(&self) -> String {
        format!("{}:{}", self.me.0, self.me.1)
    }

    /// Gets the right to finish the file, once nobody who had it before can use it any more.
    fn claim(&self, place: &Place<'_>, stub: &dyn LowerFile, epoch: u64) -> Result<Claim, String> {
        let ours = self.value();
        for number in 1..=TAKERS_MAX {
            let name = taken_attribute(epoch, number);
            if stub.set_xattr_if(&name, ours.as_bytes(), false).map_err(said)? {
                return Ok(Claim::Ours(number));
            }
            let Some(value) = stub.get_xattr(&name).map_err(said)? else {
                return Err("another node just gave it up".to_owned());
            };
            if value == stub::OWNER_TAKES {
                return Ok(Claim::Owners);
            }
            if value == ours.as_bytes() {
                // An earlier try failed.
                return Ok(Claim::Ours(number));
            }
            let value = String::from_utf8_lossy(&value);
            let taker = value.split(':').next().unwrap_or_default();
            if taker != self.me.0 && (self.is_there)(taker) {
                return Err(format!("`{taker}` puts its copy in its place"));
            }
            place.bar(&name_beside(epoch, number))?;
        }
        Err("many nodes failed at it".to_owned())
    }
}

/// Takes the mark off a file whose node wrote all bytes back and did not get to that; whether the
/// path leads to one.
pub fn finish_at(core: &Core, path: &Path, (file, epoch): (FileKey, u64)) -> Result<bool, String> {
    let Some(place) = Place::find(core, path)? else { return Ok(false) };
    let Some(Found { stub, .. }) = place.open(file)? else { return Ok(false) };
    let taken = stub.get_xattr(&taken_attribute(epoch, 1)).map_err(said)?;
    let is_whole = taken.as_deref() == Some(stub::OWNER_TAKES);
    if is_whole {
        stub::finish(&*stub, epoch).map_err(said)?;
    }
    Ok(is_whole)
}

/// Writes the copy beside the stub, with its owner, mode and attributes, durably.
fn write_beside(
    place: &Place<'_>,
    beside: &OsStr,
    stub: &dyn LowerFile,
    content: &Content,
) -> Result<(), String> {
    // Of an earlier try; one that was barred is a directory and stays.
    place.remove(beside);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::openat(&place.directory, beside, flags, mode)
        .map_err(failed("making a file beside the stub"))?;
    let file = File::from(file);
    let written = |error: io::Error| format!("writing the copy: {error}");
    if let Some(segment) = &content.segment {
        write_blocks(content, segment, &file)?;
    }
    file.set_len(content.length).map_err(written)?;
    take_attributes(stub, &file)?;
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
    rustix::fs::fchmod(file, Mode::from_raw_mode(from.st_mode & 0o7777))
        .map_err(failed("setting its mode"))?;
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::flistxattr(stub.descriptor(), &mut names)
        .map_err(failed("listing attributes"))?;
    let names = names[..length].split(|byte| *byte == 0);
    for name in names.filter_map(|name| std::str::from_utf8(name).ok()) {
        let is_list = name.starts_with("system.posix_acl");
        let is_users = name.starts_with("user.") && !name.starts_with(OURS);
        if !is_users && !is_list {
            continue; // what the PFS keeps for itself
        }
        if let Some(value) = stub.get_xattr(name).map_err(said)? {
            rustix::fs::fsetxattr(file, name, &value, XattrFlags::empty())
                .map_err(failed("setting an attribute"))?;
        }
    }
    Ok(())
}

fn rename(place: &Place<'_>, beside: &OsStr, file: FileKey) -> Result<Replaced, String> {
    // After it was made: who barred its name has renamed its own by now, or comes later.
    if place.open(file)?.is_none() {
        return Ok(Replaced::Nameless);
    }
    rustix::fs::renameat(&place.directory, beside, &place.directory, &place.name)
        .map_err(failed("renaming the copy"))?;
    rustix::fs::fsync(&place.directory).map_err(failed("syncing its directory"))?;
    Ok(Replaced::Done)
}
