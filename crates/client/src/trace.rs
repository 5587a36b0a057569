//! Request tracing of the client library: [`Tracing`] records the requests of one connection and
//! sends them to the node. The node learns of hits in no other way: they need no message. While no
//! trace is under way, a request costs a load of one word of shared memory.
//!
//! Records are sent by a thread that lives as long as the trace, and before a file is closed. Reads
//! do not wait for that: records beyond a bound are dropped and counted.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tidepool_pfs::cost;
use tidepool_proto::trace::{
    LibraryRecord, Operation, ServedBy, TRACE_DELAY_MAX, microseconds, now_us,
};
use tidepool_proto::wire::Request;
use tidepool_proto::{BytesByLevel, Result};

use crate::connection::Connection;
use crate::trace_state::Tracing;

/// Records that wait to be sent, at most.
const RECORDS_MAX: usize = 16 << 10;
/// Records of one message, which are no longer than `RECORD_BYTES_MAX` without their path.
const MESSAGE_RECORDS_MAX: usize = 32;
const RECORD_BYTES_MAX: usize = 72;
/// Bytes of records of one message, with their paths: it fits its frame.
const MESSAGE_BYTES_MAX: usize = 3 << 10;
/// Longest path that is told, in bytes.
const PATH_BYTES_MAX: usize = 512;
/// Time for a message to get to the node.
const SEND_TIMEOUT: Duration = Duration::from_millis(50);

const _: () = assert!(MESSAGE_RECORDS_MAX * RECORD_BYTES_MAX <= MESSAGE_BYTES_MAX);
const _: () = assert!(PATH_BYTES_MAX + RECORD_BYTES_MAX <= MESSAGE_BYTES_MAX);

/// What came of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes read or written.
    pub(crate) bytes: u64,
    /// Levels of bytes that were read.
    pub(crate) levels: BytesByLevel,
    /// The file that was opened.
    pub(crate) handle: Option<u64>,
}

/// A request about to be made.
#[derive(Debug)]
pub(crate) struct Asked {
    /// What for.
    pub(crate) operation: Operation,
    /// The open file; 0 for none.
    pub(crate) handle: u64,
    /// The path of a file that is not open yet.
    pub(crate) path: Option<String>,
    /// Where and how much, in bytes.
    pub(crate) range: (Option<u64>, Option<u64>),
}

impl Tracing {
    fn add(&self, record: LibraryRecord, connection: &Arc<Connection>) {
        let mut kept = self.kept.lock();
        if kept.records.len() >= RECORDS_MAX {
            kept.dropped += 1;
            return;
        }
        kept.records.push(record);
        if kept.has_sender {
            return;
        }
        kept.has_sender = true;
        drop(kept);
        let weak = Arc::downgrade(connection);
        let builder = std::thread::Builder::new().name("tidepool-trace".to_owned());
        if builder.stack_size(64 << 10).spawn(move || send_now_and_then(&weak)).is_err() {
            self.kept.lock().has_sender = false;
        }
    }

    /// Sends what is recorded, as far as the socket takes it; what it does not take is kept.
    pub(crate) fn send(&self, connection: &Connection) {
        let Some(_sending) = self.sending.try_lock_for(SEND_TIMEOUT) else { return };
        let (records, mut dropped) = {
            let mut kept = self.kept.lock();
            (std::mem::take(&mut kept.records), std::mem::take(&mut kept.dropped))
        };
        let mut rest = &records[..];
        while !rest.is_empty() || dropped > 0 {
            let (now, later) = rest.split_at(fitting(rest));
            let message = Request::Traced { front: self.front, records: now.to_vec(), dropped };
            if !connection.tell(&message, SEND_TIMEOUT) {
                break;
            }
            (rest, dropped) = (later, 0);
        }
        if rest.is_empty() && dropped == 0 {
            return;
        }
        let mut kept = self.kept.lock();
        let room = RECORDS_MAX.saturating_sub(kept.records.len()).min(rest.len());
        kept.dropped += dropped + (rest.len() - room) as u64;
        kept.records.splice(..0, rest[..room].iter().cloned());
    }

    /// Whether the thread that sends has nothing to do any more; it then ends.
    fn ends(&self) -> bool {
        let mut kept = self.kept.lock();
        let ends = !self.is_on() && kept.records.is_empty();
        kept.has_sender = !ends;
        ends
    }
}

/// How many of the records fit a message.
fn fitting(records: &[LibraryRecord]) -> usize {
    let mut bytes = 0;
    let fits = records.iter().take(MESSAGE_RECORDS_MAX).take_while(|record| {
        bytes += RECORD_BYTES_MAX + record.path.as_ref().map_or(0, String::len);
        bytes <= MESSAGE_BYTES_MAX
    });
    fits.count()
}

/// Runs while somebody watches. The connection may go before.
fn send_now_and_then(connection: &Weak<Connection>) {
    loop {
        std::thread::sleep(TRACE_DELAY_MAX);
        let Some(connection) = connection.upgrade().filter(|it| it.is_alive()) else { return };
        connection.tracing().send(&connection);
        if connection.tracing().ends() {
            return;
        }
    }
}

/// Makes a request by `work` and records it; `outcome` is what came of it, or nothing where it was
/// no request of its own after all. What is a part of another request is not recorded.
#[cold]
pub(crate) fn recorded<T>(
    connection: &Arc<Connection>,
    asked: Asked,
    work: impl FnOnce() -> Result<T>,
    outcome: impl FnOnce(&T) -> Option<Outcome>,
) -> Result<T> {
    let (begun_us, begun) = (now_us(), Instant::now());
    let (done, cost) = cost::of(work);
    let Some(cost) = cost else { return done };
    let elapsed = begun.elapsed();
    let (outcome, errno) = match &done {
        Ok(brought) => match outcome(brought) {
            Some(outcome) => (outcome, 0),
            None => return done,
        },
        Err(error) => (Outcome::default(), error.errno()),
    };
    let handle = outcome.handle.unwrap_or(asked.handle);
    let record = LibraryRecord {
        operation: asked.operation,
        handle,
        path: asked.path.filter(|_| handle == 0).map(shortened),
        begun_us,
        offset: asked.range.0,
        length: asked.range.1,
        bytes: outcome.bytes,
        level: ServedBy::of(asked.operation, &outcome.levels, cost.waited),
        errno,
        elapsed_us: microseconds(elapsed),
        pfs_us: microseconds(cost.waited.min(elapsed)),
    };
    connection.tracing().add(record, connection);
    done
}

fn shortened(mut path: String) -> String {
    let mut end = path.len().min(PATH_BYTES_MAX);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    path.truncate(end);
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_proto::trace::Front;

    #[test]
    fn the_longest_records_fit_a_message() {
        let record = LibraryRecord {
            operation: Operation::Other,
            handle: u64::MAX,
            path: None,
            begun_us: u64::MAX,
            offset: Some(u64::MAX),
            length: Some(u64::MAX),
            bytes: u64::MAX,
            level: ServedBy::Other,
            errno: i32::MIN,
            elapsed_us: u64::MAX,
            pfs_us: u64::MAX,
        };
        let named = LibraryRecord { path: Some(shortened("ü".repeat(9_999))), ..record.clone() };
        for records in [vec![record; 40], vec![named; 40]] {
            let count = fitting(&records);
            assert!((1..40).contains(&count));
            let records = records[..count].to_vec();
            let message = Request::Traced { front: Front::Library, records, dropped: u64::MAX };
            let bytes = message.encode(Vec::new()).unwrap().len();
            assert!(bytes <= tidepool_proto::wire::REQUEST_BODY_BYTES_MAX as usize, "{bytes}");
        }
    }
}
