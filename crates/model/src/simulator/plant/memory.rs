//! Physical memory of the node: jobs, page cache, hidden free pages and swap share what the stores
//! leave. No job is killed; one that gets nothing waits, and the wait is counted.

use super::{PAGE_BYTES, PlantConfig, Trace, Truth, moved};

/// Share of the node's memory that is missing when all tasks wait, not only some.
const ALL_WAIT_DIVISOR: u64 = 200;

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    wanted_bytes: u64,
    jobs_bytes: u64,
    stored_bytes: u64,
    hidden_bytes: u64,
    clean_bytes: u64,
    dirty_bytes: u64,
    /// Not available, and of no kind that is counted.
    uncounted_bytes: u64,
    swapped_bytes: u64,
    total_bytes: u64,
    pub(super) evicted_bytes: u64,
    pub(super) swapped_out_bytes: u64,
    idle_swapped_bytes: u64,
    shortages: u64,
    is_short: bool,
    pub(super) refaulted_bytes: u64,
    pub(super) some_ns: u64,
    pub(super) full_ns: u64,
}

impl Memory {
    pub(super) fn new(config: &PlantConfig, demand_bytes: u64) -> Self {
        let stored_bytes = config.stores.iter().map(|store| store.resident_bytes).sum();
        let mut memory = Memory { wanted_bytes: demand_bytes, stored_bytes, ..Self::default() };
        memory.total_bytes = config.memory_total.demand_bytes(0);
        memory.jobs_bytes = demand_bytes.min(memory.empty_bytes(config));
        memory
    }

    /// Bytes used by nothing at all.
    pub(super) fn empty_bytes(&self, config: &PlantConfig) -> u64 {
        let swapped = self.gained_bytes(config);
        let used = config.kernel_bytes
            + self.jobs_bytes
            + self.stored_bytes
            + self.hidden_bytes
            + self.clean_bytes
            + self.dirty_bytes
            + self.uncounted_bytes;
        (self.total_bytes + swapped).saturating_sub(used)
    }

    /// Bytes that swapping out has freed: what is compressed in memory takes its part of them.
    fn gained_bytes(&self, config: &PlantConfig) -> u64 {
        let kept = (self.swapped_bytes as f64 * config.swap_kept_share) as u64;
        self.swapped_bytes.saturating_sub(kept)
    }

    /// Free bytes and clean file pages.
    pub(super) fn free_bytes(&self, config: &PlantConfig) -> u64 {
        self.empty_bytes(config) + self.clean_bytes
    }

    /// Free bytes above the watermark.
    pub(super) fn available_bytes(&self, config: &PlantConfig) -> u64 {
        self.free_bytes(config).saturating_sub(config.watermark_bytes)
    }

    /// Bytes that a store may take: hidden pages are drained when they are wanted.
    pub(super) fn room_bytes(&self, config: &PlantConfig) -> u64 {
        (self.free_bytes(config) + self.hidden_bytes).saturating_sub(config.watermark_bytes)
    }

    pub(super) fn hidden_bytes(&self) -> u64 {
        self.hidden_bytes
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes of pages that cannot be dropped.
    pub(super) fn used_kinds_bytes(&self, config: &PlantConfig) -> u64 {
        let used = config.kernel_bytes + self.jobs_bytes + self.stored_bytes + self.dirty_bytes;
        used.saturating_sub(self.gained_bytes(config))
    }

    /// Pages swapped out since the start.
    pub(super) fn swapped_pages(&self) -> u64 {
        (self.swapped_out_bytes + self.idle_swapped_bytes) / PAGE_BYTES
    }

    pub(super) fn refaulted_pages(&self) -> u64 {
        self.refaulted_bytes / PAGE_BYTES
    }

    /// A store took bytes.
    pub(super) fn take(&mut self, config: &PlantConfig, filled_bytes: u64) {
        self.drain_for(config, filled_bytes);
        self.clean_bytes -=
            self.clean_bytes.min(filled_bytes.saturating_sub(self.empty_bytes(config)));
        self.stored_bytes += filled_bytes;
    }

    /// Drains hidden pages where `need_bytes` would go below the watermark. Whether a task waits
    /// for that is not known; here none does.
    fn drain_for(&mut self, config: &PlantConfig, need_bytes: u64) {
        let lacking = (need_bytes + config.watermark_bytes).saturating_sub(self.free_bytes(config));
        self.hidden_bytes = self.hidden_bytes.saturating_sub(lacking);
    }

    /// Freed 4 KiB pages go to per-CPU lists first.
    pub(super) fn hide(&mut self, config: &PlantConfig, now_ns: u64, bytes: u64) {
        let total = config.memory_total.demand_bytes(now_ns);
        let most = (total as f64 * config.hidden_share) as u64;
        self.hidden_bytes = (self.hidden_bytes + bytes).min(most.max(self.hidden_bytes));
    }

    /// Lets a step pass: jobs take and give back, caches fill, lists drain.
    pub(super) fn advance(
        &mut self,
        config: &PlantConfig,
        now_ns: u64,
        step_ns: u64,
        wanted_bytes: u64,
        stored_bytes: u64,
    ) {
        self.total_bytes = config.memory_total.demand_bytes(now_ns);
        self.stored_bytes = stored_bytes;
        self.wanted_bytes = wanted_bytes;
        let drained = moved(config.hidden_drain_bytes_per_s, step_ns);
        self.hidden_bytes = self.hidden_bytes.saturating_sub(drained);
        let at = |trace: &Option<_>| trace.as_ref().map_or(0, |t: &Trace| t.demand_bytes(now_ns));
        self.dirty_bytes = at(&config.dirty);
        self.uncounted_bytes = at(&config.uncounted);
        self.idle_swapped_bytes += moved(config.swap_idle_bytes_per_s, step_ns);
        self.refaulted_bytes += moved(config.group_refaults_bytes_per_s, step_ns);
        if wanted_bytes < self.jobs_bytes {
            let exited = self.jobs_bytes - wanted_bytes;
            self.jobs_bytes = wanted_bytes;
            self.swapped_bytes = self.swapped_bytes.saturating_sub(exited);
            self.hide(config, now_ns, exited);
        }
        let mut need = wanted_bytes - self.jobs_bytes;
        self.drain_for(config, need);
        let over = self.overcommitted_bytes(config);
        let missing =
            (need + over + config.watermark_bytes).saturating_sub(self.free_bytes(config));
        let swapped = self.swap_out(config, step_ns, missing);
        self.swapped_out_bytes += swapped;
        let got = need.min(self.free_bytes(config));
        self.clean_bytes = self.clean_bytes.min(self.free_bytes(config) - got);
        self.jobs_bytes += got;
        need -= got;
        self.stall(config, step_ns, need + over.saturating_sub(swapped));
        self.cache(config, now_ns, step_ns);
    }

    /// Bytes used above the memory there is, after a module or a balloon took some.
    fn overcommitted_bytes(&self, config: &PlantConfig) -> u64 {
        let used = config.kernel_bytes
            + self.jobs_bytes
            + self.stored_bytes
            + self.dirty_bytes
            + self.uncounted_bytes;
        used.saturating_sub(self.total_bytes + self.gained_bytes(config))
    }

    fn swap_out(&mut self, config: &PlantConfig, step_ns: u64, missing_bytes: u64) -> u64 {
        let (swap_bytes, rate) = config.swap;
        let left = swap_bytes.saturating_sub(self.swapped_bytes);
        let swapped = missing_bytes.min(moved(rate, step_ns)).min(left);
        self.swapped_bytes += swapped;
        swapped
    }

    fn stall(&mut self, config: &PlantConfig, step_ns: u64, missing_bytes: u64) {
        // With swap left a task waits for it; else nothing is to be had.
        let is_short = missing_bytes > 0 && self.swapped_bytes >= config.swap.0;
        self.shortages += u64::from(is_short && !self.is_short);
        self.is_short = is_short;
        let reclaims = self.free_bytes(config) < config.watermark_bytes;
        if missing_bytes > 0 || reclaims {
            self.some_ns += if missing_bytes > 0 { step_ns } else { step_ns / 2 };
        }
        if missing_bytes > self.total_bytes / ALL_WAIT_DIVISOR {
            self.full_ns += step_ns;
        }
    }

    /// The page cache takes what is free and gives it up at once; what it lacks is read again.
    fn cache(&mut self, config: &PlantConfig, now_ns: u64, step_ns: u64) {
        let Some((wanted, rate)) = &config.page_cache else { return };
        let wanted = wanted.demand_bytes(now_ns);
        let room = self.available_bytes(config);
        let lacking = wanted.saturating_sub(self.clean_bytes);
        let read = lacking.min(moved(*rate, step_ns));
        let grown = (self.clean_bytes + read).min(wanted);
        self.clean_bytes = grown.min(room);
        self.refaulted_bytes += grown - self.clean_bytes;
    }

    pub(super) fn truth(&self, config: &PlantConfig) -> Truth {
        Truth {
            memory_total_bytes: self.total_bytes,
            demand_bytes: config.kernel_bytes
                + self.wanted_bytes
                + self.dirty_bytes
                + self.uncounted_bytes,
            shortages: self.shortages,
            memory_only_bytes: 0,
            stored_bytes: self.stored_bytes,
            free_bytes: self.free_bytes(config),
            hidden_bytes: self.hidden_bytes,
            short_bytes: self.wanted_bytes - self.jobs_bytes,
            evicted_bytes: self.evicted_bytes,
            filled_bytes: 0,
            swapped_out_bytes: self.swapped_out_bytes,
            stalled_some_ns: self.some_ns,
            stalled_full_ns: self.full_ns,
        }
    }
}
