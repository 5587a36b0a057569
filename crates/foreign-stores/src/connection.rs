//! A connection to a store's server on this node, with a time limit on every step.
//!
//! It speaks lines and blocks of bytes, knows no protocol, and refuses servers on other machines:
//! their memory is not this node's.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind as IoKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tidepool_proto::{Error, ErrorKind, Result};

/// Longest time for one answer, whatever the deadline of the command.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(2);
/// What has come in time is read for so long after it, as on a busy machine.
const READY_TIME: Duration = Duration::from_millis(100);
/// No answer of a store is a longer line.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// No answer is longer, all its lines together. Whoever listens there must not fill this process.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// One read or write, given up after `time`: a clock tick earlier, or some later.
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        let time = Some(time.max(Duration::from_millis(1)));
        match self {
            Socket::Tcp(socket) => {
                socket.set_read_timeout(time).and_then(|()| socket.set_write_timeout(time))
            }
            Socket::Unix(socket) => {
                socket.set_read_timeout(time).and_then(|()| socket.set_write_timeout(time))
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket) => socket.read(buffer),
        }
    }

    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(buffer),
            Socket::Unix(socket) => socket.write(buffer),
        }
    }
}

/// A socket whose steps end at `until`, and not before, also where bytes keep coming.
struct Stream {
    socket: Socket,
    until: Instant,
    /// Bytes that the present answer may still have.
    left_bytes: u64,
}

impl Stream {
    fn step<T>(
        &mut self,
        mut step: impl FnMut(&mut Socket) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        loop {
            match step(&mut self.socket) {
                // The kernel counts in its clock's ticks, and ends up to one too early.
                Err(error) if error.kind() == IoKind::WouldBlock && Instant::now() < self.until => {
                    self.limit()?;
                }
                done => return done,
            }
        }
    }

    fn limit(&self) -> std::io::Result<()> {
        self.socket.limit(self.until.saturating_duration_since(Instant::now()))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left_bytes == 0 {
            return Err(IoKind::FileTooLarge.into());
        }
        let late = Instant::now().saturating_duration_since(self.until);
        if late > READY_TIME {
            return Err(IoKind::TimedOut.into());
        }
        if late > Duration::ZERO {
            self.limit()?;
        }
        let read = self.step(|socket| socket.read(buffer))?;
        self.left_bytes = self.left_bytes.saturating_sub(read as u64);
        Ok(read)
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        self.step(|socket| socket.write(buffer))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One connection.
pub(crate) struct Connection {
    address: String,
    stream: BufReader<Stream>,
}

impl Connection {
    /// Connects to `host:port`, or to a Unix socket where the address holds a `/`.
    pub fn open(address: &str) -> Result<Self> {
        let socket = if address.contains('/') { open_unix(address) } else { open_tcp(address) }?;
        let stream = Stream { socket, until: Instant::now(), left_bytes: 0 };
        Ok(Connection { address: address.to_owned(), stream: BufReader::new(stream) })
    }

    /// Sends `request`; its answer must be there by `deadline`, and within [`ANSWER_TIME`].
    pub fn send(&mut self, request: &[u8], deadline: Instant) -> Result<()> {
        let now = Instant::now();
        if now >= deadline {
            return Err(self.late());
        }
        let stream = self.stream.get_mut();
        stream.until = deadline.min(now + ANSWER_TIME);
        stream.left_bytes = ANSWER_BYTES_MAX;
        let sent = stream.limit().and_then(|()| stream.write_all(request));
        sent.map_err(|error| self.broken(error))
    }

    /// Reads a line without its end.
    pub fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut line);
        read.map_err(|error| self.broken(error))?;
        if line.pop() != Some(b'\n') {
            return Err(match line.len() {
                0..2 => self.broken(IoKind::UnexpectedEof.into()),
                _ => self.garbage("an answer without end"),
            });
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|_| self.garbage("an answer that is no text"))
    }

    /// Reads exactly `length` bytes.
    pub fn block(&mut self, length: usize) -> Result<Vec<u8>> {
        if length as u64 > ANSWER_BYTES_MAX {
            return Err(self.broken(IoKind::FileTooLarge.into()));
        }
        let mut block = vec![0; length];
        let read = self.stream.read_exact(&mut block);
        read.map_err(|error| self.broken(error))?;
        Ok(block)
    }

    /// One of the figures that the server told by name.
    pub fn number(&self, figures: &HashMap<String, String>, name: &str) -> Result<u64> {
        let value = figures.get(name).and_then(|value| value.parse().ok());
        value.ok_or_else(|| self.garbage(&format!("no figure {name}")))
    }

    /// The error of an answer that makes no sense.
    pub fn garbage(&self, answer: &str) -> Error {
        let shown: String = answer.chars().take(80).collect();
        let operation = format!("asking the store at {}", self.address);
        Error::new(ErrorKind::Protocol, operation, format!("not understood: `{shown}`"))
            .remedy("check that `kind` and `address` name the same server")
    }

    /// The error of a command that the server refused.
    pub fn refused(&self, kind: ErrorKind, what: &str, remedy: &str) -> Error {
        let operation = format!("asking the store at {}", self.address);
        Error::new(kind, operation, what).remedy(remedy)
    }

    fn late(&self) -> Error {
        let operation = format!("asking the store at {}", self.address);
        Error::new(ErrorKind::TimedOut, operation, "the deadline passed")
    }

    fn broken(&self, error: std::io::Error) -> Error {
        let operation = format!("asking the store at {}", self.address);
        match error.kind() {
            IoKind::WouldBlock | IoKind::TimedOut => {
                Error::new(ErrorKind::TimedOut, operation, "no answer in time")
                    .remedy("the server hangs, or `address` names something else")
            }
            IoKind::FileTooLarge => self.garbage("an answer of more than 4 MiB"),
            _ => Error::new(ErrorKind::StoreUnavailable, operation, "the connection ended")
                .caused_by(error)
                .remedy("the server ended or dropped us; look at its log"),
        }
    }
}

fn unreachable(address: &str, error: std::io::Error) -> Error {
    let operation = format!("connecting to the store at {address}");
    Error::new(ErrorKind::StoreUnavailable, operation, "")
        .caused_by(error)
        .remedy("start the server, or correct `address`")
}

fn open_unix(path: &str) -> Result<Socket> {
    UnixStream::connect(path).map(Socket::Unix).map_err(|error| unreachable(path, error))
}

fn open_tcp(address: &str) -> Result<Socket> {
    let found = address.to_socket_addrs().map_err(|error| {
        let operation = format!("connecting to the store at {address}");
        Error::new(ErrorKind::InvalidInput, operation, "")
            .caused_by(error)
            .remedy("write `address` as host:port, or as the path of a Unix socket")
    })?;
    let mut last = std::io::Error::from(IoKind::NotFound);
    for place in found {
        let stream = match TcpStream::connect_timeout(&place, ANSWER_TIME) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        let own = stream.local_addr().map_err(|error| unreachable(address, error))?;
        // A program that connects to an address of this machine has that address as its own.
        if !place.ip().is_loopback() && own.ip() != place.ip() {
            let operation = format!("connecting to the store at {address}");
            return Err(Error::new(ErrorKind::InvalidInput, operation, "on another machine")
                .remedy("control a store on the node whose memory it uses"));
        }
        let _ = stream.set_nodelay(true);
        return Ok(Socket::Tcp(stream));
    }
    Err(unreachable(address, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers a line without end, over and over.
    fn flooding(line: &'static [u8]) -> (Connection, std::thread::JoinHandle<()>) {
        let (socket, mut server) = UnixStream::pair().unwrap();
        let stream = Stream { socket: Socket::Unix(socket), until: Instant::now(), left_bytes: 0 };
        let connection = Connection { address: "here".to_owned(), stream: BufReader::new(stream) };
        (connection, std::thread::spawn(move || while server.write_all(line).is_ok() {}))
    }

    #[test]
    fn an_answer_without_end_is_given_up() {
        let (mut connection, server) = flooding(b"STAT a 1\r\n");
        connection.send(b"stats\r\n", Instant::now() + Duration::from_secs(60)).unwrap();
        let (mut bytes, mut lines) = (0, 0);
        let error = loop {
            match connection.line() {
                Ok(line) => (bytes, lines) = (bytes + line.len() as u64, lines + 1),
                Err(error) => break error,
            }
            assert!(bytes <= ANSWER_BYTES_MAX, "{lines} lines");
        };
        // Of a slow machine the time may be over first.
        let kinds = [ErrorKind::Protocol, ErrorKind::TimedOut];
        assert!(kinds.contains(&error.kind()), "{error}");
        assert!(connection.block(usize::MAX).is_err(), "whatever length it tells");
        drop(connection);
        server.join().unwrap();
    }

    #[test]
    fn an_answer_that_keeps_coming_ends_with_its_time() {
        let (mut connection, server) = flooding(b"x");
        connection.send(b"stats\r\n", Instant::now() + ANSWER_TIME).unwrap();
        connection.stream.get_mut().until -= ANSWER_TIME + 2 * READY_TIME;
        let error = connection.block(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        drop(connection);
        server.join().unwrap();
    }

    #[test]
    fn a_clock_tick_too_early_is_not_late() {
        let (socket, _silent) = UnixStream::pair().unwrap();
        let until = Instant::now() + Duration::from_millis(20);
        let mut stream = Stream { socket: Socket::Unix(socket), until, left_bytes: 1 };
        let early = |_: &mut Socket| Err::<usize, _>(IoKind::WouldBlock.into());
        assert_eq!(stream.step(early).unwrap_err().kind(), IoKind::WouldBlock);
        assert!(Instant::now() >= until);
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), IoKind::WouldBlock);
    }
}
