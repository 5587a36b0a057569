//! Files as an actor uses them: by system calls (on the mount, or behind Tidepool's back), or
//! through the client library.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_proto::Error;
use tidepool_proto::admin::AdminRequest;
use tidepool_proto::mapping::{Access, Mapping};

use super::wire::{Answer, Opening};

/// Why an operation failed.
#[derive(Debug)]
pub struct Failure {
    /// The error number.
    pub errno: i32,
    /// In words.
    pub message: String,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Failure { errno, message: error.to_string() }
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { errno: error.errno(), message: error.to_string() }
    }
}

type Outcome<T> = Result<T, Failure>;

fn not_open() -> Failure {
    Failure { errno: libc::EBADF, message: "the driver used a handle that is not open".into() }
}

/// Handles by number, and what can be done with them.
pub trait Files {
    /// Opens a file.
    fn open(&mut self, slot: u8, path: &str, opening: Opening) -> Outcome<()>;
    /// Reads to the end of `buffer` or of the file.
    fn read(&mut self, slot: u8, offset: u64, buffer: &mut [u8]) -> Outcome<u64>;
    /// Copies out of a mapping.
    fn read_mapped(&mut self, slot: u8, offset: u64, buffer: &mut [u8]) -> Outcome<u64>;
    /// Writes all of `data`.
    fn write(&mut self, slot: u8, offset: u64, data: &[u8]) -> Outcome<()>;
    /// Sets the length.
    fn set_size(&mut self, slot: u8, size: u64) -> Outcome<()>;
    /// Punches a hole.
    fn punch(&mut self, slot: u8, offset: u64, length: u64) -> Outcome<()>;
    /// Makes what was written durable.
    fn sync(&mut self, slot: u8) -> Outcome<()>;
    /// Length in bytes.
    fn size(&mut self, slot: u8) -> Outcome<u64>;
    /// Closes, with the errors of writes.
    fn close(&mut self, slot: u8) -> Outcome<()>;
    /// Closes all handles.
    fn close_all(&mut self);
    /// Asks the node.
    fn admin(&mut self, request: AdminRequest, path: Option<&str>) -> Outcome<Answer>;
}

/// Plain system calls below a directory.
#[derive(Debug)]
pub struct SystemFiles {
    root: PathBuf,
    open: HashMap<u8, File>,
}

impl SystemFiles {
    /// Files below `root`.
    pub fn new(root: PathBuf) -> Self {
        SystemFiles { root, open: HashMap::new() }
    }

    fn file(&self, slot: u8) -> Outcome<&File> {
        self.open.get(&slot).ok_or_else(not_open)
    }
}

/// Reads until the buffer or the file ends.
pub fn read_fully(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<u64> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done as u64)
}

impl Files for SystemFiles {
    fn open(&mut self, slot: u8, path: &str, opening: Opening) -> Outcome<()> {
        let file = File::options()
            .read(opening.access.reads())
            .write(opening.access.writes())
            .custom_flags(if opening.append { libc::O_APPEND } else { 0 })
            .create(opening.create)
            .truncate(opening.truncate)
            .mode(0o644)
            .open(self.root.join(path))?;
        self.open.insert(slot, file);
        Ok(())
    }

    fn read(&mut self, slot: u8, offset: u64, buffer: &mut [u8]) -> Outcome<u64> {
        Ok(read_fully(self.file(slot)?, offset, buffer)?)
    }

    fn read_mapped(&mut self, slot: u8, offset: u64, buffer: &mut [u8]) -> Outcome<u64> {
        let file = self.file(slot)?;
        // As every program does that maps: the length first.
        let size = file.metadata()?.size();
        let wanted = (buffer.len() as u64).min(size.saturating_sub(offset)) as usize;
        let buffer = &mut buffer[..wanted];
        if buffer.is_empty() {
            return Ok(0);
        }
        let start = offset / 4096 * 4096;
        let skipped = (offset - start) as usize;
        let length = skipped + buffer.len();
        let mapping = Mapping::shared(file, start, length, Access::Read)?;
        // SAFETY: the driver lets nobody change the file meanwhile.
        buffer.copy_from_slice(&unsafe { mapping.bytes() }[skipped..]);
        Ok(buffer.len() as u64)
    }

    fn write(&mut self, slot: u8, offset: u64, data: &[u8]) -> Outcome<()> {
        Ok(self.file(slot)?.write_all_at(data, offset)?)
    }

    fn set_size(&mut self, slot: u8, size: u64) -> Outcome<()> {
        Ok(self.file(slot)?.set_len(size)?)
    }

    fn punch(&mut self, slot: u8, offset: u64, length: u64) -> Outcome<()> {
        use rustix::fs::FallocateFlags as Flags;
        let flags = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self.file(slot)?, flags, offset, length)?)
    }

    fn sync(&mut self, slot: u8) -> Outcome<()> {
        Ok(self.file(slot)?.sync_all()?)
    }

    fn size(&mut self, slot: u8) -> Outcome<u64> {
        Ok(self.file(slot)?.metadata()?.size())
    }

    fn close(&mut self, slot: u8) -> Outcome<()> {
        let file = self.open.remove(&slot).ok_or_else(not_open)?;
        let descriptor = std::os::fd::IntoRawFd::into_raw_fd(file);
        // SAFETY: the descriptor was this file's alone and is not used after this; `close` is
        // called by hand because dropping the file would hide the error that writers wait for.
        match unsafe { libc::close(descriptor) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().into()),
        }
    }

    fn close_all(&mut self) {
        self.open.clear();
    }

    fn admin(&mut self, _request: AdminRequest, _path: Option<&str>) -> Outcome<Answer> {
        Err(Failure { errno: libc::EOPNOTSUPP, message: "this actor knows no node".into() })
    }
}

/// The client library.
pub struct LibraryFiles {
    root: PathBuf,
    client: Client,
    open: HashMap<u8, (tidepool_client::File, bool)>,
}

impl LibraryFiles {
    /// A client of the node at `socket`, with files below the PFS directory `root`.
    pub fn new(root: PathBuf, socket: PathBuf) -> Self {
        let options = ClientOptions {
            socket: Some(socket),
            pfs_root: Some(root.clone()),
            retry_interval: std::time::Duration::ZERO,
            notice: Arc::new(|_| ()),
            ..ClientOptions::default()
        };
        LibraryFiles { root, client: Client::connect(options), open: HashMap::new() }
    }

    fn file(&self, slot: u8) -> Outcome<&tidepool_client::File> {
        self.open.get(&slot).map(|(file, _)| file).ok_or_else(not_open)
    }
}

impl Files for LibraryFiles {
    fn open(&mut self, slot: u8, path: &str, opening: Opening) -> Outcome<()> {
        let options = OpenOptions {
            access: opening.access,
            create: opening.create,
            create_new: false,
            truncate: opening.truncate,
            append: opening.append,
            mode_bits: 0o644,
            read_mode: opening.read_mode,
            write_mode: opening.write_mode,
            ..OpenOptions::read()
        };
        let file = self.client.open(self.root.join(path), options)?;
        self.open.insert(slot, (file, opening.append));
        Ok(())
    }

    fn read(&mut self, slot: u8, offset: u64, buffer: &mut [u8]) -> Outcome<u64> {
        Ok(self.file(slot)?.read_at(offset, buffer)?.bytes as u64)
    }

    fn read_mapped(&mut self, slot: u8, offset: u64, buffer: &mut [u8]) -> Outcome<u64> {
        let lent = self.file(slot)?.borrow(offset, buffer.len())?;
        let length = lent.len().min(buffer.len());
        buffer[..length].copy_from_slice(&lent[..length]);
        Ok(length as u64)
    }

    fn write(&mut self, slot: u8, offset: u64, data: &[u8]) -> Outcome<()> {
        let (file, append) = self.open.get(&slot).ok_or_else(not_open)?;
        if *append {
            file.append(data)?;
        } else {
            file.write_at(offset, data)?;
        }
        Ok(())
    }

    fn set_size(&mut self, slot: u8, size: u64) -> Outcome<()> {
        Ok(self.file(slot)?.set_size(size)?)
    }

    fn punch(&mut self, _slot: u8, _offset: u64, _length: u64) -> Outcome<()> {
        Err(Failure { errno: libc::EOPNOTSUPP, message: "the library punches no holes".into() })
    }

    fn sync(&mut self, slot: u8) -> Outcome<()> {
        Ok(self.file(slot)?.sync()?)
    }

    fn size(&mut self, slot: u8) -> Outcome<u64> {
        Ok(self.file(slot)?.size()?)
    }

    fn close(&mut self, slot: u8) -> Outcome<()> {
        let (file, _) = self.open.remove(&slot).ok_or_else(not_open)?;
        Ok(file.close()?)
    }

    fn close_all(&mut self) {
        self.open.clear();
    }

    fn admin(&mut self, request: AdminRequest, path: Option<&str>) -> Outcome<Answer> {
        let file = path.map(|path| File::open(self.root.join(path))).transpose()?;
        let reply = self.client.admin(request, file.as_ref().map(|file| file.as_fd()))?;
        if let tidepool_proto::admin::AdminReply::Failed { message, errno, .. } = reply {
            return Err(Failure { errno, message });
        }
        Ok(Answer { admin: Some(Box::new(reply)), ..Answer::default() })
    }
}
