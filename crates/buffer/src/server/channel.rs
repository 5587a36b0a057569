//! [`Channel`]: what comes in, line by line and value by value, and what goes out.

use std::io::{self, ErrorKind, IoSlice};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::wire::Wire;
use crate::memory::Value;

const INPUT_BYTES: usize = 16 << 10;
/// A line that is longer than this asks for many keys, or is none.
const LINE_BYTES_MAX: usize = 2048;
/// The same of a line that asks for many keys.
const KEYS_BYTES_MAX: usize = 256 << 10;
/// Answers that are gathered before they are sent.
const OUTPUT_BYTES: usize = 256 << 10;
const SLICES_MAX: usize = 64;
const LINE_END: &[u8] = b"\r\n";

/// A connection with what was read ahead and what is to be sent.
pub struct Channel<'a> {
    wire: Box<dyn Wire + 'a>,
    input: Vec<u8>,
    /// Where what was not taken yet begins.
    taken: usize,
    output: Vec<Part>,
    output_bytes: usize,
    message_timeout: Duration,
}

enum Part {
    Text(Vec<u8>),
    Value(Arc<Value>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Part::Text(text) => text,
            Part::Value(value) => value.bytes(),
        }
    }
}

impl Channel<'static> {
    /// Over a connection. Whoever stands still within a message for `message_timeout` is left.
    ///
    /// # Errors
    /// The socket takes no settings.
    pub fn new(stream: Arc<TcpStream>, message_timeout: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(message_timeout))?;
        Ok(Channel::over(Box::new(stream), message_timeout))
    }
}

impl<'a> Channel<'a> {
    /// Over anything else.
    pub fn over(wire: Box<dyn Wire + 'a>, message_timeout: Duration) -> Self {
        let (input, output) = (Vec::with_capacity(INPUT_BYTES), Vec::new());
        Channel { wire, input, taken: 0, output, output_bytes: 0, message_timeout }
    }

    /// The next line without its end, once one is there; `None` at the end of the connection, or
    /// where no line comes. Answers are sent before anything is waited for.
    ///
    /// # Errors
    /// The connection broke.
    pub fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut searched = self.taken;
        loop {
            if let Some(length) = memchr::memchr(b'\n', &self.input[searched..]) {
                let (begin, end) = (self.taken, searched + length);
                self.taken = end + 1;
                let line = &self.input[begin..end];
                return Ok(Some(line.strip_suffix(b"\r").unwrap_or(line).to_vec()));
            }
            let there = &self.input[self.taken..];
            let asks_for_many = there.starts_with(b"get") || there.starts_with(b"gat");
            let most = if asks_for_many { KEYS_BYTES_MAX } else { LINE_BYTES_MAX };
            if there.len() > most {
                return Ok(None);
            }
            self.flush()?;
            let known = there_after_move(&mut self.input, &mut self.taken);
            if !self.read_more(None)? {
                return Ok(None);
            }
            searched = known;
        }
    }

    /// Reads a value of `length` bytes and the end of its line, into a buffer that is asked for a
    /// length; `None` where that is something else. All of it has to come within the timeout: room
    /// is held for it.
    ///
    /// # Errors
    /// The connection ended or broke.
    pub fn value(
        &mut self,
        length: usize,
        buffer: impl FnOnce(usize) -> Vec<u8>,
    ) -> io::Result<Option<Vec<u8>>> {
        // The end of its line is read with it.
        let mut value = buffer(length + LINE_END.len());
        let there = &self.input[self.taken..];
        let known = there.len().min(length);
        value.extend_from_slice(&there[..known]);
        self.taken += known;
        if known < length {
            self.flush()?;
        }
        let until = Instant::now() + self.message_timeout;
        while value.len() < length {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            if self.wire.read_onto(&mut value, left)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        if value.len() > length {
            // All of the input was taken before something was read onto the value.
            self.input.clear();
            self.input.extend_from_slice(&value[length..]);
            self.taken = 0;
            value.truncate(length);
        }
        while self.input.len() - self.taken < LINE_END.len() {
            self.flush()?;
            there_after_move(&mut self.input, &mut self.taken);
            if !self.read_more(Some(self.message_timeout))? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let is_ended = self.input[self.taken..].starts_with(LINE_END);
        self.taken += LINE_END.len();
        Ok(is_ended.then_some(value))
    }

    /// Passes over bytes.
    ///
    /// # Errors
    /// The connection ended or broke.
    pub fn skip(&mut self, mut bytes: u64) -> io::Result<()> {
        loop {
            let there = (self.input.len() - self.taken) as u64;
            let known = there.min(bytes);
            self.taken += known as usize;
            bytes -= known;
            if bytes == 0 {
                return Ok(());
            }
            there_after_move(&mut self.input, &mut self.taken);
            if !self.read_more(Some(self.message_timeout))? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Answers with text.
    ///
    /// # Errors
    /// The connection broke.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        match self.output.last_mut() {
            Some(Part::Text(last)) => last.extend_from_slice(text.as_bytes()),
            _ => self.output.push(Part::Text(text.as_bytes().to_vec())),
        }
        self.count(text.len())
    }

    /// Answers with bytes that are no text.
    ///
    /// # Errors
    /// The connection broke.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.output.last_mut() {
            Some(Part::Text(last)) => last.extend_from_slice(bytes),
            _ => self.output.push(Part::Text(bytes.to_vec())),
        }
        self.count(bytes.len())
    }

    /// Answers with a value and the end of its line.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&mut self, value: &Arc<Value>) -> io::Result<()> {
        self.output.push(Part::Value(value.clone()));
        self.count(value.bytes().len())?;
        self.text("\r\n")
    }

    fn count(&mut self, bytes: usize) -> io::Result<()> {
        self.output_bytes += bytes;
        if self.output_bytes > OUTPUT_BYTES { self.flush() } else { Ok(()) }
    }

    /// Sends what is gathered.
    ///
    /// # Errors
    /// The connection broke, or the client takes nothing.
    pub fn flush(&mut self) -> io::Result<()> {
        let parts = std::mem::take(&mut self.output);
        self.output_bytes = 0;
        for parts in parts.chunks(SLICES_MAX) {
            let mut slices: Vec<IoSlice<'_>> =
                parts.iter().map(|part| IoSlice::new(part.bytes())).collect();
            let mut left = &mut slices[..];
            while !left.is_empty() {
                let sent = match self.wire.write_vectored(left) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(sent) => sent,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                IoSlice::advance_slices(&mut left, sent);
                while left.first().is_some_and(|slice| slice.is_empty()) {
                    left = &mut left[1..];
                }
            }
        }
        Ok(())
    }

    /// Reads what is there behind what is known; false at the end.
    fn read_more(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let known = self.input.len();
        self.input.resize(known + INPUT_BYTES, 0);
        let read = self.wire.read(&mut self.input[known..], timeout);
        self.input.truncate(known + *read.as_ref().unwrap_or(&0));
        Ok(read? > 0)
    }
}

/// Moves what was not taken yet to the front; its length.
fn there_after_move(input: &mut Vec<u8>, taken: &mut usize) -> usize {
    input.drain(..*taken);
    *taken = 0;
    input.len()
}
