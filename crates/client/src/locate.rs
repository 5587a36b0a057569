//! Where the splits of a file are, for schedulers: the node is asked, and where it stands alone, is
//! not there or does not answer, nothing is known. No answer is kept but that it stands alone.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::locality::{Locality, SplitHosts, SplitRange};
use tidepool_proto::wire::{Reply, Request};

use crate::client::Client;
use crate::connection::Brief;

/// How long a node that stands alone is not asked again.
const ALONE_TTL: Duration = Duration::from_secs(60);
/// Time for the node to answer; it may have to ask another one.
const LOCATE_PATIENCE: Duration = Duration::from_secs(1);

impl Client {
    /// Whether [`Client::locate`] may know anything, as far as is known here. Sends no message, but
    /// may look for a node.
    pub fn may_locate(&self) -> bool {
        self.link.connection().is_some_and(|connection| {
            let alone_until = *connection.alone_until.lock();
            let is_alone = alone_until.is_some_and(|until| Instant::now() < until);
            !is_alone && !connection.is_silent_on_splits()
        })
    }

    /// Where splits of a file are: the first of the range, up to
    /// [`SPLITS_MAX`](tidepool_proto::locality::SPLITS_MAX) and to the end of the file. `file` is
    /// open for reading, which is what entitles to ask. `None` where nothing is known: there is no
    /// node, it stands alone, does not serve the file, or does not answer within a second.
    pub fn locate(&self, file: BorrowedFd<'_>, range: SplitRange) -> Option<SplitHosts> {
        if !self.may_locate() {
            return None;
        }
        let connection = self.link.connection()?;
        let request = Request::Admin(AdminRequest::Locate(range));
        let answer =
            connection.call_briefly(Brief::Locate, &request, &[file], LOCATE_PATIENCE).ok()??;
        match answer.reply {
            Reply::Admin(AdminReply::Located(Locality::Splits(hosts))) => Some(hosts),
            Reply::Admin(AdminReply::Located(Locality::Alone)) => {
                *connection.alone_until.lock() = Some(Instant::now() + ALONE_TTL);
                None
            }
            _ => None,
        }
    }
}
