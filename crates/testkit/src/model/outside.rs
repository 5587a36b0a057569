//! Another program that changes files on the PFS, in the reference model. Where it writes into the
//! stub of a memory-only file, its bytes are the file from then on, and each open that may write
//! the file is told that those in memory were discarded.

use super::checks::{Mismatch, succeeded};
use super::driver::{Applied, Driver, Outcome};
use super::operation::fill;
use super::reference::{FileNumber, HandleKey};
use super::wire::{Answer, Command, OutsideChange, StubNow};

impl Driver<'_> {
    pub(super) fn change(&mut self, path: &str, change: OutsideChange, seed: u64) -> Outcome {
        let Some(number) = self.model.number(path) else { return Ok(Applied::PassedOver) };
        let file = self.model.file(number);
        let size = file.bytes.len() as u64;
        let length = match change {
            OutsideChange::Overwrite { offset, length, .. } if offset + length > size => {
                return Ok(Applied::PassedOver);
            }
            // Calls that change nothing make no version.
            OutsideChange::Overwrite { length: 0, .. } | OutsideChange::Append { length: 0 } => {
                return Ok(Applied::PassedOver);
            }
            OutsideChange::Truncate { size: same } if same == size => {
                return Ok(Applied::PassedOver);
            }
            OutsideChange::Overwrite { length, .. }
            | OutsideChange::Replace { length, .. }
            | OutsideChange::Recreate { length }
            | OutsideChange::Append { length } => length as usize,
            OutsideChange::Truncate { .. } => 0,
        };
        if file.maybe_memory_only {
            return self.change_stub(path, number, change, seed);
        }
        let outside = usize::from(self.cast.outside());
        fill(seed, &mut self.actors[outside].buffer()[..length]);
        let answer = self.outside(&Command::Change { path: path.to_owned(), change })?;
        succeeded(&answer, "a change on the PFS")?;
        let data = &self.actors[outside].buffer()[..length];
        self.model.change(path, change, data);
        Ok(Applied::Yes)
    }

    /// Changes a file that may be a stub now, where it is one for certain.
    fn change_stub(
        &mut self,
        path: &str,
        number: FileNumber,
        change: OutsideChange,
        seed: u64,
    ) -> Outcome {
        let (end, length) = match change {
            OutsideChange::Overwrite { offset, length, .. } => (offset + length, length),
            OutsideChange::Append { length } => (length, length),
            // No open of the file need notice what becomes of a stub without a name.
            _ => return Ok(Applied::PassedOver),
        };
        let answer = self.outside(&Command::IsStub { path: path.to_owned() })?;
        succeeded(&answer, "looking for the mark of a stub")?;
        if answer.value != StubNow::Held as u64 {
            return Ok(Applied::PassedOver);
        }
        let outside = usize::from(self.cast.outside());
        fill(seed, &mut self.actors[outside].buffer()[..length as usize]);
        let answer = self.outside(&Command::Change { path: path.to_owned(), change })?;
        succeeded(&answer, "a change of a stub")?;
        let data = self.actors[outside].buffer()[..length as usize].to_vec();
        let mut theirs = vec![0; (end - length) as usize];
        theirs.extend_from_slice(&data);
        let there = std::fs::read(self.subject.pfs().join(path))?;
        if there != theirs {
            // It was being written back at this moment, which is said to lose one or the other.
            return self.remove_outside(number).map(|()| Applied::Yes);
        }
        self.model.replace_stub(number, theirs);
        Ok(Applied::Yes)
    }

    /// Removes all names of a file behind the product's back.
    pub(super) fn remove_outside(&mut self, number: FileNumber) -> Result<(), Mismatch> {
        for (name, _) in self.all_names().iter().filter(|(_, other)| *other == number) {
            succeeded(&self.outside(&Command::Unlink { path: name.clone() })?, "unlink")?;
            self.model.unlink(name);
        }
        Ok(())
    }

    /// Whether this answer had to be, and is, the word that bytes in memory gave way.
    pub(super) fn is_told(
        &mut self,
        key: HandleKey,
        answer: &Answer,
        what: &str,
    ) -> Result<bool, Mismatch> {
        if !self.model.handle(key).is_some_and(|handle| handle.has_lost) {
            return Ok(false);
        }
        if answer.errno == libc::EIO {
            return Ok(true);
        }
        // The library asks nobody at the close of what it did not write.
        if what == "close" && self.is_library(key.0) && answer.errno == 0 {
            return Ok(true);
        }
        let Answer { errno, message, .. } = answer;
        Err(Mismatch(format!(
            "{what}: errno {errno} ({message}) where another program's bytes took the place of \
             those in memory, which has to be told"
        )))
    }
}
