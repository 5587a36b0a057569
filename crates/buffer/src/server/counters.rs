//! What a server counts, and tells by `stats`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Shared;

/// Since the start.
#[derive(Debug, Default)]
pub struct Counters {
    pub get: AtomicU64,
    pub set: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub connections: AtomicU64,
    pub refused: AtomicU64,
}

impl Counters {
    /// Counts a look-up.
    pub fn note_lookup(&self, is_hit: bool) {
        self.get.fetch_add(1, Ordering::Relaxed);
        let counter = if is_hit { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// The figures of `stats`, with memcached's names where it has them.
    pub(super) fn figures(&self) -> Vec<(&'static str, String)> {
        let usage = self.memory.usage();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let counters = &self.counters;
        let mut figures = vec![
            ("pid", std::process::id().to_string()),
            ("uptime", self.memory.now().as_secs().to_string()),
            ("time", time.as_secs().to_string()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("pointer_size", usize::BITS.to_string()),
            ("curr_connections", self.connections.lock().len().to_string()),
            ("total_connections", count(&counters.connections)),
            ("rejected_connections", count(&counters.refused)),
            ("cmd_get", count(&counters.get)),
            ("cmd_set", count(&counters.set)),
            ("get_hits", count(&counters.hits)),
            ("get_misses", count(&counters.misses)),
            ("limit_maxbytes", usage.capacity_bytes.to_string()),
            ("bytes", usage.used_bytes.to_string()),
            ("owed_bytes", usage.owed_bytes.to_string()),
            ("waiting_writers", usage.waiting.to_string()),
            ("curr_items", self.memory.items().to_string()),
            ("evictions", self.memory.evicted().to_string()),
        ];
        figures.extend(self.keeper.figures());
        figures
    }

    /// Those of `stats settings`.
    pub(super) fn settings_told(&self) -> Vec<(&'static str, String)> {
        let settings = &self.settings;
        vec![
            ("maxbytes", self.memory.usage().capacity_bytes.to_string()),
            ("maxconns", settings.connections_max.to_string()),
            ("item_size_max", settings.value_bytes_max.to_string()),
            ("client_flags_size", size_of::<u32>().to_string()),
            ("cas_enabled", "yes".to_owned()),
            ("flush_enabled", "yes".to_owned()),
            ("tidepool_owed", self.keeper.place().to_owned()),
        ]
    }
}
