//! Files that `tidepool pin` keeps resident: whose they are, and how many bytes each user may pin.
//!
//! Root and the user who runs the node have no limit of their own and may end any pin. Pins do not
//! bring files in; what readers borrow is not counted here.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_store::{Segment, SegmentPin};

use crate::core::Core;

/// Bytes pinned by each user.
#[derive(Debug, Default)]
pub struct Pins {
    bytes: Mutex<HashMap<u32, u64>>,
}

/// A pinned file. The pin ends when this drops.
pub struct FilePin {
    _hold: SegmentPin,
    place: Option<Arc<OwnedFd>>,
    pins: Arc<Pins>,
    user_id: u32,
    pinned_bytes: u64,
}

impl Pins {
    /// Pins a wholly resident segment of `file` for a user who may pin `user_bytes_max` in all.
    ///
    /// # Errors
    /// `LimitReached` beyond the user's limit, `StoreFull` beyond the share of the capacity that
    /// all pins may take.
    pub fn pin(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        file: BorrowedFd<'_>,
        user_id: u32,
        user_bytes_max: u64,
    ) -> Result<FilePin> {
        let pinned_bytes = segment.resident_bytes();
        let mut bytes = self.bytes.lock();
        let before = bytes.get(&user_id).copied().unwrap_or(0);
        let after = before.saturating_add(pinned_bytes);
        if !is_operator(user_id) && after > user_bytes_max {
            let detail = format!(
                "user {user_id} has {before} bytes pinned, the file has {pinned_bytes}, and \
                 `user_pinned_bytes_max` is {user_bytes_max}"
            );
            return Err(Error::new(ErrorKind::LimitReached, "pinning", detail)
                .remedy("unpin other files, or ask the administrator for more"));
        }
        let hold = segment.pin_all().ok_or_else(|| {
            Error::new(ErrorKind::StoreFull, "pinning", "the file does not fit the pinned share")
                .remedy("unpin other files, raise `pinned_share_max`, or enlarge the store")
        })?;
        bytes.insert(user_id, after);
        let place = place_of(file);
        Ok(FilePin { _hold: hold, place, pins: self.clone(), user_id, pinned_bytes })
    }
}

impl FilePin {
    /// Whether `user_id` may end this pin.
    ///
    /// # Errors
    /// `PermissionDenied` for users who did not pin the file themselves.
    pub fn check_end(&self, user_id: u32) -> Result<()> {
        if user_id == self.user_id || is_operator(user_id) {
            return Ok(());
        }
        let detail = format!("user {} pinned the file", self.user_id);
        Err(Error::new(ErrorKind::PermissionDenied, "unpinning", detail)
            .remedy("ask that user or the administrator of the node"))
    }
}

impl Drop for FilePin {
    fn drop(&mut self) {
        let mut bytes = self.pins.bytes.lock();
        if let Some(left) = bytes.get_mut(&self.user_id) {
            *left = left.saturating_sub(self.pinned_bytes);
            if *left == 0 {
                bytes.remove(&self.user_id);
            }
        }
    }
}

impl Core {
    /// Ends pins of files whose last name another program removed on the PFS itself: nobody could
    /// name them to unpin them. Asks the PFS.
    pub(crate) fn end_stray_pins(&self) {
        for file in self.files.all() {
            let place = {
                let inner = file.inner.lock();
                let idle = inner.pin.as_ref().filter(|_| inner.handles == 0);
                idle.and_then(|pin| pin.place.clone())
            };
            let Some(place) = place.filter(|place| is_gone(place)) else { continue };
            let mut inner = file.inner.lock();
            let is_same =
                |pin: &FilePin| pin.place.as_ref().is_some_and(|known| Arc::ptr_eq(known, &place));
            if inner.handles == 0 && inner.pin.as_ref().is_some_and(is_same) {
                tracing::info!(file = ?inner.opened_as, "removed, so it is not pinned any more");
                inner.pin = None;
            }
        }
    }
}

fn is_gone(place: &OwnedFd) -> bool {
    match rustix::fs::fstat(place) {
        Ok(stat) => stat.st_nlink == 0,
        Err(error) => matches!(error, Errno::NOENT | Errno::STALE),
    }
}

/// What tells whether the file has a name, without an open that a PFS counts; `None` where the PFS
/// counts no names.
fn place_of(file: BorrowedFd<'_>) -> Option<Arc<OwnedFd>> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    (rustix::fs::fstat(&place).ok()?.st_nlink > 0).then(|| Arc::new(place))
}

/// Root, or the user who runs the node.
pub(crate) fn is_operator(user_id: u32) -> bool {
    user_id == 0 || user_id == rustix::process::geteuid().as_raw()
}
