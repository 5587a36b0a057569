//! Looks for the mark of a stub in a file that is open, and for what tells that it was taken off.

use std::os::fd::AsRawFd;

use rustix::fs::{Mode, OFlags};
use tidepool_pfs::LowerFile;
use tidepool_proto::stub::{Attribute, Found, PAST_ATTRIBUTE, STUB_ATTRIBUTE};
use tidepool_proto::{Error, Result};

use super::stub_errors::{is_no_room_or_right, is_unsupported};

/// Looks for a mark of a file of `size` bytes.
pub fn find(lower: &dyn LowerFile, size: u64) -> Result<Found> {
    let attribute = || match lower.get_xattr(STUB_ATTRIBUTE) {
        Ok(value) => Ok(value.map_or(Attribute::Missing, Attribute::Value)),
        Err(error) if is_hidden(lower, &error) => match size {
            // A stub with a mark that is not read would be taken for an empty file.
            0 => Err(error.remedy("let the owner read the file: its mark cannot be read")),
            _ => Ok(Attribute::Missing),
        },
        Err(error) if is_unsupported(&error) => Ok(Attribute::Unsupported),
        Err(error) => Err(error),
    };
    tidepool_proto::stub::find(size, attribute, |head| read_head(lower, head))
}

/// Whether a mark is not told because this node's user may not read the file. From whoever may, as
/// root, a refusal hides what may be there: a ticket that ran out, or identities that a PFS maps.
fn is_hidden(lower: &dyn LowerFile, error: &Error) -> bool {
    let user = rustix::process::geteuid();
    matches!(error.errno(), libc::EACCES | libc::EPERM)
        && !user.is_root()
        && rustix::fs::fstat(lower.descriptor())
            .is_ok_and(|facts| facts.st_uid != user.as_raw() || facts.st_mode & 0o400 == 0)
}

/// Reads the first bytes, also where the descriptor is for writing only.
pub fn read_head(lower: &dyn LowerFile, head: &mut [u8]) -> Result<usize> {
    let error = match lower.read_current(0, head) {
        Err(error) if error.errno() == libc::EBADF => error,
        other => return other,
    };
    let again = format!("/proc/self/fd/{}", lower.descriptor().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(again, flags, Mode::empty()) {
        Ok(readable) => rustix::io::pread(&readable, head, 0)
            .map_err(|errno| Error::pfs("looking for the mark of a stub", errno)),
        // No user makes a stub whose mark that user cannot read.
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => Ok(0),
        Err(_) => Err(error),
    }
}

/// Notes that another one than its node is to take the mark off a file. Before that looks at the
/// mark: whoever makes a new one has taken, or seen taken, the old one off by then, and finds this.
pub(super) fn set_past(lower: &dyn LowerFile) -> Result<()> {
    match lower.set_xattr(PAST_ATTRIBUTE, lower.id().inode.to_string().as_bytes()) {
        Err(error) if is_unsupported(&error) => Ok(()),
        other => other,
    }
}

/// Whether a mark of the file was taken off by another one than its node.
pub(super) fn is_past(lower: &dyn LowerFile) -> Result<bool> {
    match lower.get_xattr(PAST_ATTRIBUTE) {
        Ok(value) => {
            Ok(value.is_some_and(|value| value == lower.id().inode.to_string().as_bytes()))
        }
        Err(error) if is_unsupported(&error) || is_no_room_or_right(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
