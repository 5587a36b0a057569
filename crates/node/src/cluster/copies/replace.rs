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
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_proto::Version;
use tidepool_proto::stub::{
    Mark, STUB_ATTRIBUTE, copy_attribute, mark_of_attribute, taken_attribute,
};

use tidepool_store::Segment;

use super::held::Content;
use crate::core::Core;
use crate::file::stub::OWNER_TAKES;

/// Nodes that may have failed at it before.
const TAKERS_MAX: u32 = 16;
/// Names of attributes that are not taken along.
const OURS: &[u8] = b"user.tidepool.";

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

/// What a file is in a directory.
struct Place {
    directory: OwnedFd,
    name: OsString,
}

/// Why it cannot be done now.
fn failed(what: &str) -> impl Fn(Errno) -> String + '_ {
    move |errno| format!("{what}: {}", io::Error::from(errno))
}

impl Place {
    /// Opens the directory of a path; no link leads anywhere. `None` where there is none.
    fn find(core: &Core, path: &Path) -> Result<Option<Place>, String> {
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else { return Ok(None) };
        let beneath =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = core.pfs.root_descriptor();
        match rustix::fs::openat2(root, parent, flags, Mode::empty(), beneath) {
            Ok(directory) => Ok(Some(Place { directory, name: name.to_owned() })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(failed("opening its directory")(errno)),
        }
    }

    /// Opens the stub and nothing else; with its number of names. `None` where the name leads
    /// elsewhere.
    fn open(&self, file: FileKey) -> Result<Option<(OwnedFd, u32)>, String> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(failed("opening the stub")(errno)),
        };
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let statx = rustix::fs::statx(&found, "", AtFlags::EMPTY_PATH, flags)
            .map_err(failed("looking at the stub"))?;
        let version = Version::from(&statx);
        let is_regular =
            FileType::from_raw_mode(u32::from(statx.stx_mode)) == FileType::RegularFile;
        let is_it = version.id.inode == file.inode && version.born_ns as u64 == file.generation;
        if !is_regular || !is_it {
            return Ok(None);
        }
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let stub = rustix::fs::open(again, flags, Mode::empty()).map_err(failed("opening it"))?;
        Ok(Some((stub, statx.stx_nlink)))
    }

    fn remove(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
    }

    /// Has nobody make, or rename, a file of this name until [`Self::unbar`].
    fn bar(&self, name: &OsStr) -> Result<(), String> {
        for _ in 0..TAKERS_MAX {
            self.remove(name);
            match rustix::fs::mkdirat(&self.directory, name, Mode::empty()) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    let there = rustix::fs::statat(&self.directory, name, flags);
                    let is_directory = |mode| FileType::from_raw_mode(mode) == FileType::Directory;
                    if there.is_ok_and(|there| is_directory(there.st_mode)) {
                        return Ok(());
                    }
                }
                Err(errno) => return Err(failed("keeping another node off")(errno)),
            }
        }
        Err("another node makes its file again and again".to_owned())
    }

    fn unbar(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::REMOVEDIR);
    }
}

/// The mark of the stub of a file at a path below the PFS directory, if it is there.
pub fn mark_at(core: &Core, path: &Path, file: FileKey) -> Result<Option<Mark>, String> {
    let Some(place) = Place::find(core, path)? else { return Ok(None) };
    let Some((stub, _)) = place.open(file)? else { return Ok(None) };
    let size = rustix::fs::fstat(&stub).map_err(failed("looking at the stub"))?.st_size;
    let value = get(&stub, STUB_ATTRIBUTE.as_bytes())?;
    Ok(value.and_then(|value| mark_of_attribute(&value, size as u64)))
}

/// Whether a path below the PFS directory leads to another file than this one, or to none.
pub fn leads_elsewhere(core: &Core, path: &Path, file: FileKey) -> bool {
    let place = Place::find(core, path);
    place.is_ok_and(|place| place.is_none_or(|it| it.open(file).is_ok_and(|open| open.is_none())))
}

/// Name of the file that is written beside the stub by the taker of this number.
fn name_beside(epoch: u64, number: u32) -> OsString {
    format!(".tidepool-copy-{epoch:016x}-{number}").into()
}

/// Sets an attribute if there is none (`exists` false) or one; whether it was set.
fn set_if(stub: &OwnedFd, name: &str, value: &[u8], exists: bool) -> Result<bool, String> {
    let flags = if exists { XattrFlags::REPLACE } else { XattrFlags::CREATE };
    match rustix::fs::fsetxattr(stub, name, value, flags) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST | Errno::NODATA) => Ok(false),
        Err(errno) => Err(failed("setting an attribute of the stub")(errno)),
    }
}

fn get(file: impl AsFd, name: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut value = vec![0; 64 << 10];
    match rustix::fs::fgetxattr(file, name, &mut value) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(failed("reading an attribute of the stub")(errno)),
    }
}

fn remove_attribute(stub: &OwnedFd, name: &str) -> Result<(), String> {
    match rustix::fs::fremovexattr(stub, name) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(errno) => Err(failed("removing an attribute of the stub")(errno)),
    }
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
        let Some((stub, names)) = place.open(file)? else { return Ok(Replaced::Nameless) };
        if names > 1 {
            return Err(format!("it has {names} names: remove all but one, then open it"));
        }
        let number = match self.claim(&place, &stub, epoch)? {
            Claim::Owners => return finish(&stub, epoch).map(|()| Replaced::Done),
            Claim::Ours(number) => number,
        };
        if !set_if(&stub, &copy_attribute(epoch), self.value().as_bytes(), true)? {
            remove_attribute(&stub, &taken_attribute(epoch, number))?;
            return Ok(Replaced::Over);
        }
        let beside = name_beside(epoch, number);
        let done = write_beside(&place, &beside, &stub, content)
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
    fn claim(&self, place: &Place, stub: &OwnedFd, epoch: u64) -> Result<Claim, String> {
        let ours = self.value();
        for number in 1..=TAKERS_MAX {
            let name = taken_attribute(epoch, number);
            if set_if(stub, &name, ours.as_bytes(), false)? {
                return Ok(Claim::Ours(number));
            }
            let Some(value) = get(stub, name.as_bytes())? else {
                return Err("another node just gave it up".to_owned());
            };
            if value == OWNER_TAKES {
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
    let Some((stub, _)) = place.open(file)? else { return Ok(false) };
    let taken = get(&stub, taken_attribute(epoch, 1).as_bytes())?;
    let is_whole = taken.as_deref() == Some(OWNER_TAKES);
    if is_whole {
        finish(&stub, epoch)?;
    }
    Ok(is_whole)
}

/// Ends what the node that had the file did not: all bytes are there, durably.
fn finish(stub: &OwnedFd, epoch: u64) -> Result<(), String> {
    remove_attribute(stub, STUB_ATTRIBUTE)?;
    remove_attribute(stub, &copy_attribute(epoch))?;
    remove_attribute(stub, &taken_attribute(epoch, 1))?;
    rustix::fs::fsync(stub).map_err(failed("syncing it"))
}

/// Writes the copy beside the stub, with its owner, mode and attributes, durably.
fn write_beside(
    place: &Place,
    beside: &OsStr,
    stub: &OwnedFd,
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
fn take_attributes(stub: &OwnedFd, file: &File) -> Result<(), String> {
    let (from, to) = (
        rustix::fs::fstat(stub).map_err(failed("looking at the stub"))?,
        rustix::fs::fstat(file).map_err(failed("looking at the new file"))?,
    );
    if (from.st_uid, from.st_gid) != (to.st_uid, to.st_gid) {
        let (owner, group) =
            (rustix::fs::Uid::from_raw(from.st_uid), rustix::fs::Gid::from_raw(from.st_gid));
        rustix::fs::fchown(file, Some(owner), Some(group)).map_err(failed("setting its owner"))?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(from.st_mode & 0o7777))
        .map_err(failed("setting its mode"))?;
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::flistxattr(stub, &mut names) {
        Ok(length) => length,
        Err(errno) => return Err(failed("listing attributes")(errno)),
    };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    for name in names.filter(|name| !name.starts_with(OURS)) {
        let is_list = name.starts_with(b"system.posix_acl");
        if !(name.starts_with(b"user.") || is_list) {
            continue; // what the PFS keeps for itself
        }
        if let Some(value) = get(stub, name)? {
            let name = OsStr::from_bytes(name);
            rustix::fs::fsetxattr(file, name, &value, XattrFlags::empty())
                .map_err(failed("setting an attribute"))?;
        }
    }
    Ok(())
}

fn rename(place: &Place, beside: &OsStr, file: FileKey) -> Result<Replaced, String> {
    // After it was made: who barred its name has renamed its own by now, or comes later.
    if place.open(file)?.is_none() {
        return Ok(Replaced::Nameless);
    }
    rustix::fs::renameat(&place.directory, beside, &place.directory, &place.name)
        .map_err(failed("renaming the copy"))?;
    rustix::fs::fsync(&place.directory).map_err(failed("syncing its directory"))?;
    Ok(Replaced::Done)
}
