//! [`File`]: an open file, read from its segment, from the node or from the parallel file system.
//! One open reads one version; where that is gone, reads fail with `Changed`.

mod memory_only;
mod read;
mod traced;
mod write;
mod writes;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use tidepool_proto::wire::{Reply, Request};
use tidepool_proto::{Advice, Error, ErrorKind, Result, Version};

use crate::binding::{Binding, Manner, Writer};
use crate::connection::{CallError, GIVING_UP_INTERVAL, GoOn};
use crate::link::Link;
use crate::lower;
use crate::options::{OpenOptions, ReadPattern};
use crate::read_ahead::ReadAhead;
use writes::Writes;

/// Time to send the close of a file that was open for writing; its reply is not waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a file that was open for reading alone, and may as well be closed later.
const READER_CLOSE_TIMEOUT: Duration = Duration::from_millis(50);

/// An open file. All methods may be called from several threads at once.
///
/// Reads through an open for reading alone return the bytes of one version of the file: the one it
/// had at the open, carried along by writes through this node. If another program changed the file
/// and its old bytes are not in memory any more, reads fail with [`ErrorKind::Changed`]. While no
/// node answers, that goes by length and modification time, and an open that may write reads as the
/// parallel file system does.
#[derive(Debug)]
pub struct File {
    link: Arc<Link>,
    lower: OwnedFd,
    options: OpenOptions,
    /// This open created the file. Only its first binding says so to the node: later the file may
    /// have bytes.
    created: bool,
    without_node: bool,
    /// What this open reads, as of its beginning, and the length that the node gave.
    origin: Origin,
    binding: ArcSwapOption<Binding>,
    rebinding: Mutex<Option<Instant>>,
    cursor: Mutex<u64>,
    appending: Mutex<()>,
    read_ahead: ReadAhead,
    /// What this open reads and writes is worth keeping.
    keeps: AtomicBool,
    mapped_bytes: AtomicU64,
    writes: Writes,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Origin {
    version: Version,
    size: u64,
    /// Bytes live in the memory of the node alone, so the parallel file system cannot help.
    memory_only: bool,
}

impl Origin {
    /// Whether a node that opened the file anew has the same content of it, as far as that is told.
    /// Of bytes that are not on the PFS, its version is that of the stub, without their length.
    fn is_same(&self, version: &Version, size: u64) -> bool {
        lower::is_same_content(version, &self.version) && size == self.size
    }
}

/// Whether an open may go on without the node after it refused for this reason.
fn can_do_without(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::NodeUnavailable
        | ErrorKind::LimitReached
        | ErrorKind::Protocol
        | ErrorKind::TimedOut
        | ErrorKind::Unsupported
        | ErrorKind::StoreFull => true,
        ErrorKind::InvalidInput
        | ErrorKind::Pfs
        | ErrorKind::Changed
        | ErrorKind::NotResident
        | ErrorKind::Lost
        | ErrorKind::QuotaExceeded
        | ErrorKind::PermissionDenied
        | ErrorKind::InUse
        | ErrorKind::StoreUnavailable
        | ErrorKind::Internal => false,
    }
}

/// Opens a file at the node; `None` where the open goes on without it.
fn ask_to_open(
    link: &Link,
    lower: &OwnedFd,
    options: &OpenOptions,
    manner: Manner,
) -> Result<Option<Binding>> {
    let Some(connection) = link.connection() else { return Ok(None) };
    let map_segments = link.options.map_segments;
    match Binding::open(Arc::clone(&connection), lower, options, manner, map_segments, None) {
        Ok(binding) => Ok(binding),
        Err(CallError::Gone(_)) if !manner.truncate || connection.wait_for_end() => Ok(None),
        // It may cut the file to nothing at any time.
        Err(CallError::Gone(error)) => Err(error),
        Err(CallError::Failed(error)) if can_do_without(error.kind()) => {
            link.tell_refusal(&error);
            Ok(None)
        }
        Err(CallError::Failed(error)) => Err(error),
    }
}

impl File {
    /// Opens what `lower` is open for; `None` where `go_on` gave up to wait for the node that alone
    /// has its bytes.
    pub(crate) fn open(
        link: &Arc<Link>,
        lower: OwnedFd,
        options: OpenOptions,
        manner: Manner,
        without_node: bool,
        go_on: GoOn<'_>,
    ) -> Result<Option<File>> {
        let Manner { created, truncate } = manner;
        let mut bound = None;
        if !without_node {
            bound = ask_to_open(link, &lower, &options, manner)?;
        }
        let bare = match &bound {
            Some(_) => None,
            None => memory_only::bare_version(&lower, &options)?,
        };
        let origin = if let Some(version) = bare {
            Origin { version, size: version.size, memory_only: false }
        } else {
            let binding = match bound.take() {
                Some(binding) => binding,
                None if without_node => return Err(memory_only::gone()),
                None => match memory_only::open(link, &lower, &options, manner, go_on)? {
                    Some(binding) => binding,
                    None => return Ok(None),
                },
            };
            let bound = bound.insert(binding);
            let memory_only = bound.size != bound.version.size;
            Origin { version: bound.version, size: bound.size, memory_only }
        };
        let may_be_lost = bound.as_ref().is_some_and(|binding| binding.may_be_lost);
        if truncate && bound.is_none() && origin.version.size > 0 {
            lower::set_size(&lower, 0)?;
        }
        let past_node = bound.as_ref().is_none_or(|binding| binding.writer != Writer::Node);
        let writes = Writes::new(created, truncate, past_node, may_be_lost);
        let file = File {
            link: Arc::clone(link),
            lower,
            options,
            created,
            without_node,
            origin,
            binding: ArcSwapOption::new(bound.map(Arc::new)),
            rebinding: Mutex::new(None),
            cursor: Mutex::new(0),
            appending: Mutex::new(()),
            read_ahead: ReadAhead::new(&options.plan, Arc::clone(&link.habit)),
            keeps: AtomicBool::new(true),
            mapped_bytes: AtomicU64::new(0),
            writes,
            closed: AtomicBool::new(false),
        };
        file.plan();
        Ok(Some(file))
    }

    /// Tells the node how this open will be used, and has it begin with what is wanted first.
    fn plan(&self) {
        let guard = self.binding.load();
        let Some(binding) = guard.as_ref() else { return };
        self.advise(binding);
        if self.options.plan.pattern == ReadPattern::Whole && binding.segment.is_some() {
            let range = self.read_ahead.at_open(binding.size);
            self.prefetch_missing(range.start, range.end.saturating_sub(range.start));
        }
    }

    fn advise(&self, binding: &Binding) {
        let read_ahead_bytes_max = self.read_ahead.advised_bytes_max();
        let advice = Advice { read_ahead_bytes_max, keep: self.keeps() };
        if advice != Advice::default() {
            self.tell_advice(binding, advice);
        }
    }

    fn tell_advice(&self, binding: &Binding, advice: Advice) {
        let request = Request::Advise { handle: binding.handle, advice };
        binding.connection.tell(&request, Duration::ZERO);
    }

    /// Whether what this open reads and writes is worth keeping.
    fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// Has this open read ahead at most so many bytes from now on, 0 for none; `None` is as far as
    /// the plan of the open says. A hint: it changes no byte.
    pub fn set_read_ahead(&self, bytes_max: Option<u64>) {
        self.read_ahead.set_bytes_max(bytes_max);
        self.advise_anew();
    }

    /// Says whether what this open reads and writes from now on is worth keeping in memory. What
    /// is there already stays. Without a node this is about the kernel's page cache. A hint: it
    /// changes no byte, and bytes that are in memory alone stay.
    pub fn set_keep(&self, keep: bool) {
        self.keeps.store(keep, Ordering::Relaxed);
        self.advise_anew();
    }

    fn advise_anew(&self) {
        if let Some(binding) = self.binding_alive() {
            let read_ahead_bytes_max = self.read_ahead.advised_bytes_max();
            self.tell_advice(&binding, Advice { read_ahead_bytes_max, keep: self.keeps() });
        }
    }

    /// The open file at a node that is there, opened anew if the node was gone in between; `None`
    /// while no node answers. Fails if the node has another version of the file.
    fn bound(&self) -> Result<Option<Arc<Binding>>> {
        self.bound_while(&mut || true)
    }

    /// As `bound`; `None` also where `go_on` gave up to wait for a node that alone has the bytes.
    fn bound_while(&self, go_on: GoOn<'_>) -> Result<Option<Arc<Binding>>> {
        if let Some(binding) = self.binding_alive() {
            return Ok(Some(binding));
        }
        self.note_end_of_node();
        if self.without_node || self.writes.are_lost() {
            return Ok(None);
        }
        let Some(mut refused_until) = self.turn_to_bind(go_on) else { return Ok(None) };
        if let Some(binding) = self.binding_alive() {
            return Ok(Some(binding));
        }
        if refused_until.is_some_and(|until| Instant::now() < until) {
            return Ok(None);
        }
        let map_segments = self.link.options.map_segments;
        let manner = Manner { created: false, truncate: false };
        let asked = match self.link.connection() {
            Some(connection) => {
                let (lower, options) = (&self.lower, &self.options);
                Binding::open(connection, lower, options, manner, map_segments, None)
            }
            None => Ok(None),
        };
        let asked = match asked {
            Ok(None) => Ok(self.open_anew(manner, go_on)?),
            asked => asked,
        };
        match asked {
            Ok(None) => Ok(None),
            Ok(Some(binding)) => {
                let is_same = self.origin.is_same(&binding.version, binding.size);
                if !self.options.access.writes() && !is_same {
                    self.forget(&binding);
                    return Err(changed());
                }
                self.writes.go_to_another_node(binding.may_be_lost);
                if self.created {
                    // This node does not know that the name is new: it is synced here.
                    self.writes.went_past_node(1);
                }
                self.advise(&binding);
                let binding = Arc::new(binding);
                self.binding.store(Some(Arc::clone(&binding)));
                Ok(Some(binding))
            }
            Err(CallError::Gone(_)) => Ok(None),
            Err(CallError::Failed(error)) if can_do_without(error.kind()) => {
                *refused_until = Some(Instant::now() + self.link.options.retry_interval);
                Ok(None)
            }
            Err(CallError::Failed(error)) => Err(error),
        }
    }

    /// The turn to open the file anew at the node, which another thread may be at for long; `None`
    /// where `go_on` gave up.
    fn turn_to_bind(&self, go_on: GoOn<'_>) -> Option<MutexGuard<'_, Option<Instant>>> {
        loop {
            if let Some(turn) = self.rebinding.try_lock_for(GIVING_UP_INTERVAL) {
                return Some(turn);
            }
            if !go_on() {
                return None;
            }
        }
    }

    /// Which process writes to the file. Without a node that is this one too, but the node is asked
    /// first, for it may be back.
    fn writer(&self) -> Writer {
        let guard = self.binding.load();
        let alive = guard.as_ref().filter(|binding| binding.connection.is_alive());
        alive.map_or(Writer::Node, |binding| binding.writer)
    }

    fn binding_alive(&self) -> Option<Arc<Binding>> {
        self.binding.load().as_ref().filter(|binding| binding.connection.is_alive()).cloned()
    }

    fn forget(&self, binding: &Binding) {
        let mapped_bytes = self.mapped_bytes.swap(0, Ordering::Relaxed);
        let writes = self.options.access.writes();
        let timeout = if writes { CLOSE_TIMEOUT } else { READER_CLOSE_TIMEOUT };
        // Afterwards the node does not know the file by its number.
        binding.connection.tracing().send(&binding.connection);
        binding.connection.close(binding.handle, mapped_bytes, timeout);
        if binding.writer != Writer::Node {
            // The node then tells the kernel what was written past it. The next reader must find
            // that done: while it goes on, the kernel does not learn of a new length. An answer,
            // that the file is not open any more, comes after it.
            let _ = binding.connection.call(&Request::Facts { handle: binding.handle }, &[], &[]);
        }
    }

    /// The version that this open reads, or that writes through this node made since.
    pub fn version(&self) -> Result<Version> {
        match self.facts(&mut || true)? {
            Some((version, _)) => Ok(version),
            None if self.options.access.writes() => lower::version(&self.lower),
            None => Ok(self.origin.version),
        }
    }

    /// Length of the file in bytes when it was opened. Sends no message.
    pub fn size_at_open(&self) -> u64 {
        self.origin.size
    }

    /// Length of the file in bytes.
    pub fn size(&self) -> Result<u64> {
        let size = self.size_while(&mut || true)?;
        // Never without a size: the wait is not given up.
        Ok(size.unwrap_or_default())
    }

    /// As [`File::size`]; `None` where `go_on`, asked now and then, gave up to wait for the node.
    pub fn size_while(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Option<u64>> {
        if let Some(size) = self.held_size() {
            return Ok(Some(size));
        }
        let mut is_given_up = false;
        let facts = self.facts(&mut || {
            is_given_up = is_given_up || !go_on();
            !is_given_up
        });
        if is_given_up {
            return Ok(None);
        }
        match facts? {
            Some((_, size)) => Ok(Some(size)),
            None if self.options.access.writes() => Ok(Some(lower::version(&self.lower)?.size)),
            None => Ok(Some(self.origin.version.size)),
        }
    }

    fn facts(&self, go_on: GoOn<'_>) -> Result<Option<(Version, u64)>> {
        if self.writer() != Writer::Node {
            return Ok(None);
        }
        if let Some(binding) = &*self.binding.load()
            && let Some(inline) = &binding.inline
        {
            return Ok(Some((binding.version, inline.bytes.len() as u64)));
        }
        let reply = self.ask(&|handle| Request::Facts { handle }, go_on)?;
        match reply {
            Some(Reply::Facts { version, size }) => Ok(Some((version, size))),
            _ => {
                self.check_not_memory_only()?;
                Ok(None)
            }
        }
    }

    /// Asks the node about this file; `None` if no node answers, or `go_on` gave up.
    fn ask(&self, request: &dyn Fn(u64) -> Request, go_on: GoOn<'_>) -> Result<Option<Reply>> {
        // Twice: the node may be back already when its end is noticed.
        for _ in 0..2 {
            let Some(binding) = self.bound_while(go_on)? else { return Ok(None) };
            match binding.connection.call_while(&request(binding.handle), &[], Some(&mut *go_on)) {
                Ok(answer) => return Ok(answer.map(|answer| answer.reply)),
                Err(CallError::Failed(error)) => return Err(error),
                Err(CallError::Gone(_)) => {}
            }
        }
        Ok(None)
    }

    /// The descriptor of the file on the parallel file system.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.lower.as_fd()
    }
}

fn changed() -> Error {
    Error::new(ErrorKind::Changed, "reading an open file", "another program changed the file")
        .remedy("open it again to read the new version")
}

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            (self.link.options.notice)(&format!("a file was dropped before its error: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tidepool_proto::FileId;

    use super::*;

    #[test]
    fn bytes_that_are_not_on_the_pfs_are_told_by_their_length_as_well() {
        let id = FileId { device: 1, inode: 2 };
        let stub = Version { id, size: 0, modified_ns: 5, changed_ns: 6, born_ns: 4 };
        let origin = Origin { version: stub, size: 100, memory_only: true };
        assert!(origin.is_same(&Version { changed_ns: 9, ..stub }, 100), "a mark moves that");
        assert!(!origin.is_same(&stub, 101), "written anew, with the time of before");
        assert!(!origin.is_same(&Version { modified_ns: 7, ..stub }, 100));
    }
}
