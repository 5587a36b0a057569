//! [`Stream`]: the way to a server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// See the module's documentation. What is written is there for the server when something is read.
pub trait Stream: Read + Write + Send {
    /// No read or write takes longer than this from now on.
    ///
    /// # Errors
    /// It broke.
    fn set_left(&mut self, left: Duration) -> io::Result<()>;

    /// Most packets that are asked for at a time: nothing is read while that is sent, and the
    /// answer has to fit.
    fn asked_max(&self) -> usize;

    /// Has each message begin with what the client calls it; false where there are none, and it is
    /// told once.
    fn name_messages(&mut self, name: &str) -> bool;

    /// Which start of a server answered messages that have a name; one stream has one.
    fn start(&self) -> Option<u64>;

    /// Whether nothing came that was not read.
    fn is_quiet(&self) -> bool;

    /// A command ended; the next one has so many bytes.
    ///
    /// # Errors
    /// It broke.
    fn next_command(&mut self, bytes: usize) -> io::Result<()>;
}

/// Makes a way to a server. It may take as long as is told.
pub type Connect = Box<dyn Fn(Duration) -> io::Result<Box<dyn Stream>> + Send + Sync>;

/// By TCP, as to memcached.
pub fn tcp(address: SocketAddr) -> Connect {
    Box::new(move |limit| {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    })
}

/// The same, to a host and a port, which are looked up each time.
pub fn tcp_by_name(address: String) -> Connect {
    Box::new(move |limit| {
        let none = || io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        let address = address.to_socket_addrs()?.next().ok_or_else(none)?;
        tcp(address)(limit)
    })
}

/// By messages that are answered: of up to `bytes_max` bytes, and so are the answers. Each begins
/// with `head`. `call` may take as long as it is told.
pub fn messages(
    bytes_max: usize,
    head: Vec<u8>,
    call: impl Fn(&[u8], Duration) -> io::Result<Vec<u8>> + Clone + Send + Sync + 'static,
) -> Connect {
    Box::new(move |limit| {
        let call = Box::new(call.clone());
        let begin = Begin { bytes: head.clone(), is_named: false };
        let (message, answers) = (head.clone(), io::Cursor::default());
        Ok(Box::new(Messages {
            call,
            bytes_max,
            begin,
            message,
            answers,
            start: None,
            left: limit,
        }))
    })
}

impl Stream for TcpStream {
    fn set_left(&mut self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }

    fn asked_max(&self) -> usize {
        64
    }

    fn name_messages(&mut self, _: &str) -> bool {
        false
    }

    fn start(&self) -> Option<u64> {
        None
    }

    fn is_quiet(&self) -> bool {
        let there = self.set_nonblocking(true).and_then(|()| self.peek(&mut [0]));
        let is_quiet = matches!(there, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        self.set_nonblocking(false).is_ok() && is_quiet
    }

    fn next_command(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }
}

/// Which start of a server answers so to a name.
pub fn start_of(line: &[u8]) -> Option<u64> {
    let start = std::str::from_utf8(line).ok()?.trim_end().strip_prefix("HELLO ")?;
    u64::from_str_radix(start, 16).ok()
}

/// What each message begins with.
struct Begin {
    bytes: Vec<u8>,
    /// It has the name of the connection, which is answered.
    is_named: bool,
}

struct Messages<C> {
    call: Box<C>,
    bytes_max: usize,
    begin: Begin,
    /// The next one, from its begin on.
    message: Vec<u8>,
    answers: io::Cursor<Vec<u8>>,
    start: Option<u64>,
    left: Duration,
}

impl<C> Messages<C> {
    fn is_empty(&self) -> bool {
        self.message.len() == self.begin.bytes.len()
    }
}

impl<C: Fn(&[u8], Duration) -> io::Result<Vec<u8>>> Messages<C> {
    fn exchange(&mut self) -> io::Result<()> {
        let answered = (self.call)(&self.message, self.left);
        self.message.truncate(self.begin.bytes.len());
        let answers = answered?;
        let mut own = &answers[..];
        if self.begin.is_named {
            let strange = || io::Error::other("it does not know names of messages");
            let length = memchr::memchr(b'\n', own).ok_or_else(strange)?;
            let start = start_of(&own[..length]).ok_or_else(strange)?;
            // What earlier messages brought into its memory is gone.
            if self.start.replace(start).is_some_and(|before| before != start) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            own = &own[length + 1..];
        }
        self.answers.get_mut().extend_from_slice(own);
        Ok(())
    }
}

impl<C: Fn(&[u8], Duration) -> io::Result<Vec<u8>> + Send> Stream for Messages<C> {
    fn set_left(&mut self, left: Duration) -> io::Result<()> {
        self.left = left;
        Ok(())
    }

    fn asked_max(&self) -> usize {
        1
    }

    fn name_messages(&mut self, name: &str) -> bool {
        self.begin.bytes.extend_from_slice(format!("hello {name}\r\n").as_bytes());
        self.begin.is_named = true;
        self.message = self.begin.bytes.clone();
        true
    }

    fn start(&self) -> Option<u64> {
        self.start
    }

    fn is_quiet(&self) -> bool {
        self.answers.get_ref().is_empty()
    }

    fn next_command(&mut self, bytes: usize) -> io::Result<()> {
        if self.is_empty() || self.message.len() + bytes <= self.bytes_max {
            return Ok(());
        }
        self.exchange()
    }
}

impl<C: Fn(&[u8], Duration) -> io::Result<Vec<u8>>> Read for Messages<C> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.is_empty() {
            self.exchange()?;
        }
        let read = self.answers.read(into)?;
        if self.answers.position() as usize == self.answers.get_ref().len() {
            self.answers = io::Cursor::default();
        }
        Ok(read)
    }
}

impl<C> Write for Messages<C> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.message.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
