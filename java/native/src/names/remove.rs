//! Deletes: one name, or a directory with all that is in it. Symbolic links are removed and never
//! followed. What memory holds of the files is let go.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use jni::EnvUnowned;
use jni::objects::{JClass, JString};
use jni::sys::{jboolean, jlong};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tidepool_client::Client;
use tidepool_proto::Result;

use super::descent::Descent;
use super::status::{is_directory, is_regular};
use super::{Doing, Place, at_place, failed};

/// How often one delete empties a directory once more in which somebody made new names meanwhile.
const AGAIN_MAX: u32 = 64;

/// Deletes a name; false if it is not there. The root stays, as in HDFS: false if it is empty or
/// all of it was to go.
pub(super) fn remove(client: &Client, place: &Place, recursive: bool) -> Result<bool> {
    let doing = "deleting";
    let stat = match rustix::fs::lstat(&place.lower) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        other => other.doing(doing, place)?,
    };
    if place.is_root {
        let is_empty = || -> rustix::io::Result<bool> {
            let directory = open_directory(rustix::fs::CWD, &place.lower)?;
            Ok(children(&directory)?.is_empty())
        };
        if !recursive && !is_empty().doing(doing, place)? {
            return Err(failed(doing, place, Errno::NOTEMPTY));
        }
        return Ok(false);
    }
    if !is_directory(&stat) {
        let unlink = || rustix::fs::unlink(&place.lower);
        return gone(super::change::telling(client, place, false, unlink)).doing(doing, place);
    }
    match rustix::fs::rmdir(&place.lower) {
        Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {}
        other => return gone(other).doing(doing, place),
    }
    let mut again = AGAIN_MAX;
    loop {
        let emptied = open_directory(rustix::fs::CWD, &place.lower)
            .and_then(|directory| empty(client, directory, &mut again));
        match emptied {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(doing, place, errno)),
        }
        match rustix::fs::rmdir(&place.lower) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if again > 0 => again -= 1,
            other => return gone(other).doing(doing, place),
        }
    }
}

/// Whether a removal found something; who was faster leaves nothing to do.
fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn open_directory(
    parent: BorrowedFd<'_>,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

type Child = (CString, FileType);

fn children(directory: &OwnedFd) -> rustix::io::Result<Vec<Child>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

/// A directory that is being emptied.
struct Emptied {
    /// Its name in the one above; empty for the top, whose name is the caller's.
    name: CString,
    left: Vec<Child>,
}

/// Removes everything in a directory. `again`: how often a directory may be emptied once more,
/// because somebody made new names in it.
fn empty(client: &Client, directory: OwnedFd, again: &mut u32) -> rustix::io::Result<()> {
    let mut descent = Descent::new();
    let left = children(&directory)?;
    descent.enter(directory, Emptied { name: CString::default(), left })?;
    while let Some((directory, emptied)) = descent.deepest() {
        if let Some((name, kind)) = emptied.left.pop() {
            if let Some(inner) = remove_one(client, directory, &name, kind)? {
                let left = children(&inner)?;
                descent.enter(inner, Emptied { name, left })?;
            }
            continue;
        }
        let done = descent.leave()?;
        if let (Some(done), Some((above, emptied))) = (done, descent.deepest()) {
            match gone(rustix::fs::unlinkat(above, &done.name, AtFlags::REMOVEDIR)) {
                Err(Errno::NOTEMPTY | Errno::EXIST) if *again > 0 => {
                    *again -= 1;
                    emptied.left.push((done.name, FileType::Directory));
                }
                other => drop(other?),
            }
        }
    }
    Ok(())
}

/// Removes one name; a directory that has something in it comes back open.
fn remove_one(
    client: &Client,
    directory: &OwnedFd,
    name: &CString,
    kind: FileType,
) -> rustix::io::Result<Option<OwnedFd>> {
    if kind != FileType::Directory {
        match unlink(client, directory, name, kind) {
            Ok(()) | Err(Errno::NOENT) => return Ok(None),
            // File systems that do not tell kinds in lists.
            Err(Errno::ISDIR | Errno::PERM) if kind == FileType::Unknown => {}
            Err(errno) => return Err(errno),
        }
    }
    match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(None),
        Err(Errno::NOTEMPTY | Errno::EXIST) => match open_directory(directory.as_fd(), name) {
            Err(Errno::NOENT) => Ok(None),
            opened => opened.map(Some),
        },
        Err(errno) => Err(errno),
    }
}

/// Removes one name of a file and tells the node, which may hold bytes of it.
fn unlink(
    client: &Client,
    directory: &OwnedFd,
    name: &CString,
    kind: FileType,
) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let is_file = || match kind {
        FileType::Unknown => rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| is_regular(&stat)),
        kind => kind == FileType::RegularFile,
    };
    let file = (client.is_connected() && is_file())
        .then(|| rustix::fs::openat(directory, name, flags, Mode::empty()).ok())
        .flatten();
    client.changing_metadata(file.as_ref().map(AsFd::as_fd), || {
        rustix::fs::unlinkat(directory, name, AtFlags::empty())
    })
}

/// Deletes; false if there was nothing.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeNames_remove<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    path: JString<'local>,
    recursive: jboolean,
) -> jboolean {
    at_place(&mut env, client, &path, |_, client, place| remove(&client.client, place, recursive))
}

#[cfg(test)]
mod tests {
    use super::super::descent::deep;
    use super::*;

    #[test]
    fn trees_go_and_what_links_lead_to_stays() {
        let client = Client::connect(tidepool_client::ClientOptions::default());
        let directory = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("kept"), b"1").unwrap();
        let lower = directory.path().join("tree");
        std::fs::create_dir_all(lower.join("a/b")).unwrap();
        std::fs::write(lower.join("a/b/file"), b"1").unwrap();
        std::os::unix::fs::symlink(outside.path(), lower.join("a/link")).unwrap();
        let place = Place { lower: lower.clone(), name: "/tree".into(), is_root: false };
        let refused = remove(&client, &place, false).unwrap_err();
        assert_eq!(refused.errno(), libc::ENOTEMPTY);
        assert!(remove(&client, &place, true).unwrap());
        assert!(!lower.exists() && outside.path().join("kept").exists());
        assert!(!remove(&client, &place, true).unwrap(), "nothing is there");
        let root = directory.path().to_path_buf();
        let root = Place { lower: root.clone(), name: "/".into(), is_root: true };
        std::fs::write(directory.path().join("file"), b"1").unwrap();
        assert!(!remove(&client, &root, true).unwrap());
        assert!(remove(&client, &root, false).is_err());
        assert!(directory.path().join("file").exists(), "the root is never emptied");
    }
    #[test]
    fn deep_trees_go_on_a_small_stack() {
        let client = Client::connect(tidepool_client::ClientOptions::default());
        let directory = tempfile::tempdir().unwrap();
        let lower = directory.path().join("deep");
        std::fs::create_dir(&lower).unwrap();
        deep::make(&lower);
        let place = Place { lower: lower.clone(), name: "/deep".into(), is_root: false };
        assert!(deep::on_a_small_stack(|| remove(&client, &place, true).unwrap()));
        assert!(!lower.exists());
    }
}
