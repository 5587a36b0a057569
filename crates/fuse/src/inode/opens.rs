//! [`Opens`]: the opens of one inode, and the decision how the kernel may use a new one.
//!
//! * While an inode is open by passthrough, the kernel takes further opens of it only by
//!   passthrough with the same backing: a resident segment for readers, or the PFS file itself
//!   while a new file is written. An open to append beside a passthrough writer is passthrough by
//!   name and asks the mount at each write.
//! * An inode that was opened otherwise may have been mapped, which the kernel does not report, so
//!   it takes no passthrough open until the last of those opens is closed.
//! * The kernel keeps one set of pages for an inode, so all its readers see the same version.
//! * A write that appends past the page cache moves the length of the inode at once, and a page
//!   that is being read at that moment would end in zeros. So such opens and opens that use pages
//!   are on different inodes.
//!
//! * The kernel writes by itself without the right to keep set-id bits. So once a file has them, a
//!   new open to write it beside a passthrough writer asks the mount at each write as well. It
//!   stays on the inode: pages of two inodes would not agree, and the later write-back of one would
//!   undo writes to the other.
//!
//! An open that does not fit gets another inode for the same file (*split*).

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tidepool_proto::{OpenFile, PassthroughPin, Version};

use crate::inode::attributes::{attributes_known, version_of};
use crate::inode::reservations::Reservation;
use crate::protocol::device::Device;

/// A file registered with the kernel for passthrough, and the pin that keeps it resident.
pub struct Backing {
    pin: Arc<dyn PassthroughPin>,
    device: Arc<Device>,
    backing_id: i32,
}

impl Backing {
    /// Registers the pinned file.
    pub fn register(pin: Arc<dyn PassthroughPin>, device: Arc<Device>) -> io::Result<Self> {
        let backing_id = device.register_backing(pin.descriptor())?;
        Ok(Backing { pin, device, backing_id })
    }

    fn takes(&self, file: &dyn OpenFile, mode: OpenMode) -> bool {
        self.pin.is_lower() || (mode.reads_only && self.pin.serves(&file.version()))
    }

    /// How the kernel uses one more open that it takes. By itself it would go on to append after
    /// the flag was removed, and take set-id bits away that the caller may keep.
    fn decision(&self, file: &dyn OpenFile, mode: OpenMode) -> OpenDecision {
        let asks = !mode.reads_only && (mode.appends || has_set_id(file.lower()));
        match asks {
            true => OpenDecision::MappedPassthrough(self.backing_id),
            false => OpenDecision::Passthrough(self.backing_id),
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Err(error) = self.device.unregister_backing(self.backing_id) {
            tracing::debug!(%error, "the kernel did not know a passthrough file any more");
        }
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backing").field("backing_id", &self.backing_id).finish_non_exhaustive()
    }
}

/// Whether a write may have to clear set-id bits, as far as this machine knows without asking the
/// PFS, which was asked when the file was opened.
pub fn has_set_id(file: BorrowedFd<'_>) -> bool {
    attributes_known(&file).is_ok_and(|stat| stat.st_mode & 0o6000 != 0)
}

/// How the kernel uses an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenDecision {
    /// Reads and writes come to the mount.
    Direct,
    /// The kernel reads and writes the registered file with this number.
    Passthrough(i32),
    /// The kernel maps the registered file with this number; reads and writes come to the mount.
    MappedPassthrough(i32),
    /// Not on this inode: the file needs another one for this open.
    Split,
}

/// How the kernel reads and writes for an open that is not passthrough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPath {
    /// It asks the mount each time.
    Direct,
    /// Through its page cache.
    PageCache,
    /// It appends past its page cache, which other opens use.
    PastCache,
}

impl AccessPath {
    /// For an open on a mount whose direct opens the kernel can map (`direct_io`), or cannot.
    pub fn of(direct_io: bool, append: bool) -> Self {
        match (direct_io, append) {
            (true, _) => AccessPath::Direct,
            (false, true) => AccessPath::PastCache,
            (false, false) => AccessPath::PageCache,
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenMode {
    /// Nothing is written through it.
    pub reads_only: bool,
    pub access_path: AccessPath,
    /// With `O_APPEND`. A kernel that writes by itself would go on appending after the program has
    /// taken the flag from its descriptor.
    pub appends: bool,
}

/// One open of the inode.
struct Open {
    handle: u64,
    file: Arc<dyn OpenFile>,
    mode: OpenMode,
    /// It read an earlier version by pages, and the kernel has written a later one into them.
    is_excluded: bool,
}

/// The opens of one inode.
#[derive(Default)]
pub struct Opens {
    reservation: Option<Reservation>,
    backing: Option<Backing>,
    files: Vec<Open>,
}

/// Whether both opens read the same bytes.
fn read_the_same(one: &dyn OpenFile, other: &dyn OpenFile) -> bool {
    // What an open reads may change between the two questions below.
    if std::ptr::addr_eq(one, other) {
        return true;
    }
    // Two without a cached version both read the file as it is now.
    one.cached_version_number() == other.cached_version_number()
        || shown(one).agrees_with(&shown(other))
}

/// The version that is read through an open now. Asks the PFS if none is cached for it.
fn shown(file: &dyn OpenFile) -> Version {
    match (file.cached_version_number(), rustix::fs::fstat(file.lower())) {
        (0, Ok(now)) => version_of(&now),
        _ => file.version(),
    }
}

impl fmt::Debug for Opens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opens")
            .field("backing", &self.backing)
            .field("files", &self.files.len())
            .finish()
    }
}

impl Opens {
    /// Of a new inode; `reservation` is that of its file, if there is one.
    pub fn new(reservation: Option<Reservation>) -> Self {
        Opens { reservation, ..Opens::default() }
    }

    /// Keeps passthrough to a segment off the inode while the reservation lasts. Returns whether
    /// that is possible: not while the inode is open so.
    pub fn reserve(&mut self, reservation: Reservation) -> bool {
        let fits = self.backing.as_ref().is_none_or(|backing| backing.pin.is_lower());
        if fits {
            self.reservation = Some(reservation);
        }
        fits
    }

    /// Whether new passthrough opens are kept off the inode.
    pub fn is_reserved(&self) -> bool {
        self.reservation.as_ref().is_some_and(Reservation::lasts)
    }

    /// The opens that only read and see what the inode shows.
    fn readers(&self) -> impl Iterator<Item = &Open> {
        self.files.iter().filter(|open| open.mode.reads_only && !open.is_excluded)
    }

    /// Whether the inode can answer look-ups of the file at `version`. `has_pages` tells that the
    /// kernel has bytes of it.
    pub fn may_serve(&self, version: &Version, has_pages: bool) -> bool {
        let reads = || self.readers().next().is_some();
        let shows_another =
            || reads() && self.version_shown().is_some_and(|shown| !shown.agrees_with(version));
        match &self.backing {
            Some(backing) => backing.pin.serves(version),
            None => !has_pages || !shows_another(),
        }
    }

    /// Whether a write in progress may show in the file's attributes before it shows in what
    /// `may_serve` compares.
    pub fn may_follow(&self) -> bool {
        self.files
            .iter()
            .any(|open| open.mode.access_path == AccessPath::PageCache && !open.mode.reads_only)
    }

    /// Whether the inode is open and `file` would fit in. An open by pages needs another one by
    /// pages.
    pub fn has_others_like(&self, file: &dyn OpenFile, mode: OpenMode) -> bool {
        let fits = match &self.backing {
            Some(backing) => backing.pin.serves(&file.version()),
            None => self.readers_see_same(file),
        };
        let has_path = |open: &Open| {
            mode.access_path != AccessPath::PageCache
                || open.mode.access_path == AccessPath::PageCache
        };
        fits && self.files.iter().any(has_path)
    }

    /// Whether the kernel reads a segment by itself.
    pub fn reads_segment(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| !backing.pin.is_lower())
    }

    /// Any open of the file, for its descriptor.
    pub fn any_file(&self) -> Option<Arc<dyn OpenFile>> {
        self.files.first().map(|open| open.file.clone())
    }

    /// The version that readers see, unless some read the file as it is now. With pages the kernel
    /// ends the file there for writers too, which follow it to later versions.
    pub fn version_shown(&self) -> Option<Version> {
        let by_pages = self.files.iter().any(|open| open.mode.access_path == AccessPath::PageCache);
        let no_version = |open: &Open| {
            !(open.mode.reads_only || by_pages) || open.file.cached_version_number() == 0
        };
        if self.backing.is_some() || self.files.iter().any(no_version) {
            return None;
        }
        self.shown().map(|open| open.file.version())
    }

    fn shown(&self) -> Option<&Open> {
        self.readers().next().or(self.writer())
    }

    /// The open whose bytes the inode shows.
    pub fn file_shown(&self) -> Option<Arc<dyn OpenFile>> {
        self.shown().map(|open| open.file.clone())
    }

    /// Whether these bytes are in memory only, so that the PFS has another length.
    pub fn shows_memory_only(&self) -> bool {
        self.shown().is_some_and(|open| open.file.is_memory_only())
    }

    fn writer(&self) -> Option<&Open> {
        self.files.iter().find(|open| !open.mode.reads_only)
    }

    /// A writer by pages, if no reader needs an earlier version.
    pub fn writer_by_pages(&self) -> Option<Arc<dyn OpenFile>> {
        let alone = self.backing.is_none() && self.readers().next().is_none();
        let writer =
            self.writer().filter(|open| alone && open.mode.access_path == AccessPath::PageCache);
        writer.map(|open| open.file.clone())
    }

    /// The number of the content that is read from pages; 0 is the file as it is now.
    pub fn cached_version_of_pages(&self) -> Option<u64> {
        let by_pages =
            |open: &&Open| open.mode.access_path == AccessPath::PageCache && !open.is_excluded;
        let of = |open: &Open| open.file.cached_version_number();
        if self.backing.is_some() {
            return None;
        }
        if self.files.iter().any(|open| by_pages(&open) && of(open) == 0) {
            return Some(0);
        }
        self.readers().find(by_pages).or(self.files.iter().find(by_pages)).map(of)
    }

    /// Excludes opens that read an earlier version from pages into which the kernel has put changes
    /// made by `file`. Returns whether there are any.
    pub fn exclude_other_readers(&mut self, file: &dyn OpenFile) -> bool {
        let mut any = false;
        for open in self.files.iter_mut().filter(|open| open.mode.reads_only) {
            let other =
                || open.file.cached_version_number() != 0 && !read_the_same(&*open.file, file);
            if !open.is_excluded && other() {
                open.is_excluded = true;
                any = true;
            }
        }
        any
    }

    /// Whether this open was excluded so.
    pub fn is_excluded(&self, file: &dyn OpenFile) -> bool {
        let is_this = |open: &&Open| std::ptr::addr_eq(&*open.file, file);
        self.files.iter().find(is_this).is_some_and(|open| open.is_excluded)
    }

    /// Whether `file` and all readers see the same bytes. Readers agree among themselves.
    pub fn readers_see_same(&self, file: &dyn OpenFile) -> bool {
        self.readers().next().is_none_or(|reader| read_the_same(&*reader.file, file))
    }

    /// Whether opens in this mode may not share the inode with those that are there.
    fn conflicts_with(&self, mode: OpenMode) -> bool {
        let appends = mode.access_path == AccessPath::PastCache;
        self.files.iter().any(|open| (open.mode.access_path == AccessPath::PastCache) != appends)
    }

    /// Decides how the kernel uses the open `handle` of `file`, and counts it unless it must split.
    /// `register` registers a pin, if passthrough is possible at all.
    pub fn admit(
        &mut self,
        handle: u64,
        file: &Arc<dyn OpenFile>,
        mode: OpenMode,
        register: Option<impl FnOnce(Arc<dyn PassthroughPin>) -> Option<Backing>>,
    ) -> OpenDecision {
        let is_free = self.files.is_empty() && !self.is_reserved();
        let decision = match &self.backing {
            Some(backing) if backing.takes(&**file, mode) => backing.decision(&**file, mode),
            Some(_) => return OpenDecision::Split,
            None if !self.readers_see_same(&**file) || self.conflicts_with(mode) => {
                return OpenDecision::Split;
            }
            None if is_free => {
                let pin = |file: &Arc<dyn OpenFile>| match mode {
                    OpenMode { reads_only: true, .. } => file.passthrough(),
                    OpenMode { appends: true, .. } => None,
                    _ => file.write_directly(),
                };
                self.backing = register.and_then(|register| pin(file).and_then(register));
                self.backing.as_ref().map_or(OpenDecision::Direct, |backing| {
                    OpenDecision::Passthrough(backing.backing_id)
                })
            }
            None => OpenDecision::Direct,
        };
        if mode.reads_only && matches!(decision, OpenDecision::Passthrough(_)) {
            file.count_passthrough();
        }
        self.add(handle, file, mode);
        decision
    }

    /// Counts an open that does not fit and cannot have another inode, if the kernel allows that.
    pub fn admit_regardless(
        &mut self,
        handle: u64,
        file: &Arc<dyn OpenFile>,
        mode: OpenMode,
    ) -> Option<OpenDecision> {
        if self.reads_segment() {
            return None;
        }
        self.add(handle, file, mode);
        let written =
            self.backing.as_ref().map(|lower| OpenDecision::Passthrough(lower.backing_id));
        Some(written.unwrap_or(OpenDecision::Split))
    }

    /// Counts an open.
    pub fn add(&mut self, handle: u64, file: &Arc<dyn OpenFile>, mode: OpenMode) {
        self.files.push(Open { handle, file: file.clone(), mode, is_excluded: false });
    }

    /// Ends the open `handle`. Returns the backing when that was the last one: the caller drops it
    /// without locks, because the node may ask the PFS then.
    #[must_use = "its end may ask the PFS, and look-ups wait for the lock of these opens"]
    pub fn leave(&mut self, handle: u64) -> Option<Backing> {
        self.files.retain(|open| open.handle != handle);
        if self.files.is_empty() { self.backing.take() } else { None }
    }
}
