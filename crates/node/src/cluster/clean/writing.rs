//! [`Writing`]: which packets of a file that is being written burst buffers have, and which they
//! lack. It moves no bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;
use tidepool_buffer::placement::Placement;

use super::super::copies::owing::{BLOCK_PACKETS, PACKET_BYTES};
use crate::file::ranges::Ranges;

/// Packets that are sent at a time.
pub const TOGETHER: u64 = 16;

/// What the bytes of a packet are known by.
pub type Digest = [u8; 16];

/// Packets of a file that is written, under one name. A packet that changes is sent again.
#[derive(Debug)]
pub struct Writing {
    /// What its packets are called.
    pub epoch: u64,
    /// How they are spread over the servers.
    pub placement: Placement,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Packets that changed since they were sent, if they were.
    changed: Ranges,
    /// Packets that the servers have as they are.
    stored: BTreeMap<u64, Digest>,
    /// Changes so far.
    changes: u64,
    /// Changes after which what this node has of it was compared with the PFS.
    compared: Option<u64>,
    is_over: bool,
    /// It waits in the queue, or a thread has it.
    is_queued: bool,
    /// It was put there again since a thread took it.
    is_asked_again: bool,
    is_closed: bool,
}

/// Packets that a range touches.
fn touched(range: Range<u64>) -> Range<u64> {
    range.start / PACKET_BYTES..range.end.div_ceil(PACKET_BYTES)
}

impl State {
    fn change(&mut self, packets: Range<u64>) {
        self.forget(packets.clone());
        self.changed.add(packets);
    }

    fn forget(&mut self, packets: Range<u64>) {
        let forgotten: Vec<u64> = self.stored.range(packets).map(|(packet, _)| *packet).collect();
        for packet in forgotten {
            self.stored.remove(&packet);
        }
    }

    /// A file that grows beyond its end changes the packet there.
    fn change_end(&mut self, size_before: u64) {
        if !size_before.is_multiple_of(PACKET_BYTES) {
            self.change(touched(size_before..size_before + 1));
        }
    }
}

impl Writing {
    /// Of no packets yet.
    pub fn new(epoch: u64, placement: Placement) -> Self {
        let state = State {
            changed: Ranges::exact(),
            stored: BTreeMap::new(),
            changes: 0,
            compared: None,
            is_over: false,
            is_queued: false,
            is_asked_again: false,
            is_closed: false,
        };
        Writing { epoch, placement, state: Mutex::new(state) }
    }

    /// Notes a write to a file that had so many bytes before.
    pub fn note_write(&self, range: Range<u64>, size_before: u64) {
        let mut state = self.state.lock();
        state.changes += 1;
        if range.start > size_before {
            state.change_end(size_before);
        }
        state.change(touched(range));
    }

    /// Notes that a file of so many bytes was cut, or made longer, to `size`.
    pub fn note_size(&self, size: u64, size_before: u64) {
        let mut state = self.state.lock();
        state.changes += 1;
        let beyond = size.div_ceil(PACKET_BYTES)..u64::MAX;
        state.changed.remove(beyond.clone());
        state.forget(beyond);
        state.change_end(size.min(size_before));
    }

    /// Notes another change, after which nothing is known of packets.
    pub fn note_other(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        (state.changed, state.stored) = (Ranges::exact(), BTreeMap::new());
        state.is_over = true;
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// After so many changes what this node has of it was compared with the PFS.
    pub fn note_compared(&self, changes: u64) {
        self.state.lock().compared = Some(changes);
    }

    /// Whether it is still to be found out whether the PFS has what this node has: another node may
    /// have written to the file in the same moment, which no time stamp shows.
    pub fn is_doubtful(&self) -> bool {
        let state = self.state.lock();
        state.compared != Some(state.changes)
    }

    /// Whether enough packets changed that some are worth to be sent.
    pub fn is_due(&self) -> bool {
        let state = self.state.lock();
        let mut count = 0;
        !state.is_over
            && state.changed.iter().any(|run| {
                count += run.end - run.start;
                count > TOGETHER
            })
    }

    /// Puts it into a queue: whether it is not there yet. `is_closed`: all of it is to be sent, and
    /// told of.
    pub fn enqueue(&self, is_closed: bool) -> bool {
        let mut state = self.state.lock();
        state.is_closed |= is_closed;
        state.is_asked_again = state.is_queued;
        !std::mem::replace(&mut state.is_queued, true)
    }

    /// A thread takes it out of the queue, and is the only one that sends of it; whether all of it
    /// is to be sent.
    pub fn begin(&self) -> bool {
        let mut state = self.state.lock();
        state.is_asked_again = false;
        std::mem::take(&mut state.is_closed)
    }

    /// It did not get into the queue after all.
    pub fn left_out(&self) {
        self.state.lock().is_queued = false;
    }

    /// The thread is done; whether it goes into the queue again.
    pub fn done(&self) -> bool {
        let mut state = self.state.lock();
        state.is_queued = state.is_asked_again;
        state.is_queued
    }

    /// Packets to be sent next, of one block, from `at` on. Where the file is still being written
    /// they are whole ones.
    pub fn next(&self, at: u64, size: u64, is_closed: bool) -> Option<Range<u64>> {
        let state = self.state.lock();
        let end = if is_closed { size.div_ceil(PACKET_BYTES) } else { size / PACKET_BYTES };
        let run = state.changed.iter().find(|run| run.end > at)?;
        let from = run.start.max(at);
        let of_block = (from / BLOCK_PACKETS + 1) * BLOCK_PACKETS;
        let upto = run.end.min(end).min(of_block).min(from + TOGETHER);
        (!state.is_over && from < upto).then_some(from..upto)
    }

    /// This packet is being sent, as it is now.
    pub fn take(&self, packet: u64) {
        self.state.lock().changed.remove(packet..packet + 1);
    }

    /// Packets that were taken are there; those that changed since are not.
    pub fn note_stored(&self, packets: impl Iterator<Item = (u64, Digest)>) {
        let mut state = self.state.lock();
        for (packet, digest) in packets {
            if state.changed.last_within(packet..packet + 1).is_none() {
                state.stored.insert(packet, digest);
            }
        }
    }

    /// No more of it is sent, nor told of.
    pub fn end(&self) {
        self.state.lock().is_over = true;
    }

    /// The packets that the servers had as they are now, and how many changes there were by then.
    pub fn stored(&self) -> (BTreeMap<u64, Digest>, u64) {
        let state = self.state.lock();
        (state.stored.clone(), state.changes)
    }

    /// Whether no more of it is sent, nor told of.
    pub fn is_over(&self) -> bool {
        self.state.lock().is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: Digest = [7; 16];

    fn writing() -> Writing {
        Writing::new(1, Placement::Block)
    }

    fn send(writing: &Writing, packets: Range<u64>) {
        packets.clone().for_each(|packet| writing.take(packet));
        writing.note_stored(packets.map(|packet| (packet, DIGEST)));
    }

    fn stored(writing: &Writing) -> Option<Vec<u64>> {
        Some(writing.stored().0.into_keys().collect()).filter(|it: &Vec<u64>| !it.is_empty())
    }

    #[test]
    fn whole_packets_go_while_a_file_is_written_and_the_rest_when_it_is_closed() {
        let writing = writing();
        let size = 20 * PACKET_BYTES + 7;
        writing.note_write(0..size, 0);
        assert!(writing.is_due());
        assert_eq!(writing.next(0, size, false), Some(0..16));
        send(&writing, 0..16);
        assert!(!writing.is_due());
        assert_eq!(writing.next(16, size, false), Some(16..20));
        assert_eq!(writing.next(20, size, false), None, "its end may grow");
        assert_eq!(writing.next(20, size, true), Some(20..21));
        send(&writing, 16..21);
        assert_eq!(writing.next(0, size, true), None);
        assert_eq!(stored(&writing), Some((0..21).collect()));
        writing.note_write(0..1, size);
        assert_eq!(stored(&writing), Some((1..21).collect()), "it is not what it was");
        assert_eq!(writing.changes(), 2);
    }

    #[test]
    fn packets_of_two_blocks_go_apart() {
        let (writing, start) = (writing(), (BLOCK_PACKETS - 2) * PACKET_BYTES);
        let end = start + 4 * PACKET_BYTES;
        writing.note_write(start..end, 0);
        assert_eq!(writing.next(0, end, true), Some(BLOCK_PACKETS - 2..BLOCK_PACKETS));
        let next = writing.next(BLOCK_PACKETS, end, true);
        assert_eq!(next, Some(BLOCK_PACKETS..BLOCK_PACKETS + 2));
    }

    #[test]
    fn what_changes_after_it_was_taken_is_not_there() {
        let writing = writing();
        writing.note_write(0..2 * PACKET_BYTES, 0);
        (0..2).for_each(|packet| writing.take(packet));
        writing.note_write(5..6, 2 * PACKET_BYTES);
        writing.note_stored([(0, DIGEST), (1, DIGEST)].into_iter());
        assert_eq!(writing.next(0, 2 * PACKET_BYTES, true), Some(0..1));
        assert_eq!(stored(&writing), Some(vec![1]));
    }

    #[test]
    fn the_packet_at_an_end_that_moves_changes() {
        let writing = writing();
        let size = 2 * PACKET_BYTES + 9;
        writing.note_write(0..size, 0);
        send(&writing, 0..3);
        // Behind a hole: what was the end is longer now.
        writing.note_write(9 * PACKET_BYTES..10 * PACKET_BYTES, size);
        assert_eq!(writing.next(0, 10 * PACKET_BYTES, true), Some(2..3));
        send(&writing, 2..3);
        send(&writing, 9..10);
        writing.note_size(PACKET_BYTES + 1, 10 * PACKET_BYTES);
        assert_eq!(writing.next(0, PACKET_BYTES + 1, true), Some(1..2), "its end is cut");
        send(&writing, 1..2);
        writing.note_size(5 * PACKET_BYTES, PACKET_BYTES + 1);
        assert_eq!(writing.next(0, 5 * PACKET_BYTES, true), Some(1..2), "it has zeros behind it");
        assert_eq!(stored(&writing), Some(vec![0]));
    }

    #[test]
    fn nothing_is_told_of_what_failed_or_has_no_packets() {
        let writing = writing();
        assert_eq!(stored(&writing), None);
        writing.note_write(0..PACKET_BYTES, 0);
        send(&writing, 0..1);
        writing.end();
        assert_eq!((writing.is_over(), writing.next(0, PACKET_BYTES, true)), (true, None));
    }

    #[test]
    fn one_thread_has_it_at_a_time() {
        let writing = writing();
        assert!(writing.enqueue(false) && !writing.enqueue(true));
        assert!(writing.begin(), "all of it");
        assert!(!writing.enqueue(false), "a thread has it");
        assert!(writing.done(), "it goes there again");
        assert!(!writing.begin() && !writing.done());
        assert!(writing.enqueue(false));
    }
}
