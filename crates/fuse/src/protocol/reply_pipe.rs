//! Sends large replies through a pipe: the kernel then finds the pages of the reply in batches,
//! while it looks up each page of a plain write on its own. The number of copies is the same.
//!
//! Each thread has one pipe, empty between replies. If pipes cannot be made large enough, replies
//! are written plainly.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Smaller replies are faster written plainly.
pub const REPLY_BYTES_MIN: usize = 128 << 10;
/// One page of a reply takes one page of the pipe; a reply may start and end inside of a page.
const PIPE_BYTES: libc::c_int = 2 << 20;

struct ReplyPipe {
    output: OwnedFd,
    input: OwnedFd,
}

enum Present {
    Untried,
    Impossible,
    Ready(ReplyPipe),
}

thread_local! {
    static PIPE: RefCell<Present> = const { RefCell::new(Present::Untried) };
}

/// What became of a reply.
pub enum Outcome {
    /// The kernel was given the reply and answered this.
    Sent(io::Result<usize>),
    /// Nothing was sent.
    NotTried,
}

/// Sends `header` and `payload` to `device` as one message.
pub fn send(device: BorrowedFd<'_>, header: &[u8], payload: &[IoSlice<'_>]) -> Outcome {
    PIPE.with_borrow_mut(|present| {
        if matches!(present, Present::Untried) {
            *present = ReplyPipe::new().map_or(Present::Impossible, Present::Ready);
        }
        let Present::Ready(pipe) = present else { return Outcome::NotTried };
        let bytes = match pipe.fill(header, payload) {
            Ok(bytes) => bytes,
            Err(_) => {
                // A part of the reply may be left in the pipe.
                *present = Present::Untried;
                return Outcome::NotTried;
            }
        };
        let sent = pipe.drain_to(device, bytes);
        if !matches!(sent, Ok(sent) if sent == bytes) {
            *present = Present::Untried;
        }
        Outcome::Sent(sent)
    })
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl ReplyPipe {
    fn new() -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: the call fills the two descriptor numbers that the pointer leads to; they are
        // new, and owned here from then on.
        let (output, input) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
                return Err(io::Error::last_os_error());
            }
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        // SAFETY: this command takes a number.
        if unsafe { libc::fcntl(input.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) } < PIPE_BYTES {
            return Err(io::Error::last_os_error());
        }
        Ok(ReplyPipe { output, input })
    }

    /// Puts the header, by copy, and the pages of the payload, by reference, into the empty pipe.
    fn fill(&self, header: &[u8], payload: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut total = rustix::io::write(&self.input, header)?;
        for slice in payload {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                let vector =
                    libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
                // SAFETY: the vector describes `rest`, which lives until the pipe has been drained
                // and whose pages are read only.
                let moved = check(unsafe {
                    libc::vmsplice(self.input.as_raw_fd(), &vector, 1, libc::SPLICE_F_NONBLOCK)
                })?;
                if moved == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                total += moved;
                rest = &rest[moved..];
            }
        }
        Ok(total)
    }

    fn drain_to(&self, device: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        let none = std::ptr::null_mut();
        // SAFETY: both descriptors are open; without offsets the call takes no pointer.
        check(unsafe {
            libc::splice(self.output.as_raw_fd(), none, device.as_raw_fd(), none, bytes, 0)
        })
    }
}
