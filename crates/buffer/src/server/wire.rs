//! [`Wire`]: what a session reads commands from, and writes answers to.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// See the module's documentation.
pub trait Wire: Send {
    /// Reads what is there, and waits for some, not longer than `wait`; 0 at the end.
    ///
    /// # Errors
    /// It broke, or nothing came in time.
    fn read(&mut self, into: &mut [u8], wait: Option<Duration>) -> io::Result<usize>;

    /// Reads what is there onto what has room for it, and waits for some, not longer than `wait`;
    /// how much, 0 at the end.
    ///
    /// # Errors
    /// It broke, or nothing came in time.
    fn read_onto(&mut self, onto: &mut Vec<u8>, wait: Duration) -> io::Result<usize>;

    /// Writes a part of this.
    ///
    /// # Errors
    /// It broke, or nothing is taken.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Wire for Arc<TcpStream> {
    fn read(&mut self, into: &mut [u8], wait: Option<Duration>) -> io::Result<usize> {
        self.set_read_timeout(wait)?;
        loop {
            match Read::read(&mut &**self, into) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn read_onto(&mut self, onto: &mut Vec<u8>, wait: Duration) -> io::Result<usize> {
        self.set_read_timeout(Some(wait))?;
        // Without writing zeros there first, which takes longer than the copy.
        let read = || rustix::io::read(&**self, rustix::buffer::spare_capacity(onto));
        Ok(rustix::io::retry_on_intr(read)?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Write::write_vectored(&mut &**self, parts)
    }
}

/// Commands that came in one message; the answers are gathered for another one.
pub struct Message<'a> {
    /// What is left of the commands.
    pub commands: &'a [u8],
    /// The answers.
    pub answers: Vec<u8>,
    /// Most bytes of them.
    pub answers_max: usize,
}

impl Wire for &mut Message<'_> {
    fn read(&mut self, into: &mut [u8], _: Option<Duration>) -> io::Result<usize> {
        self.commands.read(into)
    }

    fn read_onto(&mut self, onto: &mut Vec<u8>, _: Duration) -> io::Result<usize> {
        let room = (onto.capacity() - onto.len()).min(self.commands.len());
        let (read, left) = self.commands.split_at(room);
        onto.extend_from_slice(read);
        self.commands = left;
        Ok(room)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if self.answers.len() + bytes > self.answers_max {
            return Err(io::Error::other("the answers are too long for a message"));
        }
        self.answers.write_vectored(parts)
    }
}
