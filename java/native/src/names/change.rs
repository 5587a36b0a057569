//! Changes of names and metadata other than rename, delete and making directories: modes, owners,
//! times, symbolic links, lengths. The node is told of regular files that it may hold.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use jni::Env;
use jni::objects::{JClass, JString};
use jni::sys::{jboolean, jint, jlong};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid};
use tidepool_client::{Client, OpenOptions};
use tidepool_proto::{Access, Error, ErrorKind, Result};

use super::status::{is_directory, is_regular};
use super::{Doing, Place, at_place, itself};
use crate::bridge::Failure;
use crate::client::ClientRef;

/// A descriptor by which the node is told of a change of this file; `None` where there is no node,
/// no regular file, or no right to open it, all of which cost warmth at most.
pub(super) fn witness(client: &Client, path: &Path, follow: bool) -> Option<OwnedFd> {
    if !client.is_connected() {
        return None;
    }
    // An open of a device or pipe may do something.
    let stat = if follow { rustix::fs::stat(path) } else { rustix::fs::lstat(path) };
    if !stat.is_ok_and(|stat| is_regular(&stat)) {
        return None;
    }
    let links = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | links;
    let open = |access| rustix::fs::open(path, access | flags, Mode::empty());
    open(OFlags::RDONLY).or_else(|_| open(OFlags::WRONLY)).ok()
}

/// Does `change` to a file and tells the node.
pub(super) fn telling<T>(
    client: &Client,
    place: &Place,
    follow: bool,
    change: impl FnOnce() -> T,
) -> T {
    let file = witness(client, &place.lower, follow);
    client.changing_metadata(file.as_ref().map(AsFd::as_fd), change)
}

/// Sets the mode.
pub(crate) fn set_mode(client: &Client, place: &Place, mode: jint) -> Result<()> {
    telling(client, place, true, || change_mode(&place.lower, mode.cast_unsigned()))
        .doing("setting the mode of", place)
}

/// Sets the mode. The set-group-id bit of a directory stays: Hadoop cannot name it, and the groups
/// of what is made below depend on it. The file whose bit is read is the one whose mode is
/// set, also where names change meanwhile.
fn change_mode(path: &Path, mode: u32) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    let kept = if is_directory(&stat) { stat.st_mode & libc::S_ISGID } else { 0 };
    rustix::fs::chmod(itself(&file), Mode::from_raw_mode((mode & 0o7777) | kept))
}

/// Sets owner and group; -1 leaves one of them.
pub(crate) fn set_owner(
    client: &Client,
    place: &Place,
    user_id: jlong,
    group_id: jlong,
) -> Result<()> {
    let user = u32::try_from(user_id).ok().map(Uid::from_raw);
    let group = u32::try_from(group_id).ok().map(Gid::from_raw);
    telling(client, place, true, || rustix::fs::chown(&place.lower, user, group))
        .doing("setting the owner of", place)
}

/// Sets the times, in milliseconds since 1970; what is negative stays.
pub(crate) fn set_times(
    client: &Client,
    place: &Place,
    modified_ms: jlong,
    accessed_ms: jlong,
) -> Result<()> {
    let time = |milliseconds: i64| match milliseconds {
        ..0 => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        _ => Timespec { tv_sec: milliseconds / 1000, tv_nsec: (milliseconds % 1000) * 1_000_000 },
    };
    let times = Timestamps { last_access: time(accessed_ms), last_modification: time(modified_ms) };
    let directory = rustix::fs::CWD;
    let change = || rustix::fs::utimensat(directory, &place.lower, &times, AtFlags::empty());
    telling(client, place, true, change).doing("setting the times of", place)
}

/// Makes a symbolic link. An absolute target below `tide:///` becomes its path on the PFS.
pub(crate) fn make_link(
    env: &mut Env<'_>,
    _class: JClass<'_>,
    client: ClientRef,
    target: JString<'_>,
    target_is_tide: jboolean,
    link: JString<'_>,
) -> std::result::Result<(), Failure> {
    at_place(env, &client, &link, |env, client, place| {
        use std::os::unix::ffi::OsStrExt;
        let lower = if target_is_tide {
            Place::of(env, client, &target)?.lower
        } else {
            Path::new(std::ffi::OsStr::from_bytes(&super::bytes_of(env, &target)?)).to_path_buf()
        };
        let made = rustix::fs::symlink(&lower, &place.lower);
        made.doing("making the symbolic link", place).map_err(Failure::from)
    })
}

/// Sets the length of a file that is longer, through the node that may hold bytes of it.
pub(crate) fn truncate(client: &Client, place: &Place, length: jlong) -> Result<()> {
    let length = length.cast_unsigned();
    let operation = || format!("truncating {}", place.lower.display());
    let options = OpenOptions { access: Access::Write, ..OpenOptions::read() };
    let file = client.open(&place.lower, options)?;
    let size = file.size()?;
    if length > size {
        let detail = format!("it has {size} bytes, fewer than {length}");
        return Err(Error::new(ErrorKind::InvalidInput, operation(), detail)
            .remedy("a truncation only shortens; append to lengthen"));
    }
    file.set_size(length)?;
    file.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn directories_keep_the_bit_that_hands_their_group_on() {
        let directory = tempfile::tempdir().unwrap();
        let (inner, file) = (directory.path().join("inner"), directory.path().join("file"));
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(&file, b"").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        for path in [&inner, &file] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o2755)).unwrap();
            change_mode(path, 0o775).unwrap();
        }
        assert_eq!((mode(&inner), mode(&file)), (0o2775, 0o775));
    }
}
