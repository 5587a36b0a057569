//! Writes, syncs and the close of an open file. An error of a write that the node took is reported
//! by the next write, sync or close. What becomes of writes when the node ends: [`super::writes`].

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use tidepool_pfs::{Need, cost};
use tidepool_proto::trace::Operation;
use tidepool_proto::wire::{Reply, Request, TRANSFER_WRITE_BYTES_MAX};
use tidepool_proto::{Error, ErrorKind, Result, WriteMode};

use super::File;
use super::traced::{NO_RANGE, range};
use super::writes::lost;
use crate::binding::Writer;
use crate::connection::{CallError, Connection};
use crate::lower;

/// How often a node that hangs up is given a write before the parallel file system is.
const WRITE_ATTEMPTS: usize = 8;

impl File {
    /// Writes all of `data` at `offset`; at the end of the file if it was opened to append.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let write = || self.write_whole(offset, data);
        self.traced(Operation::Write, range(offset, data.len()), write, |()| data.len() as u64)
    }

    fn write_whole(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        if self.options.append {
            return self.append_whole(data).map(drop);
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Error::new(ErrorKind::InvalidInput, "writing", "beyond any file's end"));
        }
        let mut written = 0;
        while written < data.len() {
            let rest = &data[written..];
            // A write that is not known to have happened is done again: the outcome is the same.
            written += self.write_step(offset + written as u64, rest, true)?.1;
        }
        Ok(())
    }

    /// Writes all of `data` at the end of the file; returns where it went. The file must have been
    /// opened to append. Up to 1 MiB stay together while others append.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        let (append, length) = (|| self.append_whole(data), data.len() as u64);
        self.traced(Operation::Write, (None, Some(length)), append, |_| length)
    }

    fn append_whole(&self, data: &[u8]) -> Result<u64> {
        self.check_writable()?;
        if !self.options.append {
            return Err(Error::new(ErrorKind::InvalidInput, "appending", "not open to append")
                .remedy("open the file with `append`"));
        }
        let _turn = self.appending.lock();
        let mut start = None;
        let mut written = 0;
        while written < data.len() {
            let (offset, bytes) = self.write_step(0, &data[written..], false)?;
            start.get_or_insert(offset);
            written += bytes;
        }
        match start {
            Some(start) => Ok(start),
            None => self.size(),
        }
    }

    fn check_writable(&self) -> Result<()> {
        if !self.options.access.writes() {
            return Err(Error::new(ErrorKind::PermissionDenied, "writing", "not open for writing")
                .caused_by(rustix::io::Errno::BADF));
        }
        self.writes.check()
    }

    /// Writes a part of `data`; where it went and how much it was.
    fn write_step(&self, offset: u64, data: &[u8], repeatable: bool) -> Result<(u64, usize)> {
        let data = &data[..data.len().min(TRANSFER_WRITE_BYTES_MAX as usize)];
        for _ in 0..WRITE_ATTEMPTS {
            let Some(binding) = self.bound()? else { break };
            if binding.writer != Writer::Node {
                return self.write_bare(offset, data);
            }
            match binding.connection.write(binding.handle, offset, data) {
                Ok(done) => {
                    self.writes.took();
                    // A thread that noticed the node's end before this write was counted may have
                    // gone on with another node. One that notices it later sees the count.
                    if !binding.connection.is_alive() {
                        self.note_end_of_node();
                    }
                    return Ok(done);
                }
                Err(CallError::Failed(error)) => return Err(error),
                Err(CallError::Gone(error)) if !repeatable => {
                    self.writes.lose();
                    return Err(lost().caused_by(std::io::Error::other(error.to_string())));
                }
                Err(CallError::Gone(_)) => {
                    // It must not be carried out when another process has written there since.
                    self.await_end_of(&binding.connection)?;
                    // What it took before is looked at when the file is bound anew.
                    self.note_end_of_node();
                }
            }
        }
        self.writes.check()?;
        self.check_not_memory_only()?;
        self.write_bare(offset, data)
    }

    /// After a change that was not answered: returns when the node does not work on it any more,
    /// so that it may be made again. Where that is not known, what becomes of it is not either.
    pub(super) fn await_end_of(&self, connection: &Connection) -> Result<()> {
        if connection.wait_for_end() {
            return Ok(());
        }
        self.writes.lose();
        let detail = "the node did not answer, and may still carry a change out";
        Err(Error::new(ErrorKind::Lost, "writing", detail).remedy("write the file again"))
    }

    /// Writes past the node.
    fn write_bare(&self, offset: u64, data: &[u8]) -> Result<(u64, usize)> {
        let done = match self.options.append {
            true => lower::append(&self.lower, data).map(|offset| (offset, data.len())),
            false => lower::write_at(&self.lower, offset, data).map(|()| (offset, data.len())),
        };
        // A failed write may have left a part.
        self.writes.went_past_node(data.len() as u64);
        done
    }

    /// Called when the node is gone. It answers a write when the parallel file system has taken it,
    /// so a sync of our own descriptor, open since before, makes it durable and tells its errors.
    ///
    /// What was settled in memory alone is there as long as the stub is; a stub that another
    /// program wrote over is the only word that it is not.
    pub(super) fn note_end_of_node(&self) {
        self.writes.node_ended(|| lower::is_overwritten_stub(&self.lower));
    }

    /// Whether what is written may live in the memory of a node alone, so that no sync makes it
    /// durable. It is what the open got, by its options or by a rule of the node.
    pub fn may_be_lost(&self) -> bool {
        self.writes.may_be_lost()
    }

    /// Makes everything written so far durable, as the write mode promises.
    pub fn sync(&self) -> Result<()> {
        self.sync_with(false)
    }

    /// As [`File::sync`], without metadata that is not needed to read the bytes again.
    pub fn sync_data(&self) -> Result<()> {
        self.sync_with(true)
    }

    fn sync_with(&self, data_only: bool) -> Result<()> {
        let need = Need::All { data_only };
        let sync = || self.settle(&|handle| Request::Sync { handle, data_only }, |_| Some(need));
        self.traced(Operation::Sync, NO_RANGE, sync, |()| 0)
    }

    /// What a close would do, without closing: keeps the promise of the write mode.
    pub fn flush(&self) -> Result<()> {
        let need = |mode| (mode != WriteMode::Bypass).then_some(Need::Counted);
        let flush = || self.settle(&|handle| Request::Flush { handle }, need);
        self.traced(Operation::Flush, NO_RANGE, flush, |()| 0)
    }

    /// Has the node settle what it took, by `request`, and syncs what went past it as `need` says
    /// for the mode of the writes.
    fn settle(
        &self,
        request: &dyn Fn(u64) -> Request,
        need: impl FnOnce(WriteMode) -> Option<Need>,
    ) -> Result<()> {
        self.writes.check()?;
        let need = match self.writer() {
            Writer::Client(mode) => {
                return need(mode).map_or(Ok(()), |need| self.sync_bare(need));
            }
            Writer::Node => need(self.options.write_mode.unwrap_or_default()),
        };
        let taken = self.writes.taken();
        let settled = match self.ask(request, &mut || true)? {
            Some(Reply::Done) => true,
            Some(_) => {
                return Err(Error::new(ErrorKind::Protocol, "syncing", "an unexpected answer"));
            }
            None => false,
        };
        // A node that ended in between had nothing made durable, nor did one that came after it.
        self.writes.check()?;
        match need {
            Some(_) if !settled => self.sync_bare(Need::All { data_only: false }),
            None if !settled => Ok(()),
            need => {
                self.writes.settle(taken);
                // The node synced the name as well, if nothing went past it.
                let owed = self.writes.are_owed_past_node();
                need.filter(|_| owed).map_or(Ok(()), |_| self.sync_bare(Need::Counted))
            }
        }
    }

    /// Returns when what this process wrote past the node is durable: by a sync of its own, or by
    /// that of another thread which began late enough.
    fn sync_bare(&self, need: Need) -> Result<()> {
        self.writes.sync_past_node(need, |work| {
            let synced = cost::wait(|| match work.data_only {
                true => rustix::fs::fdatasync(&self.lower),
                false => rustix::fs::fsync(&self.lower),
            });
            synced.map_err(|error| Error::pfs("syncing on the parallel file system", error))?;
            if work.entry {
                // By the descriptor: the name may have changed, and the working directory too.
                cost::wait(|| tidepool_pfs::sync_entry(self.lower.as_fd()))
                    .map_err(|error| Error::pfs("syncing the directory of a new file", error))?;
            }
            if !self.keeps() {
                lower::drop_pages(&self.lower, 0, 0);
            }
            Ok(())
        })
    }

    /// Sets the length of the file in bytes.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let set = || self.set_size_whole(size);
        self.traced(Operation::Truncate, (Some(size), None), set, |()| 0)
    }

    fn set_size_whole(&self, size: u64) -> Result<()> {
        self.check_writable()?;
        if self.change(&|handle| Request::SetSize { handle, size }, true)? {
            return Ok(());
        }
        let done = lower::set_size(&self.lower, size);
        self.writes.went_past_node(1);
        done
    }

    /// `fallocate(2)` with its mode bits.
    pub fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        let allocate = || self.allocate_range(mode_bits, offset, length);
        self.traced(Operation::Allocate, (Some(offset), Some(length)), allocate, |()| 0)
    }

    fn allocate_range(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        self.check_writable()?;
        let moves = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
        let request = |handle| Request::Allocate { handle, mode_bits, offset, length };
        if self.change(&request, mode_bits & moves == 0)? {
            return Ok(());
        }
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode_bits.cast_unsigned());
        let done = cost::wait(|| rustix::fs::fallocate(&self.lower, flags, offset, length))
            .map_err(|error| Error::pfs("allocating space", error));
        self.writes.went_past_node(1);
        done
    }

    /// Has the node change the file; false if that is to be done without it. `repeatable`: a change
    /// that is made twice comes to the same.
    fn change(&self, request: &dyn Fn(u64) -> Request, repeatable: bool) -> Result<bool> {
        self.bound()?;
        if self.writer() != Writer::Node {
            return Ok(false);
        }
        let done = self.ask_to_change(request, repeatable)?;
        self.writes.check()?;
        if done {
            self.writes.took();
        } else {
            self.check_not_memory_only()?;
        }
        Ok(done)
    }

    /// Whether the node did it.
    fn ask_to_change(&self, request: &dyn Fn(u64) -> Request, repeatable: bool) -> Result<bool> {
        for _ in 0..WRITE_ATTEMPTS {
            let Some(binding) = self.bound()? else { return Ok(false) };
            match binding.connection.call(&request(binding.handle), &[], &[]) {
                Ok(_) => return Ok(true),
                Err(CallError::Failed(error)) => return Err(error),
                Err(CallError::Gone(_)) if repeatable => {
                    self.await_end_of(&binding.connection)?;
                    self.note_end_of_node();
                }
                Err(CallError::Gone(error)) => {
                    self.writes.lose();
                    return Err(lost().caused_by(std::io::Error::other(error.to_string())));
                }
            }
        }
        Ok(false)
    }

    /// Closes the file. Returns when the promise of the write mode holds, with the error of any
    /// write that was not reported yet.
    pub fn close(self) -> Result<()> {
        self.finish()
    }

    /// As [`File::close`], for a file that others still refer to; their calls may fail then.
    pub fn finish(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let flush = || {
            let untouched = !self.created && self.writes.are_none();
            if untouched || !self.options.access.writes() { Ok(()) } else { self.flush() }
        };
        let flushed = self.traced(Operation::Close, NO_RANGE, flush, |()| 0);
        if let Some(binding) = self.binding_alive() {
            self.end_reading(&binding);
            self.forget(&binding);
        }
        flushed
    }
}
