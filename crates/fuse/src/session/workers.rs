//! [`MountSession`]: handshake with the kernel and worker threads of a mount.
//!
//! A few threads listen for requests. A thread that is about to wait for the PFS makes sure that
//! another one listens, and starts one if need be. There are more threads than turns to wait for
//! the PFS, so resident bytes are served at once however slow the PFS is and however many wait.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_proto::{Error, ErrorKind, Result};
use zerocopy::IntoBytes;

use crate::callers::turns::AWAY_MAX;
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{self, InHeader, InitIn, InitOut, init, op};
use crate::protocol::device::Device;
use crate::protocol::request::Arguments;
use crate::session::config::MountConfig;
use crate::session::dispatch::Workers;

const PAGE_BYTES: usize = 4 << 10;
/// Room for the headers of a write beside its bytes.
const REQUEST_HEADER_BYTES_MAX: usize = 16 << 10;
/// The kernel shares these between all users and delays further ones, so one user who makes them
/// wait must not use them up.
const BACKGROUND_REQUESTS_MAX: u16 = 1024;
/// Listening threads beyond the configured number; more end.
const SPARE_THREADS_MAX: usize = 6;
/// Threads beyond those that may wait for the PFS or for other nodes.
const THREADS_BESIDE_TURNS: usize = 8;
/// How often a thread that waits for the end looks by itself.
const END_CHECK: Duration = Duration::from_secs(2);

/// The connection with the kernel and the threads that serve it.
pub struct MountSession {
    pub(super) filesystem: Arc<Filesystem>,
    device: Arc<Device>,
    request_bytes_max: usize,
    threads_base: usize,
    threads_max: usize,
    threads: AtomicUsize,
    listening: AtomicUsize,
    ended: Mutex<bool>,
    end: Condvar,
}

impl MountSession {
    /// For a mount whose requests are read from `descriptor`. Nothing is read yet.
    pub fn new(filesystem: Arc<Filesystem>, descriptor: OwnedFd, config: &MountConfig) -> Self {
        let device = Arc::new(Device::new(descriptor));
        filesystem.subscribe_to_changes(&device);
        let threads_max = config.turns_max + AWAY_MAX + THREADS_BESIDE_TURNS;
        MountSession {
            filesystem,
            device,
            request_bytes_max: config.request_bytes_max,
            threads_base: config.threads.clamp(1, threads_max),
            threads_max,
            threads: AtomicUsize::new(0),
            listening: AtomicUsize::new(0),
            ended: Mutex::new(false),
            end: Condvar::new(),
        }
    }

    /// Agrees with the kernel on the protocol and starts the workers.
    pub fn start(self: &Arc<Self>, config: &MountConfig) -> Result<()> {
        self.handshake(config)?;
        for _ in 0..self.threads_base {
            self.start_worker().map_err(|error| {
                Error::new(ErrorKind::LimitReached, super::OPERATION, "starting a thread")
                    .caused_by(error)
            })?;
        }
        Ok(())
    }

    /// Whether the mount is gone and no worker is left, or they are not waited for any more.
    pub fn has_ended(&self) -> bool {
        *self.ended.lock()
    }

    /// Waits for the end, no longer than `patience`. Returns whether it came.
    pub fn wait_for(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut ended = self.ended.lock();
        while !*ended && self.threads.load(Ordering::SeqCst) > 0 {
            if self.end.wait_until(&mut ended, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    /// Waits for the end.
    pub fn wait(&self) {
        while !self.wait_for(END_CHECK) {}
    }

    /// Negotiates with the kernel what both can do.
    fn handshake(&self, config: &MountConfig) -> Result<()> {
        let fail = |detail: &str| Error::new(ErrorKind::Unsupported, super::OPERATION, detail);
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
            max_write: config.request_bytes_max as u32,
            time_granularity_ns: 1,
            max_pages: (config.request_bytes_max / PAGE_BYTES) as u16,
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
        let mut buffer = vec![0; self.request_bytes_max + REQUEST_HEADER_BYTES_MAX];
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
    pub fn stop_waiting(&self) {
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
