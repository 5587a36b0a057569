//! [`FileService`] and [`OpenFile`]: the interface of a node to its front ends: opens of files,
//! reads, writes, pins.
//!
//! `node` implements these traits, the FUSE mount and the socket server call them. A front end
//! brings an open descriptor of the PFS file (*authority is the descriptor*): it opened the file
//! with the credentials of the user it works for, so the node never opens a name for anybody.

use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::level::BytesByLevel;
use crate::mode::{Access, Advice, ReadMode, WriteMode};
use crate::trace::Tracer;
use crate::version::{ChangeTimes, FileId, Version};

/// A user with what the kernel weighs for its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub user_id: u32,
    /// Primary group.
    pub group_id: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

/// One open of a file, as a front end asks for it.
#[derive(Debug)]
pub struct OpenRequest {
    /// The PFS file, opened by the caller with at least the access asked for. Writers of mode
    /// `through` bring a descriptor that can be read as well if their access includes reads.
    pub lower: OwnedFd,
    /// What this open may do.
    pub access: Access,
    /// Read mode of this open; `None` takes the mode of the directory rule or mount.
    pub read_mode: Option<ReadMode>,
    /// Write mode of this open; `None` takes the mode of the directory rule or mount.
    pub write_mode: Option<WriteMode>,
    /// This open cuts the file to nothing, so it need not care for what was in it. The caller then
    /// sets the length by itself.
    pub truncate: bool,
    /// This open created the file, so its directory entry is not durable yet. The caller asked
    /// [`FileService::check_open`] before: the file is there now, so it is not refused.
    pub created: bool,
    /// Writes go to the end of the file, wherever that is (`O_APPEND`).
    pub append: bool,
    /// The user that quotas and limits are charged to.
    pub user_id: u32,
    /// The user that this open changes the PFS file as, so that set-id bits, reserved space and
    /// quotas are those of a write by that user; `None`: as the node.
    pub changes_as: Option<Identity>,
}

impl OpenRequest {
    /// An open for reading alone, by a user, in the mode of the rule or mount.
    pub fn to_read(lower: OwnedFd, user_id: u32) -> OpenRequest {
        OpenRequest {
            lower,
            access: Access::Read,
            read_mode: None,
            write_mode: None,
            truncate: false,
            created: false,
            append: false,
            user_id,
            changes_as: None,
        }
    }
}

/// A change of a file's bytes or of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRange {
    /// Which file.
    pub id: FileId,
    /// Where it begins.
    pub offset: u64,
    /// Bytes; `u64::MAX`: to the end, wherever that is.
    pub length: u64,
    /// Whether it is over; told once before and once after.
    pub done: bool,
}

/// Told of changes, on the thread that makes them.
pub type ChangeHook = Arc<dyn Fn(&ChangedRange) + Send + Sync>;

/// Called when the node is about to write back all dirty bytes; returns when the node has the bytes
/// that programs gave the front end, such as stores to mappings, or gives up in the end.
pub type DrainHook = Arc<dyn Fn() + Send + Sync>;

/// What a read returned and which levels it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOutcome {
    /// Bytes read; fewer than asked for only at the end of the file.
    pub bytes: usize,
    /// The same bytes by level.
    pub levels: BytesByLevel,
}

/// What the kernel reads or writes by itself for FUSE passthrough opens: a wholly resident file,
/// whose blocks stay until this drops, or the PFS file.
pub trait PassthroughPin: Send + Sync {
    /// What the kernel reads: the segment, opened read-only, whose length and offsets are those of
    /// the file, or the PFS file.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Identity of the segment: two pins with the same number share one segment. 0: no segment.
    fn segment_id(&self) -> u64;
    /// Whether the segment still is the content of the file at `version`. Writes through this node
    /// carry the segment along; changes behind its back do not.
    fn serves(&self, version: &Version) -> bool;
    /// Bytes that stay in memory as long as this lives, where they are more than the range that
    /// was asked for. Pins of one segment keep the same bytes.
    fn held_bytes(&self) -> Option<u64> {
        None
    }
    /// Whether this is the PFS file itself, opened for reading and writing, which the kernel
    /// writes by itself. Every open of the file may then share it, whatever its version.
    fn is_lower(&self) -> bool {
        false
    }
}

/// Descriptors that let another process read resident bytes without a message.
#[derive(Debug)]
pub struct SegmentExport {
    /// The segment, read-only.
    pub segment: OwnedFd,
    /// The residency table ([`crate::table`]), read-only.
    pub table: OwnedFd,
    /// The reference bits, writable and untrusted: one byte a block.
    pub touches: OwnedFd,
    /// Block size of this segment in bytes.
    pub block_bytes: u64,
    /// Length of the table and the reference bits in blocks.
    pub blocks: u64,
}

/// One open file. All methods may be called from several threads at once.
pub trait OpenFile: Send + Sync {
    /// The version this open reads, or the latest one that writes through this node made.
    fn version(&self) -> Version;

    /// The same as the PFS tells it: the stub's, where the bytes are in memory alone.
    fn version_on_pfs(&self) -> Version {
        self.version()
    }

    /// The file was seen at another version than this open's, which writes. If another program made
    /// it, the open goes on with that, as it does where somebody opens the file. Does not wait for
    /// writes that are under way.
    fn follow(&self) {}

    /// Two opens with the same number read the same bytes, whatever is written meanwhile. 0 for an
    /// open that reads the file as the PFS has it at the moment.
    fn cached_version_number(&self) -> u64 {
        0
    }

    /// Whether what is written may live in the memory of the node alone, and so end with it.
    fn may_be_lost(&self) -> bool {
        false
    }

    /// Whether what this open sees is nowhere but in the memory of the node now.
    fn is_memory_only(&self) -> bool {
        false
    }

    /// Whether it is read from another node, as the PFS has not got its bytes yet: the file there
    /// does not tell where there are any.
    fn is_owed(&self) -> bool {
        false
    }

    /// Length of the file as this open sees it, in bytes.
    fn size(&self) -> Result<u64>;

    /// The write mode in force.
    fn write_mode(&self) -> WriteMode;

    /// Whether `[offset, offset + length)` can be read without waiting for another machine.
    fn is_resident(&self, offset: u64, length: usize) -> bool;

    /// Reads into `buffer`, short only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let mut filled = 0;
        self.read_with(offset, buffer.len(), &mut |slices| {
            for slice in slices {
                buffer[filled..filled + slice.len()].copy_from_slice(slice);
                filled += slice.len();
            }
        })
    }

    /// Reads up to `length` bytes and passes them to `sink` exactly once, without copying where
    /// they are resident. The slices are valid only during the call of `sink`.
    fn read_with(
        &self,
        offset: u64,
        length: usize,
        sink: &mut dyn FnMut(&[IoSlice<'_>]),
    ) -> Result<ReadOutcome>;

    /// Writes all of `data` at `offset` (at the end for append opens); returns the offset used.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<u64>;

    /// As [`write_at`](Self::write_at), but where an error comes after a part of `data` was taken,
    /// that part is the answer: the offset used and the number of bytes. The next write meets the
    /// error.
    fn write_part(&self, offset: u64, data: &[u8]) -> Result<(u64, usize)> {
        Ok((self.write_at(offset, data)?, data.len()))
    }

    /// Sets the length of the file.
    fn set_size(&self, size: u64) -> Result<()>;

    /// `fallocate(2)` with its mode bits, on the PFS file.
    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()>;

    /// Makes everything written so far through any open of this file durable as its write mode
    /// promises. `data_only` is `fdatasync`.
    fn sync(&self, data_only: bool) -> Result<()>;

    /// Called at each `close(2)` of a descriptor. Returns when the promise of the write mode holds,
    /// with the error of any write that was not reported yet. May be called several times.
    fn flush(&self) -> Result<()>;

    /// Pins a wholly resident file for a passthrough open; `None` where it is not resident, packed,
    /// being written, or the cap on pinned bytes is reached.
    fn passthrough(&self) -> Option<Arc<dyn PassthroughPin>>;

    /// Counts an open that the kernel reads by itself: the one that was pinned for it, and those
    /// that share its pin.
    fn count_passthrough(&self) {}

    /// Lets the kernel or the client write the PFS file by itself until the pin drops; `None` where
    /// somebody else has the file open, something of it is cached, or it must not be written so.
    fn write_directly(&self) -> Option<Arc<dyn PassthroughPin>> {
        None
    }

    /// Pins `[offset, offset + length)`, which was just read, for a reader without copies; `None`
    /// where it cannot be pinned. A node that pins whole files only may leave this as it is.
    fn pin_range(&self, offset: u64, length: u64) -> Result<Option<Arc<dyn PassthroughPin>>> {
        let _ = (offset, length);
        Ok(self.passthrough())
    }

    /// Counts bytes that a client says it read from the segment without a message.
    fn count_mapped(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Descriptors for reading without messages; `None` for packed or memory-mapped-free files.
    fn export(&self) -> Result<Option<SegmentExport>>;

    /// The PFS descriptor that this open brought.
    fn lower(&self) -> BorrowedFd<'_>;

    /// Starts to bring `[offset, offset + length)` in, without waiting.
    fn prefetch(&self, offset: u64, length: u64);

    /// Takes advice, in place of any given before; a node may leave it.
    fn advise(&self, advice: Advice) {
        let _ = advice;
    }
}

/// Longest time between two looks at a file, just before and just after a change of its metadata,
/// for which it is believed that nothing else changed: a program that writes the file in between
/// and sets its modification time back leaves no trace.
const METADATA_CHANGE_TIME_MAX: Duration = Duration::from_millis(100);

/// The time of a look at a file whose metadata the caller is about to change.
#[derive(Clone, Copy, Debug)]
pub struct ChangeBegin(Instant);

impl ChangeBegin {
    /// Now, which is before the look.
    pub fn now() -> Self {
        ChangeBegin(Instant::now())
    }

    /// Whether a look that is over by now still tells what the change alone did.
    pub fn is_recent(&self) -> bool {
        self.0.elapsed() <= METADATA_CHANGE_TIME_MAX
    }
}

/// A file whose metadata somebody is about to change, with the version that the node saw itself.
pub trait MetadataWatch: Send + Sync {
    /// Tells that the change was made. What is cached of the noted version serves on if nothing but
    /// that change came between it and the file as it is, which `alone` and its lease have to bear
    /// out. Without the lease it is read again, and open files go on with that. Without the
    /// notification it is not served any more. It is let go where the last name of the file is
    /// gone.
    fn carry(self: Box<Self>, alone: Option<ChangeTimes>) -> Result<()>;
}

/// A node as its front ends see it.
pub trait FileService: Send + Sync + 'static {
    /// Whether files may be opened at all, to be asked before one is made for an open.
    ///
    /// # Errors
    /// `NodeUnavailable` while the node stops.
    fn check_open(&self) -> Result<()> {
        Ok(())
    }

    /// Opens the file behind the descriptor in `request`.
    fn open(&self, request: OpenRequest) -> Result<Arc<dyn OpenFile>>;

    /// Tells that an operation of this node that changes metadata only (rename, link, chmod, ...)
    /// took the file from `before` to `after`. If length and content time are equal, what is
    /// cached of `before` now serves `after`, provided that nothing else came in between: `alone`
    /// is what [`ChangeBegin::is_recent`] says of the looks.
    fn rebase_version(&self, before: &Version, after: &Version, alone: bool);

    /// Notes the version that a file has before its metadata change, for front ends whose word for
    /// it the node cannot take. The descriptor stays open until the note is used or dropped.
    fn watch_metadata(&self, lower: OwnedFd) -> Result<Box<dyn MetadataWatch>> {
        drop(lower);
        Err(Error::new(ErrorKind::Unsupported, "noting a version", "it is not kept here"))
    }

    /// Length of a file whose bytes live in memory only, by its length on the PFS as it was just
    /// seen; `None` for every other file, also for a stub that another program wrote over.
    fn memory_only_size(&self, id: FileId, pfs_size: u64) -> Option<u64>;

    /// Whether any memory-only file exists, so that attributes can skip the question above.
    fn has_memory_only(&self) -> bool;

    /// Whether the bytes of an empty file may be in the memory of another node, which its mark then
    /// tells ([`crate::stub`]).
    fn has_other_nodes(&self) -> bool {
        false
    }

    /// From now on tells `hook` of every change that comes through the node, for front ends that
    /// keep bytes of their own. A node without writers of its own may leave this as it is.
    fn on_change(&self, hook: ChangeHook) {
        let _ = hook;
    }

    /// From now on calls `hook` before the node writes back its dirty bytes because it stops. A
    /// node that has none may leave this as it is.
    fn on_drain(&self, hook: DrainHook) {
        let _ = hook;
    }

    /// Has the bytes of a file, which is open to be read, on the PFS, where they are owed by this
    /// node or another one and somebody else may put a copy in its place.
    ///
    /// # Errors
    ///
    /// As an open of the file, and where they cannot be written.
    fn bring_to_pfs(&self, file: OwnedFd, user_id: u32) -> Result<()> {
        self.open(OpenRequest::to_read(file, user_id)).map(drop)
    }

    /// Tells that the last name of the file is gone; memory-only bytes need not be kept for it.
    fn removed(&self, id: FileId);

    /// Ends transfers of a file that nobody has open, so that the PFS sees no open of it. What is
    /// kept of it stays. For a name that is about to go. Nothing to do where there are none.
    fn end_transfers(&self, id: FileId) {
        let _ = id;
    }

    /// Discards everything that is kept of the file, unless somebody has it open or pinned it, or
    /// its bytes live in memory only; whether it did. For a name that is gone and was the only one
    /// when it was last looked at. A node that cannot tell may leave this as it is.
    fn discard_unused(&self, id: FileId) -> bool {
        let _ = id;
        false
    }

    /// What takes requests while somebody watches; `None` where nobody can.
    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        None
    }

    /// Whether a later change of the file may leave its version as it is.
    fn is_racy(&self, version: &Version) -> bool {
        let _ = version;
        true
    }
}
