//! A service that keeps every file whole in memory: each version in a memfd, which reads are
//! answered from without copying and which the kernel may read by itself. Writes go to the PFS and
//! to the memory together. Nothing is ever evicted.

use std::collections::HashMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use tidepool_proto::{
    BytesByLevel, FileId, FileService, Level, OpenFile, OpenRequest, PassthroughPin, ReadOutcome,
    Result, SegmentExport, Version, WriteMode,
};

use super::bypass::{allocate, failed, read_all, sync, version, write_all};

/// Address space set aside for a file at least, so that it can grow under its mapping. Bytes beyond
/// are copied.
const MAPPING_BYTES_MIN: usize = 1 << 30;
const STEP_BYTES: usize = 4 << 20;

/// See the file's first line.
#[derive(Default)]
pub struct MemoryService {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    contents: Mutex<HashMap<FileId, Arc<Content>>>,
    last_segment: AtomicU64,
    /// Answers of `passthrough` so far, and loads from the PFS.
    pins: AtomicUsize,
    loads: AtomicUsize,
    carried: AtomicUsize,
    without_passthrough: bool,
}

/// One version of a file and its successors made by writes through the service.
struct Content {
    memory: OwnedFd,
    mapping: usize,
    mapping_bytes: usize,
    segment_id: u64,
    state: RwLock<Version>,
}

impl Drop for Content {
    fn drop(&mut self) {
        // SAFETY: the region was mapped by `load` with this length, and no slice of it outlives
        // the content.
        let _ = unsafe { rustix::mm::munmap(self.mapping as *mut _, self.mapping_bytes) };
    }
}

struct MemoryFile {
    lower: OwnedFd,
    append: bool,
    content: Arc<Content>,
    shared: Arc<Shared>,
}

struct Pin(Arc<Content>);

impl PassthroughPin for Pin {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.memory.as_fd()
    }

    fn segment_id(&self) -> u64 {
        self.0.segment_id
    }

    fn serves(&self, version: &Version) -> bool {
        *self.0.state.read().unwrap() == *version
    }
}

impl MemoryService {
    /// A service that never lets the kernel read by itself.
    pub fn without_passthrough() -> Self {
        let shared = Shared { without_passthrough: true, ..Shared::default() };
        MemoryService { shared: Arc::new(shared) }
    }

    /// How often an open was granted passthrough.
    pub fn pins(&self) -> usize {
        self.shared.pins.load(Ordering::SeqCst)
    }

    /// How often a file was read from the PFS.
    pub fn loads(&self) -> usize {
        self.shared.loads.load(Ordering::SeqCst)
    }

    /// How often a change of metadata was reported.
    pub fn carried(&self) -> usize {
        self.shared.carried.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn load(&self, lower: &OwnedFd) -> Result<Content> {
        let memory = rustix::fs::memfd_create(c"content", MemfdFlags::CLOEXEC).map_err(failed)?;
        let state = version(lower);
        rustix::fs::ftruncate(&memory, state.size).map_err(failed)?;
        // A descriptor opened for writing alone cannot be read.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(lower));
        let source = std::fs::File::open(path).map_err(failed)?;
        let mut buffer = vec![0; STEP_BYTES];
        let mut offset = 0;
        while offset < state.size {
            let bytes = read_all(&source, offset, &mut buffer)?;
            if bytes == 0 {
                break;
            }
            write_all(&memory, false, offset, &buffer[..bytes])?;
            offset += bytes as u64;
        }
        let mapping_bytes = MAPPING_BYTES_MIN.max(state.size as usize);
        // SAFETY: a new mapping at an address of the kernel's choice; it stays until the content
        // drops, and reads of it are bounded by the file's length under the content's lock.
        let mapping = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapping_bytes,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &memory,
                0,
            )
        };
        self.loads.fetch_add(1, Ordering::SeqCst);
        Ok(Content {
            memory,
            mapping: mapping.map_err(failed)? as usize,
            mapping_bytes,
            segment_id: self.last_segment.fetch_add(1, Ordering::SeqCst) + 1,
            state: RwLock::new(state),
        })
    }
}

impl MemoryFile {
    /// Does `change` to the PFS and to the memory, and remembers the version it made.
    fn change<T>(&self, change: impl FnOnce(&OwnedFd, &OwnedFd) -> Result<T>) -> Result<T> {
        let mut state = self.content.state.write().unwrap();
        let outcome = change(&self.lower, &self.content.memory);
        *state = version(&self.lower);
        outcome
    }
}

impl OpenFile for MemoryFile {
    fn version(&self) -> Version {
        *self.content.state.read().unwrap()
    }

    fn size(&self) -> Result<u64> {
        Ok(self.version().size)
    }

    fn write_mode(&self) -> WriteMode {
        WriteMode::Through
    }

    fn is_resident(&self, _offset: u64, _length: usize) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let mut filled = 0;
        self.read_with(offset, buffer.len(), &mut |slices| {
            for slice in slices {
                buffer[filled..filled + slice.len()].copy_from_slice(slice);
                filled += slice.len();
            }
        })
    }

    fn read_with(
        &self,
        offset: u64,
        length: usize,
        sink: &mut dyn FnMut(&[IoSlice<'_>]),
    ) -> Result<ReadOutcome> {
        let state = self.content.state.read().unwrap();
        let left = state.size.saturating_sub(offset) as usize;
        let bytes = length.min(left);
        if offset as usize + bytes > self.content.mapping_bytes && bytes > 0 {
            let mut copy = vec![0; bytes];
            read_all(&self.content.memory, offset, &mut copy)?;
            sink(&[IoSlice::new(&copy)]);
            return Ok(ReadOutcome { bytes, levels: BytesByLevel::of(Level::Store, bytes as u64) });
        }
        // SAFETY: the range lies within the file's length, which cannot change while `state` is
        // borrowed, and within the mapping, which lives as long as the content.
        let slice = unsafe {
            std::slice::from_raw_parts(
                (self.content.mapping as *const u8).add(if bytes == 0 {
                    0
                } else {
                    offset as usize
                }),
                bytes,
            )
        };
        sink(&[IoSlice::new(slice)]);
        Ok(ReadOutcome { bytes, levels: BytesByLevel::of(Level::Store, bytes as u64) })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<u64> {
        self.change(|lower, memory| {
            let at = write_all(lower, self.append, offset, data)?;
            write_all(memory, false, at, data)
        })
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.change(|lower, memory| {
            rustix::fs::ftruncate(lower, size).map_err(failed)?;
            rustix::fs::ftruncate(memory, size).map_err(failed)
        })
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        self.change(|lower, memory| {
            allocate(lower, mode_bits, offset, length)?;
            allocate(memory, mode_bits & !libc::FALLOC_FL_ZERO_RANGE, offset, length)?;
            if mode_bits & libc::FALLOC_FL_ZERO_RANGE != 0 {
                let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                allocate(memory, punch, offset, length)?;
            }
            Ok(())
        })
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        sync(&self.lower, data_only)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn passthrough(&self) -> Option<Arc<dyn PassthroughPin>> {
        if self.shared.without_passthrough {
            return None;
        }
        self.shared.pins.fetch_add(1, Ordering::SeqCst);
        Some(Arc::new(Pin(self.content.clone())))
    }

    fn export(&self) -> Result<Option<SegmentExport>> {
        Ok(None)
    }

    fn lower(&self) -> BorrowedFd<'_> {
        self.lower.as_fd()
    }

    fn prefetch(&self, _offset: u64, _length: u64) {}
}

impl FileService for MemoryService {
    fn open(&self, request: OpenRequest) -> Result<Arc<dyn OpenFile>> {
        let mut contents = self.shared.contents.lock().unwrap();
        // Taken under the lock of the content, so that no write of ours is half way.
        let known = contents.get(&version(&request.lower).id).filter(|content| {
            let state = content.state.read().unwrap();
            *state == version(&request.lower)
        });
        let content = match known {
            Some(content) => content.clone(),
            None => Arc::new(self.shared.load(&request.lower)?),
        };
        contents.insert(version(&request.lower).id, content.clone());
        drop(contents);
        Ok(Arc::new(MemoryFile {
            lower: request.lower,
            append: request.append,
            content,
            shared: self.shared.clone(),
        }))
    }

    fn rebase_version(&self, before: &Version, after: &Version, alone: bool) {
        self.shared.carried.fetch_add(1, Ordering::SeqCst);
        if let Some(content) = self.shared.contents.lock().unwrap().get(&before.id) {
            let mut state = content.state.write().unwrap();
            let unchanged = before.size == after.size && before.modified_ns == after.modified_ns;
            if *state == *before && unchanged && alone {
                *state = *after;
            }
        }
    }

    fn memory_only_size(&self, _id: FileId, _pfs_size: u64) -> Option<u64> {
        None
    }

    fn has_memory_only(&self) -> bool {
        false
    }

    fn removed(&self, id: FileId) {
        self.shared.contents.lock().unwrap().remove(&id);
    }
}
