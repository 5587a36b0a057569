//! From an operation code to its handler.
//!
//! A handler that panics answers `EIO`; the mount goes on. Requests of kinds that this mount does
//! not have answer `ENOSYS`, after which the kernel does not ask again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::abi::{self, ForgetIn, ForgetOne, InHeader, TransferIn, op};
use crate::device::Device;
use crate::filesystem::Filesystem;
use crate::metadata::XattrAnswer;
use crate::request::{Answer, Arguments, Errno, Reply};

/// Whether this thread may wait for slow storage, or what it may do instead.
pub trait Workers {
    /// Runs `work`, during which this thread may wait. Makes sure that another one listens.
    fn wait_here(&self, work: &mut dyn FnMut());
    /// Whether another thread listens, so that this one may wait.
    fn others_listen(&self) -> bool;
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
            op::READ => self.handle_read(arguments, &mut reply, workers),
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => {
                if let Some(reply) = reply.take() {
                    reply.none();
                }
                self.handle_unanswered(&header, arguments)
            }
            _ => {
                workers.wait_here(&mut || {
                    if let Some(reply) = reply.take() {
                        self.handle_waiting(&header, arguments, reply);
                    }
                });
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
                self.nodes.forget(header.nodeid, forget.lookups);
            }
            op::BATCH_FORGET => {
                let batch: abi::BatchForgetIn = arguments.take()?;
                for _ in 0..batch.count {
                    let forget: ForgetOne = arguments.take()?;
                    self.nodes.forget(forget.nodeid, forget.lookups);
                }
            }
            _ => self.locks.interrupt(arguments.take::<abi::InterruptIn>()?.unique),
        }
        Ok(())
    }

    /// Resident bytes are answered at once; others where waiting does no harm.
    fn handle_read(
        self: &Arc<Self>,
        mut arguments: Arguments<'_>,
        reply: &mut Option<Reply>,
        workers: &dyn Workers,
    ) -> Answer {
        let read: TransferIn = arguments.take()?;
        let handle = self.files.get(read.handle)?;
        let Some(reply) = reply.take() else { return Ok(()) };
        let size = read.size as usize;
        // The node may start threads, which get the identity that this one has then.
        if let Err(errno) = self.credentials.become_daemon() {
            reply.error(errno);
        } else if handle.file.is_resident(read.offset, size) {
            self.read(&handle, read.offset, size, reply);
        } else if workers.others_listen() {
            let mut reply = Some(reply);
            workers.wait_here(&mut || {
                if let Some(reply) = reply.take() {
                    self.read(&handle, read.offset, size, reply);
                }
            });
        } else {
            let filesystem = self.clone();
            self.waiting.run(move || filesystem.read(&handle, read.offset, size, reply));
        }
        Ok(())
    }

    fn handle_waiting(self: &Arc<Self>, header: &InHeader, arguments: Arguments<'_>, reply: Reply) {
        let mut reply = Some(reply);
        let outcome = match header.opcode {
            op::OPEN
            | op::CREATE
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
        if let (Err(errno), Some(reply)) = (outcome, reply) {
            reply.error(errno);
        }
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
            op::OPEN => answer!(open, |reply| self.open(header, open, reply)),
            op::CREATE => {
                let create = arguments.take()?;
                let name = arguments.name()?;
                if let Some(reply) = reply.take() {
                    self.create(header, create, name, reply);
                }
            }
            op::WRITE => {
                let write: TransferIn = arguments.take()?;
                let data = arguments.bytes(write.size as usize)?;
                if let Some(reply) = reply.take() {
                    reply.value_or_error(self.write(write, data));
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
                answer!(lock, |reply| self.set_lock(lock, waits, reply));
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
            op::SETATTR => self.set_attributes(header, arguments.take()?),
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
