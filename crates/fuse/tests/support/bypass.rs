//! A service that keeps nothing: every byte comes from and goes to the PFS descriptor.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tidepool_pfs::identity::{Acting, act_as};
use tidepool_proto::{
    BytesByLevel, Error, FileId, FileService, Identity, Level, OpenFile, OpenRequest,
    PassthroughPin, ReadOutcome, Result, SegmentExport, Version, WriteMode,
};

/// See the file's first line.
#[derive(Debug, Default)]
pub struct BypassService {
    /// Bytes are the node's to write, whoever wrote them, as those that may be lost.
    pub writes_as_node: bool,
}

struct BypassFile {
    lower: OwnedFd,
    append: bool,
    changes_as: Option<Identity>,
    may_be_lost: bool,
}

impl BypassFile {
    fn acting(&self) -> Result<Option<Acting>> {
        self.changes_as.as_ref().map_or(Ok(None), act_as)
    }
}

pub fn failed(error: impl Into<io::Error>) -> Error {
    Error::pfs("accessing the file", error)
}

pub fn version(descriptor: &impl AsFd) -> Version {
    (&rustix::fs::fstat(descriptor).expect("an open file has attributes")).into()
}

/// Reads until the buffer is full or the file ends.
pub fn read_all(lower: &impl AsFd, mut offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(lower, &mut buffer[done..], offset).map_err(failed)? {
            0 => break,
            bytes => {
                done += bytes;
                offset += bytes as u64;
            }
        }
    }
    Ok(done)
}

/// Writes all of `data`; with `append` at the end of the file, as one step.
pub fn write_all(lower: &impl AsFd, append: bool, offset: u64, data: &[u8]) -> Result<u64> {
    if !append {
        let mut done = 0;
        while done < data.len() {
            done +=
                rustix::io::pwrite(lower, &data[done..], offset + done as u64).map_err(failed)?;
        }
        return Ok(offset);
    }
    let vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: the vector describes `data`, which lives during the call and is only read.
    let written =
        unsafe { libc::pwritev2(lower.as_fd().as_raw_fd(), &vector, 1, 0, libc::RWF_APPEND) };
    if written != data.len() as isize {
        return Err(failed(io::Error::last_os_error()));
    }
    Ok(version(lower).size - data.len() as u64)
}

pub fn allocate(lower: &impl AsFd, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
    let flags = rustix::fs::FallocateFlags::from_bits_retain(mode_bits as u32);
    rustix::fs::fallocate(lower, flags, offset, length).map_err(failed)
}

pub fn sync(lower: &impl AsFd, data_only: bool) -> Result<()> {
    let outcome = if data_only { rustix::fs::fdatasync(lower) } else { rustix::fs::fsync(lower) };
    outcome.map_err(failed)
}

impl OpenFile for BypassFile {
    fn version(&self) -> Version {
        version(&self.lower)
    }

    fn size(&self) -> Result<u64> {
        Ok(version(&self.lower).size)
    }

    fn write_mode(&self) -> WriteMode {
        WriteMode::Through
    }

    fn is_resident(&self, _offset: u64, _length: usize) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let bytes = read_all(&self.lower, offset, buffer)?;
        Ok(ReadOutcome { bytes, levels: BytesByLevel::of(Level::Pfs, bytes as u64) })
    }

    fn read_with(
        &self,
        offset: u64,
        length: usize,
        sink: &mut dyn FnMut(&[IoSlice<'_>]),
    ) -> Result<ReadOutcome> {
        let mut buffer = vec![0; length];
        let outcome = self.read_at(offset, &mut buffer)?;
        sink(&[IoSlice::new(&buffer[..outcome.bytes])]);
        Ok(outcome)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<u64> {
        let _acting = self.acting()?;
        write_all(&self.lower, self.append, offset, data)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let _acting = self.acting()?;
        rustix::fs::ftruncate(&self.lower, size).map_err(failed)
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        let _acting = self.acting()?;
        allocate(&self.lower, mode_bits, offset, length)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        sync(&self.lower, data_only)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn passthrough(&self) -> Option<Arc<dyn PassthroughPin>> {
        None
    }

    fn may_be_lost(&self) -> bool {
        self.may_be_lost
    }

    fn export(&self) -> Result<Option<SegmentExport>> {
        Ok(None)
    }

    fn lower(&self) -> BorrowedFd<'_> {
        self.lower.as_fd()
    }

    fn prefetch(&self, _offset: u64, _length: u64) {}
}

impl FileService for BypassService {
    fn open(&self, request: OpenRequest) -> Result<Arc<dyn OpenFile>> {
        let OpenRequest { lower, append, changes_as, .. } = request;
        let may_be_lost = self.writes_as_node;
        let changes_as = changes_as.filter(|_| !may_be_lost);
        Ok(Arc::new(BypassFile { lower, append, changes_as, may_be_lost }))
    }

    fn rebase_version(&self, _before: &Version, _after: &Version, _alone: bool) {}

    fn memory_only_size(&self, _id: FileId, _pfs_size: u64) -> Option<u64> {
        None
    }

    fn has_memory_only(&self) -> bool {
        false
    }

    fn removed(&self, _id: FileId) {}
}
