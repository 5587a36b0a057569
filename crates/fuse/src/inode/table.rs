//! [`InodeTable`]: the inodes that the kernel knows, by node number and by lower file, with the
//! descriptors that reach them.
//!
//! An inode is found by the (device, inode) of the lower file and remembers the place where it was
//! seen last. A look-up leaves an `O_PATH` descriptor with it, by which the next requests reach the
//! file without asking for its name again. Above a budget, descriptors that were not used lately
//! are closed, and opened again from the place when needed, with a check that it still leads to the
//! same file (`ESTALE` otherwise). The table caches no attributes and no names: every look-up asks
//! the PFS.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxFlags};
use tidepool_proto::{FileId, OpenFile, Version};

use crate::inode::attributes::{id_of, kind_of, version_of};
use crate::inode::opens::Opens;
use crate::inode::reservations::{Reservation, Reservations};
use crate::protocol::abi::ROOT_NODEID;
use crate::protocol::request::{Answer, Errno};

/// File systems whose clients rename a file that is held on this machine instead of removing it:
/// NFS, and AFS by its two implementations.
const HIDES_HELD: [u64; 3] = [0x6969, 0x5346_414F, 0x6B41_4653];
/// Descriptors that one request looks at in search of unused ones.
const SWEEP: usize = 256;
/// How often an inode is looked at whose writers may be ahead of what it shows, and the pause.
const FOLLOW_ATTEMPTS: usize = 5;
const FOLLOW_PAUSE: Duration = Duration::from_millis(1);
/// More than any path that the kernel can walk: places that are deeper form a circle.
const DEPTH_MAX: usize = 2_048;

/// Where an inode was seen last.
#[derive(Clone, Debug)]
pub struct Place {
    pub parent: Arc<Inode>,
    /// Its name in the directory: any bytes.
    pub name: CString,
}

/// One inode as the kernel knows it.
#[derive(Debug)]
pub struct Inode {
    /// The kernel's number. Several may stand for one lower file, see [`InodeTable::reserve`].
    pub nodeid: u64,
    /// Identity of the lower file.
    pub id: FileId,
    /// File type bits.
    pub kind: u32,
    /// Its opens at present.
    pub opens: Mutex<Opens>,
    /// Whether the kernel got bytes to keep for it.
    pub has_pages: AtomicBool,
    /// Whether the kernel is notified of changes that it does not make by this inode.
    pub is_notified: AtomicBool,
    /// The version of the kernel's pages. Kept if the kernel reads through its page cache.
    pub kernel_view: Mutex<Option<KernelView>>,
    /// Whether look-ups by others are never answered with it.
    is_private: AtomicBool,
    place: Mutex<Option<Place>>,
    pin: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether the descriptor may be the only way left to the file: one of its names was to go.
    is_last_way: AtomicBool,
    last_use: AtomicU64,
    lookups: AtomicU64,
}

/// What the kernel knew of a file when it last had reason to drop its pages.
#[derive(Clone, Copy, Debug)]
pub struct KernelView {
    /// The kernel compares its length and modification time.
    pub version: Version,
    /// Whether any later change shows in these (see `FileService::is_settled`).
    pub is_settled: bool,
    /// The number of the content that was read by pages; 0 is the file as it was at that moment.
    pub content: Option<u64>,
}

impl Inode {
    /// Where the inode was seen last; `None` for the root and for a file that has no name yet.
    pub fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    /// Whether these are attributes of its file.
    pub fn is(&self, stat: &Stat) -> bool {
        id_of(stat) == self.id && kind_of(stat) == self.kind
    }

    /// Whether look-ups of its file at `version` may be answered with it.
    fn may_serve(&self, version: &Version) -> bool {
        let mut seen = *version;
        for _ in 0..FOLLOW_ATTEMPTS {
            let opens = self.opens.lock();
            if opens.may_serve(&seen, self.has_pages.load(Ordering::Acquire)) {
                return true;
            }
            let Some(file) = opens.may_follow().then(|| opens.any_file()).flatten() else { break };
            drop(opens);
            std::thread::sleep(FOLLOW_PAUSE);
            let Ok(now) = rustix::fs::fstat(file.lower()) else { break };
            seen = version_of(&now);
        }
        false
    }

    /// Whether this is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind == libc::S_IFREG
    }
}

/// A descriptor of an inode, valid while this lives.
pub enum InodeDescriptor {
    /// An `O_PATH` descriptor.
    Pinned(Arc<OwnedFd>),
    /// The descriptor of an open of the file.
    Open(Arc<dyn OpenFile>),
}

impl AsFd for InodeDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            InodeDescriptor::Pinned(descriptor) => descriptor.as_fd(),
            InodeDescriptor::Open(file) => file.lower(),
        }
    }
}

#[derive(Debug, Default)]
struct Maps {
    by_nodeid: HashMap<u64, Arc<Inode>>,
    /// For each lower file the inode that answers look-ups.
    current: HashMap<FileId, Arc<Inode>>,
    /// Files whose open is expected, see [`InodeTable::reserve`]. The inode may be forgotten first.
    reserved: Reservations<FileId>,
    /// Directories and names that the kernel looks up again, see [`InodeTable::expect_lookup`].
    expected_lookups: Reservations<(u64, CString)>,
    /// The same with the thread that retries an open, see [`InodeTable::expect_retry`].
    expected_retries: Reservations<(u64, CString, u32)>,
    /// Retries of which the look-up has come.
    retried_lookups: Reservations<(u64, CString, u32)>,
    last_nodeid: u64,
}

/// The inodes of a mount.
#[derive(Debug)]
pub struct InodeTable {
    root: Arc<Inode>,
    maps: Mutex<Maps>,
    pinned: AtomicUsize,
    pinned_max: usize,
    /// Whether the PFS renames files that are held here instead of removing them.
    hides_held: bool,
    /// Inodes in the order in which they got their descriptors, and their last use then.
    pins: Mutex<VecDeque<(Weak<Inode>, u64)>>,
    clock: AtomicU64,
}

fn new_inode(nodeid: u64, id: FileId, kind: u32, place: Option<Place>, opens: Opens) -> Arc<Inode> {
    Arc::new(Inode {
        nodeid,
        id,
        kind,
        opens: Mutex::new(opens),
        has_pages: AtomicBool::new(false),
        is_notified: AtomicBool::new(false),
        kernel_view: Mutex::default(),
        is_private: AtomicBool::new(false),
        place: Mutex::new(place),
        pin: Mutex::new(None),
        is_last_way: AtomicBool::new(false),
        last_use: AtomicU64::new(0),
        lookups: AtomicU64::new(0),
    })
}

impl InodeTable {
    /// A table whose root is `root`, holding up to `pinned_max` descriptors.
    pub fn new(root: OwnedFd, pinned_max: usize) -> std::io::Result<Self> {
        let stat = rustix::fs::statat(&root, c"", AtFlags::EMPTY_PATH)?;
        let hides_held = HIDES_HELD.contains(&(rustix::fs::fstatfs(&root)?.f_type as u64));
        let inode = new_inode(ROOT_NODEID, id_of(&stat), kind_of(&stat), None, Opens::default());
        *inode.pin.lock() = Some(Arc::new(root));
        let mut maps = Maps { last_nodeid: ROOT_NODEID, ..Maps::default() };
        maps.by_nodeid.insert(ROOT_NODEID, inode.clone());
        maps.current.insert(inode.id, inode.clone());
        Ok(InodeTable {
            root: inode,
            maps: Mutex::new(maps),
            pinned: AtomicUsize::new(0),
            pinned_max,
            hides_held,
            pins: Mutex::default(),
            clock: AtomicU64::new(1),
        })
    }

    /// The inode with this number.
    pub fn get(&self, nodeid: u64) -> Answer<Arc<Inode>> {
        if nodeid == ROOT_NODEID {
            return Ok(self.root.clone());
        }
        self.maps.lock().by_nodeid.get(&nodeid).cloned().ok_or(Errno::STALE)
    }

    /// The inode that answers look-ups of this file, if the kernel knows one.
    pub fn current(&self, id: FileId) -> Option<Arc<Inode>> {
        self.maps.lock().current.get(&id).cloned()
    }

    /// Counts one look-up of the file `stat` seen as `name` in `parent`, and returns its inode.
    ///
    /// If the kernel reads the file by passthrough from bytes of another version, the file gets a
    /// new inode, because one inode cannot have two backings.
    pub fn enter(
        &self,
        parent: &Arc<Inode>,
        name: &CStr,
        stat: &Stat,
        version: &Version,
    ) -> Arc<Inode> {
        let place = Place { parent: parent.clone(), name: name.to_owned() };
        self.enter_at(Some(place), stat, version)
    }

    /// As [`InodeTable::enter`] for a new file without a name, reached by `file` until it gets one.
    pub fn enter_nameless(&self, file: OwnedFd, stat: &Stat, version: &Version) -> Arc<Inode> {
        let inode = self.enter_at(None, stat, version);
        self.keep_as_last_way(&inode, file);
        inode
    }

    fn enter_at(&self, place: Option<Place>, stat: &Stat, version: &Version) -> Arc<Inode> {
        let id = id_of(stat);
        let mut maps = self.maps.lock();
        loop {
            let Some(known) = maps.current.get(&id).cloned() else { break };
            drop(maps);
            // Without the table's lock: an open of the file in progress may ask the PFS.
            let serves = known.kind == kind_of(stat) && known.may_serve(version);
            maps = self.maps.lock();
            if !maps.current.get(&id).is_some_and(|current| Arc::ptr_eq(current, &known)) {
                continue;
            }
            if !serves {
                break;
            }
            known.lookups.fetch_add(1, Ordering::Relaxed);
            if known.nodeid != ROOT_NODEID {
                known.remember(place);
            }
            return known;
        }
        let inode = add(&mut maps, id, kind_of(stat), place);
        inode.lookups.fetch_add(1, Ordering::Relaxed);
        inode
    }

    /// Counts one look-up of a file by a caller that may share nothing with others: the answer is
    /// an inode that no other look-up gets.
    pub fn enter_private(&self, parent: &Arc<Inode>, name: &CStr, stat: &Stat) -> Arc<Inode> {
        let place = Place { parent: parent.clone(), name: name.to_owned() };
        let inode = number(&mut self.maps.lock(), id_of(stat), kind_of(stat), Some(place));
        inode.is_private.store(true, Ordering::Release);
        inode.lookups.fetch_add(1, Ordering::Relaxed);
        inode
    }

    /// Makes the next look-up of the file answer with an inode that has room for any open, and
    /// keeps that room until the open comes. Opens that are there stay as they are: if one leaves
    /// no room, look-ups find a new inode from now on (*split*).
    pub fn reserve(&self, id: FileId, reservation: Reservation) {
        self.maps.lock().reserved.add(id, reservation);
        let Some(current) = self.current(id) else { return };
        // Without the table's lock: an open of the file in progress may ask the PFS.
        let fits = current.opens.lock().reserve(reservation);
        let mut maps = self.maps.lock();
        // An inode that came meanwhile was made with the reservation.
        if !fits && maps.current.get(&id).is_some_and(|now| Arc::ptr_eq(now, &current)) {
            add(&mut maps, id, current.kind, current.place());
        }
    }

    /// Notes that a request for what was seen at `place` is answered with `ESTALE`: the kernel
    /// looks the name up again, and may find another file.
    pub fn expect_lookup(&self, place: &Place) {
        let key = (place.parent.nodeid, place.name.clone());
        self.maps.lock().expected_lookups.add(key, Reservation::begin());
    }

    /// Notes the same of an open by thread `caller`. Its second try gets an inode of its own, so no
    /// other open can get in between, see [`InodeTable::publish`].
    pub fn expect_retry(&self, place: &Place, caller: u32) {
        self.expect_lookup(place);
        let key = (place.parent.nodeid, place.name.clone(), caller);
        let mut maps = self.maps.lock();
        maps.retried_lookups.take(&key);
        maps.expected_retries.add(key, Reservation::begin());
    }

    /// Whether this is the look-up of such a second try. The kernel may look up twice: it drops the
    /// first answer if it knew the name by another inode.
    pub fn is_retried_lookup(&self, parent: &Inode, name: &CStr, caller: u32) -> bool {
        let key = (parent.nodeid, name.to_owned(), caller);
        let mut maps = self.maps.lock();
        let again = maps.expected_retries.get(&key);
        if let Some(reservation) = again {
            maps.retried_lookups.add(key, reservation);
        }
        again.is_some()
    }

    /// Whether this open is such a second try without a look-up. Tells it once.
    pub fn is_retried_open(&self, place: &Place, caller: u32) -> bool {
        let key = (place.parent.nodeid, place.name.clone(), caller);
        let mut maps = self.maps.lock();
        maps.retried_lookups.get(&key).is_none() && maps.expected_retries.take(&key)
    }

    /// The inode was opened by `caller`. If it was private, look-ups answer with it from now on,
    /// unless the one that they answer with suits as well by `would_do`.
    pub fn publish(&self, inode: &Arc<Inode>, caller: u32, would_do: impl Fn(&Opens) -> bool) {
        if !inode.is_private.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Some(place) = inode.place() {
            let key = (place.parent.nodeid, place.name, caller);
            let mut maps = self.maps.lock();
            maps.retried_lookups.take(&key);
            maps.expected_retries.take(&key);
        }
        let before = loop {
            let current = self.current(inode.id);
            // Without the table's lock, as in `enter_at`.
            if current.as_ref().is_some_and(|current| would_do(&current.opens.lock())) {
                return;
            }
            let mut maps = self.maps.lock();
            let now = maps.current.get(&inode.id).map(Arc::as_ptr);
            if now == current.as_ref().map(Arc::as_ptr) {
                let before = maps.current.insert(inode.id, inode.clone());
                let unseen = before.filter(|inode| inode.lookups.load(Ordering::Relaxed) == 0);
                break unseen.inspect(|inode| drop(maps.by_nodeid.remove(&inode.nodeid)));
            }
        };
        if let Some(before) = before {
            self.unpin(&before);
        }
    }

    /// The time for which this name is expected to be looked up again.
    pub fn expected_lookup(&self, parent: &Inode, name: &CStr) -> Option<Reservation> {
        let expected_lookups = &self.maps.lock().expected_lookups;
        if expected_lookups.is_empty() {
            return None;
        }
        expected_lookups.get(&(parent.nodeid, name.to_owned()))
    }

    /// The kernel dropped `lookups` references to the inode. Returns it if those were the last.
    pub fn forget(&self, nodeid: u64, lookups: u64) -> Option<Arc<Inode>> {
        if nodeid == ROOT_NODEID {
            return None;
        }
        let mut maps = self.maps.lock();
        let inode = maps.by_nodeid.get(&nodeid)?;
        let before = inode.lookups.fetch_sub(lookups, Ordering::Relaxed);
        if before > lookups {
            return None;
        }
        let inode = maps.by_nodeid.remove(&nodeid)?;
        // A successor that no look-up found goes with the inode that it was made for.
        let successor = maps.current.get(&inode.id).cloned();
        if let Some(current) = successor
            && (current.nodeid == nodeid || current.lookups.load(Ordering::Relaxed) == 0)
        {
            maps.current.remove(&inode.id);
            if let Some(unseen) = maps.by_nodeid.remove(&current.nodeid) {
                self.unpin(&unseen);
            }
        }
        drop(maps);
        self.unpin(&inode);
        Some(inode)
    }

    /// Notes that the file is now seen at another place.
    pub fn moved(&self, id: FileId, parent: &Arc<Inode>, name: &CStr) {
        if let Some(inode) = self.current(id)
            && inode.nodeid != ROOT_NODEID
        {
            inode.remember(Some(Place { parent: parent.clone(), name: name.to_owned() }));
        }
    }

    /// A descriptor of the inode. If one has to be opened, this takes the rights of the thread's
    /// present identity.
    pub fn descriptor(&self, inode: &Arc<Inode>) -> Answer<InodeDescriptor> {
        if let Some(file) = inode.opens.lock().any_file() {
            return Ok(InodeDescriptor::Open(file));
        }
        self.pinned_descriptor(inode, 0).map(InodeDescriptor::Pinned)
    }

    /// The descriptor of the inode if one is held.
    pub fn pinned_already(&self, inode: &Inode) -> Option<Arc<OwnedFd>> {
        self.used(inode);
        inode.pin.lock().clone()
    }

    /// Makes sure that the inode can be reached although its name is about to go.
    pub fn pin(&self, inode: &Arc<Inode>) -> Answer {
        inode.is_last_way.store(true, Ordering::Relaxed);
        self.pinned_descriptor(inode, 0).map(|_| ())
    }

    /// As [`InodeTable::renew`] for a file whose name may soon lead elsewhere.
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

    fn pinned_descriptor(&self, inode: &Arc<Inode>, depth: usize) -> Answer<Arc<OwnedFd>> {
        self.used(inode);
        if let Some(descriptor) = &*inode.pin.lock() {
            return Ok(descriptor.clone());
        }
        let place = inode.place().filter(|_| depth < DEPTH_MAX).ok_or(Errno::STALE)?;
        let parent = self.pinned_descriptor(&place.parent, depth + 1)?;
        match look_at(&parent, &place.name) {
            Ok((descriptor, stat)) if inode.is(&stat) => Ok(self.keep(inode, descriptor)),
            Ok(_) | Err(Errno(libc::ENOENT | libc::ENOTDIR)) => {
                self.expect_lookup(&place);
                Err(Errno::STALE)
            }
            Err(errno) => Err(errno),
        }
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
        let mut pins = self.pins.lock();
        pins.push_back((Arc::downgrade(inode), now));
        if pins.len() > 2 * self.pinned_max.max(pinned) {
            // Most were closed when their inodes went.
            pins.retain(|(inode, _)| {
                inode.upgrade().is_some_and(|inode| inode.pin.lock().is_some())
            });
        }
        drop(pins);
        if pinned >= self.pinned_max {
            self.close_unused();
        }
        descriptor
    }

    /// Closes the descriptor of the inode if it is `stale`. It is opened again when needed.
    pub fn unpin_stale(&self, inode: &Inode, stale: &Arc<OwnedFd>) {
        let closed = inode.pin.lock().take_if(|pin| Arc::ptr_eq(pin, stale));
        if closed.is_some() {
            self.pinned.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn unpin(&self, inode: &Inode) {
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
            let Some((inode, used)) = self.pins.lock().pop_front() else { return };
            let Some(inode) = inode.upgrade().filter(|inode| inode.pin.lock().is_some()) else {
                continue;
            };
            let used_since = inode.last_use.load(Ordering::Relaxed);
            // A file without a name can be reached by its descriptor alone.
            if used_since == used && !self.is_nameless(&inode) {
                self.unpin(&inode);
            } else {
                self.pins.lock().push_back((Arc::downgrade(&inode), used_since));
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

impl Inode {
    fn remember(&self, place: Option<Place>) {
        let mut present = self.place.lock();
        let same = match (&*present, &place) {
            (Some(now), Some(then)) => {
                Arc::ptr_eq(&now.parent, &then.parent) && now.name == then.name
            }
            _ => false,
        };
        if !same {
            *present = place;
        }
    }
}

/// A descriptor of what `name` leads to, and the attributes of that same file.
pub fn look_at(parent: &impl AsFd, name: &CStr) -> Answer<(OwnedFd, Stat)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let descriptor = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::statat(&descriptor, c"", AtFlags::EMPTY_PATH)?;
    Ok((descriptor, stat))
}

/// Makes an inode that no look-up finds.
fn number(maps: &mut Maps, id: FileId, kind: u32, place: Option<Place>) -> Arc<Inode> {
    maps.last_nodeid += 1;
    let opens = Opens::new(maps.reserved.get(&id));
    let inode = new_inode(maps.last_nodeid, id, kind, place, opens);
    maps.by_nodeid.insert(inode.nodeid, inode.clone());
    inode
}

fn add(maps: &mut Maps, id: FileId, kind: u32, place: Option<Place>) -> Arc<Inode> {
    let inode = number(maps, id, kind, place);
    maps.current.insert(id, inode.clone());
    inode
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with the inode of one file, its directory and its attributes.
    fn table_of_one(directory: &std::path::Path) -> (Arc<InodeTable>, Arc<Inode>, Stat) {
        std::fs::write(directory.join("file"), b"bytes").unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory, flags, Mode::empty()).unwrap();
        let stat = rustix::fs::statat(&root, c"file", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let inodes = Arc::new(InodeTable::new(root, 8).unwrap());
        let version = crate::inode::attributes::version_of(&stat);
        let inode = inodes.enter(&inodes.get(ROOT_NODEID).unwrap(), c"file", &stat, &version);
        (inodes, inode, stat)
    }

    /// Waits until `seen` holds of the table, which must not stay locked.
    fn wait_for(inodes: &InodeTable, seen: impl Fn(&Maps) -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !inodes.maps.try_lock_until(deadline).is_some_and(|maps| seen(&maps)) {
            assert!(std::time::Instant::now() < deadline, "the table stays locked");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_waits_for_an_open_under_way_leaves_the_table_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let (inodes, inode, stat) = table_of_one(directory.path());
        std::thread::scope(|scope| {
            let under_way = inode.opens.lock();
            scope.spawn(|| inodes.reserve(inode.id, Reservation::begin()));
            wait_for(&inodes, |maps| maps.reserved.get(&inode.id).is_some());
            drop(under_way);
        });
        let root = inodes.get(ROOT_NODEID).unwrap();
        let apart = inodes.enter_private(&root, c"file", &stat);
        inodes.expect_retry(&apart.place().unwrap(), 7);
        let key = (ROOT_NODEID, c"file".to_owned(), 7);
        std::thread::scope(|scope| {
            let under_way = inode.opens.lock();
            scope.spawn(|| inodes.publish(&apart, 7, |_| false));
            wait_for(&inodes, |maps| maps.expected_retries.get(&key).is_none());
            drop(under_way);
        });
        assert!(Arc::ptr_eq(&inodes.current(inode.id).unwrap(), &apart));
    }

    #[test]
    fn a_reservation_outlives_the_inodes_that_the_kernel_forgets_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), b"bytes").unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap();
        let stat = rustix::fs::statat(&root, c"file", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let inodes = InodeTable::new(root, 8).unwrap();
        let look_up = || {
            let version = crate::inode::attributes::version_of(&stat);
            inodes.enter(&inodes.get(ROOT_NODEID).unwrap(), c"file", &stat, &version)
        };
        let first = look_up();
        assert!(!first.opens.lock().is_reserved());
        inodes.reserve(first.id, Reservation::begin());
        for _ in 0..2 {
            let next = look_up();
            assert!(next.opens.lock().is_reserved());
            inodes.forget(next.nodeid, 2);
        }
        assert_ne!(look_up().nodeid, first.nodeid);
    }

    #[test]
    fn a_stale_descriptor_goes_and_one_that_came_since_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (inodes, inode, _) = table_of_one(directory.path());
        let again = || look_at(&inodes.root.pin.lock().clone().unwrap(), c"file").unwrap().0;
        let first = inodes.keep(&inode, again());
        inodes.renew(&inode, again());
        let second = inodes.pinned_already(&inode).unwrap();
        inodes.unpin_stale(&inode, &first);
        assert!(Arc::ptr_eq(&inodes.pinned_already(&inode).unwrap(), &second));
        assert_eq!(inodes.pinned.load(Ordering::Relaxed), 1);
        inodes.unpin_stale(&inode, &second);
        assert!(inodes.pinned_already(&inode).is_none());
        assert_eq!(inodes.pinned.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_look_up_holds_a_file_whose_removal_would_leave_it_under_another_name() {
        let directory = tempfile::tempdir().unwrap();
        let (inodes, file, stat) = table_of_one(directory.path());
        let mut inodes = Arc::into_inner(inodes).unwrap();
        assert!(!inodes.hides_held, "a local file system");
        inodes.hides_held = true;
        std::fs::create_dir(directory.path().join("below")).unwrap();
        let root = inodes.get(ROOT_NODEID).unwrap();
        let (descriptor, of_below) = look_at(&inodes.descriptor(&root).unwrap(), c"below").unwrap();
        let below = inodes.enter(&root, c"below", &of_below, &version_of(&of_below));
        inodes.renew(&below, descriptor);
        assert!(inodes.pinned_already(&below).is_some(), "directories are removed all the same");
        inodes.renew(&file, look_at(&inodes.descriptor(&root).unwrap(), c"file").unwrap().0);
        assert!(inodes.pinned_already(&file).is_none());
        assert!(file.is(&stat));
        inodes.hides_held = false;
        inodes.renew(&file, look_at(&inodes.descriptor(&root).unwrap(), c"file").unwrap().0);
        assert!(inodes.pinned_already(&file).is_some());
    }
}
