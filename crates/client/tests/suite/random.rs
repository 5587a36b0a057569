//! Random operations against a plain reference: a vector of bytes for each file. Blocks go away,
//! the node stops and starts, and other programs replace files all the while.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tidepool_client::{Client, File, OpenOptions};
use tidepool_proto::ErrorKind;

use crate::scene::{Scene, pattern};

const FILES: usize = 4;
const LENGTH_MAX: u64 = 600_000;

struct Chance(u64);

impl Chance {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below.max(1)
    }
}

struct Model {
    path: PathBuf,
    bytes: Vec<u8>,
    /// An open for reading and writing.
    writer: Option<File>,
    /// An open for reading; cleared by changes that are not made through the node.
    reader: Option<File>,
}

impl Model {
    fn check_read(&self, file: &File, chance: &mut Chance) {
        let offset = chance.next(self.bytes.len() as u64 + 1000);
        let length = match chance.next(3) {
            0 => chance.next(100),
            1 => chance.next(20_000),
            _ => chance.next(300_000),
        } as usize;
        let start = (offset as usize).min(self.bytes.len());
        let end = (start + length).min(self.bytes.len());
        let expected = &self.bytes[start..end];
        if chance.next(4) == 0 {
            let borrowed = file.borrow(offset, length).unwrap();
            assert!(borrowed[..] == *expected, "borrowed {offset} {length}");
            return;
        }
        let mut buffer = vec![0xee; length];
        let outcome = file.read_at(offset, &mut buffer).unwrap();
        assert_eq!(outcome.bytes, expected.len(), "at {offset} of {}", self.bytes.len());
        assert!(buffer[..outcome.bytes] == *expected, "read {offset} {length}");
        assert_eq!(outcome.levels.total(), outcome.bytes as u64);
    }

    fn write(&mut self, client: &Client, chance: &mut Chance) {
        let file = match self.writer.take() {
            Some(file) => file,
            None => client.open(&self.path, OpenOptions::read_write()).unwrap(),
        };
        let offset = chance.next(LENGTH_MAX - 200_000);
        let data = pattern(1 + chance.next(200_000) as usize, chance.next(256) as u8);
        file.write_at(offset, &data).unwrap();
        let end = offset as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(&data);
        self.check_read(&file, chance);
        self.writer = Some(file);
    }

    fn set_size(&mut self, client: &Client, chance: &mut Chance) {
        let file = client.open(&self.path, OpenOptions::read_write()).unwrap();
        let size = chance.next(LENGTH_MAX);
        file.set_size(size).unwrap();
        self.bytes.resize(size as usize, 0);
        file.close().unwrap();
    }

    fn replace_behind_the_back(&mut self, chance: &mut Chance) {
        self.close();
        self.bytes = pattern(chance.next(LENGTH_MAX) as usize, chance.next(256) as u8);
        if chance.next(2) == 0 {
            std::fs::write(&self.path, &self.bytes).unwrap();
        } else {
            let beside = self.path.with_extension("new");
            std::fs::write(&beside, &self.bytes).unwrap();
            std::fs::rename(&beside, &self.path).unwrap();
        }
    }

    fn close(&mut self) {
        if let Some(file) = self.writer.take() {
            file.close().unwrap();
        }
        self.reader = None;
    }
}

fn run(seed: u64, operations: usize) {
    let mut scene = Scene::new();
    let client = scene.client();
    let mut chance = Chance(seed | 1);
    let mut models: Vec<Model> = (0..FILES)
        .map(|number| {
            let path = scene.path(&format!("file-{number}"));
            std::fs::write(&path, b"").unwrap();
            Model { path, bytes: Vec::new(), writer: None, reader: None }
        })
        .collect();
    for _ in 0..operations {
        let chosen = chance.next(FILES as u64) as usize;
        let model = &mut models[chosen];
        match chance.next(1000) {
            0..600 => {
                // Small files are as they were at the open, so readers of those are opened anew.
                if model.reader.as_ref().is_none_or(|_| chance.next(10) == 0) {
                    model.reader = Some(client.open(&model.path, OpenOptions::read()).unwrap());
                }
                if let Some(reader) = model.reader.take() {
                    model.check_read(&reader, &mut chance);
                    model.reader = Some(reader);
                }
            }
            600..800 => {
                model.reader = None;
                model.write(&client, &mut chance);
            }
            800..840 => {
                model.reader = None;
                model.set_size(&client, &mut chance);
            }
            840..900 => model.replace_behind_the_back(&mut chance),
            900..980 => (0..20).for_each(|_| scene.node.evict_some(chance.next(u64::MAX))),
            980..990 => scene.node.evict_all(),
            990..995 => {
                // Readers of a version that the next node knows by the same stamps go on.
                models.iter_mut().for_each(Model::close);
                scene.start();
            }
            _ => {
                models.iter_mut().for_each(Model::close);
                scene.stop();
                let model = &mut models[chosen];
                let file = client.open(&model.path, OpenOptions::read_write()).unwrap();
                model.check_read(&file, &mut chance);
                file.write_at(0, b"without a node").unwrap();
                file.close().unwrap();
                let end = model.bytes.len().max(14);
                model.bytes.resize(end, 0);
                model.bytes[..14].copy_from_slice(b"without a node");
                scene.start();
            }
        }
    }
    for model in &mut models {
        model.close();
        assert!(std::fs::read(&model.path).unwrap() == model.bytes, "{}", model.path.display());
    }
}

#[test]
fn random_operations_match_a_plain_reference() {
    for seed in [1, 0xdead_beef, 0x1234_5678_9abc_def0] {
        run(seed, 4000);
    }
}

#[test]
fn readers_race_writers_of_whole_blocks_and_see_one_or_the_other() {
    let scene = Scene::new();
    let client = scene.client();
    let path = scene.path("raced");
    const SIZE: usize = 200_000;
    std::fs::write(&path, vec![0; SIZE]).unwrap();
    let writer = client.open(&path, OpenOptions::read_write()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        let (client, path) = (&client, &path);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    let file = client.open(path, OpenOptions::read()).unwrap();
                    let mut last = 0;
                    let mut byte = [0];
                    while last < 200 {
                        match file.read_at(SIZE as u64 / 2, &mut byte) {
                            Ok(_) => {
                                assert!(byte[0] >= last, "an older byte after a newer one");
                                last = byte[0];
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Changed);
                                assert!(Instant::now() < deadline, "changed for ever: {error}");
                            }
                        }
                    }
                })
            })
            .collect();
        for round in 1..=200u8 {
            writer.write_at(0, &vec![round; SIZE]).unwrap();
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
