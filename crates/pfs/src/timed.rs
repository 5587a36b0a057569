//! [`TimedStore`]: a [`LowerStore`] over another one that counts the time of its calls as waits of
//! the request that makes them ([`cost`]). For request tracing; changes nothing else.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidepool_proto::{FileId, Identity, Result, Version};

use crate::cost;
use crate::features::Features;
use crate::layout::{Layout, LayoutHints, LayoutOutcome};
use crate::lower::{LowerFile, LowerStore};

/// Over another store.
pub struct TimedStore(Arc<dyn LowerStore>);

struct TimedFile(Arc<dyn LowerFile>);

impl TimedStore {
    /// Over `store`.
    pub fn over(store: Arc<dyn LowerStore>) -> Arc<TimedStore> {
        Arc::new(TimedStore(store))
    }
}

impl LowerStore for TimedStore {
    fn file(&self, descriptor: OwnedFd) -> Result<Arc<dyn LowerFile>> {
        let file = cost::wait(|| self.0.file(descriptor))?;
        Ok(Arc::new(TimedFile(file)))
    }

    fn root(&self) -> &Path {
        self.0.root()
    }

    fn root_descriptor(&self) -> BorrowedFd<'_> {
        self.0.root_descriptor()
    }

    fn device(&self) -> u64 {
        self.0.device()
    }

    fn features(&self) -> &Features {
        self.0.features()
    }

    fn layout(&self, descriptor: BorrowedFd<'_>) -> Layout {
        cost::wait(|| self.0.layout(descriptor))
    }

    fn layout_runs_a_tool(&self) -> bool {
        self.0.layout_runs_a_tool()
    }

    fn apply_layout(
        &self,
        directory_or_new_file: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        cost::wait(|| self.0.apply_layout(directory_or_new_file, hints))
    }

    fn now_ns(&self) -> i128 {
        self.0.now_ns()
    }

    fn close_idle(&self) {
        self.0.close_idle();
    }
}

impl LowerFile for TimedFile {
    fn id(&self) -> FileId {
        self.0.id()
    }

    fn version(&self) -> Result<Version> {
        cost::wait(|| self.0.version())
    }

    fn change_as(&self, identity: Identity) {
        self.0.change_as(identity);
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        cost::wait(|| self.0.read_at(offset, buffer))
    }

    fn read_current(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        cost::wait(|| self.0.read_current(offset, buffer))
    }

    fn look_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        cost::wait(|| self.0.look_at(offset, buffer))
    }

    fn read_block(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        cost::wait(|| self.0.read_block(offset, buffer))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        cost::wait(|| self.0.write_at(offset, data))
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        cost::wait(|| self.0.append(data))
    }

    fn write_part(&self, offset: Option<u64>, data: &[u8]) -> Result<(u64, usize)> {
        cost::wait(|| self.0.write_part(offset, data))
    }

    fn set_size(&self, size: u64) -> Result<()> {
        cost::wait(|| self.0.set_size(size))
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        cost::wait(|| self.0.allocate(mode_bits, offset, length))
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        cost::wait(|| self.0.sync(data_only))
    }

    fn sync_directory_entry(&self) -> Result<()> {
        cost::wait(|| self.0.sync_directory_entry())
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        cost::wait(|| self.0.start_writeback(offset, length));
    }

    fn write_back(&self, offset: u64, length: u64) -> Result<()> {
        cost::wait(|| self.0.write_back(offset, length))
    }

    fn drop_cached(&self, offset: u64, length: u64) {
        cost::wait(|| self.0.drop_cached(offset, length));
    }

    fn get_xattr(&self, name: &str) -> Result<Option<Vec<u8>>> {
        cost::wait(|| self.0.get_xattr(name))
    }

    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        cost::wait(|| self.0.set_xattr(name, value))
    }

    fn set_xattr_if(&self, name: &str, value: &[u8], exists: bool) -> Result<bool> {
        cost::wait(|| self.0.set_xattr_if(name, value, exists))
    }

    fn remove_xattr(&self, name: &str) -> Result<()> {
        cost::wait(|| self.0.remove_xattr(name))
    }

    fn relative_path(&self) -> Option<PathBuf> {
        cost::wait(|| self.0.relative_path())
    }

    fn relative_path_known(&self) -> Option<PathBuf> {
        self.0.relative_path_known()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    fn direct_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.direct_descriptor()
    }
}
