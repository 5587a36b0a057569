//! `Shared`: what a POSIX store and its open files share: the directory, what its mount offers, and
//! the descriptors held for it. Opens the directory and says what to do where that fails.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use tidepool_proto::{Error, ErrorKind, Result};

use super::attributes::Attributes;
use super::clock::FileSystemClock;
use super::direct::FillPool;
use super::names::DurableNames;
use super::probe;
use crate::features::Features;
use crate::filesystem::{FileSystem, Known};
use crate::layout::LayoutBackend;

/// How to open a [`PosixStore`](super::PosixStore).
#[derive(Clone, Debug)]
pub struct PosixOptions {
    /// Probe the mount with a hidden file that is removed at once. Without it, the features are
    /// those assumed for the type of the file system.
    pub probe: bool,
    /// Read blocks with direct I/O where the mount allows it.
    pub direct_io: bool,
    /// Descriptors of its own that the store may hold open for fills at a time.
    pub fill_descriptors_max: usize,
    /// How far the clock of the file system may lag behind ours where it cannot be measured.
    pub clock_uncertainty: Duration,
    /// How far the clocks of other clients of a remote file system may lag behind: several of
    /// them let the client that writes stamp the change.
    pub client_clock_skew: Duration,
    /// When to give up on a mount that does not answer.
    pub open_timeout: Duration,
}

impl Default for PosixOptions {
    fn default() -> Self {
        PosixOptions {
            probe: true,
            direct_io: true,
            fill_descriptors_max: 256,
            clock_uncertainty: Duration::from_secs(10),
            client_clock_skew: Duration::from_millis(100),
            open_timeout: Duration::from_secs(30),
        }
    }
}

/// What a store and its open files share.
pub(crate) struct Shared {
    pub(super) root: PathBuf,
    pub(super) root_descriptor: OwnedFd,
    pub(super) device: u64,
    pub(super) known: Known,
    pub(super) mount_id: u64,
    pub(super) features: Features,
    pub(super) options: PosixOptions,
    pub(super) clock: FileSystemClock,
    pub(super) attributes: Attributes,
    pub(super) fills: FillPool,
    pub(super) names: DurableNames,
    pub(super) layout: LayoutBackend,
}

/// What was tried when opening `root` failed.
pub(super) fn opening(root: &Path) -> String {
    format!("opening the PFS directory {}", root.display())
}

fn loop_error(root: &Path) -> Error {
    Error::new(ErrorKind::InvalidInput, opening(root), "this is a mount of Tidepool itself")
        .remedy("name the directory of the parallel file system below it")
}

fn open_error(root: &Path, error: io::Error) -> Error {
    let (kind, remedy) = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            (ErrorKind::InvalidInput, "it does not exist: check the path, or mount the PFS first")
        }
        Some(libc::ENOTDIR) => (ErrorKind::InvalidInput, "name a directory"),
        Some(libc::EACCES | libc::EPERM) => {
            (ErrorKind::PermissionDenied, "start the node as a user who may read this directory")
        }
        Some(libc::ENOTCONN) => (
            ErrorKind::Pfs,
            "the process that serves this FUSE mount is gone: unmount it (`fusermount3 -u`, or \
             `umount -l` as root) and mount it again",
        ),
        Some(libc::ESTALE | libc::EHOSTDOWN) => {
            (ErrorKind::Pfs, "the mount went stale: mount it again")
        }
        _ => (ErrorKind::Pfs, "check the same path with `ls`"),
    };
    Error::new(kind, opening(root), "").caused_by(error).remedy(remedy)
}

impl Shared {
    /// Opens the directory `root`.
    pub(super) fn open(root: &Path, options: PosixOptions) -> Result<Shared> {
        let fail = |error: io::Error| open_error(root, error);
        // Before anything is asked of the mount: one of our own may be dead, or be this process.
        if FileSystem::without_contact(root).is_ok_and(|file_system| file_system.is_tidepool()) {
            return Err(loop_error(root));
        }
        let path = std::fs::canonicalize(root).map_err(fail)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor =
            rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| fail(error.into()))?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| fail(error.into()))?;
        // Reading a name finds out about a dead server that answered from caches so far.
        let mut entries = rustix::fs::Dir::read_from(&descriptor).map_err(|e| fail(e.into()))?;
        if let Some(Err(error)) = entries.next() {
            return Err(fail(error.into()));
        }
        let file_system = FileSystem::of(descriptor.as_fd()).map_err(fail)?;
        if file_system.is_tidepool() {
            return Err(loop_error(root));
        }
        let known = file_system.known();
        let (features, clock) = examine(descriptor.as_fd(), &file_system, &known, &options);
        Ok(Shared {
            device: stat.st_dev,
            mount_id: file_system.mount_id,
            layout: LayoutBackend::of(&file_system),
            fills: FillPool::new(options.fill_descriptors_max, known.remote),
            names: DurableNames::default(),
            root: path,
            root_descriptor: descriptor,
            known,
            features,
            options,
            clock,
            attributes: Attributes::default(),
        })
    }

    /// Whether the file lies on the file system of this store.
    pub(super) fn belongs(&self, descriptor: BorrowedFd<'_>, device: u64) -> bool {
        if device == self.device {
            return true;
        }
        // Subvolumes and layers have device numbers of their own; their mount is the same.
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        self.known.device_per_file
            && rustix::fs::statx(descriptor, "", at, StatxFlags::MNT_ID)
                .is_ok_and(|stat| stat.stx_mnt_id == self.mount_id)
    }
}

/// Features of the mount by probe and table, and the clock to compare its stamps with.
fn examine(
    root: BorrowedFd<'_>,
    file_system: &FileSystem,
    known: &Known,
    options: &PosixOptions,
) -> (Features, FileSystemClock) {
    let mut features = Features {
        fs_type: file_system.fs_type.clone(),
        source: file_system.source.clone(),
        fs_magic: file_system.magic,
        remote: known.remote,
        timestamp_granularity_ns: known.granularity_ns,
        fsync_reach: known.fsync_reach,
        fsync_is_per_open: known.fsync_is_per_open,
        keeps_stale_pages: known.keeps_stale_pages,
        hard_links: !file_system.fs_type.starts_with("fuse.pvfs2"),
        writes_move_stamps: known.writes_move_stamps,
        notes: known.notes.iter().map(|note| (*note).to_owned()).collect(),
        ..Features::default()
    };
    let comparison = match options.probe {
        true => probe::probe(root, known, &mut features),
        false => {
            probe::assume(&mut features);
            None
        }
    };
    let clock = match comparison {
        _ if !known.remote => FileSystemClock::Local,
        Some(comparison) => FileSystemClock::Compared {
            comparison: Mutex::new(comparison),
            allowance_ns: options.client_clock_skew.as_nanos() as i128,
        },
        None => FileSystemClock::Unknown {
            allowance_ns: (options.clock_uncertainty + options.client_clock_skew).as_nanos()
                as i128,
        },
    };
    (features, clock)
}
