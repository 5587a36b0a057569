//! Parses the arguments of a request, and turns errors into the errno that answers it.

use std::ffi::CStr;
use std::io;

use zerocopy::{FromBytes, Immutable, KnownLayout};

/// The errno that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The name leads to another file now: the kernel looks it up and asks once more.
    pub const STALE: Errno = Errno(libc::ESTALE);
    /// The request would wait for the holder of a lease. Nothing has happened yet, and it is tried
    /// again later. Sent only where that is impossible, as `EAGAIN`.
    pub const BLOCKED: Errno = Errno(i32::MAX);
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Errno(error.raw_os_error())
    }
}

impl From<tidepool_proto::Error> for Errno {
    fn from(error: tidepool_proto::Error) -> Self {
        // The caller sees a number only, so the error is logged here.
        tracing::debug!(%error, "request failed");
        Errno(error.errno())
    }
}

/// What a handler returns.
pub type Answer<T = ()> = Result<T, Errno>;

/// The arguments of a request, read from front to back.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// Over the bytes after the header.
    pub fn new(bytes: &'a [u8]) -> Self {
        Arguments { rest: bytes }
    }

    /// The next structure.
    pub fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Answer<T> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Errno(libc::EINVAL))?;
        self.rest = rest;
        Ok(value)
    }

    /// The next zero-terminated name.
    pub fn name(&mut self) -> Answer<&'a CStr> {
        let name = CStr::from_bytes_until_nul(self.rest).map_err(|_| Errno(libc::EINVAL))?;
        self.rest = &self.rest[name.to_bytes_with_nul().len()..];
        Ok(name)
    }

    /// Bytes not taken yet.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Answer<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Errno(libc::EINVAL))?;
        self.rest = rest;
        Ok(bytes)
    }
}
