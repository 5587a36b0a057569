//! Makes directories, with the mode that was asked for whatever the umask of the process. All is
//! done from the descriptor of the parent, and the mode is set by a descriptor, because in a
//! directory of another user a name may change its meaning from one call to the next.

use std::os::fd::OwnedFd;
use std::path::Path;

use jni::sys::jint;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tidepool_client::Client;
use tidepool_proto::Result;

use super::{Doing, Place, attributes, failed, itself};

const DOING: &str = "making the directory";

/// No right to read a directory is needed to make something in it.
const HERE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Makes a directory and those it lies in. `mode` is what they shall have whatever the umask of
/// the process; an inherited access control list goes before it.
fn make_all(place: &Place, mode: u32) -> Result<()> {
    let mut next = place.clone();
    let mut missing = Vec::new();
    let mut above = loop {
        match above(&next) {
            Ok(above) => break above,
            Err(Errno::NOENT) if !next.is_root => {
                let parent = next.parent();
                missing.push(std::mem::replace(&mut next, parent));
            }
            Err(errno) => return Err(failed(DOING, &next, errno)),
        }
    };
    loop {
        // The caller must get in to make the directories below, as in HDFS.
        let mode = if missing.is_empty() { mode } else { mode | 0o300 };
        above = make_or_find(&above, &next, mode).doing(DOING, &next)?;
        let Some(inner) = missing.pop() else { return Ok(()) };
        next = inner;
    }
}

/// The directory that a name is in. Links on the way are followed, as everywhere.
fn above(place: &Place) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(place.lower.parent().unwrap_or(Path::new("/")), HERE, Mode::empty())
}

/// Makes a directory, or finds the one that is there, also behind a link.
fn make_or_find(above: &OwnedFd, place: &Place, mode: u32) -> rustix::io::Result<OwnedFd> {
    match make(above, place, mode) {
        Err(Errno::EXIST) => {
            rustix::fs::openat(above, name(place), HERE, Mode::empty()).map_err(|_| Errno::EXIST)
        }
        other => other,
    }
}

/// The name of a place in the directory above; the root of all has none but this.
fn name(place: &Place) -> &Path {
    place.lower.file_name().map_or(Path::new("."), Path::new)
}

/// Makes a directory where nothing is.
fn make(above: &OwnedFd, place: &Place, mode: u32) -> rustix::io::Result<OwnedFd> {
    rustix::fs::mkdirat(above, name(place), Mode::from_raw_mode(mode))?;
    settle(above, name(place), mode)
}

/// Gives a directory that was just made the mode that was asked for, where the umask of the process
/// took some of it. Fails where another thing has its name by now; a directory that cannot be the
/// one that was made keeps its mode.
fn settle(above: &OwnedFd, name: &Path, mode: u32) -> rustix::io::Result<OwnedFd> {
    let made = rustix::fs::openat(above, name, HERE | OFlags::NOFOLLOW, Mode::empty())?;
    let (stat, stat_above) = (rustix::fs::fstat(&made)?, rustix::fs::fstat(above)?);
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    let asked_for = stat.st_mode & 0o777 == mode & 0o777;
    if asked_for || !is_ours || stat.st_dev != stat_above.st_dev {
        return Ok(made);
    }
    let path = itself(&made);
    if !attributes::has_access_list(&path) {
        // The set-group-id bit comes from the directory above.
        let mode = mode | (stat.st_mode & libc::S_ISGID);
        rustix::fs::chmod(&path, Mode::from_raw_mode(mode & 0o7777))?;
    }
    Ok(made)
}

/// Makes a directory; those above it too.
pub(crate) fn make_directories(_: &Client, place: &Place, mode: jint) -> Result<()> {
    make_all(place, mode.cast_unsigned())
}

/// Makes one directory in one that is there.
pub(crate) fn make_directory(_: &Client, place: &Place, mode: jint) -> Result<()> {
    let made = above(place).and_then(|above| make(&above, place, mode.cast_unsigned()));
    made.doing(DOING, place).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_have_the_mode_that_was_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| Place {
            lower: directory.path().join(name),
            name: format!("/{name}"),
            is_root: false,
        };
        make_all(&place("a/b/c"), 0o477).unwrap();
        let mode = |name: &str| mode(&directory.path().join(name));
        assert_eq!((mode("a"), mode("a/b"), mode("a/b/c")), (0o777, 0o777, 0o477));
        make_all(&place("a/b"), 0o700).unwrap();
        assert_eq!(mode("a/b"), 0o777, "what is there stays as it is");
        std::fs::write(directory.path().join("file"), b"").unwrap();
        let over = make_all(&place("file"), 0o777).unwrap_err();
        assert_eq!(over.errno(), libc::EEXIST);
        let below = make_all(&place("file/x/y"), 0o777).unwrap_err();
        assert_eq!(below.errno(), libc::ENOTDIR);
        std::os::unix::fs::symlink("a", directory.path().join("link")).unwrap();
        make_all(&place("link/x"), 0o755).unwrap();
        assert_eq!(mode("a/x"), 0o755, "links lead on");
        std::os::unix::fs::symlink("nothing", directory.path().join("dangling")).unwrap();
        let nowhere = make_all(&place("dangling/x"), 0o755).unwrap_err();
        assert_eq!(nowhere.errno(), libc::EEXIST);
    }

    #[test]
    fn what_takes_the_name_of_a_new_directory_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, b"").unwrap();
        let private = directory.path().join("private");
        std::fs::create_dir(&private).unwrap();
        let open = |path: &Path| rustix::fs::open(path, HERE, Mode::empty()).unwrap();
        let above = open(directory.path());
        for target in [&secret, &private] {
            set_mode(target, 0o600);
            // It was made, and another program exchanged it for this link.
            let name = Path::new("made");
            std::os::unix::fs::symlink(target, directory.path().join(name)).unwrap();
            assert_eq!(settle(&above, name, 0o777).unwrap_err(), Errno::NOTDIR);
            assert_eq!(mode(target), 0o600);
            std::fs::remove_file(directory.path().join(name)).unwrap();
        }
        let inner = Path::new("private");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&private, Some(65_534), None).unwrap();
            settle(&above, inner, 0o777).unwrap();
            assert_eq!(mode(&private), 0o600, "it is somebody else's");
            std::os::unix::fs::chown(&private, Some(0), None).unwrap();
        }
        settle(&above, inner, 0o777).unwrap();
        assert_eq!(mode(&private), 0o777);
    }
}
