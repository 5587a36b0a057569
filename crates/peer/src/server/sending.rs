//! Sends a block: from the file's pages, or by copy where they would pin too much or are hashed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::serving::{End, Serving};
use crate::frame::{CODE_BYTES, HEADER_BYTES, Kind, code};
use crate::socket::Patience;
use crate::{Bytes, Integrity};

/// Blocks shorter than this are copied: `sendfile` of a part of a huge page keeps all of it.
const SENDFILE_BYTES_MIN: usize = 256 << 10;
/// Bytes that are copied and hashed at once: while they are in the processor's cache, and enough
/// of them for wide instructions.
const COPY_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;

/// A buffer at the start of a page, allocated when it is used.
#[derive(Default)]
pub(super) struct CopyBuffer(Vec<u8>);

impl CopyBuffer {
    fn bytes(&mut self) -> &mut [u8] {
        if self.0.is_empty() {
            self.0 = vec![0; COPY_BYTES + PAGE_BYTES];
        }
        let start = self.0.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        &mut self.0[start..start + COPY_BYTES]
    }

    /// Gives its memory back.
    pub fn free(&mut self) {
        self.0 = Vec::new();
    }
}

/// Fills `into` from `file` at `offset`. What the file does not give is zeros, and false.
fn read_at(file: &OwnedFd, offset: u64, into: &mut [u8]) -> bool {
    let mut filled = 0;
    while filled < into.len() {
        match rustix::io::pread(file, &mut into[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    into[filled..].fill(0);
    filled == into.len()
}

impl Serving<'_> {
    /// Sends a block with its header. True when the file gave all bytes; where it did not, zeros
    /// fill the frame and the block must not be confirmed. None, and nothing sent, where the
    /// service has not as many bytes as were asked for.
    pub fn send_block(
        &mut self,
        bytes: &Bytes,
        length: usize,
        patience: Patience,
    ) -> Result<Option<bool>, End> {
        let full = self.session.integrity == Integrity::Full;
        let sent = match bytes {
            Bytes::Copied(bytes) if bytes.len() != length => {
                tracing::error!(
                    bytes = bytes.len(),
                    length,
                    "a block for a peer has a wrong length"
                );
                return Ok(None);
            }
            Bytes::Copied(bytes) => self.send_copied(bytes, patience),
            Bytes::File { file, offset } if length < SENDFILE_BYTES_MIN => {
                self.send_short(file, *offset, length, patience)
            }
            Bytes::File { file, offset } if full || self.wire.is_encrypted() => {
                self.send_copies(file, *offset, length, patience)
            }
            Bytes::File { file, offset } => self.send_pages(file, *offset, length, patience),
        }?;
        self.shared.counts.add(|counts| &counts.block_bytes, length as u64);
        Ok(Some(sent))
    }

    /// The code that follows a block; nothing where blocks have none.
    fn trailer(&self, bytes: &[u8]) -> Vec<u8> {
        if self.session.integrity == Integrity::Headers {
            return Vec::new();
        }
        code(&self.session.sealing.payload_hasher().update(bytes).finalize()).to_vec()
    }

    fn send_copied(&mut self, bytes: &[u8], patience: Patience) -> io::Result<bool> {
        let header = self.session.sealing.header(Kind::Body, 0, bytes.len());
        let trailer = self.trailer(bytes);
        let more = !bytes.is_empty() || !trailer.is_empty();
        self.wire.send_all(&header, more, patience)?;
        self.wire.send_all(bytes, !trailer.is_empty(), patience)?;
        self.wire.send_all(&trailer, false, patience)?;
        self.shared.counts.add(|counts| &counts.copied_bytes, bytes.len() as u64);
        Ok(true)
    }

    /// A short block in one call.
    fn send_short(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        length: usize,
        patience: Patience,
    ) -> io::Result<bool> {
        let mut frame = Vec::with_capacity(HEADER_BYTES + length + CODE_BYTES);
        frame.extend_from_slice(&self.session.sealing.header(Kind::Body, 0, length));
        frame.resize(HEADER_BYTES + length, 0);
        let whole = read_at(file, offset, &mut frame[HEADER_BYTES..]);
        let trailer = self.trailer(&frame[HEADER_BYTES..]);
        frame.extend_from_slice(&trailer);
        self.wire.send_all(&frame, false, patience)?;
        self.shared.counts.add(|counts| &counts.copied_bytes, length as u64);
        Ok(whole)
    }

    /// A long block by copies, so that what is hashed, or encrypted, is what is sent.
    fn send_copies(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        length: usize,
        patience: Patience,
    ) -> io::Result<bool> {
        let full = self.session.integrity == Integrity::Full;
        let header = self.session.sealing.header(Kind::Body, 0, length);
        self.wire.send_all(&header, true, patience)?;
        let mut hasher = full.then(|| self.session.sealing.payload_hasher());
        let mut whole = true;
        for at in (0..length).step_by(COPY_BYTES) {
            let part = &mut self.buffer.bytes()[..COPY_BYTES.min(length - at)];
            whole &= read_at(file, offset + at as u64, part);
            if let Some(hasher) = &mut hasher {
                hasher.update(part);
            }
            let more = full || at + part.len() < length;
            self.wire.send_all(part, more, patience)?;
        }
        if let Some(hasher) = hasher {
            self.wire.send_all(&code(&hasher.finalize()), false, patience)?;
        }
        self.shared.counts.add(|counts| &counts.copied_bytes, length as u64);
        Ok(whole)
    }

    /// A long block from the pages of the file, which the socket's queue refers to.
    fn send_pages(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        length: usize,
        patience: Patience,
    ) -> io::Result<bool> {
        let header = self.session.sealing.header(Kind::Body, 0, length);
        self.connection.file_bytes.store(length as u64, Ordering::Release);
        self.wire.send_all(&header, true, patience)?;
        let sent = self.wire.send_file(file, offset, length, patience)?;
        self.fill_up(length - sent, patience)?;
        Ok(sent == length)
    }

    /// Zeros for what a file did not give: the frame's length is said already.
    fn fill_up(&mut self, mut missing: usize, patience: Patience) -> io::Result<()> {
        while missing > 0 {
            let part = &mut self.buffer.bytes()[..COPY_BYTES.min(missing)];
            part.fill(0);
            self.wire.send_all(part, false, patience)?;
            missing -= part.len();
        }
        Ok(())
    }
}
