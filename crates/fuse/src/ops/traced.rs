//! Request tracing of the mount: [`Span`] records who asked for what, how it was answered, and what
//! it cost. While no trace is under way, a request costs a look at one flag.
//!
//! A span travels with the [`Reply`](crate::protocol::reply::Reply), because a request may wait for
//! its turn and be answered by another thread than read it. If a handler answers, its span ends
//! when the handler returns, with the cost of the handler; otherwise it ends at the answer.

use std::cell::RefCell;
use std::ffi::CStr;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_pfs::cost::{self, Cost};
use tidepool_proto::trace::{Front, Operation, ServedBy, TraceRecord, Tracer, microseconds};

use crate::inode::state::Inode;
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{
    self, CopyIn, CreateIn, FallocateIn, InHeader, LseekIn, TransferIn, op,
};
use crate::protocol::reply::AnswerWatch;
use crate::protocol::request::Arguments;

/// Deeper than any path the kernel can walk; more means that places form a circle.
const DEPTH_MAX: usize = 2_048;

/// A request that is being traced.
pub(crate) struct Span {
    tracer: Arc<dyn Tracer>,
    unique: u64,
    begun: Instant,
    elapsed: Duration,
    record: TraceRecord,
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Span").field(&self.record).finish()
    }
}

/// The request that a handler works on, and its span once it is answered.
struct Handling {
    unique: u64,
    answered: Option<Box<Span>>,
}

thread_local! {
    static HANDLING: RefCell<Option<Handling>> = const { RefCell::new(None) };
}

impl AnswerWatch for Span {
    fn answered(mut self: Box<Self>, errno: i32, slices: &[IoSlice<'_>]) {
        self.elapsed = self.begun.elapsed();
        self.record.errno = errno;
        if errno == 0 {
            self.record.bytes = bytes_moved(self.record.operation, slices);
        }
        let left = HANDLING.with_borrow_mut(|handling| match handling {
            Some(handling) if handling.unique == self.unique => {
                handling.answered = Some(self);
                None
            }
            _ => Some(self),
        });
        if let Some(span) = left {
            span.tell(Cost::default());
        }
    }
}

impl Span {
    fn tell(mut self, cost: Cost) {
        let record = &mut self.record;
        record.elapsed_us = microseconds(self.elapsed);
        // What is done after the answer makes nobody wait.
        record.pfs_us = microseconds(cost.waited.min(self.elapsed));
        record.level = match cost.passes_through {
            true => ServedBy::Passthrough,
            false => ServedBy::of(record.operation, &cost.levels, cost.waited),
        };
        self.tracer.record(self.record);
    }
}

/// How many bytes of a file an answer tells of.
fn bytes_moved(operation: Operation, slices: &[IoSlice<'_>]) -> u64 {
    match operation {
        Operation::Read => slices.iter().map(|slice| slice.len() as u64).sum(),
        Operation::Write | Operation::Copy => {
            let size = slices.first().and_then(|slice| slice.first_chunk::<4>());
            size.map_or(0, |size| u32::from_ne_bytes(*size).into())
        }
        _ => 0,
    }
}

impl Filesystem {
    /// Begins to trace a request, if anybody watches.
    pub(crate) fn begin_span(
        &self,
        header: &InHeader,
        arguments: Arguments<'_>,
    ) -> Option<Box<dyn AnswerWatch>> {
        let tracer = self.tracer.as_ref().filter(|tracer| tracer.is_on())?;
        let mut record = self.record_of(header, arguments);
        tracer.identify(&mut record);
        Some(Box::new(Span {
            tracer: tracer.clone(),
            unique: header.unique,
            begun: Instant::now(),
            elapsed: Duration::ZERO,
            record,
        }))
    }

    /// Handles a request by `work` and tells what it cost, if anybody watches.
    pub(crate) fn accounted<T>(&self, header: &InHeader, work: impl FnOnce() -> T) -> T {
        if !self.tracer.as_ref().is_some_and(|tracer| tracer.is_on()) {
            return work();
        }
        let handling = Handling { unique: header.unique, answered: None };
        HANDLING.set(Some(handling));
        let (done, cost) = cost::of(|| match asks_pfs_alone(header.opcode) {
            true => cost::wait(work),
            false => work(),
        });
        if let Some(span) = HANDLING.take().and_then(|handling| handling.answered) {
            span.tell(cost.unwrap_or_default());
        }
        done
    }

    fn record_of(&self, header: &InHeader, mut arguments: Arguments<'_>) -> TraceRecord {
        let operation = operation_of(header.opcode);
        let user = self.user_of(header, arguments);
        let mut record = TraceRecord::begun(Front::Mount, operation, user, header.pid);
        if let Ok(node) = self.inodes.get(header.nodeid) {
            let name = name_of(header.opcode, arguments);
            if let Some((path, is_for_all)) = path_of(&node) {
                let path = match name {
                    Some(name) => below(&path, name),
                    None => path,
                };
                record = record.of_file(node.id, Some(path));
                record.hides_path = !is_for_all;
            } else {
                record = record.of_file(node.id, None);
            }
        }
        let range = match header.opcode {
            op::READ | op::WRITE => {
                arguments.take::<TransferIn>().ok().map(|it| (it.offset, Some(it.size.into())))
            }
            op::FALLOCATE => {
                arguments.take::<FallocateIn>().ok().map(|it| (it.offset, Some(it.length)))
            }
            op::LSEEK => arguments.take::<LseekIn>().ok().map(|it| (it.offset, None)),
            op::COPY_FILE_RANGE => {
                arguments.take::<CopyIn>().ok().map(|it| (it.offset_in, Some(it.length)))
            }
            _ => None,
        };
        record.offset = range.map(|(offset, _)| offset);
        record.length = range.and_then(|(_, length)| length);
        record
    }
}

/// Path of a node below the root, by the places where it was seen last, and whether everybody who
/// uses the node may know it: nobody else can have used it by another path.
fn path_of(inode: &Arc<Inode>) -> Option<(String, bool)> {
    let (mut names, mut is_for_all) = (Vec::new(), true);
    let mut at = inode.clone();
    while at.nodeid != abi::ROOT_NODEID {
        if names.len() == DEPTH_MAX {
            return None;
        }
        let place = at.place()?;
        is_for_all &= !at.has_several_places();
        names.push(place.name.to_string_lossy().into_owned());
        at = place.parent;
    }
    names.reverse();
    Some((names.join("/"), is_for_all))
}

fn below(path: &str, name: &CStr) -> String {
    let name = name.to_string_lossy();
    if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") }
}

/// The name that a request is about, in the directory that its header names.
fn name_of(opcode: u32, mut arguments: Arguments<'_>) -> Option<&CStr> {
    let before = match opcode {
        op::LOOKUP | op::UNLINK | op::RMDIR | op::SYMLINK => 0,
        op::MKNOD => size_of::<abi::MknodIn>(),
        op::MKDIR => size_of::<abi::MkdirIn>(),
        op::RENAME => size_of::<abi::RenameIn>(),
        op::RENAME2 => size_of::<abi::Rename2In>(),
        op::LINK => size_of::<abi::LinkIn>(),
        op::CREATE => size_of::<CreateIn>(),
        _ => return None,
    };
    arguments.bytes(before).ok()?;
    arguments.name().ok()
}

/// Whether handling the request is waiting for the PFS and nothing else: names and attributes are
/// kept nowhere else, and an open asks for both.
fn asks_pfs_alone(opcode: u32) -> bool {
    !matches!(
        opcode,
        op::READ
            | op::WRITE
            | op::FLUSH
            | op::RELEASE
            | op::RELEASEDIR
            | op::FSYNC
            | op::FALLOCATE
            | op::LSEEK
            | op::COPY_FILE_RANGE
            | op::GETLK
            | op::SETLK
            | op::SETLKW
    )
}

fn operation_of(opcode: u32) -> Operation {
    match opcode {
        op::LOOKUP => Operation::Lookup,
        op::GETATTR => Operation::Stat,
        op::SETATTR => Operation::SetAttributes,
        op::READLINK => Operation::ReadLink,
        op::SYMLINK => Operation::Symlink,
        op::MKNOD => Operation::MakeNode,
        op::MKDIR => Operation::MakeDirectory,
        op::UNLINK => Operation::Unlink,
        op::RMDIR => Operation::RemoveDirectory,
        op::RENAME | op::RENAME2 => Operation::Rename,
        op::LINK => Operation::Link,
        op::OPEN => Operation::Open,
        op::CREATE | op::TMPFILE => Operation::Create,
        op::READ => Operation::Read,
        op::WRITE => Operation::Write,
        op::STATFS => Operation::StatFs,
        op::RELEASE => Operation::Close,
        op::FLUSH => Operation::Flush,
        op::FSYNC | op::FSYNCDIR => Operation::Sync,
        op::SETXATTR | op::GETXATTR | op::LISTXATTR | op::REMOVEXATTR => Operation::Xattr,
        op::OPENDIR => Operation::OpenDirectory,
        op::READDIR => Operation::ReadDirectory,
        op::RELEASEDIR => Operation::CloseDirectory,
        op::GETLK | op::SETLK | op::SETLKW => Operation::Lock,
        op::ACCESS => Operation::Access,
        op::FALLOCATE => Operation::Allocate,
        op::LSEEK => Operation::Seek,
        op::COPY_FILE_RANGE => Operation::Copy,
        _ => Operation::Other,
    }
}
