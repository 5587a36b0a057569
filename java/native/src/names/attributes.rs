//! Extended attributes, access checks, totals, targets of links, names of users and groups. The
//! product's own attributes can be neither seen nor changed.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use jni::Env;
use jni::objects::{JByteArray, JClass, JLongArray, JObjectArray, JString};
use jni::sys::{jboolean, jint, jlong};
use rustix::fs::{Access, AtFlags, CWD, XattrFlags};
use rustix::io::Errno;
use tidepool_client::Client;
use tidepool_proto::{Error, ErrorKind, Result};

use super::change::telling;
use super::status::signed;
use super::{Doing, Place};
use crate::bridge::{self, Failure};

/// Attributes of the product's own.
const OWN_ATTRIBUTES: &str = "user.tidepool.";
/// The access control list of a name.
const ACCESS_LIST: &str = "system.posix_acl_access";
/// What `setAttribute` is asked for, as `NativeNames.java` has it too.
const CREATE: jint = 1;
const REPLACE: jint = 2;

/// Whether a name has an access control list beyond its mode.
pub(super) fn has_access_list(path: &Path) -> bool {
    let mut none: [u8; 0] = [];
    rustix::fs::getxattr(path, ACCESS_LIST, &mut none).is_ok_and(|bytes| bytes > 0)
}

fn check_own(name: &str, place: &Place) -> Result<()> {
    if !name.starts_with(OWN_ATTRIBUTES) {
        return Ok(());
    }
    let operation = format!("using an attribute of {}", place.lower.display());
    Err(Error::new(ErrorKind::PermissionDenied, operation, format!("{name} is Tidepool's"))
        .remedy("choose another name"))
}

/// Reads a value whose length is not known before.
fn whole(read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1024];
    loop {
        match read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// The value of an attribute; `null` if there is none.
pub(crate) fn attribute<'local>(
    env: &mut Env<'local>,
    _: &Client,
    place: &Place,
    attribute: JString<'_>,
) -> std::result::Result<JByteArray<'local>, Failure> {
    let name = bridge::text(env, &attribute)?;
    check_own(&name, place)?;
    let value = whole(|buffer| rustix::fs::getxattr(&place.lower, name.as_str(), buffer));
    match value {
        Ok(value) => {
            let array = env.new_byte_array(value.len())?;
            array.set_region(env, 0, signed(&value))?;
            Ok(array)
        }
        Err(Errno::NODATA) => Ok(JByteArray::null()),
        Err(errno) => Err(Failure::from(super::failed("reading an attribute of", place, errno))),
    }
}

/// The names of all attributes, but for the product's own.
pub(crate) fn attributes<'local>(
    env: &mut Env<'local>,
    _: &Client,
    place: &Place,
) -> std::result::Result<JObjectArray<'local, JString<'local>>, Failure> {
    let list = match whole(|buffer| rustix::fs::listxattr(&place.lower, buffer)) {
        Err(Errno::OPNOTSUPP) => Vec::new(),
        other => other.doing("listing attributes of", place)?,
    };
    let names: Vec<String> = list
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && !name.starts_with(OWN_ATTRIBUTES.as_bytes()))
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    let array = JObjectArray::<JString<'local>>::new(env, names.len(), JString::null())?;
    for (index, name) in names.iter().enumerate() {
        let name = env.new_string(name)?;
        array.set_element(env, index, &name)?;
        env.delete_local_ref(name);
    }
    Ok(array)
}

/// Sets an attribute, or removes it if `value` is `null`.
pub(crate) fn set_attribute(
    env: &mut Env<'_>,
    client: &Client,
    place: &Place,
    attribute: JString<'_>,
    value: JByteArray<'_>,
    how: jint,
) -> std::result::Result<(), Failure> {
    let name = bridge::text(env, &attribute)?;
    check_own(&name, place)?;
    let lower = &place.lower;
    let changed = if value.is_null() {
        telling(client, place, true, || rustix::fs::removexattr(lower, name.as_str()))
    } else {
        let value = env.convert_byte_array(&value)?;
        let flags = match how {
            CREATE => XattrFlags::CREATE,
            REPLACE => XattrFlags::REPLACE,
            _ => XattrFlags::empty(),
        };
        telling(client, place, true, || rustix::fs::setxattr(lower, name.as_str(), &value, flags))
    };
    changed.doing("changing an attribute of", place).map_err(Failure::from)
}

/// Fails unless the user of this process may do to `path` what the bits of `access(2)` say.
pub(crate) fn access(_: &Client, place: &Place, bits: jint) -> Result<()> {
    let access = Access::from_bits_retain(bits.cast_unsigned());
    rustix::fs::accessat(CWD, &place.lower, access, AtFlags::EACCESS)
        .doing("checking the access to", place)
}

/// Bytes of the file system of `path`: in all, used, and free for this user.
pub(crate) fn totals<'local>(
    env: &mut Env<'local>,
    _: &Client,
    place: &Place,
) -> std::result::Result<JLongArray<'local>, Failure> {
    let totals = rustix::fs::statvfs(&place.lower);
    let totals = totals.doing("asking for the space of", place)?;
    let bytes = |blocks: u64| blocks.saturating_mul(totals.f_frsize).cast_signed();
    let used = totals.f_blocks.saturating_sub(totals.f_bfree);
    let values = [bytes(totals.f_blocks), bytes(used), bytes(totals.f_bavail)];
    let array = env.new_long_array(values.len())?;
    array.set_region(env, 0, &values)?;
    Ok(array)
}

/// The target of a symbolic link. One below the directory that `tide:///` stands for comes as its
/// path there, another absolute one with `file:` before it. `null` if it is not a link.
pub(crate) fn link_target<'local>(
    env: &mut Env<'local>,
    client: &Client,
    place: &Place,
) -> std::result::Result<JByteArray<'local>, Failure> {
    let target = match rustix::fs::readlink(&place.lower, Vec::new()) {
        Err(Errno::INVAL) => return Ok(JByteArray::null()),
        other => other.doing("reading the link", place)?,
    };
    let target = Path::new(std::ffi::OsStr::from_bytes(target.as_bytes()));
    let root = client.pfs_root()?;
    let (before, name) = match target.strip_prefix(root) {
        Ok(below) => ("/", below),
        Err(_) if target.is_absolute() => ("file:", target),
        Err(_) => ("", target),
    };
    let bytes = [before.as_bytes(), name.as_os_str().as_bytes()].concat();
    let array = env.new_byte_array(bytes.len())?;
    array.set_region(env, 0, &bytes.iter().map(|byte| byte.cast_signed()).collect::<Vec<_>>())?;
    Ok(array)
}

/// The name of a user or group; its number where it has none.
pub(crate) fn name_of<'local>(
    env: &mut Env<'local>,
    _class: JClass<'_>,
    number: jint,
    is_group: jboolean,
) -> std::result::Result<JString<'local>, Failure> {
    let number = number.cast_unsigned();
    let name = entry_name(number, is_group).unwrap_or_else(|| number.to_string());
    Ok(env.new_string(name)?)
}

/// The number of a user or group, also of one that is given as a number; -1 if there is none.
pub(crate) fn number_of(
    env: &mut Env<'_>,
    _class: JClass<'_>,
    name: JString<'_>,
    is_group: jboolean,
) -> std::result::Result<jlong, Failure> {
    let name = bridge::text(env, &name)?;
    let Ok(searched) = CString::new(name.as_str()) else { return Ok(-1) };
    let found = entry_number(&searched, is_group).or_else(|| name.parse().ok());
    Ok(found.map_or(-1, i64::from))
}

/// Longest entry of a user or group in bytes; groups list their members.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// Calls `ask` with buffers of growing size until its answer fits.
fn entry<T>(ask: impl Fn(&mut [libc::c_char]) -> (i32, Option<T>)) -> Option<T> {
    let mut buffer: Vec<libc::c_char> = vec![0; 4096];
    loop {
        match ask(&mut buffer) {
            (libc::ERANGE, _) if buffer.len() < ENTRY_BYTES_MAX => {
                buffer.resize(buffer.len() * 4, 0);
            }
            (_, found) => return found,
        }
    }
}

fn entry_name(number: u32, is_group: bool) -> Option<String> {
    // SAFETY: a pointer that the call below filled in; it points into `buffer`, which lives.
    let text = |name: *const libc::c_char| unsafe { CStr::from_ptr(name) }.to_string_lossy();
    entry(|buffer| {
        let mut found = std::ptr::null_mut();
        if is_group {
            // SAFETY: an all-zero `group` is valid, and is filled in below.
            let mut group: libc::group = unsafe { std::mem::zeroed() };
            let (data, length) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: all pointers are to live values of the lengths given.
            let code = unsafe { libc::getgrgid_r(number, &mut group, data, length, &mut found) };
            let name = (!found.is_null()).then(|| text(group.gr_name).into_owned());
            return (code, name);
        }
        let mut found = std::ptr::null_mut();
        // SAFETY: an all-zero `passwd` is valid, and is filled in below.
        let mut user: libc::passwd = unsafe { std::mem::zeroed() };
        let (data, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: all pointers are to live values of the lengths given.
        let code = unsafe { libc::getpwuid_r(number, &mut user, data, length, &mut found) };
        (code, (!found.is_null()).then(|| text(user.pw_name).into_owned()))
    })
}

fn entry_number(name: &CStr, is_group: bool) -> Option<u32> {
    entry(|buffer| {
        let (data, length) = (buffer.as_mut_ptr(), buffer.len());
        if is_group {
            let mut found = std::ptr::null_mut();
            // SAFETY: an all-zero `group` is valid, and is filled in below.
            let mut group: libc::group = unsafe { std::mem::zeroed() };
            // SAFETY: all pointers are to live values of the lengths given.
            let code =
                unsafe { libc::getgrnam_r(name.as_ptr(), &mut group, data, length, &mut found) };
            return (code, (!found.is_null()).then_some(group.gr_gid));
        }
        let mut found = std::ptr::null_mut();
        // SAFETY: an all-zero `passwd` is valid, and is filled in below.
        let mut user: libc::passwd = unsafe { std::mem::zeroed() };
        // SAFETY: all pointers are to live values of the lengths given.
        let code = unsafe { libc::getpwnam_r(name.as_ptr(), &mut user, data, length, &mut found) };
        (code, (!found.is_null()).then_some(user.pw_uid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_have_names_and_numbers() {
        assert_eq!(entry_name(0, false).as_deref(), Some("root"));
        assert_eq!(entry_name(0, true).as_deref(), Some("root"));
        assert_eq!(entry_number(c"root", false), Some(0));
        assert_eq!(entry_number(c"root", true), Some(0));
        assert_eq!(entry_name(4_000_000_000, false), None);
        assert_eq!(entry_number(c"no such user", false), None);
    }
}
