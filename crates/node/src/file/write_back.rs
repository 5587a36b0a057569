//! Writes the bytes of a memory-only file into the place of its stub.

use std::time::{Duration, Instant};

use tidepool_pfs::LowerFile;
use tidepool_proto::stub::{Mark, STUB_BYTES};
use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result, Version};
use tidepool_store::{BlockPin, Segment};

use super::background::Writing;
use super::cached_version::CachedVersion;
use super::copied::Copied;
use super::gate::ExclusiveGate;
use super::stub::{Afterwards, Stub, WriteBytes};
use super::stub_times::{times_of, were_set};
use super::write_back_check::Check;
use crate::core::Core;

/// What was seen while a file was written back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Another program changed it between two steps.
    pub changed_amid: bool,
    /// The time of change that it is to have, where that is before the present tick of the PFS's
    /// clock: with its mark on it nobody else writes to it, and who does that afterwards moves it.
    pub settled_ns: Option<i128>,
}

/// How long it is waited for where nobody waits for the file, and how often it is looked.
const SETTLE_MAX: Duration = Duration::from_millis(30);
const SETTLE_INTERVAL: Duration = Duration::from_millis(1);

/// Turns the stub into the whole file. `seen` is told also where this failed.
pub fn write_into_stub(
    core: &Core,
    file: &ExclusiveGate<'_>,
    cached: &CachedVersion,
    (stub, mark): (&Stub, &Mark),
    seen: &mut Seen,
) -> Result<()> {
    let mut head = [0; STUB_BYTES as usize];
    let head = &mut head[..mark.length.min(STUB_BYTES) as usize];
    if let Some(segment) = cached.segment()
        && let Some(pin) = pin_unless_hole(segment, 0)?
    {
        let length = head.len().min(pin.len());
        head[..length].copy_from_slice(&pin[..length]);
    }
    let rest: &mut WriteBytes<'_> = &mut |from| {
        let Some(segment) = cached.segment() else { return Ok(()) };
        let lower = &**stub.lower();
        let mut written = WrittenBack::new(core, lower);
        let mut left_at = lower.version()?;
        let wait_until_wanted = |limit| {
            // It waits, and not for the PFS.
            core.memory_only.steps().moved(cached.id());
            file.wait_until_wanted(limit) || stub.copied().is_none_or(|copied| copied.is_over())
        };
        let mut writing = file.is_in_background().then(|| Writing::begin(core, &wait_until_wanted));
        for block in 0..segment.blocks() {
            let start = block * segment.block_bytes();
            let end = segment.size().min(start + segment.block_bytes());
            let mut at = from.max(start);
            while at < end && segment.state(block) != BlockState::Absent {
                let most = writing.as_mut().map_or(end - at, |writing| writing.next(end - at));
                // Not while it waits: what frees a block waits for its pins.
                let Some(pin) = pin_unless_hole(segment, block)? else { break };
                let (from, upto) = (at - start, (at - start + most).min(pin.len() as u64));
                let Some(bytes) = pin.get(from as usize..upto as usize) else { break };
                look_amid(stub, &left_at, seen)?;
                lower.write_at(at, bytes)?;
                left_at = lower.version()?;
                written.next(at, bytes)?;
                at += bytes.len() as u64;
                core.counters.pfs_written_bytes.add(bytes.len() as u64);
                core.memory_only.steps().moved(cached.id());
            }
        }
        written.end()?;
        let time_ns =
            stub.kept_ns().map_or_else(|| lower.version().map(|it| it.modified_ns), Ok)?;
        let is_read = stub.copied().is_some_and(|copied| copied.given_token().is_some());
        let may_wait = is_read || file.is_in_background();
        seen.settled_ns = is_settled(core, time_ns, may_wait).then_some(time_ns);
        // Right before its times are set.
        look_amid(stub, &left_at, seen)
    };
    let take = |copied: &Copied| match core.cluster() {
        Some(cluster) => cluster.take_as_owner(core, copied, stub.lower()),
        None => Ok(Box::new(|| ()) as Afterwards<'_>),
    };
    stub.write_back(mark, head, rest, &take)
}

/// Looks at a file after a step of its write-back, which left it at a version. A new name moves the
/// time of change alone.
fn look_amid(stub: &Stub, left_at: &Version, seen: &mut Seen) -> Result<()> {
    let now = stub.lower().version()?;
    if now.has_bytes_of(left_at) {
        return Ok(());
    }
    if now.size == left_at.size && were_set(&now) {
        stub.note_times(Some(times_of(&**stub.lower())?));
    } else {
        stub.note_times(None);
        seen.changed_amid = true;
    }
    Ok(())
}

/// Whether a later write of a file would have another time stamp than this one.
fn is_settled(core: &Core, time_ns: i128, may_wait: bool) -> bool {
    let is_past = || core.pfs.now_ns() - time_ns > i128::from(core.tick_ns());
    let may_come = may_wait && Duration::from_nanos(core.tick_ns()) < SETTLE_MAX;
    let begun = Instant::now();
    while may_come && !is_past() && begun.elapsed() < SETTLE_MAX {
        std::thread::sleep(SETTLE_INTERVAL);
    }
    is_past()
}

/// Keeps the page cache from filling with what is written back: it is charged to the control group
/// of the node, beside the memory that is to be freed, and dirty pages cannot be freed. One block
/// waits while the next is written.
pub struct WrittenBack<'a> {
    lower: &'a dyn LowerFile,
    last: Option<(u64, u64)>,
    check: Check<'a>,
}

impl<'a> WrittenBack<'a> {
    /// Of a file of which nothing is written yet.
    pub fn new(core: &'a Core, lower: &'a dyn LowerFile) -> Self {
        WrittenBack { lower, last: None, check: Check::new(core, lower) }
    }

    /// This was written just now.
    pub fn next(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let length = bytes.len() as u64;
        self.check.note(offset, bytes);
        self.lower.start_writeback(offset, length);
        let before = self.last.replace((offset, length));
        self.clean(before)
    }

    /// All is written: it is looked whether it is there, where that is asked for.
    pub fn end(mut self) -> Result<()> {
        let last = self.last.take();
        self.clean(last)?;
        self.check.look()
    }

    fn clean(&self, range: Option<(u64, u64)>) -> Result<()> {
        let Some((offset, length)) = range else { return Ok(()) };
        // An error that this wait reports is not reported by the sync that follows.
        self.lower.write_back(offset, length)?;
        self.lower.drop_cached(offset, length);
        Ok(())
    }
}

/// A block of a memory-only file; `None` where nothing was ever written.
fn pin_unless_hole(segment: &Segment, block: u64) -> Result<Option<BlockPin>> {
    let pin = segment.pin_block(block);
    if pin.is_none() && segment.state(block) != BlockState::Absent {
        let what = "writing a memory-only file back";
        return Err(Error::new(ErrorKind::Internal, what, "a block of it cannot be mapped")
            .remedy("raise vm.max_map_count, or free memory; the bytes stay in memory"));
    }
    Ok(pin)
}
