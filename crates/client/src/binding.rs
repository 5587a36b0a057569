//! [`Binding`]: a file that is open at a node over one connection, with its handle, its segment or
//! its bytes. It ends with the connection, but for bytes that came whole; another one replaces it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tidepool_proto::wire::{Open, Opened, Reply, Request};
use tidepool_proto::{Access, BytesByLevel, Level, Version, WriteMode};

use crate::connection::{Brief, CallError, Connection, GoOn};
use crate::options::OpenOptions;
use crate::segment::Segment;

/// Longest file that is sent along with its open in bytes.
const INLINE_BYTES_MAX: u32 = 256 << 10;

/// Time for the node to answer before an open goes on without it; with its other steps an open
/// takes less than 2 s.
const OPEN_PATIENCE: Duration = Duration::from_millis(1900);

/// A small file that came with its open, as of that time.
#[derive(Debug)]
pub(crate) struct Inline {
    pub(crate) bytes: Vec<u8>,
    /// Where the node had it from.
    pub(crate) level: Level,
}

/// What an open does to the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// It created the file.
    pub(crate) created: bool,
    /// It cuts the file to nothing.
    pub(crate) truncate: bool,
}

/// Which process writes to an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// The node: changes are messages to it.
    Node,
    /// This process, past the node, in this mode.
    Client(WriteMode),
}

/// An open file of a node.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) connection: Arc<Connection>,
    pub(crate) handle: u64,
    pub(crate) version: Version,
    pub(crate) size: u64,
    /// What is written may end with the node.
    pub(crate) may_be_lost: bool,
    pub(crate) segment: Option<Segment>,
    pub(crate) inline: Option<Inline>,
    pub(crate) writer: Writer,
}

impl Binding {
    /// Opens the file behind `lower` at the node; `None` where that does not answer in time, which
    /// is short unless `until` says how long to wait.
    ///
    /// An open for reading may be given up while it is under way. One that writes may not: the node
    /// could still cut the file. So it is asked for only of a node that just answered.
    pub(crate) fn open(
        connection: Arc<Connection>,
        lower: &OwnedFd,
        options: &OpenOptions,
        manner: Manner,
        map_segments: bool,
        until: Option<GoOn<'_>>,
    ) -> Result<Option<Binding>, CallError> {
        let request = Request::Open(Open {
            access: options.access,
            read_mode: options.read_mode,
            write_mode: options.write_mode,
            created: manner.created,
            append: options.append,
            truncate: manner.truncate,
            want_descriptors: map_segments && options.access.reads(),
            inline_bytes_max: if options.access == Access::Read { INLINE_BYTES_MAX } else { 0 },
        });
        let descriptors = [lower.as_fd()];
        let answer = match (options.access, until) {
            (Access::Read, Some(until)) => connection.call_until(&request, &descriptors, until)?,
            (Access::Read, None) => {
                connection.call_briefly(Brief::Open, &request, &descriptors, OPEN_PATIENCE)?
            }
            (_, until) => {
                let answers = match until {
                    Some(until) => connection.answers_while(until),
                    None => connection.answers(OPEN_PATIENCE),
                };
                answers.then(|| connection.call(&request, &[], &descriptors)).transpose()?
            }
        };
        let Some(answer) = answer else { return Ok(None) };
        let Reply::Opened(opened) = answer.reply else {
            return Err(connection.unexpected("an open"));
        };
        let Opened { handle, version, size, may_be_lost, segment, inline, written_by_client } =
            opened;
        let descriptors = answer.descriptors;
        // Without a mapping (no memory for it, say) reads go by messages.
        let segment = segment.and_then(|layout| Segment::new(layout, descriptors).ok());
        let inline = inline
            .filter(|_| answer.payload.len() as u64 == size)
            .map(|levels| Inline { bytes: answer.payload, level: farthest(&levels) });
        Ok(Some(Binding {
            connection,
            handle,
            version,
            size,
            may_be_lost,
            segment,
            inline,
            writer: written_by_client.map_or(Writer::Node, Writer::Client),
        }))
    }

    /// The same open file with its segment handed out anew.
    pub(crate) fn renewed(&self) -> Result<Binding, CallError> {
        let request = Request::Descriptors { handle: self.handle };
        let answer = self.connection.call(&request, &[], &[])?;
        let Reply::Descriptors { segment } = answer.reply else {
            return Err(self.connection.unexpected("a request for descriptors"));
        };
        let segment = segment.and_then(|layout| Segment::new(layout, answer.descriptors).ok());
        Ok(Binding {
            connection: Arc::clone(&self.connection),
            handle: self.handle,
            version: self.version,
            size: self.size,
            may_be_lost: self.may_be_lost,
            segment,
            inline: None,
            writer: self.writer,
        })
    }

    /// The segment, if the node is there to vouch for it.
    pub(crate) fn living_segment(&self) -> Option<&Segment> {
        self.segment.as_ref().filter(|_| self.connection.is_alive())
    }
}

/// The farthest level that bytes came from: nothing is said to be nearer than it was.
fn farthest(levels: &BytesByLevel) -> Level {
    let mut all = Level::ALL.into_iter().rev();
    all.find(|level| levels.get(*level) > 0).unwrap_or(Level::Store)
}
