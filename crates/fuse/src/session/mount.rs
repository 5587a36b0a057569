//! [`Mount`] and [`MountSession`]: handshake with the kernel, worker threads, unmounting.
//!
//! A few threads listen for requests. A thread that is about to wait for the PFS makes sure that
//! another one listens, and starts one if need be. There are more threads than turns to wait for
//! the PFS, so resident bytes are served at once however slow the PFS is and however many wait.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_proto::{Error, ErrorKind, FileService, Result};
use zerocopy::IntoBytes;

use crate::callers::shares::Shares;
use crate::inode::table::InodeTable;
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{self, InHeader, InitIn, InitOut, init, op};
use crate::protocol::device::Device;
use crate::protocol::request::Arguments;
use crate::session::config::MountConfig;
use crate::session::dispatch::Workers;
use crate::session::mounting::{self, Force};

/// Largest read and write of one request.
const TRANSFER_BYTES_MAX: usize = 1 << 20;
const PAGE_BYTES: usize = 4 << 10;
/// Room for the headers of a write beside its bytes.
const REQUEST_HEADER_BYTES_MAX: usize = 16 << 10;
/// The kernel shares these between all users and delays further ones, so one user who makes them
/// wait must not use them up.
const BACKGROUND_REQUESTS_MAX: u16 = 1024;
/// Descriptors held to reach inodes, if the process may open many.
const PINNED_MAX: usize = 32 << 10;
/// Listening threads beyond the configured number; more end.
const SPARE_THREADS_MAX: usize = 6;
/// Threads beyond those that may wait for the PFS.
const THREADS_BESIDE_TURNS: usize = 8;
/// How long programs may go on using the mount once it is to be unmounted.
const BUSY_MAX: Duration = Duration::from_secs(2);
const BUSY_CHECK: Duration = Duration::from_millis(20);

const OPERATION: &str = "mounting";

struct MountSession {
    filesystem: Arc<Filesystem>,
    device: Arc<Device>,
    threads_base: usize,
    threads_max: usize,
    threads: AtomicUsize,
    listening: AtomicUsize,
    ended: Mutex<bool>,
    end: Condvar,
}

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
    config.mount_point = crate::session::stale::resolve(&config.mount_point)?;
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
    let session = Arc::new(MountSession {
        filesystem,
        device: Arc::new(Device::new(descriptor)),
        threads_base: config.threads.clamp(1, config.turns_max + THREADS_BESIDE_TURNS),
        threads_max: config.turns_max + THREADS_BESIDE_TURNS,
        threads: AtomicUsize::new(0),
        listening: AtomicUsize::new(0),
        ended: Mutex::new(false),
        end: Condvar::new(),
    });
    let mut mount = Mount {
        session: session.clone(),
        mount_point: config.mount_point.clone(),
        prepared,
        device_number: None,
        unmounted: AtomicBool::new(false),
    };
    session.filesystem.subscribe_to_changes(&session.device);
    session.handshake(&config)?;
    for _ in 0..session.threads_base {
        session.start_worker().map_err(|error| {
            Error::new(ErrorKind::LimitReached, OPERATION, "starting a thread").caused_by(error)
        })?;
    }
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
        crate::session::stale::replace(&self.mount_point, &prepared).map(drop)
    }

    /// Unmounts at every place where the mount is now.
    fn detach(&self, force: Force) -> std::io::Result<()> {
        let places = self.device_number.map(crate::session::stale::places_of);
        let Some(Ok(places)) = places else { return mounting::detach(&self.mount_point, force) };
        places.iter().try_for_each(|place| mounting::detach(place, force))?;
        match self.device_number.map(crate::session::stale::places_of) {
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
            if *self.session.ended.lock() {
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
            self.device_number.map(crate::session::stale::held_elsewhere).unwrap_or_default();
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

impl MountSession {
    /// Waits for the end, no longer than `patience`. Returns whether it came.
    fn wait_for(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut ended = self.ended.lock();
        while !*ended && self.threads.load(Ordering::SeqCst) > 0 {
            if self.end.wait_until(&mut ended, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    fn wait(&self) {
        while !self.wait_for(BUSY_MAX) {}
    }

    /// Negotiates with the kernel what both can do.
    fn handshake(&self, config: &MountConfig) -> Result<()> {
        let fail = |detail: &str| Error::new(ErrorKind::Unsupported, OPERATION, detail);
        let mut buffer = vec![0; REQUEST_HEADER_BYTES_MAX];
        let length = self
            .device
            .receive(&mut buffer)
            .map_err(|error| fail("reading the kernel's greeting").caused_by(error))?
            .ok_or_else(|| fail("the mount was gone before it answered"))?;
        let mut arguments = Arguments::new(&buffer[..length]);
        let parsed = arguments.take::<InHeader>().and_then(|header| {
            let offer = if arguments.left() >= size_of::<InitIn>() {
                arguments.take::<InitIn>()?
            } else {
                // Kernels before 5.17 send the first four words only.
                let words = arguments.take::<[u32; 4]>()?;
                let [major, minor, max_readahead, flags] = words;
                InitIn { major, minor, max_readahead, flags, flags_high: 0, unused: [0; 11] }
            };
            Ok((header, offer))
        });
        let Ok((header, offer)) = parsed else { return Err(fail("the kernel's greeting is odd")) };
        if header.opcode != op::INIT
            || offer.major != abi::PROTOCOL_MAJOR
            || offer.minor < abi::PROTOCOL_MINOR_MIN
        {
            let _ = self.device.send(header.unique, libc::EPROTO, &[]);
            return Err(fail("this kernel's FUSE is too old").remedy("use Linux 4.20 or later"));
        }
        let agreed = self.agree(&offer, config);
        self.device
            .send(header.unique, 0, &[std::io::IoSlice::new(agreed.as_bytes())])
            .map_err(|error| fail("answering the kernel's greeting").caused_by(error))?;
        Ok(())
    }

    fn agree(&self, offer: &InitIn, config: &MountConfig) -> InitOut {
        let offered = u64::from(offer.flags) | (u64::from(offer.flags_high) << 32);
        let mut wanted = init::ASYNC_READ
            | init::POSIX_LOCKS
            | init::FLOCK_LOCKS
            | init::ATOMIC_O_TRUNC
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::AUTO_INVAL_DATA
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::HANDLE_KILLPRIV_V2
            | init::INIT_EXT;
        if config.direct_io {
            wanted |= init::DIRECT_IO_ALLOW_MMAP;
        }
        if config.passthrough {
            wanted |= init::PASSTHROUGH;
        }
        let agreed = wanted & offered;
        self.note_missing_features(agreed, config);
        InitOut {
            major: abi::PROTOCOL_MAJOR,
            minor: abi::PROTOCOL_MINOR.min(offer.minor),
            max_readahead: offer.max_readahead,
            flags: agreed as u32,
            max_background: BACKGROUND_REQUESTS_MAX,
            congestion_threshold: BACKGROUND_REQUESTS_MAX / 4 * 3,
            max_write: TRANSFER_BYTES_MAX as u32,
            time_granularity_ns: 1,
            max_pages: (TRANSFER_BYTES_MAX / PAGE_BYTES) as u16,
            map_alignment: 0,
            flags_high: (agreed >> 32) as u32,
            // Files for passthrough may not be on a stacked file system themselves.
            max_stack_depth: u32::from(agreed & init::PASSTHROUGH != 0),
            unused: [0; 6],
        }
    }

    fn note_missing_features(&self, agreed: u64, config: &MountConfig) {
        let filesystem = &self.filesystem;
        let privileged = rustix::process::geteuid().is_root();
        let possible = agreed & init::PASSTHROUGH != 0;
        filesystem.passthrough.store(possible && privileged, Ordering::Relaxed);
        if config.passthrough && !possible {
            filesystem.note("passthrough is off: the kernel has none (6.9 or later does)".into());
        } else if possible && !privileged {
            filesystem.note("passthrough is off: it needs root".into());
        }
        let direct_io = agreed & init::DIRECT_IO_ALLOW_MMAP != 0;
        filesystem.direct_io.store(direct_io, Ordering::Relaxed);
        if config.direct_io && !direct_io {
            let what = "direct input and output is off: the kernel is older than 6.6 and could not \
                        map files; reads and writes go through its page cache";
            filesystem.note(what.into());
        }
        if agreed & init::HANDLE_KILLPRIV_V2 == 0 {
            let what = "set-id bits are cleared by the kernel only: it is older than 5.12";
            filesystem.note(what.into());
        }
    }

    fn start_worker(self: &Arc<Self>) -> std::io::Result<()> {
        let session = self.clone();
        self.threads.fetch_add(1, Ordering::SeqCst);
        let started = std::thread::Builder::new().name("tide-fuse".to_owned()).spawn(move || {
            session.work();
            session.worker_ended();
        });
        if started.is_err() {
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
        started.map(|_| ())
    }

    fn work(self: &Arc<Self>) {
        if crate::callers::credentials::begin_thread().is_err() {
            tracing::error!("a worker could not take the daemon's identity and ended");
            return;
        }
        // A descriptor of its own spares the worker a shared queue; it works without one as well.
        let device = self.device.duplicate_connected().map(Arc::new);
        let device = device.unwrap_or_else(|_| self.device.clone());
        let mut buffer = vec![0; TRANSFER_BYTES_MAX + REQUEST_HEADER_BYTES_MAX];
        let worker = Worker { session: self };
        self.listening.fetch_add(1, Ordering::SeqCst);
        loop {
            match device.receive(&mut buffer) {
                Ok(Some(length)) => self.filesystem.handle(&device, &buffer[..length], &worker),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "reading requests of the mount failed");
                    break;
                }
            }
            let spare = self.threads_base + SPARE_THREADS_MAX;
            if self.listening.load(Ordering::Relaxed) > spare {
                break;
            }
        }
        self.listening.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends all waits for the workers.
    fn stop_waiting(&self) {
        *self.ended.lock() = true;
        self.end.notify_all();
    }

    fn worker_ended(&self) {
        if self.threads.load(Ordering::SeqCst) == 1 {
            self.filesystem.locks.stop();
            self.filesystem.turns.stop();
        }
        let mut ended = self.ended.lock();
        if self.threads.fetch_sub(1, Ordering::SeqCst) == 1 {
            *ended = true;
            self.end.notify_all();
        }
    }
}

/// The thread that a request is handled on.
struct Worker<'a> {
    session: &'a Arc<MountSession>,
}

/// A thread that may wait. Counts it as listening again when dropped, also after a panic.
struct BusyWorker<'a>(&'a MountSession);

impl Drop for BusyWorker<'_> {
    fn drop(&mut self) {
        self.0.listening.fetch_add(1, Ordering::SeqCst);
    }
}

impl Workers for Worker<'_> {
    fn run_blocking(&self, work: impl FnOnce()) {
        let nobody_listens = self.session.listening.fetch_sub(1, Ordering::SeqCst) == 1;
        let _away = BusyWorker(self.session);
        if nobody_listens
            && self.session.threads.load(Ordering::Relaxed) < self.session.threads_max
            && let Err(error) = self.session.start_worker()
        {
            tracing::warn!(%error, "starting a worker failed");
        }
        work();
    }
}
