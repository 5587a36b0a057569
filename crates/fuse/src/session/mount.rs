//! [`Mount`]: mounts, moves the mount to its place, and unmounts.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidepool_proto::{Error, ErrorKind, FileService, Result};

use crate::callers::shares::Shares;
use crate::inode::table::InodeTable;
use crate::ops::filesystem::Filesystem;
use crate::session::OPERATION;
use crate::session::config::MountConfig;
use crate::session::mounting::{self, Force};
use crate::session::workers::MountSession;

/// Descriptors held to reach inodes, if the process may open many.
const PINNED_MAX: usize = 32 << 10;
/// How long programs may go on using the mount once it is to be unmounted.
const BUSY_MAX: Duration = Duration::from_secs(2);
const BUSY_CHECK: Duration = Duration::from_millis(20);

/// A live mount. Unmounts when dropped.
pub struct Mount {
    session: Arc<MountSession>,
    mount_point: PathBuf,
    /// The mount before it was moved to its place.
    prepared: Option<OwnedFd>,
    /// Finds the mount wherever it is now; unknown at first.
    device_number: Option<(u32, u32)>,
    unmounted: AtomicBool,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("mount_point", &self.mount_point).finish_non_exhaustive()
    }
}

/// Mounts. Returns once the handshake with the kernel is done and threads answer.
///
/// A dead mount on the mount point is removed (see [`crate::recover_stale`]), and not before the
/// new one is there: what programs write into the bare directory would be hidden by the mount.
///
/// # Errors
/// `InUse` if something lives on the mount point, `Unsupported` if this machine or user cannot
/// mount, `InvalidInput` if the mount point lies inside of the PFS directory.
pub fn mount(service: Arc<dyn FileService>, mut config: MountConfig) -> Result<Mount> {
    config.mount_point = crate::session::dead_mount::resolve(&config.mount_point)?;
    refuse_mount_inside(&config)?;
    let filesystem = new_filesystem(service, &config)?;
    let was_stale = crate::is_stale(&config.mount_point)?;
    let (descriptor, prepared) = match mounting::prepare(&config) {
        Ok((descriptor, prepared)) => (descriptor, Some(prepared)),
        // An older kernel, or a plain user.
        Err(_) => {
            crate::recover_stale(&config.mount_point)?;
            let attached = mounting::attach(&config);
            (attached.map_err(|error| cannot_mount(&config, error))?, None)
        }
    };
    let session = Arc::new(MountSession::new(filesystem, descriptor, &config));
    let mut mount = Mount {
        session: session.clone(),
        mount_point: config.mount_point.clone(),
        prepared,
        device_number: None,
        unmounted: AtomicBool::new(false),
    };
    session.start(&config)?;
    mount.move_into_place()?;
    if was_stale {
        session.filesystem.note("a mount whose daemon had died was removed".to_owned());
    }
    // Not tried out here: a process that is killed during a request to its own mount hangs.
    Ok(mount)
}

/// Refuses a mount point below the PFS directory: the node opens files there by system calls, and
/// one that leads back into the mount would wait for itself.
fn refuse_mount_inside(config: &MountConfig) -> Result<()> {
    let pfs_path = config.pfs_path.canonicalize().unwrap_or_else(|_| config.pfs_path.clone());
    if config.mount_point.starts_with(&pfs_path) && config.mount_point != pfs_path {
        let detail =
            format!("{} is inside of {}", config.mount_point.display(), pfs_path.display());
        return Err(Error::new(ErrorKind::InvalidInput, OPERATION, detail)
            .remedy("choose a mount point outside of the PFS directory"));
    }
    Ok(())
}

fn new_filesystem(service: Arc<dyn FileService>, config: &MountConfig) -> Result<Arc<Filesystem>> {
    let files_max = raise_descriptor_limit();
    let pinned_max =
        config.inode_descriptors_max.unwrap_or((files_max / 4).min(PINNED_MAX)).max(16);
    let shares = Shares::new(config.opens_max.unwrap_or(files_max / 2), files_max);
    let fail = |error: std::io::Error| {
        Error::pfs(OPERATION, error).remedy("check that the PFS directory can be read")
    };
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let root = rustix::fs::openat(&config.pfs_root, c".", flags, rustix::fs::Mode::empty())
        .or_else(|_| rustix::io::fcntl_dupfd_cloexec(&config.pfs_root, 0))
        .map_err(|error| fail(error.into()))?;
    let inodes = InodeTable::new(root, pinned_max).map_err(fail)?;
    let filesystem = Filesystem::new(service, inodes, shares, config.turns_max).map_err(fail)?;
    Ok(Arc::new(filesystem))
}

/// Raises the soft limit of descriptors to the hard one and returns it.
fn raise_descriptor_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let effective =
        if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    effective.map_or(1 << 20, |files| files as usize)
}

fn cannot_mount(config: &MountConfig, error: std::io::Error) -> Error {
    let without = "; without a mount the library and Hadoop work as well";
    let (place, remedy) = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => (
            "/dev/fuse".to_owned(),
            "load the kernel's module `fuse`, or pass the device into the container",
        ),
        Some(libc::EACCES) => {
            ("/dev/fuse".to_owned(), "mount as root, or let users open it (`chmod 666 /dev/fuse`)")
        }
        _ => (
            config.mount_point.display().to_string(),
            "mount as root, or install fuse3 (`fusermount3` with mode 4755) and check \
             user_allow_other in /etc/fuse.conf",
        ),
    };
    let failed = |detail| {
        let remedy = format!("{remedy}{without}");
        Error::new(ErrorKind::Unsupported, OPERATION, detail).remedy(remedy)
    };
    match error.raw_os_error() {
        Some(_) => failed(place).caused_by(error),
        // The words of the helper, because a cause without an errno does not reach the parent
        // process.
        None => failed(format!("{place}: {error}")),
    }
}

impl Mount {
    /// Moves the mount to its place and notes its device number.
    fn move_into_place(&mut self) -> Result<()> {
        let prepared = match self.prepared.take() {
            Some(prepared) => prepared,
            None => {
                let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
                let none = rustix::fs::Mode::empty();
                let root = rustix::fs::open(&self.mount_point, flags, none);
                self.device_number = root.ok().and_then(|root| mounting::device_number(&root).ok());
                return Ok(());
            }
        };
        self.device_number = mounting::device_number(&prepared).ok();
        crate::session::dead_mount::replace(&self.mount_point, &prepared).map(drop)
    }

    /// Unmounts at every place where the mount is now.
    fn detach(&self, force: Force) -> std::io::Result<()> {
        let places = self.device_number.map(crate::session::dead_mount::places_of);
        let Some(Ok(places)) = places else { return mounting::detach(&self.mount_point, force) };
        places.iter().try_for_each(|place| mounting::detach(place, force))?;
        match self.device_number.map(crate::session::dead_mount::places_of) {
            Some(Ok(left)) if !left.is_empty() => {
                Err(std::io::Error::from_raw_os_error(libc::EBUSY))
            }
            _ => Ok(()),
        }
    }

    /// Waits until the mount is gone, by [`Mount::unmount`] or from outside.
    pub fn wait(&self) -> Result<()> {
        self.session.wait();
        Ok(())
    }

    /// Calls `tell` in a thread of its own once the mount is gone, however it was unmounted.
    pub fn when_gone(&self, tell: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let session = self.session.clone();
        let watch = move || {
            session.wait();
            tell();
        };
        std::thread::Builder::new().name("tide-gone".to_owned()).spawn(watch).map(|_| ())
    }

    /// Unmounts and waits until no thread of the mount answers any more.
    ///
    /// Programs that use the mount have two seconds to end. Then their requests and open files fail
    /// with `ENOTCONN`, also in other mount namespaces, such as a container that was started after
    /// the mount. Bytes of shared mappings are written first. Does nothing if the mount is gone
    /// already. A mount that cannot be unmounted is not waited for: it fails with `ENOTCONN` when
    /// this process ends.
    pub fn unmount(&self) -> Result<()> {
        if self.unmounted.swap(true, Ordering::SeqCst) {
            return self.wait();
        }
        let fail = |error: std::io::Error| {
            Error::new(ErrorKind::InUse, "unmounting", self.mount_point.display().to_string())
                .caused_by(error)
        };
        let started = Instant::now();
        loop {
            if self.session.has_ended() {
                return Ok(());
            }
            match self.detach(Force::No) {
                Ok(()) if self.session.wait_for(BUSY_MAX) => return Ok(()),
                Ok(()) => {
                    self.abandon();
                    return Ok(());
                }
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY)
                        && started.elapsed() <= BUSY_MAX =>
                {
                    std::thread::sleep(BUSY_CHECK);
                }
                Err(_) => break,
            }
        }
        self.session.filesystem.pages.write_back_all();
        if let Err(error) = self.detach(Force::Yes) {
            self.session.stop_waiting();
            return Err(fail(error).remedy("unmount it as root: umount --lazy"));
        }
        self.wait()
    }

    /// What does not work on this machine, one line each.
    pub fn notes(&self) -> Vec<String> {
        self.session.filesystem.notes.lock().clone()
    }

    /// Whether resident files can be opened by passthrough.
    pub fn has_passthrough(&self) -> bool {
        self.session.filesystem.passthrough.load(Ordering::Relaxed)
    }

    /// Whether reads and writes bypass the kernel's page cache.
    pub fn has_direct_io(&self) -> bool {
        self.session.filesystem.direct_io.load(Ordering::Relaxed)
    }

    /// Leaves a mount that is gone here and still held: in a mount namespace that was made since,
    /// or in use after a detach. It ends with this process.
    fn abandon(&self) {
        let holders =
            self.device_number.map(crate::session::dead_mount::held_elsewhere).unwrap_or_default();
        for (process_id, place) in &holders {
            tracing::warn!(
                process_id,
                place = %place.display(),
                "a mount namespace still holds the mount: what is open there fails with ENOTCONN"
            );
        }
        self.session.filesystem.pages.write_back_all();
        self.session.stop_waiting();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.prepared.take().is_some() {
            // It was never moved to its place.
            self.session.wait();
            return;
        }
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "unmounting failed");
        }
    }
}
