//! Limits of control groups and what is charged to them. A group without a limit below the node's
//! memory is watched, but not reported.

use std::path::{Path, PathBuf};

use tidepool_control_policy::{Limit, StoreState};

use super::file::SensorFile;
use super::groups::{self, GroupPlace, GroupVersion};
use super::{Roots, text};

/// A group is near its limit where less than this part of it is free, droppable pages included: the
/// kernel then trades page cache for what a job takes, and what is charged stays level.
const NEAR_DIVISOR: u64 = 8;
/// Most groups of jobs that are watched; a node runs far fewer.
const JOBS_MAX: usize = 64;

/// The groups of the store and of the node's jobs.
pub(crate) struct Limits {
    places: Vec<GroupPlace>,
    /// The store's groups, innermost first, then the jobs'.
    groups: Vec<Group>,
    /// The number of groups that belong to the store.
    own: usize,
    jobs: Vec<PathBuf>,
    /// Processes of the stores when it was last seen to which groups they are charged.
    placed: Vec<u32>,
}

struct Group {
    version: GroupVersion,
    directory: PathBuf,
    name: String,
    holds_store: bool,
    /// Stores that are charged elsewhere, as [`Limit::outside`].
    outside: u64,
    limit: SensorFile,
    /// `memory.high`; the first version has none.
    throttle: Option<SensorFile>,
    charged: SensorFile,
    statistics: SensorFile,
    events: SensorFile,
    /// Bytes charged that can be dropped, from the last look at the statistics.
    droppable_bytes: u64,
    hits: u64,
    /// What was read last; `None` where the group has no limit or is not readable.
    present: Option<(u64, u64)>,
}

impl Limits {
    /// Finds the groups of the process named by `roots`.
    pub fn open(roots: &Roots) -> Self {
        let places = roots.group_places();
        let (groups, jobs, placed) = (Vec::new(), Vec::new(), Vec::new());
        let mut limits = Limits { places, groups, own: 0, jobs, placed };
        limits.rebuild();
        limits.scan(roots);
        limits
    }

    /// Whether any hierarchy with memory was found.
    pub fn has_groups(&self) -> bool {
        !self.places.is_empty()
    }

    fn rebuild(&mut self) {
        self.groups.clear();
        for place in &self.places {
            let levels = place.levels();
            self.groups.extend(levels.map(|level| Group::open(place, level, true)));
        }
        self.own = self.groups.len();
        self.placed.clear();
    }

    /// Looks for jobs that came or went, and whether the store moved. Allocates; once a second.
    pub fn scan(&mut self, roots: &Roots) {
        let places = roots.group_places();
        if places != self.places {
            self.places = places;
            self.jobs.clear();
            self.rebuild();
        }
        let own: Vec<&Path> =
            self.groups[..self.own].iter().map(|g| g.directory.as_path()).collect();
        let mut jobs = Vec::new();
        let mut opened = Vec::new();
        for place in &self.places {
            for job in groups::slurm_jobs(place.version, &place.top, JOBS_MAX) {
                if !own.contains(&job.as_path()) {
                    opened.push((place, job.clone()));
                    jobs.push(job);
                }
            }
        }
        if jobs != self.jobs {
            let groups = opened.iter().map(|(place, job)| Group::open(place, job, false));
            let groups: Vec<Group> = groups.collect();
            self.groups.truncate(self.own);
            self.groups.extend(groups);
            self.jobs = jobs;
        }
    }

    /// Finds out which of `stores` are charged to the node's groups: where their processes are now.
    /// One whose process is not known counts as outside. So nothing is taken from it that the group
    /// may not need; what it has in the group is used all the same, and the node's own store makes
    /// room for it. Does nothing while the processes are the same, unless `again` is set.
    pub fn place(&mut self, roots: &Roots, stores: &[StoreState], again: bool) {
        let same = self.placed.iter().copied().eq(stores.iter().map(|store| store.process_id));
        if same && !again {
            return;
        }
        self.placed.clear();
        self.placed.extend(stores.iter().map(|store| store.process_id));
        let own = &mut self.groups[..self.own];
        own.iter_mut().for_each(|group| group.outside = 0);
        for (store, process_id) in self.placed.iter().enumerate().take(u64::BITS as usize) {
            // Of a node outside the view the groups that are seen are those at the top.
            if *process_id == roots.store_process.unwrap_or_else(std::process::id) {
                continue;
            }
            let places = match process_id {
                0 => Vec::new(),
                _ => roots.places_in_view(*process_id),
            };
            for group in own.iter_mut() {
                let is_inside = places.iter().any(|place| {
                    place.version == group.version && place.directory.starts_with(&group.directory)
                });
                group.outside |= u64::from(!is_inside) << store;
            }
        }
    }

    /// Brings `limits` up to date. The store's own limits are read every time, and their statistics
    /// near the limit; jobs, other statistics and groups without a limit only where `all` is set.
    pub fn read(&mut self, total_bytes: u64, all: bool, limits: &mut Vec<Limit>) {
        for group in &mut self.groups {
            if all || (group.holds_store && group.present.is_some()) {
                group.read(total_bytes, all);
            }
        }
        let present = self.groups.iter().filter(|group| group.present.is_some());
        let same = present.clone().map(|group| &group.name).eq(limits.iter().map(|l| &l.name));
        if !same {
            limits.clear();
            limits.extend(present.clone().map(|group| Limit {
                name: group.name.clone(),
                holds_store: group.holds_store,
                ..Limit::default()
            }));
        }
        for (group, limit) in present.zip(limits) {
            let (limit_bytes, used_bytes) = group.present.unwrap_or_default();
            limit.limit_bytes = limit_bytes;
            limit.used_bytes = used_bytes;
            limit.hits = group.hits;
            limit.outside = group.outside;
        }
    }
}

impl Group {
    fn open(place: &GroupPlace, directory: &Path, holds_store: bool) -> Self {
        let (limit, charged, events) = match place.version {
            GroupVersion::V1 => {
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.failcnt")
            }
            GroupVersion::V2 => ("memory.max", "memory.current", "memory.events"),
        };
        let file = |name: &str| SensorFile::single(directory.join(name), 64);
        let below = directory.strip_prefix(&place.top).unwrap_or(directory);
        Group {
            version: place.version,
            directory: directory.to_owned(),
            name: format!("/{}", below.display()),
            holds_store,
            outside: 0,
            limit: file(limit),
            throttle: (place.version == GroupVersion::V2).then(|| file("memory.high")),
            charged: file(charged),
            statistics: SensorFile::new(directory.join("memory.stat"), 4096),
            events: file(events),
            droppable_bytes: 0,
            hits: 0,
            present: None,
        }
    }

    fn read(&mut self, total_bytes: u64, all: bool) {
        let limits = [self.limit.read(), self.throttle.as_mut().and_then(SensorFile::read)];
        let lowest = limits.into_iter().flatten().filter_map(text::single).min();
        let Some(limit_bytes) = lowest.filter(|&limit| limit < total_bytes) else {
            self.present = None;
            return;
        };
        let Some(charged) = self.charged.read().and_then(text::single) else {
            self.present = None;
            return;
        };
        let near = limit_bytes.saturating_sub(charged) <= limit_bytes / NEAR_DIVISOR;
        if all || near || self.present.is_none() {
            self.droppable_bytes =
                self.statistics.read().map_or(0, |text| droppable_bytes(text, self.version));
            self.hits = self.events.read().map_or(self.hits, |text| hits(text, self.version));
        }
        self.present = Some((limit_bytes, charged.saturating_sub(self.droppable_bytes)));
    }
}

/// Of what is charged: clean pages of files and reclaimable kernel memory.
fn droppable_bytes(statistics: &[u8], version: GroupVersion) -> u64 {
    let (mut droppable, mut unwritten) = (0_u64, 0_u64);
    text::counters(statistics, |name, bytes| match (version, name) {
        (GroupVersion::V2, b"inactive_file" | b"active_file" | b"slab_reclaimable")
        | (GroupVersion::V1, b"total_inactive_file" | b"total_active_file") => {
            droppable = droppable.saturating_add(bytes);
        }
        (GroupVersion::V2, b"file_dirty" | b"file_writeback")
        | (GroupVersion::V1, b"total_dirty" | b"total_writeback") => {
            unwritten = unwritten.saturating_add(bytes);
        }
        _ => {}
    });
    droppable.saturating_sub(unwritten)
}

/// How often the limit was hit.
fn hits(events: &[u8], version: GroupVersion) -> u64 {
    match version {
        GroupVersion::V1 => text::single(events).unwrap_or(0),
        GroupVersion::V2 => {
            let mut sum = 0_u64;
            text::counters(events, |name, value| {
                if name == b"max" || name == b"oom" {
                    sum = sum.saturating_add(value);
                }
            });
            sum
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_pages_of_files_can_be_dropped() {
        let second =
            b"anon 9\ninactive_file 10\nactive_file 20\nslab_reclaimable 5\nfile_dirty 3\n";
        assert_eq!(droppable_bytes(second, GroupVersion::V2), 32);
        let first =
            b"inactive_file 1\ntotal_inactive_file 10\ntotal_active_file 20\ntotal_dirty 40\n";
        assert_eq!(droppable_bytes(first, GroupVersion::V1), 0);
    }

    #[test]
    fn hits_are_counted_in_both_versions() {
        assert_eq!(hits(b"low 0\nhigh 9\nmax 3\noom 1\noom_kill 1\n", GroupVersion::V2), 4);
        assert_eq!(hits(b"17\n", GroupVersion::V1), 17);
    }
}
