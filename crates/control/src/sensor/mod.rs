//! The sensors of a node: memory by kind, pressure, swap, control groups, NUMA nodes.
//!
//! Files are opened once and read by `pread`; a tick allocates nothing. Whatever is missing is
//! `None` in the snapshot and one line in [`Sense::notes`]; nothing unreadable becomes zero.

mod events;
mod file;
mod groups;
mod jobs;
mod limits;
mod meminfo;
mod memory_nodes;
mod plausibility;
mod pressure;
mod text;
mod zones;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use tidepool_control_policy::Snapshot;
use tidepool_proto::mounts::MountTable;
use tidepool_proto::{Error, ErrorKind, Result};

pub use events::Events;
pub use groups::{GroupPlace, GroupVersion, places, slurm_jobs};
pub use jobs::{JobFacts, JobSensor};
pub use meminfo::MemoryCounters;
pub use pressure::parse as parse_pressure;
pub use zones::Zones;

use file::SensorFile;
use limits::Limits;
use memory_nodes::MemoryNodes;
use plausibility::Plausibility;

/// Time between two looks at NUMA nodes, where there are several.
const NODES_NS: u64 = 100_000_000;
/// Time between two looks at jobs' groups, which move slowly.
const GROUPS_NS: u64 = 200_000_000;
/// Time between two looks at events, which only tell of trouble.
const EVENTS_NS: u64 = 500_000_000;
/// Longest time between two looks at the per-CPU lists.
const ZONES_NS: u64 = 500_000_000;
/// After a store gave memory back the lists are read every time for this long: they drain within a
/// second.
const ZONES_BUSY_NS: u64 = 1_000_000_000;
/// Programs' memory that changes by this much may have gone through the lists.
const ZONES_MOVED_BYTES: u64 = 16 << 20;
/// Time between two searches for jobs.
const SCAN_NS: u64 = 1_000_000_000;

/// Where the kernel's files are, and whose control group holds the stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Directory in front of all paths; `/` on a live machine.
    pub root: PathBuf,
    /// The process that faults the stores' pages, to whose group they are charged. `None`: this
    /// one.
    pub store_process: Option<u32>,
}

impl Default for Roots {
    fn default() -> Self {
        Roots { root: PathBuf::from("/"), store_process: None }
    }
}

impl Roots {
    /// A file or directory by its absolute path on a live machine.
    fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// The hierarchies with memory and the places of the store's process in them.
    fn group_places(&self) -> Vec<GroupPlace> {
        let process = self.store_process.map_or("self".to_owned(), |process| process.to_string());
        self.places_of(&process, places)
    }

    /// The places of another process of this machine in the hierarchies that are seen.
    fn places_in_view(&self, process_id: u32) -> Vec<GroupPlace> {
        self.places_of(&process_id.to_string(), groups::places_in_view)
    }

    fn places_of(
        &self,
        process: &str,
        find: impl Fn(&str, &MountTable) -> Vec<GroupPlace>,
    ) -> Vec<GroupPlace> {
        let read = |path: String| std::fs::read(self.path(path)).unwrap_or_default();
        let groups = read(format!("/proc/{process}/cgroup"));
        let mounts = MountTable::from_text(read("/proc/self/mountinfo".to_owned()));
        let mut places = find(&String::from_utf8_lossy(&groups), &mounts);
        for place in &mut places {
            place.top = self.path(&place.top);
            place.directory = self.path(&place.directory);
        }
        places.retain(|place| place.directory.is_dir());
        places
    }
}

/// Something that fills a snapshot.
pub trait Sense: Send {
    /// Reads everything but the stores into `snapshot`. `stored_bytes` is what the stores say they
    /// hold now.
    fn read(&mut self, at_ns: u64, stored_bytes: u64, snapshot: &mut Snapshot);

    /// Tells that a store gave memory back: free pages may be on their way through hidden lists.
    fn memory_moved(&mut self) {}

    /// What is missing here and what that costs, one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// A descriptor that polls as exceptional when the node becomes short of memory.
    fn wake(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The sensors of a live machine, or of a recorded one.
pub struct Sensors {
    roots: Roots,
    page_bytes: u64,
    meminfo: SensorFile,
    zoneinfo: SensorFile,
    vmstat: SensorFile,
    pressure: SensorFile,
    processors: SensorFile,
    trigger: Option<File>,
    limits: Limits,
    memory_nodes: MemoryNodes,
    zones: Zones,
    has_zones: bool,
    plausibility: Plausibility,
    schedule: Schedule,
    notes: Vec<String>,
}

/// When what was read last.
#[derive(Default)]
struct Schedule {
    nodes_ns: Option<u64>,
    groups_ns: Option<u64>,
    events_ns: Option<u64>,
    zones_ns: Option<u64>,
    scan_ns: Option<u64>,
    zones_busy_until_ns: u64,
    memory_moved: bool,
    /// Memory of programs when the lists were read last.
    programs_bytes: u64,
}

/// Whether `last` was at least `every` ago, and if so makes it now.
fn due(last: &mut Option<u64>, now: u64, every: u64) -> bool {
    let due = last.is_none_or(|last| now.saturating_sub(last) >= every);
    if due {
        *last = Some(now);
    }
    due
}

impl Sensors {
    /// Opens the sensors below `roots`.
    ///
    /// # Errors
    ///
    /// `Unsupported` where `/proc/meminfo` does not say how much memory there is: nothing can be
    /// controlled then. Everything else degrades, see [`Sense::notes`].
    pub fn open(roots: Roots) -> Result<Self> {
        let proc = |name: &str, bytes| SensorFile::new(roots.path(format!("/proc/{name}")), bytes);
        let single =
            |name: &str, bytes| SensorFile::single(roots.path(format!("/proc/{name}")), bytes);
        let mut meminfo = single("meminfo", 4096);
        let total = meminfo.read().and_then(|text| MemoryCounters::parse(text).total);
        if total.is_none_or(|total| total == 0) {
            let operation = format!("reading {}", meminfo.path().display());
            let error = Error::new(ErrorKind::Unsupported, operation, "MemTotal is missing");
            return Err(error.remedy("mount /proc; memory control needs it"));
        }
        let mut sensors = Sensors {
            page_bytes: rustix::param::page_size() as u64,
            zoneinfo: proc("zoneinfo", 32 << 10),
            vmstat: proc("vmstat", 8192),
            pressure: single("pressure/memory", 256),
            processors: SensorFile::single(roots.path("/sys/devices/system/cpu/online"), 256),
            trigger: None,
            limits: Limits::open(&roots),
            memory_nodes: MemoryNodes::open(&roots.path("/sys/devices/system/node")),
            zones: Zones::default(),
            has_zones: false,
            plausibility: Plausibility::default(),
            schedule: Schedule::default(),
            notes: Vec::new(),
            meminfo,
            roots,
        };
        sensors.examine();
        Ok(sensors)
    }

    /// Finds out what is missing.
    fn examine(&mut self) {
        self.has_zones = read_zones(&mut self.zoneinfo, &mut self.zones, self.page_bytes);
        let counters = self.meminfo.read().map(MemoryCounters::parse).unwrap_or_default();
        let mut notes = Vec::new();
        let mut note = |missing: bool, what: &str| {
            if missing {
                notes.push(what.to_owned());
            }
        };
        note(
            counters.available.is_none(),
            "no MemAvailable (Linux before 3.14): available memory is estimated from page cache",
        );
        note(
            counters.used_kinds_bytes(None).is_none(),
            "meminfo lacks kinds of memory: no second estimate, a lying sensor goes unnoticed",
        );
        note(
            !self.has_zones,
            "no per-CPU lists in zoneinfo: memory just freed counts late, stores may give too much",
        );
        let events = self.vmstat.read().map(Events::parse).unwrap_or_default();
        note(events.swapped_out_pages.is_none(), "no pswpout in vmstat: swapping goes unnoticed");
        note(events.refaulted_pages.is_none(), "no refaults in vmstat: growth has one brake less");
        let pressure = self.pressure.read().and_then(pressure::parse);
        note(
            pressure.is_none(),
            "no memory pressure (Linux before 4.20, or psi=0): stalled tasks go unnoticed",
        );
        if pressure.is_some() {
            match pressure::trigger(self.pressure.path()) {
                Ok(file) => self.trigger = Some(file),
                Err(error) => {
                    notes.push(format!("no pressure trigger ({error}): polling alone wakes"));
                }
            }
        }
        if !self.limits.has_groups() {
            notes.push("no control group with memory: only the node's memory limits".to_owned());
        }
        self.notes = notes;
    }

    /// What the zones said last: the kernel's watermarks, and bytes in hidden lists.
    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    /// How many NUMA nodes there are; 0 where memory is uniform.
    pub fn memory_nodes(&self) -> usize {
        self.memory_nodes.len()
    }

    /// Brings the per-CPU lists up to date if it is time.
    fn refresh_zones(&mut self, at_ns: u64, programs_bytes: u64) {
        let schedule = &mut self.schedule;
        let moved = schedule.zones_ns.is_some()
            && programs_bytes.abs_diff(schedule.programs_bytes) >= ZONES_MOVED_BYTES;
        if std::mem::take(&mut schedule.memory_moved) {
            schedule.zones_busy_until_ns = at_ns.saturating_add(ZONES_BUSY_NS);
        }
        let busy = moved || at_ns < schedule.zones_busy_until_ns;
        let every = if busy { 0 } else { ZONES_NS };
        if due(&mut schedule.zones_ns, at_ns, every) {
            schedule.programs_bytes = programs_bytes;
            self.has_zones = read_zones(&mut self.zoneinfo, &mut self.zones, self.page_bytes);
        }
    }

    fn read_events(&mut self, snapshot: &mut Snapshot) {
        let events = self.vmstat.read().map(Events::parse).unwrap_or_default();
        snapshot.swapped_out_pages = events.swapped_out_pages;
        snapshot.refaulted_pages = events.refaulted_pages;
    }
}

fn read_zones(file: &mut SensorFile, zones: &mut Zones, page_bytes: u64) -> bool {
    match file.read() {
        Some(text) => zones.read(text, page_bytes),
        None => {
            *zones = Zones::default();
            false
        }
    }
}

impl Sense for Sensors {
    fn read(&mut self, at_ns: u64, stored_bytes: u64, snapshot: &mut Snapshot) {
        let counters = self.meminfo.read().map(MemoryCounters::parse).unwrap_or_default();
        if let Some(total) = counters.total.filter(|&total| total > 0) {
            snapshot.memory_total_bytes = total;
        }
        let programs = counters.anonymous.unwrap_or(0).saturating_add(counters.shared.unwrap_or(0));
        self.refresh_zones(at_ns, programs);
        let available = counters.available.or_else(|| counters.derived_available_bytes());
        let available = self.plausibility.check(at_ns, &counters, available, stored_bytes);
        snapshot.available_bytes = available.map(|available| {
            // Pages of files that wait to be written are counted as available, yet nobody can have
            // them before they are written.
            let hidden = self.zones.hidden_bytes.min(snapshot.memory_total_bytes / 8);
            let written = available.saturating_sub(counters.unwritten_bytes());
            written.saturating_add(hidden).min(snapshot.memory_total_bytes)
        });
        snapshot.free_bytes =
            counters.free.map(|free| free.saturating_add(self.zones.hidden_bytes));
        snapshot.has_lists = self.has_zones;
        let zones = self.has_zones.then_some(&self.zones);
        snapshot.used_kinds_bytes = counters.used_kinds_bytes(zones);
        snapshot.pressure = self.pressure.read().and_then(pressure::parse);
        let scan = due(&mut self.schedule.scan_ns, at_ns, SCAN_NS);
        if scan {
            self.limits.scan(&self.roots);
        }
        self.limits.place(&self.roots, &snapshot.stores, scan);
        if scan {
            snapshot.processors = self.processors.read().and_then(text::listed);
        }
        if due(&mut self.schedule.events_ns, at_ns, EVENTS_NS) {
            snapshot.events_at_ns = Some(at_ns);
            self.read_events(snapshot);
        }
        if due(&mut self.schedule.nodes_ns, at_ns, NODES_NS) {
            self.memory_nodes.read(&self.zones, &mut snapshot.memory_nodes);
        }
        let all = due(&mut self.schedule.groups_ns, at_ns, GROUPS_NS);
        self.limits.read(snapshot.memory_total_bytes, all, &mut snapshot.limits);
    }

    fn memory_moved(&mut self) {
        self.schedule.memory_moved = true;
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.trigger.as_ref().map(AsFd::as_fd)
    }
}
