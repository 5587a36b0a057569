//! Places: what a connection will have open or borrowed is counted before the work is done, and
//! given back where nothing comes of it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tidepool_proto::{Access, OpenFile, PassthroughPin, Result};

use super::super::limits::Ticket;
use super::{Borrow, Handle, Session};

/// Room for one more open file, given back unless it is filled.
pub(super) struct OpeningPlace<'a> {
    session: &'a Session,
    ticket: Option<Ticket>,
}

impl<'a> OpeningPlace<'a> {
    pub(super) fn take(session: &'a Session) -> Result<Self> {
        let limit = session.quotas.limits().handles_per_connection_max;
        let ticket = session.quotas.handle(session.user.user_id)?;
        let mut held = session.held.lock();
        if held.handles.len() + held.opening >= limit {
            return Err(session.quotas.refused("open files of this connection", limit));
        }
        held.opening += 1;
        Ok(OpeningPlace { session, ticket: Some(ticket) })
    }

    pub(super) fn fill(
        mut self,
        file: Arc<dyn OpenFile>,
        access: Access,
        segment_exported: bool,
        written_by_client: Option<Arc<dyn PassthroughPin>>,
    ) -> u64 {
        let mut held = self.session.held.lock();
        held.numbers_given += 1;
        let number = held.numbers_given;
        if let Some(ticket) = self.ticket.take() {
            let segment_exported = AtomicBool::new(segment_exported);
            let handle = Handle {
                _written_by_client: written_by_client,
                file,
                access,
                segment_exported,
                ticket: Arc::new(ticket),
            };
            held.handles.insert(number, Arc::new(handle));
        }
        number
    }
}

impl Drop for OpeningPlace<'_> {
    fn drop(&mut self) {
        self.session.held.lock().opening -= 1;
    }
}

/// Room for one more borrow, given back unless it is filled.
pub(super) struct BorrowPlace<'a>(&'a Session);

impl<'a> BorrowPlace<'a> {
    pub(super) fn take(session: &'a Session) -> Result<Self> {
        let limit = session.quotas.limits().borrows_per_connection_max;
        let mut held = session.held.lock();
        if held.borrows.len() + held.borrowing >= limit {
            return Err(session.quotas.refused("borrowed ranges of this connection", limit));
        }
        held.borrowing += 1;
        Ok(BorrowPlace(session))
    }

    pub(super) fn fill(self, borrow: Borrow) -> u64 {
        let mut held = self.0.held.lock();
        held.numbers_given += 1;
        let number = held.numbers_given;
        held.borrows.insert(number, borrow);
        number
    }
}

impl Drop for BorrowPlace<'_> {
    fn drop(&mut self) {
        self.0.held.lock().borrowing -= 1;
    }
}
