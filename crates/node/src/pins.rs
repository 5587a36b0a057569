//! Files that `tidepool pin` keeps resident: whose they are, and how many bytes each user may pin.
//!
//! Root and the user who runs the node have no limit of their own and may end any pin. Pins do not
//! bring files in; what readers borrow is not counted here.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_store::{Segment, SegmentPin};

/// Bytes pinned by each user.
#[derive(Debug, Default)]
pub struct Pins {
    bytes: Mutex<HashMap<u32, u64>>,
}

/// A pinned file. The pin ends when this drops.
pub struct FilePin {
    _hold: SegmentPin,
    pins: Arc<Pins>,
    user_id: u32,
    pinned_bytes: u64,
}

impl Pins {
    /// Pins a wholly resident segment for a user who may pin `user_bytes_max` in all.
    ///
    /// # Errors
    /// `LimitReached` beyond the user's limit, `StoreFull` beyond the share of the capacity that
    /// all pins may take.
    pub fn pin(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
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
        Ok(FilePin { _hold: hold, pins: self.clone(), user_id, pinned_bytes })
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

/// Root, or the user who runs the node.
pub(crate) fn is_operator(user_id: u32) -> bool {
    user_id == 0 || user_id == rustix::process::geteuid().as_raw()
}
