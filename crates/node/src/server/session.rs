//! [`Session`]: what one connection has (open files, borrowed ranges, a transfer buffer), and what
//! its requests do. Handle numbers are looked up here and nowhere else, so those of one client mean
//! nothing to another. Reads and writes no socket.

mod places;
mod traced;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::wire::{
    Open, Opened, REPLY_PAYLOAD_BYTES_MAX, Reply, Request, SegmentLayout, TRANSFER_WRITE_BYTES_MAX,
    Want, WriteSource,
};
use tidepool_proto::{
    Access, BytesByLevel, ChangeTimes, Error, ErrorKind, FileService, Identity, MetadataWatch,
    OpenFile, OpenRequest, PassthroughPin, Result,
};

use super::authority;
use super::limits::{BorrowTicket, ClientQuotas, Ticket};
use places::{BorrowPlace, OpeningPlace};
use traced::Watching;

/// Longest read that asks for residency, in bytes: bounds how long one request takes.
const RESIDENT_READ_BYTES_MAX: u32 = 64 << 20;
/// Metadata changes of one connection under way; beyond them the oldest are as if never told of.
const NOTES_MAX: usize = 32;

/// An answer on its way out.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) payload: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Microseconds of waiting for the PFS, while somebody watches.
    pub(super) pfs_us: u64,
    /// For the memory of the payload, until it is sent.
    _buffer: Option<Ticket>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Answer { reply, payload: Vec::new(), descriptors: Vec::new(), pfs_us: 0, _buffer: None }
    }
}

impl Answer {
    fn with(reply: Reply, descriptors: Vec<OwnedFd>) -> Answer {
        Answer { descriptors, ..reply.into() }
    }
}

struct Handle {
    /// While the client writes by itself. Dropped first: the file is taken back while it is open.
    _written_by_client: Option<Arc<dyn PassthroughPin>>,
    file: Arc<dyn OpenFile>,
    access: Access,
    segment_exported: AtomicBool,
    ticket: Arc<Ticket>,
}

pub(super) struct Borrow {
    _pin: Arc<dyn PassthroughPin>,
    _ticket: BorrowTicket,
    /// The file stays open with its borrow, so it counts as open.
    _open: Arc<Ticket>,
}

/// A file that the client is about to change.
struct Note {
    number: u64,
    version: Box<dyn MetadataWatch>,
    _ticket: Ticket,
}

#[derive(Default)]
struct Held {
    handles: HashMap<u64, Arc<Handle>>,
    /// Opens that are under way, so that many at once do not pass the limit.
    opening: usize,
    borrows: HashMap<u64, Borrow>,
    borrowing: usize,
    notes: VecDeque<Note>,
    numbers_given: u64,
}

/// The state of one connection.
pub(super) struct Session {
    service: Arc<dyn FileService>,
    admin: Arc<dyn AdminService>,
    quotas: Arc<ClientQuotas>,
    user: Identity,
    /// Nobody waits for long requests any more.
    ended: AtomicBool,
    held: Mutex<Held>,
    buffer: Mutex<Option<Arc<OwnedFd>>>,
    watching: Watching,
}

impl Session {
    pub(super) fn new(
        service: Arc<dyn FileService>,
        admin: Arc<dyn AdminService>,
        quotas: Arc<ClientQuotas>,
        user: Identity,
    ) -> Self {
        let (ended, held, buffer) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        let watching = Watching::new(service.tracer());
        Session { service, admin, quotas, user, ended, held, buffer, watching }
    }

    /// Has requests that bring much in end soon.
    pub(super) fn hurry(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// Whether the request is answered without waiting for anything, so that no other thread need
    /// stand by for further requests.
    pub(super) fn is_quick(&self, request: &Request) -> bool {
        match request {
            Request::Facts { .. } | Request::Descriptors { .. } | Request::RegisterBuffer => true,
            Request::Read { handle, offset, length, .. } => self
                .find(*handle)
                .is_ok_and(|handle| handle.file.is_resident(*offset, *length as usize)),
            other => !other.is_answered(),
        }
    }

    /// Does what a request without an answer asks for. Called in the order of the requests.
    pub(super) fn note(&self, request: &Request) {
        match *request {
            Request::Prefetch { handle, offset, length } => {
                if let Ok(handle) = self.find(handle)
                    && handle.access.reads()
                    && check_range(offset, length).is_ok()
                {
                    handle.file.prefetch(offset, length);
                }
            }
            Request::Advise { handle, advice } => {
                if let Ok(handle) = self.find(handle) {
                    handle.file.advise(advice);
                }
            }
            Request::Close { handle, mapped_bytes } => {
                let closed = self.held.lock().handles.remove(&handle);
                if let Some(closed) = closed {
                    closed.file.count_mapped(mapped_bytes);
                }
            }
            Request::Release { borrow } => {
                let borrow = self.held.lock().borrows.remove(&borrow);
                drop(borrow);
            }
            _ => {}
        }
    }

    /// Answers a request.
    pub(super) fn answer(
        &self,
        request: Request,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
        scratch: &mut Vec<u8>,
    ) -> Answer {
        let result = match request {
            Request::Open(open) => self.open(&open, descriptors),
            Request::Read { handle, offset, length, want } => {
                self.read(handle, offset, length, want)
            }
            Request::RegisterBuffer => self.register_buffer(descriptors),
            Request::Write { handle, offset, source } => {
                self.write(handle, offset, source, payload, scratch)
            }
            Request::Admin(request) => self.administer(request, descriptors),
            Request::NoteVersion => self.watch_metadata(descriptors),
            Request::MetadataChanged { note, times } => self.metadata_changed(note, times),
            Request::Borrow { handle, offset, length } => self.borrow(handle, offset, length),
            Request::Descriptors { handle } => self.descriptors(handle),
            other => self.file_operation(&other),
        };
        result.unwrap_or_else(|error| Reply::Failed((&error).into()).into())
    }

    fn file_operation(&self, request: &Request) -> Result<Answer> {
        match *request {
            Request::Sync { handle, data_only } => self.find(handle)?.file.sync(data_only)?,
            Request::Flush { handle } => self.find(handle)?.file.flush()?,
            Request::SetSize { handle, size } => {
                check_range(size, 0)?;
                self.find_writable(handle)?.file.set_size(size)?;
            }
            Request::Allocate { handle, mode_bits, offset, length } => {
                check_range(offset, length)?;
                self.find_writable(handle)?.file.allocate(mode_bits, offset, length)?;
            }
            Request::Facts { handle } => {
                let handle = self.find(handle)?;
                let (version, size) = (handle.file.version_on_pfs(), handle.file.size()?);
                return Ok(Reply::Facts { version, size }.into());
            }
            _ => return Err(Error::new(ErrorKind::Internal, "answering", "a request left over")),
        }
        Ok(Reply::Done.into())
    }

    fn find(&self, number: u64) -> Result<Arc<Handle>> {
        self.held.lock().handles.get(&number).cloned().ok_or_else(|| {
            let detail = "no file of that number is open on this connection";
            Error::new(ErrorKind::InvalidInput, "looking for an open file", detail)
        })
    }

    fn find_readable(&self, number: u64) -> Result<Arc<Handle>> {
        let handle = self.find(number)?;
        if !handle.access.reads() {
            return Err(not_opened_for("reading"));
        }
        Ok(handle)
    }

    fn find_writable(&self, number: u64) -> Result<Arc<Handle>> {
        let handle = self.find(number)?;
        if !handle.access.writes() {
            return Err(not_opened_for("writing"));
        }
        Ok(handle)
    }

    fn open(&self, open: &Open, descriptors: Vec<OwnedFd>) -> Result<Answer> {
        let lower = only_descriptor(descriptors)?;
        authority::check_file(&lower, open.access)?;
        let place = OpeningPlace::take(self)?;
        self.service.check_open()?;
        let file = self.service.open(OpenRequest {
            lower,
            access: open.access,
            read_mode: open.read_mode,
            write_mode: open.write_mode,
            created: open.created,
            append: open.append,
            truncate: open.truncate,
            user_id: self.user.user_id,
            changes_as: Some(self.user.clone()),
        })?;
        if open.truncate && open.access.writes() {
            file.set_size(0)?;
        }
        let direct = if open.access.writes() { file.write_directly() } else { None };
        let size = file.size()?;
        let mut answer = Answer::from(Reply::Done);
        let mut segment = None;
        if open.want_descriptors && open.access.reads() {
            (segment, answer.descriptors) = exported(&*file)?;
        }
        let mut inline = None;
        let inline_bytes_max = open.inline_bytes_max.min(REPLY_PAYLOAD_BYTES_MAX);
        if segment.is_none() && open.access == Access::Read && size <= inline_bytes_max.into() {
            answer._buffer = Some(self.quotas.buffer(self.user.user_id, size)?);
            inline = whole_file(&*file, size, &mut answer.payload);
        }
        let version = file.version_on_pfs();
        let may_be_lost = file.may_be_lost();
        let written_by_client = direct.as_ref().map(|_| file.write_mode());
        let handle = place.fill(file, open.access, segment.is_some(), direct);
        answer.reply = Reply::Opened(Opened {
            handle,
            version,
            size,
            may_be_lost,
            segment,
            inline,
            written_by_client,
        });
        Ok(answer)
    }

    fn read(&self, handle: u64, offset: u64, length: u32, want: Want) -> Result<Answer> {
        let handle = self.find_readable(handle)?;
        check_range(offset, length.into())?;
        if want == Want::Resident && handle.segment_exported.load(Ordering::Acquire) {
            let length = length.min(RESIDENT_READ_BYTES_MAX) as usize;
            let outcome = handle.file.read_with(offset, length, &mut |_| {})?;
            let bytes = outcome.bytes as u64;
            return Ok(Reply::Resident { bytes, levels: outcome.levels }.into());
        }
        let wanted = u64::from(length.min(REPLY_PAYLOAD_BYTES_MAX));
        let length = wanted.min(handle.file.size()?.saturating_sub(offset));
        let buffer = self.quotas.buffer(self.user.user_id, length)?;
        let mut payload = vec![0; length as usize];
        let outcome = handle.file.read_at(offset, &mut payload)?;
        payload.truncate(outcome.bytes);
        let at_end = (outcome.bytes as u64) < wanted;
        let reply = Reply::Data { at_end, levels: outcome.levels };
        Ok(Answer { payload, _buffer: Some(buffer), ..reply.into() })
    }

    fn register_buffer(&self, descriptors: Vec<OwnedFd>) -> Result<Answer> {
        let buffer = only_descriptor(descriptors)?;
        authority::check_transfer_buffer(&buffer)?;
        *self.buffer.lock() = Some(Arc::new(buffer));
        Ok(Reply::Done.into())
    }

    fn write(
        &self,
        handle: u64,
        offset: u64,
        source: WriteSource,
        payload: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<Answer> {
        let handle = self.find_writable(handle)?;
        let mut _buffer = None;
        let data = match source {
            WriteSource::Payload => payload,
            WriteSource::Buffer { offset, length } => {
                check_transfer_length(length)?;
                _buffer = Some(self.quotas.buffer(self.user.user_id, length.into())?);
                self.copy_from_buffer(offset, length, scratch)?
            }
        };
        check_range(offset, data.len() as u64)?;
        let offset = handle.file.write_at(offset, data)?;
        Ok(Reply::Written { offset }.into())
    }

    /// The client may change its buffer at any time, so what is written (twice: to the store and
    /// to the PFS) is read from it once. `pread` cannot fault, whatever the client does with it.
    fn copy_from_buffer<'a>(
        &self,
        offset: u64,
        length: u32,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let operation = "reading the transfer buffer";
        let invalid = |detail: &str| Error::new(ErrorKind::InvalidInput, operation, detail);
        let buffer = self.buffer.lock().clone().ok_or_else(|| invalid("none is registered"))?;
        check_range(offset, length.into())?;
        let length = length as usize;
        if scratch.len() < length {
            scratch.resize(length, 0);
        }
        let mut filled = 0;
        while filled < length {
            let rest = &mut scratch[filled..length];
            match rustix::io::pread(&*buffer, rest, offset + filled as u64) {
                Ok(0) => return Err(invalid("the range is not within the buffer")),
                Ok(bytes) => filled += bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(invalid("the buffer fails").caused_by(error)),
            }
        }
        Ok(&scratch[..length])
    }

    fn administer(&self, request: AdminRequest, descriptors: Vec<OwnedFd>) -> Result<Answer> {
        authority::check_admin(&request, self.user.user_id)?;
        let descriptor = if authority::concerns_a_file(&request) {
            let descriptor = only_descriptor(descriptors)?;
            authority::check_file(&descriptor, Access::Read)?;
            if matches!(request, AdminRequest::Evict) {
                authority::check_evicts(&descriptor, self.user.user_id)?;
            }
            Some(descriptor)
        } else {
            None
        };
        if let AdminRequest::Trace(request) = request {
            let go_on = || self.goes_on();
            return self.watching.answer(request, descriptor, self.user.user_id, &go_on);
        }
        let attaches = matches!(&request, AdminRequest::Govern(govern) if govern.fence == 0);
        let user_id = self.user.user_id;
        let reply = self.admin.admin_while(request, descriptor, user_id, &|| self.goes_on())?;
        let pages = match &reply {
            AdminReply::Governed(governed) if attaches => {
                self.admin.control_pages(governed.fence)?.into()
            }
            AdminReply::Observed => vec![self.admin.observed_page()?],
            _ => return Ok(Reply::Admin(reply).into()),
        };
        Ok(Answer::with(Reply::Admin(reply), pages))
    }

    /// What a file was before a change is never the client's word: an inode number may be another
    /// file's by then, and a user who may write a file now may not have had access to its former
    /// bytes.
    fn watch_metadata(&self, descriptors: Vec<OwnedFd>) -> Result<Answer> {
        let lower = only_descriptor(descriptors)?;
        authority::check_vouches(&lower, self.user.user_id)?;
        let ticket = self.quotas.handle(self.user.user_id)?;
        let version = self.service.watch_metadata(lower)?;
        let mut held = self.held.lock();
        held.numbers_given += 1;
        let number = held.numbers_given;
        held.notes.push_back(Note { number, version, _ticket: ticket });
        let given_up = if held.notes.len() > NOTES_MAX { held.notes.pop_front() } else { None };
        drop(held);
        drop(given_up);
        Ok(Reply::Noted { note: number }.into())
    }

    fn metadata_changed(&self, number: u64, times: Option<ChangeTimes>) -> Result<Answer> {
        let mut held = self.held.lock();
        let at = held.notes.iter().position(|note| note.number == number);
        let note = at.and_then(|at| held.notes.remove(at));
        drop(held);
        if let Some(note) = note {
            note.version.carry(times)?;
        }
        Ok(Reply::Done.into())
    }

    fn descriptors(&self, handle: u64) -> Result<Answer> {
        let handle = self.find_readable(handle)?;
        let (segment, descriptors) = exported(&*handle.file)?;
        handle.segment_exported.store(segment.is_some(), Ordering::Release);
        let reply = Reply::Descriptors { segment };
        Ok(Answer::with(reply, descriptors))
    }

    fn borrow(&self, handle: u64, offset: u64, length: u64) -> Result<Answer> {
        let handle = self.find_readable(handle)?;
        check_range(offset, length)?;
        let length = length.min(handle.file.size()?.saturating_sub(offset));
        let place = BorrowPlace::take(self)?;
        if !handle.segment_exported.load(Ordering::Acquire) || length == 0 {
            return Ok(Reply::NotBorrowed.into());
        }
        let mut levels = BytesByLevel::default();
        let mut done = 0;
        while done < length {
            if !self.goes_on() {
                // The client went, or the node stops: a copy comes from the PFS then.
                return Ok(Reply::NotBorrowed.into());
            }
            let step = (length - done).min(RESIDENT_READ_BYTES_MAX.into()) as usize;
            let outcome = handle.file.read_with(offset + done, step, &mut |_| {})?;
            levels.merge(&outcome.levels);
            if outcome.bytes < step {
                return Ok(Reply::NotBorrowed.into());
            }
            done += step as u64;
        }
        let Some(pin) = handle.file.pin_range(offset, length)? else {
            return Ok(Reply::NotBorrowed.into());
        };
        let ticket = self.quotas.borrow_segment(self.user.user_id, &*pin, length)?;
        let segment = pin.descriptor().try_clone_to_owned().map_err(out_of_descriptors)?;
        if !authority::is_read_only(segment.as_fd()) {
            return Ok(Reply::NotBorrowed.into());
        }
        let borrow =
            place.fill(Borrow { _pin: pin, _ticket: ticket, _open: Arc::clone(&handle.ticket) });
        let reply = Reply::Borrowed { borrow, bytes: length, levels };
        Ok(Answer::with(reply, vec![segment]))
    }

    /// Gives everything back, as the kernel does for a process that ends. Returns the errors of
    /// writes that are reported nowhere else, and what is borrowed.
    pub(super) fn end(&self) -> (Vec<Error>, Vec<Borrow>) {
        self.watching.end();
        let held = std::mem::take(&mut *self.held.lock());
        let mut errors = Vec::new();
        for handle in held.handles.values() {
            if handle.access.writes()
                && let Err(error) = handle.file.flush()
            {
                errors.push(error);
            }
        }
        (errors, held.borrows.into_values().collect())
    }
}

fn exported(file: &dyn OpenFile) -> Result<(Option<SegmentLayout>, Vec<OwnedFd>)> {
    let Some(handed) = file.export()? else { return Ok((None, Vec::new())) };
    if !authority::is_read_only(handed.segment.as_fd())
        || !authority::is_read_only(handed.table.as_fd())
    {
        tracing::error!("a segment that clients could write was not exported");
        return Ok((None, Vec::new()));
    }
    let layout = SegmentLayout { block_bytes: handed.block_bytes, blocks: handed.blocks };
    Ok((Some(layout), vec![handed.segment, handed.table, handed.touches]))
}

/// Sends a small file along with its open. Where that fails, reads will say why.
fn whole_file(file: &dyn OpenFile, size: u64, payload: &mut Vec<u8>) -> Option<BytesByLevel> {
    payload.resize(usize::try_from(size).ok()?, 0);
    match file.read_at(0, payload) {
        Ok(outcome) if outcome.bytes as u64 == size => Some(outcome.levels),
        Ok(_) | Err(_) => {
            payload.clear();
            None
        }
    }
}

fn only_descriptor(mut descriptors: Vec<OwnedFd>) -> Result<OwnedFd> {
    match (descriptors.pop(), descriptors.is_empty()) {
        (Some(descriptor), true) => Ok(descriptor),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            "taking a descriptor",
            "the request needs exactly one descriptor",
        )),
    }
}

fn check_transfer_length(length: u32) -> Result<()> {
    if length <= TRANSFER_WRITE_BYTES_MAX {
        return Ok(());
    }
    let detail = format!("at most {TRANSFER_WRITE_BYTES_MAX} bytes go with one message");
    Err(Error::new(ErrorKind::InvalidInput, "reading the transfer buffer", detail))
}

fn check_range(offset: u64, length: u64) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            "checking a range",
            "it ends beyond the longest possible file",
        )),
    }
}

fn not_opened_for(what: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, "using an open file", format!("not open for {what}"))
        .caused_by(rustix::io::Errno::BADF)
}

fn out_of_descriptors(error: std::io::Error) -> Error {
    Error::new(ErrorKind::LimitReached, "passing a descriptor", "the node has none left")
        .caused_by(error)
}
