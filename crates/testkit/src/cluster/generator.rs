//! Batches of operations from a seed.

use super::nodes::MEMORY_MIB;
use super::operation::{
    Author, Batch, Change, FILES, Manner, Operation, Way, Weather, is_kept, kept,
};
use super::world::{SLOTS, World};

/// Operations of a batch at most.
const BATCH_MAX: usize = 8;
/// Files that most operations are about, for a while.
const HOT: usize = 4;
/// Of 200 steps, those that kill a node amid what it writes: usually, and where that is what a run
/// is for.
const OUTLIVE: u32 = 1;
const OUTLIVE_OFTEN: u32 = 60;
/// A node has room for one block at least, or for none.
const BLOCK_BYTES: u64 = 2 << 20;
/// Pages of the longest file: three blocks.
const PAGES_MAX: usize = 1500;
/// Time within which the rest happens after all nodes began to read a file, in microseconds.
const MEETING_US: u64 = 8000;
/// The same where one node takes a file from another one by a slow link.
const HAND_OVER_US: u64 = 60_000;
/// Announcements are made by then, and time stamps of files are settled.
const REST_MS: u64 = 40;
/// Pages of a file that takes a while to be sent.
const LONG_PAGES: usize = 256;
/// Pages of one read at most; some read a whole file.
const PIECE_PAGES_MAX: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub struct Generator {
    rng: fastrand::Rng,
    hot: [usize; HOT],
    next_generation: u64,
    /// See [`OUTLIVE`].
    outlive: u32,
    /// Batches that are to come next, the last one first.
    queued: Vec<Batch>,
}

/// What a batch has already.
#[derive(Default)]
struct Taken {
    changed: Vec<usize>,
    is_one_killed: bool,
    slots: Vec<usize>,
    /// Nodes that nobody else uses.
    shaken: Vec<usize>,
    /// Nodes that are paused, killed or started.
    struck: Vec<usize>,
    /// Nodes that programs use.
    used: Vec<usize>,
}

impl Generator {
    /// A generator that always gives the same for a seed and what happened before.
    pub fn new(seed: u64) -> Generator {
        let rng = fastrand::Rng::with_seed(seed);
        let (outlive, queued) = (OUTLIVE, Vec::new());
        Generator { rng, hot: [0, 1, 2, 3], next_generation: 1, outlive, queued }
    }

    /// One that kills nodes often.
    pub fn that_kills(seed: u64) -> Generator {
        Generator { outlive: OUTLIVE_OFTEN, ..Generator::new(seed) }
    }

    /// The batch that makes all files.
    pub fn first(&mut self) -> Batch {
        let create = |file: usize| {
            let change = Change::Recreate { pages: self.length() };
            let author = if is_kept(file) { Author::Library(0) } else { Author::Behind };
            self.change_by(file, change, author, Manner::default())
        };
        (0..FILES).map(create).collect()
    }

    /// The next batch.
    pub fn next(&mut self, world: &World) -> Batch {
        if self.rng.u32(..60) == 0 {
            let slot = self.rng.usize(..HOT);
            self.hot[slot] = self.rng.usize(..FILES);
        }
        if let Some(batch) = self.queued.pop() {
            return batch;
        }
        match self.rng.u32(..200) {
            0..20 => self.meet(world),
            20..30 => self.hand_over(world),
            at if (30..30 + self.outlive).contains(&at) => self.outlive(world),
            _ => {}
        }
        let count = self.rng.usize(1..=BATCH_MAX);
        let mut taken = Taken::default();
        let mut batch = Vec::new();
        while batch.len() < count {
            if let Some(operation) = self.operation(world, &mut taken) {
                batch.push(operation);
            }
        }
        batch
    }

    /// All nodes at one file at once, some of which may have it, while it is changed or gives way
    /// to something else; and once more when that is over.
    fn meet(&mut self, world: &World) {
        let file = self.file(world);
        let nodes = 0..world.nodes.len();
        let again = nodes.clone().map(|node| self.read(node, file, world)).collect();
        let mut batch: Batch = nodes.clone().map(|node| self.read(node, file, world)).collect();
        let mut before = Batch::new();
        for node in nodes {
            match self.rng.u32(..4) {
                0 => before.push(Operation::Load { node, file }),
                1 => before.push(Operation::Evict { node, file, after_us: 0 }),
                _ => {}
            }
            let after_us = self.rng.u64(..MEETING_US);
            match self.rng.u32(..12) {
                0 => batch.push(Operation::Evict { node, file, after_us }),
                1 => batch.push(Operation::EvictAll { node, after_us }),
                2 => batch.push(self.link(world)),
                _ => {}
            }
        }
        if self.rng.bool() {
            let node = self.rng.usize(..world.nodes.len());
            let author = self.author(node, file, world);
            let after_us = self.rng.u64(..MEETING_US);
            let change = self.change_of(world.files[file].pages());
            let manner = Manner { after_us, ..Manner::default() };
            batch.push(self.change_by(file, change, author, manner));
        }
        self.queued = vec![again, batch, before];
    }

    /// One node takes a file from another one's memory. Meanwhile the link breaks, or the file
    /// leaves that memory, or is written there; or it was changed behind both before.
    fn hand_over(&mut self, world: &World) {
        let count = world.nodes.len();
        let holder = self.rng.usize(..count);
        let taker = (holder + self.rng.usize(1..count)) % count;
        let is_long = |file: &usize| world.files[*file].pages() >= LONG_PAGES;
        let long = (0..FILES).filter(|file| is_long(file) && !is_kept(*file));
        let Some(file) = self.rng.choice(long.collect::<Vec<_>>()) else { return };
        let length = world.files[file].pages();
        let evict = |node: usize| Operation::Evict { node, file, after_us: 0 };
        let others = (0..count).filter(|node| *node != holder).map(evict);
        let before: Batch =
            others.chain(std::iter::once(Operation::Load { node: holder, file })).collect();
        let link = |weather: Weather| Operation::Link { from: taker, to: holder, weather };
        let way = if world.is_up(taker) { self.way() } else { Way::Library };
        let pieces = vec![(0, length), self.piece(length)];
        let mut taking = vec![Operation::Read { node: taker, way, file, pieces }];
        let after_us = self.rng.u64(..HAND_OVER_US);
        let manner = Manner { after_us, ..Manner::default() };
        let all = Change::Overwrite { first: 0, pages: length };
        let mut changing = Batch::new();
        match self.rng.u32(..8) {
            0 => taking.push(Operation::Link { from: taker, to: holder, weather: Weather::Cut }),
            1..3 => taking.push(Operation::EvictAll { node: holder, after_us }),
            3 => taking.push(self.change_by(file, all, Author::Library(holder), manner)),
            4 => taking.push(self.change_by(file, all, Author::Behind, manner)),
            _ => {
                let change = self.change_by(file, all, Author::Behind, Manner::default());
                changing.push(change);
            }
        }
        let rest = || vec![Operation::Rest { for_ms: REST_MS }];
        let slow = Weather::Slow(self.rng.u64(1..4));
        let fair = vec![link(Weather::Fair), self.read(taker, file, world)];
        self.queued = vec![fair, taking, rest(), changing, rest(), before, vec![link(slow)]];
    }

    /// Kept files outlive the node that wrote them, which is killed while it writes to some.
    fn outlive(&mut self, world: &World) {
        let up: Vec<usize> = (0..world.nodes.len()).filter(|node| world.is_up(*node)).collect();
        if up.len() <= 2 {
            let down = (0..world.nodes.len()).find(|node| !world.is_up(*node));
            self.queued.extend(down.map(|node| vec![Operation::Start { node }]));
            return;
        }
        let node = up[self.rng.usize(..up.len())];
        let (mut before, mut dying) = (Batch::new(), Batch::new());
        for file in kept() {
            let author = self.author(node, file, world);
            let pages = self.length();
            let begun = match self.rng.u32(..3) {
                0 => Change::Recreate { pages },
                1 => Change::Replace { pages },
                _ => Change::Rewrite { pages },
            };
            before.push(self.change_by(file, begun, author, Manner::default()));
            if self.rng.bool() {
                let next = self.change_of(pages);
                let after_us = self.rng.u64(..MEETING_US);
                let manner = Manner { after_us, ..Manner::default() };
                dying.push(self.change_by(file, next, author, manner));
            }
        }
        let after_ms = self.rng.u64(..MEETING_US / 500);
        dying.push(Operation::Kill { node, after_ms });
        self.queued = vec![dying, before];
    }

    fn operation(&mut self, world: &World, taken: &mut Taken) -> Option<Operation> {
        let node = self.rng.usize(..world.nodes.len());
        match self.rng.u32(..2000) {
            0..1130 => {
                let file = self.file(world);
                taken.used.push(node);
                (!taken.shaken.contains(&node)).then(|| self.read(node, file, world))
            }
            1130..1250 => self.hold(node, world, taken),
            1250..1440 => self.read_held(world, taken),
            1440..1470 => self.release(world, taken),
            1470..1870 => self.change(node, world, taken),
            1870..1980 => self.administer(node, world, taken),
            1980..1992 => Some(self.link(world)),
            _ => self.shake(node, world, taken),
        }
    }

    fn file(&mut self, world: &World) -> usize {
        let file = match self.rng.u32(..10) {
            0..7 => self.hot[self.rng.usize(..HOT)],
            _ => self.rng.usize(..FILES),
        };
        // Opens of a kept file whose node is out of reach take seconds.
        match is_kept(file) && !world.cut.is_empty() && self.rng.u32(..20) > 0 {
            true => file - kept().start,
            false => file,
        }
    }

    /// A length in pages: mostly of one block, and around the ends of blocks.
    fn length(&mut self) -> usize {
        match self.rng.u32(..20) {
            0..8 => self.rng.usize(1..64),
            8..13 => self.rng.usize(1..512),
            13..16 => [511, 512, 513, 1024, 1025][self.rng.usize(..5)],
            _ => self.rng.usize(512..PAGES_MAX),
        }
    }

    fn way(&mut self) -> Way {
        [Way::Mount, Way::Library, Way::Library, Way::Mapping][self.rng.usize(..4)]
    }

    fn piece(&mut self, length: usize) -> (usize, usize) {
        match self.rng.u32(..8) {
            0 => (0, PAGES_MAX * 2),
            _ => (self.rng.usize(..=length), self.rng.usize(1..=PIECE_PAGES_MAX)),
        }
    }

    fn read(&mut self, node: usize, file: usize, world: &World) -> Operation {
        let length = world.files[file].pages();
        let pieces = (0..self.rng.usize(1..4)).map(|_| self.piece(length)).collect();
        let way = if world.is_up(node) { self.way() } else { Way::Library };
        Operation::Read { node, way, file, pieces }
    }

    fn hold(&mut self, node: usize, world: &World, taken: &mut Taken) -> Option<Operation> {
        let (slot, file, way) = (self.rng.usize(..SLOTS), self.file(world), self.way());
        let is_free = !taken.slots.contains(&slot) && !taken.changed.contains(&file);
        if !is_free || !world.is_up(node) || taken.shaken.contains(&node) {
            return None;
        }
        taken.slots.push(slot);
        taken.used.push(node);
        // Nobody changes the file in this batch: which version is open is known.
        taken.changed.push(file);
        Some(Operation::Hold { slot, node, way, file })
    }

    fn read_held(&mut self, world: &World, taken: &mut Taken) -> Option<Operation> {
        let slot = self.rng.usize(..SLOTS);
        let view = world.views[slot].as_ref().filter(|_| !taken.slots.contains(&slot))?;
        taken.slots.push(slot);
        taken.used.push(view.node);
        let (first, pages) = self.piece(view.content.pages());
        (!taken.shaken.contains(&view.node)).then_some(Operation::ReadHeld { slot, first, pages })
    }

    fn release(&mut self, world: &World, taken: &mut Taken) -> Option<Operation> {
        let slot = self.rng.usize(..SLOTS);
        world.views[slot].as_ref().filter(|_| !taken.slots.contains(&slot))?;
        taken.slots.push(slot);
        Some(Operation::Release { slot })
    }

    fn change(&mut self, node: usize, world: &World, taken: &mut Taken) -> Option<Operation> {
        let file = self.file(world);
        let author = self.author(node, file, world);
        let is_free = author.node().is_none_or(|node| !taken.shaken.contains(&node));
        if taken.changed.contains(&file) || !is_free {
            return None;
        }
        taken.changed.push(file);
        taken.used.extend(author.node());
        let change = self.change_of(world.files[file].pages());
        Some(self.change_by(file, change, author, Manner::default()))
    }

    fn author(&mut self, node: usize, file: usize, world: &World) -> Author {
        match self.rng.u32(..10) {
            0..5 if !is_kept(file) => Author::Behind,
            5..8 if world.is_up(node) => Author::Mount(node),
            _ => Author::Library(node),
        }
    }

    /// A change of a file of `length` pages.
    fn change_of(&mut self, length: usize) -> Change {
        let same = self.rng.bool() && length > 0;
        let next = if same { length } else { self.length() };
        match self.rng.u32(..12) {
            0..5 if length > 0 => {
                let first = self.rng.usize(..length);
                let pages = self.rng.usize(1..=PIECE_PAGES_MAX).min(length - first);
                match self.rng.u32(..4) {
                    0 => Change::Overwrite { first: 0, pages: length },
                    _ => Change::Overwrite { first, pages },
                }
            }
            5 if length < PAGES_MAX => {
                Change::Append { pages: self.rng.usize(1..=PIECE_PAGES_MAX) }
            }
            6 => Change::Truncate { pages: self.rng.usize(..=length + 8) },
            7 => Change::Rewrite { pages: next },
            8 => Change::Recreate { pages: next },
            _ => Change::Replace { pages: next },
        }
    }

    fn change_by(
        &mut self,
        file: usize,
        change: Change,
        author: Author,
        manner: Manner,
    ) -> Operation {
        let generation = self.next_generation;
        self.next_generation += 1;
        let is_first = generation <= FILES as u64;
        let restores_times = author == Author::Behind && !is_first && self.rng.u32(..4) == 0;
        let manner = Manner { restores_times, ..manner };
        Operation::Change { file, change, author, generation, manner }
    }

    fn administer(&mut self, node: usize, world: &World, taken: &mut Taken) -> Option<Operation> {
        if !world.is_up(node) || taken.shaken.contains(&node) {
            return None;
        }
        let capacity = MEMORY_MIB << 20;
        let operation = match self.rng.u32(..20) {
            0..6 => Operation::Evict { node, file: self.file(world), after_us: 0 },
            6..10 => Operation::Load { node, file: self.file(world) },
            10..13 => Operation::EvictAll { node, after_us: 0 },
            13 => Operation::Resize { node, bytes: 0 },
            14..16 => Operation::Resize { node, bytes: self.rng.u64(BLOCK_BYTES..capacity) },
            16..18 => Operation::Resize { node, bytes: capacity },
            18 if !taken.used.contains(&node) && !taken.struck.contains(&node) => {
                taken.shaken.push(node);
                return Some(Operation::Drain { node });
            }
            _ => {
                let policies = tidepool_proto::option::POLICIES;
                let (policy, _) = policies[self.rng.usize(..policies.len())];
                Operation::SetPolicy { node, policy: policy.to_owned() }
            }
        };
        taken.used.push(node);
        Some(operation)
    }

    fn link(&mut self, world: &World) -> Operation {
        let count = world.nodes.len();
        let from = self.rng.usize(..count);
        let to = (from + self.rng.usize(1..count)) % count;
        let weather = match self.rng.u32(..10) {
            0..4 => Weather::Fair,
            4..7 => Weather::Slow(self.rng.u64(1..6)),
            7..9 => Weather::Reset,
            _ => Weather::Cut,
        };
        Operation::Link { from, to, weather }
    }

    /// What happens to a node as a whole. Programs use it meanwhile, but for a stop in order.
    fn shake(&mut self, node: usize, world: &World, taken: &mut Taken) -> Option<Operation> {
        if taken.shaken.contains(&node) || taken.struck.contains(&node) {
            return None;
        }
        if !world.is_up(node) {
            taken.struck.push(node);
            return Some(Operation::Start { node });
        }
        let is_used = taken.used.contains(&node);
        let up = (0..world.nodes.len()).filter(|node| world.is_up(*node)).count();
        let falls = taken.shaken.len() + taken.struck.len();
        let (after_ms, for_ms) = (self.rng.u64(..6), self.rng.u64(100..2000));
        match self.rng.u32(..6) {
            0..3 => {
                taken.struck.push(node);
                Some(Operation::Pause { node, after_ms, for_ms })
            }
            // Two copies outlive one node at a time.
            3..5 if up > 2 + falls && !taken.is_one_killed => {
                taken.is_one_killed = true;
                taken.struck.push(node);
                Some(Operation::Kill { node, after_ms })
            }
            5 if up > 2 + falls && !is_used => {
                taken.shaken.push(node);
                Some(Operation::Stop { node })
            }
            _ => None,
        }
    }
}
