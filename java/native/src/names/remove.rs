//! Deletes one name, or a directory with all that is in it. Symbolic links are removed and not
//! followed. The node is told, so that it frees what its memory holds of the files.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tidepool_client::Client;
use tidepool_proto::Result;

use super::descent::Descent;
use super::status::{is_directory, is_regular};
use super::{Doing, Place, failed};

/// How often one delete empties a directory once more in which other programs made new names.
const AGAIN_MAX: u32 = 64;
/// How often a name may become a directory, or cease to be one, while it is deleted.
const KINDS_MAX: u32 = 64;

const DOING: &str = "deleting";

/// Deletes a name; false if it is not there. The root stays, as in HDFS: false if it is empty or
/// all of it was to go. All is done from the descriptor of the directory that the name is in, so
/// that nothing elsewhere goes when names change meanwhile.
pub(crate) fn remove(client: &Client, place: &Place, recursive: bool) -> Result<bool> {
    if place.is_root {
        return keep_root(place, recursive);
    }
    let (Some(above), Some(name)) = (place.lower.parent(), place.lower.file_name()) else {
        return Ok(false);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = match rustix::fs::open(above, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        other => other.doing(DOING, place)?,
    };
    let removed = CString::new(name.as_bytes())
        .map_err(|_| Errno::INVAL)
        .and_then(|name| remove_in(client, above, name, recursive));
    removed.doing(DOING, place)
}

/// What a delete of the root comes to.
fn keep_root(place: &Place, recursive: bool) -> Result<bool> {
    let found = open_directory(rustix::fs::CWD, &place.lower).and_then(|root| children(&root));
    match found {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Ok(found) if !found.is_empty() && !recursive => Err(failed(DOING, place, Errno::NOTEMPTY)),
        Err(errno) if !recursive => Err(failed(DOING, place, errno)),
        _ => Ok(false),
    }
}

/// Deletes a name in a directory; false if it is not there.
fn remove_in(
    client: &Client,
    above: OwnedFd,
    name: CString,
    recursive: bool,
) -> rustix::io::Result<bool> {
    for _ in 0..KINDS_MAX {
        let stat = match rustix::fs::statat(&above, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(false),
            other => other?,
        };
        let removed = if is_directory(&stat) {
            rustix::fs::unlinkat(&above, &name, AtFlags::REMOVEDIR)
        } else {
            unlink(client, &above, &name, FileType::from_raw_mode(stat.st_mode))
        };
        match removed {
            Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {
                return remove_tree(client, above, name);
            }
            // It became the other kind meanwhile.
            Err(Errno::NOTDIR | Errno::ISDIR) => {}
            other => return gone(other),
        }
    }
    Err(Errno::BUSY)
}

/// Whether a removal found something; another program may have been faster.
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
    /// Its name in the one above; empty for the one that the whole tree is in.
    name: CString,
    left: Vec<Child>,
}

/// Removes a directory of `above` with everything in it; false if another program was faster.
fn remove_tree(client: &Client, above: OwnedFd, name: CString) -> rustix::io::Result<bool> {
    // How often a directory may be emptied once more, because it got new names.
    let mut again = AGAIN_MAX;
    let mut found = false;
    let mut descent = Descent::new();
    let left = vec![(name, FileType::Directory)];
    descent.enter(above, Emptied { name: CString::default(), left })?;
    while let Some((directory, emptied)) = descent.deepest() {
        if let Some((name, kind)) = emptied.left.pop() {
            match remove_one(client, directory, &name, kind)? {
                Removed::Gone(by_us) => found = by_us,
                Removed::Not(inner) => {
                    let left = children(&inner)?;
                    descent.enter(inner, Emptied { name, left })?;
                }
            }
            continue;
        }
        let done = descent.leave()?;
        if let (Some(done), Some((above, emptied))) = (done, descent.deepest()) {
            match gone(rustix::fs::unlinkat(above, &done.name, AtFlags::REMOVEDIR)) {
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) if again > 0 => {
                    again -= 1;
                    emptied.left.push((done.name, FileType::Unknown));
                }
                other => found = other?,
            }
        }
    }
    Ok(found)
}

/// What became of one name.
#[derive(Debug)]
enum Removed {
    /// It is not there any more; whether this call did it.
    Gone(bool),
    /// It is a directory with something in it.
    Not(OwnedFd),
}

/// Removes one name that can be removed at once.
fn remove_one(
    client: &Client,
    directory: &OwnedFd,
    name: &CString,
    kind: FileType,
) -> rustix::io::Result<Removed> {
    let mut kind = kind;
    for _ in 0..KINDS_MAX {
        if kind != FileType::Directory {
            match gone(unlink(client, directory, name, kind)) {
                Ok(by_us) => return Ok(Removed::Gone(by_us)),
                // It became a directory meanwhile, or the list did not tell.
                Err(Errno::ISDIR) => {}
                Err(Errno::PERM) if kind == FileType::Unknown => {}
                Err(errno) => return Err(errno),
            }
        }
        match gone(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)) {
            Ok(by_us) => return Ok(Removed::Gone(by_us)),
            Err(Errno::NOTEMPTY | Errno::EXIST) => match open_directory(directory.as_fd(), name) {
                Ok(inner) => return Ok(Removed::Not(inner)),
                Err(Errno::NOENT) => return Ok(Removed::Gone(false)),
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno),
            },
            Err(Errno::NOTDIR) => {}
            Err(errno) => return Err(errno),
        }
        // It is no directory any more.
        kind = FileType::Unknown;
    }
    Err(Errno::BUSY)
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
    fn names_that_become_another_kind_go_too() {
        let client = Client::connect(tidepool_client::ClientOptions::default());
        let directory = tempfile::tempdir().unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap();
        let lower = directory.path().join("name");
        let went = |removed| matches!(removed, Removed::Gone(true));
        // As the list had it, and as it is.
        std::fs::create_dir(&lower).unwrap();
        let file = FileType::RegularFile;
        assert!(remove_one(&client, &above, &c"name".into(), file).is_ok_and(went));
        assert!(!lower.exists());
        std::fs::write(&lower, b"1").unwrap();
        let tree = FileType::Directory;
        assert!(remove_one(&client, &above, &c"name".into(), tree).is_ok_and(went));
        assert!(!lower.exists());
        std::fs::create_dir_all(lower.join("inner")).unwrap();
        let found = remove_one(&client, &above, &c"name".into(), file).unwrap();
        assert!(matches!(found, Removed::Not(_)), "something is in it");
    }

    #[test]
    fn what_takes_the_place_of_the_directory_above_stays() {
        let client = Client::connect(tidepool_client::ClientOptions::default());
        let directory = tempfile::tempdir().unwrap();
        let [ours, moved, theirs] =
            ["ours", "moved", "theirs"].map(|name| directory.path().join(name));
        std::fs::create_dir_all(ours.join("tree/inner")).unwrap();
        std::fs::create_dir_all(theirs.join("tree/inner")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::open(&ours, flags, Mode::empty()).unwrap();
        std::fs::rename(&ours, &moved).unwrap();
        std::os::unix::fs::symlink(&theirs, &ours).unwrap();
        assert!(remove_in(&client, above, c"tree".into(), true).unwrap());
        assert!(!moved.join("tree").exists() && theirs.join("tree/inner").exists());
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
