//! Files in the memory of this node alone that another node, or a program beside Tidepool, removed:
//! nobody tells this node of that, and their bytes would stay until the memory is needed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_proto::FileId;

use crate::core::Core;
use crate::file::memory_only;

/// Time between two looks, and how long one may take: the PFS is asked for each file.
const INTERVAL: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_millis(50);

/// Which files are still to be looked at in this round.
#[derive(Default)]
pub struct Removed {
    left: Vec<FileId>,
    looked: Option<Instant>,
}

impl Removed {
    /// Looks at some files, in turn, and frees those that have no name and are not open.
    pub fn free(&mut self, core: &Arc<Core>) {
        if self.looked.is_some_and(|at| at.elapsed() < INTERVAL) {
            return;
        }
        if self.left.is_empty() {
            let files = core.memory_only.cached_versions();
            self.left = files.iter().map(|cached| cached.id()).collect();
        }
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            let Some(id) = self.left.pop() else { break };
            free_if_removed(core, id);
        }
        self.looked = Some(Instant::now());
    }
}

fn free_if_removed(core: &Arc<Core>, id: FileId) {
    let Some(file) = core.files.get(id) else { return };
    let stub = {
        let inner = file.inner.lock();
        inner.stub.clone().filter(|_| inner.handles == 0)
    };
    let Some(stub) = stub else { return };
    // An error says nothing: the bytes stay.
    let names = rustix::fs::fstat(stub.lower().descriptor()).map(|it| it.st_nlink);
    if names != Ok(0) {
        return;
    }
    if stub.copied().is_some() {
        // A copy may have taken its place.
        if let Err(error) = memory_only::write_back_for_another(core, &file) {
            tracing::debug!(inode = id.inode, %error, "a removed file stays in memory");
        }
    } else {
        core.name_removed(id);
    }
}
