//! Random operations on a few files through the node, against plain vectors and the PFS itself.

mod support;

use std::sync::Arc;
use support::*;
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::{MemorySize, OpenFile, WriteMode};

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }

    /// Positions near the edges of small files and blocks more often than elsewhere.
    fn position(&mut self, size: u64) -> u64 {
        match self.below(4) {
            0 => self.below(size + 1),
            1 => size,
            2 => (256 << 10) + self.below(3) - 1,
            _ => (self.below(3) + 1) * BLOCK + self.below(5) - 2,
        }
    }
}

struct Model {
    random: Random,
    files: Vec<(String, Vec<u8>)>,
    open: Vec<(usize, Arc<dyn OpenFile>)>,
}

impl Model {
    fn step(&mut self, fixture: &Fixture, step: u64) {
        let file = self.random.below(self.files.len() as u64) as usize;
        match self.random.below(12) {
            0..=3 => self.write(file, fixture, step),
            4 => self.truncate(file, fixture),
            5 => self.punch(file, fixture),
            6 => self.change_behind(file, fixture, step),
            7 => self.administrate(fixture),
            8 => self.open.clear(),
            9 => {
                let open = fixture.open(&self.files[file].0);
                self.open.push((file, open));
            }
            _ => self.read(file, fixture),
        }
        for (file, open) in &self.open {
            let (name, bytes) = &self.files[*file];
            assert!(read_all(&**open).unwrap().0 == *bytes, "open {name} at step {step}");
        }
        if self.open.len() > 3 {
            self.open.remove(0);
        }
    }

    fn writer(&mut self, file: usize, fixture: &Fixture) -> Arc<dyn OpenFile> {
        let write = (self.random.below(5) == 0).then_some(WriteMode::Bypass);
        fixture.writer(&self.files[file].0, Wish { write, ..Wish::default() })
    }

    fn write(&mut self, file: usize, fixture: &Fixture, step: u64) {
        let writer = self.writer(file, fixture);
        for piece in 0..self.random.below(4) + 1 {
            let bytes = &mut self.files[file].1;
            let at = self.random.position(bytes.len() as u64) as usize;
            let length = [100, 4096, 70_000, 1 << 20, 5 << 20][self.random.below(5) as usize];
            let data = content(step * 8 + piece, length);
            writer.write_at(at as u64, &data).unwrap();
            bytes.resize(bytes.len().max(at + length), 0);
            bytes[at..at + length].copy_from_slice(&data);
            if bytes.len() > 20 << 20 {
                writer.set_size(300 << 10).unwrap();
                bytes.truncate(300 << 10);
            }
        }
        writer.flush().unwrap();
        assert!(std::fs::read(fixture.path(&self.files[file].0)).unwrap() == self.files[file].1);
    }

    fn truncate(&mut self, file: usize, fixture: &Fixture) {
        let size = self.random.position(self.files[file].1.len() as u64);
        let writer = self.writer(file, fixture);
        writer.set_size(size).unwrap();
        self.files[file].1.resize(size as usize, 0);
        writer.flush().unwrap();
    }

    fn punch(&mut self, file: usize, fixture: &Fixture) {
        let bytes = &mut self.files[file].1;
        let start = self.random.below(bytes.len() as u64 + 1);
        let length = self.random.below(2 << 20) + 1;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let end = (start + length).min(bytes.len() as u64);
        bytes[start as usize..end as usize].fill(0);
        self.writer(file, fixture).allocate(mode, start, length).unwrap();
    }

    /// Another program's change. Opens from before may answer with their own version or an error,
    /// so they are closed first; `versions.rs` looks at those.
    fn change_behind(&mut self, file: usize, fixture: &Fixture, step: u64) {
        self.open.clear();
        let (name, bytes) = &mut self.files[file];
        let at = self.random.below(bytes.len() as u64 + 1);
        let length = self.random.below(1 << 20).min(bytes.len() as u64 - at) as usize;
        let data = content(step ^ 0x5555, length);
        overwrite(&fixture.path(name), at, &data);
        bytes[at as usize..at as usize + length].copy_from_slice(&data);
    }

    fn administrate(&mut self, fixture: &Fixture) {
        let capacity_bytes = [0, 8 << 20, 24 << 20, CAPACITY][self.random.below(4) as usize];
        let policy = ["lru", "lfu", "s3fifo", "cyclic", "fixed", "adaptive"]
            [self.random.below(6) as usize]
            .into();
        let request = match self.random.below(3) {
            0 => AdminRequest::Resize { size: MemorySize::Bytes(capacity_bytes) },
            1 => AdminRequest::EvictAll,
            _ => AdminRequest::SetPolicy { policy },
        };
        fixture.node.admin(request, None, 0).unwrap();
    }

    fn read(&mut self, file: usize, fixture: &Fixture) {
        let (name, bytes) = &self.files[file];
        assert!(fixture.read(name).0 == *bytes, "{name}");
    }
}

fn run(seed: u64, steps: u64) {
    let fixture = Fixture::new();
    let names = ["small", "large", "third"];
    for name in names {
        fixture.put(name, b"");
    }
    let files = names.map(|name| (name.to_owned(), Vec::new())).to_vec();
    let mut model = Model { random: Random(seed), files, open: Vec::new() };
    for step in 0..steps {
        model.step(&fixture, step);
    }
    for file in 0..model.files.len() {
        model.read(file, &fixture);
    }
    let status = fixture.node.status();
    assert_eq!(status.asked_bytes, status.served.total() + status.failed_bytes);
    assert!(status.store.resident_bytes_peak <= CAPACITY);
}

#[test]
fn random_operations_agree_with_plain_vectors() {
    for seed in [1, 2, 3, 4] {
        run(0x9e37_79b9 * seed, 150);
    }
}
