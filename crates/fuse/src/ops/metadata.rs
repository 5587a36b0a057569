//! Attributes, extended attributes, access checks and file system totals.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Gid, Mode, Stat, StatxFlags, Timespec, Timestamps, Uid, XattrFlags};
use tidepool_proto::stub::{Found, Mark, find_by_path};
use tidepool_proto::{Access, Version};

use crate::inode::attributes::{Before, is_regular, version_of};
use crate::inode::state::{Inode, InodeDescriptor, KernelView};
use crate::ops::filesystem::{Disposition, Filesystem};
use crate::protocol::abi::{
    self, AttrOut, Attributes, GetattrIn, GetxattrOut, InHeader, SetattrIn, SetxattrIn, StatfsOut,
};
use crate::protocol::reply::Response;
use crate::protocol::request::{Answer, Errno};

/// Prefix of Tidepool's own attributes on the PFS, which are hidden here.
const OWN_ATTRIBUTES: &[u8] = b"user.tidepool.";

const NO_ATTRIBUTE: Errno = Errno(libc::ENODATA);

impl Filesystem {
    /// `GETATTR`.
    pub(crate) fn get_attributes(
        &self,
        caller: &InHeader,
        arguments: GetattrIn,
    ) -> Answer<AttrOut> {
        if arguments.flags & abi::GETATTR_HANDLE != 0
            && let Ok(handle) = self.files.get(arguments.handle)
        {
            if handle.inode.opens.lock().is_excluded(&*handle.file) {
                return Err(Errno::STALE);
            }
            let stat = rustix::fs::fstat(handle.file.lower())?;
            return self.attr_answered(&handle.inode, &stat);
        }
        let inode = self.inodes.get(caller.nodeid)?;
        let stat = match self.stat_inode(&inode) {
            // The kernel has walked the path with the caller's rights, and an open descriptor shows
            // its attributes whatever became of the path.
            Err(Errno(libc::EACCES)) => {
                self.credentials.become_daemon()?;
                self.stat_inode(&inode)
            }
            other => other,
        };
        self.attr_answered(&inode, &stat?)
    }

    /// What `GETATTR` answers. The kernel asks so before each use of a length, because it keeps
    /// none that other replies tell.
    fn attr_answered(&self, inode: &Arc<Inode>, stat: &Stat) -> Answer<AttrOut> {
        let mut answer = self.attr_shown(inode, stat, true);
        if answer.attributes.size == 0
            && let Some(size) = self.size_elsewhere(inode, stat)?
        {
            answer.attributes.set_size(size);
        }
        Ok(answer)
    }

    /// Drops pages that the kernel would keep, when it asks before a read by pages. The kernel
    /// drops them if length or modification time moved. It does not notice that another program set
    /// the time back or wrote within its granularity, which matters to opens that read the file as
    /// it is now, nor that opens went on to another version. (The kernel ignores the attributes of
    /// a reply during which pages were dropped, so none are dropped here if the length moved.)
    fn invalidate_outdated(&self, inode: &Inode, told: &KernelView, now: &KernelView) {
        let is_outdated = match (told.content, now.content) {
            (_, Some(0)) => told.is_racy || !told.version.agrees_with(&now.version),
            (Some(before), Some(after)) => before != after,
            _ => false,
        };
        if is_outdated {
            self.pages.invalidate(inode);
        }
    }

    /// Notes what the kernel is told of the file. `reads` if it is about to read pages.
    fn note_kernel_view(&self, inode: &Inode, version: Version, reads: bool) {
        if self.direct_io.load(Ordering::Relaxed) || !inode.has_pages.load(Ordering::Acquire) {
            return;
        }
        let is_racy = self.service.is_racy(&version);
        let content = inode.opens.lock().cached_version_of_pages();
        let now = KernelView { version, is_racy, content };
        let told = *inode.kernel_view.lock();
        let seen = told.filter(|KernelView { version: before, .. }| before.has_bytes_of(&version));
        match seen {
            Some(told) if reads => self.invalidate_outdated(inode, &told, &now),
            // The next read compares.
            Some(_) => return,
            None => {}
        }
        *inode.kernel_view.lock() = Some(now);
    }

    fn stat_inode(&self, inode: &Arc<Inode>) -> Answer<Stat> {
        if let Some(file) = inode.opens.lock().any_file() {
            return Ok(rustix::fs::fstat(file.lower())?);
        }
        if let Some(held) = self.inodes.pins.get(inode) {
            match rustix::fs::statat(&held, c"", AtFlags::EMPTY_PATH) {
                // The server does not know it any more: the name decides.
                Err(rustix::io::Errno::STALE) => self.inodes.pins.remove_stale(inode, &held),
                stat => return Ok(stat?),
            }
        }
        let place = inode.place().ok_or(Errno::STALE)?;
        let parent = self.inodes.descriptor(&place.parent)?;
        match self.stat_at(&parent, &place.name) {
            Ok(stat) if inode.is(&stat) => Ok(stat),
            Ok(_) | Err(Errno(libc::ENOENT | libc::ENOTDIR)) => {
                self.inodes.expect_lookup(&place);
                Err(Errno::STALE)
            }
            Err(errno) => Err(errno),
        }
    }

    /// The attributes that the kernel is told. If it has pages, these have the version that is
    /// open: it must not end the file at another length, nor drop the pages for another time. If
    /// only writers have pages, they follow changes by other programs. `reads` if the kernel is
    /// about to read.
    pub(crate) fn attributes_shown(&self, inode: &Inode, stat: &Stat, reads: bool) -> Attributes {
        let mut attributes = self.attributes(stat);
        let mut told = version_of(stat);
        if inode.has_pages.load(Ordering::Acquire) && !inode.opens.lock().shows_memory_only() {
            let writer = inode.opens.lock().writer_by_pages();
            if let Some(writer) = writer.filter(|writer| !writer.version().agrees_with(&told)) {
                // Without the lock of the opens: it asks the PFS.
                writer.follow();
            }
            if let Some(shown) = inode.opens.lock().version_shown()
                && !shown.agrees_with(&told)
            {
                attributes.show(&shown);
                told = shown;
            }
        }
        // The PFS does not have the length of bytes that are in memory only.
        told.size = attributes.size;
        self.note_kernel_view(inode, told, reads);
        attributes
    }

    /// Length of a file whose bytes are in the memory of another node alone, as its mark on the PFS
    /// tells: a program that takes it for empty would not even open it. Lengths are for whoever may
    /// look a file up, so it is read with the daemon's rights.
    pub(crate) fn size_elsewhere(&self, inode: &Arc<Inode>, stat: &Stat) -> Answer<Option<u64>> {
        let mark = self.mark_of(inode, stat)?;
        Ok(mark.map(|mark| mark.length).filter(|length| i64::try_from(*length).is_ok()))
    }

    /// The mark of a file whose bytes may be on another node.
    pub(crate) fn mark_of(&self, inode: &Arc<Inode>, stat: &Stat) -> Answer<Option<Mark>> {
        if !is_regular(stat) || !self.service.has_other_nodes() {
            return Ok(None);
        }
        self.credentials.become_daemon()?;
        let Ok(descriptor) = self.inodes.descriptor(inode) else { return Ok(None) };
        let path = Filesystem::path_of(&descriptor);
        Ok(match find_by_path(Path::new(&path), stat.st_size as u64) {
            Found::Stub(mark) => Some(mark),
            Found::Nothing | Found::Remains | Found::Finished | Found::Copy(_) => None,
        })
    }

    fn attr_shown(&self, inode: &Inode, stat: &Stat, reads: bool) -> AttrOut {
        let attributes = self.attributes_shown(inode, stat, reads);
        AttrOut { valid_s: 0, valid_ns: 0, unused: 0, attributes }
    }

    /// `SETATTR`: size, mode, owner and times, in this order.
    pub(crate) fn set_attributes(&self, caller: &InHeader, set: SetattrIn) -> Answer<AttrOut> {
        self.credentials.become_caller(caller)?;
        let inode = self.inodes.get(caller.nodeid)?;
        let held = self.inodes.descriptor(&inode)?;
        if set.valid & abi::SET_SIZE != 0 {
            self.set_size(caller, &inode, &held, set)?;
            self.credentials.become_caller(caller)?;
        }
        let others = abi::SET_MODE | abi::SET_UID | abi::SET_GID | abi::SET_ATIME | abi::SET_MTIME;
        if set.valid & others != 0 {
            let stat = || Ok(rustix::fs::statat(&held, c"", AtFlags::EMPTY_PATH)?);
            let before = Before::look(stat)?;
            let changed = self.set_metadata(&held, set);
            // A part of it may have happened even if the whole failed.
            self.notify_metadata_change(&before, stat);
            changed?;
        }
        let stat = rustix::fs::statat(&held, c"", AtFlags::EMPTY_PATH)?;
        Ok(self.attr_shown(&inode, &stat, false))
    }

    fn set_metadata(&self, held: &InodeDescriptor, set: SetattrIn) -> Answer {
        let (directory, number) = self.by_descriptor(held);
        if set.valid & abi::SET_MODE != 0 {
            let mode = Mode::from_raw_mode(set.mode & 0o7777);
            rustix::fs::chmodat(directory, number.as_str(), mode, AtFlags::empty())?;
        }
        if set.valid & (abi::SET_UID | abi::SET_GID) != 0 {
            let uid = (set.valid & abi::SET_UID != 0).then(|| Uid::from_raw(set.uid));
            let gid = (set.valid & abi::SET_GID != 0).then(|| Gid::from_raw(set.gid));
            rustix::fs::chownat(directory, number.as_str(), uid, gid, AtFlags::empty())?;
        }
        if set.valid & (abi::SET_ATIME | abi::SET_MTIME) != 0 {
            let time = |given: u32, now: u32, seconds: i64, nanoseconds: u32| Timespec {
                tv_sec: seconds,
                tv_nsec: match set.valid & (given | now) {
                    0 => rustix::fs::UTIME_OMIT,
                    bits if bits & now != 0 => rustix::fs::UTIME_NOW,
                    _ => nanoseconds.into(),
                },
            };
            let times = Timestamps {
                last_access: time(abi::SET_ATIME, abi::SET_ATIME_NOW, set.atime, set.atime_ns),
                last_modification: time(
                    abi::SET_MTIME,
                    abi::SET_MTIME_NOW,
                    set.mtime,
                    set.mtime_ns,
                ),
            };
            rustix::fs::utimensat(directory, number.as_str(), &times, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Changes the length through the node, which caches bytes of the file.
    fn set_size(
        &self,
        caller: &InHeader,
        inode: &Inode,
        held: &InodeDescriptor,
        set: SetattrIn,
    ) -> Answer {
        if !inode.is_regular() {
            return Err(Errno(libc::EINVAL));
        }
        let handle = (set.valid & abi::SET_FH != 0)
            .then(|| self.files.get(set.handle).ok())
            .flatten()
            .filter(|handle| handle.access.writes());
        match handle {
            Some(handle) => {
                self.credentials.become_daemon()?;
                let outcome = handle.file.set_size(set.size);
                self.pages_changed(inode, &*handle.file);
                outcome?;
            }
            None => {
                // `truncate` by name: the PFS decides whether the caller may write.
                let lower = self.reopen(held, rustix::fs::OFlags::WRONLY)?;
                let disposition =
                    if set.size == 0 { Disposition::Truncates } else { Disposition::Plain };
                let file = self.open_in_node(caller, lower, Access::Write, disposition, false)?;
                let outcome = file.set_size(set.size);
                self.pages_changed(inode, &*file);
                outcome?;
                file.flush()?;
            }
        }
        if set.valid & abi::SET_KILL_PRIVILEGES != 0 {
            self.drop_privilege_bits(caller, held)?;
        }
        Ok(())
    }

    /// Clears set-id bits as the PFS does when a user without `CAP_FSETID` changes a file. The node
    /// writes with its own rights, so the PFS would keep them.
    pub(crate) fn drop_privilege_bits(&self, caller: &InHeader, held: &impl AsFd) -> Answer {
        // Asked before each write of such a user, so from this machine's cache, without a message.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let mode = rustix::fs::statx(held, c"", flags, StatxFlags::MODE)?.stx_mode;
        if u32::from(mode) & (libc::S_ISUID | libc::S_ISGID) == 0 {
            return Ok(());
        }
        let stat = Before::look(|| rustix::fs::statat(held, c"", AtFlags::EMPTY_PATH))?;
        let mut mode = stat.st_mode & 0o7777;
        mode &= !libc::S_ISUID;
        // Without that bit, members of the group keep the bit for the group.
        if mode & libc::S_IXGRP != 0 || !self.credentials.is_in_group(caller, stat.st_gid) {
            mode &= !libc::S_ISGID;
        }
        if mode == stat.st_mode & 0o7777 {
            return Ok(());
        }
        self.credentials.become_daemon()?;
        let (directory, number) = self.by_descriptor(held);
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::chmodat(directory, number.as_str(), mode, AtFlags::empty())?;
        self.notify_metadata_change(&stat, || {
            Ok(rustix::fs::statat(held, c"", AtFlags::EMPTY_PATH)?)
        });
        Ok(())
    }

    /// `ACCESS`, by the file system identity of the caller.
    pub(crate) fn access(&self, caller: &InHeader, mask: u32) -> Answer {
        self.credentials.become_caller(caller)?;
        let inode = self.inodes.get(caller.nodeid)?;
        let held = self.inodes.descriptor(&inode)?;
        self.check_access(&held, rustix::fs::Access::from_bits_retain(mask))
    }

    /// `STATFS`.
    pub(crate) fn totals(&self) -> Answer<StatfsOut> {
        let root = self.inodes.get(abi::ROOT_NODEID)?;
        let held = self.inodes.descriptor(&root)?;
        let totals = rustix::fs::fstatfs(&held)?;
        Ok(StatfsOut {
            blocks: totals.f_blocks,
            blocks_free: totals.f_bfree,
            blocks_available: totals.f_bavail,
            files: totals.f_files,
            files_free: totals.f_ffree,
            block_size: totals.f_bsize as u32,
            name_length: totals.f_namelen as u32,
            fragment_size: totals.f_frsize as u32,
            padding: 0,
            spare: [0; 6],
        })
    }

    /// `GETXATTR`; `size` 0 asks for the size.
    pub(crate) fn get_xattr(&self, caller: &InHeader, name: &CStr, size: u32) -> Answer<Response> {
        if name.to_bytes().starts_with(OWN_ATTRIBUTES) {
            return Err(NO_ATTRIBUTE);
        }
        let (_held, path) = self.xattr_path(caller)?;
        if size == 0 {
            // A read into an empty buffer does not ask for the size.
            let length = rustix::fs::getxattr_query(path.as_str(), name)?;
            return Ok(xattr_size(length));
        }
        let mut value = vec![0; size as usize];
        let length = rustix::fs::getxattr(path.as_str(), name, &mut value[..])?;
        value.truncate(length);
        Ok(Response::Bytes(value))
    }

    /// `LISTXATTR`; `size` 0 asks for the size.
    pub(crate) fn list_xattrs(&self, caller: &InHeader, size: u32) -> Answer<Response> {
        const LIST_BYTES_MAX: usize = 64 << 10;
        let (_held, path) = self.xattr_path(caller)?;
        let mut list = vec![0; LIST_BYTES_MAX];
        let length = rustix::fs::listxattr(path.as_str(), &mut list[..])?;
        let shown: Vec<u8> = list[..length]
            .split_inclusive(|byte| *byte == 0)
            .filter(|name| !name.starts_with(OWN_ATTRIBUTES))
            // The kernel shows these to root alone.
            .filter(|name| caller.uid == 0 || !name.starts_with(b"trusted."))
            .flatten()
            .copied()
            .collect();
        match size {
            0 => Ok(xattr_size(shown.len())),
            size if shown.len() > size as usize => Err(Errno(libc::ERANGE)),
            _ => Ok(Response::Bytes(shown)),
        }
    }

    /// `SETXATTR`.
    pub(crate) fn set_xattr(
        &self,
        caller: &InHeader,
        arguments: SetxattrIn,
        name: &CStr,
        value: &[u8],
    ) -> Answer {
        if name.to_bytes().starts_with(OWN_ATTRIBUTES) {
            return Err(Errno(libc::EPERM));
        }
        let flags = XattrFlags::from_bits_retain(arguments.flags);
        self.change_xattrs(caller, |path| Ok(rustix::fs::setxattr(path, name, value, flags)?))
    }

    /// `REMOVEXATTR`.
    pub(crate) fn remove_xattr(&self, caller: &InHeader, name: &CStr) -> Answer {
        if name.to_bytes().starts_with(OWN_ATTRIBUTES) {
            return Err(NO_ATTRIBUTE);
        }
        self.change_xattrs(caller, |path| Ok(rustix::fs::removexattr(path, name)?))
    }

    fn change_xattrs(&self, caller: &InHeader, change: impl FnOnce(&str) -> Answer) -> Answer {
        let (held, path) = self.xattr_path(caller)?;
        let before = Before::look(|| rustix::fs::statat(&held, c"", AtFlags::EMPTY_PATH))?;
        change(&path)?;
        // An access control list may change mode bits as well.
        self.notify_metadata_change(&before, || {
            Ok(rustix::fs::statat(&held, c"", AtFlags::EMPTY_PATH)?)
        });
        Ok(())
    }

    fn xattr_path(&self, caller: &InHeader) -> Answer<(InodeDescriptor, String)> {
        self.credentials.become_caller(caller)?;
        let inode = self.inodes.get(caller.nodeid)?;
        let held = self.inodes.descriptor(&inode)?;
        let path = Self::path_of(&held);
        Ok((held, path))
    }
}

fn xattr_size(bytes: usize) -> Response {
    Response::XattrSize(GetxattrOut { size: bytes as u32, padding: 0 })
}
