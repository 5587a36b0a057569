//! From an operation code to its handler.
//!
//! A handler that panics answers `EIO`; the mount goes on. Requests of kinds that this mount does
//! not have answer `ENOSYS`, after which the kernel does not ask again. Whatever may wait for the
//! PFS takes a turn first (`turns`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::callers::turns::{Asked, Later, Waiting};
use crate::inode::pages::Serving;
use crate::ops::filesystem::Filesystem;
use crate::ops::metadata::XattrAnswer;
use crate::protocol::abi::{self, ForgetIn, ForgetOne, InHeader, TransferIn, op};
use crate::protocol::device::Device;
use crate::protocol::request::{Answer, Arguments, Errno, Reply};

/// The threads that read requests, as a handler knows them.
pub trait Workers {
    /// Runs `work`, during which this thread may wait. Makes sure that another one listens.
    fn wait_here(&self, work: &mut dyn FnMut());
}

impl Filesystem {
    /// Handles one request as it was read from the device.
    pub(crate) fn handle(
        self: &Arc<Self>,
        device: &Arc<Device>,
        request: &[u8],
        workers: &dyn Workers,
    ) {
        let mut arguments = Arguments::new(request);
        let Ok(header) = arguments.take::<InHeader>() else {
            tracing::error!(bytes = request.len(), "the kernel sent a request without a header");
            return;
        };
        let mut reply = Some(Reply::new(device.clone(), &header));
        let outcome = catch_unwind(AssertUnwindSafe(|| match header.opcode {
            op::READ if !self.must_wait(arguments) => self.handle_read(arguments, &mut reply),
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => {
                if let Some(reply) = reply.take() {
                    reply.none();
                }
                self.handle_unanswered(&header, arguments)
            }
            _ => {
                if let Some(reply) = reply.take() {
                    self.ask_for_turn(&header, arguments, request, reply, workers);
                }
                Ok(())
            }
        }));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(errno)) => {
                if let Some(reply) = reply.take() {
                    reply.error(errno);
                }
            }
            Err(_) => {
                tracing::error!(opcode = header.opcode, "a handler panicked; it answered EIO");
            }
        }
    }

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

    fn handle_read(&self, mut arguments: Arguments<'_>, reply: &mut Option<Reply>) -> Answer {
        let read: TransferIn = arguments.take()?;
        let handle = self.files.get(read.handle)?;
        if read.transfer_flags & abi::READ_LOCK_OWNER == 0 {
            self.begin_page(&handle)?;
        }
        // The node may start threads, which get the identity that this one has then.
        self.credentials.become_daemon()?;
        if let Some(reply) = reply.take() {
            self.read(&handle, (read.offset, read.size as usize), reply);
        }
        Ok(())
    }

    /// Handles a request that may wait for the PFS: here if its user may have a thread for it.
    fn ask_for_turn(
        self: &Arc<Self>,
        header: &InHeader,
        arguments: Arguments<'_>,
        request: &[u8],
        reply: Reply,
        workers: &dyn Workers,
    ) {
        let user = self.user_of(header, arguments);
        let is_interrupted = |unique| self.locks.was_interrupted(unique);
        match self.turns.ask(user, header.opcode, request, reply, is_interrupted) {
            Asked::Queued => {}
            Asked::Refused(reply) => reply.error(Errno(libc::EINTR)),
            Asked::Instead(waiting) => {
                let mut waiting = Some(waiting);
                workers.wait_here(&mut || self.work_off(waiting.take()));
            }
            Asked::Turn(reply) => {
                let mut reply = Some(reply);
                workers.wait_here(&mut || {
                    if let Some(reply) = reply.take() {
                        self.handle_in_turn(user, request, reply, Duration::ZERO);
                        self.work_off(self.turns.give_back(user));
                    }
                });
            }
        }
    }

    /// Whose turn a request takes. What the kernel does by itself is nobody's by its header; it
    /// counts to who opened the file.
    fn user_of(&self, header: &InHeader, mut arguments: Arguments<'_>) -> u32 {
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

    /// Handles a request that has a turn, then those that waited for it.
    fn work_off(self: &Arc<Self>, waiting: Option<Waiting>) {
        let mut next = waiting;
        while let Some(Waiting { user, request, reply, pause, .. }) = next {
            self.handle_in_turn(user, &request, reply, pause);
            next = self.turns.give_back(user);
        }
    }

    /// Handles a request that was tried `pause` ago, if ever.
    fn handle_in_turn(self: &Arc<Self>, user: u32, request: &[u8], reply: Reply, pause: Duration) {
        let mut arguments = Arguments::new(request);
        let Ok(header) = arguments.take::<InHeader>() else { return };
        let handled =
            catch_unwind(AssertUnwindSafe(|| self.handle_waiting(&header, arguments, reply)));
        match handled {
            Ok(None) => {}
            Ok(Some(reply)) => {
                let waiting = Waiting::new(user, header.opcode, request, reply);
                self.try_later(waiting.again(pause));
            }
            Err(_) => {
                tracing::error!(opcode = header.opcode, "a handler panicked; it answered EIO");
            }
        }
    }

    fn try_later(self: &Arc<Self>, waiting: Waiting) {
        match self.turns.try_later(waiting, |unique| self.locks.was_interrupted(unique)) {
            Later::Kept => {}
            Later::GivenUp(waiting) => waiting.reply.error(Errno(libc::EINTR)),
            Later::NeedsThread => {
                let filesystem = self.clone();
                let started = std::thread::Builder::new()
                    .name("tide-later".to_owned())
                    .spawn(move || filesystem.try_what_is_due());
                if let Err(error) = started {
                    tracing::warn!(%error, "starting the thread for later tries failed");
                    for waiting in self.turns.no_thread() {
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
            self.waiting.run(move || filesystem.work_off(Some(waiting)));
        }
    }

    /// Returns the reply if the request would have to wait for somebody else.
    fn handle_waiting(
        self: &Arc<Self>,
        header: &InHeader,
        arguments: Arguments<'_>,
        reply: Reply,
    ) -> Option<Reply> {
        let _serving = Serving::node(header.nodeid);
        let mut reply = Some(reply);
        let outcome = match header.opcode {
            op::READ => self.handle_read(arguments, &mut reply),
            op::OPEN
            | op::CREATE
            | op::TMPFILE
            | op::WRITE
            | op::FLUSH
            | op::RELEASE
            | op::FSYNC
            | op::FALLOCATE
            | op::LSEEK
            | op::COPY_FILE_RANGE
            | op::SETLK
            | op::SETLKW
            | op::GETLK => self.handle_file(header, arguments, &mut reply),
            op::OPENDIR | op::READDIR | op::RELEASEDIR | op::FSYNCDIR => {
                self.handle_directory(header, arguments, &mut reply)
            }
            op::LOOKUP
            | op::MKNOD
            | op::MKDIR
            | op::SYMLINK
            | op::LINK
            | op::UNLINK
            | op::RMDIR
            | op::RENAME
            | op::RENAME2
            | op::READLINK => self.handle_name(header, arguments, &mut reply),
            _ => self.handle_metadata(header, arguments, &mut reply),
        };
        match (outcome, reply) {
            (Err(Errno::BLOCKED), reply) => return reply,
            (Err(errno), Some(reply)) => reply.error(errno),
            _ => {}
        }
        None
    }

    fn handle_file(
        self: &Arc<Self>,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        reply: &mut Option<Reply>,
    ) -> Answer {
        // Arguments are read first: an error in them leaves the reply to the caller.
        macro_rules! answer {
            ($arguments:ident, |$reply:ident| $body:expr) => {{
                let $arguments = arguments.take()?;
                if let Some($reply) = reply.take() {
                    $body
                }
            }};
        }
        match header.opcode {
            op::OPEN => {
                let open = arguments.take()?;
                self.open(header, open, reply)?;
            }
            op::CREATE => {
                let create = arguments.take()?;
                let name = arguments.name()?;
                if let Some(reply) = reply.take() {
                    self.create(header, create, name, reply);
                }
            }
            // Its name is the kernel's own and leads nowhere.
            op::TMPFILE => answer!(create, |reply| self.create_nameless(header, create, reply)),
            op::WRITE => {
                let write: TransferIn = arguments.take()?;
                let data = arguments.bytes(write.size as usize)?;
                if let Some(reply) = reply.take() {
                    reply.value_or_error(self.write(header, write, data));
                }
            }
            op::FLUSH => answer!(flush, |reply| reply.outcome(self.flush(flush))),
            op::RELEASE => answer!(release, |reply| reply.outcome(self.release(release))),
            op::FSYNC => answer!(sync, |reply| reply.outcome(self.sync(sync))),
            op::FALLOCATE => {
                answer!(allocate, |reply| reply.outcome(self.allocate(header, allocate)));
            }
            op::LSEEK => answer!(seek, |reply| reply.value_or_error(self.seek(seek))),
            op::COPY_FILE_RANGE => {
                answer!(copy, |reply| reply.value_or_error(self.copy(header, copy)));
            }
            op::GETLK => answer!(lock, |reply| reply.value_or_error(self.get_lock(lock))),
            _ => {
                let waits = header.opcode == op::SETLKW;
                answer!(lock, |reply| self.set_lock(header.pid, lock, waits, reply));
            }
        }
        Ok(())
    }

    fn handle_directory(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        reply: &mut Option<Reply>,
    ) -> Answer {
        match header.opcode {
            op::OPENDIR => {
                if let Some(reply) = reply.take() {
                    reply.value_or_error(self.open_directory(header));
                }
            }
            op::READDIR => {
                let entries = self.read_directory(arguments.take()?)?;
                if let Some(reply) = reply.take() {
                    reply.bytes(&entries);
                }
            }
            opcode => {
                let outcome = if opcode == op::RELEASEDIR {
                    self.release_directory(arguments.take()?)
                } else {
                    self.sync_directory(arguments.take()?)
                };
                if let Some(reply) = reply.take() {
                    reply.outcome(outcome);
                }
            }
        }
        Ok(())
    }

    fn handle_name(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        reply: &mut Option<Reply>,
    ) -> Answer {
        let entry = match header.opcode {
            op::LOOKUP => self.lookup(header, arguments.name()?),
            op::MKNOD => {
                let make = arguments.take()?;
                self.make_node(header, make, arguments.name()?)
            }
            op::MKDIR => {
                let make = arguments.take()?;
                self.make_directory(header, make, arguments.name()?)
            }
            op::SYMLINK => {
                let name = arguments.name()?;
                self.make_symlink(header, name, arguments.name()?)
            }
            op::LINK => {
                let link = arguments.take()?;
                self.link(header, link, arguments.name()?)
            }
            op::READLINK => {
                let target = self.read_link(header)?;
                if let Some(reply) = reply.take() {
                    reply.bytes(&target);
                }
                return Ok(());
            }
            _ => return self.handle_name_removal(header, arguments, reply),
        };
        if let Some(reply) = reply.take() {
            self.reply_entry(reply, entry);
        }
        Ok(())
    }

    fn handle_name_removal(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        reply: &mut Option<Reply>,
    ) -> Answer {
        match header.opcode {
            op::UNLINK => self.unlink(header, arguments.name()?)?,
            op::RMDIR => self.remove_directory(header, arguments.name()?)?,
            opcode => {
                let (new_parent, flags) = if opcode == op::RENAME2 {
                    let rename: abi::Rename2In = arguments.take()?;
                    (rename.new_parent, rename.flags)
                } else {
                    (arguments.take::<abi::RenameIn>()?.new_parent, 0)
                };
                let name = arguments.name()?;
                self.rename(header, name, new_parent, arguments.name()?, flags)?;
            }
        }
        if let Some(reply) = reply.take() {
            reply.done();
        }
        Ok(())
    }

    fn handle_metadata(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        reply: &mut Option<Reply>,
    ) -> Answer {
        let attributes = match header.opcode {
            op::GETATTR => self.get_attributes(header, arguments.take()?),
            op::SETATTR => match self.set_attributes(header, arguments.take()?) {
                // A lease; nothing is changed yet, and it is tried again.
                Err(Errno::BLOCKED) => return Err(Errno::BLOCKED),
                done => done,
            },
            op::GETXATTR | op::LISTXATTR => {
                let size = arguments.take::<abi::GetxattrIn>()?.size;
                let answer = if header.opcode == op::GETXATTR {
                    self.get_xattr(header, arguments.name()?, size)?
                } else {
                    self.list_xattrs(header, size)?
                };
                let Some(reply) = reply.take() else { return Ok(()) };
                match answer {
                    XattrAnswer::Size(size) => reply.value(&abi::GetxattrOut { size, padding: 0 }),
                    XattrAnswer::Bytes(bytes) => reply.bytes(&bytes),
                }
                return Ok(());
            }
            op::STATFS => {
                let totals = self.totals()?;
                if let Some(reply) = reply.take() {
                    reply.value(&totals);
                }
                return Ok(());
            }
            _ => return self.handle_rest(header, arguments, reply),
        };
        if let Some(reply) = reply.take() {
            reply.value_or_error(attributes);
        }
        Ok(())
    }

    fn handle_rest(
        &self,
        header: &InHeader,
        mut arguments: Arguments<'_>,
        reply: &mut Option<Reply>,
    ) -> Answer {
        match header.opcode {
            op::SETXATTR => {
                let set: abi::SetxattrIn = arguments.take()?;
                let name = arguments.name()?;
                self.set_xattr(header, set, name, arguments.bytes(set.size as usize)?)?;
            }
            op::REMOVEXATTR => self.remove_xattr(header, arguments.name()?)?,
            op::ACCESS => self.access(header, arguments.take::<abi::AccessIn>()?.mask)?,
            op::DESTROY => {}
            _ => return Err(Errno(libc::ENOSYS)),
        }
        if let Some(reply) = reply.take() {
            reply.done();
        }
        Ok(())
    }
}
