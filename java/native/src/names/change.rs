//! Changes of names and metadata other than rename and delete: directories, modes, owners, times,
//! symbolic links, lengths. The node is told of regular files that it may hold.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use jni::EnvUnowned;
use jni::objects::{JClass, JString};
use jni::sys::{jboolean, jint, jlong};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;
use tidepool_client::{Client, OpenOptions};
use tidepool_proto::{Access, Error, ErrorKind, Result};

use super::status::{is_directory, is_regular};
use super::{Doing, Place, at_place, attributes, failed};
use crate::bridge::Failure;

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

/// Makes a directory and those it lies in. `mode` is what they shall have whatever the umask of
/// the process; an inherited access control list goes before it.
fn make_directories(place: &Place, mode: u32) -> Result<()> {
    let mut missing = Vec::new();
    let (mut next, mut mode_of_next) = (place.clone(), mode);
    loop {
        match make_directory(&next, mode_of_next) {
            Err(Errno::NOENT) if !next.is_root => {
                let parent = next.parent();
                missing.push((std::mem::replace(&mut next, parent), mode_of_next));
                // Whoever makes directories below must get in, as in HDFS.
                mode_of_next = mode | 0o300;
            }
            Err(Errno::EXIST) => {
                existing(&next)?;
                break;
            }
            other => {
                other.doing("making the directory", &next)?;
                break;
            }
        }
    }
    while let Some((place, mode)) = missing.pop() {
        match make_directory(&place, mode) {
            Err(Errno::EXIST) => existing(&place)?,
            other => other.doing("making the directory", &place)?,
        }
    }
    Ok(())
}

/// Something is there already: a directory is what was asked for.
fn existing(place: &Place) -> Result<()> {
    match rustix::fs::stat(&place.lower) {
        Ok(stat) if is_directory(&stat) => Ok(()),
        _ => Err(failed("making the directory", place, Errno::EXIST)),
    }
}

fn make_directory(place: &Place, mode: u32) -> rustix::io::Result<()> {
    rustix::fs::mkdir(&place.lower, Mode::from_raw_mode(mode))?;
    make_exact(&place.lower, mode)
}

/// Gives a new name the mode that was asked for, where the umask of the process took some of it.
fn make_exact(path: &Path, mode: u32) -> rustix::io::Result<()> {
    let stat = rustix::fs::lstat(path)?;
    // The set-group-id bit comes from the directory above.
    if stat.st_mode & 0o777 == mode & 0o777 || attributes::has_access_list(path) {
        return Ok(());
    }
    let mode = mode | (stat.st_mode & libc::S_ISGID);
    rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777))
}

/// Makes a directory; those above it too.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeNames_makeDirectories<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    path: JString<'local>,
    mode: jint,
) {
    at_place(&mut env, client, &path, |_, _, place| make_directories(place, mode.cast_unsigned()))
}

/// Makes one directory in one that is there.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeNames_makeDirectory<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    path: JString<'local>,
    mode: jint,
) {
    at_place(&mut env, client, &path, |_, _, place| {
        let made = make_directory(place, mode.cast_unsigned());
        made.doing("making the directory", place)
    })
}

/// Sets the mode.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeNames_setMode<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    path: JString<'local>,
    mode: jint,
) {
    at_place(&mut env, client, &path, |_, client, place| {
        telling(&client.client, place, true, || set_mode(&place.lower, mode.cast_unsigned()))
            .doing("setting the mode of", place)
    })
}

/// Sets the mode. The set-group-id bit of a directory stays: Hadoop cannot name it, and the groups
/// of what is made below depend on it.
fn set_mode(path: &Path, mode: u32) -> rustix::io::Result<()> {
    let stat = rustix::fs::stat(path)?;
    let kept = if is_directory(&stat) { stat.st_mode & libc::S_ISGID } else { 0 };
    rustix::fs::chmod(path, Mode::from_raw_mode((mode & 0o7777) | kept))
}

/// Sets owner and group; -1 leaves one of them.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeNames_setOwner<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    path: JString<'local>,
    user_id: jlong,
    group_id: jlong,
) {
    at_place(&mut env, client, &path, |_, client, place| {
        let user = u32::try_from(user_id).ok().map(Uid::from_raw);
        let group = u32::try_from(group_id).ok().map(Gid::from_raw);
        telling(&client.client, place, true, || rustix::fs::chown(&place.lower, user, group))
            .doing("setting the owner of", place)
    })
}

/// Sets the times, in milliseconds since 1970; what is negative stays.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeNames_setTimes<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    path: JString<'local>,
    modified_ms: jlong,
    accessed_ms: jlong,
) {
    at_place(&mut env, client, &path, |_, client, place| {
        let time = |milliseconds: i64| match milliseconds {
            ..0 => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            _ => {
                Timespec { tv_sec: milliseconds / 1000, tv_nsec: (milliseconds % 1000) * 1_000_000 }
            }
        };
        let times =
            Timestamps { last_access: time(accessed_ms), last_modification: time(modified_ms) };
        let directory = rustix::fs::CWD;
        let change = || rustix::fs::utimensat(directory, &place.lower, &times, AtFlags::empty());
        telling(&client.client, place, true, change).doing("setting the times of", place)
    })
}

/// Makes a symbolic link. An absolute target below `tide:///` becomes its path on the PFS.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeNames_makeLink<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    target: JString<'local>,
    target_is_tide: jboolean,
    link: JString<'local>,
) {
    at_place(&mut env, client, &link, |env, client, place| {
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
fn truncate(client: &Client, place: &Place, length: u64) -> Result<()> {
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

/// Shortens a file.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_tidepool_hadoop_NativeNames_truncate<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    client: jlong,
    path: JString<'local>,
    length: jlong,
) {
    at_place(&mut env, client, &path, |_, client, place| {
        truncate(&client.client, place, length.cast_unsigned())
    })
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
            set_mode(path, 0o775).unwrap();
        }
        assert_eq!((mode(&inner), mode(&file)), (0o2775, 0o775));
    }

    #[test]
    fn directories_have_the_mode_that_was_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| Place {
            lower: directory.path().join(name),
            name: format!("/{name}"),
            is_root: false,
        };
        make_directories(&place("a/b/c"), 0o477).unwrap();
        let mode = |name: &str| {
            std::fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o777
        };
        assert_eq!((mode("a"), mode("a/b"), mode("a/b/c")), (0o777, 0o777, 0o477));
        make_directories(&place("a/b"), 0o700).unwrap();
        assert_eq!(mode("a/b"), 0o777, "what is there stays as it is");
        std::fs::write(directory.path().join("file"), b"").unwrap();
        let over = make_directories(&place("file"), 0o777).unwrap_err();
        assert_eq!(over.errno(), libc::EEXIST);
        let below = make_directories(&place("file/x/y"), 0o777).unwrap_err();
        assert_eq!(below.errno(), libc::ENOTDIR);
    }
}
