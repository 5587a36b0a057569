//! [`InodeTable`]: the inodes that the kernel knows, by node number and by lower file.
//!
//! An inode is found by the (device, inode) of the lower file and remembers the place where it was
//! seen last. If its descriptor was closed, it is opened again from the place, with a check that it
//! still leads to the same file (`ESTALE` otherwise). The table caches no attributes and no names:
//! every look-up asks the PFS.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Stat};
use tidepool_proto::{FileId, Version};

use crate::inode::attributes::{id_of, kind_of};
use crate::inode::opens::Opens;
use crate::inode::pins::{Pins, look_at};
use crate::inode::reservations::{Reservation, Reservations};
use crate::inode::state::{Inode, InodeDescriptor, Place};
use crate::protocol::abi::ROOT_NODEID;
use crate::protocol::request::{Answer, Errno};

/// More than any path that the kernel can walk: places that are deeper form a circle.
const DEPTH_MAX: usize = 2_048;

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
    /// The descriptors that inodes hold.
    pub pins: Pins,
}

impl InodeTable {
    /// A table whose root is `root`, holding up to `pinned_max` descriptors.
    pub fn new(root: OwnedFd, pinned_max: usize) -> std::io::Result<Self> {
        let stat = rustix::fs::statat(&root, c"", AtFlags::EMPTY_PATH)?;
        let pins = Pins::new(&root, pinned_max)?;
        let inode = Inode::new(ROOT_NODEID, id_of(&stat), kind_of(&stat), None, Opens::default());
        let inode = Arc::new(inode);
        *inode.pin.lock() = Some(Arc::new(root));
        let mut maps = Maps { last_nodeid: ROOT_NODEID, ..Maps::default() };
        maps.by_nodeid.insert(ROOT_NODEID, inode.clone());
        maps.current.insert(inode.id, inode.clone());
        Ok(InodeTable { root: inode, maps: Mutex::new(maps), pins })
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
        self.pins.keep_as_last_way(&inode, file);
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
            self.pins.remove(&before);
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
                self.pins.remove(&unseen);
            }
        }
        drop(maps);
        self.pins.remove(&inode);
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

    /// Makes sure that the inode can be reached although its name is about to go.
    pub fn pin(&self, inode: &Arc<Inode>) -> Answer {
        inode.is_last_way.store(true, Ordering::Relaxed);
        self.pinned_descriptor(inode, 0).map(|_| ())
    }

    fn pinned_descriptor(&self, inode: &Arc<Inode>, depth: usize) -> Answer<Arc<OwnedFd>> {
        if let Some(descriptor) = self.pins.get(inode) {
            return Ok(descriptor);
        }
        let place = inode.place().filter(|_| depth < DEPTH_MAX).ok_or(Errno::STALE)?;
        let parent = self.pinned_descriptor(&place.parent, depth + 1)?;
        match look_at(&parent, &place.name) {
            Ok((descriptor, stat)) if inode.is(&stat) => Ok(self.pins.keep(inode, descriptor)),
            Ok(_) | Err(Errno(libc::ENOENT | libc::ENOTDIR)) => {
                self.expect_lookup(&place);
                Err(Errno::STALE)
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Makes an inode that no look-up finds.
fn number(maps: &mut Maps, id: FileId, kind: u32, place: Option<Place>) -> Arc<Inode> {
    maps.last_nodeid += 1;
    let opens = Opens::new(maps.reserved.get(&id));
    let inode = Arc::new(Inode::new(maps.last_nodeid, id, kind, place, opens));
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
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::inode::attributes::version_of;

    /// A table with the inode of one file, its directory and its attributes.
    fn table_of_one(directory: &std::path::Path) -> (Arc<InodeTable>, Arc<Inode>, Stat) {
        std::fs::write(directory.join("file"), b"bytes").unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory, flags, Mode::empty()).unwrap();
        let stat = rustix::fs::statat(&root, c"file", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let inodes = Arc::new(InodeTable::new(root, 8).unwrap());
        let version = version_of(&stat);
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
            let version = version_of(&stat);
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
        let first = inodes.pins.keep(&inode, again());
        inodes.pins.renew(&inode, again());
        let second = inodes.pins.get(&inode).unwrap();
        inodes.pins.remove_stale(&inode, &first);
        assert!(Arc::ptr_eq(&inodes.pins.get(&inode).unwrap(), &second));
        assert_eq!(inodes.pins.pinned.load(Ordering::Relaxed), 1);
        inodes.pins.remove_stale(&inode, &second);
        assert!(inodes.pins.get(&inode).is_none());
        assert_eq!(inodes.pins.pinned.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_look_up_holds_a_file_whose_removal_would_leave_it_under_another_name() {
        let directory = tempfile::tempdir().unwrap();
        let (inodes, file, stat) = table_of_one(directory.path());
        let mut inodes = Arc::into_inner(inodes).unwrap();
        assert!(!inodes.pins.hides_held, "a local file system");
        inodes.pins.hides_held = true;
        std::fs::create_dir(directory.path().join("below")).unwrap();
        let root = inodes.get(ROOT_NODEID).unwrap();
        let (descriptor, of_below) = look_at(&inodes.descriptor(&root).unwrap(), c"below").unwrap();
        let below = inodes.enter(&root, c"below", &of_below, &version_of(&of_below));
        inodes.pins.renew(&below, descriptor);
        assert!(inodes.pins.get(&below).is_some(), "directories are removed all the same");
        inodes.pins.renew(&file, look_at(&inodes.descriptor(&root).unwrap(), c"file").unwrap().0);
        assert!(inodes.pins.get(&file).is_none());
        assert!(file.is(&stat));
        inodes.pins.hides_held = false;
        inodes.pins.renew(&file, look_at(&inodes.descriptor(&root).unwrap(), c"file").unwrap().0);
        assert!(inodes.pins.get(&file).is_some());
    }
}
