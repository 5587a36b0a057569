//! Handles requests: finds the handler of an operation code, and sends what it returns.
//!
//! A handler that panics answers `EIO`; the mount goes on. Operations that this mount does not have
//! answer `ENOSYS`, after which the kernel does not ask again. All requests that may wait for the
//! PFS take a turn first (see [`crate::callers::turns`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tidepool_pfs::asked;

use crate::callers::turns::{Handled, Later, QueuedRequest, TurnOutcome};
use crate::inode::file_handle::FileHandle;
use crate::inode::pages::Serving;
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{self, ForgetIn, ForgetOne, InHeader, TransferIn, op};
use crate::protocol::device::Device;
use crate::protocol::reply::{Reply, Response};
use crate::protocol::request::{Answer, Arguments, Errno};

/// The threads that read requests.
pub trait Workers {
    /// Runs `work`, which may wait, on this thread. Makes sure first that another thread listens.
    fn run_blocking(&self, work: impl FnOnce());
}

impl Filesystem {
    /// Handles one request as it was read from the device.
    pub(crate) fn handle(
        self: &Arc<Self>,
        device: &Arc<Device>,
        request: &[u8],
        workers: &impl Workers,
    ) {
        let mut arguments = Arguments::new(request);
        let Ok(header) = arguments.take::<InHeader>() else {
            tracing::error!(bytes = request.len(), "the kernel sent a request without a header");
            return;
        };
        survive(header.opcode, || match header.opcode {
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => {
                if let Err(errno) = self.handle_unanswered(&header, arguments) {
                    tracing::error!(opcode = header.opcode, ?errno, "a request is cut short");
                }
            }
            opcode => {
                let watch = self.begin_span(&header, arguments);
                let reply = Reply::new(device.clone(), &header, watch);
                if opcode == op::READ && !self.must_wait(arguments) {
                    self.accounted(&header, || self.handle_read(arguments, reply));
                } else {
                    self.ask_for_turn(&header, arguments, request, reply, workers);
                }
            }
        });
    }

    /// Handles a request that takes no answer.
    fn handle_unanswered(&self, header: &InHeader, mut arguments: Arguments<'_>) -> Answer {
        match header.opcode {
            op::FORGET => {
                let forget: ForgetIn = arguments.take()?;
                self.forget(header.nodeid, forget.lookups);
            }
            op::BATCH_FORGET => {
                let batch: abi::BatchForgetIn = arguments.take()?;
                for _ in 0..batch.count {
                    let forget: ForgetOne = arguments.take()?;
                    self.forget(forget.nodeid, forget.lookups);
                }
            }
            _ => {
                let unique = arguments.take::<abi::InterruptIn>()?.unique;
                let found = self.turns.interrupt(unique, || self.locks.interrupt(unique));
                if let Some(waiting) = found {
                    waiting.reply.error(Errno(libc::EINTR));
                }
            }
        }
        Ok(())
    }

    /// Whether a read has to wait for bytes that are not resident.
    fn must_wait(&self, mut arguments: Arguments<'_>) -> bool {
        let Ok(read) = arguments.take::<TransferIn>() else { return false };
        let Ok(handle) = self.files.get(read.handle) else { return false };
        !handle.file.is_resident(read.offset, read.size as usize)
    }

    fn handle_read(&self, arguments: Arguments<'_>, reply: Reply) {
        match self.begin_read(arguments) {
            Ok((handle, read)) => self.read(&handle, read, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn begin_read(&self, mut arguments: Arguments<'_>) -> Answer<(Arc<FileHandle>, (u64, usize))> {
        let read: TransferIn = arguments.take()?;
        let handle = self.files.get(read.handle)?;
        if read.transfer_flags & abi::READ_LOCK_OWNER == 0 {
            self.begin_page(&handle)?;
        }
        // The node may start threads, which inherit the identity of this one.
        self.credentials.become_daemon()?;
        Ok((handle, (read.offset, read.size as usize)))
    }

    /// Handles a request that may wait for the PFS: at once if its user has a turn.
    fn ask_for_turn(
        self: &Arc<Self>,
        header: &InHeader,
        arguments: Arguments<'_>,
        request: &[u8],
        reply: Reply,
        workers: &impl Workers,
    ) {
        let user = self.user_of(header, arguments);
        let is_interrupted = |unique| self.locks.was_interrupted(unique);
        match self.turns.ask(user, header.opcode, request, reply, is_interrupted) {
            TurnOutcome::Queued => {}
            TurnOutcome::Refused(reply) => reply.error(Errno(libc::EINTR)),
            TurnOutcome::Instead(waiting) => {
                workers.run_blocking(|| self.run_queued(Some(waiting)))
            }
            TurnOutcome::Turn(reply) => workers.run_blocking(|| {
                self.handle_in_turn(user, request, reply, Duration::ZERO);
                self.run_queued(self.turns.release(user));
            }),
        }
    }

    /// The user whose turn a request takes. What the kernel does by itself has no user in its
    /// header; it counts for the user that opened the file.
    pub(crate) fn user_of(&self, header: &InHeader, mut arguments: Arguments<'_>) -> u32 {
        let by_kernel = header.uid == 0 && header.pid == 0;
        let has_handle = matches!(header.opcode, op::READ | op::WRITE | op::FLUSH | op::RELEASE);
        if by_kernel
            && has_handle
            && let Ok(handle) = arguments.take::<u64>()
            && let Ok(file) = self.files.get(handle)
        {
            return file.share.user();
        }
        header.uid
    }

    /// Handles a request that has a turn, then those that were queued for it.
    pub(crate) fn run_queued(self: &Arc<Self>, waiting: Option<QueuedRequest>) {
        let mut next = waiting;
        while let Some(QueuedRequest { user, request, reply, pause, .. }) = next {
            self.handle_in_turn(user, &request, reply, pause);
            next = self.turns.release(user);
        }
    }

    /// Handles a request that has a turn. `pause` is the time since it was tried last, or zero.
    fn handle_in_turn(self: &Arc<Self>, user: u32, request: &[u8], reply: Reply, pause: Duration) {
        let mut arguments = Arguments::new(request);
        let Ok(header) = arguments.take::<InHeader>() else { return };
        survive(header.opcode, || {
            let _serving = Serving::inode(header.nodeid);
            self.accounted(&header, || match header.opcode {
                op::READ => self.handle_read(arguments, reply),
                op::SETLK | op::SETLKW => match arguments.take() {
                    Ok(lock) => {
                        self.set_lock(header.pid, lock, header.opcode == op::SETLKW, reply);
                    }
                    Err(errno) => reply.error(errno),
                },
                _ => match self.respond_to(&header, user, arguments, reply.device()) {
                    Err(Errno::BLOCKED) => {
                        let waiting = QueuedRequest::new(user, header.opcode, request, reply);
                        self.try_later(waiting.again(pause));
                    }
                    answer => self.answer(reply, answer),
                },
            });
        });
    }

    fn try_later(self: &Arc<Self>, waiting: QueuedRequest) {
        match self.turns.try_later(waiting, |unique| self.locks.was_interrupted(unique)) {
            Later::Kept => {}
            Later::Cancelled(waiting) => waiting.reply.error(Errno(libc::EINTR)),
            Later::NeedsThread => {
                let filesystem = self.clone();
                let started = std::thread::Builder::new()
                    .name("tide-later".to_owned())
                    .spawn(move || filesystem.try_what_is_due());
                if let Err(error) = started {
                    tracing::warn!(%error, "starting the thread for later tries failed");
                    for waiting in self.turns.take_stranded() {
                        waiting.reply.error(Errno(libc::EAGAIN));
                    }
                }
            }
        }
    }

    fn try_what_is_due(self: Arc<Self>) {
        if crate::callers::credentials::begin_thread().is_err() {
            tracing::error!("the thread for later tries could not take the daemon's identity");
        }
        while let Some(waiting) = self.turns.due() {
            let filesystem = self.clone();
            self.threads.run(move || filesystem.run_queued(Some(waiting)));
        }
    }

    /// Sends an answer. If the kernel does not take it, undoes what it stands for.
    fn answer(&self, reply: Reply, answer: Answer<Response>) {
        if reply.answer(&answer) {
            return;
        }
        match answer {
            Ok(Response::Entry(entry)) => self.forget(entry.nodeid, 1),
            Ok(Response::Opened(open)) => drop(self.forget_handle(open.handle)),
            Ok(Response::OpenedDirectory(open)) => drop(self.directories.remove(open.handle)),
            Ok(Response::Created(created)) => {
                self.forget_handle(created.open.handle);
                self.forget(created.entry.nodeid, 1);
            }
            _ => {}
        }
    }

    /// As [`Self::respond`]. What opens a file may wait for another node.
    fn respond_to(
        self: &Arc<Self>,
        header: &InHeader,
        user: u32,
        arguments: Arguments<'_>,
        device: &Arc<Device>,
    ) -> Answer<Response> {
        let respond = || self.respond(header, arguments, device);
        match header.opcode {
            op::OPEN | op::CREATE | op::SETATTR => {
                let handled = Handled::new(self.clone(), user, header);
                asked::on_behalf_of(Arc::new(handled), respond)
            }
            _ => respond(),
        }
    }

    /// The handlers that return their answer: of open files here, of all else below.
    fn respond(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        device: &Arc<Device>,
    ) -> Answer<Response> {
        Ok(match header.opcode {
            op::OPEN => Response::Opened(self.open(header, arguments.take()?, device)?),
            op::CREATE => {
                let create = arguments.take()?;
                Response::Created(self.create(header, create, arguments.name()?, device)?)
            }
            // The name in the request is made up by the kernel.
            op::TMPFILE => {
                Response::Created(self.create_nameless(header, arguments.take()?, device)?)
            }
            op::WRITE => {
                let write: TransferIn = arguments.take()?;
                let data = arguments.bytes(write.size as usize)?;
                Response::Written(self.write(header, write, data)?)
            }
            op::FLUSH => empty(self.flush(arguments.take()?))?,
            op::RELEASE => empty(self.release(arguments.take()?))?,
            op::FSYNC => empty(self.sync(arguments.take()?))?,
            op::FALLOCATE => empty(self.allocate(header, arguments.take()?))?,
            op::LSEEK => Response::Offset(self.seek(arguments.take()?)?),
            op::COPY_FILE_RANGE => Response::Written(self.copy(header, arguments.take()?)?),
            op::GETLK => Response::Lock(self.get_lock(arguments.take()?)?),
            op::OPENDIR => Response::OpenedDirectory(self.open_directory(header)?),
            op::READDIR => Response::Bytes(self.read_directory(arguments.take()?)?),
            op::RELEASEDIR => empty(self.release_directory(arguments.take()?))?,
            op::FSYNCDIR => empty(self.sync_directory(arguments.take()?))?,
            _ => return self.respond_on_name(header, arguments),
        })
    }

    fn respond_on_name(&self, header: &InHeader, mut arguments: Arguments<'_>) -> Answer<Response> {
        Ok(match header.opcode {
            op::LOOKUP => Response::Entry(self.lookup(header, arguments.name()?)?),
            op::MKNOD => {
                let make = arguments.take()?;
                Response::Entry(self.make_special(header, make, arguments.name()?)?)
            }
            op::MKDIR => {
                let make = arguments.take()?;
                Response::Entry(self.make_directory(header, make, arguments.name()?)?)
            }
            op::SYMLINK => {
                let name = arguments.name()?;
                Response::Entry(self.make_symlink(header, name, arguments.name()?)?)
            }
            op::LINK => {
                let link = arguments.take()?;
                Response::Entry(self.link(header, link, arguments.name()?)?)
            }
            op::READLINK => Response::Bytes(self.read_link(header)?),
            op::UNLINK => empty(self.unlink(header, arguments.name()?))?,
            op::RMDIR => empty(self.remove_directory(header, arguments.name()?))?,
            op::RENAME => {
                let new_parent = arguments.take::<abi::RenameIn>()?.new_parent;
                let name = arguments.name()?;
                empty(self.rename(header, name, new_parent, arguments.name()?, 0))?
            }
            op::RENAME2 => {
                let rename: abi::Rename2In = arguments.take()?;
                let (name, new_name) = (arguments.name()?, arguments.name()?);
                empty(self.rename(header, name, rename.new_parent, new_name, rename.flags))?
            }
            _ => return self.respond_on_metadata(header, arguments),
        })
    }

    fn respond_on_metadata(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
    ) -> Answer<Response> {
        Ok(match header.opcode {
            op::GETATTR => Response::Attributes(self.get_attributes(header, arguments.take()?)?),
            op::SETATTR => Response::Attributes(self.set_attributes(header, arguments.take()?)?),
            op::GETXATTR => {
                let size = arguments.take::<abi::GetxattrIn>()?.size;
                self.get_xattr(header, arguments.name()?, size)?
            }
            op::LISTXATTR => self.list_xattrs(header, arguments.take::<abi::GetxattrIn>()?.size)?,
            op::SETXATTR => {
                let set: abi::SetxattrIn = arguments.take()?;
                let name = arguments.name()?;
                empty(self.set_xattr(header, set, name, arguments.bytes(set.size as usize)?))?
            }
            op::REMOVEXATTR => empty(self.remove_xattr(header, arguments.name()?))?,
            op::ACCESS => empty(self.access(header, arguments.take::<abi::AccessIn>()?.mask))?,
            op::STATFS => Response::Totals(self.totals()?),
            op::DESTROY => Response::Empty,
            _ => return Err(Errno(libc::ENOSYS)),
        })
    }
}

/// Success without data, or failure.
fn empty(outcome: Answer) -> Answer<Response> {
    outcome.map(|()| Response::Empty)
}

/// Runs a handler. One that panics drops its reply, which then answers `EIO`.
fn survive(opcode: u32, handler: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(handler)).is_err() {
        tracing::error!(opcode, "a handler panicked; it answered EIO");
    }
}
