//! The driver's side of its actors: starting child processes, sending commands, the buffers.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::defects::Defect;
use super::wire::{Answer, BUFFER_BYTES, Command, DATAGRAM_BYTES};
use crate::buffer::SharedBuffer;

/// What an actor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A program on the mount.
    Mount,
    /// A program with the client library.
    Library,
    /// A program on the PFS directory that knows nothing of Tidepool.
    Outside,
}

/// How to start an actor.
#[derive(Clone, Debug)]
pub struct ActorSpec {
    /// What it stands for.
    pub role: Role,
    /// Directory that its paths are below.
    pub root: PathBuf,
    /// Socket of the node, for the library.
    pub socket: Option<PathBuf>,
    /// Misbehave.
    pub defect: Option<Defect>,
}

/// Longest time for one command. Beyond it the actor hangs, which is a finding.
const COMMAND_LIMIT: Duration = Duration::from_secs(40);

/// A running actor.
#[derive(Debug)]
pub struct Actor {
    /// What it stands for.
    pub role: Role,
    spec: ActorSpec,
    program: PathBuf,
    child: Child,
    socket: UnixDatagram,
    buffer: SharedBuffer,
    datagram: Vec<u8>,
}

impl Actor {
    /// Starts `program`, the actor binary.
    pub fn start(program: &Path, spec: &ActorSpec) -> io::Result<Actor> {
        let buffer = SharedBuffer::create(BUFFER_BYTES)?;
        // Sequenced packets: as datagrams, but the death of the other side shows.
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let socket = UnixDatagram::from(ours);
        socket.set_read_timeout(Some(COMMAND_LIMIT))?;
        let mut process = Process::new(program);
        process.arg("--root").arg(&spec.root);
        if let Some(socket) = &spec.socket {
            process.arg("--socket").arg(socket);
        }
        if let Some(defect) = spec.defect {
            let name = clap::ValueEnum::to_possible_value(&defect);
            process.arg("--defect").arg(name.map_or(String::new(), |v| v.get_name().to_owned()));
        }
        let child =
            process.stdin(Stdio::from(theirs)).stdout(Stdio::from(buffer.share()?)).spawn()?;
        Ok(Actor {
            role: spec.role,
            spec: spec.clone(),
            program: program.to_owned(),
            child,
            socket,
            buffer,
            datagram: vec![0; DATAGRAM_BYTES],
        })
    }

    /// Ends it, however it is, and starts it anew.
    pub fn restart(&mut self) -> io::Result<()> {
        let fresh = Actor::start(&self.program, &self.spec)?;
        *self = fresh;
        Ok(())
    }

    /// Has a command carried out. An error means that the actor died or hangs.
    pub fn ask(&mut self, command: &Command) -> io::Result<Answer> {
        let bytes = postcard::to_stdvec(command).map_err(io::Error::other)?;
        let died = |what: &str, error: io::Error| {
            io::Error::other(format!("the {:?} actor {what} ({error}): {command:?}", self.role))
        };
        self.socket.send(&bytes).map_err(|error| died("died", error))?;
        let received =
            self.socket.recv(&mut self.datagram).map_err(|error| died("did not answer", error))?;
        if received == 0 {
            return Err(died("died", io::ErrorKind::UnexpectedEof.into()));
        }
        postcard::from_bytes(&self.datagram[..received]).map_err(io::Error::other)
    }

    /// What it read, or is to write.
    pub fn buffer(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It may hang in a system call of a dead mount; its end is waited for, not its consent.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
