//! Moves bytes over a TCP socket, with deadlines. Knows nothing of frames.
//!
//! Sockets do not block; a thread that has to wait waits in `poll`, never longer than it may.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, ipproto,
    recv, send, sendmsg, sockopt,
};

/// Most bytes that a socket may queue, and by that pin of a segment.
const SEND_QUEUE_BYTES_MAX: usize = 4 << 20;
/// Bytes that one call gives to `sendfile`, so that deadlines are looked at between two.
const SENDFILE_BYTES_MAX: usize = 1 << 20;
/// The algorithm for peers: within a cluster it needs a fifth of the processor time of `bbr`, which
/// cuts what is sent into small packets to pace them.
const CONGESTION_CONTROL: &str = "cubic";

/// How long a thread waits: no longer than `silence` without a byte, and not after `until`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub silence: Duration,
    pub until: Instant,
}

impl Patience {
    /// For all of it together.
    pub fn within(limit: Duration) -> Self {
        Self { silence: limit, until: deadline_after(limit) }
    }

    /// How long the next wait may be; none when the time is over.
    fn next(&self) -> Option<Duration> {
        let remaining = self.until.checked_duration_since(Instant::now())?;
        Some(remaining.min(self.silence)).filter(|wait| !wait.is_zero())
    }
}

/// The moment `limit` from now; a year from now where the clock does not reach it.
pub(crate) fn deadline_after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}

/// Whether one of `events` came before `wait` was over.
pub(crate) fn ready(socket: &impl AsFd, events: PollFlags, wait: Duration) -> io::Result<bool> {
    let deadline = deadline_after(wait);
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(socket, events)], Some(&timeout)) {
            Ok(0) if Instant::now() >= deadline => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for bytes, or for the end of the stream.
pub(crate) fn wait_readable(socket: &impl AsFd, patience: Patience) -> io::Result<()> {
    let wait = patience.next().ok_or_else(timed_out)?;
    if ready(socket, PollFlags::IN, wait)? { Ok(()) } else { Err(timed_out()) }
}

/// Waits for room in the socket's queue. A queue that shrinks is no silence, even where it does
/// not yet shrink enough for the kernel to call the socket writable.
fn wait_writable(socket: &impl AsFd, patience: Patience) -> io::Result<()> {
    loop {
        let before = queued_bytes(socket);
        let wait = patience.next().ok_or_else(timed_out)?;
        if ready(socket, PollFlags::OUT, wait)? {
            return Ok(());
        }
        if queued_bytes(socket) >= before {
            return Err(timed_out());
        }
    }
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Some bytes, at least one.
///
/// # Errors
/// `UnexpectedEof` at the end of the stream, `TimedOut`, and those of the socket.
pub(crate) fn receive_some(
    socket: &impl AsFd,
    into: &mut [u8],
    patience: Patience,
) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *into, RecvFlags::DONTWAIT) {
            Ok((0, _)) if !into.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            // A peer that always has a byte more is not waited for longer either.
            Ok(_) if Instant::now() > patience.until => return Err(timed_out()),
            Ok((received, _)) => return Ok(received),
            Err(Errno::AGAIN) => wait_readable(socket, patience)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Lets [`receive_body`] wait in the kernel: waits in `poll` between the packets of a block cost
/// rate. Everything else never blocks, whatever the mode of the socket.
pub(crate) fn prepare_reader(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(false)
}

/// Makes the waits of [`receive_body`] end after `silence`.
pub(crate) fn limit_waits(socket: &impl AsFd, silence: Duration) -> io::Result<()> {
    // The kernel takes zero for no limit, and not every long time.
    let wait = silence.clamp(Duration::from_millis(1), Duration::from_secs(3600));
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(wait))?)
}

/// Some bytes of many, as [`receive_some`], on a socket with limited waits. The last wait may end
/// as much as `silence` after the deadline.
pub(crate) fn receive_body(
    socket: &impl AsFd,
    into: &mut [u8],
    patience: Patience,
) -> io::Result<usize> {
    loop {
        if Instant::now() > patience.until {
            return Err(timed_out());
        }
        match recv(socket, &mut *into, RecvFlags::empty()) {
            Ok((0, _)) if !into.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((received, _)) => return Ok(received),
            Err(Errno::AGAIN) => return Err(timed_out()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// All of `bytes`. With `more` the kernel may keep a part packet until the rest comes.
pub(crate) fn send_all(
    socket: &impl AsFd,
    mut bytes: &[u8],
    more: bool,
    patience: Patience,
) -> io::Result<()> {
    let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    flags.set(SendFlags::MORE, more);
    while !bytes.is_empty() {
        match send(socket, bytes, flags) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::AGAIN) => wait_writable(socket, patience)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // A peer that drips is not served for ever.
        if !bytes.is_empty() && Instant::now() > patience.until {
            return Err(timed_out());
        }
    }
    Ok(())
}

/// Sends up to `length` bytes of `file` from `offset`; fewer, where the file gives no more.
///
/// The process ignores SIGPIPE, as Rust programs do from their start: `sendfile` has no flag for
/// it.
///
/// # Errors
/// Those of the socket. A file that cannot be read is a file that gives no more.
pub(crate) fn send_file(
    socket: &impl AsFd,
    file: &impl AsFd,
    offset: u64,
    length: usize,
    patience: Patience,
) -> io::Result<usize> {
    let mut at = offset;
    let mut remaining = length;
    while remaining > 0 {
        let count = remaining.min(SENDFILE_BYTES_MAX);
        match rustix::fs::sendfile(socket, file, Some(&mut at), count) {
            Ok(0) => break,
            Ok(sent) => remaining -= sent,
            Err(Errno::AGAIN) => wait_writable(socket, patience)?,
            Err(Errno::INTR) => {}
            Err(
                error @ (Errno::PIPE
                | Errno::CONNRESET
                | Errno::CONNABORTED
                | Errno::TIMEDOUT
                | Errno::NOTCONN
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::NETDOWN),
            ) => return Err(error.into()),
            Err(_) => break,
        }
        if remaining > 0 && Instant::now() > patience.until {
            return Err(timed_out());
        }
    }
    Ok(length - remaining)
}

/// The first byte that has come and was not read; `None` at the end of the stream.
pub(crate) fn peek(socket: &impl AsFd) -> io::Result<Option<u8>> {
    let mut byte = [0];
    let (received, _) = recv(socket, &mut byte[..], RecvFlags::DONTWAIT | RecvFlags::PEEK)?;
    Ok((received == 1).then_some(byte[0]))
}

/// Some of the bytes of these parts, at least one.
pub(crate) fn send_parts(
    socket: &impl AsFd,
    parts: &[io::IoSlice<'_>],
    patience: Patience,
) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        let mut control = SendAncillaryBuffer::default();
        match sendmsg(socket, parts, &mut control, flags) {
            // A peer that drips is not served for ever.
            Ok(_) if Instant::now() > patience.until => return Err(timed_out()),
            Ok(sent) => return Ok(sent),
            Err(Errno::AGAIN) => wait_writable(socket, patience)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the other side has closed an idle connection, or sent what nobody asked for.
pub(crate) fn is_broken(socket: &impl AsFd) -> bool {
    let mut byte = [0];
    loop {
        return match recv(socket, &mut byte[..], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Err(Errno::AGAIN) => false,
            Err(Errno::INTR) => continue,
            Ok(_) | Err(_) => true,
        };
    }
}

/// Whether the other side has closed a connection on which it may have sent something.
pub(crate) fn has_ended(socket: &impl AsFd) -> bool {
    let mut byte = [0];
    match recv(socket, &mut byte[..], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
        Ok((received, _)) => received == 0,
        Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}

/// Bytes that were given to the socket and that its peer has not acknowledged.
pub(crate) fn queued_bytes(socket: &impl AsFd) -> u64 {
    // SAFETY: TIOCOUTQ (also called SIOCOUTQ) writes one int.
    let getter = unsafe {
        rustix::ioctl::Getter::<{ libc::TIOCOUTQ as rustix::ioctl::Opcode }, libc::c_int>::new()
    };
    // SAFETY: as above; a socket that does not know the request answers with an error.
    let queued = unsafe { rustix::ioctl::ioctl(socket, getter) };
    queued.map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0))
}

/// Sets what a connection between peers needs. What the kernel refuses is left as it is: it costs
/// speed or the early notice of a dead peer, never correctness.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
    Ok(())
}

/// Sets what the side that sends blocks needs, on a listener: its connections inherit it.
pub(crate) fn prepare_sender(listener: &impl AsFd) {
    if let Err(error) = sockopt::set_tcp_congestion(listener, CONGESTION_CONTROL) {
        tracing::debug!(%error, "peers are served with the default congestion control");
    }
    if send_queue_grows_beyond_limit() {
        // The kernel doubles the value.
        let size = SEND_QUEUE_BYTES_MAX / 2;
        let _ = sockopt::set_socket_send_buffer_size(listener, size);
    }
}

/// Whether the kernel lets queues grow beyond the limit by itself. A queue with a size that was
/// set does not grow by itself any more, so it is set only where it has to be.
fn send_queue_grows_beyond_limit() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem")
        .ok()
        .and_then(|text| text.split_whitespace().nth(2)?.parse::<usize>().ok())
        .is_none_or(|bytes| bytes > SEND_QUEUE_BYTES_MAX)
}

/// A close of this socket drops what it has queued, and resets the connection.
pub(crate) fn reset_on_close(socket: &impl AsFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Connects to `address`.
pub(crate) fn connect(address: SocketAddr, patience: Patience) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd =
        rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            let wait = patience.next().ok_or_else(timed_out)?;
            if !ready(&socket, PollFlags::OUT, wait)? {
                return Err(timed_out());
            }
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    prepare(&stream)?;
    prepare_reader(&stream)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connections_inherit_what_the_listener_was_given() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        prepare_sender(&listener);
        let chosen = sockopt::tcp_congestion(&listener).expect("an algorithm");
        let address = listener.local_addr().expect("an address");
        let _client = TcpStream::connect(address).expect("a connection");
        let (server, _) = listener.accept().expect("a connection");
        assert_eq!(sockopt::tcp_congestion(&server).expect("an algorithm"), chosen);
        let available =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        if available.is_ok_and(|names| names.split_whitespace().any(|it| it == CONGESTION_CONTROL))
        {
            assert_eq!(chosen, CONGESTION_CONTROL);
        }
    }

    #[test]
    fn what_is_queued_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let sender =
            connect(address, Patience::within(Duration::from_secs(60))).expect("connected");
        let (receiver, _) = listener.accept().expect("a connection");
        assert_eq!(queued_bytes(&sender), 0);
        // More than a receiver takes that does not read.
        let patience = Patience::within(Duration::from_millis(100));
        let sent = send_all(&sender, &vec![0; 64 << 20], false, patience);
        assert_eq!(sent.expect_err("it does not fit").kind(), io::ErrorKind::TimedOut);
        assert!(queued_bytes(&sender) > 0);
        drop(receiver);
    }

    #[test]
    fn a_deadline_beyond_the_clock_is_a_year() {
        let patience = Patience::within(Duration::MAX);
        let wait = patience.next().expect("not over");
        assert!(wait > Duration::from_secs(300 * 24 * 3600));
        assert!(Patience::within(Duration::ZERO).next().is_none());
    }
}
