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

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if self.answers.len() + bytes > self.answers_max {
            return Err(io::Error::other("the answers are too long for a message"));
        }
        self.answers.write_vectored(parts)
    }
}
