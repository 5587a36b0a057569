//! The cells of a segment: found without a lock, allocated where blocks come in, growing without
//! ever moving. A cell costs 12 bytes: the residency word and the block's index in the catalog.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::policy::NONE;

/// Two cells, laid out so that no byte is padding.
#[repr(C)]
struct Pair {
    words: [AtomicU64; 2],
    entries: [AtomicU32; 2],
}

impl Default for Pair {
    fn default() -> Self {
        Pair { words: Default::default(), entries: [NONE.into(), NONE.into()] }
    }
}

type Leaf = Arc<[Pair]>;

struct Directory {
    leaves: Box<[OnceLock<Leaf>]>,
}

impl Directory {
    fn new(count: u64) -> Arc<Directory> {
        Arc::new(Directory { leaves: (0..count).map(|_| OnceLock::new()).collect() })
    }
}

/// A cell and the block's index in the catalog.
#[derive(Clone, Copy)]
pub(crate) struct CellRef<'a> {
    pub word: &'a AtomicU64,
    pub entry: &'a AtomicU32,
}

/// The cells of one segment.
pub(crate) struct Cells {
    /// The newest directory; older ones are kept for readers that still look at them.
    newest: AtomicPtr<Directory>,
    directories: Mutex<Vec<Arc<Directory>>>,
    /// Cells in a leaf, as a power of two.
    leaf_shift: u32,
}

const PAIRS_PER_LEAF_MIN: u64 = 2;
const PAIRS_PER_LEAF_MAX: u64 = 32;

impl Cells {
    pub fn new(blocks: u64) -> Cells {
        let pairs = blocks.div_ceil(2).next_power_of_two();
        let pairs_per_leaf = pairs.clamp(PAIRS_PER_LEAF_MIN, PAIRS_PER_LEAF_MAX);
        let leaf_shift = (pairs_per_leaf * 2).trailing_zeros();
        let first = Directory::new(blocks.div_ceil(1 << leaf_shift).max(1));
        let newest = AtomicPtr::new(Arc::as_ptr(&first).cast_mut());
        Cells { newest, directories: Mutex::new(vec![first]), leaf_shift }
    }

    /// The cell of a block that came in at some time; `None` is absent.
    pub fn get(&self, block: u64) -> Option<CellRef<'_>> {
        let leaf = self.directory().leaves.get(self.leaf_index(block))?.get()?;
        Some(self.cell(leaf, block))
    }

    /// The cell of any block.
    pub fn get_or_create(&self, block: u64) -> CellRef<'_> {
        let mut directories = self.directories.lock();
        self.grow(&mut directories, self.leaf_index(block));
        let leaf = self.directory().leaves[self.leaf_index(block)]
            .get_or_init(|| (0..1 << (self.leaf_shift - 1)).map(|_| Pair::default()).collect());
        self.cell(leaf, block)
    }

    /// Blocks from `first` that have cells, in ascending order.
    pub fn range(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, CellRef<'_>)> {
        let cells_per_leaf = 1 << self.leaf_shift;
        let leaves = self.directory().leaves.iter().enumerate();
        leaves.skip(self.leaf_index(first)).flat_map(move |(index, leaf)| {
            let start = index as u64 * cells_per_leaf;
            let blocks = start.max(first)..(start + cells_per_leaf).min(end);
            leaf.get()
                .into_iter()
                .flat_map(move |leaf| blocks.clone().map(|block| (block, self.cell(leaf, block))))
        })
    }

    pub fn bookkeeping_bytes(&self) -> u64 {
        let directories = self.directories.lock();
        let slots: usize = directories.iter().map(|directory| directory.leaves.len()).sum();
        let leaf_bytes = (size_of::<Pair>() << (self.leaf_shift - 1)) + 2 * size_of::<usize>();
        let leaves = self.directory().leaves.iter().filter(|leaf| leaf.get().is_some()).count();
        let own = directories.capacity() * size_of::<usize>()
            + directories.len() * (size_of::<Directory>() + 2 * size_of::<usize>());
        (own + slots * size_of::<OnceLock<Leaf>>() + leaves * leaf_bytes) as u64
    }

    /// Makes the newest directory reach `index`. Leaves are shared with the older directories.
    fn grow(&self, directories: &mut Vec<Arc<Directory>>, index: usize) {
        let newest = self.directory();
        if index < newest.leaves.len() {
            return;
        }
        let count = (index as u64 + 1).next_power_of_two();
        let larger = Directory::new(count);
        for (old, new) in newest.leaves.iter().zip(&larger.leaves) {
            if let Some(leaf) = old.get() {
                _ = new.set(leaf.clone());
            }
        }
        self.newest.store(Arc::as_ptr(&larger).cast_mut(), Ordering::Release);
        directories.push(larger);
    }

    fn directory(&self) -> &Directory {
        // SAFETY: the pointer is that of an `Arc` in `directories`, whose contents never move and
        // which is emptied only when `self` drops. Shared references to it are all that exist.
        unsafe { &*self.newest.load(Ordering::Acquire) }
    }

    fn leaf_index(&self, block: u64) -> usize {
        usize::try_from(block >> self.leaf_shift).unwrap_or(usize::MAX)
    }

    fn cell<'a>(&self, leaf: &'a [Pair], block: u64) -> CellRef<'a> {
        let within = block as usize & ((1 << self.leaf_shift) - 1);
        let pair = &leaf[within / 2];
        let half = (block % 2) as usize;
        CellRef { word: &pair.words[half], entry: &pair.entries[half] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_where_they_are_while_the_table_grows() {
        let cells = Cells::new(1);
        let first = cells.get_or_create(0);
        first.word.store(7, Ordering::Relaxed);
        for block in [5, 100, 5000, 1 << 20] {
            cells.get_or_create(block).word.store(block, Ordering::Relaxed);
        }
        assert!(std::ptr::eq(cells.get(0).unwrap().word, first.word));
        let marked =
            cells.range(0, u64::MAX).filter(|(_, cell)| cell.word.load(Ordering::Relaxed) != 0);
        let blocks: Vec<u64> = marked.map(|(block, _)| block).collect();
        assert_eq!(blocks, [0, 5, 100, 5000, 1 << 20]);
        assert_eq!(cells.range(1, 6).map(|(block, _)| block).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(cells.get(1 << 30).is_none());
    }

    #[test]
    fn a_sparse_table_is_small() {
        let cells = Cells::new((1 << 40) / (4 << 20));
        cells.get_or_create(200_000);
        assert!(cells.bookkeeping_bytes() < 160_000, "{}", cells.bookkeeping_bytes());
    }
}
