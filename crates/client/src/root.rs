//! Directories that nodes serve: what a process remembers of them, and whether the directory of a
//! node is the one that a client uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// What nodes said last in this process, by socket: one that turns further clients away, or does
/// not answer them, still serves them so far.
static KEPT: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());

/// Keeps what the node at a socket said.
pub(crate) fn keep(socket: &Path, root: &Path) {
    KEPT.lock().insert(socket.to_owned(), root.to_owned());
}

/// What the node at a socket said last.
pub(crate) fn kept(socket: &Path) -> Option<PathBuf> {
    KEPT.lock().get(socket).cloned()
}

/// Whether a node that serves `theirs` is of use to a client of `ours`, a directory of another
/// name. What a node said before must be that directory again. What a user stated may have a name
/// of its own here, in a container say, or lie below it: the same file system will do.
pub(crate) fn is_same_place(ours: &Path, theirs: &Path, stated: bool) -> bool {
    let at = |path| {
        statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO | StatxFlags::MNT_ID).ok()
    };
    let (Some(ours), Some(theirs)) = (at(ours), at(theirs)) else {
        // The node's name for it may have no meaning here.
        return stated;
    };
    let device = |status: &rustix::fs::Statx| (status.stx_dev_major, status.stx_dev_minor);
    let same_device = device(&ours) == device(&theirs);
    if stated {
        // Subvolumes and layers have device numbers of their own; their mount is the same.
        return same_device || ours.stx_mnt_id == theirs.stx_mnt_id;
    }
    same_device && ours.stx_ino == theirs.stx_ino
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_said_is_that_directory_and_what_a_user_stated_its_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("one")).unwrap();
        std::fs::create_dir(path("two")).unwrap();
        std::os::unix::fs::symlink("one", path("link")).unwrap();
        let cases = [("one", "link", true, true), ("one", "two", false, true)];
        for (ours, theirs, said, stated) in cases {
            assert_eq!(is_same_place(&path(ours), &path(theirs), false), said, "{ours} {theirs}");
            assert_eq!(is_same_place(&path(ours), &path(theirs), true), stated, "{ours} {theirs}");
        }
        let elsewhere = Path::new("/proc");
        assert!(!is_same_place(&path("one"), elsewhere, true), "another file system");
        assert!(is_same_place(&path("one"), &path("none"), true), "not known here");
        assert!(!is_same_place(&path("one"), &path("none"), false));
    }
}
