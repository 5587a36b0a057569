//! The transfer buffer of a connection: memory of the client that the node reads long writes from.
//! Made when the first long write needs it. The node alone gets its descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{MemfdFlags, SealFlags};
use tidepool_proto::wire::{TRANSFER_WRITE_BYTES_MAX, WriteSource};
use tidepool_proto::{Error, ErrorKind, Result};

/// Writes that may be under way at the same time.
const SLOTS: u64 = 4;
const SLOT_BYTES: u64 = TRANSFER_WRITE_BYTES_MAX as u64;

#[derive(Debug, Default)]
enum State {
    #[default]
    Unmade,
    /// A thread registers it; others wait.
    Registering,
    Ready {
        memory: Arc<OwnedFd>,
        free: Vec<u64>,
    },
    Refused,
}

/// Slots of shared memory.
#[derive(Debug, Default)]
pub(crate) struct TransferBuffer {
    state: Mutex<State>,
    changed: Condvar,
}

/// A slot for one write, given back when it drops.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    buffer: &'a TransferBuffer,
    memory: Arc<OwnedFd>,
    number: u64,
}

fn failed(error: impl Into<std::io::Error>) -> Error {
    Error::new(ErrorKind::Unsupported, "making a transfer buffer", "no memory").caused_by(error)
}

fn make() -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("tidepool-transfer", flags).map_err(failed)?;
    rustix::fs::ftruncate(&memory, SLOTS * SLOT_BYTES).map_err(failed)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals).map_err(failed)?;
    Ok(memory)
}

impl TransferBuffer {
    /// A free slot, waited for; `None` if there is no buffer to be had. The first call makes the
    /// buffer and has `register` give it to the node.
    pub(crate) fn take(&self, register: impl Fn(BorrowedFd<'_>) -> bool) -> Option<Slot<'_>> {
        let mut state = self.state.lock();
        loop {
            match &mut *state {
                State::Refused => return None,
                State::Unmade => {
                    *state = State::Registering;
                    drop(state);
                    let made = make().ok().filter(|memory| register(memory.as_fd()));
                    state = self.state.lock();
                    *state = match made {
                        Some(memory) => {
                            State::Ready { memory: memory.into(), free: (0..SLOTS).collect() }
                        }
                        None => State::Refused,
                    };
                    self.changed.notify_all();
                }
                State::Ready { memory, free } => {
                    if let Some(number) = free.pop() {
                        let memory = Arc::clone(memory);
                        return Some(Slot { buffer: self, memory, number });
                    }
                    self.changed.wait(&mut state);
                }
                State::Registering => self.changed.wait(&mut state),
            }
        }
    }
}

impl Slot<'_> {
    /// Copies as much of `data` as fits; where the node finds it, and how much it is.
    pub(crate) fn fill(&self, data: &[u8]) -> Result<(WriteSource, usize)> {
        let data = &data[..data.len().min(SLOT_BYTES as usize)];
        let offset = self.number * SLOT_BYTES;
        crate::lower::write_at(&*self.memory, offset, data)?;
        let length = data.len() as u32;
        Ok((WriteSource::Buffer { offset, length }, data.len()))
    }
}

impl Slot<'_> {
    /// For a slot that the node may still read: nothing is put there, nor into any other, again.
    pub(crate) fn forfeit(self) {
        *self.buffer.state.lock() = State::Refused;
        self.buffer.changed.notify_all();
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let State::Ready { free, .. } = &mut *self.buffer.state.lock() {
            free.push(self.number);
        }
        self.buffer.changed.notify_one();
    }
}
