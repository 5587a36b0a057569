//! An open file.

use std::ops::{Deref, Range};

use tidepool_proto::{Error, ErrorKind, ReadOutcome, Result, Version};

fn unfinished<T>(operation: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, operation, "not built yet"))
}

/// An open file. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct File {}

impl File {
    /// The version that this open reads.
    pub fn version(&self) -> Result<Version> {
        unfinished("asking for the version")
    }

    /// Length of the file in bytes.
    pub fn size(&self) -> Result<u64> {
        unfinished("asking for the size")
    }

    /// Reads at `offset`, short only at the end of the file.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let _ = (offset, buffer);
        unfinished("reading")
    }

    /// Reads at the cursor and moves it.
    pub fn read(&self, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let _ = buffer;
        unfinished("reading")
    }

    /// Reads several ranges of the file, each into its own buffer.
    pub fn read_vectored_at(&self, ranges: &mut [(u64, &mut [u8])]) -> Result<Vec<ReadOutcome>> {
        let _ = ranges;
        unfinished("reading")
    }

    /// Lends `length` bytes at `offset` without a copy where that is possible.
    pub fn borrow(&self, offset: u64, length: usize) -> Result<Borrowed> {
        let _ = (offset, length);
        unfinished("borrowing")
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _ = (offset, data);
        unfinished("writing")
    }

    /// Writes all of `data` at the end of the file; returns where it went.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        let _ = data;
        unfinished("appending")
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> Result<()> {
        unfinished("syncing")
    }

    /// Sets the length in bytes.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let _ = size;
        unfinished("setting the size")
    }

    /// Closes the file and reports errors of writes that were not reported yet.
    pub fn close(self) -> Result<()> {
        unfinished("closing")
    }
}

/// Bytes lent by the node, or a copy where it could not lend.
#[derive(Debug)]
pub struct Borrowed {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl Deref for Borrowed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}
