//! [`Pins`]: the `O_PATH` descriptors that inodes hold, within a budget.
//!
//! A look-up leaves a descriptor with the inode. Above the budget, descriptors that were not used
//! lately are closed; the table opens them again when needed.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxFlags};

use crate::inode::attributes::id_of;
use crate::inode::state::Inode;
use crate::protocol::abi::ROOT_NODEID;
use crate::protocol::request::Answer;

/// File systems whose clients rename a file that is held on this machine instead of removing it:
/// NFS, and AFS by its two implementations.
const HIDES_HELD: [u64; 3] = [0x6969, 0x5346_414F, 0x6B41_4653];
/// Descriptors that one request looks at in search of unused ones.
const SWEEP: usize = 256;

/// The descriptors of all inodes of a mount.
#[derive(Debug)]
pub struct Pins {
    pub(super) pinned: AtomicUsize,
    pinned_max: usize,
    /// Whether the PFS renames files that are held here instead of removing them.
    pub(super) hides_held: bool,
    /// Inodes in the order in which they got their descriptors, and their last use then.
    queue: Mutex<VecDeque<(Weak<Inode>, u64)>>,
    clock: AtomicU64,
}

impl Pins {
    /// Up to `pinned_max` descriptors of files on the file system of `root`.
    pub fn new(root: &OwnedFd, pinned_max: usize) -> std::io::Result<Self> {
        let hides_held = HIDES_HELD.contains(&(rustix::fs::fstatfs(root)?.f_type as u64));
        Ok(Pins {
            pinned: AtomicUsize::new(0),
            pinned_max,
            hides_held,
            queue: Mutex::default(),
            clock: AtomicU64::new(1),
        })
    }

    /// The descriptor of the inode if one is held.
    pub fn get(&self, inode: &Inode) -> Option<Arc<OwnedFd>> {
        self.used(inode);
        inode.pin.lock().clone()
    }

    /// As [`Pins::renew`] for a file whose name may soon lead elsewhere.
    pub fn keep_as_last_way(&self, inode: &Arc<Inode>, descriptor: OwnedFd) {
        let is_last_way = inode.is_last_way.swap(true, Ordering::Relaxed);
        self.replace(inode, descriptor, is_last_way);
    }

    /// Replaces the descriptor by that of the last look-up. The server may have given the number
    /// of the old one to another file; or the file has another name now, and the PFS goes by the
    /// modes of that name's directory. A descriptor that may be the only way to the file stays.
    pub fn renew(&self, inode: &Arc<Inode>, descriptor: OwnedFd) {
        if inode.nodeid == ROOT_NODEID || (self.hides_held && inode.kind != libc::S_IFDIR) {
            return;
        }
        self.replace(inode, descriptor, inode.is_last_way.load(Ordering::Relaxed));
    }

    fn replace(&self, inode: &Arc<Inode>, descriptor: OwnedFd, is_last_way: bool) {
        let mut pin = inode.pin.lock();
        let Some(earlier) = &mut *pin else {
            drop(pin);
            self.keep(inode, descriptor);
            return;
        };
        // If it still has a name, a look-up finds the same file under its number.
        let has_name = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0);
        if is_last_way && !has_name(earlier) {
            return;
        }
        let earlier = std::mem::replace(earlier, Arc::new(descriptor));
        drop(pin);
        // Without the lock: closing may take its time.
        drop(earlier);
        self.used(inode);
    }

    fn used(&self, inode: &Inode) -> u64 {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        inode.last_use.store(now, Ordering::Relaxed);
        now
    }

    /// Keeps a descriptor of the inode, unless it has one.
    pub fn keep(&self, inode: &Arc<Inode>, descriptor: OwnedFd) -> Arc<OwnedFd> {
        let now = self.used(inode);
        let mut pin = inode.pin.lock();
        if let Some(earlier) = &*pin {
            return earlier.clone();
        }
        let descriptor = Arc::new(descriptor);
        *pin = Some(descriptor.clone());
        drop(pin);
        let pinned = self.pinned.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.push_back((Arc::downgrade(inode), now));
        if queue.len() > 2 * self.pinned_max.max(pinned) {
            // Most were closed when their inodes went.
            queue.retain(|(inode, _)| {
                inode.upgrade().is_some_and(|inode| inode.pin.lock().is_some())
            });
        }
        drop(queue);
        if pinned >= self.pinned_max {
            self.close_unused();
        }
        descriptor
    }

    /// Closes the descriptor of the inode if it is `stale`. It is opened again when needed.
    pub fn remove_stale(&self, inode: &Inode, stale: &Arc<OwnedFd>) {
        let closed = inode.pin.lock().take_if(|pin| Arc::ptr_eq(pin, stale));
        if closed.is_some() {
            self.pinned.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes the descriptor of the inode.
    pub fn remove(&self, inode: &Inode) {
        if inode.pin.lock().take().is_some() {
            self.pinned.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes descriptors that were not used since they were queued.
    fn close_unused(&self) {
        let enough = self.pinned_max - (self.pinned_max / 8).max(1);
        // Many may be in use or the only way to a file: then the next request goes on.
        for _ in 0..SWEEP {
            if self.pinned.load(Ordering::Relaxed) <= enough {
                return;
            }
            let Some((inode, used)) = self.queue.lock().pop_front() else { return };
            let Some(inode) = inode.upgrade().filter(|inode| inode.pin.lock().is_some()) else {
                continue;
            };
            let used_since = inode.last_use.load(Ordering::Relaxed);
            // A file without a name can be reached by its descriptor alone.
            if used_since == used && !self.is_nameless(&inode) {
                self.remove(&inode);
            } else {
                self.queue.lock().push_back((Arc::downgrade(&inode), used_since));
            }
        }
    }

    /// Whether the file seems to have no name any more. Some file systems count no links, so the
    /// count alone does not tell.
    fn is_nameless(&self, inode: &Inode) -> bool {
        let Some(place) = inode.place() else { return true };
        let Some(descriptor) = inode.pin.lock().clone() else { return false };
        let mut at = AtFlags::EMPTY_PATH;
        if !inode.is_last_way.load(Ordering::Relaxed) {
            // No name of it went by this mount: what this machine knows is enough.
            at |= AtFlags::STATX_DONT_SYNC;
        }
        let links = rustix::fs::statx(&*descriptor, c"", at, StatxFlags::NLINK);
        if links.is_ok_and(|stat| stat.stx_nlink > 0) {
            return false;
        }
        let Some(parent) = place.parent.pin.lock().clone() else { return false };
        rustix::fs::statat(&*parent, &place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_or(true, |stat| id_of(&stat) != inode.id)
    }
}

/// A descriptor of what `name` leads to, and the attributes of that same file.
pub fn look_at(parent: &impl AsFd, name: &CStr) -> Answer<(OwnedFd, Stat)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let descriptor = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::statat(&descriptor, c"", AtFlags::EMPTY_PATH)?;
    Ok((descriptor, stat))
}
