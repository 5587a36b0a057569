//! An open that writes goes on with what another program made of the file.

use tidepool_proto::{ReadMode, Result};

use super::handle::Handle;
use super::stub::{self, Found};
use crate::opening::{CacheTerms, new_cached_version};

impl Handle {
    /// Looks at the file once more. Where another program gave it another length or time, what is
    /// cached of it is invalidated, as at an open. Stubs stay for their writers to find.
    pub(super) fn go_on_with_changes(&self) -> Result<()> {
        if !self.access.writes() || self.read_mode == ReadMode::Bypass {
            return Ok(());
        }
        // Writes of this node move the version too, and may take their time.
        let Some(_unchanged_by_us) = self.file.try_share_gate() else { return Ok(()) };
        let version = self.lower.version()?;
        let Some(known) = self.file.cached() else { return Ok(()) };
        let ours = known.version();
        // Notification of a metadata change may be under way.
        let is_of_metadata = version.has_bytes_of(&ours);
        if is_of_metadata || known.is_memory_only() || !version.is_of_same_file(&ours) {
            return Ok(());
        }
        if !matches!(stub::find(&*self.lower, version.size)?, Found::Nothing) {
            return Ok(());
        }
        // The rule turns on the name, which the PFS is asked for: before the lock is taken.
        let rule = self.core.rule_of(&*self.lower);
        let terms = CacheTerms::of(&self.core, rule, self.user_id);
        let mut inner = self.file.inner.lock();
        let is_known = inner
            .cached
            .as_ref()
            .is_some_and(|now| now.number == known.number && now.version() == ours);
        if !is_known || known.is_memory_only() || inner.written_directly {
            return Ok(());
        }
        self.core.counters.versions_invalidated.add(1);
        self.core.invalidate(&known);
        // The next change of the other program may hide behind one of ours.
        new_cached_version(&mut inner, terms, version, true);
        Ok(())
    }
}
