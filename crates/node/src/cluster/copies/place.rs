//! The place of a file in a directory: where its stub is, and a copy is written beside it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_pfs::LowerFile;
use tidepool_proto::Version;
use tidepool_proto::stub::{Mark, STUB_ATTRIBUTE, mark_of_attribute};

use super::pass::is_beside;
use crate::cluster::beneath;
use crate::core::Core;

/// Entries of a directory that are looked at for a file.
const ENTRIES_MAX: usize = 1 << 20;

/// What a file is in a directory.
pub struct Place<'a> {
    core: &'a Core,
    /// The directory, open.
    pub directory: OwnedFd,
    /// Name of the file there.
    pub name: OsString,
}

/// Why it cannot be done now.
pub fn failed(what: &str) -> impl Fn(Errno) -> String + '_ {
    move |errno| format!("{what}: {}", io::Error::from(errno))
}

impl<'a> Place<'a> {
    /// Opens the directory of a path below the PFS directory. `None` where there is none.
    pub fn find(core: &'a Core, path: &Path) -> Result<Option<Self>, String> {
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else { return Ok(None) };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match beneath::directory(core.pfs.root_descriptor(), parent) {
            Ok(directory) => Ok(Some(Place { core, directory, name: name.to_owned() })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(failed("opening its directory")(errno)),
        }
    }

    /// Another name in the same directory.
    pub fn beside(&self, name: &OsStr) -> Result<Self, String> {
        let directory = self.directory.try_clone().map_err(|error| error.to_string())?;
        Ok(Place { core: self.core, directory, name: name.to_owned() })
    }

    /// Opens the stub of `file` and nothing else. `None` where the name leads elsewhere.
    pub fn open(&self, file: FileKey) -> Result<Option<Arc<dyn LowerFile>>, String> {
        let found = match beneath::regular_file(&self.directory, Path::new(&self.name)) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(failed("opening the stub")(errno)),
        };
        if key_of(&found).map_err(failed("looking at the stub"))? != file {
            return Ok(None);
        }
        let descriptor = beneath::reopen(&found).map_err(failed("opening the stub"))?;
        self.core.pfs.file(descriptor).map(Some).map_err(|error| error.to_string())
    }

    /// Whether this node could put another file in the place of a stub, with its owner.
    fn check_rights(&self, stub: &dyn LowerFile) -> Result<(), String> {
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&self.directory, ".", wanted, AtFlags::EACCESS)
            .map_err(failed("it may not write to the directory of the file"))?;
        let facts = rustix::fs::fstat(stub.descriptor()).map_err(failed("looking at the stub"))?;
        let own = rustix::process::geteuid();
        match own.is_root() || own.as_raw() == facts.st_uid {
            true => Ok(()),
            false => Err("it may not make a file of that owner".to_owned()),
        }
    }

    /// Makes a new file, of this node alone.
    pub fn create(&self, name: &OsStr) -> Result<File, String> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.directory, name, flags, mode);
        file.map(File::from).map_err(failed("making a file beside the stub"))
    }

    /// Removes a file, if it is there; a directory stays.
    pub fn remove(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
    }

    /// What is under a name.
    pub fn look(&self, name: &OsStr) -> Option<FileKey> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let statx = rustix::fs::statx(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW, flags);
        statx.ok().map(|it| key_in(&it))
    }

    /// Whether the file that is open is under a name.
    pub fn has(&self, name: &OsStr, file: &File) -> bool {
        let own = key_of(file.as_fd());
        self.look(name).is_some_and(|there| own == Ok(there))
    }

    /// Removes the file that is open, if it is under that name.
    pub fn remove_own(&self, name: &OsStr, file: &File) {
        if self.has(name, file) {
            self.remove(name);
        }
    }

    /// Whether anything is under the name.
    pub fn is_there(&self) -> bool {
        let there = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        !matches!(there, Err(Errno::NOENT))
    }

    /// Makes what was done in the directory durable.
    pub fn sync(&self) -> Result<(), String> {
        rustix::fs::fsync(&self.directory).map_err(failed("syncing its directory"))
    }

    /// Removes files whose names begin so.
    pub fn remove_all(&self, prefix: &str) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.directory) else { return };
        let names = entries.take(ENTRIES_MAX).flatten().map(|entry| entry.file_name().to_owned());
        for name in names.filter(|name| name.to_bytes().starts_with(prefix.as_bytes())) {
            self.remove(OsStr::from_bytes(name.to_bytes()));
        }
    }
}

fn key_in(statx: &rustix::fs::Statx) -> FileKey {
    let version = Version::from(statx);
    FileKey { inode: version.id.inode, generation: version.born_ns as u64 }
}

/// What a file is called by all nodes. Its number alone may be another one's soon.
pub fn key_of(file: impl AsFd) -> Result<FileKey, Errno> {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags).map(|statx| key_in(&statx))
}

/// Where a file is in the directory of a path that leads to it no more; `None` where it is not
/// there, or among too many.
pub fn found_beside(core: &Core, path: &Path, file: FileKey) -> Option<PathBuf> {
    let mut place = Place::find(core, path).ok()??;
    let entries = rustix::fs::Dir::read_from(&place.directory).ok()?;
    let is_it = |entry: &rustix::fs::DirEntry| entry.ino() == file.inode;
    let entry = entries.take(ENTRIES_MAX).flatten().find(is_it)?;
    place.name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
    let is_there = place.open(file).is_ok_and(|found| found.is_some());
    is_there.then(|| path.with_file_name(&place.name))
}

/// Whether a file is at a path below the PFS directory, or under another name there, other than one
/// beside its place; durably so.
pub fn is_placed(core: &Core, path: &Path, (copy, of): (FileKey, (FileKey, u64))) -> bool {
    let is_at = |path: &Path| {
        let place = Place::find(core, path).ok().flatten();
        place.is_some_and(|place| place.look(&place.name) == Some(copy) && place.sync().is_ok())
    };
    let elsewhere = || found_beside(core, path, copy).filter(|found| !is_beside(found, of));
    is_at(path) || elsewhere().is_some_and(|found| is_at(&found))
}

/// What became of a file that is not where it was.
pub enum Whereabouts {
    /// It was removed.
    Removed,
    /// It is here, below the PFS directory.
    At(PathBuf),
    /// It was exchanged for a copy, and is here now.
    Replaced(PathBuf),
    /// It was moved, and this node does not find it.
    Moved,
    /// The PFS does not tell.
    Unknown,
}

/// Looks for a file that was found once.
pub fn whereabouts(core: &Core, found: &OwnedFd, of: (FileKey, u64)) -> Whereabouts {
    match rustix::fs::fstat(found) {
        Ok(facts) if facts.st_nlink == 0 => return Whereabouts::Removed,
        Ok(_) => {}
        // A mount that is gone tells nothing of its files.
        Err(Errno::STALE | Errno::NOENT)
            if rustix::fs::fstat(core.pfs.root_descriptor()).is_ok() =>
        {
            return Whereabouts::Removed;
        }
        Err(_) => return Whereabouts::Unknown,
    }
    let lower = beneath::reopen(found).ok().and_then(|again| core.pfs.file(again).ok());
    match lower.and_then(|lower| lower.relative_path()) {
        Some(path) if leads_elsewhere(core, &path, of.0) => Whereabouts::Moved,
        Some(path) if is_beside(&path, of) => Whereabouts::Replaced(path),
        Some(path) => Whereabouts::At(path),
        None => Whereabouts::Moved,
    }
}

/// How a file at a path below the PFS directory is found again, stub or not, if it is there.
pub fn found_at(core: &Core, path: &Path, file: FileKey) -> Result<Option<OwnedFd>, String> {
    let Some(place) = Place::find(core, path)? else { return Ok(None) };
    let Some(lower) = place.open(file)? else { return Ok(None) };
    beneath::to_look_at(lower.descriptor()).map(Some).map_err(failed("looking at the file"))
}

/// The mark of the stub of a file at a path below the PFS directory, if it is there, and how it is
/// found again.
pub fn mark_at(core: &Core, path: &Path, file: FileKey) -> Result<Option<(Mark, OwnedFd)>, String> {
    let Some(place) = Place::find(core, path)? else { return Ok(None) };
    let Some(stub) = place.open(file)? else { return Ok(None) };
    let read = stub.version().and_then(|now| Ok((now.size, stub.get_xattr(STUB_ATTRIBUTE)?)));
    let (size, value) = read.map_err(|error| error.to_string())?;
    let mark = value.and_then(|value| mark_of_attribute(&value, size));
    place.check_rights(&*stub)?;
    let found = beneath::to_look_at(stub.descriptor()).map_err(failed("looking at the stub"))?;
    Ok(mark.map(|mark| (mark, found)))
}

/// Whether a path below the PFS directory leads to another file than this one, or to none.
pub fn leads_elsewhere(core: &Core, path: &Path, file: FileKey) -> bool {
    let place = Place::find(core, path);
    place.is_ok_and(|place| place.is_none_or(|it| it.open(file).is_ok_and(|open| open.is_none())))
}
