//! The messages between a controller of the store's memory and its node, and the state of control
//! that operators see. Plain data: the node decides which controller may govern, the controller
//! what a policy answers.

use serde::{Deserialize, Serialize};

use crate::entry::ConfigEntry;
use crate::error::{Error, ErrorKind, Result};
use crate::option::{OPTIONS, OptionSpec};

/// Prefix of the options that are parameters of the control policies; the rest of the name is
/// that of the parameter.
pub const PARAMETER_PREFIX: &str = "control_";
/// The one option with that prefix that is the node's own.
pub const LEASE_OPTION: &str = "control_lease_ms";
/// Most events in one message, so that it fits a frame.
pub const EVENTS_PER_MESSAGE_MAX: usize = 8;
/// Longest text of an event or note in bytes.
pub const TEXT_BYTES_MAX: usize = 128;
/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Most stores of a node under control, its own included.
pub const STORES_MAX: usize = 10;
/// Most notes in one message.
pub const NOTES_PER_MESSAGE_MAX: usize = 4;

/// Name of Tidepool's own store among those of a node.
pub const OWN_STORE: &str = "tidepool";
/// What notes of a controller say of stores that it should govern and does not.
pub const NOT_GOVERNED: &str = "not governed:";
/// Longest lease of a ceiling: however it came about, it is gone after this.
pub const CEILING_LEASE_MS_MAX: u64 = 60_000;

/// Names of the control policies, with one line each.
pub const CONTROL_POLICIES: [(&str, &str); 4] = [
    ("tidepool", "follows the demand of jobs: shrinks at once, ahead of growth; grows slowly"),
    ("dynims", "the law of the DynIMS paper with its two faults corrected"),
    ("dynims-printed", "the law of the DynIMS paper as printed, dead band included"),
    ("static", "a fixed size"),
];

/// Names of the alarms of the control, with what each means.
pub const ALARMS: [(&str, &str); 9] = [
    ("actuator-limited", "jobs take memory faster than the store can give it back"),
    ("sensor-disagreement", "two estimates of used memory differ by more than they should"),
    ("sensor-stale", "the memory of the node could not be read in time, or is implausible"),
    (
        "at-minimum",
        "the store is at its guaranteed part, or the rest is pinned, lent or not written back yet, \
         and jobs still want more",
    ),
    ("swap-out", "the node swaps memory out"),
    (
        "page-cache-starved",
        "jobs read files again and again that were in memory: their page cache does not fit beside \
         the store",
    ),
    ("store-failed", "a store did not answer or missed its deadline"),
    (
        "growth-braked",
        "there is room for the store to grow, and for a minute demand that grows, or tasks that \
         stall, kept it from it",
    ),
    (
        PFS_FULL,
        "the PFS, or a quota on it, has no room for bytes that are in memory alone or not synced: \
         they stay until there is room, and are tried again",
    ),
];

/// The alarm that is the node's own, whichever controller governs: see [`PfsFull`].
pub const PFS_FULL: &str = "pfs-full";

/// Options that are parameters of the policies.
pub fn parameter_options() -> impl Iterator<Item = &'static OptionSpec> {
    OPTIONS
        .iter()
        .filter(|spec| spec.name.starts_with(PARAMETER_PREFIX) && spec.name != LEASE_OPTION)
}

/// Time between two decisions in milliseconds where `control_interval_ms` is 0: that of the DynIMS
/// paper for its policy, whose gain belongs to it, and 10 ms for ours.
pub fn policy_interval_ms(policy: &str) -> u64 {
    if policy.starts_with("dynims") { 100 } else { 10 }
}

/// Refuses settings that cannot work together: within one lease the controller must be able to
/// decide twice, or it would count as dead between two decisions.
pub fn check_lease(lease_ms: u64, interval_ms: u64) -> Result<()> {
    if interval_ms.saturating_mul(2) <= lease_ms {
        return Ok(());
    }
    let detail = format!(
        "decisions every {interval_ms} ms are too rare for a lease of {lease_ms} ms: at most {} ms",
        lease_ms / 2
    );
    Err(Error::new(ErrorKind::InvalidInput, "checking the memory control", detail)
        .remedy("lower control_interval_ms or raise control_lease_ms"))
}

/// One setting of the control: name of the option, value as text in the grammar of the option.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlSetting {
    /// Name of the option.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A message of a controller to the node: attaches, renews the lease, sets the capacity, reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Govern {
    /// Number that the node gave at attachment; 0 attaches.
    pub fence: u64,
    /// Process id of the controller.
    pub process_id: u32,
    /// Time without a message or a heartbeat after which the controller counts as dead, in
    /// milliseconds. 0: the node's `control_lease_ms`. The node may shorten it to that.
    pub lease_ms: u64,
    /// New capacity; `None` leaves it. The node keeps it between the guaranteed part and the
    /// ceiling.
    pub capacity_bytes: Option<u64>,
    /// Generation of the settings that the controller has; 0: none.
    pub settings_generation: u64,
    /// The same of the ceilings that are leased of other stores.
    pub ceilings_generation: u64,
    /// What the controller thinks and did, for operators.
    pub report: Option<Box<ControlReport>>,
}

/// The answer to [`Govern`]. The descriptors of the control page and of the heartbeat come along
/// with the answer to an attachment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Governed {
    /// Number to send with every further message.
    pub fence: u64,
    /// Lease in force in milliseconds.
    pub lease_ms: u64,
    /// Bytes that this message gave back to the operating system.
    pub freed_bytes: u64,
    /// Bytes that the store holds now.
    pub resident_bytes: u64,
    /// Bytes that cannot be evicted now: pinned, borrowed, or open by passthrough.
    pub held_bytes: u64,
    /// Capacity in force.
    pub capacity_bytes: u64,
    /// Guaranteed part: never less than what is held.
    pub guaranteed_bytes: u64,
    /// Milliseconds that a resize took.
    pub elapsed_ms: f64,
    /// Generation of the settings in force.
    pub settings_generation: u64,
    /// The settings, if their generation is another than the controller's.
    pub settings: Option<Vec<ControlSetting>>,
    /// Generation of the ceilings that are leased of other stores than Tidepool's own.
    pub ceilings_generation: u64,
    /// These ceilings with what is left of their leases, if their generation is another than the
    /// controller's.
    pub ceilings: Option<Vec<CeilingLease>>,
}

/// What a controller reports of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlReport {
    /// Policy that decides.
    pub policy: String,
    /// State of the controller: `normal`, `emergency` or `safe`.
    pub level: String,
    /// Why the present target, in words.
    pub reason: String,
    /// Estimated demand of everything that is no store, in bytes.
    pub demand_bytes: u64,
    /// Growth of the demand in bytes per second.
    pub slope_bytes_per_s: u64,
    /// Bytes that all stores together may hold.
    pub target_bytes: u64,
    /// Memory of the node in bytes.
    pub memory_total_bytes: u64,
    /// Bytes that jobs could have without touching a store; absent where it cannot be read.
    pub available_bytes: Option<u64>,
    /// The control group whose limit is nearer than the node's memory, if one is.
    pub group: Option<GroupReport>,
    /// Bytes kept free for jobs above their demand.
    pub headroom_bytes: u64,
    /// Measured rate at which the store gives memory back, in bytes per second.
    pub release_bytes_per_s: u64,
    /// Decisions since the controller's start.
    pub decisions: u64,
    /// Median time from the reading of the sensors to the end of a shrink, in microseconds.
    pub reaction_us_median: u64,
    /// Longest of the same.
    pub reaction_us_max: u64,
    /// Names of alarms that are up, of [`ALARMS`].
    pub alarms: Vec<String>,
    /// What this machine lacks, one line each.
    pub notes: Vec<String>,
    /// All stores under control.
    pub stores: Vec<ControlledStore>,
    /// Decisions that changed something since the last report, oldest first.
    pub events: Vec<ControlEvent>,
}

/// A control group that holds the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Its path.
    pub name: String,
    /// Its limit in bytes.
    pub limit_bytes: u64,
    /// Bytes charged to it that are no store's and cannot be dropped.
    pub demand_bytes: u64,
    /// Bytes that its jobs could have without touching a store.
    pub available_bytes: u64,
}

impl ControlReport {
    /// Stores other than Tidepool's own.
    pub fn others(&self) -> impl Iterator<Item = &ControlledStore> {
        self.stores.iter().filter(|store| store.name != OWN_STORE)
    }

    /// Shortens lists and texts to what fits a frame; the newest events stay.
    pub fn fit(&mut self) {
        let surplus = self.events.len().saturating_sub(EVENTS_PER_MESSAGE_MAX);
        self.events.drain(..surplus);
        // What is not governed at all matters most, whenever it was noted.
        self.notes.sort_by_key(|note| !note.contains(NOT_GOVERNED));
        self.notes.truncate(NOTES_PER_MESSAGE_MAX);
        self.stores.truncate(STORES_MAX);
        self.alarms.truncate(ALARMS.len());
        let texts = self.events.iter_mut().map(|event| &mut event.reason);
        let texts = texts.chain(&mut self.notes).chain([&mut self.reason]);
        let texts = texts.chain(self.group.as_mut().map(|group| &mut group.name));
        texts.for_each(|text| shorten(text, TEXT_BYTES_MAX));
        let names = self.stores.iter_mut().map(|store| &mut store.name);
        let names = names.chain(&mut self.alarms).chain([&mut self.policy, &mut self.level]);
        names.for_each(|name| shorten(name, NAME_BYTES_MAX));
    }
}

fn shorten(text: &mut String, bytes_max: usize) {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

/// Asks a node to hold a store below a ceiling for a while. The node keeps it between the
/// guaranteed part and the configured most, and its controller decides below it as ever. Other
/// stores than Tidepool's own are those that the controller governs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CeilingLease {
    /// Name of the store.
    pub store: String,
    /// Bytes that it may hold at most.
    pub ceiling_bytes: u64,
    /// How long this holds by the node's monotonic clock, from 1 to [`CEILING_LEASE_MS_MAX`].
    pub lease_ms: u64,
    /// Who says so, for operators.
    pub source: String,
}

impl CeilingLease {
    /// Refuses what a node would refuse.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a lease that is none or too long, and for names that are none or too
    /// long.
    pub fn check(&self) -> Result<()> {
        let detail = if !(1..=NAME_BYTES_MAX).contains(&self.store.len()) {
            format!("the name of its store has not 1 to {NAME_BYTES_MAX} bytes")
        } else if !(1..=CEILING_LEASE_MS_MAX).contains(&self.lease_ms) {
            format!("a lease of {} ms is not within 1 and {CEILING_LEASE_MS_MAX}", self.lease_ms)
        } else if self.source.len() > NAME_BYTES_MAX {
            format!("its source has more than {NAME_BYTES_MAX} bytes")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidInput, "leasing a ceiling", detail))
    }
}

/// What an asked ceiling comes to: never below what the store has for sure, and never above its
/// configured most, which goes first.
pub fn ceiling_within(asked_bytes: u64, least_bytes: u64, configured_bytes: u64) -> u64 {
    asked_bytes.max(least_bytes).min(configured_bytes)
}

/// The answer to [`CeilingLease`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CeilingLeased {
    /// Bytes that the store may hold at most from now on.
    pub ceiling_bytes: u64,
    /// Bytes that it may hold now.
    pub capacity_bytes: u64,
    /// Whether the ceiling was the same before, so that only its lease is new.
    pub repeated: bool,
}

/// A ceiling that is leased at present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeasedCeiling {
    /// Bytes that the store may hold at most, within its own limits.
    pub ceiling_bytes: u64,
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Milliseconds until it is over, unless it is leased again.
    pub left_ms: u64,
    /// Who leased it.
    pub source: String,
}

/// One store under control.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlledStore {
    /// Name, unique on the node.
    pub name: String,
    /// Bytes it holds.
    pub resident_bytes: u64,
    /// Bytes it may hold.
    pub capacity_bytes: u64,
    /// Bytes it never goes below.
    pub capacity_min_bytes: u64,
    /// Bytes it may hold at most, as configured.
    pub capacity_configured_bytes: u64,
    /// The same as it is now: a ceiling is leased where it is less.
    pub capacity_max_bytes: u64,
    /// Of the bytes it holds, those that are clean page cache.
    pub page_cache_bytes: u64,
    /// Bytes that cannot be given back now.
    pub held_bytes: u64,
    /// Unit in which its capacity changes.
    pub block_bytes: u64,
    /// It does not answer, or missed its deadline.
    pub failed: bool,
}

/// A decision that changed something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlEvent {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// Target in bytes.
    pub target_bytes: u64,
    /// Demand in bytes.
    pub demand_bytes: u64,
    /// Growth of the demand in bytes per second.
    pub slope_bytes_per_s: u64,
    /// Bytes that the stores held.
    pub resident_bytes: u64,
    /// Why, in words.
    pub reason: String,
}

/// Bytes that the PFS had no room for at the last try.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PfsFull {
    /// Seconds since the first refusal.
    pub since_s: u64,
    /// Seconds until the node tries again; absent where only programs can, by another sync.
    pub again_s: Option<u64>,
    /// Users whose quota is used up, as far as a quota was the reason.
    pub users: Vec<u32>,
    /// Bytes of open files that a sync could not make durable.
    pub dirty_bytes: u64,
    /// What the PFS answered, in words.
    pub why: String,
}

impl PfsFull {
    /// Sorts the users, and shortens list and text to what fits a frame.
    pub fn fit(&mut self) {
        self.users.sort_unstable();
        self.users.truncate(EVENTS_PER_MESSAGE_MAX);
        shorten(&mut self.why, 2 * TEXT_BYTES_MAX);
    }
}

/// The control as operators see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// Whether the node runs a controller of its own.
    pub enabled: bool,
    /// State of the lease: `never`, `governed`, `expired` or `released`.
    pub lease: String,
    /// Lease in force in milliseconds.
    pub lease_ms: u64,
    /// Process id of the controller that governs, or governed last.
    pub process_id: Option<u32>,
    /// Seconds since it attached.
    pub attached_s: Option<u64>,
    /// Milliseconds since its last message.
    pub silent_ms: Option<u64>,
    /// Times a controller attached.
    pub attachments: u64,
    /// Times a lease ran out, so that the store fell to its guaranteed part.
    pub expirations: u64,
    /// Messages of controllers that were refused because another governs.
    pub refusals: u64,
    /// Times somebody else changed the capacity of a governed store.
    pub foreign_changes: u64,
    /// Starts of the node's own controller after the first.
    pub restarts: u64,
    /// Guaranteed part in bytes: never less than what is pinned.
    pub guaranteed_bytes: u64,
    /// Most bytes that a controller may give the store, but for a leased ceiling.
    pub ceiling_bytes: u64,
    /// A lower most for the time of a lease; absent where there is none.
    pub leased_ceiling: Option<LeasedCeiling>,
    /// Ceilings that are leased of other stores.
    pub other_ceilings: Vec<CeilingLease>,
    /// Times a ceiling was leased, the same again included.
    pub ceiling_leases: u64,
    /// Times the lease of a ceiling ran out.
    pub ceiling_expirations: u64,
    /// Capacity in force.
    pub capacity_bytes: u64,
    /// Bytes that the store holds.
    pub resident_bytes: u64,
    /// Bytes that cannot be evicted now.
    pub held_bytes: u64,
    /// Bytes that exist in memory only.
    pub memory_only_bytes: u64,
    /// Measured rate at which memory-only bytes are written back; 0 before the first time.
    pub write_back_bytes_per_s: u64,
    /// Why bytes cannot be written back; absent where the PFS took them at the last try.
    pub pfs_full: Option<PfsFull>,
    /// What the controller reported last; absent before its first report.
    pub report: Option<ControlReport>,
    /// Latest decisions that changed something, oldest first.
    pub decisions: Vec<ControlEvent>,
    /// The settings in force.
    pub settings: Vec<ConfigEntry>,
    /// Risks of the settings, and what the control lacks, one line each.
    pub warnings: Vec<String>,
}

impl ControlStatus {
    /// Most bytes that a controller may give the store now.
    pub fn ceiling_in_force_bytes(&self) -> u64 {
        self.leased_ceiling.as_ref().map_or(self.ceiling_bytes, |leased| leased.ceiling_bytes)
    }

    /// Other stores that should be under control and are not, one line each, by the word of a
    /// controller that is alive.
    pub fn not_governed(&self) -> impl Iterator<Item = &str> {
        let governed = self.lease == crate::control_page::LeaseState::Governed.name();
        let notes = self.report.as_ref().filter(|_| governed).map(|report| &report.notes);
        notes.into_iter().flatten().map(String::as_str).filter(|note| note.contains(NOT_GOVERNED))
    }

    /// Whether an alarm of [`ALARMS`] is up, by the word of a controller that is alive, or by the
    /// node's own.
    pub fn has_alarm(&self, name: &str) -> bool {
        if name == PFS_FULL {
            return self.pfs_full.is_some();
        }
        let governed = self.lease == crate::control_page::LeaseState::Governed.name();
        let report = self.report.as_ref().filter(|_| governed);
        report.is_some_and(|report| report.alarms.iter().any(|alarm| alarm == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::REQUEST_BODY_BYTES_MAX;

    fn largest(name: &str) -> ControlledStore {
        ControlledStore {
            name: name.to_owned(),
            resident_bytes: u64::MAX,
            capacity_bytes: u64::MAX,
            capacity_min_bytes: u64::MAX,
            capacity_configured_bytes: u64::MAX,
            capacity_max_bytes: u64::MAX,
            page_cache_bytes: u64::MAX,
            held_bytes: u64::MAX,
            block_bytes: u64::MAX,
            failed: true,
        }
    }

    #[test]
    fn the_longest_report_fits_a_frame() {
        let long = "ü".repeat(4096);
        let mut report = ControlReport {
            reason: long.clone(),
            policy: long.clone(),
            level: long.clone(),
            alarms: vec![long.clone(); 99],
            notes: vec![long.clone(); 99],
            stores: vec![largest(&long); 99],
            events: vec![ControlEvent { reason: long, at_ms: u64::MAX, ..Default::default() }; 99],
            ..ControlReport::default()
        };
        report.events.last_mut().unwrap().at_ms = 7;
        report.fit();
        assert_eq!(report.events.last().unwrap().at_ms, 7, "the newest stay");
        let govern = Govern { report: Some(Box::new(report)), ..Govern::default() };
        let request = crate::wire::Request::Admin(crate::admin::AdminRequest::Govern(govern));
        let bytes = request.encode(Vec::new()).unwrap();
        assert!(bytes.len() <= REQUEST_BODY_BYTES_MAX as usize, "{}", bytes.len());
    }

    #[test]
    fn alarms_of_a_dead_controller_are_not_up() {
        let report = ControlReport { alarms: vec!["swap-out".into()], ..Default::default() };
        let mut status =
            ControlStatus { lease: "governed".into(), report: Some(report), ..Default::default() };
        assert!(status.has_alarm("swap-out") && !status.has_alarm("at-minimum"));
        status.lease = "expired".into();
        assert!(!status.has_alarm("swap-out") && !status.has_alarm(PFS_FULL));
        status.pfs_full = Some(PfsFull::default());
        assert!(status.has_alarm(PFS_FULL), "the node's own needs no controller");
    }
}
