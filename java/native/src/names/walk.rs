//! Counts files, directories and bytes of a tree in one call. Symbolic links to directories are not
//! entered, so nothing is counted twice and the walk ends.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use jni::Env;
use jni::objects::JLongArray;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use tidepool_client::Client;

use super::descent::Descent;
use super::status::{facts, facts_at, is_directory};
use super::{Doing, Place, itself};
use crate::bridge::Failure;

/// What a tree holds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    files: u64,
    directories: u64,
    bytes: u64,
}

fn count(path: &Path) -> rustix::io::Result<Sums> {
    let own = facts(path, true)?;
    if !is_directory(&own.stat) {
        return Ok(Sums { files: 1, directories: 0, bytes: own.length });
    }
    let mut sums = Sums::default();
    let mut descent = Descent::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(path, flags, Mode::empty())?;
    let inner = add(&mut sums, &top)?;
    descent.enter(top, inner)?;
    while let Some((directory, inner)) = descent.deepest() {
        let Some(name) = inner.pop() else {
            descent.leave()?;
            continue;
        };
        match rustix::fs::openat(directory, &name, flags | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(next) => {
                let inner = add(&mut sums, &next)?;
                descent.enter(next, inner)?;
            }
            // It went, or is something else by now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(sums)
}

/// Adds a directory with its files; returns the names of the directories in it.
fn add(sums: &mut Sums, directory: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    sums.directories += 1;
    // What lies deep has no path that the kernel would take.
    let path = itself(directory);
    let mut inner = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Some(facts) = facts_at(directory.as_fd(), &path, name)? else { continue };
        if !is_directory(&facts.stat) {
            sums.files += 1;
            sums.bytes += facts.length;
            continue;
        }
        let itself = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if itself.is_ok_and(|stat| is_directory(&stat)) {
            inner.push(name.to_owned());
        }
    }
    Ok(inner)
}

/// Files, directories and bytes of a tree.
pub(crate) fn sums<'local>(
    env: &mut Env<'local>,
    _: &Client,
    place: &Place,
) -> Result<JLongArray<'local>, Failure> {
    let sums = count(&place.lower).doing("counting", place)?;
    let values = [sums.files, sums.directories, sums.bytes].map(u64::cast_signed);
    let array = env.new_long_array(values.len())?;
    array.set_region(env, 0, &values)?;
    Ok(array)
}

#[cfg(test)]
mod tests {
    use super::super::descent::deep;
    use super::*;

    #[test]
    fn trees_are_counted_once_and_circles_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        std::fs::write(directory.path().join("a/one"), [0; 10]).unwrap();
        std::fs::write(directory.path().join("a/b/two"), [0; 20]).unwrap();
        std::os::unix::fs::symlink(directory.path(), directory.path().join("a/circle")).unwrap();
        let found = count(directory.path()).unwrap();
        assert_eq!(found, Sums { files: 2, directories: 3, bytes: 30 });
    }
    #[test]
    fn deep_trees_are_counted_on_a_small_stack() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        deep::make(top);
        let found = deep::on_a_small_stack(|| count(top).unwrap());
        let expected = Sums { files: 1, directories: deep::LEVELS as u64 + 1, bytes: 3 };
        assert_eq!(found, expected);
        // Not by the standard library, which takes a descriptor a level.
        let client = tidepool_client::Client::connect(tidepool_client::ClientOptions::default());
        let lower = top.join("d");
        let place = super::super::Place { lower, name: "/d".into(), is_root: false };
        assert!(super::super::remove::remove(&client, &place, true).unwrap());
    }
}
