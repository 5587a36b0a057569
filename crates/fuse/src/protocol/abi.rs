//! The kernel's message layouts (`linux/fuse.h`, protocol 7.40) as far as this mount uses them.
//! Layouts and numbers only.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const PROTOCOL_MAJOR: u32 = 7;
pub const PROTOCOL_MINOR: u32 = 40;
/// The oldest kernel protocol that has everything this mount cannot do without (Linux 4.20).
pub const PROTOCOL_MINOR_MIN: u32 = 28;
pub const ROOT_NODEID: u64 = 1;

macro_rules! numbers {
    ($type:ty: $($name:ident = $value:expr),+ $(,)?) => { $(pub const $name: $type = $value;)+ };
}

/// Operation codes.
pub mod op {
    numbers!(u32: LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6,
        MKNOD = 8, MKDIR = 9, UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14,
        READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21,
        GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27,
        READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33,
        ACCESS = 34, CREATE = 35, INTERRUPT = 36, DESTROY = 38, BATCH_FORGET = 42,
        FALLOCATE = 43, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, TMPFILE = 51);
}

/// Capabilities exchanged at the start.
pub mod init {
    numbers!(u64: ASYNC_READ = 1 << 0, POSIX_LOCKS = 1 << 1, ATOMIC_O_TRUNC = 1 << 3,
        BIG_WRITES = 1 << 5, DONT_MASK = 1 << 6, FLOCK_LOCKS = 1 << 10, AUTO_INVAL_DATA = 1 << 12,
        ASYNC_DIO = 1 << 15, PARALLEL_DIROPS = 1 << 18, MAX_PAGES = 1 << 22,
        HANDLE_KILLPRIV_V2 = 1 << 28, INIT_EXT = 1 << 30, DIRECT_IO_ALLOW_MMAP = 1 << 36,
        PASSTHROUGH = 1 << 37);
}

numbers!(u32: OPEN_DIRECT_IO = 1 << 0, OPEN_NOFLUSH = 1 << 5, OPEN_PARALLEL_WRITES = 1 << 6,
    OPEN_PASSTHROUGH = 1 << 7);
numbers!(u32: SET_MODE = 1 << 0, SET_UID = 1 << 1, SET_GID = 1 << 2, SET_SIZE = 1 << 3,
    SET_ATIME = 1 << 4, SET_MTIME = 1 << 5, SET_FH = 1 << 6, SET_ATIME_NOW = 1 << 7,
    SET_MTIME_NOW = 1 << 8, SET_KILL_PRIVILEGES = 1 << 11);
numbers!(u32: GETATTR_HANDLE = 1 << 0, LOCK_FLOCK = 1 << 0, SYNC_DATA_ONLY = 1 << 0,
    READ_LOCK_OWNER = 1 << 1, WRITE_FROM_PAGE = 1 << 0, WRITE_KILL_PRIVILEGES = 1 << 2,
    OPEN_KILL_PRIVILEGES = 1 << 0, RELEASE_FLOCK_UNLOCK = 1 << 1);

/// Notification, not a reply: the kernel drops pages of an inode.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification of bytes of an inode, which grows if they lie behind its end.
pub const NOTIFY_STORE: i32 = 4;

macro_rules! incoming {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? })+) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
        pub struct $name { $(pub $field: $type),+ }
    )+ };
}

incoming! {
    /// Before every request.
    InHeader { length: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        extension_length: u16, padding: u16 }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags_high: u32,
        unused: [u32; 11] }
    ForgetIn { lookups: u64 }
    BatchForgetIn { count: u32, unused: u32 }
    ForgetOne { nodeid: u64, lookups: u64 }
    GetattrIn { flags: u32, unused: u32, handle: u64 }
    SetattrIn { valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, atime: i64,
        mtime: i64, ctime: i64, atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32,
        unused4: u32, uid: u32, gid: u32, unused5: u32 }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { new_parent: u64 }
    Rename2In { new_parent: u64, flags: u32, padding: u32 }
    LinkIn { old_nodeid: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn { handle: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// Of reads, directory reads and writes.
    TransferIn { handle: u64, offset: u64, size: u32, transfer_flags: u32, lock_owner: u64,
        flags: u32, padding: u32 }
    FsyncIn { handle: u64, flags: u32, padding: u32 }
    SetxattrIn { size: u32, flags: u32 }
    GetxattrIn { size: u32, padding: u32 }
    LockRange { start: u64, end: u64, kind: u32, pid: u32 }
    LockIn { handle: u64, owner: u64, range: LockRange, flags: u32, padding: u32 }
    AccessIn { mask: u32, padding: u32 }
    InterruptIn { unique: u64 }
    FallocateIn { handle: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn { handle: u64, offset: u64, whence: u32, padding: u32 }
    CopyIn { handle_in: u64, offset_in: u64, nodeid_out: u64, handle_out: u64, offset_out: u64,
        length: u64, flags: u64 }
}

incoming! {
    /// Before every reply.
    OutHeader { length: u32, error: i32, unique: u64 }
    InitOut { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_granularity_ns: u32, max_pages: u16,
        map_alignment: u16, flags_high: u32, max_stack_depth: u32, unused: [u32; 6] }
    Attributes { inode: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, block_size: u32, flags: u32 }
    EntryOut { nodeid: u64, generation: u64, entry_valid_s: u64, attr_valid_s: u64,
        entry_valid_ns: u32, attr_valid_ns: u32, attributes: Attributes }
    AttrOut { valid_s: u64, valid_ns: u32, unused: u32, attributes: Attributes }
    OpenOut { handle: u64, open_flags: u32, backing_id: i32 }
    CreateOut { entry: EntryOut, open: OpenOut }
    WriteOut { size: u32, padding: u32 }
    StatfsOut { blocks: u64, blocks_free: u64, blocks_available: u64, files: u64,
        files_free: u64, block_size: u32, name_length: u32, fragment_size: u32, padding: u32,
        spare: [u32; 6] }
    GetxattrOut { size: u32, padding: u32 }
    LockOut { range: LockRange }
    InvalInodeOut { nodeid: u64, offset: i64, length: i64 }
    StoreOut { nodeid: u64, offset: u64, size: u32, padding: u32 }
    LseekOut { offset: u64 }
    /// Before each name of a directory reply; names are padded to 8 bytes.
    DirectoryEntry { inode: u64, offset: u64, name_length: u32, kind: u32 }
    /// Argument of the ioctl that registers a file for passthrough.
    BackingMap { descriptor: i32, flags: u32, padding: u64 }
}

const _: () = assert!(size_of::<InHeader>() == 40, "as in linux/fuse.h");
const _: () = assert!(size_of::<InitOut>() == 64, "as in linux/fuse.h");
const _: () = assert!(size_of::<SetattrIn>() == 88, "as in linux/fuse.h");
const _: () = assert!(size_of::<EntryOut>() == 128, "as in linux/fuse.h");
const _: () = assert!(size_of::<CreateOut>() == 144, "as in linux/fuse.h");
const _: () = assert!(size_of::<StatfsOut>() == 80, "as in linux/fuse.h");
const _: () = assert!(size_of::<LockIn>() == 48, "as in linux/fuse.h");
const _: () = assert!(size_of::<CopyIn>() == 56, "as in linux/fuse.h");
