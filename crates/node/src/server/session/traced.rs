//! Request tracing on a client's connection: the trace that the client started, and the records
//! that a client library sends of its own requests.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidepool_pfs::cost;
use tidepool_proto::admin::AdminReply;
use tidepool_proto::trace::{
    Front, LibraryRecord, TraceBatch, TraceRecord, TraceRequest, TraceStream, TraceWish, Tracer,
    microseconds, now_us,
};
use tidepool_proto::wire::socket::Frame;
use tidepool_proto::wire::{Reply, Request};
use tidepool_proto::{Error, ErrorKind, Result};

use super::{Answer, Session};

/// How long a watcher waits for a request at a time.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bytes that one request of a client can move.
const BYTES_MAX: u64 = 1 << 40;
/// Requests that one message of a client can say it dropped.
const DROPPED_MAX: u64 = 1 << 20;

/// The tracer, and the trace that lives on this connection.
pub(super) struct Watching {
    tracer: Option<Arc<dyn Tracer>>,
    stream: Mutex<Option<Arc<dyn TraceStream>>>,
}

impl Watching {
    pub(super) fn new(tracer: Option<Arc<dyn Tracer>>) -> Watching {
        Watching { tracer, stream: Mutex::default() }
    }

    /// Answers a watcher.
    pub(super) fn answer(
        &self,
        request: TraceRequest,
        file: Option<OwnedFd>,
        user_id: u32,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Answer> {
        let operation = "tracing requests";
        let stream = self.stream.lock().clone();
        let stream = || {
            let none = || Error::new(ErrorKind::InvalidInput, operation, "no trace was started");
            stream.ok_or_else(none)
        };
        let reply = match request {
            TraceRequest::Start { process_id, .. } => {
                let none = || Error::new(ErrorKind::Unsupported, operation, "this node has none");
                let tracer = self.tracer.as_ref().ok_or_else(none)?;
                self.end();
                let started = tracer.start(TraceWish { user_id, process_id, file })?;
                *self.stream.lock() = Some(Arc::from(started));
                AdminReply::Done
            }
            TraceRequest::Next => AdminReply::Traced(stream()?.next(PATIENCE, go_on)),
            TraceRequest::Stop => {
                stream()?.stop();
                AdminReply::Traced(TraceBatch::default())
            }
        };
        Ok(Reply::Admin(reply).into())
    }

    /// The trace of this connection is over.
    pub(super) fn end(&self) {
        let ended = self.stream.lock().take();
        drop(ended);
    }

    fn tracer_if_on(&self) -> Option<&Arc<dyn Tracer>> {
        self.tracer.as_ref().filter(|tracer| tracer.is_on())
    }
}

impl Session {
    /// The page that tells the client whether anybody watches.
    pub(in super::super) fn trace_page(&self) -> Option<OwnedFd> {
        self.watching.tracer.as_ref()?.page()
    }

    /// Answers a request; while somebody watches, with the time that it waited for the PFS. The
    /// client makes a record of it.
    pub(in super::super) fn answer_traced(
        &self,
        request: Request,
        frame: Frame,
        scratch: &mut Vec<u8>,
    ) -> Answer {
        let answer = || self.answer(request, &frame.payload, frame.descriptors, scratch);
        if self.watching.tracer_if_on().is_none() {
            return answer();
        }
        let (mut answer, cost) = cost::of(answer);
        answer.pfs_us = cost.map_or(0, |cost| microseconds(cost.waited));
        answer
    }

    /// Takes what the client tells of its requests. Whose they are is the kernel's word, what they
    /// did is the client's.
    pub(in super::super) fn take_traced(
        &self,
        front: Front,
        records: Vec<LibraryRecord>,
        dropped: u64,
        process_id: Option<u32>,
    ) {
        // Also where the trace was just stopped: they are of the time before.
        let Some(tracer) = &self.watching.tracer else { return };
        let front = if front == Front::Hadoop { Front::Hadoop } else { Front::Library };
        let user_id = self.user.user_id;
        if dropped > 0 {
            tracer.note_dropped(dropped.min(DROPPED_MAX), user_id);
        }
        let now_us = now_us();
        for told in records {
            // A request cannot have taken longer than since it began, nor moved more than it was
            // asked for.
            let elapsed_us = told.elapsed_us.min(now_us.saturating_sub(told.begun_us));
            let bytes = told.bytes.min(told.length.unwrap_or(BYTES_MAX)).min(BYTES_MAX);
            let file = self.find(told.handle).ok();
            let path = match &file {
                Some(handle) => tracer.path_of(handle.file.lower()),
                None => told.path.map(|path| self.below_root(path)),
            };
            tracer.record(TraceRecord {
                begun_us: told.begun_us,
                path,
                inode: file.map_or(0, |handle| handle.file.version().id.inode),
                offset: told.offset,
                length: told.length,
                bytes,
                level: told.level,
                errno: told.errno,
                elapsed_us,
                pfs_us: told.pfs_us.min(elapsed_us),
                ..TraceRecord::begun(front, told.operation, user_id, process_id.unwrap_or_default())
            });
        }
    }

    fn below_root(&self, path: String) -> String {
        let root = self.admin.pfs_root();
        let below = std::path::Path::new(&path).strip_prefix(root).ok();
        below.map_or(path.clone(), |below| below.to_string_lossy().into_owned())
    }
}
