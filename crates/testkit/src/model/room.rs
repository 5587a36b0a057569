//! Tells where a reader may stay at the old end of a file that grew: only where the node may have
//! had no room for the growth. Everywhere else the reader has to see it.

use tidepool_proto::admin::{AdminReply, AdminRequest};

use super::checks::{Mismatch, succeeded};
use super::driver::Driver;
use super::reference::FileNumber;
use super::wire::Command;

/// Share of the capacity, as its inverse, that growth and all pins may take without any doubt that
/// there was room: half of it is for pins, and transfers under way take some.
const CERTAIN_PART: u64 = 4;

impl Driver<'_> {
    /// Notes that a call through the product made the file longer than `size_before`.
    pub(super) fn note_growth(
        &mut self,
        number: FileNumber,
        size_before: u64,
    ) -> Result<(), Mismatch> {
        if !self.model.grew_under_readers(number, size_before) {
            return Ok(());
        }
        // A reader that stayed behind once does so until it opens the file again.
        if self.model.has_readers_behind(number) || self.may_lack_room(number)? {
            self.model.note_growth(number, size_before);
        }
        Ok(())
    }

    fn may_lack_room(&mut self, number: FileNumber) -> Result<bool, Mismatch> {
        if !self.cast.administration {
            return Ok(true);
        }
        let command = Command::Admin { request: AdminRequest::Status, path: None };
        let answer = self.ask(self.cast.mounts, &command)?;
        succeeded(&answer, "status")?;
        let Some(AdminReply::Status(status)) = answer.admin.as_deref() else {
            return Err(Mismatch(format!("status answers {:?}", answer.admin)));
        };
        let size = self.model.file(number).bytes.len() as u64;
        let store = &status.store;
        Ok(store.pinned_bytes.saturating_add(size) > store.capacity_bytes / CERTAIN_PART)
    }
}
