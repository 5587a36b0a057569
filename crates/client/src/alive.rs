//! [`Alive`]: a flag that says whether a connection is of use, and that is off in a process made by
//! `fork`: a child shares the socket with its parent, so it must not send on it. The kernel wipes
//! the page of the flag at the fork, so asking costs one load and no system call.

use std::sync::atomic::{AtomicU64, Ordering};

use tidepool_proto::mapping::Mapping;

const PAGE_BYTES: usize = 4096;
const ALIVE: u64 = 1;

/// On until it is put out, or the process forks.
#[derive(Debug)]
pub(crate) struct Alive(Mapping);

impl Alive {
    pub(crate) fn new() -> std::io::Result<Alive> {
        let alive = Alive(Mapping::anonymous(PAGE_BYTES)?);
        alive.0.wipe_on_fork()?;
        alive.flag().store(ALIVE, Ordering::Release);
        Ok(alive)
    }

    fn flag(&self) -> &AtomicU64 {
        self.0.word(0)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.flag().load(Ordering::Acquire) == ALIVE
    }

    pub(crate) fn put_out(&self) {
        self.flag().store(0, Ordering::Release);
    }
}
