//! The thread of samples: at each interval one reading of the machine and of the node's control
//! page, no message to the node, no allocation but in Kafka's client. It never waits for anybody;
//! between two readings it answers who asks for the status.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::producer::{BaseRecord, Producer as _};
use tidepool_proto::Result;
use tidepool_proto::control_page::monotonic_ns;

use crate::kafka::Producer;
use crate::meminfo::MemoryInfo;
use crate::others;
use crate::sample::{Movement, Sample, SampleWriter};
use crate::shared::{Shared, say};
use crate::status::StatusSocket;

const MILLISECOND_NS: u64 = 1_000_000;
/// Longest wait, so that an end is seen.
const WAIT_NS: u64 = 500 * MILLISECOND_NS;

/// Time between two looks at whether the socket is still there.
const KEEP_EVERY_NS: u64 = 2000 * MILLISECOND_NS;

/// Readings between two looks at whether the node is still there: its page alone does not tell.
const LOOK_EVERY: u64 = 10;

/// Events of Kafka's client that are heard before each message: more than come in that time, also
/// where brokers are away.
const EVENTS_MAX: usize = 16;

/// What the thread needs.
pub struct Samples<'a> {
    shared: Arc<Shared>,
    producer: Option<&'a Producer>,
    topic: &'a str,
    memory: MemoryInfo,
    writer: SampleWriter,
    /// Of the readings since the last sample, the one that becomes the next.
    lowest: Option<Sample>,
    readings: u64,
    number: u64,
    /// Not sent yet.
    waiting: Vec<Sample>,
    last_sent: Sample,
    /// Samples in a message at rest, as the lease allowed when it was looked at last.
    batch: u64,
}

impl<'a> Samples<'a> {
    /// Samples of an agent; without a producer only the status is answered.
    ///
    /// # Errors
    /// Where the memory of the machine cannot be read.
    pub fn new(
        shared: Arc<Shared>,
        producer: Option<&'a Producer>,
        topic: &'a str,
    ) -> Result<Samples<'a>> {
        let (writer, batch) = (SampleWriter::new(&shared.origin), shared.rhythm.batch);
        Ok(Samples {
            shared,
            producer,
            topic,
            memory: MemoryInfo::open()?,
            writer,
            lowest: None,
            readings: 0,
            number: 0,
            waiting: Vec::with_capacity(batch as usize),
            last_sent: Sample::default(),
            batch,
        })
    }

    /// Whether readings tell of other stores that move as soon as they may.
    pub fn tell_of_others(&self) -> bool {
        self.producer.is_some()
            && Duration::from_millis(self.shared.rhythm.interval_ms) <= others::TOLD_WITHIN
    }

    /// Takes samples until `ending`.
    pub fn run(&mut self, socket: &mut StatusSocket, ending: &AtomicBool) {
        let interval_ns = self.shared.rhythm.interval_ms.saturating_mul(MILLISECOND_NS);
        let (mut next_ns, mut keep_ns) = (monotonic_ns(), 0);
        while !ending.load(Ordering::Relaxed) {
            let now_ns = monotonic_ns();
            if let Some(producer) = self.producer.filter(|_| now_ns >= next_ns) {
                self.tick(producer);
                // Readings that were missed are not made up for.
                next_ns = (next_ns + interval_ns).max(now_ns);
            }
            let wait_ns = match self.producer {
                Some(_) => next_ns.saturating_sub(now_ns).min(WAIT_NS),
                None => WAIT_NS,
            };
            if now_ns >= keep_ns {
                keep_ns = now_ns + KEEP_EVERY_NS;
                socket.keep();
            }
            socket.serve(Duration::from_nanos(wait_ns), &self.shared);
        }
    }

    fn tick(&mut self, producer: &Producer) {
        self.readings += 1;
        if let Some(memory) = self.memory.read() {
            let at_ms = wall_clock_ms();
            let store = match self.readings.is_multiple_of(LOOK_EVERY) {
                true => self.shared.store.state(),
                false => self.shared.store.last_state(),
            };
            self.shared.others.tell(self.shared.store.others_generation());
            let others = self.shared.others.last();
            let jobs = self.shared.jobs.last();
            let sample = Sample { number: 0, at_ms, memory, store, others, jobs };
            let available = |sample: &Sample| sample.memory.available_bytes;
            let lowest = self.lowest.as_ref();
            if lowest.is_none_or(|lowest| available(&sample) <= available(lowest)) {
                self.lowest = Some(sample);
            }
        }
        if !self.readings.is_multiple_of(self.shared.rhythm.readings) {
            return;
        }
        let Some(lowest) = self.lowest.take() else { return };
        self.number += 1;
        let sample = Sample { number: self.number, ..lowest };
        let movement = sample.movement(&self.last_sent);
        self.waiting.push(sample.clone());
        if self.waiting.len() as u64 >= self.message_samples(movement) {
            self.send(producer);
            self.last_sent = sample;
        }
    }

    /// Samples that wait for a message. Where a lease is too short for what was asked for, that is
    /// said.
    fn message_samples(&mut self, movement: Movement) -> u64 {
        let rhythm = self.shared.rhythm;
        let lease_ms = self.shared.state().follow.lease_ms();
        let batch = rhythm.batch_within(lease_ms);
        if let Some(lease_ms) = lease_ms.filter(|_| batch < self.batch) {
            let asked = rhythm.batch;
            say(&format!(
                "a lease of {lease_ms} ms has no time for {asked} samples in a message: {batch}"
            ));
        }
        self.batch = batch;
        rhythm.message_samples(movement, lease_ms)
    }

    fn send(&mut self, producer: &Producer) {
        hear(producer);
        let samples = self.waiting.len() as u64;
        // Before it is sent: a ceiling that answers it must be known for one.
        self.shared.last_number.store(self.number, Ordering::Release);
        let record = BaseRecord::with_opaque_to(self.topic, Box::new(samples));
        let message = self.writer.message(&self.waiting);
        let record = record.key(self.shared.origin.node.as_str()).payload(message);
        if producer.send(record).is_err() {
            self.shared.state().samples.dropped += samples;
        }
        self.waiting.clear();
    }
}

/// Hears what became of the messages before, and of brokers: one event at a time. Behind a message
/// it would wait for the thread of Kafka's client, which that wakes up.
pub fn hear(producer: &Producer) {
    for _ in 0..EVENTS_MAX {
        let before = producer.context().heard();
        producer.poll(Duration::ZERO);
        if producer.context().heard() == before {
            return;
        }
    }
}

/// The clock of this node, in milliseconds since the epoch.
pub fn wall_clock_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
