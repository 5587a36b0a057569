//! One small record per resident block, and intrusive lists of them. The records live in chunks
//! that never move, so that growth wastes no half-empty array.

/// No entry: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

const CHUNK_ENTRIES: usize = 256;

/// What the policies and their host know of a resident block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Slot of the segment in the catalog.
    pub segment: u32,
    /// Block number within the segment.
    pub block: u32,
    /// Tick of the last read that counted.
    pub tick: u32,
    /// The policy's own word.
    pub meta: u32,
    /// Slot of the owner that pays.
    pub owner: u16,
    /// Flags of the host.
    pub flags: u16,
    prev: u32,
    next: u32,
}

const _: () = assert!(size_of::<Entry>() <= 28, "part of the 64 bytes a resident block may cost");

/// The records of all resident blocks.
#[derive(Default)]
pub(crate) struct Entries {
    chunks: Vec<Box<[Entry; CHUNK_ENTRIES]>>,
    free: Vec<u32>,
    unused: u32,
    live: u32,
}

impl Entries {
    pub fn len(&self) -> u32 {
        self.live
    }

    pub fn add(&mut self, segment: u32, block: u32, owner: u16) -> u32 {
        let entry =
            Entry { segment, block, tick: 0, meta: 0, owner, flags: 0, prev: NONE, next: NONE };
        let index = self.free.pop().unwrap_or_else(|| {
            if self.unused as usize == self.chunks.len() * CHUNK_ENTRIES {
                self.chunks.push(Box::new([entry; CHUNK_ENTRIES]));
            }
            self.unused += 1;
            self.unused - 1
        });
        *self.get_mut(index) = entry;
        self.live += 1;
        index
    }

    pub fn release(&mut self, index: u32) {
        self.get_mut(index).segment = NONE;
        self.live -= 1;
        if self.live == 0 {
            *self = Entries::default();
        } else {
            self.free.push(index);
        }
    }

    pub fn get(&self, index: u32) -> &Entry {
        &self.chunks[index as usize / CHUNK_ENTRIES][index as usize % CHUNK_ENTRIES]
    }

    pub fn get_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.chunks[index as usize / CHUNK_ENTRIES][index as usize % CHUNK_ENTRIES]
    }

    /// One past the largest index ever given out since the slab was last empty.
    pub fn bound(&self) -> u32 {
        self.unused
    }

    /// Whether the index is in use.
    pub fn is_live(&self, index: u32) -> bool {
        self.get(index).segment != NONE
    }

    pub fn bookkeeping_bytes(&self) -> u64 {
        let chunk_bytes = size_of::<[Entry; CHUNK_ENTRIES]>();
        let bytes = self.chunks.len() * chunk_bytes
            + self.chunks.capacity() * size_of::<usize>()
            + self.free.capacity() * size_of::<u32>();
        bytes as u64
    }
}

/// A doubly linked list of entries, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        List { first: NONE, last: NONE, len: 0 }
    }
}

impl List {
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn first(&self) -> u32 {
        self.first
    }

    /// The entry after `index`, that is, the next younger one.
    pub fn after(entries: &Entries, index: u32) -> u32 {
        entries.get(index).next
    }

    pub fn push(&mut self, entries: &mut Entries, index: u32) {
        let last = self.last;
        let entry = entries.get_mut(index);
        entry.prev = last;
        entry.next = NONE;
        if last == NONE {
            self.first = index;
        } else {
            entries.get_mut(last).next = index;
        }
        self.last = index;
        self.len += 1;
    }

    pub fn remove(&mut self, entries: &mut Entries, index: u32) {
        let Entry { prev, next, .. } = *entries.get(index);
        if prev == NONE {
            self.first = next;
        } else {
            entries.get_mut(prev).next = next;
        }
        if next == NONE {
            self.last = prev;
        } else {
            entries.get_mut(next).prev = prev;
        }
        self.len -= 1;
    }

    /// Makes the entry the youngest.
    pub fn refresh(&mut self, entries: &mut Entries, index: u32) {
        self.remove(entries, index);
        self.push(entries, index);
    }

    pub fn pop(&mut self, entries: &mut Entries) -> Option<u32> {
        let index = self.first;
        (index != NONE).then(|| {
            self.remove(entries, index);
            index
        })
    }

    /// Offers all entries, oldest first. False when told to stop.
    pub fn offer_all(
        &mut self,
        entries: &mut Entries,
        offer: super::Offered<'_>,
        mut taken: impl FnMut(&Entries, u32, u64),
    ) -> bool {
        let mut index = self.first;
        while index != NONE {
            let next = List::after(entries, index);
            match offer(entries, index) {
                super::Offer::Take(key) => {
                    self.remove(entries, index);
                    taken(entries, index, key);
                }
                super::Offer::Skip => {}
                super::Offer::Stop => return false,
            }
            index = next;
        }
        true
    }
}
