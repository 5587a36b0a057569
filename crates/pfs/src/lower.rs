//! The two traits between the node and a parallel file system. All positions and lengths are in
//! bytes. Implementations hold no content of files and give no access beyond a descriptor's own.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidepool_proto::{FileId, Identity, Result, Version};

use crate::features::Features;
use crate::layout::{Layout, LayoutHints, LayoutOutcome};

/// An open file of the PFS. All methods may be called from several threads at once.
pub trait LowerFile: Send + Sync {
    /// Which file it is. It never changes, so the PFS is not asked.
    fn id(&self) -> FileId;

    /// Identity, length and times as the PFS has them now: one system call on the descriptor.
    fn version(&self) -> Result<Version>;

    /// Has everything that changes content or length through this file be done as `identity`, from
    /// now on. Call it once, before the first change.
    fn change_as(&self, identity: Identity) {
        let _ = identity;
    }

    /// Reads into `buffer`; fewer bytes than asked for only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Like [`read_at`](Self::read_at), for bytes that are kept under the version that the file has
    /// now: past the page cache where that may hold older ones
    /// ([`keeps_stale_pages`](Features::keeps_stale_pages)).
    fn read_current(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buffer)
    }

    /// Like [`read_current`](Self::read_current), to look at what is there, also where the caller's
    /// descriptor is for writing alone. What is read is told to nobody.
    fn look_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read_current(offset, buffer)
    }

    /// Like [`read_at`](Self::read_at), for fills: leaves no second copy in the page cache where
    /// the mount allows it. Direct I/O needs `buffer` and `offset` page aligned; else buffered.
    fn read_block(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` at `offset`, also where the descriptor was opened with `O_APPEND`.
    /// After an error a leading part of `data` may be in the file; the message says how much.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Writes all of `data` to the end of the file as one append, wherever the end is; returns the
    /// offset at which the data landed.
    fn append(&self, data: &[u8]) -> Result<u64>;

    /// Writes `data` at `offset`, or as an append at the end; returns where it went and how much of
    /// it: less than all where an error came after that part, which the next write meets.
    fn write_part(&self, offset: Option<u64>, data: &[u8]) -> Result<(u64, usize)> {
        match offset {
            Some(offset) => self.write_at(offset, data).map(|()| (offset, data.len())),
            None => self.append(data).map(|at| (at, data.len())),
        }
    }

    /// Sets the length of the file.
    fn set_size(&self, size: u64) -> Result<()>;

    /// `fallocate(2)` with its mode bits.
    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()>;

    /// Returns when what was written through any descriptor is durable on the PFS; `data_only` is
    /// `fdatasync(2)`.
    fn sync(&self, data_only: bool) -> Result<()>;

    /// Makes the name durable: syncs the directory that holds it now, and directories above that
    /// were not seen before. `Ok` if the file has no name any more.
    fn sync_directory_entry(&self) -> Result<()>;

    /// Hint: begin writing dirty pages of the range, so that a later sync waits less.
    fn start_writeback(&self, offset: u64, length: u64);

    /// Writes dirty pages of the range back and waits for them. A program that changes the file by
    /// a mapping moves its time stamps with the first store to a page that is not dirty, no other:
    /// so bytes of the page cache are kept only after this.
    fn write_back(&self, offset: u64, length: u64) -> Result<()>;

    /// Hint: the page cache need not keep the range.
    fn drop_cached(&self, offset: u64, length: u64);

    /// Value of the extended attribute `name`; `None` if the file has none of that name. Fails with
    /// `EOPNOTSUPP` where there are no attributes.
    fn get_xattr(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Sets the extended attribute `name`.
    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()>;

    /// Sets the extended attribute `name` if the file has one of that name (`exists`), or none. The
    /// PFS judges that and sets it in one step, whichever nodes try it at once; false: it did not.
    fn set_xattr_if(&self, name: &str, value: &[u8], exists: bool) -> Result<bool>;

    /// Removes the extended attribute `name`; `Ok` if there was none.
    fn remove_xattr(&self, name: &str) -> Result<()>;

    /// Present path below the root, found through the descriptor; `None` if the file has no name
    /// any more or lies outside the root.
    fn relative_path(&self) -> Option<PathBuf>;

    /// The same as this machine knows it, without asking the PFS: a word for people, no proof.
    fn relative_path_known(&self) -> Option<PathBuf> {
        self.relative_path()
    }

    /// The descriptor that the caller brought.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// The same descriptor where the kernel may read and write the file by itself: it was opened
    /// for both, at given offsets, and nothing stands between this and the file system.
    fn direct_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A directory of a PFS that a node caches.
pub trait LowerStore: Send + Sync {
    /// Takes an open descriptor of a regular file of this file system. Refuses anything else:
    /// directories, devices, `O_PATH` descriptors, files of another mount.
    fn file(&self, descriptor: OwnedFd) -> Result<Arc<dyn LowerFile>>;

    /// Absolute path of the directory, without symbolic links.
    fn root(&self) -> &Path;

    /// Descriptor of the directory.
    fn root_descriptor(&self) -> BorrowedFd<'_>;

    /// Device number of the directory.
    fn device(&self) -> u64;

    /// What the mount offers, as found when it was opened.
    fn features(&self) -> &Features;

    /// Striping of an open file or directory.
    fn layout(&self, descriptor: BorrowedFd<'_>) -> Layout;

    /// Whether [`layout`](Self::layout) runs a program of the file system: reads do not wait
    /// for it.
    fn layout_runs_a_tool(&self) -> bool;

    /// Asks for striping: of a directory for files made in it later, or of a new, empty file.
    fn apply_layout(
        &self,
        directory_or_new_file: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome>;

    /// A time to compare time stamps of files with, in nanoseconds since the epoch: the clock of
    /// the file system as far as it is known, never ahead of it.
    fn now_ns(&self) -> i128;

    /// Closes descriptors of its own that are idle. Call it now and then.
    fn close_idle(&self) {}
}
