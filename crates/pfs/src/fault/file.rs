//! A file of a fault store: asks the rules before each operation, then the file below.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tidepool_proto::{Error, FileId, Identity, Result, Version};

use super::journal::{Journal, Undo};
use super::rules::{ActiveRules, Decision, Operation};
use super::shared::Shared;
use crate::lower::LowerFile;

pub(crate) struct FaultFile {
    pub inner: Arc<dyn LowerFile>,
    pub shared: Arc<Shared>,
    pub inode: u64,
    /// Count of power losses when the file was opened; files of before one are dead.
    pub power_losses: u64,
}

fn errno_error(operation: Operation, errno: i32) -> Error {
    Error::pfs(
        format!("injecting a fault into {}", operation.name()),
        io::Error::from_raw_os_error(errno),
    )
}

fn journal_error(error: io::Error) -> Error {
    Error::pfs("keeping the journal of unsynced writes", error)
}

/// Waits as decided, and fails if decided.
pub(crate) fn enter(operation: Operation, decision: &Decision<'_>) -> Result<()> {
    if !decision.delay.is_zero() {
        std::thread::sleep(decision.delay);
    }
    match decision.errno {
        Some(errno) => Err(errno_error(operation, errno)),
        None => Ok(()),
    }
}

fn limit(decision: &Decision<'_>, began: Instant, bytes: usize) {
    for limiter in &decision.limiters {
        limiter.wait(began, bytes);
    }
}

impl FaultFile {
    fn alive(&self) -> Result<()> {
        if self.shared.power_losses() == self.power_losses {
            return Ok(());
        }
        let lost = io::Error::from_raw_os_error(libc::EIO);
        Err(Error::pfs("using a file that was open when power was lost", lost))
    }

    fn simple<T>(&self, operation: Operation, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.alive()?;
        let rules = self.shared.rules();
        enter(operation, &rules.decide(operation, 0))?;
        call()
    }

    fn read(
        &self,
        buffer: &mut [u8],
        call: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        self.alive()?;
        let rules = self.shared.rules();
        let decision = rules.decide(Operation::Read, buffer.len());
        enter(Operation::Read, &decision)?;
        let began = Instant::now();
        let count = call(buffer)?;
        limit(&decision, began, count);
        Ok(if decision.short { count / 2 } else { count })
    }

    /// Runs `change` with the former content of `[offset, end)` in the journal.
    fn journaled<T>(
        &self,
        (offset, end): (u64, u64),
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let shared = &self.shared;
        let change = || change().inspect(|_| shared.changed(self.inode));
        let Some(journal) = &self.shared.journal else { return change() };
        let undo = journal.undo_of(self.inode);
        let mut undo = undo.lock();
        // Power may have been lost while this call waited for the lock.
        self.alive()?;
        self.record(journal, &mut undo, offset, end)?;
        change()
    }

    fn record(&self, journal: &Journal, undo: &mut Undo, offset: u64, end: u64) -> Result<()> {
        journal.record(undo, self.inner.descriptor(), offset, end).map_err(journal_error)
    }

    fn write<T>(&self, data: &[u8], call: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        self.alive()?;
        let rules: Arc<ActiveRules> = self.shared.rules();
        let decision = rules.decide(Operation::Write, data.len());
        enter(Operation::Write, &decision)?;
        let began = Instant::now();
        if let Some(room) = decision.room {
            if room > 0 {
                call(&data[..room])?;
            }
            return Err(errno_error(Operation::Write, libc::ENOSPC));
        }
        let result = call(data)?;
        limit(&decision, began, data.len());
        Ok(result)
    }
}

impl LowerFile for FaultFile {
    fn id(&self) -> FileId {
        self.inner.id()
    }

    fn version(&self) -> Result<Version> {
        self.alive()?;
        let rules = self.shared.rules();
        let decision = rules.decide(Operation::Version, 0);
        enter(Operation::Version, &decision)?;
        if decision.stale.is_zero() {
            return self.inner.version();
        }
        self.shared.stale_version(self.inode, decision.stale, || self.inner.version())
    }

    fn change_as(&self, identity: Identity) {
        self.inner.change_as(identity);
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read(buffer, |buffer| self.inner.read_at(offset, buffer))
    }

    fn read_current(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read(buffer, |buffer| self.inner.read_current(offset, buffer))
    }

    fn look_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read(buffer, |buffer| self.inner.look_at(offset, buffer))
    }

    fn read_block(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read(buffer, |buffer| self.inner.read_block(offset, buffer))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write(data, |data| {
            let range = (offset, offset.saturating_add(data.len() as u64));
            self.journaled(range, || self.inner.write_at(offset, data))
        })
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        // An append changes no former content; the journal keeps the length.
        self.write(data, |data| self.journaled((0, 0), || self.inner.append(data)))
    }

    fn write_part(&self, offset: Option<u64>, data: &[u8]) -> Result<(u64, usize)> {
        self.alive()?;
        let rules: Arc<ActiveRules> = self.shared.rules();
        let decision = rules.decide(Operation::Write, data.len());
        enter(Operation::Write, &decision)?;
        let began = Instant::now();
        let data = match decision.room {
            Some(0) => return Err(errno_error(Operation::Write, libc::ENOSPC)),
            Some(room) => &data[..room],
            None => data,
        };
        // An append changes no former content; the journal keeps the length.
        let range = offset.map_or((0, 0), |at| (at, at.saturating_add(data.len() as u64)));
        let done = self.journaled(range, || self.inner.write_part(offset, data))?;
        limit(&decision, began, done.1);
        Ok(done)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.simple(Operation::SetSize, || {
            self.journaled((size, u64::MAX), || self.inner.set_size(size))
        })
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        let shifts = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
        let changes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        let end = match mode_bits {
            bits if bits & shifts != 0 => u64::MAX,
            bits if bits & changes != 0 => offset.saturating_add(length),
            _ => offset,
        };
        self.simple(Operation::SetSize, || {
            let change = || self.inner.allocate(mode_bits, offset, length);
            self.journaled((offset, end), change)
        })
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.simple(Operation::Sync, || {
            let Some(journal) = &self.shared.journal else { return self.inner.sync(data_only) };
            let undo = journal.undo_of(self.inode);
            let mut undo = undo.lock();
            self.alive()?;
            self.inner.sync(data_only)?;
            journal.synced(&mut undo, self.inode).map_err(journal_error)
        })
    }

    fn sync_directory_entry(&self) -> Result<()> {
        self.simple(Operation::SyncDirectory, || {
            self.inner.sync_directory_entry()?;
            let Some(journal) = &self.shared.journal else { return Ok(()) };
            match self.inner.relative_path() {
                Some(path) => journal.names_synced(&path).map_err(journal_error),
                None => Ok(()),
            }
        })
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        self.inner.start_writeback(offset, length);
    }

    fn write_back(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.write_back(offset, length)
    }

    fn drop_cached(&self, offset: u64, length: u64) {
        self.inner.drop_cached(offset, length);
    }

    fn get_xattr(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.simple(Operation::Xattr, || self.inner.get_xattr(name))
    }

    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        self.simple(Operation::Xattr, || self.inner.set_xattr(name, value))
    }

    fn set_xattr_if(&self, name: &str, value: &[u8], exists: bool) -> Result<bool> {
        self.simple(Operation::Xattr, || self.inner.set_xattr_if(name, value, exists))
    }

    fn remove_xattr(&self, name: &str) -> Result<()> {
        self.simple(Operation::Xattr, || self.inner.remove_xattr(name))
    }

    fn relative_path(&self) -> Option<PathBuf> {
        self.inner.relative_path()
    }

    fn relative_path_known(&self) -> Option<PathBuf> {
        self.inner.relative_path_known()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }
}
