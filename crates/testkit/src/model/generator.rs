//! Chooses the next operation at random, from what the model says is possible now. Seeded: the same
//! seed against the same product gives the same operations.

use fastrand::Rng;
use tidepool_proto::{Access, ReadMode, WriteMode};

use super::operation::{DIRECTORIES, Operation};
use super::reference::{HandleKey, Reference};
use super::wire::{Opening, OutsideChange};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Lengths at which something changes: packing ends, blocks and transfers begin.
const EDGES: [u64; 9] =
    [0, 1, 4096, 256 * KIB, 256 * KIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 8 * MIB + 1];
const FILE_BYTES_MAX: u64 = 24 * MIB;
/// Beyond this many bytes in all files, new ones are small.
const TOTAL_BYTES_MAX: u64 = 160 * MIB;
const NAMES_PER_DIRECTORY: u64 = 10;
/// Handles that one actor holds at most.
const SLOTS: u8 = 5;
/// Operations between two kills of the node, on average.
const KILL_INTERVAL: u64 = 4000;

/// The actors of the run.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// Actors on the mount; they have the lowest numbers.
    pub mounts: u8,
    /// Actors with the library; they come next. The one behind Tidepool's back is last.
    pub libraries: u8,
    /// Whether there is a node to administer and to kill.
    pub administration: bool,
}

impl Cast {
    /// Number of the actor that changes files outside.
    pub fn outside(&self) -> u8 {
        self.mounts + self.libraries
    }
}

/// The source of operations.
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    cast: Cast,
    capacity_bytes: u64,
    follow_up: Option<Operation>,
}

impl Generator {
    /// Operations of `seed` for a node of `capacity_bytes`.
    pub fn new(seed: u64, cast: Cast, capacity_bytes: u64) -> Self {
        Generator { rng: Rng::with_seed(seed), cast, capacity_bytes, follow_up: None }
    }

    /// The next operation. It may turn out to be impossible; the driver passes it over then.
    pub fn next(&mut self, model: &Reference) -> Operation {
        if let Some(operation) = self.follow_up.take() {
            return operation;
        }
        let operation = self.choose_next(model);
        if self.rng.u32(..2) == 0 {
            self.follow_up = self.look_after(model, &operation);
        }
        operation
    }

    /// A look at the place that an operation changes: at once, as races want it.
    fn look_after(&mut self, model: &Reference, operation: &Operation) -> Option<Operation> {
        use Operation as Op;
        let by_handle = |actor: &u8, slot: &u8| {
            let handle = model.handle((*actor, *slot))?;
            model.name_of(handle.file).cloned()
        };
        let (path, offset) = match operation {
            Op::Write { actor, slot, offset, .. } | Op::Punch { actor, slot, offset, .. } => {
                (by_handle(actor, slot)?, *offset)
            }
            Op::SetSize { actor, slot, size } => (by_handle(actor, slot)?, *size),
            Op::TruncatePath { path, size, .. } => (path.clone(), *size),
            Op::Change { path, change: OutsideChange::Overwrite { offset, .. }, .. } => {
                (path.clone(), *offset)
            }
            Op::Change { path, .. } => (path.clone(), 0),
            _ => return None,
        };
        let before = self.rng.u64(..3000).min(offset);
        let actor = self.reader();
        let length = before + self.piece();
        let opening = Opening::READ;
        Some(Op::Check { actor, path, offset: offset - before, length, opening })
    }

    fn choose_next(&mut self, model: &Reference) -> Operation {
        if self.cast.administration && self.rng.u64(..KILL_INTERVAL) == 0 {
            return Operation::Kill;
        }
        match self.rng.u32(..1000) {
            0..140 => self.open(model),
            140..560 => self.with_handle(model),
            560..620 => self.stat(),
            620..830 => self.check(model),
            830..870 => self.names(model),
            870..935 => self.change(model),
            935..940 => Operation::Settle { path: self.existing(model) },
            _ if self.cast.administration => self.administer(model),
            _ => self.check(model),
        }
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(..from.len())]
    }

    fn name(&mut self) -> String {
        let weights = [0, 0, 0, 0, 1, 1, 2, 3];
        let directory = DIRECTORIES[self.choose(&weights)].name;
        // Low numbers are hot, so that actors meet.
        let number = self.rng.u64(..NAMES_PER_DIRECTORY).min(self.rng.u64(..NAMES_PER_DIRECTORY));
        format!("{directory}/{number}")
    }

    fn existing(&mut self, model: &Reference) -> String {
        for _ in 0..8 {
            let name = self.name();
            if model.number(&name).is_some() {
                return name;
            }
        }
        self.name()
    }

    /// A length for a whole file.
    fn length(&mut self, model: &Reference) -> u64 {
        let crowded = model.total_bytes() > TOTAL_BYTES_MAX;
        match self.rng.u32(..100) {
            0..70 => self.rng.u64(..8 * KIB),
            70..78 => self.rng.u64(..200 * KIB),
            _ if crowded => self.rng.u64(..8 * KIB),
            78..96 => self.choose(&EDGES),
            _ => self.rng.u64(..FILE_BYTES_MAX),
        }
    }

    /// A short length, for reads and writes.
    fn piece(&mut self) -> u64 {
        match self.rng.u32(..100) {
            0..80 => self.rng.u64(1..8 * KIB),
            80..97 => self.rng.u64(1..96 * KIB),
            _ => self.rng.u64(1..6 * MIB),
        }
    }

    /// A place in or just behind a file of `size` bytes; often at an edge.
    fn place(&mut self, size: u64) -> u64 {
        match self.rng.u32(..10) {
            0..3 => 0,
            3..5 => size.saturating_sub(self.rng.u64(..4096)),
            5..7 => {
                let edge = self.choose(&EDGES).min(size);
                edge.saturating_sub(self.rng.u64(..4096))
            }
            _ => self.rng.u64(..size + 1),
        }
    }

    fn reader(&mut self) -> u8 {
        self.rng.u8(..self.cast.mounts + self.cast.libraries)
    }

    fn modes(&mut self, opening: Opening) -> Opening {
        let read = [None, None, None, None, Some(ReadMode::TwoLevel), Some(ReadMode::Bypass)];
        let write = [None, None, None, Some(WriteMode::Through), Some(WriteMode::Bypass)];
        let read_mode = match self.rng.u32(..20) {
            0 => Some(ReadMode::Memory),
            _ => self.choose(&read),
        };
        Opening { read_mode, write_mode: self.choose(&write), ..opening }
    }

    fn opening(&mut self, actor: u8) -> Opening {
        let access = match self.rng.u32(..10) {
            0..5 => Access::Read,
            5..6 => Access::Write,
            _ => Access::ReadWrite,
        };
        let writes = access.writes();
        let opening = Opening {
            access,
            create: writes && self.rng.u32(..10) < 8,
            truncate: writes && self.rng.u32(..10) < 2,
            append: writes && self.rng.u32(..10) < 1,
            ..Opening::READ
        };
        if actor < self.cast.mounts {
            return opening;
        }
        self.modes(opening)
    }

    fn open(&mut self, model: &Reference) -> Operation {
        let actor = self.reader();
        let opening = self.opening(actor);
        let path = if opening.create { self.name() } else { self.existing(model) };
        Operation::Open { actor, slot: self.rng.u8(..SLOTS), path, opening }
    }

    fn with_handle(&mut self, model: &Reference) -> Operation {
        let mut keys: Vec<HandleKey> = model.handles().map(|(key, _)| key).collect();
        if keys.is_empty() {
            return self.open(model);
        }
        keys.sort_unstable();
        let (actor, slot) = self.choose(&keys);
        let handle = model.handle((actor, slot)).expect("chosen from the handles");
        let size = model.file(handle.file).bytes.len() as u64;
        let writes = handle.opening.access.writes();
        let mounted = actor < self.cast.mounts;
        match self.rng.u32(..100) {
            0..25 if writes => self.write(actor, slot, size),
            25..28 if writes => {
                Operation::SetSize { actor, slot, size: self.length(model).min(2 * size + 4096) }
            }
            28..31 if writes && mounted => {
                let offset = self.place(size);
                Operation::Punch { actor, slot, offset, length: self.piece() }
            }
            31..33 if writes => Operation::Sync { actor, slot },
            33..40 => Operation::Size { actor, slot },
            40..65 => Operation::Close { actor, slot },
            65..72 => {
                let offset = self.place(size);
                Operation::ReadMapped { actor, slot, offset, length: self.piece() }
            }
            _ => {
                let offset = self.place(size);
                Operation::Read { actor, slot, offset, length: self.piece() }
            }
        }
    }

    fn write(&mut self, actor: u8, slot: u8, size: u64) -> Operation {
        let (offset, length) = match self.rng.u32(..100) {
            // To an edge from before, so that a file grows over it.
            0..6 => {
                let length = self.piece().min(64 * KIB);
                (self.choose(&EDGES).saturating_sub(length / 2), length)
            }
            // Anew from the start.
            6..8 => (0, self.rng.u64(1..9 * MIB)),
            // With a gap after the end.
            8..14 => (size + self.rng.u64(1..20 * KIB), self.piece()),
            14..30 => (size, self.piece()),
            _ => (self.place(size), self.piece()),
        };
        let seed = self.rng.u64(..);
        Operation::Write { actor, slot, offset, length, seed }
    }

    fn stat(&mut self) -> Operation {
        let actor = self.rng.u8(..self.cast.mounts);
        Operation::Stat { actor, path: self.name() }
    }

    fn check(&mut self, model: &Reference) -> Operation {
        let path = self.existing(model);
        let size = model.by_name(&path).map_or(0, |file| file.bytes.len() as u64);
        let actor = self.rng.u8(..self.cast.outside() + 1);
        let whole = size <= 64 * KIB && self.rng.bool() || self.rng.u32(..60) == 0;
        let (offset, length) = if whole { (0, size + 1) } else { (self.place(size), self.piece()) };
        let library = actor >= self.cast.mounts && actor < self.cast.outside();
        let opening = if library { self.modes(Opening::READ) } else { Opening::READ };
        Operation::Check { actor, path, offset, length, opening }
    }

    fn names(&mut self, model: &Reference) -> Operation {
        // Outside one time in four.
        let outside = self.rng.u32(..4) == 0;
        let actor = if outside { self.cast.outside() } else { self.rng.u8(..self.cast.mounts) };
        let path = self.existing(model);
        match self.rng.u32(..10) {
            0..3 => Operation::Rename { actor, from: path, to: self.name() },
            3..5 => Operation::Link { actor, from: path, to: self.name() },
            5..8 => Operation::Unlink { actor, path },
            _ => {
                let actor = self.rng.u8(..self.cast.mounts);
                Operation::TruncatePath { actor, path, size: self.length(model) }
            }
        }
    }

    fn change(&mut self, model: &Reference) -> Operation {
        let path = self.existing(model);
        let size = model.by_name(&path).map_or(0, |file| file.bytes.len() as u64);
        let restore_times = self.rng.bool();
        let change = match self.rng.u32(..10) {
            0..4 => {
                let length = self.piece().min(size);
                let offset = self.place(size).min(size - length);
                OutsideChange::Overwrite { offset, length, restore_times }
            }
            4..6 => {
                let same = self.rng.bool();
                let length = if same { size } else { self.length(model) };
                OutsideChange::Replace { length, restore_times }
            }
            6..8 => {
                let same = self.rng.bool();
                OutsideChange::Recreate { length: if same { size } else { self.length(model) } }
            }
            8 => OutsideChange::Truncate { size: self.length(model) },
            _ => OutsideChange::Append { length: self.piece() },
        };
        Operation::Change { path, change, seed: self.rng.u64(..) }
    }

    fn administer(&mut self, model: &Reference) -> Operation {
        match self.rng.u32(..60) {
            0..3 => Operation::Resize { capacity_bytes: 0 },
            3..8 => Operation::Resize { capacity_bytes: self.rng.u64(..self.capacity_bytes * 2) },
            8..13 => Operation::Resize { capacity_bytes: self.capacity_bytes },
            13..17 => Operation::EvictAll,
            17..30 => Operation::Evict { path: self.existing(model) },
            30..42 => Operation::Load { path: self.existing(model) },
            42..48 => Operation::Pin { path: self.existing(model) },
            48..56 => Operation::Unpin { path: self.existing(model) },
            _ => {
                let (name, _) = self.choose(&tidepool_proto::option::POLICIES);
                Operation::SetPolicy { policy: name.to_owned() }
            }
        }
    }
}
