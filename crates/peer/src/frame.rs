//! Frames of an authenticated connection: a header of 32 bytes, then a payload or a block.
//!
//! | bytes | header |
//! |---|---|
//! | 0 | kind |
//! | 1 | detail: why refused, or whether confirmed |
//! | 2-3 | zero |
//! | 4-7 | length of what follows, without its code |
//! | 8-15 | number of the frame in its direction, from 0 |
//! | 16-31 | code over bytes 0-15 |
//!
//! Numbers are little-endian. A code is the first 16 bytes of a keyed BLAKE3. What follows has a
//! code of its own behind it, over the frame's number and the bytes; the bytes of a block only
//! where both sides agreed on it. Nothing is looked at before its code was found right.

use std::fmt;

use crate::key::overwrite;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes of a code.
pub(crate) const CODE_BYTES: usize = 16;
/// Most bytes of a request or a reply.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A small request; its payload is the node's.
    Call = 1,
    /// A request for a block; its payload is a `BlockRequest`.
    Block = 2,
    /// All bytes of the block that was sent last are here: are they still good?
    Confirm = 3,
    /// The reply to a small request.
    Reply = 16,
    /// The holder works on the block.
    Working = 17,
    /// The bytes of the block follow.
    Body = 18,
    /// No; `detail` says why.
    Refused = 19,
    /// `detail` is 1 when what was sent is still what the block is, otherwise 0.
    Confirmed = 20,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [
            Self::Call,
            Self::Block,
            Self::Confirm,
            Self::Reply,
            Self::Working,
            Self::Body,
            Self::Refused,
            Self::Confirmed,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }

    /// Most bytes that follow the header.
    fn length_max(self) -> usize {
        match self {
            Self::Call | Self::Block | Self::Reply => PAYLOAD_BYTES_MAX,
            Self::Body => u32::MAX as usize,
            Self::Confirm | Self::Working | Self::Refused | Self::Confirmed => 0,
        }
    }
}

/// A header that was found right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub detail: u8,
    pub length: usize,
    pub number: u64,
}

/// Why bytes are no frame of this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadFrame {
    /// Not made with the key of this direction of this connection.
    Forged,
    /// Another frame than the next.
    OutOfOrder,
    /// Made with the key, and not a frame that this release knows.
    Unknown,
    /// Longer than its kind may be.
    Oversized,
}

impl fmt::Display for BadFrame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Forged => "a frame was changed on its way, or made without the key",
            Self::OutOfOrder => "a frame came again, or out of order",
            Self::Unknown => "a frame of an unknown kind came",
            Self::Oversized => "a frame that is too long came",
        })
    }
}

/// The keys of one direction of one connection. Overwritten when dropped.
pub(crate) struct Keys {
    header: [u8; 32],
    payload: [u8; 32],
}

impl Keys {
    /// Keys from what both sides know after the handshake.
    pub fn new(header: [u8; 32], payload: [u8; 32]) -> Self {
        Self { header, payload }
    }

    fn header_code(&self, fields: &[u8]) -> [u8; CODE_BYTES] {
        code(&blake3::keyed_hash(&self.header, fields))
    }

    fn payload_hasher(&self, number: u64) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.payload);
        hasher.update(&number.to_le_bytes());
        hasher
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        overwrite(&mut self.header);
        overwrite(&mut self.payload);
    }
}

/// The code that a hash stands for.
pub(crate) fn code(hash: &blake3::Hash) -> [u8; CODE_BYTES] {
    let mut code = [0; CODE_BYTES];
    code.copy_from_slice(&hash.as_bytes()[..CODE_BYTES]);
    code
}

/// Whether two codes are equal, in a time that does not tell where they differ.
pub(crate) fn same_code(left: &[u8; CODE_BYTES], right: &[u8; CODE_BYTES]) -> bool {
    std::hint::black_box(u128::from_le_bytes(*left) ^ u128::from_le_bytes(*right)) == 0
}

/// Makes the frames of one direction.
pub(crate) struct Sealing {
    keys: Keys,
    next: u64,
}

impl Sealing {
    pub fn new(keys: Keys) -> Self {
        Self { keys, next: 0 }
    }

    /// The next frame's header.
    ///
    /// # Panics
    /// More than `u32::MAX` bytes follow; callers check that before.
    pub fn header(&mut self, kind: Kind, detail: u8, length: usize) -> [u8; HEADER_BYTES] {
        let length = u32::try_from(length).expect("callers check the length");
        let mut header = [0; HEADER_BYTES];
        header[0] = kind as u8;
        header[1] = detail;
        header[4..8].copy_from_slice(&length.to_le_bytes());
        header[8..16].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        let code = self.keys.header_code(&header[..HEADER_BYTES - CODE_BYTES]);
        header[HEADER_BYTES - CODE_BYTES..].copy_from_slice(&code);
        header
    }

    /// Hashes what follows the header that was made last.
    pub fn payload_hasher(&self) -> blake3::Hasher {
        self.keys.payload_hasher(self.next.wrapping_sub(1))
    }

    /// A whole frame with a payload.
    pub fn frame(&mut self, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len() + CODE_BYTES);
        frame.extend_from_slice(&self.header(kind, 0, payload.len()));
        frame.extend_from_slice(payload);
        let hash = self.payload_hasher().update(payload).finalize();
        frame.extend_from_slice(&code(&hash));
        frame
    }
}

/// Checks the frames of one direction.
pub(crate) struct Opening {
    keys: Keys,
    next: u64,
}

impl Opening {
    pub fn new(keys: Keys) -> Self {
        Self { keys, next: 0 }
    }

    /// The next frame's header.
    pub fn header(&mut self, bytes: &[u8; HEADER_BYTES]) -> Result<Header, BadFrame> {
        let (fields, sent) = bytes.split_at(HEADER_BYTES - CODE_BYTES);
        let sent: &[u8; CODE_BYTES] = sent.try_into().expect("a code is what remains");
        if !same_code(&self.keys.header_code(fields), sent) {
            return Err(BadFrame::Forged);
        }
        let number = u64::from_le_bytes(fields[8..16].try_into().expect("eight bytes"));
        if number != self.next {
            return Err(BadFrame::OutOfOrder);
        }
        let length = u32::from_le_bytes(fields[4..8].try_into().expect("four bytes")) as usize;
        let kind = Kind::of(fields[0]).ok_or(BadFrame::Unknown)?;
        if fields[2..4] != [0, 0] {
            return Err(BadFrame::Unknown);
        }
        if length > kind.length_max() {
            return Err(BadFrame::Oversized);
        }
        self.next += 1;
        Ok(Header { kind, detail: fields[1], length, number })
    }

    /// Hashes what follows a header.
    pub fn payload_hasher(&self, header: &Header) -> blake3::Hasher {
        self.keys.payload_hasher(header.number)
    }

    /// The payload of `header`, from what followed it: payload and code.
    pub fn payload<'a>(&self, header: &Header, followed: &'a [u8]) -> Result<&'a [u8], BadFrame> {
        let (payload, sent) = followed
            .len()
            .checked_sub(CODE_BYTES)
            .map(|length| followed.split_at(length))
            .ok_or(BadFrame::Forged)?;
        let mut hasher = self.payload_hasher(header);
        self.check(hasher.update(payload), sent)?;
        Ok(payload)
    }

    /// Whether the code that was sent is the one of what was hashed.
    pub fn check(&self, hasher: &blake3::Hasher, sent: &[u8]) -> Result<(), BadFrame> {
        let sent: &[u8; CODE_BYTES] = sent.try_into().map_err(|_| BadFrame::Forged)?;
        if same_code(&code(&hasher.finalize()), sent) { Ok(()) } else { Err(BadFrame::Forged) }
    }
}

#[cfg(test)]
#[path = "tests/frame.rs"]
mod tests;
