//! [`Filesystem`]: the state that all operations share (the node, the tables) and helpers that
//! several of them use. The operations are in the other files of this folder.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use tidepool_proto::trace::Tracer;
use tidepool_proto::{Access, FileService, OpenFile, OpenRequest};

use crate::callers::credentials::Credentials;
use crate::callers::shares::Shares;
use crate::callers::thread_pool::ThreadPool;
use crate::callers::turns::{AWAY_MAX, Turns};
use crate::inode::attributes::{Before, attributes_of, id_of, is_regular, version_of};
use crate::inode::directory_handle::DirectoryHandle;
use crate::inode::file_handle::FileHandle;
use crate::inode::handles::Handles;
use crate::inode::lock_table::LockTable;
use crate::inode::lookups::Lookups;
use crate::inode::pages::Pages;
use crate::inode::state::{Inode, InodeDescriptor};
use crate::inode::table::InodeTable;
use crate::protocol::abi::{Attributes, EntryOut, InHeader};
use crate::protocol::device::Device;
use crate::protocol::request::{Answer, Errno};

/// The state of a mount.
pub struct Filesystem {
    pub(crate) service: Arc<dyn FileService>,
    pub(crate) inodes: InodeTable,
    pub(crate) files: Handles<FileHandle>,
    pub(crate) directories: Handles<DirectoryHandle>,
    pub(crate) credentials: Credentials,
    pub(crate) locks: LockTable,
    pub(crate) lookups: Lookups,
    pub(crate) shares: Arc<Shares>,
    pub(crate) turns: Turns,
    pub(crate) threads: ThreadPool,
    pub(crate) pages: Pages,
    pub(crate) passthrough: AtomicBool,
    pub(crate) direct_io: AtomicBool,
    pub(crate) notes: Mutex<Vec<String>>,
    /// What takes requests while somebody watches.
    pub(crate) tracer: Option<Arc<dyn Tracer>>,
    descriptors: OwnedFd,
}

/// What an open does to the content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// It creates the file.
    Created,
    /// It cuts the file to length 0, by the `set_size` that follows.
    Truncates,
    /// Neither.
    Plain,
}

impl Filesystem {
    /// Over the PFS directory that is the root of `inodes`.
    pub fn new(
        service: Arc<dyn FileService>,
        inodes: InodeTable,
        shares: Shares,
        turns_max: usize,
    ) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
        Ok(Filesystem {
            tracer: service.tracer(),
            service,
            inodes,
            files: Handles::default(),
            directories: Handles::default(),
            credentials: Credentials::new(),
            locks: LockTable::default(),
            lookups: Lookups::default(),
            shares: Arc::new(shares),
            turns: Turns::new(turns_max),
            // Only requests that have a turn, or gave it away, are here.
            threads: ThreadPool::new(turns_max + AWAY_MAX),
            pages: Pages::new(),
            passthrough: AtomicBool::new(false),
            direct_io: AtomicBool::new(true),
            notes: Mutex::default(),
            descriptors,
        })
    }

    /// While the mount lives: notifies the kernel of changes that it does not make itself, and has
    /// the kernel write back pages before the node stops.
    pub(crate) fn subscribe_to_changes(self: &Arc<Self>, device: &Arc<Device>) {
        self.pages.connect(device.clone());
        let filesystem = Arc::downgrade(self);
        self.service.on_change(Arc::new(move |change| {
            if let Some(filesystem) = filesystem.upgrade() {
                filesystem.pages.changed(change);
            }
        }));
        let filesystem = Arc::downgrade(self);
        self.service.on_drain(Arc::new(move || {
            if let Some(filesystem) = filesystem.upgrade() {
                filesystem.pages.write_back_all();
            }
        }));
    }

    /// Adds a line on what this machine lacks, once.
    pub(crate) fn note(&self, line: String) {
        let mut notes = self.notes.lock();
        if !notes.contains(&line) {
            tracing::warn!("{line}");
            notes.push(line);
        }
    }

    /// The directory that has every open descriptor of this process by its number, and the name of
    /// `descriptor` there. System calls that need a path reach any file by it.
    pub(crate) fn by_descriptor(&self, descriptor: &impl AsFd) -> (BorrowedFd<'_>, String) {
        (self.descriptors.as_fd(), descriptor.as_fd().as_raw_fd().to_string())
    }

    /// The same as an absolute path.
    pub(crate) fn path_of(descriptor: &impl AsFd) -> String {
        format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd())
    }

    /// Whether the PFS grants `access` to the present identity. The errno is that of the PFS.
    pub(crate) fn check_access(&self, file: &impl AsFd, access: rustix::fs::Access) -> Answer {
        let (directory, number) = self.by_descriptor(file);
        Ok(rustix::fs::accessat(directory, number.as_str(), access, AtFlags::EACCESS)?)
    }

    /// The attributes for the kernel; memory-only files have the size of their bytes in memory.
    pub(crate) fn attributes(&self, stat: &Stat) -> Attributes {
        let mut attributes = attributes_of(stat);
        if is_regular(stat)
            && self.service.has_memory_only()
            && let Some(size) = self.service.memory_only_size(id_of(stat), attributes.size)
        {
            attributes.set_size(size);
        }
        attributes
    }

    /// Attributes of `name` in `parent` on the PFS, with the present identity.
    pub(crate) fn stat_at(&self, parent: &impl AsFd, name: &CStr) -> Answer<Stat> {
        Ok(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Counts a look-up of the file and returns its entry.
    pub(crate) fn entry(&self, parent: &Arc<Inode>, name: &CStr, stat: &Stat) -> EntryOut {
        self.entry_of(&self.inodes.enter(parent, name, stat, &version_of(stat)), stat)
    }

    /// The entry of an inode of which a look-up was counted.
    pub(crate) fn entry_of(&self, inode: &Inode, stat: &Stat) -> EntryOut {
        let attributes = self.attributes_shown(inode, stat, false);
        EntryOut {
            nodeid: inode.nodeid,
            generation: 0,
            // Nothing is cached: changes on the PFS show at the next open or stat.
            entry_valid_s: 0,
            attr_valid_s: 0,
            entry_valid_ns: 0,
            attr_valid_ns: 0,
            attributes,
        }
    }

    /// The kernel dropped `lookups` references to an inode.
    pub(crate) fn forget(&self, nodeid: u64, lookups: u64) {
        if let Some(inode) = self.inodes.forget(nodeid, lookups) {
            self.pages.forgotten(&inode);
        }
    }

    /// Takes the caller's identity and finds the directory `nodeid`.
    pub(crate) fn directory_for(
        &self,
        caller: &InHeader,
        nodeid: u64,
    ) -> Answer<(Arc<Inode>, InodeDescriptor)> {
        self.credentials.become_caller(caller)?;
        let inode = self.inodes.get(nodeid)?;
        let held = self.inodes.descriptor(&inode)?;
        Ok((inode, held))
    }

    /// Notifies the node that only metadata of a regular file changed, so that it can keep what is
    /// cached. `after` is called only if the attributes before and after can prove that.
    pub(crate) fn notify_metadata_change(
        &self,
        before: &Before,
        after: impl FnOnce() -> Answer<Stat>,
    ) {
        if is_regular(before)
            && let Ok(after) = after()
            && let alone = before.begin.is_recent()
            && id_of(&after) == id_of(before)
            && self.credentials.become_daemon().is_ok()
        {
            self.service.rebase_version(&version_of(before), &version_of(&after), alone);
        }
    }

    /// Opens a descriptor in the node.
    pub(crate) fn open_in_node(
        &self,
        caller: &InHeader,
        lower: OwnedFd,
        access: Access,
        disposition: Disposition,
        append: bool,
    ) -> Answer<Arc<dyn OpenFile>> {
        let changes_as = match access.writes() {
            true => self.credentials.changes_as(caller)?,
            false => None,
        };
        self.credentials.become_daemon()?;
        let request = OpenRequest {
            lower,
            access,
            read_mode: None,
            write_mode: None,
            truncate: disposition == Disposition::Truncates,
            created: disposition == Disposition::Created,
            append,
            user_id: caller.uid,
            changes_as,
        };
        Ok(self.service.open(request)?)
    }

    /// Registers a pinned file for passthrough. If that fails, notes why and returns `None`.
    pub(crate) fn register(
        &self,
        pin: Arc<dyn tidepool_proto::PassthroughPin>,
        device: &Arc<Device>,
    ) -> Option<crate::inode::opens::Backing> {
        match crate::inode::opens::Backing::register(pin, device.clone()) {
            Ok(backing) => Some(backing),
            Err(error) => {
                let errno = Errno::from(error);
                if matches!(errno.0, libc::EPERM | libc::EOPNOTSUPP | libc::ENOTTY | libc::ELOOP) {
                    self.passthrough.store(false, Ordering::Relaxed);
                    let cause = std::io::Error::from_raw_os_error(errno.0);
                    self.note(format!("passthrough is off: the kernel refused a file ({cause})"));
                }
                None
            }
        }
    }
}
