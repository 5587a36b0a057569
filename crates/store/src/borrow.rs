//! Whole segments that the kernel or clients borrow: each segment by one of the two at a time.
//!
//! What the kernel borrows (by a passthrough open) does not end with the open: a mapping of the
//! program outlives it, and nobody tells of its end. So the borrow *lingers*, and the segment stays
//! pinned, until the kernel says that nobody else has the memory file open or mapped. It is asked
//! at once, then every now and then, and whenever memory is wanted.
//!
//! A client that has the descriptor cannot be told from the kernel in that answer. So the kernel
//! gets no segment that clients may have, and clients get none that the kernel may have.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::backing::Others;
use crate::borrow_state::AfterPin;
use crate::engine::Engine;
use crate::segment::{Segment, SegmentPin};
use crate::segment_memory::{SegmentMemory, State};

/// How soon the kernel is asked again for borrows that linger.
const ASK_FIRST: Duration = Duration::from_millis(100);
/// How long their memory may stay after the last unmap, at most.
const ASK_LAST: Duration = Duration::from_millis(400);

impl Engine {
    /// The kernel borrows a wholly resident segment for one open. False where a client may have
    /// it, or where all pins together, or those of `user`, would go beyond their share.
    fn begin_borrow(&self, memory: &Arc<SegmentMemory>, user: Option<u32>) -> bool {
        // At the limit others may have pinned what they do not use any more.
        try_begin_borrow(memory, user)
            .or_else(|| self.ask_all().then(|| try_begin_borrow(memory, user)).flatten())
            .unwrap_or(false)
    }

    /// An open of the kernel's is over.
    fn end_open(self: &Arc<Self>, memory: &Arc<SegmentMemory>) {
        let mut state = memory.state.lock();
        state.borrow.opens -= 1;
        if state.borrow.opens > 0 {
            return;
        }
        state.borrow.lingers = true;
        // Usually nothing is mapped.
        let ended = try_end_borrow(memory, &mut state);
        drop(state);
        if let Some(rest) = ended {
            return self.after_pin(memory, rest);
        }
        let mut lingering = self.lingering.lock();
        if !lingering.memories.iter().any(|known| Arc::ptr_eq(known, memory)) {
            lingering.memories.push(memory.clone());
        }
        if !lingering.is_asking {
            lingering.is_asking = self.start_asking();
        }
    }

    /// Ends the borrow of a segment if it lingers and nobody uses it any more. Answers whether the
    /// kernel has nothing of it. Call without a lock of the store.
    pub fn ask(&self, memory: &Arc<SegmentMemory>) -> bool {
        let mut state = memory.state.lock();
        if !state.borrow.lingers {
            return state.borrow.opens == 0;
        }
        let ended = try_end_borrow(memory, &mut state);
        drop(state);
        ended.map(|rest| self.after_pin(memory, rest)).is_some()
    }

    /// The same for all borrows that linger; whether any ended.
    pub fn ask_all(&self) -> bool {
        let mut ended = Vec::new();
        self.lingering.lock().memories.retain(|memory| {
            let mut state = memory.state.lock();
            if !state.borrow.lingers {
                return false;
            }
            match try_end_borrow(memory, &mut state) {
                Some(rest) => ended.push((memory.clone(), rest)),
                // Where the kernel does not tell, the file goes whole with its last handle.
                None => return !(state.borrow.unknown && state.closed),
            }
            false
        });
        let any = !ended.is_empty();
        ended.into_iter().for_each(|(memory, rest)| self.after_pin(&memory, rest));
        any
    }

    /// Bytes that stay only because something of them is still mapped, as far as was asked.
    pub fn lingering_bytes(&self) -> u64 {
        let pinned = |memory: &Arc<SegmentMemory>| {
            let state = memory.state.lock();
            if state.borrow.lingers { state.pinned_bytes } else { 0 }
        };
        self.lingering.lock().memories.iter().map(pinned).sum()
    }

    /// Asks for all borrows that linger until there are none. False: no thread can be had.
    fn start_asking(self: &Arc<Self>) -> bool {
        let engine = Arc::downgrade(self);
        let ask = move || {
            let mut pause = ASK_FIRST;
            loop {
                thread::sleep(pause);
                let Some(engine) = engine.upgrade() else { return };
                pause = if engine.ask_all() { ASK_FIRST } else { (pause * 2).min(ASK_LAST) };
                let mut lingering = engine.lingering.lock();
                if lingering.memories.is_empty() {
                    lingering.is_asking = false;
                    return;
                }
            }
        };
        thread::Builder::new().name("borrows".into()).stack_size(256 << 10).spawn(ask).is_ok()
    }

    /// What follows the end of a segment's pin. Call without a lock of the store.
    pub fn after_pin(&self, memory: &Arc<SegmentMemory>, rest: AfterPin) {
        match rest {
            AfterPin::Discard => self.discard(memory),
            AfterPin::Trim if self.budget.excess() > 0 => _ = self.trim(),
            AfterPin::Trim | AfterPin::Nothing => {}
        }
    }
}

/// Counts an open of the kernel's in; `None` where the share of all pins or `user`'s is reached.
fn try_begin_borrow(memory: &SegmentMemory, user: Option<u32>) -> Option<bool> {
    let mut state = memory.state.lock();
    if state.closed || state.cutting_from.is_some() || !memory.is_wholly_resident() {
        return Some(false);
    }
    if !state.borrow.is_active() {
        if state.borrow.shown && memory.file.others() != Others::None {
            return Some(false);
        }
        state.borrow.shown = false;
        if !state.borrow.begin(user, &memory.budget, memory.charged()) {
            return None;
        }
        if !memory.begin_pin(&mut state) {
            state.borrow.end(&memory.budget);
            return None;
        }
    }
    state.borrow.opens += 1;
    state.borrow.lingers = false;
    Some(true)
}

/// Ends a borrow that lingers, unless somebody has the file open or mapped.
fn try_end_borrow(memory: &SegmentMemory, state: &mut State) -> Option<AfterPin> {
    let others = memory.file.others();
    state.borrow.unknown = others == Others::Unknown;
    if others != Others::None {
        return None;
    }
    state.borrow.lingers = false;
    state.borrow.end(&memory.budget);
    Some(memory.end_pin(state))
}

impl Segment {
    /// The kernel borrows a wholly resident segment, for passthrough. All its blocks stay until the
    /// borrow drops and everything that was mapped of it is unmapped. `None` where it is not
    /// wholly resident, a client may have its descriptor, or all pins together would go beyond
    /// their share of the capacity, or those of `user` beyond three quarters of what others leave.
    pub fn borrow_for_kernel(&self, user: Option<u32>) -> Option<KernelBorrow> {
        let (engine, memory) = (self.engine.clone(), self.memory.clone());
        engine.begin_borrow(&memory, user).then(|| KernelBorrow { engine, memory })
    }

    /// As [`borrow_for_kernel`](Self::borrow_for_kernel), for a client, until the borrow drops.
    /// `None` also where the kernel has it.
    pub fn borrow_for_client(&self) -> Option<ClientBorrow> {
        if self.is_borrowed_by_kernel() {
            return None;
        }
        let pin = self.pin_all()?;
        let mut state = self.memory.state.lock();
        if state.borrow.is_active() {
            return None;
        }
        let descriptor = self.memory.file.read_only_copy().ok()?;
        state.borrow.note_shown();
        drop(state);
        Some(ClientBorrow { _pin: pin, descriptor })
    }

    /// Whether the kernel may read the memory file by itself: a passthrough open is not over, or
    /// something is mapped by one still.
    pub fn is_borrowed_by_kernel(&self) -> bool {
        !self.engine.ask(&self.memory)
    }
}

/// The kernel's borrow of all blocks of a segment, for one open or several that share it.
pub struct KernelBorrow {
    engine: Arc<Engine>,
    memory: Arc<SegmentMemory>,
}

impl KernelBorrow {
    /// The memory file, to be registered with the kernel. It can be written, so it must not leave
    /// the process; the kernel opens the file once more for each open, as that open may use it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.file.read_write()
    }

    /// Tells the policy that every block was read: the kernel does not tell what it reads.
    pub fn mark_read(&self) {
        for (block, _) in self.memory.cells.range(0, u64::MAX) {
            self.memory.mark_read(block);
        }
    }
}

impl Drop for KernelBorrow {
    fn drop(&mut self) {
        self.engine.end_open(&self.memory);
    }
}

impl fmt::Debug for KernelBorrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelBorrow").field("segment", &self.memory.id).finish_non_exhaustive()
    }
}

/// A client's borrow of all blocks of a segment.
#[derive(Debug)]
pub struct ClientBorrow {
    descriptor: OwnedFd,
    _pin: SegmentPin,
}

impl ClientBorrow {
    /// The memory file, read-only.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
