//! [`Strain`]: whether the host lately refused to evict what a policy expects little of, because it
//! is pinned, being read, or another user's. Then a block goes that the policy meant to keep, and
//! the block that comes in must not be kept in its stead: otherwise the next one would go, and so
//! on, each shortly before it is read.

/// How long it counts, in turnovers of the store.
const TURNOVERS: u32 = 2;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Strain {
    since: Option<u32>,
}

impl Strain {
    /// Something went in the stead of what the host did not give.
    pub fn note(&mut self, now: u32) {
        self.since = Some(now);
    }

    /// Whether it still counts, in a store of so many entries.
    pub fn lasts(&mut self, now: u32, target_entries: u32) -> bool {
        let ticks = target_entries.saturating_mul(TURNOVERS);
        self.since = self.since.filter(|since| now.wrapping_sub(*since) <= ticks);
        self.since.is_some()
    }
}
