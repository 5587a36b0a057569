//! The list of cached files: those that the store has most of, or readers read most of. Root and
//! the user of the node see all names, others the files that are charged to themselves.

use tidepool_proto::files::{CachedFile, FILES_MAX, FileOrder};

use crate::file::state::FileState;
use crate::node::Node;
use crate::pins::is_operator;

impl Node {
    /// The first `count` files with a segment in the store, as `user_id` may see them.
    pub(crate) fn cached_files(
        &self,
        order: FileOrder,
        count: u32,
        user_id: u32,
    ) -> Vec<CachedFile> {
        let records = self.core.files.all();
        let mut files: Vec<CachedFile> =
            records.iter().filter_map(|file| cached_file(file, user_id)).collect();
        files.sort_by_key(|file| (std::cmp::Reverse(order.key(file)), file.inode));
        files.truncate(count.min(FILES_MAX) as usize);
        files
    }
}

fn cached_file(file: &FileState, user_id: u32) -> Option<CachedFile> {
    let inner = file.inner.lock();
    let cached = inner.cached.as_ref()?;
    let resident_bytes = cached.resident_bytes();
    let may_know = is_operator(user_id) || cached.owner.user_id == user_id;
    (may_know && resident_bytes > 0).then(|| CachedFile {
        path: inner.opened_as.display().to_string(),
        device: file.id.device,
        inode: file.id.inode,
        size_bytes: cached.size(),
        resident_bytes,
        read_bytes: cached.read_bytes(),
        passthrough_bytes: cached.passthrough_bytes(),
        open_handles: u64::from(inner.handles),
        pinned: inner.pin.is_some(),
        memory_only: cached.is_memory_only(),
    })
}
