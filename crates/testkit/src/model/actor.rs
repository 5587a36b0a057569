//! An actor: a child process that carries out commands. Its standard input is the socket to the
//! driver, its standard output the shared buffer.
//!
//! An actor knows nothing of the model. With a *defect* it misbehaves on purpose, so that a test
//! can show that the driver notices.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use clap::Args;

use super::defects::Defect;
use super::files::{Failure, Files, LibraryFiles, SystemFiles};
use super::wire::{Answer, Command, DATAGRAM_BYTES, OutsideChange, StubNow};
use crate::buffer::SharedBuffer;

/// How an actor is started.
#[derive(Clone, Debug, Args)]
pub struct ActorOptions {
    /// Directory that paths are below.
    #[arg(long)]
    pub root: PathBuf,
    /// Use the client library with the node at this socket.
    #[arg(long)]
    pub socket: Option<PathBuf>,
    /// Misbehave.
    #[arg(long)]
    pub defect: Option<Defect>,
}

struct Actor {
    root: PathBuf,
    files: Box<dyn Files>,
    buffer: SharedBuffer,
}

/// Serves commands until the driver is gone.
pub fn run(options: &ActorOptions) -> io::Result<()> {
    let socket = UnixDatagram::from(io::stdin().as_fd().try_clone_to_owned()?);
    let buffer = SharedBuffer::map(io::stdout().as_fd().try_clone_to_owned()?)?;
    let root = options.root.clone();
    let files: Box<dyn Files> = match &options.socket {
        Some(socket) => Box::new(LibraryFiles::new(root.clone(), socket.clone())),
        None => Box::new(SystemFiles::new(root.clone())),
    };
    let files = match options.defect {
        Some(defect) => Box::new(super::defects::Defective::new(files, defect)),
        None => files,
    };
    let mut actor = Actor { root, files, buffer };
    let mut datagram = vec![0; DATAGRAM_BYTES];
    loop {
        let received = socket.recv(&mut datagram)?;
        if received == 0 {
            return Ok(());
        }
        let command: Command = postcard::from_bytes(&datagram[..received]).map_err(other)?;
        if command == Command::Quit {
            return Ok(());
        }
        let answer = actor
            .answer(command)
            .unwrap_or_else(|failure| Answer::failed(failure.errno, failure.message));
        let bytes = postcard::to_stdvec(&answer).map_err(other)?;
        socket.send(&bytes)?;
    }
}

fn other(error: postcard::Error) -> io::Error {
    io::Error::other(error)
}

impl Actor {
    fn answer(&mut self, command: Command) -> Result<Answer, Failure> {
        let done = |()| Answer::default();
        match command {
            Command::Open { slot, path, opening } => {
                self.files.open(slot, &path, opening).map(done)
            }
            Command::Read { slot, offset, length } => {
                let buffer = &mut self.buffer.bytes_mut()[..length as usize];
                self.files.read(slot, offset, buffer).map(Answer::of)
            }
            Command::ReadMapped { slot, offset, length } => {
                let buffer = &mut self.buffer.bytes_mut()[..length as usize];
                self.files.read_mapped(slot, offset, buffer).map(Answer::of)
            }
            Command::Write { slot, offset, length } => {
                let data = &self.buffer.bytes()[..length as usize];
                self.files.write(slot, offset, data).map(done)
            }
            Command::SetSize { slot, size } => self.files.set_size(slot, size).map(done),
            Command::Punch { slot, offset, length } => {
                self.files.punch(slot, offset, length).map(done)
            }
            Command::Sync { slot } => self.files.sync(slot).map(done),
            Command::Size { slot } => self.files.size(slot).map(Answer::of),
            Command::Close { slot } => self.files.close(slot).map(done),
            Command::CloseAll => {
                self.files.close_all();
                Ok(Answer::default())
            }
            Command::Admin { request, path } => self.files.admin(request, path.as_deref()),
            by_name => self.answer_by_name(by_name),
        }
    }

    fn answer_by_name(&mut self, command: Command) -> Result<Answer, Failure> {
        let at = |path: &str| self.root.join(path);
        match command {
            Command::Stat { path } => {
                let facts = std::fs::metadata(at(&path))?;
                return Ok(Answer { links: facts.nlink(), ..Answer::of(facts.size()) });
            }
            Command::Rename { from, to } => std::fs::rename(at(&from), at(&to))?,
            Command::Link { from, to } => std::fs::hard_link(at(&from), at(&to))?,
            Command::Unlink { path } => std::fs::remove_file(at(&path))?,
            Command::TruncatePath { path, size } => truncate(&at(&path), size)?,
            Command::IsStub { path } => {
                let mut value = [0; 512];
                let marked =
                    rustix::fs::getxattr(at(&path), "user.tidepool.memory", value.as_mut_slice());
                let is_held = |mark: &[u8]| mark.windows(10).any(|words| words == b"state=held");
                return Ok(Answer::of(match marked {
                    Ok(length) if is_held(&value[..length]) => StubNow::Held,
                    Ok(_) => StubNow::Writing,
                    Err(_) => StubNow::No,
                } as u64));
            }
            Command::Change { path, change } => {
                change_outside(&at(&path), change, self.buffer.bytes())?;
            }
            handled_elsewhere => {
                let message = format!("{handled_elsewhere:?} is not by name");
                return Err(Failure { errno: libc::EINVAL, message });
            }
        }
        Ok(Answer::default())
    }
}

/// Changes a file as a program would that never heard of Tidepool.
fn change_outside(path: &Path, change: OutsideChange, bytes: &[u8]) -> io::Result<()> {
    match change {
        OutsideChange::Overwrite { offset, length, restore_times } => {
            let file = File::options().read(true).write(true).open(path)?;
            let before = file.metadata()?;
            file.write_all_at(&bytes[..length as usize], offset)?;
            if restore_times {
                set_times_of(&file, &before)?;
            }
        }
        OutsideChange::Replace { length, restore_times } => {
            let before = std::fs::metadata(path)?;
            let mut beside = path.as_os_str().to_owned();
            beside.push(".new");
            let file = File::create(&beside)?;
            file.write_all_at(&bytes[..length as usize], 0)?;
            if restore_times {
                set_times_of(&file, &before)?;
            }
            std::fs::rename(&beside, path)?;
        }
        OutsideChange::Recreate { length } => {
            std::fs::remove_file(path)?;
            let file = File::create_new(path)?;
            file.write_all_at(&bytes[..length as usize], 0)?;
        }
        OutsideChange::Truncate { size } => truncate(path, size)?,
        OutsideChange::Append { length } => {
            let file = File::options().append(true).open(path)?;
            file.write_all_at(&bytes[..length as usize], 0)?;
        }
    }
    Ok(())
}

fn set_times_of(file: &File, times: &std::fs::Metadata) -> io::Result<()> {
    let times =
        std::fs::FileTimes::new().set_accessed(times.accessed()?).set_modified(times.modified()?);
    file.set_times(times)
}

/// `truncate(2)`, which neither opens the file nor goes by a handle.
fn truncate(path: &Path, size: u64) -> io::Result<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: the path is a string that ends with a zero and outlives the call.
    match unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
