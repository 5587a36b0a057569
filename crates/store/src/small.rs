//! Small files, packed into blocks one behind the other. A pack is written once, evicted as a
//! whole, and freed at once when the last file in it is gone. Packs are never exported.
//!
//! Every owner has packs of its own, in one memory file, so that quotas and times to live apply.
//! Lock order: the writer of a space, then a shard of the index; never the other way round.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, FileId, Result, Version};

use crate::cell::Cell;
use crate::config::Owner;
use crate::engine::Engine;
use crate::fill::FillStart;
use crate::segment::BlockPin;
use crate::segment_memory::SegmentMemory;

const SHARDS: usize = 16;
/// Files start at multiples of this, so that copies are aligned.
const ALIGNMENT_BYTES: usize = 8;
/// Attempts to write into a pack before it counts as not admitted.
const ATTEMPTS: usize = 8;

/// Where a small file lies, and its version in few bytes.
#[derive(Clone, Copy)]
struct Packed {
    modified_ns: i64,
    changed_ns: i64,
    born_ns: i64,
    space: u32,
    pack: u32,
    generation: u32,
    offset: u32,
    size: u32,
}

impl Packed {
    fn version(&self, id: FileId) -> Version {
        Version {
            id,
            size: u64::from(self.size),
            modified_ns: self.modified_ns.into(),
            changed_ns: self.changed_ns.into(),
            born_ns: self.born_ns.into(),
        }
    }

    fn is_in(&self, pack: u32, generation: u32) -> bool {
        self.pack == pack && self.generation == generation
    }
}

/// The times of a version (content, metadata, birth), if all of them fit.
fn stamps(version: &Version) -> Option<[i64; 3]> {
    Some([
        i64::try_from(version.modified_ns).ok()?,
        i64::try_from(version.changed_ns).ok()?,
        i64::try_from(version.born_ns).ok()?,
    ])
}

/// The present use of a block as a pack.
#[derive(Default)]
struct Pack {
    generation: u32,
    live_files: u32,
    /// All that were ever written to it, some of them gone.
    files: Vec<FileId>,
}

struct OpenPack {
    pack: u32,
    used_bytes: usize,
}

#[derive(Default)]
struct Writer {
    open: Option<OpenPack>,
    packs: Vec<Pack>,
    free: Vec<u32>,
}

/// The packs of one owner.
struct Space {
    memory: Arc<SegmentMemory>,
    writer: Mutex<Writer>,
}

/// All packed files.
pub(crate) struct SmallFiles {
    engine: Arc<Engine>,
    index: [RwLock<HashMap<FileId, Packed>>; SHARDS],
    spaces: RwLock<Vec<Arc<Space>>>,
    space_of: Mutex<HashMap<Owner, u32>>,
}

impl SmallFiles {
    pub fn new(engine: &Arc<Engine>) -> Self {
        SmallFiles {
            engine: engine.clone(),
            index: Default::default(),
            spaces: RwLock::default(),
            space_of: Mutex::default(),
        }
    }

    /// Packs a file, replacing what is packed of it. False: not admitted.
    pub fn insert(&self, id: FileId, version: &Version, owner: Owner, data: &[u8]) -> Result<bool> {
        if version.size != data.len() as u64 {
            let detail = format!("{} bytes of a file of {}", data.len(), version.size);
            return Err(Error::new(ErrorKind::InvalidInput, "packing a small file", detail)
                .remedy("pass the whole file of this version"));
        }
        self.remove(id);
        let Some([modified_ns, changed_ns, born_ns]) = stamps(version) else { return Ok(false) };
        if data.len() as u64 > self.engine.block_bytes {
            return Ok(false);
        }
        let (number, space) = self.space(owner)?;
        self.drop_evicted(&space);
        let packed = Packed {
            modified_ns,
            changed_ns,
            born_ns,
            space: number,
            pack: 0,
            generation: 0,
            offset: 0,
            size: data.len() as u32,
        };
        for _ in 0..ATTEMPTS {
            if self.append(&space, id, packed, data) {
                return Ok(true);
            }
            if !self.open_pack(&space)? {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Reads a file if exactly this version is packed.
    pub fn read<R>(
        &self,
        id: FileId,
        version: &Version,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let packed = *self.shard(id).read().get(&id)?;
        if !packed.version(id).agrees_with(version) {
            return None;
        }
        let space = self.spaces.read()[packed.space as usize].clone();
        let pin = BlockPin::new(&space.memory, u64::from(packed.pack), true)?;
        // The pack may have been evicted and its block used again.
        if pin.generation() as u32 != packed.generation {
            return None;
        }
        // SAFETY: the writer fills a file's range before the index names it, and never again while
        // the generation stays.
        let bytes = unsafe { pin.range(packed.offset as usize, packed.size as usize) };
        Some(read(bytes))
    }

    /// Version and length of a packed file.
    pub fn state(&self, id: FileId) -> Option<(Version, u64)> {
        let packed = *self.shard(id).read().get(&id)?;
        let space = self.spaces.read()[packed.space as usize].clone();
        let word = space.memory.cells.get(u64::from(packed.pack))?.word.word();
        let present = word.is_resident() && word.generation() as u32 == packed.generation;
        present.then(|| (packed.version(id), u64::from(packed.size)))
    }

    /// Lets what is packed of `before` serve `after`, if their lengths are equal.
    pub fn rebase(&self, id: FileId, before: &Version, after: &Version) {
        let mut shard = self.shard(id).write();
        let Some(packed) = shard.get_mut(&id) else { return };
        if !packed.version(id).agrees_with(before) || before.size != after.size {
            return;
        }
        match stamps(&after.born_as(&packed.version(id))) {
            Some([modified_ns, changed_ns, born_ns]) => {
                packed.modified_ns = modified_ns;
                packed.changed_ns = changed_ns;
                packed.born_ns = born_ns;
            }
            None => {
                drop(shard);
                self.remove(id);
            }
        }
    }

    /// Forgets a file; frees its pack if nothing else is in it.
    pub fn remove(&self, id: FileId) {
        let Some(packed) = self.shard(id).write().remove(&id) else { return };
        let space = self.spaces.read()[packed.space as usize].clone();
        {
            let mut writer = space.writer.lock();
            let is_open = writer.open.as_ref().is_some_and(|open| open.pack == packed.pack);
            let pack = &mut writer.packs[packed.pack as usize];
            if pack.generation != packed.generation {
                return;
            }
            pack.live_files -= 1;
            if pack.live_files > 0 || is_open {
                return;
            }
        }
        let pack = u64::from(packed.pack);
        self.engine.evict_blocks(&space.memory, pack, pack + 1);
        self.drop_evicted(&space);
    }

    /// Drops index entries of packs that were evicted.
    pub fn drop_all_evicted(&self) {
        let spaces = self.spaces.read().clone();
        spaces.iter().for_each(|space| self.drop_evicted(space));
    }

    /// Number of packed files. Call `drop_all_evicted` before.
    pub fn count(&self) -> u64 {
        self.index.iter().map(|shard| shard.read().len() as u64).sum()
    }

    /// Number of memory files that hold packs.
    pub fn spaces(&self) -> u64 {
        self.spaces.read().len() as u64
    }

    /// Bytes of bookkeeping beside those of the memory files.
    pub fn bookkeeping_bytes(&self) -> u64 {
        let buckets = |map: &HashMap<FileId, Packed>| match map.capacity() {
            0 => 0,
            capacity => (capacity * 8 / 7).next_power_of_two(),
        };
        let index: usize = self.index.iter().map(|shard| buckets(&shard.read())).sum();
        let packs = |space: &Arc<Space>| {
            let writer = space.writer.lock();
            let lists: usize = writer.packs.iter().map(|pack| pack.files.capacity()).sum();
            lists * size_of::<FileId>()
                + writer.packs.capacity() * size_of::<Pack>()
                + writer.free.capacity() * size_of::<u32>()
                + size_of::<Space>()
        };
        let spaces: usize = self.spaces.read().iter().map(packs).sum();
        (index * (size_of::<(FileId, Packed)>() + 1) + spaces + size_of::<Self>()) as u64
    }

    fn shard(&self, id: FileId) -> &RwLock<HashMap<FileId, Packed>> {
        let mixed = (id.inode ^ id.device.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.index[(mixed >> 60) as usize % SHARDS]
    }

    fn space(&self, owner: Owner) -> Result<(u32, Arc<Space>)> {
        let mut space_of = self.space_of.lock();
        if let Some(number) = space_of.get(&owner) {
            return Ok((*number, self.spaces.read()[*number as usize].clone()));
        }
        let memory = self.engine.create_pack_memory(&owner)?;
        let space = Arc::new(Space { memory, writer: Mutex::default() });
        let mut spaces = self.spaces.write();
        let number = spaces.len() as u32;
        spaces.push(space.clone());
        space_of.insert(owner, number);
        Ok((number, space))
    }

    /// Writes a file behind the last one of the open pack. False: there is none with room.
    fn append(&self, space: &Space, id: FileId, packed: Packed, data: &[u8]) -> bool {
        let mut writer = space.writer.lock();
        let Writer { open, packs, .. } = &mut *writer;
        let Some(current) = open else { return false };
        let offset = current.used_bytes.next_multiple_of(ALIGNMENT_BYTES);
        if offset + data.len() > self.engine.block_bytes as usize {
            return false;
        }
        let pack = &mut packs[current.pack as usize];
        let pin = BlockPin::new(&space.memory, u64::from(current.pack), false);
        let Some(pin) = pin.filter(|pin| pin.generation() as u32 == pack.generation) else {
            *open = None;
            return false;
        };
        // SAFETY: the range is behind everything that the index names in this pack, and the
        // writer's lock is held, so nobody else reads or writes it.
        unsafe { pin.write(offset, data) };
        current.used_bytes = offset + data.len();
        pack.live_files += 1;
        pack.files.push(id);
        let (number, generation) = (current.pack, pack.generation);
        let placed = Packed { pack: number, generation, offset: offset as u32, ..packed };
        let replaced = self.shard(id).write().insert(id, placed);
        // Another thread may have packed the same file since it was removed above.
        if let Some(old) = replaced.filter(|old| old.space == packed.space) {
            let pack = &mut packs[old.pack as usize];
            if pack.generation == old.generation {
                pack.live_files -= 1;
            }
        }
        true
    }

    /// Makes a fresh pack the open one. False: not admitted.
    fn open_pack(&self, space: &Space) -> Result<bool> {
        let number = {
            let mut writer = space.writer.lock();
            writer.free.pop().unwrap_or_else(|| {
                writer.packs.push(Pack::default());
                writer.packs.len() as u32 - 1
            })
        };
        let memory = &space.memory;
        let end = (u64::from(number) + 1) * memory.block_bytes;
        let generation = self.engine.set_size_at_least(memory, end).ok().and_then(|()| match self
            .engine
            .begin_fill(memory, u64::from(number), false)
        {
            FillStart::Started(fill) => fill.commit_generation(BlockState::Clean),
            _ => None,
        });
        let mut writer = space.writer.lock();
        let Some(generation) = generation else {
            writer.free.push(number);
            return Ok(false);
        };
        let cell = memory.cells.get(u64::from(number)).expect("filled just now");
        let word = cell.word.word();
        if !word.is_resident() || word.generation() != generation {
            // Evicted at once, and perhaps somebody else's pack by now. Whoever cleans up after
            // evictions returns the number.
            return Ok(true);
        }
        if let Some(full) = writer.open.take() {
            writer.packs[full.pack as usize].files.shrink_to_fit();
        }
        let generation = generation as u32;
        writer.packs[number as usize] = Pack { generation, live_files: 0, files: Vec::new() };
        writer.open = Some(OpenPack { pack: number, used_bytes: 0 });
        Ok(true)
    }

    fn drop_evicted(&self, space: &Space) {
        let Some(evicted) = &space.memory.evicted_packs else { return };
        let numbers = std::mem::take(&mut *evicted.lock());
        for number in numbers {
            let mut writer = space.writer.lock();
            if writer.open.as_ref().is_some_and(|open| open.pack == number) {
                writer.open = None;
            }
            let Pack { generation, files, .. } = std::mem::take(&mut writer.packs[number as usize]);
            for id in files {
                let mut shard = self.shard(id).write();
                if shard.get(&id).is_some_and(|packed| packed.is_in(number, generation)) {
                    shard.remove(&id);
                }
            }
            writer.free.push(number);
        }
    }
}

impl Drop for SmallFiles {
    fn drop(&mut self) {
        for space in self.spaces.get_mut().drain(..) {
            self.engine.close(&space.memory);
        }
    }
}
