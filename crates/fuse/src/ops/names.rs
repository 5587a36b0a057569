//! Operations on names. They happen in the PFS directory, with the caller's rights.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags, Stat};
use tidepool_proto::ChangeBegin;

use crate::inode::attributes::{Before, decode_device, id_of, is_regular, version_of};
use crate::inode::pins::look_at;
use crate::inode::reservations::Reservation;
use crate::inode::state::{Inode, InodeDescriptor};
use crate::ops::filesystem::Filesystem;
use crate::ops::special_files::bypasses_mount;
use crate::protocol::abi::{EntryOut, InHeader, LinkIn, MkdirIn, MknodIn};
use crate::protocol::request::{Answer, Errno};

impl Filesystem {
    /// `LOOKUP`.
    pub(crate) fn lookup(&self, caller: &InHeader, name: &CStr) -> Answer<EntryOut> {
        self.lookups.clear(caller.pid);
        let (parent, held) = self.directory_for(caller, caller.nodeid)?;
        let begin = ChangeBegin::now();
        let (file, stat) = self.look_up(&held, name)?;
        if bypasses_mount(&stat) {
            return self.entry_of_special_file(&parent, &held, name);
        }
        if is_regular(&stat)
            && let Some(reservation) = self.inodes.expected_lookup(&parent, name)
        {
            return match self.inodes.is_retried_lookup(&parent, name, caller.pid) {
                true => self.entry_of_retry(&parent, &held, name),
                false => self.entry_kept(&parent, &held, name, reservation),
            };
        }
        let inode = self.inodes.enter(&parent, name, &stat, &version_of(&stat));
        if let Some(file) = file {
            self.inodes.pins.renew(&inode, file);
        }
        self.lookups.note(caller.pid, parent.nodeid, name, &inode, &Before::seen(begin, stat));
        Ok(self.entry_of(&inode, &stat))
    }

    /// The attributes of `name`, and a descriptor for the next requests unless few are left.
    fn look_up(&self, parent: &InodeDescriptor, name: &CStr) -> Answer<(Option<OwnedFd>, Stat)> {
        match look_at(parent, name) {
            Ok((file, stat)) => Ok((Some(file).filter(|file| self.shares.has_room(file)), stat)),
            Err(Errno(libc::EMFILE | libc::ENFILE)) => Ok((None, self.stat_at(parent, name)?)),
            Err(errno) => Err(errno),
        }
    }

    /// As [`Filesystem::entry`] for a name that a request was answered for with `ESTALE`. The next
    /// request finds the file of this answer, whatever has its name by then, and room for an open.
    fn entry_kept(
        &self,
        parent: &Arc<Inode>,
        held: &InodeDescriptor,
        name: &CStr,
        reservation: Reservation,
    ) -> Answer<EntryOut> {
        let (file, stat) = look_at(held, name)?;
        if !is_regular(&stat) {
            return Err(Errno::STALE);
        }
        self.inodes.reserve(id_of(&stat), reservation);
        let inode = self.inodes.enter(parent, name, &stat, &version_of(&stat));
        self.inodes.pins.keep_as_last_way(&inode, file);
        Ok(self.entry_of(&inode, &stat))
    }

    /// As [`Filesystem::entry`] for the second try of an open: no other look-up gets this inode, so
    /// it has room.
    fn entry_of_retry(
        &self,
        parent: &Arc<Inode>,
        held: &InodeDescriptor,
        name: &CStr,
    ) -> Answer<EntryOut> {
        let (file, stat) = look_at(held, name)?;
        if !is_regular(&stat) {
            return Err(Errno::STALE);
        }
        let inode = self.inodes.enter_private(parent, name, &stat);
        self.inodes.pins.keep_as_last_way(&inode, file);
        Ok(self.entry_of(&inode, &stat))
    }

    /// `MKNOD`; also creates regular files where the kernel does not open them at once.
    pub(crate) fn make_special(
        &self,
        caller: &InHeader,
        arguments: MknodIn,
        name: &CStr,
    ) -> Answer<EntryOut> {
        let (parent, held) = self.directory_for(caller, caller.nodeid)?;
        self.credentials.set_umask(arguments.umask)?;
        rustix::fs::mknodat(
            &held,
            name,
            FileType::from_raw_mode(arguments.mode),
            Mode::from_raw_mode(arguments.mode),
            decode_device(arguments.rdev),
        )?;
        self.new_entry(&parent, &held, name)
    }

    /// `MKDIR`.
    pub(crate) fn make_directory(
        &self,
        caller: &InHeader,
        arguments: MkdirIn,
        name: &CStr,
    ) -> Answer<EntryOut> {
        let (parent, held) = self.directory_for(caller, caller.nodeid)?;
        self.credentials.set_umask(arguments.umask)?;
        rustix::fs::mkdirat(&held, name, Mode::from_raw_mode(arguments.mode))?;
        self.new_entry(&parent, &held, name)
    }

    /// `SYMLINK`.
    pub(crate) fn make_symlink(
        &self,
        caller: &InHeader,
        name: &CStr,
        target: &CStr,
    ) -> Answer<EntryOut> {
        let (parent, held) = self.directory_for(caller, caller.nodeid)?;
        rustix::fs::symlinkat(target, &held, name)?;
        self.new_entry(&parent, &held, name)
    }

    /// `READLINK`.
    pub(crate) fn read_link(&self, caller: &InHeader) -> Answer<Vec<u8>> {
        self.credentials.become_caller(caller)?;
        let inode = self.inodes.get(caller.nodeid)?;
        let held = self.inodes.descriptor(&inode)?;
        Ok(rustix::fs::readlinkat(&held, c"", Vec::new())?.into_bytes())
    }

    /// `LINK`.
    pub(crate) fn link(
        &self,
        caller: &InHeader,
        arguments: LinkIn,
        name: &CStr,
    ) -> Answer<EntryOut> {
        let (parent, held) = self.directory_for(caller, caller.nodeid)?;
        let inode = self.inodes.get(arguments.old_nodeid)?;
        let file = self.inodes.descriptor(&inode)?;
        let stat = rustix::fs::statat(&file, c"", AtFlags::EMPTY_PATH)?;
        self.bring_to_pfs(caller, &inode, &stat)?;
        let before = Before::look(|| rustix::fs::statat(&file, c"", AtFlags::EMPTY_PATH))?;
        let (directory, number) = self.by_descriptor(&file);
        rustix::fs::linkat(directory, number.as_str(), &held, name, AtFlags::SYMLINK_FOLLOW)?;
        let after = self.stat_at(&held, name)?;
        self.notify_metadata_change(&before, || Ok(after));
        Ok(self.entry(&parent, name, &after))
    }

    /// Has a file brought to the PFS whose bytes are in the memory of a node, before it gets a
    /// second name: whoever puts a copy of it in its place knows of one.
    fn bring_to_pfs(&self, caller: &InHeader, inode: &Arc<Inode>, stat: &Stat) -> Answer<()> {
        // Also one that its node was writing to the PFS when it ended.
        if self.mark_of(inode, stat)?.is_none() {
            return self.credentials.become_caller(caller);
        }
        let path = Self::path_of(&self.inodes.descriptor(inode)?);
        let opened = File::open(path);
        let brought = match opened {
            Ok(file) => self.service.bring_to_pfs(file.into(), caller.uid),
            // This daemon may not read it.
            Err(_) => Ok(()),
        };
        self.credentials.become_caller(caller)?;
        Ok(brought?)
    }

    /// `UNLINK`.
    pub(crate) fn unlink(&self, caller: &InHeader, name: &CStr) -> Answer {
        let (_, held) = self.directory_for(caller, caller.nodeid)?;
        if let Some((inode, stat)) = self.lookups.take(caller.pid, caller.nodeid, name)
            && self.is_unused_with_one_name(&inode, &stat)
        {
            self.service.end_transfers(inode.id);
            rustix::fs::unlinkat(&held, name, AtFlags::empty())?;
            self.only_name_removed(&inode, &stat);
            return Ok(());
        }
        let (before, inode) = self.pin_by_name(&held, name)?;
        self.service.end_transfers(id_of(&before));
        rustix::fs::unlinkat(&held, name, AtFlags::empty())?;
        self.name_removed(&before, inode.as_ref());
        Ok(())
    }

    /// `RMDIR`.
    pub(crate) fn remove_directory(&self, caller: &InHeader, name: &CStr) -> Answer {
        let (_, held) = self.directory_for(caller, caller.nodeid)?;
        let seen = self.lookups.take(caller.pid, caller.nodeid, name);
        if let Some((inode, _)) = seen {
            let _no_more_to_do = self.inodes.pin(&inode);
        } else if let Ok(before) = self.stat_at(&held, name) {
            self.pin_current(&before);
        }
        Ok(rustix::fs::unlinkat(&held, name, AtFlags::REMOVEDIR)?)
    }

    /// `RENAME` and `RENAME2`, flags included.
    pub(crate) fn rename(
        &self,
        caller: &InHeader,
        name: &CStr,
        new_parent: u64,
        new_name: &CStr,
        flags: u32,
    ) -> Answer {
        let (old_parent, old_held) = self.directory_for(caller, caller.nodeid)?;
        let new_parent = self.inodes.get(new_parent)?;
        let new_held = self.inodes.descriptor(&new_parent)?;
        let flags = RenameFlags::from_bits_retain(flags);
        let look = |held: &InodeDescriptor, name: &CStr| Before::look(|| self.stat_at(held, name));
        let target = look(&new_held, new_name).ok();
        let target_inode = target.as_ref().and_then(|target| self.pin_current(target));
        target.iter().for_each(|target| self.service.end_transfers(id_of(target)));
        let source = look(&old_held, name)?;
        if flags.is_empty() {
            // Some file systems know plain renames only.
            rustix::fs::renameat(&old_held, name, &new_held, new_name)?;
        } else {
            rustix::fs::renameat_with(&old_held, name, &new_held, new_name, flags)?;
        }
        let same_file = target.as_ref().is_some_and(|target| id_of(target) == id_of(&source));
        if same_file {
            return Ok(());
        }
        self.notify_metadata_change(&source, || self.stat_at(&new_held, new_name));
        self.inodes.moved(id_of(&source), &new_parent, new_name);
        match target {
            Some(target) if flags.contains(RenameFlags::EXCHANGE) => {
                self.notify_metadata_change(&target, || self.stat_at(&old_held, name));
                self.inodes.moved(id_of(&target), &old_parent, name);
            }
            Some(target) => self.name_removed(&target, target_inode.as_ref()),
            None => {}
        }
        Ok(())
    }

    fn new_entry(
        &self,
        parent: &Arc<Inode>,
        held: &InodeDescriptor,
        name: &CStr,
    ) -> Answer<EntryOut> {
        let stat = self.stat_at(held, name)?;
        Ok(self.entry(parent, name, &stat))
    }

    /// Keeps a descriptor of a file whose name may go: a program that has it open with `O_PATH` or
    /// as its working directory can go on, as on the PFS.
    fn pin_current(&self, stat: &Stat) -> Option<Arc<Inode>> {
        let inode = self.inodes.current(id_of(stat))?;
        self.inodes.pin(&inode).is_ok().then_some(inode)
    }

    /// As [`Filesystem::pin_current`] by name, with one look at it.
    fn pin_by_name(
        &self,
        held: &InodeDescriptor,
        name: &CStr,
    ) -> Answer<(Before, Option<Arc<Inode>>)> {
        let begin = ChangeBegin::now();
        let Ok((file, stat)) = look_at(held, name) else {
            return Ok((Before::look(|| self.stat_at(held, name))?, None));
        };
        let inode = self.inodes.current(id_of(&stat)).filter(|inode| inode.is(&stat));
        if let Some(inode) = &inode {
            self.inodes.pins.keep_as_last_way(inode, file);
        }
        Ok((Before::seen(begin, stat), inode))
    }

    /// Whether the file that was just looked up has this name only and is not open through the
    /// mount, so that what is cached of it can go with the name. Keeps a descriptor for programs
    /// that have it open with `O_PATH`.
    fn is_unused_with_one_name(&self, inode: &Arc<Inode>, stat: &Stat) -> bool {
        is_regular(stat)
            && stat.st_nlink == 1
            && inode.opens.lock().any_file().is_none()
            && self.inodes.pin(inode).is_ok()
    }

    /// The name of such a file was removed. If the file was linked or opened meanwhile, or the name
    /// led to another file, the node keeps what is cached of this one if it is still right.
    fn only_name_removed(&self, inode: &Arc<Inode>, before: &Before) {
        if self.credentials.become_daemon().is_err() || self.service.discard_unused(inode.id) {
            return;
        }
        let held = self.inodes.pins.get(inode);
        let stat = |held: Arc<OwnedFd>| rustix::fs::statat(&held, c"", AtFlags::EMPTY_PATH).ok();
        let Some(after) = held.and_then(stat) else { return };
        // Opens of the file go on with what is cached.
        self.notify_metadata_change(before, || Ok(after));
        if after.st_nlink == 0 {
            self.service.removed(inode.id);
        }
    }

    /// One name of a file was removed. What is cached stays for other names and goes with the last.
    fn name_removed(&self, before: &Before, inode: Option<&Arc<Inode>>) {
        if !is_regular(before) {
            return;
        }
        let after = inode.and_then(|inode| {
            let held = self.inodes.descriptor(inode).ok()?;
            rustix::fs::statat(&held, c"", AtFlags::EMPTY_PATH).ok()
        });
        // Counted after the removal, because another name may have come in between. Where links
        // are not counted, a file can have one name only.
        let is_last = match &after {
            Some(after) if before.st_nlink > 0 => after.st_nlink == 0,
            _ => before.st_nlink <= 1,
        };
        if let Some(after) = after {
            // Opens of the file go on with what is cached, also after its last name went.
            self.notify_metadata_change(before, || Ok(after));
        }
        if is_last && self.credentials.become_daemon().is_ok() {
            self.service.removed(id_of(before));
        }
    }
}
