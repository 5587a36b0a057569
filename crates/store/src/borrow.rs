//! Loans of whole segments to the kernel and to clients, who have a segment in turn.
//!
//! A loan to the kernel (a passthrough open) does not end with the open: a mapping of the program
//! outlives it, and nobody tells of its end. So the loan *lingers*, and the segment stays held,
//! until the kernel says that nobody else has the memory file open or mapped. It is asked at once,
//! then every now and then, and whenever memory is wanted.
//!
//! A client that has the descriptor cannot be told from the kernel in that answer. So the kernel
//! gets no segment that clients may have, and clients get none that the kernel may have.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::backing::Others;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::segment::{Segment, SegmentHold};
use crate::segment_memory::{Content, State};

/// How soon the kernel is asked again for loans that linger.
const ASK_FIRST: Duration = Duration::from_millis(100);
/// How long their memory may stay after the last unmap, at most.
const ASK_LAST: Duration = Duration::from_millis(400);

/// The loan of one content.
#[derive(Debug, Default)]
pub(crate) struct Loan {
    /// Opens of the kernel's.
    opens: u32,
    /// All opens are over, but perhaps not all mappings.
    lingers: bool,
    /// Read-only descriptors left the process, and may still be somewhere.
    shown: bool,
    /// The kernel does not tell who has the file.
    unknown: bool,
    /// Whose it is and the bytes booked on him, until it ends. Nobody's is bounded by all holds.
    booked: Option<(u32, u64)>,
}

impl Loan {
    /// Whether the kernel may read the memory file by itself.
    pub fn is_active(&self) -> bool {
        self.opens > 0 || self.lingers
    }

    /// Books `bytes` more on the user whose the loan is. False: he has as many as he may.
    pub fn book(&mut self, budget: &Budget, bytes: u64) -> bool {
        let Some((user, booked)) = &mut self.booked else { return true };
        let fits = budget.book_loan(*user, bytes);
        *booked += if fits { bytes } else { 0 };
        fits
    }

    /// Takes up to `bytes` off again.
    pub fn take_off(&mut self, budget: &Budget, bytes: u64) {
        if let Some((user, booked)) = &mut self.booked {
            let bytes = bytes.min(*booked);
            budget.release_loan(*user, bytes);
            *booked -= bytes;
        }
    }

    /// Is nobody's any more.
    pub fn end(&mut self, budget: &Budget) {
        self.take_off(budget, u64::MAX);
        self.booked = None;
    }

    /// Begins to be `user`'s.
    fn begin(&mut self, user: Option<u32>, budget: &Budget, bytes: u64) -> bool {
        self.booked = user.map(|user| (user, 0));
        self.book(budget, bytes)
    }

    /// Notes that a read-only descriptor leaves the process.
    pub fn note_shown(&mut self) {
        self.shown = true;
    }
}

/// What is left to do after a hold, outside of the content's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterHold {
    /// Others hold the content still.
    Nothing,
    /// What is above the capacity may go.
    Trim,
    /// It was dropped while it was held.
    Drop,
}

/// Contents whose loans may linger.
#[derive(Default)]
pub(crate) struct Lingering {
    contents: Vec<Arc<Content>>,
    /// A thread asks for them.
    is_asking: bool,
}

impl Engine {
    /// Lends a wholly resident content to the kernel for one open. False where a client may have
    /// it, or where all holds together, or those of `user`, would go beyond their share.
    fn lend(&self, content: &Arc<Content>, user: Option<u32>) -> bool {
        // At the limit others may hold what they do not use any more.
        try_lend(content, user)
            .or_else(|| self.ask_all().then(|| try_lend(content, user)).flatten())
            .unwrap_or(false)
    }

    /// An open of the kernel's is over.
    fn take_back(self: &Arc<Self>, content: &Arc<Content>) {
        let mut state = content.state.lock();
        state.loan.opens -= 1;
        if state.loan.opens > 0 {
            return;
        }
        state.loan.lingers = true;
        // Usually nothing is mapped.
        let ended = end_loan(content, &mut state);
        drop(state);
        if let Some(rest) = ended {
            return self.after_hold(content, rest);
        }
        let mut lingering = self.lingering.lock();
        if !lingering.contents.iter().any(|known| Arc::ptr_eq(known, content)) {
            lingering.contents.push(content.clone());
        }
        if !lingering.is_asking {
            lingering.is_asking = self.start_asking();
        }
    }

    /// Ends the loan of a content if it lingers and nobody uses it any more. Answers whether the
    /// kernel has nothing of it. Call without a lock of the store.
    pub fn ask(&self, content: &Arc<Content>) -> bool {
        let mut state = content.state.lock();
        if !state.loan.lingers {
            return state.loan.opens == 0;
        }
        let ended = end_loan(content, &mut state);
        drop(state);
        ended.map(|rest| self.after_hold(content, rest)).is_some()
    }

    /// The same for all loans that linger; whether any ended.
    pub fn ask_all(&self) -> bool {
        let mut ended = Vec::new();
        self.lingering.lock().contents.retain(|content| {
            let mut state = content.state.lock();
            if !state.loan.lingers {
                return false;
            }
            match end_loan(content, &mut state) {
                Some(rest) => ended.push((content.clone(), rest)),
                // Where the kernel does not tell, the file goes whole with its last handle.
                None => return !(state.loan.unknown && state.closed),
            }
            false
        });
        let any = !ended.is_empty();
        ended.into_iter().for_each(|(content, rest)| self.after_hold(&content, rest));
        any
    }

    /// Bytes that stay only because something of them is still mapped, as far as was asked.
    pub fn lingering_bytes(&self) -> u64 {
        let held = |content: &Arc<Content>| {
            let state = content.state.lock();
            if state.loan.lingers { state.held_bytes } else { 0 }
        };
        self.lingering.lock().contents.iter().map(held).sum()
    }

    /// Asks for all loans that linger until there are none. False: no thread can be had.
    fn start_asking(self: &Arc<Self>) -> bool {
        let engine = Arc::downgrade(self);
        let ask = move || {
            let mut pause = ASK_FIRST;
            loop {
                thread::sleep(pause);
                let Some(engine) = engine.upgrade() else { return };
                pause = if engine.ask_all() { ASK_FIRST } else { (pause * 2).min(ASK_LAST) };
                let mut lingering = engine.lingering.lock();
                if lingering.contents.is_empty() {
                    lingering.is_asking = false;
                    return;
                }
            }
        };
        thread::Builder::new().name("loans".into()).stack_size(256 << 10).spawn(ask).is_ok()
    }

    /// What follows the end of a hold. Call without a lock of the store.
    pub fn after_hold(&self, content: &Arc<Content>, rest: AfterHold) {
        match rest {
            AfterHold::Drop => self.drop_contents(content),
            AfterHold::Trim if self.budget.excess() > 0 => _ = self.trim(),
            AfterHold::Trim | AfterHold::Nothing => {}
        }
    }
}

/// Counts an open of the kernel's in; `None` where the share of all holds or `user`'s is reached.
fn try_lend(content: &Content, user: Option<u32>) -> Option<bool> {
    let mut state = content.state.lock();
    if state.closed || state.cutting_from.is_some() || !content.is_wholly_resident() {
        return Some(false);
    }
    if !state.loan.is_active() {
        if state.loan.shown && content.file.others() != Others::None {
            return Some(false);
        }
        state.loan.shown = false;
        if !state.loan.begin(user, &content.budget, content.charged()) {
            return None;
        }
        if !content.begin_hold(&mut state) {
            state.loan.end(&content.budget);
            return None;
        }
    }
    state.loan.opens += 1;
    state.loan.lingers = false;
    Some(true)
}

/// Ends a loan that lingers, unless somebody has the file open or mapped.
fn end_loan(content: &Content, state: &mut State) -> Option<AfterHold> {
    let others = content.file.others();
    state.loan.unknown = others == Others::Unknown;
    if others != Others::None {
        return None;
    }
    state.loan.lingers = false;
    state.loan.end(&content.budget);
    Some(content.end_hold(state))
}

impl Segment {
    /// Lends a wholly resident segment to the kernel, for passthrough. All its blocks stay until
    /// the loan drops and everything that was mapped of it is unmapped. `None` where it is not
    /// wholly resident, a client may have its descriptor, or all holds together would go beyond
    /// their share of the capacity, or those of `user` beyond three quarters of what others leave.
    pub fn lend_to_kernel(&self, user: Option<u32>) -> Option<KernelLoan> {
        let (engine, content) = (self.engine.clone(), self.content.clone());
        engine.lend(&content, user).then(|| KernelLoan { engine, content })
    }

    /// As [`lend_to_kernel`](Self::lend_to_kernel), to a client, until the loan drops. `None` also
    /// where the kernel has it.
    pub fn lend_to_client(&self) -> Option<ClientLoan> {
        if self.is_lent_to_kernel() {
            return None;
        }
        let hold = self.hold()?;
        let mut state = self.content.state.lock();
        if state.loan.is_active() {
            return None;
        }
        let descriptor = self.content.file.read_only_copy().ok()?;
        state.loan.note_shown();
        drop(state);
        Some(ClientLoan { _hold: hold, descriptor })
    }

    /// Whether the kernel may read the memory file by itself: a passthrough open is not over, or
    /// something is mapped by one still.
    pub fn is_lent_to_kernel(&self) -> bool {
        !self.engine.ask(&self.content)
    }
}

/// A loan of all blocks of a segment to the kernel, for one open or several that share it.
pub struct KernelLoan {
    engine: Arc<Engine>,
    content: Arc<Content>,
}

impl KernelLoan {
    /// The memory file, to be registered with the kernel. It can be written, so it must not leave
    /// the process; the kernel opens the file once more for each open, as that open may use it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.content.file.read_write()
    }

    /// Tells the policy that every block was read: the kernel does not tell what it reads.
    pub fn mark_read(&self) {
        for (block, _) in self.content.cells.range(0, u64::MAX) {
            self.content.mark_read(block);
        }
    }
}

impl Drop for KernelLoan {
    fn drop(&mut self) {
        self.engine.take_back(&self.content);
    }
}

impl fmt::Debug for KernelLoan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelLoan").field("segment", &self.content.id).finish_non_exhaustive()
    }
}

/// A loan of all blocks of a segment to a client.
#[derive(Debug)]
pub struct ClientLoan {
    descriptor: OwnedFd,
    _hold: SegmentHold,
}

impl ClientLoan {
    /// The memory file, read-only.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
