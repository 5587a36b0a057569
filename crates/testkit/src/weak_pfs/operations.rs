//! The FUSE operations of a weak PFS: each is carried out on the directory behind it.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags};

use super::nodes::ROOT;
use super::pass_through::{Answer, Change, Open, PassThrough, reaching};

/// Nothing that is answered may be kept.
const AT_ONCE: Duration = Duration::ZERO;
const NO_GENERATION: Generation = Generation(0);
const XATTR_BYTES_MAX: usize = 64 << 10;

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

fn entry(reply: ReplyEntry, entry: Answer<FileAttr>) {
    match entry {
        Ok(attributes) => reply.entry(&AT_ONCE, &attributes, NO_GENERATION),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_xattr(reply: ReplyXattr, size: u32, value: Answer<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::from_i32(libc::ERANGE)),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer(reply: ReplyEmpty, outcome: Answer<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for PassThrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_LOCKS,
        ] {
            // A kernel that lacks it asks more often, no more.
            let _ = config.add_capabilities(wanted);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.ask("lookup", parent);
        entry(reply, self.find(parent, name));
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.nodes.forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.ask("getattr", number);
        let kept = self.shared.weakness.lock().attributes_last;
        match self.attributes_of(number.0) {
            Ok(attributes) => reply.attr(&kept, &attributes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.ask("setattr", number);
        let change = Change { mode, uid, gid, size, atime, mtime };
        match self.change_attributes(number.0, &change) {
            Ok(attributes) => reply.attr(&AT_ONCE, &attributes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        self.ask("readlink", number);
        let target = self
            .nodes
            .get(number.0)
            .and_then(|node| rustix::fs::readlinkat(&node.descriptor, c"", Vec::new()));
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        self.ask("mknod", parent);
        let made = self.nodes.get(parent.0).and_then(|directory| {
            let kind = rustix::fs::FileType::from_raw_mode(mode);
            let mode = Mode::from_raw_mode(mode & 0o7777 & !umask);
            rustix::fs::mknodat(&directory.descriptor, name, kind, mode, device.into())?;
            self.made(request, parent, name)
        });
        entry(reply, made);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.ask("mkdir", parent);
        let made = self.nodes.get(parent.0).and_then(|directory| {
            let mode = Mode::from_raw_mode(mode & 0o7777 & !umask);
            rustix::fs::mkdirat(&directory.descriptor, name, mode)?;
            self.made(request, parent, name)
        });
        entry(reply, made);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ask("unlink", parent);
        let gone = self.nodes.get(parent.0).and_then(|directory| {
            let directory = &directory.descriptor;
            match self.hidden_name(directory, name) {
                Some(hidden) => rustix::fs::renameat(directory, name, directory, hidden),
                None => rustix::fs::unlinkat(directory, name, AtFlags::empty()),
            }
        });
        answer(reply, gone);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ask("rmdir", parent);
        let gone = self.nodes.get(parent.0).and_then(|directory| {
            rustix::fs::unlinkat(&directory.descriptor, name, AtFlags::REMOVEDIR)
        });
        answer(reply, gone);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.ask("symlink", parent);
        let made = self.nodes.get(parent.0).and_then(|directory| {
            rustix::fs::symlinkat(target, &directory.descriptor, name)?;
            self.made(request, parent, name)
        });
        entry(reply, made);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.ask("rename", parent);
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let renamed = self.nodes.get(parent.0).and_then(|old| {
            let new = self.nodes.get(new_parent.0)?;
            let (old, new) = (&old.descriptor, &new.descriptor);
            let is_exchange = flags.contains(rustix::fs::RenameFlags::EXCHANGE);
            if let Some(hidden) = self.hidden_name(new, new_name).filter(|_| !is_exchange) {
                rustix::fs::renameat(new, new_name, new, hidden)?;
            }
            rustix::fs::renameat_with(old, name, new, new_name, flags)
        });
        answer(reply, renamed);
    }

    fn link(
        &self,
        _: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.ask("link", number);
        let linked = self.nodes.get(number.0).and_then(|node| {
            let parent = self.nodes.get(new_parent.0)?;
            let path = reaching(&node.descriptor);
            let follow = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, path.as_str(), &parent.descriptor, new_name, follow)?;
            self.find(new_parent, new_name)
        });
        entry(reply, linked);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.ask("open", number);
        match self.open_behind(number.0, flags.0) {
            Ok(descriptor) => reply.opened(self.add(Open::File(descriptor)), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.ask("create", parent);
        let created = self.nodes.get(parent.0).and_then(|directory| {
            let wanted = OFlags::from_bits_retain((flags & !libc::O_APPEND) as u32);
            let wanted = (wanted | OFlags::CREATE | OFlags::CLOEXEC) - OFlags::DIRECT;
            let mode = Mode::from_raw_mode(mode & 0o7777 & !umask);
            let file = rustix::fs::openat(&directory.descriptor, name, wanted, mode)?;
            Ok((file, self.made(request, parent, name)?))
        });
        match created {
            Ok((file, attributes)) => {
                let handle = self.add(Open::File(file));
                reply.created(&AT_ONCE, &attributes, NO_GENERATION, handle, FopenFlags::empty());
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.ask("read", number);
        let end = self.shared.weakness.lock().reads_end_at.unwrap_or(u64::MAX);
        let mut bytes = vec![0; u64::from(size).min(end.saturating_sub(offset)) as usize];
        let read = self
            .open_of(handle)
            .and_then(|open| rustix::io::pread(open.as_fd(), &mut bytes[..], offset));
        match read {
            Ok(length) => reply.data(&bytes[..length]),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.ask("write", number);
        let written = self.open_of(handle).and_then(|open| {
            self.change_bytes(open.as_fd(), || rustix::io::pwrite(open.as_fd(), data, offset))
        });
        match written {
            Ok(length) => reply.written(length as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, _: &Request, number: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.ask("flush", number);
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.opens.lock().remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, number: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.ask("fsync", number);
        if self.shared.weakness.lock().syncs_fail {
            return reply.error(Errno::EIO);
        }
        answer(reply, self.open_of(handle).and_then(|open| rustix::fs::fsync(open.as_fd())));
    }

    fn opendir(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.ask("opendir", number);
        match self.open_behind(number.0, flags.0) {
            Ok(descriptor) => {
                let handle = self.add(Open::Directory(descriptor, Mutex::default()));
                reply.opened(handle, FopenFlags::empty());
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.ask("readdir", number);
        let open = self.open_of(handle);
        let Ok(Open::Directory(descriptor, entries)) = open.as_deref() else {
            return reply.error(Errno::from_i32(libc::EBADF));
        };
        let mut entries = entries.lock();
        if offset == 0 || entries.is_none() {
            match Self::entries_of(descriptor) {
                Ok(present) => *entries = Some(present),
                Err(error) => return reply.error(errno(error)),
            }
        }
        let from = entries.iter().flatten().enumerate().skip(offset as usize);
        for (index, (inode, kind, name)) in from {
            if reply.add(INodeNo(*inode), index as u64 + 1, *kind, OsStr::from_bytes(name)) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.opens.lock().remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.ask("fsyncdir", number);
        answer(reply, self.open_of(handle).and_then(|open| rustix::fs::fsync(open.as_fd())));
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        self.ask("statfs", number);
        let totals = self.nodes.get(ROOT).and_then(|root| rustix::fs::fstatfs(&root.descriptor));
        match totals {
            Ok(totals) => reply.statfs(
                totals.f_blocks,
                totals.f_bfree,
                totals.f_bavail,
                totals.f_files,
                totals.f_ffree,
                totals.f_bsize as u32,
                totals.f_namelen as u32,
                totals.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        self.ask("setxattr", number);
        let flags = XattrFlags::from_bits_retain(flags as u32);
        let path = self.xattr_path(number.0);
        answer(reply, path.and_then(|path| rustix::fs::setxattr(path, name, value, flags)));
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.ask("getxattr", number);
        let mut value = vec![0; XATTR_BYTES_MAX];
        let length = self
            .xattr_path(number.0)
            .and_then(|path| rustix::fs::getxattr(path, name, &mut value[..]));
        let value = length.map(|length| value[..length].to_vec());
        answer_xattr(reply, size, value);
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.ask("listxattr", number);
        let mut list = vec![0; XATTR_BYTES_MAX];
        let length =
            self.xattr_path(number.0).and_then(|path| rustix::fs::listxattr(path, &mut list[..]));
        answer_xattr(reply, size, length.map(|length| list[..length].to_vec()));
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ask("removexattr", number);
        let path = self.xattr_path(number.0);
        answer(reply, path.and_then(|path| rustix::fs::removexattr(path, name)));
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.ask("fallocate", number);
        let mode = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
        let done = self.open_of(handle).and_then(|open| {
            self.change_bytes(open.as_fd(), || {
                rustix::fs::fallocate(open.as_fd(), mode, offset, length)
            })
        });
        answer(reply, done);
    }

    fn getlk(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        self.ask("getlk", number);
        let mut lock = record_lock(start, end, kind);
        match self.lock(handle, libc::F_OFD_GETLK, &mut lock) {
            Ok(()) => {
                let start = lock.l_start as u64;
                let end = if lock.l_len == 0 { LAST } else { start + lock.l_len as u64 - 1 };
                reply.locked(start, end, lock.l_type.into(), 0);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setlk(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.ask("setlk", number);
        // A caller that would wait is refused: the node tries again.
        let mut lock = record_lock(start, end, kind);
        answer(reply, self.lock(handle, libc::F_OFD_SETLK, &mut lock));
    }
}

/// The last byte that a lock can be of.
const LAST: u64 = i64::MAX as u64;

fn record_lock(start: u64, end: u64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as i64,
        l_len: if end >= LAST { 0 } else { (end - start + 1) as i64 },
        l_pid: 0,
    }
}
