//! One request of the kernel and the duty to answer it exactly once.

use std::ffi::CStr;
use std::io::{self, IoSlice};
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::protocol::abi::InHeader;
use crate::protocol::device::Device;

/// An errno that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Something else is there by now: the kernel looks the name up and asks once more.
    pub const STALE: Errno = Errno(libc::ESTALE);
    /// The request would have to wait for somebody else (a lease): it is tried again. Never sent.
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
        // This is where an error of the node is handled: the caller sees a number only.
        tracing::debug!(%error, "request failed");
        Errno(error.errno())
    }
}

/// What a handler returns: the errno answers the request.
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

/// The right and duty to answer one request. Dropped unused, it answers `EIO`.
#[derive(Debug)]
pub struct Reply {
    device: Arc<Device>,
    unique: u64,
    answered: bool,
}

impl Reply {
    /// For the request with this header.
    pub fn new(device: Arc<Device>, header: &InHeader) -> Self {
        Reply { device, unique: header.unique, answered: false }
    }

    /// Number of the request, by which the kernel may interrupt it.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// The device the answer goes to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Success without data.
    pub fn done(self) {
        self.finish(0, &[]);
    }

    /// Failure.
    pub fn error(self, errno: Errno) {
        self.finish(errno.0, &[]);
    }

    /// Success with a structure.
    pub fn value<T: IntoBytes + Immutable>(self, value: &T) {
        self.finish(0, &[IoSlice::new(value.as_bytes())]);
    }

    /// Success with a structure; whether the kernel still wanted it.
    pub fn value_heard<T: IntoBytes + Immutable>(mut self, value: &T) -> bool {
        self.answered = true;
        match self.device.send(self.unique, 0, &[IoSlice::new(value.as_bytes())]) {
            Ok(heard) => heard,
            Err(error) => {
                tracing::warn!(%error, unique = self.unique, "answering a request failed");
                false
            }
        }
    }

    /// Success with bytes, taken from where they are.
    pub fn data(self, slices: &[IoSlice<'_>]) {
        self.finish(0, slices);
    }

    /// Success with bytes in one piece.
    pub fn bytes(self, bytes: &[u8]) {
        self.finish(0, &[IoSlice::new(bytes)]);
    }

    /// This request takes no answer.
    pub fn none(mut self) {
        self.answered = true;
    }

    /// Success without data, or failure.
    pub fn outcome(self, outcome: Answer) {
        match outcome {
            Ok(()) => self.done(),
            Err(errno) => self.error(errno),
        }
    }

    /// Success with a structure, or failure.
    pub fn value_or_error<T: IntoBytes + Immutable>(self, outcome: Answer<T>) {
        match outcome {
            Ok(value) => self.value(&value),
            Err(errno) => self.error(errno),
        }
    }

    fn finish(mut self, errno: i32, slices: &[IoSlice<'_>]) {
        self.answered = true;
        let errno = if errno == Errno::BLOCKED.0 { libc::EAGAIN } else { errno };
        if let Err(error) = self.device.send(self.unique, errno, slices) {
            tracing::warn!(%error, unique = self.unique, "answering a request failed");
            // The kernel refused the reply as such; an error is the one thing it always takes.
            if errno == 0 && !slices.is_empty() {
                let _ = self.device.send(self.unique, libc::EIO, &[]);
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.device.send(self.unique, libc::EIO, &[]);
        }
    }
}
