//! Reads of an open file: from its segment first, then from the node, then from the parallel file
//! system.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidepool_pfs::cost;
use tidepool_proto::trace::Operation;
use tidepool_proto::wire::{REPLY_PAYLOAD_BYTES_MAX, Reply, Request, Want};
use tidepool_proto::{BytesByLevel, Error, ErrorKind, Level, ReadMode, ReadOutcome, Result};

use super::traced::{brought, range, recorded};
use super::{File, changed};
use crate::binding::Binding;
use crate::borrowed::Borrowed;
use crate::connection::{CallError, GoOn};
use crate::lower;
use crate::segment::Segment;

/// How often a block that goes away again is asked for before its bytes are taken by message.
const RESIDENT_ATTEMPTS: usize = 2;

/// How often a node that hangs up is asked before the parallel file system is.
const ASKING_ATTEMPTS: usize = 8;

/// What one step of a read brought.
struct Step {
    bytes: usize,
    levels: BytesByLevel,
    at_end: bool,
}

/// What came of asking the node.
enum Asked {
    Step(Step),
    /// The block went away again before it was read.
    WentAway,
    /// The caller waits no more.
    GivenUp,
}

impl File {
    /// Reads at `offset` into `buffer`, short only at the end of the file.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let outcome = self.read_by(offset, buffer, |at, rest| self.read_asking(at, rest, None))?;
        // Never without an outcome: the wait is not given up.
        let outcome = outcome.unwrap_or_default();
        self.read_on(offset, &outcome);
        Ok(outcome)
    }

    /// As [`File::read_at`], but a wait for the node ends when `go_on`, asked now and then, says
    /// no: then what was read up to there comes, and `None` where that is nothing. A wait for the
    /// parallel file system without a node ends when that answers.
    pub fn read_at_while(
        &self,
        offset: u64,
        buffer: &mut [u8],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<ReadOutcome>> {
        let ask = |at, rest: &mut [u8]| self.read_asking(at, rest, Some(&mut *go_on));
        let outcome = self.read_by(offset, buffer, ask)?;
        if let Some(outcome) = &outcome {
            self.read_on(offset, outcome);
        }
        Ok(outcome)
    }

    /// Reads at `offset` what this process holds itself, up to the first byte that it does not.
    /// `None` if it holds nothing there, so that the node or the parallel file system has to be
    /// asked: then [`File::read_at`] is the call to make. Sends no message and never waits.
    /// No bytes mean the end of the file. What was read is told by [`File::read_on`] afterwards.
    pub fn read_held_at(&self, offset: u64, buffer: &mut [u8]) -> Result<Option<ReadOutcome>> {
        self.read_by(offset, buffer, |_, _| Ok(None))
    }

    /// Has the node read ahead of a read that is over, where that is worth it.
    pub fn read_on(&self, offset: u64, outcome: &ReadOutcome) {
        if outcome.bytes > 0 {
            self.read_ahead(offset, outcome.bytes);
        }
    }

    /// Reads what is held, and what is not by `ask`, until that has nothing either.
    #[inline]
    fn read_by(
        &self,
        offset: u64,
        buffer: &mut [u8],
        mut ask: impl FnMut(u64, &mut [u8]) -> Result<Option<Step>>,
    ) -> Result<Option<ReadOutcome>> {
        self.check_readable(offset, buffer.len())?;
        let mut outcome = ReadOutcome::default();
        let (length, mut at_end) = (buffer.len(), buffer.is_empty());
        while !at_end && outcome.bytes < buffer.len() {
            let at = offset + outcome.bytes as u64;
            let rest = &mut buffer[outcome.bytes..];
            let step = match self.read_held(at, rest) {
                Some(step) => Some(step),
                None if outcome.bytes == 0 && self.is_to_be_recorded() => {
                    let read = || self.read_by(offset, buffer, ask);
                    return self.recorded_read(range(offset, length), read);
                }
                None => ask(at, rest)?,
            };
            let Some(step) = step else {
                if outcome.bytes == 0 {
                    return Ok(None);
                }
                break;
            };
            outcome.bytes += step.bytes;
            outcome.levels.merge(&step.levels);
            at_end = step.at_end;
        }
        if outcome.levels.mapped > 0 {
            self.mapped_bytes.fetch_add(outcome.levels.mapped, Ordering::Relaxed);
        }
        Ok(Some(outcome))
    }

    fn check_readable(&self, offset: u64, length: usize) -> Result<()> {
        if !self.options.access.reads() {
            return Err(Error::new(ErrorKind::PermissionDenied, "reading", "not open for reading")
                .caused_by(rustix::io::Errno::BADF));
        }
        match offset.checked_add(length as u64) {
            Some(end) if i64::try_from(end).is_ok() => Ok(()),
            _ => Err(Error::new(ErrorKind::InvalidInput, "reading", "beyond any file's end")),
        }
    }

    /// Reads what this process holds itself: no message, no lock, no allocation.
    /// Nothing, where the read has to be recorded first.
    fn read_held(&self, offset: u64, buffer: &mut [u8]) -> Option<Step> {
        let guard = self.binding.load();
        let binding = guard.as_ref()?;
        if binding.connection.is_traced() && !cost::is_open() {
            return None;
        }
        if let Some(segment) = binding.living_segment() {
            if self.is_outdated(segment) {
                return None;
            }
            let piece = segment.read(offset, buffer)?;
            let levels = BytesByLevel::of(Level::Mapped, piece.bytes as u64);
            return Some(Step { bytes: piece.bytes, levels, at_end: piece.at_end });
        }
        let inline = binding.inline.as_ref()?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(inline.bytes.len());
        let bytes = (inline.bytes.len() - start).min(buffer.len());
        buffer[..bytes].copy_from_slice(&inline.bytes[start..start + bytes]);
        let levels = BytesByLevel::of(inline.level, bytes as u64);
        Some(Step { bytes, levels, at_end: bytes < buffer.len() })
    }

    /// Reads by asking the node, or else the parallel file system; `None` where `go_on` gave up.
    #[cold]
    fn read_asking(
        &self,
        offset: u64,
        buffer: &mut [u8],
        mut go_on: Option<GoOn<'_>>,
    ) -> Result<Option<Step>> {
        let mut attempts = 0;
        loop {
            let mut goes_on = || go_on.as_mut().is_none_or(|go_on| go_on());
            let bound = match attempts < ASKING_ATTEMPTS {
                true => self.bound_while(&mut goes_on)?,
                false => None,
            };
            let Some(binding) = bound else {
                if self.origin.memory_only && !goes_on() {
                    return Ok(None);
                }
                return self.read_bare(offset, buffer).map(Some);
            };
            // Another thread may have opened the file anew, with bytes that are held now.
            if attempts > 0
                && let Some(step) = self.read_held(offset, buffer)
            {
                return Ok(Some(step));
            }
            // What is not kept is not made resident either.
            let resident = attempts < RESIDENT_ATTEMPTS && self.keeps();
            let outdated = binding.segment.as_ref().is_some_and(|it| self.is_outdated(it));
            if outdated {
                self.renew(&binding);
            }
            let segment = binding.segment.as_ref().filter(|_| resident && !outdated);
            attempts += 1;
            let go_on = go_on.as_mut().map(|go_on| &mut **go_on as GoOn<'_>);
            let asked = match segment {
                Some(segment) => self.read_made_resident(&binding, segment, offset, buffer, go_on),
                None => read_inline(&binding, offset, buffer, go_on),
            };
            match asked {
                Ok(Asked::Step(step)) => return Ok(Some(step)),
                Ok(Asked::GivenUp) => return Ok(None),
                Ok(Asked::WentAway) if attempts >= RESIDENT_ATTEMPTS => self.renew(&binding),
                Ok(Asked::WentAway) => {}
                Err(CallError::Failed(error)) => return Err(error),
                Err(CallError::Gone(_)) => {}
            }
        }
    }

    /// Has the node fill a block, then reads it.
    fn read_made_resident(
        &self,
        binding: &Binding,
        segment: &Segment,
        offset: u64,
        buffer: &mut [u8],
        go_on: Option<GoOn<'_>>,
    ) -> Result<Asked, CallError> {
        let length = segment.piece_bytes(offset, buffer.len());
        if buffer.len() > length {
            // The following blocks of a long read come while this one is read.
            let rest = (buffer.len() - length) as u64;
            self.hint(binding, offset + length as u64, rest);
        }
        let request = Request::Read {
            handle: binding.handle,
            offset,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            want: Want::Resident,
        };
        let Some(answer) = binding.connection.call_while(&request, &[], go_on)? else {
            return Ok(Asked::GivenUp);
        };
        let step = match answer.reply {
            Reply::Resident { bytes: 0, levels } => Step { bytes: 0, levels, at_end: true },
            Reply::Resident { bytes, levels } => {
                let whole = |piece: &crate::segment::Piece| piece.bytes as u64 == bytes;
                let piece = segment.read(offset, &mut buffer[..length]).filter(whole);
                let Some(piece) = piece else { return Ok(Asked::WentAway) };
                Step { bytes: piece.bytes, levels, at_end: piece.at_end }
            }
            Reply::Data { at_end, levels } => {
                take_data(&answer.payload, at_end, levels, &mut buffer[..length])
            }
            _ => return Err(binding.connection.unexpected("a read")),
        };
        Ok(Asked::Step(step))
    }

    /// Whether the node goes on with other bytes for this open: one read is not of both.
    fn is_outdated(&self, segment: &Segment) -> bool {
        self.options.access.writes() && segment.is_superseded()
    }

    /// The segment that this process holds is not the one that the node fills any more.
    fn renew(&self, binding: &Arc<Binding>) {
        if let Ok(renewed) = binding.renewed() {
            self.binding.compare_and_swap(binding, Some(Arc::new(renewed)));
        }
    }

    fn read_bare(&self, offset: u64, buffer: &mut [u8]) -> Result<Step> {
        self.check_not_memory_only()?;
        if self.options.read_mode == Some(ReadMode::Memory) {
            let detail = "no node answers, and only memory may be read";
            return Err(Error::new(ErrorKind::NotResident, "reading", detail)
                .remedy("start the node, or read in mode `two-level`"));
        }
        let bytes = lower::read_at(&self.lower, offset, buffer)?;
        if bytes > 0 && !self.keeps() {
            lower::drop_pages(&self.lower, offset, bytes as u64);
        }
        // Looked at afterwards: if the content is still that of the open, it was so all the time.
        let version = lower::version(&self.lower)?;
        if !self.options.access.writes() && !lower::is_same_content(&version, &self.origin.version)
        {
            return Err(changed());
        }
        let levels = BytesByLevel::of(Level::Pfs, bytes as u64);
        Ok(Step { bytes, levels, at_end: bytes < buffer.len() })
    }

    fn read_ahead(&self, offset: u64, length: usize) {
        let guard = self.binding.load();
        let Some(binding) = guard.as_ref() else { return };
        let Some(segment) = binding.living_segment() else { return };
        if segment.size() <= segment.block_bytes() {
            return;
        }
        let Some(range) = self.read_ahead.note(offset, length, segment.block_bytes()) else {
            return;
        };
        let end = range.end.min(segment.size());
        if range.start < end && segment.lacks_any(range.start, end) {
            self.hint(binding, range.start, end - range.start);
        }
    }

    /// This open reads no more.
    pub(super) fn end_reading(&self, binding: &Binding) {
        if let Some(segment) = binding.living_segment() {
            self.read_ahead.end(segment.block_bytes());
        }
    }

    fn hint(&self, binding: &Binding, offset: u64, length: u64) {
        let request = Request::Prefetch { handle: binding.handle, offset, length };
        binding.connection.tell(&request, Duration::ZERO);
    }

    /// Reads at the cursor and moves it.
    pub fn read(&self, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let mut cursor = self.cursor.lock();
        let outcome = self.read_at(*cursor, buffer)?;
        *cursor += outcome.bytes as u64;
        Ok(outcome)
    }

    /// Where the next [`File::read`] begins, in bytes.
    pub fn position(&self) -> u64 {
        *self.cursor.lock()
    }

    /// Sets where the next [`File::read`] begins, in bytes.
    pub fn set_position(&self, position: u64) {
        *self.cursor.lock() = position;
    }

    /// Reads several ranges of the file, each into its own buffer; what is not resident is asked
    /// for before the first one is waited for.
    pub fn read_vectored_at(&self, ranges: &mut [(u64, &mut [u8])]) -> Result<Vec<ReadOutcome>> {
        for (offset, buffer) in ranges.iter().skip(1) {
            self.prefetch_missing(*offset, buffer.len() as u64);
        }
        ranges.iter_mut().map(|(offset, buffer)| self.read_at(*offset, buffer)).collect()
    }

    /// As [`File::prefetch`], but only where a block of the range is known not to be resident.
    pub fn prefetch_missing(&self, offset: u64, length: u64) {
        let guard = self.binding.load();
        let Some(binding) = guard.as_ref() else { return };
        let Some(segment) = binding.living_segment() else { return };
        let end = offset.saturating_add(length).min(segment.size());
        if offset < end && segment.lacks_any(offset, end) {
            self.hint(binding, offset, end - offset);
        }
    }

    /// Starts to bring a range in, without waiting. A hint: without a node it does nothing.
    pub fn prefetch(&self, offset: u64, length: u64) {
        if let Some(binding) = self.binding_alive() {
            self.hint(&binding, offset, length);
        }
    }

    /// Lends up to `length` bytes at `offset`, fewer only at the end of the file: without a copy
    /// where the node can pin them, else as a copy.
    pub fn borrow(&self, offset: u64, length: usize) -> Result<Borrowed> {
        if let Some(borrowed) = self.lend(offset, length)? {
            return Ok(borrowed);
        }
        let left = usize::try_from(self.size()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length.min(left)];
        let outcome = self.read_at(offset, &mut bytes)?;
        bytes.truncate(outcome.bytes);
        Ok(Borrowed::copied(bytes, outcome.levels))
    }

    /// As [`File::borrow`], but never a copy: `None` where the node cannot lend.
    pub fn lend(&self, offset: u64, length: usize) -> Result<Option<Borrowed>> {
        self.lend_while(offset, length, &mut || true)
    }

    /// As [`File::lend`]; `None` also where `go_on`, asked now and then, gave up to wait for the
    /// node. Bytes that are held here can be copied at any time, so for those a node that does not
    /// answer is not waited for.
    pub fn lend_while(
        &self,
        offset: u64,
        length: usize,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Borrowed>> {
        let watched = self.binding.load_full().filter(|binding| binding.connection.is_traced());
        let Some(binding) = watched else { return self.lend_bound(offset, length, go_on) };
        let lend = || self.lend_bound(offset, length, go_on);
        recorded(&binding, Operation::Lend, range(offset, length), lend, |lent| {
            brought(&lent.as_ref().map(Borrowed::outcome))
        })
    }

    fn lend_bound(
        &self,
        offset: u64,
        length: usize,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Borrowed>> {
        self.check_readable(offset, length)?;
        if let Some(binding) = self.bound_while(go_on)?
            && let Some(segment) = &binding.segment
            && self.keeps()
            && length > 0
        {
            let end = offset.saturating_add(length as u64).min(segment.size());
            let until = segment.lacks_any(offset, end).then_some(go_on as GoOn<'_>);
            match Borrowed::lend(&binding, offset, length, until) {
                Ok(Some(borrowed)) => return Ok(Some(borrowed)),
                Ok(None) | Err(CallError::Gone(_)) => {}
                // Too much is lent already: a copy is slower and as good.
                Err(CallError::Failed(error)) if error.kind() == ErrorKind::LimitReached => {}
                Err(CallError::Failed(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Length of the file in bytes, where this process knows it itself.
    pub(super) fn held_size(&self) -> Option<u64> {
        if self.options.access.writes() {
            return None;
        }
        self.binding.load().as_ref()?.living_segment()?.held_size()
    }
}

fn read_inline(
    binding: &Binding,
    offset: u64,
    buffer: &mut [u8],
    go_on: Option<GoOn<'_>>,
) -> Result<Asked, CallError> {
    let length = buffer.len().min(REPLY_PAYLOAD_BYTES_MAX as usize);
    let request =
        Request::Read { handle: binding.handle, offset, length: length as u32, want: Want::Inline };
    let Some(answer) = binding.connection.call_while(&request, &[], go_on)? else {
        return Ok(Asked::GivenUp);
    };
    match answer.reply {
        Reply::Data { at_end, levels } => {
            Ok(Asked::Step(take_data(&answer.payload, at_end, levels, &mut buffer[..length])))
        }
        _ => Err(binding.connection.unexpected("a read")),
    }
}

fn take_data(payload: &[u8], at_end: bool, levels: BytesByLevel, buffer: &mut [u8]) -> Step {
    let bytes = payload.len().min(buffer.len());
    buffer[..bytes].copy_from_slice(&payload[..bytes]);
    // An answer without bytes is an end whatever it says, or a reader would ask forever.
    Step { bytes, levels, at_end: at_end || bytes == 0 }
}
