//! A file that is open through a node, by whichever way, and reads of it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use tidepool_client::OpenOptions;
use tidepool_proto::mapping::{Access, Mapping};

use super::content::PAGE_BYTES;
use super::nodes::Nodes;
use super::operation::{Way, name};
use crate::model::files::{Failure, read_fully};

/// An open file.
pub enum Reader {
    /// By system calls.
    Mount(File),
    /// By the client library.
    Library(Box<tidepool_client::File>),
    /// By a mapping alone.
    Mapping(Mapping),
}

/// What a read gave.
pub struct Piece {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How many of them came from another node's memory, where the way tells.
    pub peer_bytes: u64,
}

impl Reader {
    /// Opens a file. A mapping of one without bytes is none.
    pub fn open(
        nodes: &Nodes,
        node: usize,
        way: Way,
        file: usize,
    ) -> Result<Option<Reader>, Failure> {
        let member = &nodes.members[node];
        let on_mount = || -> PathBuf { member.node.mount().join(name(file)) };
        Ok(Some(match way {
            Way::Mount => Reader::Mount(File::open(on_mount())?),
            Way::Library => {
                let path = nodes.pfs().join(name(file));
                Reader::Library(Box::new(member.client.open(path, OpenOptions::read())?))
            }
            Way::Mapping => {
                let file = File::open(on_mount())?;
                let length = file.metadata()?.size() as usize;
                if length == 0 {
                    return Ok(None);
                }
                Reader::Mapping(Mapping::shared(&file, 0, length, Access::Read)?)
            }
        }))
    }

    /// Pages that it can read at most, where it has such a limit.
    pub fn pages_max(&self) -> Option<usize> {
        match self {
            Reader::Mapping(mapping) => Some(mapping.length() / PAGE_BYTES),
            _ => None,
        }
    }

    /// Reads pages, as many as there are.
    pub fn read(&self, first: usize, pages: usize) -> Result<Piece, Failure> {
        let offset = (first * PAGE_BYTES) as u64;
        let mut bytes = vec![0; pages * PAGE_BYTES];
        let mut peer_bytes = 0;
        let count = match self {
            Reader::Mount(file) => read_fully(file, offset, &mut bytes)? as usize,
            Reader::Library(file) => {
                let outcome = file.read_at(offset, &mut bytes)?;
                peer_bytes = outcome.levels.peer;
                outcome.bytes
            }
            Reader::Mapping(mapping) => {
                copy(mapping, first * PAGE_BYTES, &mut bytes)?;
                bytes.len()
            }
        };
        bytes.truncate(count);
        Ok(Piece { bytes, peer_bytes })
    }
}

/// Copies out of a mapping by the kernel: where a page cannot be had it answers an error, and sends
/// no signal.
fn copy(mapping: &Mapping, start: usize, into: &mut [u8]) -> Result<(), Failure> {
    assert!(start + into.len() <= mapping.length(), "a read beyond the mapping");
    let beside = rustix::fs::memfd_create("copy", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut done = 0;
    while done < into.len() {
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&beside.as_fd());
        // SAFETY: the range is inside the mapping, which outlives the call; the kernel reads it,
        // and answers `EFAULT` where there is no page.
        let written = unsafe {
            libc::write(descriptor, mapping.base().add(start + done).cast(), into.len() - done)
        };
        match written {
            1.. => done += written as usize,
            _ => return Err(io::Error::last_os_error().into()),
        }
    }
    read_fully(&File::from(beside), 0, into)?;
    Ok(())
}
