//! The thread of ceilings: reads those of this node, and leases them of it. It also looks for the
//! node where that is away, so that the thread of samples never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::producer::Producer as _;
use tidepool_control::actuator::OWN_STORE;
use tidepool_proto::ErrorKind;
use tidepool_proto::control::CeilingLease;
use tidepool_proto::plane::StoreCeiling;

use crate::ceiling::{self, Ceiling, Own, OwnSamples, Refusal};
use crate::consumer::{Came, From, PartitionReader, Unseen, partition_of};
use crate::follow::Follow;
use crate::kafka::{Consumer, Producer};
use crate::samples::{hear, wall_clock_ms};
use crate::shared::{Shared, say};

/// Longest wait, so that an end is seen.
const WAIT: Duration = Duration::from_secs(2);
/// The same where nothing can come.
const PAUSE: Duration = Duration::from_millis(250);
/// Time between two looks for a node or brokers that are away.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time between two looks at the number of partitions, and at whether the node is the same.
const LOOK_AGAIN_EVERY: Duration = Duration::from_secs(60);
/// After so many looks in a row the topic counts as gone, or out of reach.
const FAILED_LOOKS_MAX: u32 = 3;
/// A partition that is read for so long without trouble can be read.
const PROVEN_AFTER: Duration = Duration::from_secs(5);
/// Letters of a run's name that operators see.
const PLANE_CHARS_SHOWN: usize = 8;

/// A partition that is read, and since when.
struct Reader<'a> {
    partition: PartitionReader<'a>,
    since: Instant,
    /// Looks at the topic in a row that failed.
    failed_looks: u32,
}

/// What the thread needs.
pub struct Ceilings<'a> {
    /// The agent.
    pub shared: Arc<Shared>,
    /// Client that reads.
    pub client: &'a Consumer,
    /// Client that asks about the topic: the one that reads would hear of it only when a ceiling
    /// comes, or none came for long.
    pub looker: &'a Producer,
    /// Topic of the ceilings.
    pub topic: &'a str,
    /// Whether this agent sends samples, so that ceilings must answer them.
    pub sends_samples: bool,
}

impl Ceilings<'_> {
    /// Takes ceilings until `ending`.
    pub fn run(&self, ending: &AtomicBool) {
        let mut reader: Option<Reader<'_>> = None;
        let (mut look, mut look_again) = (Instant::now(), Instant::now());
        while !ending.load(Ordering::Relaxed) {
            let now = Instant::now();
            let (is_kafka_away, is_node_away) = self.away();
            let is_doubtful = reader.as_ref().is_none_or(|reader| reader.failed_looks > 0);
            if now >= look_again || (now >= look && (is_doubtful || is_kafka_away)) {
                self.look_at_topic(&mut reader);
            }
            if now >= look_again || (now >= look && is_node_away) {
                self.look_for_node();
            }
            if now >= look {
                look = now + LOOK_EVERY;
            }
            if now >= look_again {
                look_again = now + LOOK_AGAIN_EVERY;
            }
            match &mut reader {
                Some(open) => {
                    if !self.read(&mut open.partition) {
                        // Begun anew at the next look.
                        reader = None;
                    }
                }
                None => std::thread::sleep(PAUSE),
            }
            self.expire();
        }
    }

    /// Whether Kafka is away, and whether the node is.
    fn away(&self) -> (bool, bool) {
        let is_unseen = self.shared.store.state().is_none();
        let state = self.shared.state();
        (state.ceilings_link.is_broken(), is_unseen || state.node_link.is_broken())
    }

    /// Reads the partition of this node, which is another one where the topic got more of them.
    fn look_at_topic<'a>(&'a self, reader: &mut Option<Reader<'a>>) {
        let found = partition_of(self.looker.client(), self.topic, &self.shared.origin.node);
        let started = found.and_then(|number| {
            if reader.as_ref().is_none_or(|reader| reader.partition.number() != number) {
                // The last one ends before the next one begins.
                *reader = None;
                let next = PartitionReader::start(self.client, self.topic, number, From::End);
                let unusable = |error: tidepool_proto::Error| Unseen {
                    why: error.to_string(),
                    is_final: true,
                };
                let partition = next.map_err(unusable)?;
                *reader = Some(Reader { partition, since: Instant::now(), failed_looks: 0 });
            }
            Ok(reader.as_ref().is_some_and(|reader| reader.since.elapsed() > PROVEN_AFTER))
        });
        // The client's own words for what is wrong, which come first, say more.
        while self.client.poll(Duration::ZERO).is_some() {}
        hear(self.looker);
        let mut state = self.shared.state();
        match started {
            Ok(is_proven) => {
                if let Some(reader) = reader {
                    reader.failed_looks = 0;
                }
                if is_proven {
                    state.ceilings_link.works();
                }
            }
            Err(Unseen { why, is_final }) => match reader {
                // What is read already may still come.
                Some(open) if open.failed_looks + 1 < FAILED_LOOKS_MAX => {
                    open.failed_looks += 1;
                    state.ceilings_link.remember(&why);
                }
                _ => {
                    state.ceilings_link.broke(&why);
                    // librdkafka reads on in silence where there is no topic any more. Where no
                    // broker answers, it reads on once one does.
                    if is_final {
                        *reader = None;
                    }
                }
            },
        }
    }

    fn look_for_node(&self) {
        let found = self.shared.store.find();
        let mut state = self.shared.state();
        match found {
            Ok(()) => {
                if state.node_link.is_broken() {
                    // It may be another start, which nobody leased anything of.
                    state.follow = Follow::default();
                }
                state.node_link.works();
            }
            Err(error) => state.node_link.broke(&error.to_string()),
        }
    }

    /// Whether messages may still come after this one.
    fn read(&self, reader: &mut PartitionReader<'_>) -> bool {
        let until = self.shared.state().follow.followed().map(|followed| followed.until);
        let left = until.map_or(WAIT, |it| it.saturating_duration_since(Instant::now()));
        // Rounded up: nothing is over before its time.
        let wait = left.min(WAIT) + Duration::from_millis(1);
        match reader.read(wait, |key, message| self.take(key, message)) {
            Came::Trouble(why) => {
                self.shared.state().ceilings_link.broke(&format!("{}: {why}", self.topic));
                return false;
            }
            Came::Message => self.shared.state().ceilings_link.works(),
            Came::Nothing | Came::End => {}
        }
        true
    }

    fn expire(&self) {
        let mut state = self.shared.state();
        if state.follow.expire(Instant::now()) {
            state.ceilings.expired += 1;
            say("no more ceilings come: the node is within its own limits");
        }
    }

    fn take(&self, key: &[u8], message: &[u8]) {
        if key != self.shared.origin.node.as_bytes() {
            let mut state = self.shared.state();
            state.ceilings.of_others = state.ceilings.of_others.saturating_add(1);
            return;
        }
        // A ceiling of a node that is away is of no use when it is back.
        let Some(store) = self.shared.store.state() else {
            self.shared.state().ceilings.failed += 1;
            return;
        };
        let origin = &self.shared.origin;
        let last_number = self.shared.last_number.load(Ordering::Acquire);
        let samples = self.sends_samples.then_some(OwnSamples {
            start: &origin.start,
            last_number,
            step_ms: origin.step_ms,
        });
        let (cluster, node) = (&origin.cluster, &origin.node);
        let others = self.shared.others.last();
        let now_ms = wall_clock_ms();
        let own = Own { cluster, node, samples, now_ms, store, others: &others };
        let checked = ceiling::read(message, &own).and_then(|ceiling| self.check(ceiling));
        match checked {
            Ok(ceiling) => self.lease(ceiling),
            Err(refusal) => self.shared.state().refuse(refusal),
        }
    }

    fn check(&self, ceiling: Ceiling) -> Result<Ceiling, Refusal> {
        self.shared.state().follow.check(&ceiling, Instant::now())?;
        Ok(ceiling)
    }

    /// Leases the ceilings of all stores. Tidepool's own is the one that tells of the node.
    fn lease(&self, ceiling: Ceiling) {
        let shown: String = ceiling.plane.chars().take(PLANE_CHARS_SHOWN).collect();
        let lease = |store: &StoreCeiling| {
            self.shared.store.lease_ceiling(CeilingLease {
                store: store.name.clone(),
                ceiling_bytes: store.ceiling_bytes,
                lease_ms: ceiling.lease_ms,
                source: format!("plane {shown}"),
            })
        };
        let (own, others): (Vec<_>, Vec<_>) =
            ceiling.stores.iter().partition(|store| store.name == OWN_STORE);
        // Others first: what their controller has to do goes on while our store evicts.
        let failed = others.into_iter().filter(|store| lease(store).is_err()).count();
        let leased = own.into_iter().map(lease).next();
        let mut state = self.shared.state();
        state.ceilings.failed += failed as u64;
        match leased {
            Some(Ok(leased)) => {
                if state.follow.followed().is_none() {
                    say(&format!("ceilings come, of the run {}", ceiling.plane));
                }
                state.ceilings.applied += 1;
                state.ceilings.renewed += u64::from(leased.repeated);
                state.follow.take(ceiling, Instant::now());
                state.node_link.works();
            }
            Some(Err(error)) => {
                state.ceilings.failed += 1;
                state.node_link.broke(&error.to_string());
                // The node goes on with it.
                if error.kind() == ErrorKind::TimedOut {
                    state.follow.take(ceiling, Instant::now());
                }
            }
            None => {}
        }
    }
}
