//! `flush`: what is in memory, or in burst buffers, alone comes to the PFS now; and what the
//! buffers owe.

use std::os::fd::OwnedFd;

use tidepool_proto::admin::{AdminReply, FlushReport};
use tidepool_proto::buffer::OwedFile;
use tidepool_proto::{Error, OpenRequest, Result};

use crate::file::draining::{Effort, write_back_all};
use crate::file::memory_only;
use crate::node::Node;

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

    /// Brings a file to the PFS of which other nodes have copies, or that another node has.
    pub(crate) fn bring(&self, descriptor: OwnedFd, user_id: u32) -> Result<()> {
        let lower = self.core.pfs.file(descriptor.try_clone().map_err(not_again)?)?;
        let file = self.core.files.get(lower.version()?.id);
        let is_own_alone = file.is_some_and(|file| {
            let inner = file.inner.lock();
            inner.stub.as_ref().is_some_and(|stub| stub.copied().is_none())
        });
        if is_own_alone { Ok(()) } else { self.flush(descriptor, user_id).map(drop) }
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

/// The error where there is no other descriptor of a file.
fn not_again(error: std::io::Error) -> Error {
    Error::pfs("flushing a file", error)
}
