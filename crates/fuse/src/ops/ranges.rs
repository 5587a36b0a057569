//! Operations on ranges of open files that move no bytes to or from programs: allocation, holes,
//! copies.

use crate::inode::file_handle::FileHandle;
use crate::inode::pages::Serving;
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{CopyIn, FallocateIn, InHeader, LseekIn, LseekOut, WriteOut};
use crate::protocol::request::{Answer, Errno};

/// Bytes that one request copies at most; the kernel asks again for the rest.
const COPY_BYTES_MAX: u64 = 16 << 20;
const COPY_STEP_BYTES: usize = 1 << 20;

impl Filesystem {
    /// `FALLOCATE`.
    pub(crate) fn allocate(&self, caller: &InHeader, arguments: FallocateIn) -> Answer {
        let handle = self.files.get(arguments.handle)?;
        if caller.uid != 0 {
            self.drop_privilege_bits(caller, &handle.file.lower())?;
        }
        self.credentials.become_daemon()?;
        let FallocateIn { mode, offset, length, .. } = arguments;
        let outcome = handle.file.allocate(mode as i32, offset, length);
        self.pages_changed(&handle.inode, &*handle.file);
        Ok(outcome?)
    }

    /// `LSEEK`, for holes and data only: the kernel handles the other kinds.
    pub(crate) fn seek(&self, arguments: LseekIn) -> Answer<LseekOut> {
        let handle = self.files.get(arguments.handle)?;
        let offset = arguments.offset;
        // What programs stored in pages is data, even if it was not written back yet.
        self.pages.write_back(handle.inode.id, offset);
        if let Some(size) = self.size_in_memory(&handle)? {
            // The PFS has a stub; in memory the file is all data.
            let found = match arguments.whence as i32 {
                _ if offset >= size => return Err(Errno(libc::ENXIO)),
                libc::SEEK_DATA => offset,
                _ => size,
            };
            return Ok(LseekOut { offset: found });
        }
        let seek = match arguments.whence as i32 {
            libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset),
            libc::SEEK_HOLE => rustix::fs::SeekFrom::Hole(offset),
            _ => return Err(Errno(libc::EINVAL)),
        };
        Ok(LseekOut { offset: rustix::fs::seek(handle.file.lower(), seek)? })
    }

    /// Length of a file whose bytes are in memory alone, here or on another node.
    fn size_in_memory(&self, handle: &FileHandle) -> Answer<Option<u64>> {
        if handle.file.is_owed() {
            return Ok(Some(handle.file.size()?));
        }
        if !self.service.has_memory_only() {
            return Ok(None);
        }
        let seen = rustix::fs::fstat(handle.file.lower())?.st_size.cast_unsigned();
        Ok(self.service.memory_only_size(handle.inode.id, seen))
    }

    /// `COPY_FILE_RANGE`: through the node on both sides, so that neither sees old bytes.
    pub(crate) fn copy(&self, caller: &InHeader, arguments: CopyIn) -> Answer<WriteOut> {
        let source = self.files.get(arguments.handle_in)?;
        let target = self.files.get(arguments.handle_out)?;
        if caller.uid != 0 {
            self.drop_privilege_bits(caller, &target.file.lower())?;
        }
        self.credentials.become_daemon()?;
        let _serving = Serving::inode(target.inode.nodeid);
        let mut length = arguments.length.min(COPY_BYTES_MAX);
        if source.inode.id == target.inode.id {
            // The kernel compares inodes, of which the file may have several, and cuts the range at
            // the length that it knows of each.
            let left = source.file.size()?.saturating_sub(arguments.offset_in);
            if arguments.offset_in.abs_diff(arguments.offset_out) < arguments.length.min(left) {
                return Err(Errno(libc::EINVAL));
            }
            length = length.min(left);
        }
        let mut buffer = vec![0; COPY_STEP_BYTES.min(length as usize)];
        let mut copied = 0;
        while copied < length {
            let step = buffer.len().min((length - copied) as usize);
            let piece = &mut buffer[..step];
            let read = match source.file.read_at(arguments.offset_in + copied, piece) {
                Ok(outcome) => outcome.bytes,
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error.into()),
            };
            if read == 0 {
                break;
            }
            match target.file.write_at(arguments.offset_out + copied, &buffer[..read]) {
                Ok(_) => copied += read as u64,
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(WriteOut { size: copied as u32, padding: 0 })
    }
}
