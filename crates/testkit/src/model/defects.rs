//! Files that misbehave in known ways, which the model test has to notice. Used to prove the test,
//! never to test the product.

use std::collections::HashMap;

use clap::ValueEnum;
use tidepool_proto::admin::AdminRequest;

use super::files::{Failure, Files};
use super::wire::{Answer, Opening};

/// A way to misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Defect {
    /// Opens serve the bytes of an earlier open of the same length.
    StaleOpen,
    /// One write in 40 is answered but not made.
    LostWrite,
    /// Long reads come half from an earlier version.
    MixedVersions,
    /// One read in 100 has a page of zeros in it.
    Zeros,
    /// Lengths by name are those of an earlier moment.
    StaleSize,
    /// Written bytes never get past a buffer that `close` forgets.
    ForgottenBuffer,
}

/// Files with one defect.
pub struct Defective {
    inner: Box<dyn Files>,
    defect: Defect,
    operations: u64,
    paths: HashMap<u8, String>,
    remembered: HashMap<(String, u64), Vec<u8>>,
    sizes: HashMap<String, u64>,
    late: Vec<(u8, u64, Vec<u8>)>,
}

impl Defective {
    /// Wraps `inner`.
    pub fn new(inner: Box<dyn Files>, defect: Defect) -> Self {
        Defective {
            inner,
            defect,
            operations: 0,
            paths: HashMap::new(),
            remembered: HashMap::new(),
            sizes: HashMap::new(),
            late: Vec::new(),
        }
    }

    fn every(&mut self, number: u64) -> bool {
        self.operations += 1;
        self.operations.is_multiple_of(number)
    }

    /// Serves from memory what was read before, wholly or in part.
    fn serve_from_memory(&mut self, slot: u8, offset: u64, buffer: &mut [u8], count: u64) {
        let Some(path) = self.paths.get(&slot).cloned() else { return };
        let read = &mut buffer[..count as usize];
        let key = (path, offset);
        let earlier = self.remembered.get(&key).filter(|bytes| bytes.len() == read.len());
        match (earlier, self.defect) {
            (Some(earlier), Defect::StaleOpen) => read.copy_from_slice(earlier),
            (Some(earlier), _) => {
                let half = read.len() / 2;
                read[..half].copy_from_slice(&earlier[..half]);
            }
            (None, _) => {
                self.remembered.insert(key, read.to_vec());
            }
        }
    }
}

type Outcome<T> = Result<T, Failure>;

impl Files for Defective {
    fn open(&mut self, slot: u8, path: &str, opening: Opening) -> Outcome<()> {
        self.paths.insert(slot, path.to_owned());
        self.inner.open(slot, path, opening)
    }

    fn read(&mut self, slot: u8, offset: u64, buffer: &mut [u8]) -> Outcome<u64> {
        let count = self.inner.read(slot, offset, buffer)?;
        match self.defect {
            Defect::StaleOpen | Defect::MixedVersions => {
                self.serve_from_memory(slot, offset, buffer, count);
            }
            _ => {}
        }
        if self.defect == Defect::Zeros && self.every(100) {
            let page = (count as usize).min(4096);
            buffer[..page].fill(0);
        }
        Ok(count)
    }

    fn read_mapped(&mut self, slot: u8, offset: u64, buffer: &mut [u8]) -> Outcome<u64> {
        self.inner.read_mapped(slot, offset, buffer)
    }

    fn write(&mut self, slot: u8, offset: u64, data: &[u8]) -> Outcome<()> {
        if self.defect == Defect::LostWrite && self.every(40) {
            return Ok(());
        }
        if self.defect == Defect::ForgottenBuffer {
            self.late.push((slot, offset, data.to_vec()));
            return Ok(());
        }
        self.inner.write(slot, offset, data)
    }

    fn set_size(&mut self, slot: u8, size: u64) -> Outcome<()> {
        self.inner.set_size(slot, size)
    }

    fn punch(&mut self, slot: u8, offset: u64, length: u64) -> Outcome<()> {
        self.inner.punch(slot, offset, length)
    }

    fn sync(&mut self, slot: u8) -> Outcome<()> {
        self.inner.sync(slot)
    }

    fn size(&mut self, slot: u8) -> Outcome<u64> {
        let size = self.inner.size(slot)?;
        if self.defect != Defect::StaleSize {
            return Ok(size);
        }
        let path = self.paths.get(&slot).cloned().unwrap_or_default();
        Ok(*self.sizes.entry(path).or_insert(size))
    }

    fn close(&mut self, slot: u8) -> Outcome<()> {
        if self.defect == Defect::ForgottenBuffer {
            self.late.retain(|(of, ..)| *of != slot);
        }
        self.inner.close(slot)
    }

    fn close_all(&mut self) {
        self.inner.close_all();
    }

    fn admin(&mut self, request: AdminRequest, path: Option<&str>) -> Outcome<Answer> {
        self.inner.admin(request, path)
    }
}
