//! The pages of files that the kernel keeps, and how it is told to drop them.
//!
//! The kernel keeps pages for each node: of mappings, and where opens go through its page cache. It
//! brings them up to date for what it writes itself through the same node. All else that changes a
//! file is told here: writes by the library, and by opens of another node for the same file.
//!
//! The kernel writes what programs stored to a page before it drops it, and waits for reads into
//! it. So it is told by threads that serve nobody, before a change (or the page would later be
//! written over it) and after it. A change waits, but not without end. The kernel's own writes of
//! pages never wait: the page that they come from stays locked meanwhile.

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

use crate::callers::waiting::WaitingThreads;
use crate::inode::table::Node;
use crate::protocol::device::Device;

/// Threads that wait for the kernel to drop pages.
const THREADS_MAX: usize = 4;
/// How long a change waits for pages to go.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Threads that ask for the pages of all files when the node stops, and how long that may take.
const WRITING_THREADS_MAX: usize = 64;
const WRITE_ALL_MAX: Duration = Duration::from_secs(10);
/// How long a change of a file waits for an open of it that is under way, which may ask the PFS.
const OPENS_WAIT_MAX: Duration = Duration::from_millis(100);

/// What a thread serves at present.
#[derive(Clone, Copy, Default)]
struct Served {
    /// The node that the kernel changes by itself.
    nodeid: u64,
    /// The bytes come from a page, which is locked.
    from_page: bool,
}

thread_local! {
    static SERVED: Cell<Served> = const { Cell::new(Served { nodeid: 0, from_page: false }) };
}

/// While this lives, changes that the thread makes are those of a request.
pub struct Serving {
    before: Served,
    /// Belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Serving {
    /// The kernel brings the pages of `nodeid` up to date by itself.
    pub fn node(nodeid: u64) -> Self {
        Self::enter(Served { nodeid, from_page: false })
    }

    /// The kernel keeps no pages up to date.
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

/// See the file's first lines.
pub struct Pages {
    nodes: Mutex<HashMap<FileId, Vec<Arc<Node>>>>,
    files: AtomicUsize,
    threads: WaitingThreads,
    device: OnceLock<Arc<Device>>,
}

impl Pages {
    /// No node has pages yet.
    pub fn new() -> Self {
        Pages {
            nodes: Mutex::default(),
            files: AtomicUsize::new(0),
            threads: WaitingThreads::new(THREADS_MAX),
            device: OnceLock::new(),
        }
    }

    /// Where the kernel is told.
    pub fn connect(&self, device: Arc<Device>) {
        let _ = self.device.set(device);
    }

    /// The kernel ends what it reads of the node at the length that it heard last.
    pub fn opened(&self, node: &Arc<Node>) {
        if node.is_told.load(Ordering::Acquire) {
            return;
        }
        let mut nodes = self.nodes.lock();
        if !node.is_told.swap(true, Ordering::AcqRel) {
            nodes.entry(node.id).or_default().push(node.clone());
            self.files.store(nodes.len(), Ordering::Release);
        }
    }

    /// The kernel is about to get bytes for a page of the node.
    pub fn filled(&self, node: &Arc<Node>) {
        self.opened(node);
        node.has_pages.store(true, Ordering::Release);
    }

    /// The kernel gave the node up, and its pages.
    pub fn forgotten(&self, node: &Node) {
        if !node.is_told.load(Ordering::Acquire) {
            return;
        }
        let mut nodes = self.nodes.lock();
        if let Some(of_file) = nodes.get_mut(&node.id) {
            of_file.retain(|known| known.nodeid != node.nodeid);
            if of_file.is_empty() {
                nodes.remove(&node.id);
            }
        }
        self.files.store(nodes.len(), Ordering::Release);
    }

    /// Tells the kernel of a change, unless it makes it itself.
    pub fn changed(&self, change: &ChangedRange) {
        let served = SERVED.get();
        if self.files.load(Ordering::Acquire) == 0 || (served.from_page && !change.done) {
            return;
        }
        let mut nodes = self.nodes_of(change.id);
        nodes.retain(|node| node.nodeid != served.nodeid);
        let (with_pages, without): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| node.has_pages.load(Ordering::Acquire));
        if let Some(device) = self.device.get() {
            without.iter().for_each(|node| heard(tell_length(device, node, change)));
        }
        let change = *change;
        let told = self.each(with_pages, move |device, node: &Arc<Node>| {
            device.drop_pages(node.nodeid, change.offset, change.length)?;
            tell_length(device, node, &change)
        });
        if !served.from_page {
            await_all(&told);
        }
    }

    /// Returns when the node has what programs stored to pages of the file behind `offset`.
    pub fn write_back(&self, id: FileId, offset: u64) {
        if self.files.load(Ordering::Acquire) == 0 {
            return;
        }
        await_all(&self.each(self.nodes_of(id), move |device, node| {
            device.drop_pages(node.nodeid, offset, u64::MAX)
        }));
    }

    /// Returns when the node has what programs stored to pages of any file, or in the end without.
    ///
    /// `syncfs` would not do: the kernel only begins to write pages of FUSE then.
    pub fn write_back_all(&self) {
        let mut nodes: Vec<_> = self.nodes.lock().values().flatten().cloned().collect();
        nodes.retain(|node| node.has_pages.load(Ordering::Acquire));
        // Threads of its own: files that hang in the PFS hold up few others.
        let threads = WaitingThreads::new(WRITING_THREADS_MAX);
        let told = self
            .each_on(&threads, nodes, |device, node| device.drop_pages(node.nodeid, 0, u64::MAX));
        if told.recv_timeout(WRITE_ALL_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("shared mappings could not be written back in time");
        }
    }

    /// Returns when the kernel has dropped the pages of a node.
    pub fn drop_all(&self, node: &Node) {
        await_all(&self.drop_of(node));
    }

    /// The same, some time later.
    pub fn drop_later(&self, node: &Node) {
        let _not_awaited = self.drop_of(node);
    }

    fn nodes_of(&self, id: FileId) -> Vec<Arc<Node>> {
        self.nodes.lock().get(&id).cloned().unwrap_or_default()
    }

    fn drop_of(&self, node: &Node) -> mpsc::Receiver<()> {
        self.each(vec![node.nodeid], |device, nodeid| device.drop_pages(*nodeid, 0, u64::MAX))
    }

    /// Tells the kernel something of each node; the channel closes when it heard all.
    fn each<T: Send + 'static>(
        &self,
        nodes: Vec<T>,
        tell: impl Fn(&Device, &T) -> io::Result<()> + Clone + Send + 'static,
    ) -> mpsc::Receiver<()> {
        self.each_on(&self.threads, nodes, tell)
    }

    fn each_on<T: Send + 'static>(
        &self,
        threads: &WaitingThreads,
        nodes: Vec<T>,
        tell: impl Fn(&Device, &T) -> io::Result<()> + Clone + Send + 'static,
    ) -> mpsc::Receiver<()> {
        let (told, waits) = mpsc::channel();
        let Some(device) = self.device.get() else { return waits };
        for node in nodes {
            let (device, tell, told) = (device.clone(), tell.clone(), told.clone());
            threads.run(move || {
                heard(tell(&device, &node));
                drop(told);
            });
        }
        waits
    }
}

/// Tells the kernel where the node ends now, if the change may have moved that. Not while an open
/// of it takes its time.
fn tell_length(device: &Device, node: &Node, change: &ChangedRange) -> io::Result<()> {
    let Some(opens) = change.done.then(|| node.opens.try_lock_for(OPENS_WAIT_MAX)).flatten() else {
        return Ok(());
    };
    let shown = opens.file_shown();
    drop(opens);
    let end = change.offset.saturating_add(change.length);
    match shown.and_then(|file| file.size().ok()).filter(|bytes| *bytes <= end) {
        Some(bytes) => device.tell_length(node.nodeid, bytes),
        None => Ok(()),
    }
}

fn heard(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "the kernel is not told that a file changed");
    }
}

/// Waits for the kernel to hear what it is told, not without end.
fn await_all(told: &mpsc::Receiver<()>) {
    if told.recv_timeout(WAIT_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
        tracing::warn!("pages of a file that changes are not dropped in time");
    }
}
