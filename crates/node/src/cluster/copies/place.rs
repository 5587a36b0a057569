//! The place of a file in a directory: where its stub is, and a copy is written beside it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, StatxFlags};
use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_pfs::LowerFile;
use tidepool_proto::Version;
use tidepool_proto::stub::{Mark, STUB_ATTRIBUTE, mark_of_attribute};

use crate::cluster::beneath;
use crate::core::Core;

/// How often a file is taken away that another node makes again.
const REMOVALS_MAX: u32 = 16;
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

/// A stub that was found in its place.
pub struct Found {
    /// The stub, to read and to set attributes.
    pub stub: Arc<dyn LowerFile>,
    /// How many names it has.
    pub names: u32,
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

    /// Opens the stub of `file` and nothing else. `None` where the name leads elsewhere.
    pub fn open(&self, file: FileKey) -> Result<Option<Found>, String> {
        let found = match beneath::regular_file(&self.directory, Path::new(&self.name)) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(failed("opening the stub")(errno)),
        };
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let statx = rustix::fs::statx(&found, "", AtFlags::EMPTY_PATH, flags)
            .map_err(failed("looking at the stub"))?;
        let version = Version::from(&statx);
        if version.id.inode != file.inode || version.born_ns as u64 != file.generation {
            return Ok(None);
        }
        let descriptor = beneath::reopen(&found).map_err(failed("opening the stub"))?;
        let stub = self.core.pfs.file(descriptor).map_err(|error| error.to_string())?;
        Ok(Some(Found { stub, names: statx.stx_nlink }))
    }

    /// Removes a file, if it is there; a directory stays.
    pub fn remove(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
    }

    /// Has nobody make, or rename, a file of this name until [`Self::unbar`].
    pub fn bar(&self, name: &OsStr) -> Result<(), String> {
        for _ in 0..REMOVALS_MAX {
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

    /// Ends what [`Self::bar`] began.
    pub fn unbar(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::REMOVEDIR);
    }
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

/// The mark of the stub of a file at a path below the PFS directory, if it is there.
pub fn mark_at(core: &Core, path: &Path, file: FileKey) -> Result<Option<Mark>, String> {
    let Some(place) = Place::find(core, path)? else { return Ok(None) };
    let Some(Found { stub, .. }) = place.open(file)? else { return Ok(None) };
    let read = stub.version().and_then(|now| Ok((now.size, stub.get_xattr(STUB_ATTRIBUTE)?)));
    let (size, value) = read.map_err(|error| error.to_string())?;
    Ok(value.and_then(|value| mark_of_attribute(&value, size)))
}

/// Whether a path below the PFS directory leads to another file than this one, or to none.
pub fn leads_elsewhere(core: &Core, path: &Path, file: FileKey) -> bool {
    let place = Place::find(core, path);
    place.is_ok_and(|place| place.is_none_or(|it| it.open(file).is_ok_and(|open| open.is_none())))
}
