//! [`Pages`]: the pages of files that the kernel keeps, and the notifications that drop them.
//!
//! The kernel keeps pages for each inode: of mappings, and where opens go through its page cache.
//! It updates them for what it writes itself through the same inode. It is notified of all other
//! changes: writes by the client library, and by opens of another inode for the same file.
//!
//! Before the kernel drops a page it writes back what programs stored in it, and waits for reads
//! into it. So threads that serve no request notify it, before a change (or the page would later be
//! written over it) and after it. A change waits for that, within a limit. Writes of pages by the
//! kernel never wait: their page is locked meanwhile.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tidepool_proto::{ChangedRange, FileId};

use crate::callers::thread_pool::ThreadPool;
use crate::inode::state::Inode;
use crate::protocol::device::Device;

/// Threads that wait for the kernel to drop pages.
const THREADS_MAX: usize = 4;
/// How long a change waits until pages are dropped.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Threads that have the pages of all files written when the node stops, and their time limit.
const WRITING_THREADS_MAX: usize = 64;
const WRITE_ALL_MAX: Duration = Duration::from_secs(10);
/// How long a change of a file waits for an open in progress, which may ask the PFS.
const OPENS_WAIT_MAX: Duration = Duration::from_millis(100);

/// The request that a thread serves.
#[derive(Clone, Copy, Default)]
struct Served {
    /// The inode whose pages the kernel updates by itself.
    nodeid: u64,
    /// The bytes come from a page, which is locked.
    from_page: bool,
}

thread_local! {
    static SERVED: Cell<Served> = const { Cell::new(Served { nodeid: 0, from_page: false }) };
}

/// While this lives, changes that the thread makes belong to a request.
pub struct Serving {
    before: Served,
    // Belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Serving {
    /// The kernel updates the pages of `nodeid` by itself.
    pub fn inode(nodeid: u64) -> Self {
        Self::enter(Served { nodeid, from_page: false })
    }

    /// The kernel updates no pages.
    pub fn nobody() -> Self {
        Self::enter(Served::default())
    }

    /// The kernel writes a page of `nodeid`.
    pub fn page_of(nodeid: u64) -> Self {
        Self::enter(Served { nodeid, from_page: true })
    }

    fn enter(served: Served) -> Self {
        Serving { before: SERVED.replace(served), thread: PhantomData }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVED.set(self.before);
    }
}

/// The inodes that the kernel has to be notified of.
pub struct Pages {
    inodes: Mutex<HashMap<FileId, Vec<Arc<Inode>>>>,
    files: AtomicUsize,
    threads: ThreadPool,
    device: OnceLock<Arc<Device>>,
}

impl Pages {
    /// No inode has pages yet.
    pub fn new() -> Self {
        Pages {
            inodes: Mutex::default(),
            files: AtomicUsize::new(0),
            threads: ThreadPool::new(THREADS_MAX),
            device: OnceLock::new(),
        }
    }

    /// Sets the device that takes the notifications.
    pub fn connect(&self, device: Arc<Device>) {
        let _ = self.device.set(device);
    }

    /// The inode was opened. Whether it has pages or not, the kernel ends reads at the length that
    /// it knows, so it has to hear of changes.
    pub fn opened(&self, inode: &Arc<Inode>) {
        if inode.is_notified.load(Ordering::Acquire) {
            return;
        }
        let mut inodes = self.inodes.lock();
        if !inode.is_notified.swap(true, Ordering::AcqRel) {
            inodes.entry(inode.id).or_default().push(inode.clone());
            self.files.store(inodes.len(), Ordering::Release);
        }
    }

    /// The kernel is about to get bytes for a page of the inode.
    pub fn filled(&self, inode: &Arc<Inode>) {
        self.opened(inode);
        inode.has_pages.store(true, Ordering::Release);
    }

    /// The kernel dropped the inode, and its pages.
    pub fn forgotten(&self, inode: &Inode) {
        if !inode.is_notified.load(Ordering::Acquire) {
            return;
        }
        let mut inodes = self.inodes.lock();
        if let Some(of_file) = inodes.get_mut(&inode.id) {
            of_file.retain(|known| known.nodeid != inode.nodeid);
            if of_file.is_empty() {
                inodes.remove(&inode.id);
            }
        }
        self.files.store(inodes.len(), Ordering::Release);
    }

    /// Notifies the kernel of a change, unless it makes the change itself.
    pub fn changed(&self, change: &ChangedRange) {
        let served = SERVED.get();
        if self.files.load(Ordering::Acquire) == 0 || (served.from_page && !change.done) {
            return;
        }
        let mut inodes = self.inodes_of(change.id);
        inodes.retain(|inode| inode.nodeid != served.nodeid);
        let (with_pages, without): (Vec<_>, Vec<_>) =
            inodes.into_iter().partition(|inode| inode.has_pages.load(Ordering::Acquire));
        if let Some(device) = self.device.get() {
            without.iter().for_each(|inode| log_failure(notify_length(device, inode, change)));
        }
        let change = *change;
        let told = self.each(with_pages, move |device, inode: &Arc<Inode>| {
            device.invalidate_pages(inode.nodeid, change.offset, change.length)?;
            notify_length(device, inode, &change)
        });
        if !served.from_page {
            await_all(&told);
        }
    }

    /// Returns when the node has all that programs stored in pages of the file from `offset` on.
    pub fn write_back(&self, id: FileId, offset: u64) {
        if self.files.load(Ordering::Acquire) == 0 {
            return;
        }
        await_all(&self.each(self.inodes_of(id), move |device, inode| {
            device.invalidate_pages(inode.nodeid, offset, u64::MAX)
        }));
    }

    /// Returns when the node has all that programs stored in pages of any file, or after a limit.
    ///
    /// `syncfs` is not enough: the kernel only begins to write pages of FUSE then.
    pub fn write_back_all(&self) {
        let mut inodes: Vec<_> = self.inodes.lock().values().flatten().cloned().collect();
        inodes.retain(|inode| inode.has_pages.load(Ordering::Acquire));
        // Threads of its own: files that hang in the PFS delay few others.
        let threads = ThreadPool::new(WRITING_THREADS_MAX);
        let told = self.each_on(&threads, inodes, |device, inode| {
            device.invalidate_pages(inode.nodeid, 0, u64::MAX)
        });
        if told.recv_timeout(WRITE_ALL_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("shared mappings could not be written back in time");
        }
    }

    /// Returns when the kernel has dropped the pages of an inode.
    pub fn invalidate(&self, inode: &Inode) {
        await_all(&self.start_invalidation(inode));
    }

    /// As [`Pages::invalidate`], without waiting.
    pub fn invalidate_later(&self, inode: &Inode) {
        let _not_awaited = self.start_invalidation(inode);
    }

    fn inodes_of(&self, id: FileId) -> Vec<Arc<Inode>> {
        self.inodes.lock().get(&id).cloned().unwrap_or_default()
    }

    fn start_invalidation(&self, inode: &Inode) -> mpsc::Receiver<()> {
        self.each(vec![inode.nodeid], |device, nodeid| {
            device.invalidate_pages(*nodeid, 0, u64::MAX)
        })
    }

    /// Notifies the kernel of each inode. The channel closes when all is done.
    fn each<T: Send + 'static>(
        &self,
        inodes: Vec<T>,
        tell: impl Fn(&Device, &T) -> io::Result<()> + Clone + Send + 'static,
    ) -> mpsc::Receiver<()> {
        self.each_on(&self.threads, inodes, tell)
    }

    fn each_on<T: Send + 'static>(
        &self,
        threads: &ThreadPool,
        inodes: Vec<T>,
        tell: impl Fn(&Device, &T) -> io::Result<()> + Clone + Send + 'static,
    ) -> mpsc::Receiver<()> {
        let (told, waits) = mpsc::channel();
        let Some(device) = self.device.get() else { return waits };
        for inode in inodes {
            let (device, tell, told) = (device.clone(), tell.clone(), told.clone());
            threads.run(move || {
                log_failure(tell(&device, &inode));
                drop(told);
            });
        }
        waits
    }
}

/// Tells the kernel the length of the inode if the change may have moved it. Gives up if an open
/// of the inode takes long.
fn notify_length(device: &Device, inode: &Inode, change: &ChangedRange) -> io::Result<()> {
    let Some(opens) = change.done.then(|| inode.opens.try_lock_for(OPENS_WAIT_MAX)).flatten()
    else {
        return Ok(());
    };
    let shown = opens.file_shown();
    drop(opens);
    let end = change.offset.saturating_add(change.length);
    match shown.and_then(|file| file.size().ok()).filter(|bytes| *bytes <= end) {
        Some(bytes) => device.notify_length(inode.nodeid, bytes),
        None => Ok(()),
    }
}

fn log_failure(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "the kernel is not told that a file changed");
    }
}

/// Waits until the kernel has taken notifications, within a limit.
fn await_all(told: &mpsc::Receiver<()>) {
    if told.recv_timeout(WAIT_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
        tracing::warn!("pages of a file that changes are not dropped in time");
    }
}
