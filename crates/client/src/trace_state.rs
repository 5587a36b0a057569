//! `Tracing`: whether somebody watches the requests of one connection, and the records of them that
//! wait to be sent. What records and sends them: [`crate::trace`].

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tidepool_proto::mapping::{Access, Mapping};
use tidepool_proto::trace::{
    Front, LibraryRecord, TRACE_PAGE_BYTES, TRACE_PAGE_MAGIC, TRACE_PAGE_WATCHERS_OFFSET,
};

use crate::segment::map;

/// What is recorded on one connection.
#[derive(Debug)]
pub(crate) struct Tracing {
    /// Absent where the node gave none.
    page: Option<Mapping>,
    pub(crate) front: Front,
    pub(crate) kept: Mutex<Kept>,
    /// Who closes a file waits for what is being sent of it.
    pub(crate) sending: Mutex<()>,
}

/// Records that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) records: Vec<LibraryRecord>,
    pub(crate) dropped: u64,
    pub(crate) has_sender: bool,
}

impl Tracing {
    /// By the descriptor of the page that the node sent, if it is one.
    pub(crate) fn new(page: Option<OwnedFd>, front: Front) -> Tracing {
        let page =
            page.and_then(|page| map(&page, 0, TRACE_PAGE_BYTES as usize, Access::Read).ok());
        let page = page.filter(|page| page.word(0).load(Ordering::Acquire) == TRACE_PAGE_MAGIC);
        Tracing { page, front, kept: Mutex::default(), sending: Mutex::default() }
    }

    /// Whether anybody watches.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        let watchers =
            |page: &Mapping| page.word(TRACE_PAGE_WATCHERS_OFFSET).load(Ordering::Relaxed);
        self.page.as_ref().is_some_and(|page| watchers(page) != 0)
    }
}
