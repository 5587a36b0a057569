//! The ways in which jobs iterate over a set of files, as lists of what to read: eviction policies
//! are compared with them in simulations and through real nodes alike.

/// A set of files of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// Number of files.
    pub files: u64,
    /// Blocks of each.
    pub file_blocks: u64,
}

impl Set {
    /// Blocks of all files.
    pub fn blocks(self) -> u64 {
        self.files * self.file_blocks
    }

    fn file(self, file: u64) -> Visit {
        Visit { reader: 0, block: file * self.file_blocks, blocks: self.file_blocks }
    }
}

/// Blocks that one of two programs reads one after another: one, or those of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The program: 0, or 1 where there are two users.
    pub reader: usize,
    /// The first block, counted over all files.
    pub block: u64,
    /// How many.
    pub blocks: u64,
}

impl Visit {
    fn one(block: u64) -> Visit {
        Visit { reader: 0, block, blocks: 1 }
    }
}

/// A small generator of random numbers, the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
    }

    fn shuffled(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.below(at as u64 + 1) as usize);
        }
        order
    }

    /// By Zipf's law with exponent 0.9, over `count` blocks.
    fn zipf(&mut self, count: u64) -> u64 {
        let share = (self.below(1 << 30) as f64 + 0.5) / (1_u64 << 30) as f64;
        // The inverse of the integral of x^-0.9.
        ((share * ((count as f64).powf(0.1) - 1.0) + 1.0).powf(10.0) - 1.0) as u64
    }
}

/// How a set is read again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every file in order.
    Loop,
    /// Every block, in a new random order each time, as training jobs read samples.
    RandomBlocks,
    /// Every file from start to end, in a new random order each time.
    RandomFiles,
    /// Every block, in order and backwards by turns.
    ForthAndBack,
    /// A sixth of the files eight times, then all others.
    SmallSetAndScans,
    /// Popular blocks and others.
    Zipf,
    /// One user reads its files in order, another one blocks of its own by Zipf's law.
    TwoUsers,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Pattern; 7] = [
        Pattern::Loop,
        Pattern::RandomBlocks,
        Pattern::RandomFiles,
        Pattern::ForthAndBack,
        Pattern::SmallSetAndScans,
        Pattern::Zipf,
        Pattern::TwoUsers,
    ];

    /// What it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Loop => "loop in order",
            Pattern::RandomBlocks => "blocks in a new random order",
            Pattern::RandomFiles => "files in a new random order",
            Pattern::ForthAndBack => "forth and back",
            Pattern::SmallSetAndScans => "a small set often, all of it now and then",
            Pattern::Zipf => "Zipf",
            Pattern::TwoUsers => "two users, a loop and Zipf",
        }
    }

    /// The visits of one pass over `set`.
    pub fn pass(self, number: u64, set: Set, random: &mut Random) -> Vec<Visit> {
        let (files, blocks) = (set.files, set.blocks());
        let file = |file| set.file(file);
        match self {
            Pattern::Loop => (0..files).map(file).collect(),
            Pattern::RandomBlocks => random.shuffled(blocks).into_iter().map(Visit::one).collect(),
            Pattern::RandomFiles => random.shuffled(files).into_iter().map(file).collect(),
            Pattern::ForthAndBack if number.is_multiple_of(2) => {
                (0..blocks).map(Visit::one).collect()
            }
            Pattern::ForthAndBack => (0..blocks).rev().map(Visit::one).collect(),
            Pattern::SmallSetAndScans => {
                let small = (0..8).flat_map(|_| 0..files / 6);
                small.chain(files / 6..files).map(file).collect()
            }
            Pattern::Zipf => (0..blocks).map(|_| Visit::one(popular(blocks, random))).collect(),
            Pattern::TwoUsers => {
                let half = files / 2 * set.file_blocks;
                let other = |random: &mut Random| Visit {
                    reader: 1,
                    ..Visit::one(half + popular(half, random))
                };
                (0..half).flat_map(|block| [Visit::one(block), other(random)]).collect()
            }
        }
    }
}

/// A block by Zipf's law. Popular ones lie all over the set, not in one file.
fn popular(blocks: u64, random: &mut Random) -> u64 {
    // A prime: no set that is measured with has a number of blocks that shares a factor with it.
    random.zipf(blocks) * 7_919 % blocks
}

#[cfg(test)]
mod tests {
    use super::{Pattern, Random, Set};

    const SET: Set = Set { files: 24, file_blocks: 4 };

    #[test]
    fn passes_read_what_they_say() {
        let mut random = Random(7);
        for pattern in Pattern::ALL {
            for number in 0..2 {
                let visits = pattern.pass(number, SET, &mut random);
                let blocks: u64 = visits.iter().map(|visit| visit.blocks).sum();
                let times = if pattern == Pattern::SmallSetAndScans { 13 } else { 6 };
                assert_eq!(blocks, times * SET.blocks() / 6, "{pattern:?}");
                let end = visits.iter().map(|visit| visit.block + visit.blocks).max();
                assert!(end <= Some(SET.blocks()), "{pattern:?}");
            }
        }
    }

    #[test]
    fn all_blocks_can_be_popular() {
        let mut places: Vec<u64> = (0..48).map(|rank| rank * 7_919 % 48).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..48));
    }
}
