//! [`Shared`]: what the threads of an agent know together: what became of samples and ceilings, and
//! what does not work at present. A change between working and not is said in one line.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tidepool_control::actuator::ObservedStore;
use tidepool_proto::plane::{
    AgentStatus, CeilingCounts, FollowedCeiling, RefusedCount, SampleCounts, StoreAboveCeiling,
    StoreCeiling, Trouble,
};
use tidepool_terminal::output;

use crate::ceiling::Refusal;
use crate::follow::Follow;
use crate::jobs::ObservedJobs;
use crate::others::{ObservedOthers, OtherStore};
use crate::rhythm::Rhythm;
use crate::sample::Origin;

/// Time between two lines about ceilings that were refused for the same reason.
const REFUSALS_SAID_EVERY: Duration = Duration::from_secs(600);
/// Lines that wait for the reader of the log.
const LINES_MAX: usize = 256;
/// Time for the last one.
const LAST_LINE_TIME: Duration = Duration::from_millis(50);
/// Stack of the thread that writes them.
const STACK_BYTES: usize = 128 << 10;

/// An agent.
pub struct Shared {
    /// Who its samples are of.
    pub origin: Origin,
    /// How often they are taken and sent.
    pub rhythm: Rhythm,
    /// Brokers that it was told of.
    pub kafka: String,
    /// The store of the node.
    pub store: ObservedStore,
    /// Other stores under control on the node.
    pub others: ObservedOthers,
    /// Jobs on the node.
    pub jobs: ObservedJobs,
    /// Number of the last sample.
    pub last_number: AtomicU64,
    started: Instant,
    state: Mutex<State>,
}

/// What changes.
#[derive(Default)]
pub struct State {
    /// What became of samples.
    pub samples: SampleCounts,
    /// What became of ceilings, but for those that were refused.
    pub ceilings: CeilingCounts,
    /// The run of the job that is followed.
    pub follow: Follow,
    /// Between the agent and its node.
    pub node_link: Link,
    /// From the agent to Kafka.
    pub samples_link: Link,
    /// From Kafka to the agent.
    pub ceilings_link: Link,
    refused: [u64; Refusal::ALL.len()],
    /// When a refusal of each reason was said last.
    refused_said: [Option<Instant>; Refusal::ALL.len()],
}

impl Shared {
    /// An agent that starts now.
    pub fn new(origin: Origin, rhythm: Rhythm, kafka: String, store: ObservedStore) -> Shared {
        let (started, last_number) = (Instant::now(), AtomicU64::new(0));
        let mut state = State::default();
        state.node_link.what = "the node is not seen";
        state.samples_link.what = "samples do not reach Kafka";
        state.ceilings_link.what = "no ceilings can come from Kafka";
        let state = Mutex::new(state);
        let (others, jobs) = (ObservedOthers::default(), ObservedJobs::default());
        Shared { origin, rhythm, kafka, store, others, jobs, last_number, started, state }
    }

    /// What changes.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// All of it, for operators.
    pub fn status(&self) -> AgentStatus {
        let state = self.state();
        let now = Instant::now();
        let refused = Refusal::ALL.iter().zip(state.refused).filter(|(_, count)| *count > 0);
        let refused = refused.map(|(refusal, count)| {
            let reason = refusal.name().to_owned();
            RefusedCount { reason, count }
        });
        let followed = state.follow.followed();
        let stores = followed.map_or(&[][..], |followed| &followed.ceiling.stores);
        let above_ceiling = above_ceiling(stores, &self.others.last());
        AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process_id: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            cluster: self.origin.cluster.clone(),
            node: self.origin.node.clone(),
            kafka: self.kafka.clone(),
            interval_ms: self.rhythm.step_ms(),
            batch: self.rhythm.batch,
            batch_in_force: self.rhythm.batch_within(state.follow.lease_ms()),
            degraded: self.others.not_governed(),
            node_trouble: state.node_link.trouble(now),
            samples_trouble: state.samples_link.trouble(now),
            ceilings_trouble: state.ceilings_link.trouble(now),
            samples: SampleCounts {
                taken: self.last_number.load(Ordering::Relaxed),
                ..state.samples
            },
            ceilings: CeilingCounts { refused: refused.collect(), ..state.ceilings.clone() },
            above_ceiling,
            followed: followed.map(|followed| FollowedCeiling {
                plane: followed.ceiling.plane.clone(),
                number: followed.ceiling.number,
                stores: followed.ceiling.stores.clone(),
                left_ms: milliseconds(followed.until.saturating_duration_since(now)),
                policy: followed.ceiling.policy.clone(),
            }),
        }
    }
}

impl State {
    /// Counts a ceiling that was refused. The same reason again is not said for a while.
    pub fn refuse(&mut self, refusal: Refusal) {
        let place = Refusal::ALL.iter().position(|it| *it == refusal).unwrap_or(0);
        self.refused[place] = self.refused[place].saturating_add(1);
        let said = &mut self.refused_said[place];
        if said.is_none_or(|at| at.elapsed() > REFUSALS_SAID_EVERY) {
            *said = Some(Instant::now());
            say(&format!("a ceiling was refused: {} ({})", refusal.words(), refusal.name()));
        }
    }
}

/// Something that works or does not.
#[derive(Debug, Default)]
pub struct Link {
    what: &'static str,
    broken: Option<(Instant, String)>,
    /// What could be why it breaks next.
    omen: Option<String>,
}

impl Link {
    /// Something that may be why it does not work soon.
    pub fn remember(&mut self, why: &str) {
        if self.broken.is_none() {
            self.omen = Some(why.to_owned());
        }
    }

    /// It does not work. Said once.
    pub fn broke(&mut self, why: &str) {
        if self.broken.is_none() {
            let omen = self.omen.take();
            let why = omen.as_deref().unwrap_or(why);
            say(&format!("{}: {why}", self.what));
            self.broken = Some((Instant::now(), why.to_owned()));
        }
    }

    /// It works.
    pub fn works(&mut self) {
        self.omen = None;
        if let Some((since, _)) = self.broken.take() {
            let seconds = since.elapsed().as_secs();
            say(&format!("no more after {seconds} s: {}", self.what));
        }
    }

    /// Whether it does not.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    fn trouble(&self, now: Instant) -> Option<Trouble> {
        self.broken.as_ref().map(|(since, why)| Trouble {
            since_ms: milliseconds(now.saturating_duration_since(*since)),
            why: why.clone(),
        })
    }
}

/// A line of the log. It is written by a thread of its own: nobody who holds a lock, and no
/// sample, waits for whoever reads the log. Lines that it does not take in time are lost.
pub fn say(text: &str) {
    static LINES: OnceLock<SyncSender<String>> = OnceLock::new();
    let lines = LINES.get_or_init(|| {
        let (sender, receiver) = sync_channel(LINES_MAX);
        let write = move || receiver.iter().for_each(|line: String| output::note(&line));
        // Without a thread there is no log.
        _ = std::thread::Builder::new().name("log".into()).stack_size(STACK_BYTES).spawn(write);
        sender
    });
    _ = lines.try_send(format!("tidepool plane agent: {text}"));
}

/// The last line. Whoever reads the log has a moment to take it.
pub fn say_last(text: &str) {
    say(text);
    std::thread::sleep(LAST_LINE_TIME);
}

/// Of these ceilings those that their stores did not come down to.
fn above_ceiling(ceilings: &[StoreCeiling], others: &[OtherStore]) -> Vec<StoreAboveCeiling> {
    let above = ceilings.iter().filter_map(|ceiling| {
        let StoreCeiling { name, ceiling_bytes } = ceiling;
        let state = &others.iter().find(|other| other.name == *name)?.state;
        let is_above = state.held_bytes > 0 && state.resident_bytes > *ceiling_bytes;
        is_above.then(|| StoreAboveCeiling {
            name: name.clone(),
            ceiling_bytes: *ceiling_bytes,
            resident_bytes: state.resident_bytes,
            held_bytes: state.held_bytes,
        })
    });
    above.collect()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tidepool_control::actuator::ObservedState;

    use super::*;

    #[test]
    fn a_link_remembers_when_and_why_it_broke_first() {
        let mut link = Link { what: "nothing comes", ..Link::default() };
        assert_eq!((link.is_broken(), link.trouble(Instant::now())), (false, None));
        link.broke("away");
        link.broke("still away");
        assert_eq!(link.trouble(Instant::now()).unwrap().why, "away");
        link.works();
        assert!(!link.is_broken());
    }

    #[test]
    fn a_store_that_does_not_come_down_to_its_ceiling_is_told() {
        let store = |held_bytes, resident_bytes| {
            let state = ObservedState { held_bytes, resident_bytes, ..ObservedState::default() };
            OtherStore { name: "warm".into(), state, ..OtherStore::default() }
        };
        let ceiling = |name: &str| [StoreCeiling { name: name.into(), ceiling_bytes: 20 }];
        let told = StoreAboveCeiling {
            name: "warm".into(),
            ceiling_bytes: 20,
            resident_bytes: 50,
            held_bytes: 30,
        };
        assert_eq!(above_ceiling(&ceiling("warm"), &[store(30, 50)]), [told]);
        assert!(above_ceiling(&ceiling("warm"), &[store(0, 50)]).is_empty(), "on its way");
        assert!(above_ceiling(&ceiling("warm"), &[store(30, 20)]).is_empty(), "it is there");
        assert!(above_ceiling(&ceiling("other"), &[store(30, 50)]).is_empty());
    }

    #[test]
    fn refusals_are_counted_by_reason() {
        let store = ObservedStore::new(std::path::Path::new("/nowhere/node.sock"), None);
        let rhythm = Rhythm::new(100, None, None).unwrap();
        let shared = Shared::new(Origin::default(), rhythm, "k".into(), store);
        for refusal in [Refusal::Form, Refusal::Plane, Refusal::Form] {
            shared.state().refuse(refusal);
        }
        let count = |reason: &str, count| RefusedCount { reason: reason.into(), count };
        assert_eq!(shared.status().ceilings.refused, [count("form", 2), count("plane", 1)]);
    }
}
