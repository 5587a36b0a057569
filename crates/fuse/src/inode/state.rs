//! [`Inode`]: one file as the kernel knows it.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::Stat;
use tidepool_proto::{FileId, OpenFile, Version};

use crate::inode::attributes::{id_of, kind_of, version_of};
use crate::inode::opens::Opens;

/// How often an inode is looked at whose writers may be ahead of what it shows, and the pause.
const FOLLOW_ATTEMPTS: usize = 5;
const FOLLOW_PAUSE: Duration = Duration::from_millis(1);

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
    /// The kernel's number. Several may stand for one lower file, see `InodeTable::reserve`.
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
    pub(super) is_private: AtomicBool,
    pub(super) place: Mutex<Option<Place>>,
    /// Whether it was seen at several places: the last one may be in a directory that not all who
    /// use the file may enter.
    has_several_places: AtomicBool,
    pub(super) pin: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether the descriptor may be the only way left to the file: one of its names was to go.
    pub(super) is_last_way: AtomicBool,
    pub(super) last_use: AtomicU64,
    pub(super) lookups: AtomicU64,
}

/// What the kernel knew of a file when it last had reason to drop its pages.
#[derive(Clone, Copy, Debug)]
pub struct KernelView {
    /// The kernel compares its length and modification time.
    pub version: Version,
    /// Whether a later change may not show in these (see `FileService::is_racy`).
    pub is_racy: bool,
    /// The number of the content that was read by pages; 0 is the file as it was at that moment.
    pub content: Option<u64>,
}

impl Inode {
    /// An inode without look-ups.
    pub fn new(nodeid: u64, id: FileId, kind: u32, place: Option<Place>, opens: Opens) -> Self {
        Inode {
            nodeid,
            id,
            kind,
            opens: Mutex::new(opens),
            has_pages: AtomicBool::new(false),
            is_notified: AtomicBool::new(false),
            kernel_view: Mutex::default(),
            is_private: AtomicBool::new(false),
            place: Mutex::new(place),
            has_several_places: AtomicBool::new(false),
            pin: Mutex::new(None),
            is_last_way: AtomicBool::new(false),
            last_use: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
        }
    }

    /// Where the inode was seen last; `None` for the root and for a file that has no name yet.
    pub fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    /// Whether these are attributes of its file.
    pub fn is(&self, stat: &Stat) -> bool {
        id_of(stat) == self.id && kind_of(stat) == self.kind
    }

    /// Whether look-ups of its file at `version` may be answered with it.
    pub fn may_serve(&self, version: &Version) -> bool {
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

    /// Notes where the inode is seen now.
    pub fn remember(&self, place: Option<Place>) {
        let mut present = self.place.lock();
        let same = match (&*present, &place) {
            (Some(now), Some(then)) => {
                Arc::ptr_eq(&now.parent, &then.parent) && now.name == then.name
            }
            _ => false,
        };
        if !same {
            let is_another = present.is_some() && place.is_some();
            self.has_several_places.fetch_or(is_another, Ordering::AcqRel);
            *present = place;
        }
    }

    /// Whether it was seen at another place than the last one before.
    pub fn has_several_places(&self) -> bool {
        self.has_several_places.load(Ordering::Acquire)
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
