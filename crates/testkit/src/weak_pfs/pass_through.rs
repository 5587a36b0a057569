//! Passes the operations of a weak PFS on to the directory behind it: inodes, opens, attributes and
//! their changes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileHandle, FileType, INodeNo, Request, TimeOrNow};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};

use super::Shared;
use super::nodes::Nodes;

/// A result with the errno that answers.
pub type Answer<T> = rustix::io::Result<T>;

/// The entries of an open directory: inode, kind, name.
pub type Entries = Vec<(u64, FileType, Vec<u8>)>;

/// One open.
pub enum Open {
    /// A file.
    File(OwnedFd),
    /// A directory and what it was seen to hold.
    Directory(OwnedFd, Mutex<Option<Entries>>),
}

impl AsFd for Open {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        let (Open::File(descriptor) | Open::Directory(descriptor, _)) = self;
        descriptor.as_fd()
    }
}

/// The file system.
pub struct PassThrough {
    /// What the tests hold of it.
    pub shared: Arc<Shared>,
    /// The inodes that the kernel knows.
    pub nodes: Arc<Nodes>,
    /// What is open.
    pub opens: Mutex<HashMap<u64, Arc<Open>>>,
    last_open: AtomicU64,
    /// Times that files go on showing although they were written to: modified, changed.
    frozen: Mutex<HashMap<u64, (SystemTime, SystemTime)>>,
}

/// A path by which `descriptor` is reached.
pub fn reaching(descriptor: impl AsFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd())
}

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let part = Duration::from_nanos(nanoseconds as u64);
    match u64::try_from(seconds) {
        Ok(seconds) => SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + part,
        Err(_) => SystemTime::UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + part,
    }
}

fn timespec(time: SystemTime) -> Timespec {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => {
            Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() }
        }
        Err(before) => Timespec { tv_sec: -(before.duration().as_secs() as i64), tv_nsec: 0 },
    }
}

fn whole_second(time: SystemTime) -> SystemTime {
    let at = timespec(time);
    self::time(at.tv_sec, 0)
}

fn kind_of(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

impl PassThrough {
    /// Over `behind`.
    pub fn new(behind: &Path, shared: Arc<Shared>) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(behind, flags, Mode::empty())?;
        let inode = rustix::fs::statat(&root, c"", AtFlags::EMPTY_PATH)?.st_ino;
        Ok(PassThrough {
            shared,
            nodes: Arc::new(Nodes::new(root, inode)),
            opens: Mutex::default(),
            last_open: AtomicU64::new(0),
            frozen: Mutex::default(),
        })
    }

    /// Counts a question about inode `number`, and waits as long as it is to wait.
    pub fn ask(&self, kind: &'static str, number: INodeNo) {
        self.shared.ask(kind, || {
            let node = self.nodes.get(number.0).ok()?;
            std::fs::read_link(reaching(&node.descriptor)).ok()
        });
    }

    /// Asks for a record lock, which belongs to the open: the node has one for each owner.
    pub fn lock(&self, handle: FileHandle, command: i32, lock: &mut libc::flock) -> Answer<()> {
        let open = self.open_of(handle)?;
        // SAFETY: the commands used read and write one `flock`, which `lock` borrows for the call.
        let done = unsafe { libc::fcntl(open.as_fd().as_raw_fd(), command, &raw mut *lock) };
        match done {
            0 => Ok(()),
            _ => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
                .unwrap_or(rustix::io::Errno::IO)),
        }
    }

    fn attributes(&self, number: u64, stat: &Stat) -> FileAttr {
        let mut mtime = time(stat.st_mtime, stat.st_mtime_nsec as i64);
        let mut ctime = time(stat.st_ctime, stat.st_ctime_nsec as i64);
        if let Some(frozen) = self.frozen.lock().get(&stat.st_ino) {
            (mtime, ctime) = *frozen;
        }
        if self.shared.weakness.lock().whole_second_stamps {
            (mtime, ctime) = (whole_second(mtime), whole_second(ctime));
        }
        FileAttr {
            ino: INodeNo(number),
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            atime: time(stat.st_atime, stat.st_atime_nsec as i64),
            mtime,
            ctime,
            crtime: SystemTime::UNIX_EPOCH,
            kind: kind_of(stat.st_mode),
            perm: (stat.st_mode & 0o7777) as u16,
            nlink: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev as u32,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Counts a look-up of `name` and describes it.
    pub fn find(&self, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let parent = self.nodes.get(parent.0)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(&parent.descriptor, name, flags, Mode::empty())?;
        let stat = rustix::fs::statat(&found, c"", AtFlags::EMPTY_PATH)?;
        let unstable = self.shared.weakness.lock().unstable_inodes;
        let number = self.nodes.enter(found, &stat, unstable);
        Ok(self.attributes(number, &stat))
    }

    /// Attributes of inode `number`.
    pub fn attributes_of(&self, number: u64) -> Answer<FileAttr> {
        let node = self.nodes.get(number)?;
        let stat = rustix::fs::statat(&node.descriptor, c"", AtFlags::EMPTY_PATH)?;
        Ok(self.attributes(number, &stat))
    }

    /// What was made belongs to the user that asked for it.
    pub fn made(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let directory = self.nodes.get(parent.0)?;
        let (uid, gid) = (Uid::from_raw(request.uid()), Gid::from_raw(request.gid()));
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&directory.descriptor, name, Some(uid), Some(gid), no_follow)?;
        self.find(parent, name)
    }

    /// Files an open.
    pub fn add(&self, open: Open) -> FileHandle {
        let handle = self.last_open.fetch_add(1, Ordering::Relaxed) + 1;
        self.opens.lock().insert(handle, Arc::new(open));
        FileHandle(handle)
    }

    /// The open `handle`.
    pub fn open_of(&self, handle: FileHandle) -> Answer<Arc<Open>> {
        self.opens.lock().get(&handle.0).cloned().ok_or(rustix::io::Errno::BADF)
    }

    /// The name that a file takes instead of being removed.
    pub fn hidden_name(&self, directory: impl AsFd, name: &OsStr) -> Option<String> {
        if !self.shared.weakness.lock().hides_held {
            return None;
        }
        let inode = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_ino;
        let is_it = |open: &Arc<Open>| {
            rustix::fs::fstat(open.as_fd()).is_ok_and(|stat| stat.st_ino == inode)
        };
        let is_open = || self.opens.lock().values().any(is_it);
        if is_open() {
            // The kernel does not wait for its releases; one may be on its way.
            std::thread::sleep(Duration::from_millis(20));
        }
        is_open().then(|| format!(".hidden{inode}"))
    }

    /// Opens what is behind inode `number`.
    pub fn open_behind(&self, number: u64, flags: i32) -> Answer<OwnedFd> {
        let node = self.nodes.get(number)?;
        let unwanted = libc::O_NOFOLLOW | libc::O_CREAT | libc::O_EXCL | libc::O_APPEND;
        let flags = OFlags::from_bits_retain((flags & !unwanted) as u32) | OFlags::CLOEXEC;
        // Memory of the kernel that this process was given is not aligned for direct I/O.
        let flags = flags - OFlags::DIRECT;
        rustix::fs::open(reaching(&node.descriptor), flags, Mode::empty())
    }

    /// Runs a change of bytes; the file goes on showing its times if the file system is so.
    pub fn change_bytes<T>(
        &self,
        file: impl AsFd,
        change: impl FnOnce() -> Answer<T>,
    ) -> Answer<T> {
        if self.shared.weakness.lock().writes_move_no_stamps {
            let stat = rustix::fs::fstat(file)?;
            self.frozen.lock().entry(stat.st_ino).or_insert((
                time(stat.st_mtime, stat.st_mtime_nsec as i64),
                time(stat.st_ctime, stat.st_ctime_nsec as i64),
            ));
        }
        change()
    }

    /// Changes what is to be changed and describes the inode.
    pub fn change_attributes(&self, number: u64, change: &Change) -> Answer<FileAttr> {
        let node = self.nodes.get(number)?;
        let path = reaching(&node.descriptor);
        if let Some(size) = change.size {
            let file = self.open_behind(number, libc::O_WRONLY)?;
            self.change_bytes(&file, || rustix::fs::ftruncate(&file, size))?;
        }
        let stat = rustix::fs::statat(&node.descriptor, c"", AtFlags::EMPTY_PATH)?;
        if !change.is_of_size_alone()
            && let Some((modified, _)) = self.frozen.lock().remove(&stat.st_ino)
        {
            // From here on the times are those behind; the time of the last write is not.
            let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
            let times = Timestamps { last_access: omit, last_modification: timespec(modified) };
            rustix::fs::utimensat(CWD, path.as_str(), &times, AtFlags::empty())?;
        }
        if let Some(mode) = change.mode {
            rustix::fs::chmod(path.as_str(), Mode::from_raw_mode(mode & 0o7777))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            rustix::fs::chownat(&node.descriptor, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let at = |time: Option<TimeOrNow>| match time {
                None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
                Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                Some(TimeOrNow::SpecificTime(time)) => timespec(time),
            };
            let times =
                Timestamps { last_access: at(change.atime), last_modification: at(change.mtime) };
            rustix::fs::utimensat(CWD, path.as_str(), &times, AtFlags::empty())?;
        }
        self.attributes_of(number)
    }

    /// What a directory holds.
    pub fn entries_of(directory: &OwnedFd) -> Answer<Entries> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(directory)? {
            let entry = entry?;
            let kind = match entry.file_type() {
                rustix::fs::FileType::Directory => FileType::Directory,
                rustix::fs::FileType::Symlink => FileType::Symlink,
                rustix::fs::FileType::Fifo => FileType::NamedPipe,
                rustix::fs::FileType::Socket => FileType::Socket,
                _ => FileType::RegularFile,
            };
            entries.push((entry.ino(), kind, entry.file_name().to_bytes().to_vec()));
        }
        Ok(entries)
    }

    /// A path for calls on extended attributes.
    pub fn xattr_path(&self, number: u64) -> Answer<String> {
        if self.shared.weakness.lock().no_xattrs {
            return Err(rustix::io::Errno::NOTSUP);
        }
        Ok(reaching(&self.nodes.get(number)?.descriptor))
    }
}

/// A change of attributes; what is `None` stays.
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
}

impl Change {
    fn is_of_size_alone(&self) -> bool {
        let Change { mode, uid, gid, atime, mtime, .. } = self;
        mode.is_none() && uid.is_none() && gid.is_none() && atime.is_none() && mtime.is_none()
    }
}
