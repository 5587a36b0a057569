//! [`PosixFile`]: one open file of a mounted file system.
//!
//! The caller's descriptor shares its description with the caller, so neither its flags nor its
//! position are touched. Where other flags are needed (direct I/O, appends, or none of these) the
//! file is opened again through `/proc/self/fd`, with no more access than the caller's descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags, XattrFlags};
use tidepool_proto::{Error, ErrorKind, FileId, Identity, Result, Version};

use super::direct::{FillDescriptor, reopen};
use super::shared::Shared;
use super::transfer::{Alignment, PartialWrite, read_full, read_unbuffered, write_full};
use crate::asked;
use crate::identity::{Acting, act_as};
use crate::lower::LowerFile;

/// Page size that ranges for the page cache are rounded to; a multiple of every real one's unit.
const PAGE_BYTES: u64 = 4096;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) struct PosixFile {
    shared: Arc<Shared>,
    descriptor: OwnedFd,
    id: FileId,
    /// Names this file in the pool of descriptors for fills.
    number: u64,
    /// Flags of the caller's descriptor when it came.
    flags: OFlags,
    direct_refused: AtomicBool,
    reopen_refused: AtomicBool,
    /// Opened again without `O_APPEND` and `O_DIRECT`, where the caller's descriptor has them.
    plain: OnceLock<OwnedFd>,
    /// Opened again with `O_APPEND`; `None` inside: refused. The lock keeps write and position
    /// together.
    appender: Mutex<Option<Option<OwnedFd>>>,
    /// The user that content and length are changed as, where not as this process.
    changes_as: OnceLock<Identity>,
}

impl PosixFile {
    pub fn new(shared: Arc<Shared>, descriptor: OwnedFd, id: FileId, flags: OFlags) -> Self {
        PosixFile {
            shared,
            descriptor,
            id,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            flags,
            direct_refused: AtomicBool::new(false),
            reopen_refused: AtomicBool::new(false),
            plain: OnceLock::new(),
            appender: Mutex::new(None),
            changes_as: OnceLock::new(),
        }
    }

    fn fail(&self, operation: &str, error: io::Error) -> Error {
        self.fail_with(operation, String::new(), error)
    }

    fn fail_with(&self, operation: &str, detail: String, error: io::Error) -> Error {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()))
            .map_or_else(|_| String::new(), |path| path.display().to_string());
        let separator = if detail.is_empty() { "" } else { ": " };
        Error::new(ErrorKind::Pfs, operation, format!("{name}{separator}{detail}")).caused_by(error)
    }

    /// Has this thread act as the user that changes are made as, until the value drops. Nothing may
    /// be opened or made meanwhile but the change itself.
    fn acting(&self) -> Result<Option<Acting>> {
        self.changes_as.get().map_or(Ok(None), act_as)
    }

    fn access(&self) -> OFlags {
        self.flags & OFlags::ACCMODE
    }

    fn readable(&self) -> bool {
        self.access() != OFlags::WRONLY
    }

    fn writable(&self) -> bool {
        self.access() != OFlags::RDONLY
    }

    /// The descriptor for reads and writes at given offsets, whose flags have none of `unwanted`.
    fn plain(&self, unwanted: OFlags) -> io::Result<BorrowedFd<'_>> {
        // Asked for each time: the caller shares the description and may set flags at any time,
        // and some file systems append wherever a flagged write says that it goes.
        let flags = rustix::fs::fcntl_getfl(&self.descriptor)?;
        if !flags.intersects(unwanted) {
            return Ok(self.descriptor.as_fd());
        }
        if let Some(plain) = self.plain.get() {
            return Ok(plain.as_fd());
        }
        let keep = self.access() | (flags & (OFlags::SYNC | OFlags::DSYNC));
        let opened = reopen(self.descriptor.as_fd(), keep)?;
        // Two threads may both open; the second one's is closed at once.
        Ok(self.plain.get_or_init(|| opened).as_fd())
    }

    /// The descriptor for fills, if the caller may read and the file can be opened again.
    fn fill_descriptor(&self) -> Option<Arc<FillDescriptor>> {
        if !self.readable() || self.reopen_refused.load(Ordering::Relaxed) {
            return None;
        }
        let shared = &self.shared;
        let direct = shared.options.direct_io
            && shared.features.direct_io.is_some()
            && !self.direct_refused.load(Ordering::Relaxed);
        let open = || FillDescriptor::open(self.descriptor.as_fd(), direct);
        match shared.fills.get(self.number, open) {
            Ok(descriptor) => Some(descriptor),
            Err(error) => {
                self.reopen_refused.store(true, Ordering::Relaxed);
                tracing::debug!(%error, "a file cannot be opened again for fills");
                None
            }
        }
    }

    fn read_buffered(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let descriptor = self.plain(OFlags::DIRECT)?;
        read_full(offset, buffer, |at, part| rustix::io::pread(descriptor, part, at))
    }

    /// A buffered read that takes the pages out of the page cache again.
    fn read_and_drop(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        // As direct I/O does by itself. Somebody else's failing write-back does not concern us.
        let _hint = self.clean_pages(offset, buffer.len() as u64);
        self.drop_stale_pages(offset, buffer.len() as u64);
        let count = match self.fill_descriptor().filter(|fill| !fill.direct) {
            Some(fill) => {
                // All of the block is asked for at once, and no page beyond it.
                let length = std::num::NonZeroU64::new(buffer.len() as u64);
                let advice = Advice::WillNeed;
                let _hint = rustix::fs::fadvise(&fill.descriptor, offset, length, advice);
                read_full(offset, buffer, |at, part| rustix::io::pread(&fill.descriptor, part, at))?
            }
            None => self.read_buffered(offset, buffer)?,
        };
        if count > 0 {
            self.drop_cached(offset, count as u64);
        }
        Ok(count)
    }

    /// Has what is read next come from the file system where pages may be stale. Pages that a
    /// program has mapped stay.
    fn drop_stale_pages(&self, offset: u64, length: u64) {
        if self.shared.features.keeps_stale_pages {
            self.drop_cached(offset, length);
        }
    }

    fn sync_range(&self, offset: u64, length: u64, flags: libc::c_uint) -> io::Result<()> {
        let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let descriptor = self.descriptor.as_raw_fd();
        // SAFETY: takes numbers only; the descriptor is open while `self` lives.
        match unsafe { libc::sync_file_range(descriptor, offset, length, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn clean_pages(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        self.sync_range(offset, length, flags)
    }

    fn read_fill(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let fill = self.fill_descriptor().filter(|fill| fill.direct);
        let (Some(fill), Some(direct_io)) = (fill, self.shared.features.direct_io) else {
            return self.read_and_drop(offset, buffer);
        };
        let alignment = Alignment {
            offset: direct_io.offset_alignment_bytes as usize,
            memory: direct_io.memory_alignment_bytes as usize,
        };
        let pread = |at: u64, part: &mut [u8]| rustix::io::pread(&fill.descriptor, part, at);
        let size = || Ok(rustix::fs::fstat(&fill.descriptor)?.st_size as u64);
        match read_unbuffered(offset, buffer, alignment, pread, size) {
            Err(error) if is_direct_refusal(&error) => {
                if !self.direct_refused.swap(true, Ordering::Relaxed) {
                    tracing::debug!(%error, "direct I/O is refused; the file is read buffered");
                    self.shared.fills.remove(self.number);
                }
                self.read_and_drop(offset, buffer)
            }
            other => other,
        }
    }

    /// Appends by `write` on a descriptor whose position nobody else uses; returns the offset.
    fn append_to(
        &self,
        descriptor: BorrowedFd<'_>,
        data: &[u8],
        own: bool,
        part_is_enough: bool,
    ) -> AppendResult {
        let mut written = 0;
        let mut start = None;
        while written < data.len() {
            let part = &data[written..];
            let count = if own {
                rustix::io::write(descriptor, part)
            } else {
                // Offset -1: at the position, which RWF_APPEND moves to the end first.
                let flags = rustix::io::ReadWriteFlags::APPEND;
                rustix::io::pwritev2(descriptor, &[io::IoSlice::new(part)], u64::MAX, flags)
            };
            match count {
                Ok(0) => {
                    let error = io::Error::from_raw_os_error(libc::EIO);
                    return Err(PartialWrite { written, error });
                }
                Ok(count) => {
                    let end = rustix::fs::seek(descriptor, SeekFrom::Current(0))
                        .map_err(|error| PartialWrite { written, error: error.into() })?;
                    let landed = end - count as u64;
                    let first = *start.get_or_insert(landed);
                    if landed != first + written as u64 {
                        // Another writer came between two parts of one append.
                        let error = io::Error::from_raw_os_error(libc::EIO);
                        return Err(PartialWrite { written, error });
                    }
                    written += count;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) if part_is_enough && written > 0 => {
                    tracing::debug!(%error, "an append stopped after {written} bytes");
                    break;
                }
                Err(error) => return Err(PartialWrite { written, error: error.into() }),
            }
        }
        Ok((start.map_or_else(|| self.end_of_file(), Ok)?, written))
    }

    fn end_of_file(&self) -> std::result::Result<u64, PartialWrite> {
        match rustix::fs::fstat(&self.descriptor) {
            Ok(stat) => Ok(stat.st_size as u64),
            Err(error) => Err(PartialWrite { written: 0, error: error.into() }),
        }
    }

    /// Writes at an offset; a part of `data` alone only where that is enough.
    fn write_here(&self, offset: u64, data: &[u8], part_is_enough: bool) -> Result<usize> {
        let descriptor = self
            .plain(OFlags::APPEND | OFlags::DIRECT)
            .map_err(|error| self.fail("opening again without append", error))?;
        let acting = self.acting()?;
        asked::check_last()?;
        let result = write_full(offset, data, |at, part| pwrite_here(descriptor, part, at));
        drop(acting);
        match result {
            Ok(()) => Ok(data.len()),
            Err(partial) if part_is_enough && partial.written > 0 => Ok(partial.written),
            Err(partial) => {
                let detail = format!("{} of {} bytes were written", partial.written, data.len());
                Err(self.fail_with("writing", detail, partial.error))
            }
        }
    }

    fn append_here(&self, data: &[u8], part_is_enough: bool) -> Result<(u64, usize)> {
        if !self.writable() {
            return Err(self.fail("appending", io::Error::from_raw_os_error(libc::EBADF)));
        }
        let mut appender = self.appender.lock();
        let own = appender.get_or_insert_with(|| {
            reopen(self.descriptor.as_fd(), self.access() | OFlags::APPEND).ok()
        });
        let acting = self.acting()?;
        asked::check_last()?;
        let result = match own {
            Some(own) => self.append_to(own.as_fd(), data, true, part_is_enough),
            // The position of the caller's descriptor moves then; there is no other way to learn
            // where an append landed.
            None => self.append_to(self.descriptor.as_fd(), data, false, part_is_enough),
        };
        drop(acting);
        result.map_err(|partial| {
            let detail = format!("{} of {} bytes were written", partial.written, data.len());
            self.fail_with("appending", detail, partial.error)
        })
    }
}

/// Where an append landed, and how much of it.
type AppendResult = std::result::Result<(u64, usize), PartialWrite>;

/// Errors by which file systems say that they will not do direct I/O here.
fn is_direct_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP | libc::ENOSYS | libc::EBADF))
}

/// `pwrite`, at the offset even if somebody set `O_APPEND` on the shared description meanwhile.
fn pwrite_here(descriptor: BorrowedFd<'_>, data: &[u8], offset: u64) -> rustix::io::Result<usize> {
    static NO_APPEND_UNKNOWN: AtomicBool = AtomicBool::new(false);
    if NO_APPEND_UNKNOWN.load(Ordering::Relaxed) {
        return rustix::io::pwrite(descriptor, data, offset);
    }
    let flags = rustix::io::ReadWriteFlags::from_bits_retain(libc::RWF_NOAPPEND as u32);
    let result = rustix::io::pwritev2(descriptor, &[io::IoSlice::new(data)], offset, flags);
    match result {
        // Linux before 6.9.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            let plain = rustix::io::pwrite(descriptor, data, offset);
            if plain.is_ok() {
                NO_APPEND_UNKNOWN.store(true, Ordering::Relaxed);
            }
            plain
        }
        other => other,
    }
}

fn retry_interrupted<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

impl LowerFile for PosixFile {
    fn id(&self) -> FileId {
        self.id
    }

    fn version(&self) -> Result<Version> {
        let flags = StatxFlags::SIZE
            | StatxFlags::MTIME
            | StatxFlags::CTIME
            | StatxFlags::INO
            | StatxFlags::BTIME;
        let mut at = AtFlags::EMPTY_PATH;
        if self.shared.features.remote {
            at |= AtFlags::STATX_FORCE_SYNC;
        }
        let stat = rustix::fs::statx(&self.descriptor, "", at, flags)
            .map_err(|error| self.fail("asking for the version of a file", error.into()))?;
        Ok(Version::from(&stat))
    }

    fn change_as(&self, identity: Identity) {
        let _once = self.changes_as.set(identity);
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read_buffered(offset, buffer).map_err(|error| self.fail("reading", error))
    }

    fn read_current(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self.shared.features.keeps_stale_pages {
            true => self.read_block(offset, buffer),
            false => self.read_at(offset, buffer),
        }
    }

    fn look_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if self.readable() {
            return self.read_current(offset, buffer);
        }
        self.drop_stale_pages(offset, buffer.len() as u64);
        reopen(self.descriptor.as_fd(), OFlags::RDONLY)
            .and_then(|file| {
                read_full(offset, buffer, |at, part| rustix::io::pread(&file, part, at))
            })
            .map_err(|error| self.fail("looking at what is there", error))
    }

    fn read_block(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read_fill(offset, buffer).map_err(|error| self.fail("reading a block", error))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_here(offset, data, false).map(drop)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        self.append_here(data, false).map(|(at, _)| at)
    }

    fn write_part(&self, offset: Option<u64>, data: &[u8]) -> Result<(u64, usize)> {
        match offset {
            Some(offset) => Ok((offset, self.write_here(offset, data, true)?)),
            None => self.append_here(data, true),
        }
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let acting = self.acting()?;
        asked::check_last()?;
        let result = retry_interrupted(|| rustix::fs::ftruncate(&self.descriptor, size));
        drop(acting);
        result.map_err(|error| self.fail("setting the length", error))
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        let mode = FallocateFlags::from_bits_retain(mode_bits as u32);
        let acting = self.acting()?;
        asked::check_last()?;
        let result =
            retry_interrupted(|| rustix::fs::fallocate(&self.descriptor, mode, offset, length));
        drop(acting);
        result.map_err(|error| self.fail("allocating", error))
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        retry_interrupted(|| match data_only {
            true => rustix::fs::fdatasync(&self.descriptor),
            false => rustix::fs::fsync(&self.descriptor),
        })
        .map_err(|error| self.fail("syncing", error))
    }

    fn sync_directory_entry(&self) -> Result<()> {
        let shared = &self.shared;
        shared
            .names
            .sync_entry(
                Some(shared.root_descriptor.as_fd()),
                self.descriptor.as_fd(),
                shared.features.hard_links,
            )
            .map_err(|error| self.fail("syncing the directory of a file", error))
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        let _hint = self.sync_range(offset, length, libc::SYNC_FILE_RANGE_WRITE);
    }

    fn write_back(&self, offset: u64, length: u64) -> Result<()> {
        self.clean_pages(offset, length).map_err(|error| self.fail("writing pages back", error))
    }

    fn drop_cached(&self, offset: u64, length: u64) {
        // Pages that are covered in part would stay. Beyond what the kernel can name: to the end.
        let start = offset / PAGE_BYTES * PAGE_BYTES;
        let end = offset.saturating_add(length).checked_next_multiple_of(PAGE_BYTES);
        let end = end.filter(|end| *end <= i64::MAX as u64);
        let length = end.and_then(|end| std::num::NonZeroU64::new(end - start));
        let _hint = rustix::fs::fadvise(&self.descriptor, start, length, Advice::DontNeed);
    }

    fn get_xattr(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let asked = crate::layout::runner::get_xattr(self.descriptor.as_fd(), name);
        // What is mounted below the PFS directory may be of another kind, as may other attributes.
        let is_alike = self.id.device == self.shared.device && name.starts_with("user.");
        let judged = match is_alike {
            true => self.shared.attributes.judge(asked),
            false => asked,
        };
        judged.map_err(|error| self.fail("reading an extended attribute", error))
    }

    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        rustix::fs::fsetxattr(&self.descriptor, name, value, XattrFlags::empty())
            .map_err(|error| self.fail("setting an extended attribute", error.into()))
    }

    fn set_xattr_if(&self, name: &str, value: &[u8], exists: bool) -> Result<bool> {
        let flags = if exists { XattrFlags::REPLACE } else { XattrFlags::CREATE };
        match rustix::fs::fsetxattr(&self.descriptor, name, value, flags) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) if !exists => Ok(false),
            Err(rustix::io::Errno::NODATA) if exists => Ok(false),
            Err(errno) => Err(self.fail("setting an extended attribute", errno.into())),
        }
    }

    fn remove_xattr(&self, name: &str) -> Result<()> {
        match rustix::fs::fremovexattr(&self.descriptor, name) {
            Err(rustix::io::Errno::NODATA) => Ok(()),
            other => {
                other.map_err(|error| self.fail("removing an extended attribute", error.into()))
            }
        }
    }

    fn relative_path(&self) -> Option<PathBuf> {
        super::names::relative_path(self.shared.root_descriptor.as_fd(), self.descriptor.as_fd())
    }

    fn relative_path_known(&self) -> Option<PathBuf> {
        let root = self.shared.root_descriptor.as_fd();
        super::names::relative_path_known(root, self.descriptor.as_fd())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn direct_descriptor(&self) -> Option<BorrowedFd<'_>> {
        let flags = rustix::fs::fcntl_getfl(&self.descriptor).ok()?;
        let reads_and_writes = flags & OFlags::ACCMODE == OFlags::RDWR;
        let elsewhere = flags.intersects(OFlags::APPEND | OFlags::DIRECT);
        (reads_and_writes && !elsewhere).then(|| self.descriptor.as_fd())
    }
}

impl Drop for PosixFile {
    fn drop(&mut self) {
        self.shared.fills.remove(self.number);
    }
}
