//! [`Borrowed`]: bytes of a file that the node lends without a copy. It pins them, so they stay
//! where they are until the loan is given back or the client ends.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tidepool_proto::mapping::{Access, Mapping};
use tidepool_proto::wire::{Reply, Request};
use tidepool_proto::{BytesByLevel, Error, ErrorKind, ReadOutcome};

use crate::binding::Binding;
use crate::connection::{Brief, CallError, Connection, GoOn};
use crate::segment;

/// Time for the node to lend bytes before they are copied instead; with the copy, a borrow takes
/// less than 100 ms.
const PATIENCE: Duration = Duration::from_millis(40);
/// Time for the message that gives a loan back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a file: lent by the node without a copy, or copied where it could not lend.
#[derive(Debug)]
pub struct Borrowed {
    bytes: Bytes,
    levels: BytesByLevel,
}

#[derive(Debug)]
enum Bytes {
    Lent { mapping: Mapping, start: usize, length: usize, loan: Loan },
    Copied(Vec<u8>),
}

/// Addresses of bytes that were given back; they read as zeros until this drops.
#[derive(Debug)]
pub struct Retired {
    _mapping: Mapping,
}

/// Gives a borrowed range back. Declared after the mapping, so that it drops after it.
#[derive(Debug)]
struct Loan {
    connection: Arc<Connection>,
    borrow: u64,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.connection.tell(&Request::Release { borrow: self.borrow }, RELEASE_TIMEOUT);
    }
}

impl Borrowed {
    pub(crate) fn copied(bytes: Vec<u8>, levels: BytesByLevel) -> Borrowed {
        Borrowed { bytes: Bytes::Copied(bytes), levels }
    }

    /// Borrows from the node; `None` if it cannot lend. Waits for it until `until` says no, and
    /// without that a short time.
    pub(crate) fn lend(
        binding: &Binding,
        offset: u64,
        length: usize,
        until: Option<GoOn<'_>>,
    ) -> Result<Option<Borrowed>, CallError> {
        let connection = &binding.connection;
        let request = Request::Borrow { handle: binding.handle, offset, length: length as u64 };
        let answer = match until {
            Some(until) => connection.call_while(&request, &[], Some(until))?,
            None => connection.call_briefly(Brief::Lend, &request, &[], PATIENCE)?,
        };
        let Some(mut answer) = answer else { return Ok(None) };
        let (borrow, bytes, levels) = match answer.reply {
            Reply::Borrowed { borrow, bytes, levels } => (borrow, bytes, levels),
            Reply::NotBorrowed => return Ok(None),
            _ => return Err(connection.unexpected("a request to borrow")),
        };
        let loan = Loan { connection: Arc::clone(connection), borrow };
        match (answer.descriptors.pop(), usize::try_from(bytes)) {
            (Some(segment), Ok(bytes)) if bytes <= length => {
                map(&segment, offset, bytes, loan, levels).map(Some).map_err(CallError::Failed)
            }
            _ => Err(connection.unexpected("a request to borrow")),
        }
    }

    /// Whether the bytes are the node's own, not a copy.
    pub fn is_zero_copy(&self) -> bool {
        matches!(self.bytes, Bytes::Lent { .. })
    }

    /// Gives the bytes back while code that Rust does not check may still hold their address: until
    /// the value drops the range reads as zeros instead of being a fault. `None` for a copy, which
    /// is simply freed.
    pub fn retire(self) -> Option<Retired> {
        let Bytes::Lent { mut mapping, loan, .. } = self.bytes else { return None };
        // Where it fails, the node's pages stay.
        let _ = mapping.replace_by_zeros();
        drop(loan);
        Some(Retired { _mapping: mapping })
    }

    /// How much it is and which levels it came from.
    pub fn outcome(&self) -> ReadOutcome {
        ReadOutcome { bytes: self.len(), levels: self.levels }
    }
}

fn map(
    segment: &OwnedFd,
    offset: u64,
    length: usize,
    loan: Loan,
    levels: BytesByLevel,
) -> Result<Borrowed, Error> {
    let page_bytes = rustix::param::page_size() as u64;
    let first = offset - offset % page_bytes;
    let start = (offset - first) as usize;
    let mapped = start.checked_add(length).ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "borrowing", "longer than memory can be")
    })?;
    let mapping = segment::map(segment, first, mapped, Access::Read)?;
    Ok(Borrowed { bytes: Bytes::Lent { mapping, start, length, loan }, levels })
}

impl Deref for Borrowed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Lent { mapping, start, length, .. } => {
                // SAFETY: the node pinned the range before it lent it: it neither changes, frees
                // nor moves it until the loan is given back, which is after this value is gone.
                let bytes = unsafe { mapping.bytes() };
                &bytes[*start..*start + *length]
            }
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
