//! Opens and creates files, and decides how the kernel reads and writes them.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use tidepool_pfs::cost;
use tidepool_proto::{Access, OpenFile, PassthroughPin};

use crate::callers::shares::Share;
use crate::inode::attributes::{attributes_known, identity_of};
use crate::inode::file_handle::FileHandle;
use crate::inode::opens::{self, AccessPath, Backing, OpenDecision};
use crate::inode::reservations::Reservation;
use crate::inode::state::{Inode, Place};
use crate::ops::filesystem::{Disposition, Filesystem};
use crate::protocol::abi::{self, CreateIn, CreateOut, InHeader, OpenIn, OpenOut};
use crate::protocol::device::Device;
use crate::protocol::request::{Answer, Errno};

/// The kernel's own flag of an open by `execve`; programs cannot set it.
const OPENED_TO_RUN: i32 = 0x20;
/// How often a create tries again when the file is created or removed in between.
const CREATE_ATTEMPTS: usize = 16;

/// The flags of the open on the PFS. The mount itself deals with names and lengths, the node with
/// caching and appending. No open waits for the holder of a lease.
pub(crate) fn lower_flags(flags: u32) -> OFlags {
    const KEPT: i32 = libc::O_ACCMODE | libc::O_NOATIME;
    const ADDED: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
    OFlags::from_bits_retain(flags & KEPT as u32) | ADDED
}

/// The errno of an open that does not wait for the holder of a lease.
fn open_errno(error: rustix::io::Errno) -> Errno {
    match error {
        rustix::io::Errno::WOULDBLOCK => Errno::BLOCKED,
        error => error.into(),
    }
}

/// As [`lower_flags`] with reading added, for an open that writes only: so the kernel can write the
/// file by itself, and later readers use the same backing. The program's rights stay as they are.
pub(crate) fn lower_flags_with_read(flags: u32) -> OFlags {
    (lower_flags(flags) - OFlags::ACCMODE) | OFlags::RDWR
}

pub(crate) fn access_of(flags: u32) -> Access {
    match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => Access::Read,
        libc::O_WRONLY => Access::Write,
        _ => Access::ReadWrite,
    }
}

pub(crate) fn has_flag(flags: u32, flag: i32) -> bool {
    flags as i32 & flag == flag
}

impl Filesystem {
    /// `OPEN`. Answers `ESTALE` if the open needs another inode: the kernel then looks the name up
    /// again and opens what it finds.
    pub(crate) fn open(
        &self,
        caller: &InHeader,
        arguments: OpenIn,
        device: &Arc<Device>,
    ) -> Answer<OpenOut> {
        match self.open_handle(caller, arguments, device) {
            Err(Errno::BLOCKED) if has_flag(arguments.flags, libc::O_NONBLOCK) => {
                Err(Errno(libc::EWOULDBLOCK))
            }
            Err(Errno::STALE) => {
                if let Some(place) = self.inodes.get(caller.nodeid)?.place() {
                    self.inodes.expect_retry(&place, caller.pid);
                }
                Err(Errno::STALE)
            }
            outcome => outcome,
        }
    }

    fn open_handle(
        &self,
        caller: &InHeader,
        arguments: OpenIn,
        device: &Arc<Device>,
    ) -> Answer<OpenOut> {
        self.credentials.become_caller(caller)?;
        let inode = self.inodes.get(caller.nodeid)?;
        if !inode.is_regular() {
            return Err(Errno(libc::EINVAL));
        }
        let share = self.shares.take(caller.uid)?;
        let flags = arguments.flags;
        let access = access_of(flags);
        let truncate = has_flag(flags, libc::O_TRUNC);
        // Truncating is writing, whatever the access mode.
        let lower_for_size = (truncate && !access.writes())
            .then(|| self.open_lower(&inode, lower_flags(libc::O_WRONLY as u32)))
            .transpose()?;
        let append = has_flag(flags, libc::O_APPEND);
        let both = truncate && access == Access::Write && !append;
        let both =
            both.then(|| self.open_lower(&inode, lower_flags_with_read(flags)).ok()).flatten();
        let runs = has_flag(flags, OPENED_TO_RUN);
        if runs {
            // The kernel only checks that anybody may execute it, not the caller.
            let held = self.inodes.descriptor(&inode)?;
            self.check_access(&held, rustix::fs::Access::EXEC_OK)?;
        }
        let lower = both.map_or_else(|| self.open_lower(&inode, lower_flags(flags)), Ok);
        let lower = match lower {
            // A caller that may run a program need not have the right to read it.
            Err(Errno(libc::EACCES)) if runs => {
                self.credentials.become_daemon()?;
                self.open_lower(&inode, lower_flags(flags))?
            }
            lower => lower?,
        };
        self.shares.check(&lower)?;
        let disposition = if truncate { Disposition::Truncates } else { Disposition::Plain };
        let file = self.open_in_node(caller, lower, access, disposition, append)?;
        if truncate {
            self.truncate(caller, &file, lower_for_size, arguments)?;
        }
        self.admit(caller, inode, file, (access, append), share, device)
    }

    fn truncate(
        &self,
        caller: &InHeader,
        file: &Arc<dyn OpenFile>,
        lower_for_size: Option<OwnedFd>,
        arguments: OpenIn,
    ) -> Answer {
        match lower_for_size {
            None => file.set_size(0)?,
            Some(lower) => {
                let writer =
                    self.open_in_node(caller, lower, Access::Write, Disposition::Truncates, false)?;
                writer.set_size(0)?;
                writer.flush()?;
            }
        }
        if arguments.open_flags & abi::OPEN_KILL_PRIVILEGES != 0 {
            self.drop_privilege_bits(caller, &file.lower())?;
        }
        Ok(())
    }

    /// Opens the lower file with the present identity: by descriptor, or by place if that is stale.
    fn open_lower(&self, inode: &Arc<Inode>, flags: OFlags) -> Answer<OwnedFd> {
        if let Some(held) = self.inodes.pins.get(inode) {
            match self.reopen(&held, flags) {
                Err(Errno(libc::ESTALE | libc::ENOENT)) => {
                    self.inodes.pins.remove_stale(inode, &held)
                }
                opened => return opened,
            }
        }
        if let Some(place) = inode.place() {
            let parent = self.inodes.descriptor(&place.parent)?;
            match rustix::fs::openat(&parent, &place.name, flags, Mode::empty()) {
                Ok(lower) if identity_of(&lower).is_ok_and(|it| it == (inode.id, inode.kind)) => {
                    return Ok(lower);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(Errno::BLOCKED),
                _ => {}
            }
        }
        let held = self.inodes.descriptor(inode)?;
        self.reopen(&held, flags)
    }

    /// Opens the file of a descriptor once more, with the present identity.
    pub(crate) fn reopen(&self, held: &impl AsFd, flags: OFlags) -> Answer<OwnedFd> {
        let (directory, number) = self.by_descriptor(held);
        let flags = (flags - OFlags::NOFOLLOW) | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::openat(directory, number.as_str(), flags, Mode::empty()).map_err(open_errno)
    }

    /// Adds an open under a new handle and decides how the kernel reads it.
    pub(crate) fn admit(
        &self,
        caller: &InHeader,
        inode: Arc<Inode>,
        file: Arc<dyn OpenFile>,
        (access, append): (Access, bool),
        share: Share,
        device: &Arc<Device>,
    ) -> Answer<OpenOut> {
        let handle = self.files.reserve();
        let reads_only = !access.writes();
        let access_path = AccessPath::of(self.direct_io.load(Ordering::Relaxed), append);
        let mode = opens::OpenMode { reads_only, access_path, appends: append };
        let register = |pin: Arc<dyn PassthroughPin>| self.register_for(caller, pin, device);
        let register = self.passthrough.load(Ordering::Relaxed).then_some(register);
        let mut decision = inode.opens.lock().admit(handle, &file, mode, register);
        if decision == OpenDecision::Split {
            self.split(caller, &inode)?;
            let regardless = inode.opens.lock().admit_regardless(handle, &file, mode);
            decision = regardless.ok_or(Errno::STALE)?;
        }
        let mut out = OpenOut { handle, open_flags: 0, backing_id: 0 };
        match decision {
            OpenDecision::Passthrough(backing_id) => {
                cost::passes_through();
                out.open_flags = abi::OPEN_PASSTHROUGH;
                out.backing_id = backing_id;
            }
            OpenDecision::MappedPassthrough(backing_id) => {
                cost::passes_through();
                out.open_flags = abi::OPEN_PASSTHROUGH | abi::OPEN_DIRECT_IO;
                out.backing_id = backing_id;
            }
            OpenDecision::Direct => out.open_flags = self.flags_to_ask(&inode, append),
            OpenDecision::Split => out.open_flags = abi::OPEN_DIRECT_IO,
        }
        self.pages.opened(&inode);
        let is_past_cache =
            access_path != AccessPath::Direct && out.open_flags & abi::OPEN_DIRECT_IO != 0;
        if reads_only {
            out.open_flags |= abi::OPEN_NOFLUSH;
        }
        self.inodes.publish(&inode, caller.pid, |opens| opens.has_others_like(&*file, mode));
        let changes_as = match !reads_only {
            true => self.credentials.changes_as(caller)?,
            false => None,
        };
        let open = FileHandle {
            inode,
            file,
            access,
            share,
            lock_owners: Mutex::default(),
            append,
            is_past_cache,
            changes_as,
            other_append_mode: OnceLock::new(),
        };
        self.files.insert(handle, open);
        Ok(out)
    }

    /// Registers a file with the kernel, which writes with the rights of the thread that registers.
    fn register_for(
        &self,
        caller: &InHeader,
        pin: Arc<dyn PassthroughPin>,
        device: &Arc<Device>,
    ) -> Option<Backing> {
        let as_caller = pin.is_lower();
        if as_caller
            && (opens::has_set_id(pin.descriptor().as_fd())
                || self.credentials.become_writer(caller).is_err())
        {
            return None;
        }
        let backing = self.register(pin, device);
        self.credentials.become_daemon().ok()?;
        backing
    }

    /// Flags of an open whose reads and writes come to the mount. An open by pages makes the kernel
    /// drop what earlier opens left. Appends use no pages: the PFS decides where they go.
    fn flags_to_ask(&self, inode: &Arc<Inode>, append: bool) -> u32 {
        if self.direct_io.load(Ordering::Relaxed) {
            return abi::OPEN_DIRECT_IO | abi::OPEN_PARALLEL_WRITES;
        }
        if append {
            return abi::OPEN_DIRECT_IO;
        }
        self.pages.filled(inode);
        0
    }

    /// Makes the caller look the name up again. An open without a name, by `/proc`, shares the
    /// inode instead, though not its pages; not if the kernel reads a segment by itself.
    fn split(&self, caller: &InHeader, inode: &Inode) -> Answer {
        let reads_segment = inode.opens.lock().reads_segment();
        if reads_segment {
            self.inodes.reserve(inode.id, Reservation::begin());
        }
        let is_retried_open = |place| self.inodes.is_retried_open(&place, caller.pid);
        let again = !reads_segment && inode.place().is_none_or(is_retried_open);
        if again { Ok(()) } else { Err(Errno::STALE) }
    }

    pub(crate) fn forget_handle(&self, handle: u64) -> Option<Arc<FileHandle>> {
        let open = self.files.remove(handle)?;
        let backing = open.inode.opens.lock().leave(handle);
        // Without the lock, for which look-ups wait: the node may ask the PFS now, about a file
        // that the kernel has written.
        drop(backing);
        Some(open)
    }

    /// `CREATE`.
    pub(crate) fn create(
        &self,
        caller: &InHeader,
        arguments: CreateIn,
        name: &CStr,
        device: &Arc<Device>,
    ) -> Answer<CreateOut> {
        let created = self.create_handle(caller, arguments, name, device);
        if let Err(Errno::STALE) = created
            && let Ok(parent) = self.inodes.get(caller.nodeid)
        {
            self.inodes.expect_retry(&Place { parent, name: name.to_owned() }, caller.pid);
        }
        created
    }

    fn create_handle(
        &self,
        caller: &InHeader,
        arguments: CreateIn,
        name: &CStr,
        device: &Arc<Device>,
    ) -> Answer<CreateOut> {
        let (parent, held) = self.directory_for(caller, caller.nodeid)?;
        // Before the file is created: a refused open leaves none behind.
        let share = self.shares.take(caller.uid)?;
        self.service.check_open()?;
        self.credentials.set_umask(arguments.umask)?;
        let (lower, created) = create_or_open(&held, name, arguments)?;
        if identity_of(&lower)?.1 != libc::S_IFREG {
            // The name leads to something else since the look-up; the kernel will look again.
            return Err(Errno::STALE);
        }
        let access = access_of(arguments.flags);
        let append = has_flag(arguments.flags, libc::O_APPEND);
        let disposition = match created {
            true => Disposition::Created,
            false if has_flag(arguments.flags, libc::O_TRUNC) => Disposition::Truncates,
            false => Disposition::Plain,
        };
        let file = self.open_in_node(caller, lower, access, disposition, append)?;
        if !created && has_flag(arguments.flags, libc::O_TRUNC) {
            file.set_size(0)?;
            if arguments.open_flags & abi::OPEN_KILL_PRIVILEGES != 0 {
                self.drop_privilege_bits(caller, &file.lower())?;
            }
        }
        // The node has asked the PFS when it opened the file.
        let stat = attributes_known(&file.lower())?;
        let entry = self.entry(&parent, name, &stat);
        let opened = self
            .inodes
            .get(entry.nodeid)
            .and_then(|inode| self.admit(caller, inode, file, (access, append), share, device));
        match opened {
            Ok(open) => Ok(CreateOut { entry, open }),
            Err(errno) => {
                self.forget(entry.nodeid, 1);
                Err(errno)
            }
        }
    }
}

/// Creates the file, or opens it if it exists and the caller does not insist on a new one. Returns
/// whether it was created, because a new name is not durable yet.
fn create_or_open(parent: &impl AsFd, name: &CStr, arguments: CreateIn) -> Answer<(OwnedFd, bool)> {
    let flags = lower_flags(arguments.flags);
    let mode = Mode::from_raw_mode(arguments.mode & 0o7777);
    for _ in 0..CREATE_ATTEMPTS {
        // The creator of a file may read it, whatever its mode.
        let create = match access_of(arguments.flags) {
            Access::Write if !has_flag(arguments.flags, libc::O_APPEND) => {
                lower_flags_with_read(arguments.flags)
            }
            _ => flags,
        };
        let create = create | OFlags::CREATE | OFlags::EXCL;
        match rustix::fs::openat(parent, name, create, mode) {
            Ok(lower) => return Ok((lower, true)),
            Err(rustix::io::Errno::EXIST) if !has_flag(arguments.flags, libc::O_EXCL) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::fs::openat(parent, name, flags, Mode::empty()) {
            Ok(lower) => return Ok((lower, false)),
            // The kernel locks the directory during a create, and not when it opens what it finds.
            Err(rustix::io::Errno::WOULDBLOCK) if !has_flag(arguments.flags, libc::O_NONBLOCK) => {
                return Err(Errno::STALE);
            }
            Err(rustix::io::Errno::NOENT) => continue,
            // The name is a symbolic link now; the kernel follows it when it looks again.
            Err(rustix::io::Errno::LOOP) => return Err(Errno::STALE),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::STALE)
}
