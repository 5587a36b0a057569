//! Any mounted POSIX file system as a lower store. Opens the directory, finds out what its mount
//! offers, and checks every descriptor that it is given. Refuses to be stacked on itself.

mod attributes;
mod clock;
mod direct;
mod file;
mod names;
mod probe;
mod shared;
mod transfer;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};

use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use tidepool_proto::{Error, ErrorKind, FileId, Result};

pub(crate) use self::direct::reopen;

use self::file::PosixFile;
pub use self::names::sync_entry;
pub use self::shared::PosixOptions;
use self::shared::{Shared, opening};
use crate::features::Features;
use crate::layout::{Layout, LayoutHints, LayoutOutcome};
use crate::lower::{LowerFile, LowerStore};

/// A directory of a mounted file system.
pub struct PosixStore {
    shared: Arc<Shared>,
}

impl PosixStore {
    /// Opens the directory `root` and finds out what its mount offers.
    pub fn open(root: &Path, options: PosixOptions) -> Result<Arc<PosixStore>> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let (path, timeout) = (root.to_path_buf(), options.open_timeout);
        // In a thread of its own, because a dead server can hold any of these calls for ever.
        std::thread::Builder::new()
            .name("pfs-open".to_owned())
            .spawn(move || {
                let _receiver_gave_up = sender.send(Shared::open(&path, options));
            })
            .map_err(|error| {
                Error::new(ErrorKind::Internal, "starting a thread", "").caused_by(error)
            })?;
        match receiver.recv_timeout(timeout) {
            Ok(shared) => Ok(Arc::new(PosixStore { shared: Arc::new(shared?) })),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(Error::new(
                ErrorKind::TimedOut,
                opening(root),
                format!("no answer from its file system in {} s", timeout.as_secs()),
            )
            .remedy("check that the servers of this mount are up")),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(Error::new(ErrorKind::Internal, opening(root), "the opening thread died"))
            }
        }
    }
}

fn refuse(kind: ErrorKind, detail: impl Into<String>, remedy: &str) -> Error {
    Error::new(kind, "taking over a file descriptor", detail).remedy(remedy)
}

impl LowerStore for PosixStore {
    fn file(&self, descriptor: OwnedFd) -> Result<Arc<dyn LowerFile>> {
        let flags = rustix::fs::fcntl_getfl(&descriptor)
            .map_err(|error| Error::pfs("taking over a file descriptor", error))?;
        if flags.contains(OFlags::PATH) {
            return Err(refuse(
                ErrorKind::PermissionDenied,
                "it was opened with O_PATH, which gives no access to content",
                "open the file for reading or writing",
            ));
        }
        // Whose file it is must be known before its file system is asked anything: the server of
        // a foreign one may never answer.
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&descriptor, "", at, StatxFlags::TYPE | StatxFlags::INO)
            .map_err(|error| Error::pfs("taking over a file descriptor", error))?;
        let file_type = FileType::from_raw_mode(stat.stx_mode.into());
        if file_type != FileType::RegularFile {
            return Err(refuse(
                ErrorKind::InvalidInput,
                format!("it is no regular file but a {file_type:?}"),
                "only regular files are cached",
            ));
        }
        let id = FileId::from(&stat);
        if !self.shared.belongs(descriptor.as_fd(), id.device) {
            return Err(refuse(
                ErrorKind::PermissionDenied,
                format!("the file is not on the file system of {}", self.shared.root.display()),
                "open a file below the PFS directory of this node",
            ));
        }
        Ok(Arc::new(PosixFile::new(self.shared.clone(), descriptor, id, flags)))
    }

    fn root(&self) -> &Path {
        &self.shared.root
    }

    fn root_descriptor(&self) -> BorrowedFd<'_> {
        self.shared.root_descriptor.as_fd()
    }

    fn device(&self) -> u64 {
        self.shared.device
    }

    fn features(&self) -> &Features {
        &self.shared.features
    }

    fn layout(&self, descriptor: BorrowedFd<'_>) -> Layout {
        self.shared.layout.read(descriptor)
    }

    fn layout_runs_a_tool(&self) -> bool {
        self.shared.layout.runs_a_tool()
    }

    fn apply_layout(
        &self,
        directory_or_new_file: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        self.shared.layout.apply(directory_or_new_file, hints)
    }

    fn now_ns(&self) -> i128 {
        self.shared.clock.refresh(|| probe::compare_clock(self.root_descriptor()));
        self.shared.clock.now_ns()
    }

    fn close_idle(&self) {
        self.shared.fills.close_idle();
        self.shared.names.close_idle();
    }
}
