//! [`Fault`]: a fault of the simulated node, with its begin and end. Heals by itself at the end of
//! its time.

use std::time::Duration;

use super::ns;

/// A fault for a time.
#[derive(Clone, Debug)]
pub struct Fault {
    /// When it begins.
    pub from: Duration,
    /// When it is over.
    pub until: Duration,
    /// What goes wrong.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// The main sensor repeats what it said when the fault began.
    AvailableFrozen,
    /// The main sensor cannot be read.
    AvailableUnreadable,
    /// The main sensor says this many times the truth.
    AvailableTimes(f64),
    /// The second estimate cannot be read.
    UsedKindsUnreadable,
    /// The kernel does not count stalls.
    PressureAbsent,
    /// The clock of the readings is ahead by this time.
    ClockAhead(Duration),
    /// A store, by its number, gives memory back at this share of its rate.
    ReleaseShare(usize, f64),
    /// The PFS takes memory-only bytes of a store, by its number, at this rate and no faster.
    SpillRate(usize, u64),
    /// The process of a store, by its number, does not run, and counts no time.
    Stopped(usize),
    /// A store, by its number, does nothing on commands.
    CommandsLost(usize),
    /// A store, by its number, does not answer.
    StoreSilent(usize),
    /// The process of a store, by its number, ended: its memory is free, and all that is known of
    /// it is what it said last.
    Gone(usize),
    /// A store, by its number, finds no 2 MiB pages: it gives back 4 KiB pages at this rate.
    Fragmented(usize, u64),
}

/// The faults of one store at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreFaults {
    pub(super) release_share: Option<f64>,
    pub(super) write_back_bytes_per_s: Option<u64>,
    pub(super) stopped: bool,
    pub(super) gone: bool,
    pub(super) commands_lost: bool,
    pub(super) release_bytes_per_s: Option<u64>,
}

impl StoreFaults {
    pub(super) fn fragmented(&self) -> bool {
        self.release_bytes_per_s.is_some()
    }
}

/// The faults at a moment.
pub(super) fn now(faults: &[Fault], at_ns: u64) -> impl Iterator<Item = &Fault> {
    faults.iter().filter(move |fault| (ns(fault.from)..ns(fault.until)).contains(&at_ns))
}

/// The faults of a store at a moment.
pub(super) fn at(faults: &[Fault], at_ns: u64, store: usize) -> StoreFaults {
    let mut found = StoreFaults::default();
    for fault in now(faults, at_ns) {
        match fault.kind {
            FaultKind::ReleaseShare(number, share) if number == store => {
                found.release_share = Some(share);
            }
            FaultKind::SpillRate(number, rate) if number == store => {
                found.write_back_bytes_per_s = Some(rate);
            }
            FaultKind::Stopped(number) if number == store => found.stopped = true,
            FaultKind::Gone(number) if number == store => found.gone = true,
            FaultKind::CommandsLost(number) | FaultKind::StoreSilent(number) if number == store => {
                found.commands_lost = true;
            }
            FaultKind::Fragmented(number, rate) if number == store => {
                found.release_bytes_per_s = Some(rate);
            }
            _ => {}
        }
    }
    found
}
