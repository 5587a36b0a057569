//! Reads and writes open files, and ends opens.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::OFlags;
use tidepool_proto::{Access, OpenFile};

use crate::inode::file_handle::FileHandle;
use crate::inode::pages::Serving;
use crate::inode::state::Inode;
use crate::ops::filesystem::Filesystem;
use crate::ops::open::has_flag;
use crate::protocol::abi::{self, FlushIn, FsyncIn, InHeader, ReleaseIn, TransferIn, WriteOut};
use crate::protocol::reply::{Reply, Response};
use crate::protocol::request::{Answer, Errno};

impl Filesystem {
    /// `READ`, once its bytes are resident or the thread may wait. Answers without a copy.
    pub(crate) fn read(&self, handle: &FileHandle, range: (u64, usize), mut reply: Reply) {
        let (offset, size) = range;
        match handle.file.read_with(offset, size, &mut |slices| reply.data(slices)) {
            Ok(_) if reply.is_answered() => {}
            Ok(_) => drop(reply.answer(&Ok(Response::Empty))),
            Err(error) if reply.is_answered() => {
                tracing::error!(%error, "a read failed after it was answered");
            }
            Err(error) => reply.error(error.into()),
        }
    }

    /// Prepares for a read of a page through `handle`; reads by programs name an owner of locks,
    /// reads of pages do not. Refused if other opens see the file before a change by another
    /// program: they would see the page as well.
    pub(crate) fn begin_page(&self, handle: &FileHandle) -> Answer {
        self.pages.filled(&handle.inode);
        let opens = handle.inode.opens.lock();
        if opens.is_excluded(&*handle.file) || !opens.readers_see_same(&*handle.file) {
            return Err(Errno::STALE);
        }
        Ok(())
    }

    /// The kernel has put a change made by `file` into its pages of the inode. If another program
    /// changed the file before, readers of the version before that would see both versions.
    pub(crate) fn pages_changed(&self, inode: &Inode, file: &dyn OpenFile) {
        let by_pages = !self.direct_io.load(Ordering::Relaxed);
        if by_pages && inode.opens.lock().exclude_other_readers(file) {
            // Not now: the kernel keeps the pages locked until the request is answered.
            self.pages.invalidate_later(inode);
        }
    }

    /// `WRITE`.
    pub(crate) fn write(
        &self,
        caller: &InHeader,
        arguments: TransferIn,
        data: &[u8],
    ) -> Answer<WriteOut> {
        let handle = self.files.get(arguments.handle)?;
        // A write to the PFS as the user clears the bits there.
        let by_pfs =
            || self.credentials.acts_for(handle.share.user()) && !handle.file.may_be_lost();
        if arguments.transfer_flags & abi::WRITE_KILL_PRIVILEGES != 0 && !by_pfs() {
            self.drop_privilege_bits(caller, &handle.file.lower())?;
        }
        self.credentials.become_daemon()?;
        let from_page = arguments.transfer_flags & abi::WRITE_FROM_PAGE != 0;
        let nodeid = handle.inode.nodeid;
        let _serving = match from_page {
            true => Some(Serving::page_of(nodeid)),
            // Kernels before 6.6 do not update pages at such writes.
            false => handle.is_past_cache.then(Serving::nobody),
        };
        let appends = has_flag(arguments.flags, libc::O_APPEND) && !from_page;
        let file = match appends == handle.append {
            true => handle.file.clone(),
            false => self.other_append_mode(&handle)?,
        };
        let written = if from_page {
            // Writes of pages ignore a short count.
            file.write_at(arguments.offset, data).map(|_| data.len())
        } else {
            file.write_part(arguments.offset, data).map(|(at, bytes)| {
                // The kernel has put them into its pages at the end that it knew.
                if at != arguments.offset && !handle.is_past_cache {
                    self.pages.invalidate_later(&handle.inode);
                }
                bytes
            })
        };
        if !handle.is_past_cache {
            self.pages_changed(&handle.inode, &*file);
        }
        let bytes = written?;
        if has_flag(arguments.flags, libc::O_DSYNC) {
            file.sync(!has_flag(arguments.flags, libc::O_SYNC))?;
        }
        Ok(WriteOut { size: bytes as u32, padding: 0 })
    }

    fn other_append_mode(&self, handle: &FileHandle) -> Answer<Arc<dyn OpenFile>> {
        if let Some((file, _)) = handle.other_append_mode.get() {
            return Ok(file.clone());
        }
        let share = self.shares.take(handle.share.user())?;
        let lower = self.reopen(&handle.file.lower(), OFlags::RDWR)?;
        let request = tidepool_proto::OpenRequest {
            lower,
            access: Access::ReadWrite,
            read_mode: None,
            write_mode: None,
            created: false,
            append: !handle.append,
            truncate: false,
            user_id: handle.share.user(),
            changes_as: handle.changes_as.clone(),
        };
        let file = self.service.open(request)?;
        Ok(handle.other_append_mode.get_or_init(|| (file, share)).0.clone())
    }

    /// `FLUSH`, once for every `close` of a descriptor.
    pub(crate) fn flush(&self, arguments: FlushIn) -> Answer {
        let handle = self.files.get(arguments.handle)?;
        self.locks.release_owner(handle.inode.id, arguments.lock_owner);
        handle.lock_owners.lock().retain(|owner| *owner != arguments.lock_owner);
        self.credentials.become_daemon()?;
        if let Some((file, _)) = handle.other_append_mode.get() {
            file.flush()?;
        }
        Ok(handle.file.flush()?)
    }

    /// `RELEASE`, once at the end of an open.
    pub(crate) fn release(&self, arguments: ReleaseIn) -> Answer {
        self.credentials.become_daemon()?;
        let Some(handle) = self.forget_handle(arguments.handle) else { return Ok(()) };
        if arguments.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0 {
            self.locks.release_flock(&handle);
        }
        for owner in handle.lock_owners.lock().drain(..) {
            self.locks.release_owner(handle.inode.id, owner);
        }
        Ok(())
    }

    /// `FSYNC`.
    pub(crate) fn sync(&self, arguments: FsyncIn) -> Answer {
        let handle = self.files.get(arguments.handle)?;
        self.credentials.become_daemon()?;
        Ok(handle.file.sync(arguments.flags & abi::SYNC_DATA_ONLY != 0)?)
    }
}
