//! [`Device`]: a descriptor of `/dev/fuse`. Reads requests, writes replies and notifications, and
//! registers files for passthrough. Knows bytes, not what they mean.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use zerocopy::IntoBytes;

use crate::protocol::abi::{self, BackingMap, InvalInodeOut, OutHeader, StoreOut};
use crate::protocol::reply_pipe::{self, Outcome};

const DEVICE_PATH: &str = "/dev/fuse";

const IOCTL_CLONE: u64 = 0x8004_e500;
const IOCTL_BACKING_OPEN: u64 = 0x4010_e501;
const IOCTL_BACKING_CLOSE: u64 = 0x4004_e502;

/// More slices than this are copied together; the kernel takes at most 1,024.
const SLICES_MAX: usize = 1_000;

/// Whether a reply failed because the request was interrupted or the mount is gone.
fn is_unheard(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOENT | libc::ENODEV))
}

/// A descriptor of `/dev/fuse` that belongs to a mount.
#[derive(Debug)]
pub struct Device {
    descriptor: OwnedFd,
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Device {
    /// Takes a descriptor that is connected to a mount.
    pub fn new(descriptor: OwnedFd) -> Self {
        Device { descriptor }
    }

    /// A new, unconnected descriptor of the device.
    pub fn open_unconnected() -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Another descriptor of the same mount. Each worker has its own, and with it a queue of
    /// requests in progress of its own.
    pub fn duplicate_connected(&self) -> io::Result<Device> {
        let descriptor = Self::open_unconnected()?;
        let source = self.descriptor.as_raw_fd();
        // SAFETY: the argument of this ioctl is a pointer to a 32-bit descriptor number, which
        // lives on this stack frame during the call.
        let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), IOCTL_CLONE, &source) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Device { descriptor }) }
    }

    /// Reads one request; `None` when the mount is gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.descriptor, &mut *buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => continue,
                Err(rustix::io::Errno::AGAIN) => continue,
                Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers request `unique` with the given bytes, taken from where they are. Returns whether
    /// the kernel took the answer: the request may have been interrupted, or the mount be gone.
    pub fn send(&self, unique: u64, errno: i32, payload: &[IoSlice<'_>]) -> io::Result<bool> {
        if payload.len() > SLICES_MAX {
            let joined: Vec<u8> = payload.iter().flat_map(|slice| slice.iter().copied()).collect();
            return self.send(unique, errno, &[IoSlice::new(&joined)]);
        }
        let bytes: usize = payload.iter().map(|slice| slice.len()).sum();
        let header =
            OutHeader { length: (size_of::<OutHeader>() + bytes) as u32, error: -errno, unique };
        if bytes >= reply_pipe::REPLY_BYTES_MIN
            && let Outcome::Sent(sent) =
                reply_pipe::send(self.descriptor.as_fd(), header.as_bytes(), payload)
        {
            return match sent {
                Ok(_) => Ok(true),
                Err(error) if is_unheard(error.raw_os_error()) => Ok(false),
                Err(error) => Err(error),
            };
        }
        let result = match payload {
            [] => rustix::io::write(&self.descriptor, header.as_bytes()),
            [one] => {
                let slices = [IoSlice::new(header.as_bytes()), IoSlice::new(one)];
                rustix::io::writev(&self.descriptor, &slices)
            }
            many => {
                let mut slices = Vec::with_capacity(many.len() + 1);
                slices.push(IoSlice::new(header.as_bytes()));
                slices.extend(many.iter().map(|slice| IoSlice::new(slice)));
                rustix::io::writev(&self.descriptor, &slices)
            }
        };
        match result {
            Ok(_) => Ok(true),
            Err(error) if is_unheard(Some(error.raw_os_error())) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the kernel drop the pages of an inode and what it knows of its length. The kernel
    /// first waits for writes from these pages and reads into them, so a thread that serves
    /// requests must not call this. An inode that the kernel no longer knows is no error.
    pub fn invalidate_pages(&self, nodeid: u64, offset: u64, length: u64) -> io::Result<()> {
        // 0 means up to the end.
        let length = i64::try_from(length).unwrap_or(0);
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let notice = InvalInodeOut { nodeid, offset, length };
        let header = OutHeader {
            length: (size_of::<OutHeader>() + size_of::<InvalInodeOut>()) as u32,
            error: abi::NOTIFY_INVAL_INODE,
            unique: 0,
        };
        let slices = [IoSlice::new(header.as_bytes()), IoSlice::new(notice.as_bytes())];
        match rustix::io::writev(&self.descriptor, &slices) {
            Ok(_) => Ok(()),
            Err(error) if is_unheard(Some(error.raw_os_error())) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells the kernel that an inode is at least `length` bytes long; its pages stay as they are.
    /// The kernel waits for reads into the last page, so a thread that serves requests must not
    /// call this.
    ///
    /// There is a notification for bytes (`FUSE_NOTIFY_STORE`), none for a length. The kernel takes
    /// the length first, so one last byte at an address that cannot be read sets the length alone.
    pub fn notify_length(&self, nodeid: u64, length: u64) -> io::Result<()> {
        let Some(offset) = length.checked_sub(1) else { return Ok(()) };
        let notice = StoreOut { nodeid, offset, size: 1, padding: 0 };
        let header = OutHeader {
            length: (size_of::<OutHeader>() + size_of::<StoreOut>() + 1) as u32,
            error: abi::NOTIFY_STORE,
            unique: 0,
        };
        let slice = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let unreadable = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        let slices = [slice(header.as_bytes()), slice(notice.as_bytes()), unreadable];
        // SAFETY: the kernel only reads. Two slices live on this stack frame during the call;
        // nothing is ever mapped at the address of the third.
        let result = unsafe {
            libc::writev(self.descriptor.as_raw_fd(), slices.as_ptr(), slices.len() as i32)
        };
        match (result, io::Error::last_os_error()) {
            (0.., _) => Ok(()),
            (_, error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
            (_, error) if is_unheard(error.raw_os_error()) => Ok(()),
            (_, error) => Err(error),
        }
    }

    /// Registers a file for passthrough and returns its number.
    pub fn register_backing(&self, file: BorrowedFd<'_>) -> io::Result<i32> {
        let map = BackingMap { descriptor: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the argument of this ioctl is a pointer to a `fuse_backing_map`, which lives on
        // this stack frame during the call.
        let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), IOCTL_BACKING_OPEN, &map) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    /// Removes a file registered for passthrough; opens that use it keep it.
    pub fn unregister_backing(&self, backing_id: i32) -> io::Result<()> {
        // SAFETY: the argument of this ioctl is a pointer to the 32-bit number, which lives on
        // this stack frame during the call.
        let result =
            unsafe { libc::ioctl(self.descriptor.as_raw_fd(), IOCTL_BACKING_CLOSE, &backing_id) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
