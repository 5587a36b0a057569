//! Lists the entries of a directory with their status, packed: in one call where it has a usual
//! size, in pieces where it is huge. Entries come in no order.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use jni::Env;
use jni::objects::{JByteArray, JClass};
use jni::sys::{jint, jlong};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use tidepool_client::Client;

use super::status::{RECORD_BYTES, facts, facts_at, signed};
use super::{Doing, Place};
use crate::bridge::{AtPath, Failure};
use crate::handle::{self, Handle};

/// Bytes before the records: handle of the rest or 0, number of records, and whether it is a list.
const HEADER_BYTES: usize = 16;
/// Bytes of names that one system call gives.
const NAMES_BYTES: usize = 32 << 10;

/// A directory of which a part is listed.
#[derive(Debug)]
pub(crate) struct Listing {
    directory: OwnedFd,
    place: Place,
    /// Names that were read and whose facts were not asked for yet, each closed by NUL.
    names: Vec<u8>,
    at: usize,
    ended: bool,
}

pub(crate) type ListingRef = Handle<Mutex<Listing>>;

impl Listing {
    pub(super) fn open(place: &Place) -> rustix::io::Result<Listing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&place.lower, flags, Mode::empty())?;
        let place = place.clone();
        Ok(Listing { directory, place, names: Vec::new(), at: 0, ended: false })
    }

    /// The next name with its NUL; `None` at the end.
    fn next_name(&mut self) -> rustix::io::Result<Option<std::ops::Range<usize>>> {
        if self.at == self.names.len() {
            if self.ended {
                return Ok(None);
            }
            self.names.clear();
            self.at = 0;
            let mut buffer = [MaybeUninit::uninit(); NAMES_BYTES];
            let mut entries = RawDir::new(self.directory.as_fd(), &mut buffer);
            // Until the buffer is used up, or the directory.
            loop {
                let Some(entry) = entries.next() else {
                    self.ended = true;
                    break;
                };
                let entry = entry?;
                let name = entry.file_name().to_bytes_with_nul();
                if name != b".\0" && name != b"..\0" {
                    self.names.extend_from_slice(name);
                }
                if entries.is_buffer_empty() && !self.names.is_empty() {
                    break;
                }
            }
            if self.names.is_empty() {
                return Ok(None);
            }
        }
        let length = self.names[self.at..].iter().position(|byte| *byte == 0).unwrap_or(0) + 1;
        let range = self.at..self.at + length;
        self.at = range.end;
        Ok(Some(range))
    }

    /// Appends records of up to `entries_max` entries; whether there may be more, and how many.
    fn pack(&mut self, entries_max: usize, into: &mut Vec<u8>) -> rustix::io::Result<(bool, u32)> {
        let mut packed = 0;
        while (packed as usize) < entries_max {
            let Some(range) = self.next_name()? else { return Ok((false, packed)) };
            let name =
                std::ffi::CStr::from_bytes_with_nul(&self.names[range]).map_err(|_| Errno::IO)?;
            let Some(facts) = facts_at(self.directory.as_fd(), &self.place.lower, name)? else {
                continue;
            };
            facts.pack(name.to_bytes(), into);
            packed += 1;
        }
        Ok((self.at < self.names.len() || !self.ended, packed))
    }
}

fn header(handle: jlong, count: u32, is_list: bool) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&handle.to_le_bytes());
    header[8..12].copy_from_slice(&count.to_le_bytes());
    header[12] = u8::from(is_list);
    header
}

fn array<'local>(env: &mut Env<'local>, bytes: &[u8]) -> Result<JByteArray<'local>, Failure> {
    let array = env.new_byte_array(bytes.len())?;
    array.set_region(env, 0, signed(bytes))?;
    Ok(array)
}

/// Lists `path`: a header and records. What `path` itself is, if it is no directory. A handle in
/// the header, which the caller owns, stands for the entries beyond `entries_max`.
pub(crate) fn list<'local>(
    env: &mut Env<'local>,
    _: &Client,
    place: &Place,
    entries_max: jint,
) -> Result<JByteArray<'local>, Failure> {
    let mut bytes = vec![0; HEADER_BYTES];
    let mut listing = match Listing::open(place) {
        Ok(listing) => listing,
        Err(Errno::NOTDIR) => {
            let facts = facts(&place.lower, true).doing("listing", place)?;
            facts.pack(b"", &mut bytes);
            bytes[..HEADER_BYTES].copy_from_slice(&header(0, 1, false));
            return array(env, &bytes);
        }
        Err(errno) => return Err(super::failed("listing", place, errno).into()),
    };
    bytes.reserve(1024 * (RECORD_BYTES + 32));
    let entries_max = entries_max.max(1).cast_unsigned() as usize;
    let packed = listing.pack(entries_max, &mut bytes);
    let (more, count) = packed.doing("listing", place)?;
    let array = env.new_byte_array(bytes.len())?;
    let rest = if more { handle::give(Mutex::new(listing)) } else { 0 };
    bytes[..HEADER_BYTES].copy_from_slice(&header(rest, count, true));
    // It cannot fail: the array is there, and has the length.
    array.set_region(env, 0, signed(&bytes))?;
    Ok(array)
}

/// The next entries of a list; the header's handle is 0 when it was the last of them, and the
/// caller still has to close the handle.
pub(crate) fn list_more<'local>(
    env: &mut Env<'local>,
    _class: JClass<'_>,
    listing: ListingRef,
    entries_max: jint,
) -> Result<JByteArray<'local>, Failure> {
    let mut rest = listing.lock();
    let mut bytes = vec![0; HEADER_BYTES];
    let entries_max = entries_max.max(1).cast_unsigned() as usize;
    let packed = rest.pack(entries_max, &mut bytes);
    let place = rest.place.clone();
    drop(rest);
    let (more, count) = packed.doing("listing", &place).at(&place.name)?;
    let handle = if more { listing.number() } else { 0 };
    bytes[..HEADER_BYTES].copy_from_slice(&header(handle, count, true));
    array(env, &bytes)
}

/// Ends a list.
pub(crate) fn list_close(
    _env: &mut Env<'_>,
    _class: JClass<'_>,
    listing: ListingRef,
) -> Result<(), Failure> {
    // SAFETY: `ListedEntries.java` closes each list once, after its last use.
    drop(unsafe { listing.free() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_entries_come_whatever_the_pieces() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..1500 {
            std::fs::write(directory.path().join(format!("file-{number:050}")), b"").unwrap();
        }
        let lower = directory.path().to_path_buf();
        let place = Place { lower, name: "/".into(), is_root: true };
        for pieces in [1, 7, 1500, 9999] {
            let mut listing = Listing::open(&place).unwrap();
            let (mut total, mut bytes) = (0, Vec::new());
            loop {
                let (more, count) = listing.pack(pieces, &mut bytes).unwrap();
                total += count;
                if !more {
                    break;
                }
            }
            assert_eq!(total, 1500, "pieces of {pieces}");
            assert_eq!(bytes.len(), 1500 * (RECORD_BYTES + 55));
        }
    }
}
