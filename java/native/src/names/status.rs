//! The status of a name: the facts of `stat`, packed for Java, in one form for one name and for
//! lists.

use std::os::fd::BorrowedFd;
use std::path::Path;

use jni::Env;
use jni::objects::JByteArray;
use jni::sys::{jboolean, jint};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;
use tidepool_client::Client;
use tidepool_proto::stub::{self, Found};

use super::{Doing, Place};
use crate::bridge::Failure;

/// Bytes of the fixed part of a record; `NativeNames.java` reads the same fields.
pub(super) const RECORD_BYTES: usize = 80;
/// The name is UTF-8.
const NAME_IS_TEXT: u16 = 1;

/// The facts of a name, and the length that the file has for readers.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) stat: Stat,
    pub(super) length: u64,
}

impl Facts {
    /// Appends the record and the name behind it.
    pub(super) fn pack(&self, name: &[u8], into: &mut Vec<u8>) {
        let stat = &self.stat;
        let nanoseconds = |seconds: i64, rest: u64| {
            seconds.saturating_mul(1_000_000_000).saturating_add(rest.cast_signed())
        };
        let milliseconds = |seconds: i64, rest: u64| {
            seconds.saturating_mul(1000).saturating_add((rest / 1_000_000).cast_signed())
        };
        let flags = if std::str::from_utf8(name).is_ok() { NAME_IS_TEXT } else { 0 };
        let bytes = (RECORD_BYTES + name.len()) as u32;
        into.extend_from_slice(&bytes.to_le_bytes());
        into.extend_from_slice(&(name.len() as u16).to_le_bytes());
        into.extend_from_slice(&flags.to_le_bytes());
        into.extend_from_slice(&self.length.to_le_bytes());
        into.extend_from_slice(&milliseconds(stat.st_mtime, stat.st_mtime_nsec).to_le_bytes());
        into.extend_from_slice(&milliseconds(stat.st_atime, stat.st_atime_nsec).to_le_bytes());
        into.extend_from_slice(&stat.st_mode.to_le_bytes());
        into.extend_from_slice(&stat.st_uid.to_le_bytes());
        into.extend_from_slice(&stat.st_gid.to_le_bytes());
        into.extend_from_slice(&0_u32.to_le_bytes());
        into.extend_from_slice(&stat.st_ino.to_le_bytes());
        into.extend_from_slice(&stat.st_dev.to_le_bytes());
        into.extend_from_slice(&nanoseconds(stat.st_mtime, stat.st_mtime_nsec).to_le_bytes());
        into.extend_from_slice(&nanoseconds(stat.st_ctime, stat.st_ctime_nsec).to_le_bytes());
        into.extend_from_slice(name);
    }
}

pub(super) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// The facts of `path`. Bytes that are in the memory of a node alone count: their stub tells how
/// many they were when the file was last flushed.
pub(super) fn facts(path: &Path, follow: bool) -> rustix::io::Result<Facts> {
    let stat = if follow { rustix::fs::stat(path)? } else { rustix::fs::lstat(path)? };
    let length = length_of(&stat, || marked(path, stat.st_size.cast_unsigned()));
    Ok(Facts { stat, length })
}

/// The facts of an entry of an open directory; symbolic links are followed where they lead
/// somewhere. `None` if it is gone.
pub(super) fn facts_at(
    directory: BorrowedFd<'_>,
    path: &Path,
    name: &std::ffi::CStr,
) -> rustix::io::Result<Option<Facts>> {
    let stat = match rustix::fs::statat(directory, name, AtFlags::empty()) {
        // A link to nothing, in a circle or to where the caller may not look is shown as a link.
        Err(Errno::NOENT | Errno::LOOP | Errno::ACCESS | Errno::NOTDIR) => {
            match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(None),
                other => other?,
            }
        }
        other => other?,
    };
    let length = length_of(&stat, || {
        use std::os::unix::ffi::OsStrExt;
        let entry = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        marked(&entry, stat.st_size.cast_unsigned())
    });
    Ok(Some(Facts { stat, length }))
}

fn length_of(stat: &Stat, marked: impl FnOnce() -> Option<u64>) -> u64 {
    let size = stat.st_size.cast_unsigned();
    if is_regular(stat) && stub::is_size_of_stub(size) {
        return marked().unwrap_or(size);
    }
    if is_directory(stat) { 0 } else { size }
}

/// The length that a file of `size` bytes has for readers, if it is a stub.
fn marked(path: &Path, size: u64) -> Option<u64> {
    match stub::find_by_path(path, size) {
        Found::Stub(mark) => Some(mark.length),
        Found::Nothing | Found::Remains | Found::Finished | Found::Copy(_) => None,
    }
}

/// Writes the record of `path` into `record`; returns 0, or the errno that says it is not there.
pub(crate) fn status(
    env: &mut Env<'_>,
    _: &Client,
    place: &Place,
    follow: jboolean,
    record: JByteArray<'_>,
) -> Result<jint, Failure> {
    let facts = match facts(&place.lower, follow) {
        Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => return Ok(errno.raw_os_error()),
        other => other.doing("looking at", place)?,
    };
    let mut packed = Vec::with_capacity(RECORD_BYTES);
    facts.pack(b"", &mut packed);
    record.set_region(env, 0, signed(&packed))?;
    Ok(0)
}

/// Bytes as Java has them.
pub(super) fn signed(bytes: &[u8]) -> &[i8] {
    // SAFETY: `i8` and `u8` have the same size, alignment and valid values.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<i8>(), bytes.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_proto::stub::STUB_BYTES;

    #[test]
    fn stubs_tell_the_length_of_what_is_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stub");
        let mut text = b"TIDEPOOL MEMORY-ONLY STUB 1 length=12345 holder=h pid=1".to_vec();
        text.resize(STUB_BYTES as usize, b' ');
        std::fs::write(&path, &text).unwrap();
        assert_eq!(facts(&path, true).unwrap().length, 12_345);
        text[0] = b't';
        std::fs::write(&path, &text).unwrap();
        assert_eq!(facts(&path, true).unwrap().length, STUB_BYTES);
    }
}
