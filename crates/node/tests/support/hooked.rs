//! A store that tells a test of each call before it is made, so that the test can wait, change the
//! file, or have the call fail right there.

use std::cell::Cell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tidepool_pfs::{Features, Layout, LayoutHints, LayoutOutcome, LowerFile, LowerStore};
use tidepool_proto::{FileId, Result, Version};

/// A call of the node to a file of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Version,
    /// Which name the file has now.
    Name,
    Read,
    Write,
    SetSize,
    Sync,
    SyncEntry,
    GetAttribute,
    SetAttribute,
    RemoveAttribute,
}

thread_local! {
    /// The inode of the file that this thread calls.
    static INODE: Cell<u64> = const { Cell::new(0) };
}

/// The inode of the file that a hook is asked about.
pub fn inode() -> u64 {
    INODE.get()
}

type Hook = dyn Fn(Call, &mut dyn FnMut() -> Result<()>) -> Result<()> + Send + Sync;

type OffsetHook = dyn Fn(u64) + Send + Sync;

/// What the test does at calls.
#[derive(Default)]
pub struct Hooks {
    hook: Mutex<Option<Arc<Hook>>>,
    without_attributes: AtomicBool,
    over_quota: Mutex<Option<u32>>,
    layout: Mutex<Option<Layout>>,
    /// What runs before a layout is told, where a program has to tell it.
    tool: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    before_reads: Mutex<Option<Arc<OffsetHook>>>,
}

impl Hooks {
    /// From now on `hook` makes every call, by its second argument, or lets it fail.
    pub fn set(
        &self,
        hook: impl Fn(Call, &mut dyn FnMut() -> Result<()>) -> Result<()> + Send + Sync + 'static,
    ) {
        *self.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    /// From now on calls are made as they are.
    pub fn clear(&self) {
        *self.hook.lock().unwrap() = None;
    }

    /// From now on the file system has no extended attributes.
    pub fn take_attributes_away(&self) {
        self.without_attributes.store(true, Ordering::Relaxed);
    }

    /// From now on the files of this owner cannot be written; those of others can.
    pub fn use_up_quota_of(&self, owner: Option<u32>) {
        *self.over_quota.lock().unwrap() = owner;
    }

    /// From now on layouts are told by a program that does this.
    pub fn tell_by_tool(&self, tool: impl Fn() + Send + Sync + 'static) {
        *self.tool.lock().unwrap() = Some(Arc::new(tool));
    }

    /// From now on files have this layout, and `hook` is told the offset of each read of a block.
    pub fn stripe(&self, layout: Layout, hook: impl Fn(u64) + Send + Sync + 'static) {
        *self.layout.lock().unwrap() = Some(layout);
        *self.before_reads.lock().unwrap() = Some(Arc::new(hook));
    }

    fn check_quota(&self, file: &dyn LowerFile) -> Result<()> {
        let owner = rustix::fs::fstat(file.descriptor()).unwrap().st_uid;
        if *self.over_quota.lock().unwrap() != Some(owner) {
            return Ok(());
        }
        let refused = std::io::Error::from_raw_os_error(libc::EDQUOT);
        Err(tidepool_proto::Error::pfs("writing", refused))
    }

    fn attribute<T>(&self, call: Call, make: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.without_attributes.load(Ordering::Relaxed) {
            let refused = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(tidepool_proto::Error::pfs("using an attribute", refused));
        }
        self.around(call, make)
    }

    fn around<T>(&self, call: Call, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let hook = self.hook.lock().unwrap().clone();
        let Some(hook) = hook else { return make() };
        let (mut make, mut made) = (Some(make), None);
        hook(call, &mut || {
            made = Some((make.take().expect("a call is made once"))()?);
            Ok(())
        })?;
        Ok(made.expect("a hook makes the call or fails"))
    }
}

pub struct HookedStore {
    pub inner: Arc<dyn LowerStore>,
    pub features: Features,
    pub hooks: Arc<Hooks>,
}

struct HookedFile {
    inner: Arc<dyn LowerFile>,
    hooks: Arc<Hooks>,
}

impl LowerStore for HookedStore {
    fn file(&self, descriptor: OwnedFd) -> Result<Arc<dyn LowerFile>> {
        let inner = self.inner.file(descriptor)?;
        Ok(Arc::new(HookedFile { inner, hooks: self.hooks.clone() }))
    }

    fn root(&self) -> &Path {
        self.inner.root()
    }

    fn root_descriptor(&self) -> BorrowedFd<'_> {
        self.inner.root_descriptor()
    }

    fn device(&self) -> u64 {
        self.inner.device()
    }

    fn features(&self) -> &Features {
        &self.features
    }

    fn layout(&self, descriptor: BorrowedFd<'_>) -> Layout {
        let tool = self.hooks.tool.lock().unwrap().clone();
        tool.into_iter().for_each(|run| run());
        let told = self.hooks.layout.lock().unwrap().clone();
        told.unwrap_or_else(|| self.inner.layout(descriptor))
    }

    fn layout_runs_a_tool(&self) -> bool {
        self.hooks.tool.lock().unwrap().is_some()
    }

    fn apply_layout(&self, file: BorrowedFd<'_>, hints: &LayoutHints) -> Result<LayoutOutcome> {
        self.inner.apply_layout(file, hints)
    }

    fn now_ns(&self) -> i128 {
        self.inner.now_ns()
    }
}

impl HookedFile {
    fn around<T>(&self, call: Call, make: impl FnOnce() -> Result<T>) -> Result<T> {
        INODE.set(self.inner.id().inode);
        self.hooks.around(call, make)
    }

    fn attribute<T>(&self, call: Call, make: impl FnOnce() -> Result<T>) -> Result<T> {
        INODE.set(self.inner.id().inode);
        self.hooks.attribute(call, make)
    }
}

impl LowerFile for HookedFile {
    fn id(&self) -> FileId {
        self.inner.id()
    }

    fn version(&self) -> Result<Version> {
        self.around(Call::Version, || self.inner.version())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.around(Call::Read, || self.inner.read_at(offset, buffer))
    }

    fn read_block(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let hook = self.hooks.before_reads.lock().unwrap().clone();
        hook.into_iter().for_each(|hook| hook(offset));
        self.around(Call::Read, || self.inner.read_block(offset, buffer))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.hooks.check_quota(&*self.inner)?;
        self.around(Call::Write, || self.inner.write_at(offset, data))
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        self.around(Call::Write, || self.inner.append(data))
    }

    fn write_part(&self, offset: Option<u64>, data: &[u8]) -> Result<(u64, usize)> {
        self.around(Call::Write, || self.inner.write_part(offset, data))
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.around(Call::SetSize, || self.inner.set_size(size))
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        self.around(Call::SetSize, || self.inner.allocate(mode_bits, offset, length))
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.around(Call::Sync, || self.inner.sync(data_only))
    }

    fn sync_directory_entry(&self) -> Result<()> {
        self.around(Call::SyncEntry, || self.inner.sync_directory_entry())
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        self.inner.start_writeback(offset, length);
    }

    fn write_back(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.write_back(offset, length)
    }

    fn drop_cached(&self, offset: u64, length: u64) {
        self.inner.drop_cached(offset, length);
    }

    fn get_xattr(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.attribute(Call::GetAttribute, || self.inner.get_xattr(name))
    }

    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        self.attribute(Call::SetAttribute, || self.inner.set_xattr(name, value))
    }

    fn set_xattr_if(&self, name: &str, value: &[u8], exists: bool) -> Result<bool> {
        let set = || self.inner.set_xattr_if(name, value, exists);
        self.attribute(Call::SetAttribute, set)
    }

    fn remove_xattr(&self, name: &str) -> Result<()> {
        self.attribute(Call::RemoveAttribute, || self.inner.remove_xattr(name))
    }

    fn relative_path(&self) -> Option<PathBuf> {
        self.around(Call::Name, || Ok(self.inner.relative_path())).ok().flatten()
    }

    fn relative_path_known(&self) -> Option<PathBuf> {
        self.inner.relative_path_known()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn direct_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.direct_descriptor()
    }
}
