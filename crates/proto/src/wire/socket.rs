//! Moves frames over a Unix stream socket, with deadlines. Knows nothing of messages.
//!
//! Descriptors are tied to their frame: they are sent with its first byte, and the receiver never
//! reads past the end of a frame, so what arrives with the header belongs to that frame. Those
//! that come anywhere else are closed by the kernel.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, recvmsg,
    sendmsg,
};

use super::{DESCRIPTORS_MAX, FrameHeader, FrameLimits, HEADER_BYTES, Malformed};

/// Groups of a process that fit without asking twice.
const PEER_GROUPS_FIRST: usize = 32;

/// A frame as it came in.
#[derive(Debug)]
pub struct Frame {
    /// The number of the request.
    pub request_id: u64,
    /// The message, not yet decoded.
    pub body: Vec<u8>,
    /// Raw bytes.
    pub payload: Vec<u8>,
    /// Descriptors in the order of the message. May be fewer than the sender announced, if this
    /// process had no room for more.
    pub descriptors: Vec<OwnedFd>,
    /// How many descriptors the sender announced.
    pub descriptors_announced: usize,
}

/// Connects to the socket at a path without waiting: where the backlog of the listening process is
/// full, that fails with `WouldBlock`; with `ConnectionRefused` where nobody listens any more.
pub fn connect_at_once(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Why no frame came in.
#[derive(Debug)]
pub enum ReceiveError {
    /// The other side closed the connection between two frames.
    Closed,
    /// The other side closed the connection within a frame.
    Truncated,
    /// The bytes are no frame.
    Malformed(Malformed),
    /// The frame did not begin, or not end, in time.
    TimedOut,
    /// The socket failed.
    Failed(io::Error),
}

impl std::fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReceiveError::Closed => f.write_str("the connection was closed"),
            ReceiveError::Truncated => f.write_str("the connection was closed within a message"),
            ReceiveError::Malformed(malformed) => malformed.fmt(f),
            ReceiveError::TimedOut => f.write_str("a message did not come in time"),
            ReceiveError::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReceiveError {}

impl From<Malformed> for ReceiveError {
    fn from(malformed: Malformed) -> Self {
        ReceiveError::Malformed(malformed)
    }
}

/// The process at the other end of a socket, as of the time it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user.
    pub user_id: u32,
    /// Its effective group.
    pub group_id: u32,
    /// Its process id; `None` where it lies outside of this process's namespace.
    pub process_id: Option<u32>,
}

/// Has the kernel fill `value` with what it knows of a socket under `name`.
///
/// # Safety
/// Any bytes have to be a valid `T`.
unsafe fn read_option<T>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let (socket, value) = (socket.as_raw_fd(), (&raw mut *value).cast());
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has that size, and the
    // caller knows that they may be any.
    match unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, value, &mut length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks the kernel for the process and user at the other end.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    // Not by rustix, whose process ids cannot be the zero that stands for a hidden process.
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: any bytes are such numbers.
    unsafe { read_option(socket, libc::SO_PEERCRED, &mut credentials) }?;
    let process_id = u32::try_from(credentials.pid).ok().filter(|id| *id != 0);
    Ok(Peer { user_id: credentials.uid, group_id: credentials.gid, process_id })
}

/// A descriptor (`pidfd`) of the process that connected or listened at the other end, whatever
/// became of its number since. Fails with `ENOPROTOOPT` before Linux 6.5.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut process: libc::c_int = -1;
    // SAFETY: any bytes are a number.
    unsafe { read_option(socket, libc::SO_PEERPIDFD, &mut process) }?;
    // SAFETY: the kernel opened it for this call alone, closed when a program is executed.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

/// The supplementary groups of the process at the other end.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; PEER_GROUPS_FIRST];
    loop {
        let mut length = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to the vector, which has that size.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // Too short a buffer: `length` is now what is needed.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Sends one frame. Fails with `WouldBlock` if the other side takes nothing of it within `timeout`,
/// and with `TimedOut` if it takes a part; the connection is of no use after any other error than
/// the first.
pub fn send_frame(
    socket: BorrowedFd<'_>,
    request_id: u64,
    body: &[u8],
    payload: &[u8],
    descriptors: &[BorrowedFd<'_>],
    timeout: Duration,
) -> io::Result<()> {
    let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
    let header = FrameHeader {
        body_bytes: u32::try_from(body.len()).map_err(|_| too_long())?,
        payload_bytes: u32::try_from(payload.len()).map_err(|_| too_long())?,
        request_id,
        descriptors: u32::try_from(descriptors.len()).map_err(|_| too_long())?,
    }
    .encode();
    let parts = [&header[..], body, payload];
    let total = HEADER_BYTES + body.len() + payload.len();
    let mut sent = 0;
    let mut deadline = None;
    while sent < total {
        let mut slices = [IoSlice::new(&[]); 3];
        let mut skip = sent;
        for (slice, part) in slices.iter_mut().zip(parts) {
            let skipped = skip.min(part.len());
            skip -= skipped;
            *slice = IoSlice::new(&part[skipped..]);
        }
        let attached = if sent == 0 { descriptors } else { &[] };
        match send_some(socket, &slices, attached) {
            Ok(bytes) => sent += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeout);
                if !wait(socket, PollFlags::OUT, deadline)? {
                    let is_begun = sent > 0;
                    let kind =
                        if is_begun { io::ErrorKind::TimedOut } else { io::ErrorKind::WouldBlock };
                    return Err(kind.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn send_some(
    socket: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(rustix::io::Errno::INVAL);
    }
    sendmsg(socket, slices, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Waits until the socket is ready or the deadline is over; whether it is ready.
fn wait(socket: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut watched = [PollFd::from_borrowed_fd(socket, events)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one frame. `begin_by` bounds the wait for its first byte (`None`: as long as it takes),
/// `frame_timeout` the time from there to its last one.
pub fn receive_frame(
    socket: BorrowedFd<'_>,
    limits: FrameLimits,
    begin_by: Option<Instant>,
    frame_timeout: Duration,
) -> Result<Frame, ReceiveError> {
    let mut header = [0; HEADER_BYTES];
    let mut descriptors = Vec::new();
    let mut filled = 0;
    let mut deadline = begin_by;
    while filled < HEADER_BYTES {
        let bytes = receive_header(socket, &mut header[filled..], deadline, &mut descriptors)?;
        if bytes == 0 {
            let nothing = filled == 0;
            return Err(if nothing { ReceiveError::Closed } else { ReceiveError::Truncated });
        }
        if filled == 0 {
            deadline = Some(Instant::now() + frame_timeout);
        }
        filled += bytes;
    }
    let header = FrameHeader::decode(&header, limits)?;
    let announced = header.descriptors as usize;
    if descriptors.len() > announced {
        return Err(Malformed("descriptors that no message announced").into());
    }
    let deadline = deadline.unwrap_or_else(Instant::now);
    let mut body = Vec::new();
    receive_bytes(socket, header.body_bytes as usize, deadline, &mut body)?;
    let mut payload = Vec::new();
    receive_bytes(socket, header.payload_bytes as usize, deadline, &mut payload)?;
    Ok(Frame {
        request_id: header.request_id,
        body,
        payload,
        descriptors,
        descriptors_announced: announced,
    })
}

fn receive_header(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    deadline: Option<Instant>,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize, ReceiveError> {
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    if deadline.is_some() {
        flags |= RecvFlags::DONTWAIT;
    }
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(message) => {
                for item in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = item {
                        descriptors.extend(received);
                    }
                }
                return Ok(message.bytes);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => ready_by(socket, deadline)?,
            Err(error) => return Err(ReceiveError::Failed(error.into())),
        }
    }
}

/// Memory grows with what really arrives, never with what a header claims.
const GROWTH_BYTES: usize = 64 << 10;

fn receive_bytes(
    socket: BorrowedFd<'_>,
    length: usize,
    deadline: Instant,
    buffer: &mut Vec<u8>,
) -> Result<(), ReceiveError> {
    let mut filled = 0;
    while filled < length {
        if buffer.len() == filled {
            // Doubling keeps the number of copies low; the first step covers nearly all frames.
            let step = length.min((2 * filled).max(GROWTH_BYTES));
            buffer.reserve_exact(step - filled);
            buffer.resize(step, 0);
        }
        match recv(socket, &mut buffer[filled..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(ReceiveError::Truncated),
            Ok((bytes, _)) => filled += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => ready_by(socket, Some(deadline))?,
            Err(error) => return Err(ReceiveError::Failed(error.into())),
        }
        // A sender of one byte at a time is never short of data, so the clock is asked here too.
        if filled < length && Instant::now() > deadline {
            return Err(ReceiveError::TimedOut);
        }
    }
    Ok(())
}

fn ready_by(socket: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<(), ReceiveError> {
    let Some(deadline) = deadline else { return Ok(()) };
    match wait(socket, PollFlags::IN, deadline) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ReceiveError::TimedOut),
        Err(error) => Err(ReceiveError::Failed(error)),
    }
}
