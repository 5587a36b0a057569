//! `flush`: what is in memory, or in burst buffers, alone comes to the PFS now; and what the
//! buffers owe.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tidepool_cluster::NodeName;
use tidepool_proto::admin::{AdminReply, FlushReport};
use tidepool_proto::buffer::OwedFile;
use tidepool_proto::stub::{Found, Mark};
use tidepool_proto::{Error, OpenRequest, Result};

use crate::file::draining::{Effort, write_back_all};
use crate::file::{memory_only, stub};
use crate::node::Node;

/// Longest wait for a file that is to get a second name.
const NAME_PATIENCE: Duration = Duration::from_millis(200);
/// Files of which that is done at a time: a thread waits for each. Others wait to the end.
const BRINGING_MAX: usize = 64;

impl Node {
    /// Files in burst buffers that the PFS does not have, the oldest first.
    pub(crate) fn owed_files(&self) -> Vec<OwedFile> {
        self.core.cluster().map_or_else(Vec::new, |cluster| cluster.owed_files(&self.core))
    }

    /// Brings all files of this node to the PFS, and those of nodes that are gone for which it
    /// answers; what the former were.
    pub(crate) fn flush_all(
        &self,
        forgets_missing: bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<AdminReply> {
        let before = self.core.memory_only.cached_versions();
        let bytes = before.iter().map(|cached| cached.size()).sum();
        write_back_all(&self.core, Effort::Each, go_on)?;
        let forgotten = match self.core.cluster() {
            Some(cluster) => cluster.bring_orphans(&self.core, forgets_missing, go_on)?,
            None => Vec::new(),
        };
        Ok(AdminReply::Flushed(FlushReport { files: before.len() as u64, bytes, forgotten }))
    }

    /// Brings a file to the PFS of which other nodes have copies, or that another node has, for a
    /// second name. That waits no longer than a moment for a node that is there: the kernel holds
    /// the directory meanwhile, whoever asks for it. The file comes there all the same.
    pub(crate) fn bring(&self, descriptor: OwnedFd, user_id: u32) -> Result<()> {
        let lower = self.core.pfs.file(descriptor.try_clone().map_err(not_again)?)?;
        let version = lower.version()?;
        let own = self.core.files.get(version.id);
        let own = own.and_then(|file| file.inner.lock().stub.clone());
        if own.as_ref().is_some_and(|stub| stub.copied().is_none()) {
            return Ok(());
        }
        let Some(cluster) = self.core.cluster() else {
            return self.flush(descriptor, user_id).map(drop);
        };
        let is_there = |mark: &Mark| {
            let holder = NodeName::new(&mark.member);
            holder.is_ok_and(|it| cluster.is_there(&it))
        };
        let may_go_on = match stub::find(&*lower, version.size)? {
            Found::Stub(mark) => is_there(&mark),
            _ => false,
        };
        let node = cluster.node().filter(|_| may_go_on);
        match node.and_then(|node| Some((node, Bringing::begin()?))) {
            Some((node, turn)) => brought_soon(node, turn, descriptor, user_id),
            // A second name would keep others from putting their copies in its place.
            None => self.flush(descriptor, user_id).map(drop),
        }
    }

    /// Brings a file to the PFS; what it was, if this node had it.
    pub(crate) fn flush(&self, descriptor: OwnedFd, user_id: u32) -> Result<FlushReport> {
        let core = &self.core;
        let lower = core.pfs.file(descriptor)?;
        let file = core.files.get(lower.version()?.id);
        let own = file.and_then(|file| Some((file.cached()?, file)));
        if let Some((cached, file)) = own.filter(|(cached, _)| cached.is_memory_only()) {
            let bytes = cached.size();
            memory_only::write_back_for_another(core, &file).map(drop)?;
            return Ok(FlushReport { files: 1, bytes, forgotten: Vec::new() });
        }
        // The node that has it writes it back for this open.
        let descriptor = lower.descriptor().try_clone_to_owned().map_err(not_again)?;
        self.open_handle(OpenRequest::to_read(descriptor, user_id))?;
        Ok(FlushReport::default())
    }
}

/// One of those that are brought to the PFS by a thread of their own.
struct Bringing;

static BRINGING: AtomicUsize = AtomicUsize::new(0);

impl Bringing {
    /// `None` where there are too many.
    fn begin() -> Option<Self> {
        let before = BRINGING.fetch_add(1, Ordering::Relaxed);
        let turn = Bringing;
        (before < BRINGING_MAX).then_some(turn)
    }
}

impl Drop for Bringing {
    fn drop(&mut self) {
        BRINGING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Has a file brought to the PFS by a thread of its own, and waits for a moment.
fn brought_soon(node: Arc<Node>, turn: Bringing, descriptor: OwnedFd, user_id: u32) -> Result<()> {
    let (done, brought) = mpsc::channel();
    let bring = move || {
        let _turn = turn;
        let flushed = node.flush(descriptor, user_id).map(drop);
        if let Err(error) = &flushed {
            tracing::warn!(%error, "a file that gets a second name is not on the PFS yet");
        }
        // Whoever asked may be gone by now.
        let _ = done.send(flushed);
    };
    let thread = std::thread::Builder::new().name("second-name".into()).spawn(bring);
    thread.map_err(|error| Error::pfs("bringing a file to the PFS", error))?;
    brought.recv_timeout(NAME_PATIENCE).unwrap_or(Ok(()))
}

/// The error where there is no other descriptor of a file.
fn not_again(error: std::io::Error) -> Error {
    Error::pfs("flushing a file", error)
}
