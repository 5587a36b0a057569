//! [`DirectoryHandle`]: one open of a directory, and the stream of its entries.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use zerocopy::{FromBytes, IntoBytes};

use crate::callers::shares::Share;
use crate::protocol::abi::DirectoryEntry;
use crate::protocol::request::{Answer, Errno};

const STREAM_BYTES: usize = 64 << 10;
/// Offset of the name in an entry of `getdents64`, after inode, offset, length and type.
const LOWER_NAME_OFFSET: usize = 19;
const ENTRY_ALIGNMENT: usize = 8;

/// One open of a directory.
#[derive(Debug)]
pub struct DirectoryHandle {
    descriptor: OwnedFd,
    stream: Mutex<Stream>,
    _share: Share,
}

/// Entries read from the PFS and not yet returned.
#[derive(Debug, Default)]
struct Stream {
    entries: Vec<u8>,
    position: usize,
    /// Offset of the next entry, as the kernel will ask for it.
    offset: u64,
}

/// One entry as `getdents64` gives it.
struct LowerEntry<'a> {
    inode: u64,
    next_offset: u64,
    kind: u8,
    name: &'a [u8],
    length: usize,
}

fn parse(bytes: &[u8]) -> Option<LowerEntry<'_>> {
    let (inode, rest) = u64::read_from_prefix(bytes).ok()?;
    let (next_offset, rest) = u64::read_from_prefix(rest).ok()?;
    let (length, rest) = u16::read_from_prefix(rest).ok()?;
    let kind = *rest.first()?;
    let name = bytes.get(LOWER_NAME_OFFSET..usize::from(length))?;
    let name = &name[..name.iter().position(|byte| *byte == 0)?];
    Some(LowerEntry { inode, next_offset, kind, name, length: usize::from(length) })
}

/// Adds an entry to a reply of at most `bytes_max` bytes; returns whether it fit.
fn append(reply: &mut Vec<u8>, entry: &LowerEntry<'_>, bytes_max: usize) -> bool {
    let bytes = size_of::<DirectoryEntry>() + entry.name.len();
    let padded = bytes.next_multiple_of(ENTRY_ALIGNMENT);
    if reply.len() + padded > bytes_max {
        return false;
    }
    let header = DirectoryEntry {
        inode: entry.inode,
        offset: entry.next_offset,
        name_length: entry.name.len() as u32,
        kind: u32::from(entry.kind),
    };
    reply.extend_from_slice(header.as_bytes());
    reply.extend_from_slice(entry.name);
    reply.resize(reply.len() + padded - bytes, 0);
    true
}

impl AsFd for DirectoryHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl DirectoryHandle {
    /// For an open directory of the PFS, with the share of its descriptor.
    pub fn new(descriptor: OwnedFd, share: Share) -> Self {
        DirectoryHandle { descriptor, stream: Mutex::default(), _share: share }
    }

    /// The entries from `offset` on in the kernel's form, as many as fit into `bytes_max`; none at
    /// the end.
    pub fn read(&self, offset: u64, bytes_max: usize) -> Answer<Vec<u8>> {
        let mut stream = self.stream.lock();
        if offset != stream.offset {
            rustix::fs::seek(&self.descriptor, rustix::fs::SeekFrom::Start(offset))?;
            *stream = Stream { offset, ..Stream::default() };
        }
        let mut reply = Vec::with_capacity(bytes_max);
        loop {
            if stream.position == stream.entries.len() {
                if !reply.is_empty() {
                    return Ok(reply);
                }
                stream.entries = self.next_entries()?;
                stream.position = 0;
                if stream.entries.is_empty() {
                    return Ok(reply);
                }
            }
            let entry = parse(&stream.entries[stream.position..]).ok_or(Errno(libc::EIO))?;
            if !append(&mut reply, &entry, bytes_max) {
                return if reply.is_empty() { Err(Errno(libc::EINVAL)) } else { Ok(reply) };
            }
            let (next_offset, length) = (entry.next_offset, entry.length);
            stream.offset = next_offset;
            stream.position += length;
        }
    }

    fn next_entries(&self) -> Answer<Vec<u8>> {
        let mut entries = vec![0u8; STREAM_BYTES];
        // SAFETY: the pointer and length describe a live, writable buffer, which is all that the
        // system call writes to.
        let length = unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                self.descriptor.as_raw_fd(),
                entries.as_mut_ptr(),
                entries.len(),
            )
        };
        if length < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        entries.truncate(length as usize);
        Ok(entries)
    }
}
