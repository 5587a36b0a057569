//! Renames: one atomic call on the parallel file system, after the checks that Hadoop's rules
//! need. Hadoop's plain rename answers false where HDFS does, and never replaces a file.

use std::os::fd::AsFd;

use jni::Env;
use jni::objects::JString;
use jni::sys::jboolean;
use rustix::fs::{CWD, RenameFlags, Stat};
use rustix::io::Errno;
use tidepool_client::Client;
use tidepool_proto::{Error, ErrorKind, Result};

use super::change::witness;
use super::status::{is_directory, is_regular};
use super::{Doing, Place, failed};
use crate::bridge::Failure;

const DOING: &str = "renaming";

/// What is at a place, without following a link; `None` if nothing.
fn there(place: &Place) -> Result<Option<Stat>> {
    match rustix::fs::lstat(&place.lower) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(failed(DOING, place, errno)),
    }
}

/// Whether `inner` lies in `outer`.
fn is_within(inner: &Place, outer: &Place) -> bool {
    inner.lower != outer.lower && inner.lower.starts_with(&outer.lower)
}

/// `rename(source, target)`: into `target` if that is a directory. False as in HDFS: nothing is at
/// the source, a file is at the target, the directory of the target is missing, or a directory
/// would go into itself.
fn move_into(client: &Client, source: &Place, target: &Place) -> Result<bool> {
    let Some(stat) = there(source)? else { return Ok(false) };
    if source.is_root || is_within(target, source) {
        return Ok(false);
    }
    let mut target = target.clone();
    if let Ok(at_target) = rustix::fs::stat(&target.lower) {
        if source.lower == target.lower {
            // A file onto itself is done; a directory would go into itself.
            return Ok(!is_directory(&stat));
        }
        if !is_directory(&at_target) {
            return Ok(false);
        }
        let Some(name) = source.lower.file_name() else { return Ok(false) };
        target.lower.push(name);
        target.name = format!("{}/{}", target.name.trim_end_matches('/'), name.display());
        target.is_root = false;
        if is_within(&target, source) || target.lower == source.lower {
            return Ok(false);
        }
    }
    match exchange(client, source, &stat, &target, None) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(failed(DOING, source, errno)),
    }
}

/// `rename(source, target, options)`: exactly to `target`; with `overwrite` in place of a file, or
/// of an empty directory, if both are of the same kind.
fn rename_to(client: &Client, source: &Place, target: &Place, overwrite: bool) -> Result<()> {
    let stat = there(source)?.ok_or_else(|| failed(DOING, source, Errno::NOENT))?;
    if source.is_root || target.is_root {
        let detail = "the root is neither moved nor replaced";
        return Err(Error::new(ErrorKind::InvalidInput, "renaming /", detail)
            .remedy("rename what is in it"));
    }
    let at_target = there(target)?;
    if source.lower == target.lower {
        return Err(failed("renaming a name to itself:", source, Errno::EXIST));
    }
    if is_within(target, source) {
        let detail = format!("{} lies in it", target.lower.display());
        let operation = format!("{DOING} {}", source.lower.display());
        return Err(Error::new(ErrorKind::InvalidInput, operation, detail)
            .remedy("a directory cannot move into itself"));
    }
    if let (Ok(behind), Some(at_target)) = (rustix::fs::stat(&source.lower), &at_target)
        && (behind.st_dev, behind.st_ino) == (at_target.st_dev, at_target.st_ino)
    {
        return Err(failed("renaming a name to what it leads to:", target, Errno::EXIST));
    }
    match &at_target {
        Some(at_target) if is_directory(at_target) != is_directory(&stat) => {
            let operation = format!("{DOING} {}", source.lower.display());
            let detail =
                format!("{} is there, and only one of them is a directory", target.lower.display());
            return Err(Error::new(ErrorKind::InvalidInput, operation, detail)
                .remedy("source and destination must be both files or both directories"));
        }
        Some(_) if !overwrite => {
            return Err(failed("renaming to", target, Errno::EXIST));
        }
        None => {
            let parent = target.parent();
            match rustix::fs::stat(&parent.lower) {
                Ok(stat) if is_directory(&stat) => {}
                Ok(_) => return Err(failed("renaming into", &parent, Errno::NOTDIR)),
                Err(errno) => return Err(failed("renaming into", &parent, errno)),
            }
        }
        Some(_) => {}
    }
    exchange(client, source, &stat, target, at_target.as_ref()).doing("renaming to", target)
}

/// The one call. `replaced` is what may be replaced; without it nothing is.
fn exchange(
    client: &Client,
    source: &Place,
    stat: &Stat,
    target: &Place,
    replaced: Option<&Stat>,
) -> rustix::io::Result<()> {
    let of_file = |stat: &Stat, place: &Place| {
        is_regular(stat).then(|| witness(client, &place.lower, false)).flatten()
    };
    let moved = of_file(stat, source);
    let replaced_file = replaced.and_then(|replaced| of_file(replaced, target));
    client.changing_metadata(replaced_file.as_ref().map(AsFd::as_fd), || {
        client.changing_metadata(moved.as_ref().map(AsFd::as_fd), || {
            if replaced.is_some() {
                return rustix::fs::rename(&source.lower, &target.lower);
            }
            let keeping = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(CWD, &source.lower, CWD, &target.lower, keeping) {
                // File systems that know plain renames only.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    if rustix::fs::lstat(&target.lower).is_ok() {
                        return Err(Errno::EXIST);
                    }
                    rustix::fs::rename(&source.lower, &target.lower)
                }
                other => other,
            }
        })
    })
}

/// Hadoop's plain rename.
pub(crate) fn move_to(
    env: &mut Env<'_>,
    client: &Client,
    source: &Place,
    target: JString<'_>,
) -> std::result::Result<bool, Failure> {
    let target = Place::of(env, client, &target)?;
    Ok(move_into(client, source, &target)?)
}

/// Hadoop's rename with options.
pub(crate) fn rename(
    env: &mut Env<'_>,
    client: &Client,
    source: &Place,
    target: JString<'_>,
    overwrite: jboolean,
) -> std::result::Result<(), Failure> {
    let target = Place::of(env, client, &target)?;
    Ok(rename_to(client, source, &target, overwrite)?)
}
