//! How a node is open, and what a new open of it may be.
//!
//! The kernel's rule: while a node is open by passthrough, every other open of it must be
//! passthrough with the same backing (a resident segment for readers, or the PFS file itself while
//! a new file is written); and a node that was opened otherwise may have been mapped, which the
//! kernel does not tell, so it takes no passthrough open until the last of those is closed. Who
//! appends beside a passthrough writer is passthrough by name and asks us each time. The
//! kernel keeps one set of pages for a node, so all who read only see the same bytes. Who appends
//! past the page cache moves the length of the node at once, and a page that is just being read
//! would show zeros up to it: those who have pages are on another node. An open that fits none of
//! this needs another node for the same file (*split*).

use std::fmt;
use std::io;
use std::sync::Arc;

use tidepool_proto::{OpenFile, PassthroughPin, Version};

use crate::inode::attributes::version_of;
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

/// What an open becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenDecision {
    /// Reads and writes come to us.
    Direct,
    /// The kernel reads the registered file with this number.
    Passthrough(i32),
    /// This node cannot have such an open now; another node for the file can.
    Split,
}

/// By which way the kernel reads and writes for an open that is not passthrough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPath {
    /// It asks us each time.
    Direct,
    /// Through its page cache.
    PageCache,
    /// It appends past its page cache, which others use.
    PastCache,
}

impl AccessPath {
    /// Of an open on a mount where the kernel can map direct opens, or cannot.
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
    /// See [`AccessPath`].
    pub access_path: AccessPath,
    /// At the end. The kernel would go on so when it writes by itself, also where the program
    /// takes the flag from the descriptor.
    pub appends: bool,
}

/// One open of the node.
struct Open {
    handle: u64,
    file: Arc<dyn OpenFile>,
    mode: OpenMode,
    /// It read an earlier version by pages, and the kernel wrote a later one there.
    is_excluded: bool,
}

/// The opens of one node.
#[derive(Default)]
pub struct Opens {
    reservation: Option<Reservation>,
    backing: Option<Backing>,
    files: Vec<Open>,
}

/// Whether what is read through one open and through the other is the same.
fn read_the_same(one: &dyn OpenFile, other: &dyn OpenFile) -> bool {
    // What is read through an open may move between two questions: it is always like itself.
    if std::ptr::addr_eq(one, other) {
        return true;
    }
    // Two without a content both read the file as it is at the moment.
    one.content_number() == other.content_number() || shown(one).agrees_with(&shown(other))
}

/// The version that is read through an open now. Asks the PFS where nothing is kept for it.
fn shown(file: &dyn OpenFile) -> Version {
    match (file.content_number(), rustix::fs::fstat(file.lower())) {
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
    /// Of a new node; `reservation` is that of its file, if there is one.
    pub fn new(reservation: Option<Reservation>) -> Self {
        Opens { reservation, ..Opens::default() }
    }

    /// Keeps the node from passthrough to a segment for the time of the reservation. Answers
    /// whether it can: not while it is open so.
    pub fn reserve(&mut self, reservation: Reservation) -> bool {
        let fits = self.backing.as_ref().is_none_or(|backing| backing.pin.is_lower());
        if fits {
            self.reservation = Some(reservation);
        }
        fits
    }

    /// Whether the node is kept from new passthrough opens.
    pub fn is_reserved(&self) -> bool {
        self.reservation.as_ref().is_some_and(Reservation::lasts)
    }

    /// Those who only read and see what the node shows.
    fn readers(&self) -> impl Iterator<Item = &Open> {
        self.files.iter().filter(|open| open.mode.reads_only && !open.is_excluded)
    }

    /// Whether the node can answer look-ups of the file at `version`; `has_pages` if the kernel
    /// has bytes of it.
    pub fn may_serve(&self, version: &Version, has_pages: bool) -> bool {
        let reads = || self.readers().next().is_some();
        let shows_another =
            || reads() && self.version_shown().is_some_and(|shown| !shown.agrees_with(version));
        match &self.backing {
            Some(backing) => backing.pin.serves(version),
            None => !has_pages || !shows_another(),
        }
    }

    /// Whether a write of ours that is under way may show in the file's attributes and not yet in
    /// what `may_serve` goes by.
    pub fn may_follow(&self) -> bool {
        self.files
            .iter()
            .any(|open| open.mode.access_path == AccessPath::PageCache && !open.mode.reads_only)
    }

    /// Whether the node is open and `file` would fit in; and with pages, if that has any.
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

    /// What those who read see, where they do not read the file as it is at the moment. The page
    /// cache ends there for writers as well, who follow the file from version to version.
    pub fn version_shown(&self) -> Option<Version> {
        let by_pages = self.files.iter().any(|open| open.mode.access_path == AccessPath::PageCache);
        let no_version =
            |open: &Open| !(open.mode.reads_only || by_pages) || open.file.content_number() == 0;
        if self.backing.is_some() || self.files.iter().any(no_version) {
            return None;
        }
        self.shown().map(|open| open.file.version())
    }

    fn shown(&self) -> Option<&Open> {
        self.readers().next().or(self.writer())
    }

    /// The open that the node shows the bytes of.
    pub fn file_shown(&self) -> Option<Arc<dyn OpenFile>> {
        self.shown().map(|open| open.file.clone())
    }

    /// Whether that is of bytes in memory, whose length the file on the PFS does not have.
    pub fn shows_memory_only(&self) -> bool {
        self.shown().is_some_and(|open| open.file.is_memory_only())
    }

    fn writer(&self) -> Option<&Open> {
        self.files.iter().find(|open| !open.mode.reads_only)
    }

    /// Who writes by pages, where nobody reads a version that has to stay.
    pub fn writer_by_pages(&self) -> Option<Arc<dyn OpenFile>> {
        let alone = self.backing.is_none() && self.readers().next().is_none();
        let writer =
            self.writer().filter(|open| alone && open.mode.access_path == AccessPath::PageCache);
        writer.map(|open| open.file.clone())
    }

    /// The content that is read from pages; 0: the file as it is at the moment.
    pub fn content_of_pages(&self) -> Option<u64> {
        let by_pages =
            |open: &&Open| open.mode.access_path == AccessPath::PageCache && !open.is_excluded;
        let of = |open: &Open| open.file.content_number();
        if self.backing.is_some() {
            return None;
        }
        if self.files.iter().any(|open| by_pages(&open) && of(open) == 0) {
            return Some(0);
        }
        self.readers().find(by_pages).or(self.files.iter().find(by_pages)).map(of)
    }

    /// The kernel changed its pages of the node for `file`. Who read an earlier version there
    /// cannot any more; whether there is any.
    pub fn exclude_other_readers(&mut self, file: &dyn OpenFile) -> bool {
        let mut any = false;
        for open in self.files.iter_mut().filter(|open| open.mode.reads_only) {
            let other = || open.file.content_number() != 0 && !read_the_same(&*open.file, file);
            if !open.is_excluded && other() {
                open.is_excluded = true;
                any = true;
            }
        }
        any
    }

    /// Whether this is such a reader.
    pub fn is_excluded(&self, file: &dyn OpenFile) -> bool {
        let is_this = |open: &&Open| std::ptr::addr_eq(&*open.file, file);
        self.files.iter().find(is_this).is_some_and(|open| open.is_excluded)
    }

    /// Whether `file` and those who only read see the same bytes. They agree among themselves.
    pub fn readers_see_same(&self, file: &dyn OpenFile) -> bool {
        self.readers().next().is_none_or(|reader| read_the_same(&*reader.file, file))
    }

    /// Whether opens of this manner stay off the node because of those that are there.
    fn conflicts_with(&self, mode: OpenMode) -> bool {
        let appends = mode.access_path == AccessPath::PastCache;
        self.files.iter().any(|open| (open.mode.access_path == AccessPath::PastCache) != appends)
    }

    /// Decides what the open `handle` of `file` becomes and, unless it must split, counts it.
    /// `register` registers a pin, where passthrough is possible at all.
    pub fn admit(
        &mut self,
        handle: u64,
        file: &Arc<dyn OpenFile>,
        mode: OpenMode,
        register: Option<impl FnOnce(Arc<dyn PassthroughPin>) -> Option<Backing>>,
    ) -> OpenDecision {
        let is_free = self.files.is_empty() && !self.is_reserved();
        let decision = match &self.backing {
            Some(backing) if backing.takes(&**file, mode) => {
                OpenDecision::Passthrough(backing.backing_id)
            }
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

    /// Counts an open that does not fit and cannot have another node, if that is possible at all.
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

    /// The open `handle` is over. Returns what the last one leaves: to be dropped without locks,
    /// for the node may have to ask the PFS then.
    #[must_use = "its end may ask the PFS, and look-ups wait for the lock of these opens"]
    pub fn leave(&mut self, handle: u64) -> Option<Backing> {
        self.files.retain(|open| open.handle != handle);
        if self.files.is_empty() { self.backing.take() } else { None }
    }
}
