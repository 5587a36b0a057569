//! Reads the topic of summaries: what lies there last, and then what comes. It is of no consumer
//! group, so that it needs rights on this topic alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidepool_cli::plane::SiteArguments;
use tidepool_proto::{Error, ErrorKind, Result};

use super::gathered::Gathered;
use crate::consumer::{Came, From, PartitionReader, Unseen, partitions_of};
use crate::kafka;
use crate::properties;

/// Summaries of a partition that are read: more than the job sends in a round.
const LAST: u32 = 2500;
/// More partitions than any topic of summaries has use for.
const PARTITIONS_MAX: u32 = 256;
/// Time for brokers to tell of the topic.
const LOOK_LIMIT: Duration = Duration::from_secs(6);
/// Time between two looks at a topic in which the job is silent.
const LOOK_AGAIN_EVERY: Duration = Duration::from_secs(5);
/// Time to read what lies there.
const READ_LIMIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);
/// Messages of a partition until the others have their turn.
const TURN: usize = 500;

const FETCH_WAIT_MS: u64 = 100;
/// Bounds of what waits in memory, each partition by itself.
const QUEUE_KIB_MAX: u64 = 512;
const FETCH_BYTES_MAX: u64 = 4 << 20;
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Hears what the client finds out about brokers.
#[derive(Clone, Default)]
pub struct Brokers(Arc<Mutex<Option<String>>>);

impl Brokers {
    /// Why none can be used, in words.
    pub fn trouble(&self) -> Option<String> {
        self.0.lock().clone()
    }

    fn work(&self) {
        *self.0.lock() = None;
    }
}

impl ClientContext for Brokers {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {
        // What matters comes as an error as well.
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let mut trouble = self.0.lock();
        // That all are down says less than why one of them was.
        let is_sum = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        if !is_sum || trouble.is_none() {
            *trouble = Some(reason.to_owned());
        }
    }
}

impl ConsumerContext for Brokers {}

/// A client that reads summaries.
pub type Client = BaseConsumer<Brokers>;

/// Makes a client.
///
/// # Errors
/// `InvalidInput` for properties that cannot work.
pub fn client(arguments: &SiteArguments, brokers: &Brokers) -> Result<Client> {
    let file = arguments.kafka_properties.as_deref();
    let read = file.map(properties::read).transpose()?.unwrap_or_default();
    read.warning.iter().for_each(|warning| tidepool_terminal::output::note(warning));
    let mut config = kafka::config(&arguments.kafka, &read.list);
    config
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        // Where a partition ends is told when a broker's answer comes.
        .set("fetch.wait.max.ms", FETCH_WAIT_MS.to_string())
        .set("queued.max.messages.kbytes", QUEUE_KIB_MAX.to_string())
        .set("max.partition.fetch.bytes", (QUEUE_KIB_MAX << 10).to_string())
        .set("fetch.max.bytes", FETCH_BYTES_MAX.to_string())
        .set("receive.message.max.bytes", ANSWER_BYTES_MAX.to_string());
    Client::from_config_and_context(&config, brokers.clone())
        .map_err(|error| kafka::refused(&error))
}

/// The topic of summaries.
pub struct Topic<'a> {
    readers: Vec<(PartitionReader<'a, Brokers>, Progress)>,
    name: &'a str,
    brokers: &'a Brokers,
    client: &'a Client,
    looked: Instant,
}

/// How far a partition was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// There is more.
    On,
    /// All that there was.
    Ended,
}

impl<'a> Topic<'a> {
    /// Begins to read.
    ///
    /// # Errors
    /// Where no broker answers in seconds, and what they say of the topic.
    pub fn open(client: &'a Client, brokers: &'a Brokers, name: &'a str) -> Result<Self> {
        let started = Instant::now();
        let partitions = loop {
            let unseen = match partitions_of(client.client(), name) {
                Ok(partitions) => break partitions,
                Err(unseen) => unseen,
            };
            // The client's own words for what is wrong.
            while client.poll(Duration::ZERO).is_some() {}
            if unseen.is_final || started.elapsed() >= LOOK_LIMIT {
                return Err(not_seen(unseen, brokers.trouble(), name));
            }
        };
        let mut topic =
            Topic { readers: Vec::new(), name, brokers, client, looked: Instant::now() };
        topic.read_partitions(partitions)?;
        Ok(topic)
    }

    /// Reads so many, those that are read already as before.
    fn read_partitions(&mut self, partitions: u32) -> Result<()> {
        if partitions > PARTITIONS_MAX {
            let detail = format!("it has {partitions} partitions, {PARTITIONS_MAX} are read");
            return Err(Error::new(ErrorKind::InvalidInput, reading(self.name), detail)
                .remedy("one is enough for summaries: name a topic that has fewer"));
        }
        for number in self.readers.len() as u32..partitions {
            let number = i32::try_from(number).unwrap_or(i32::MAX);
            let from = From::Last(LAST);
            let reader = PartitionReader::start(self.client, self.name, number, from)?;
            self.readers.push((reader, Progress::On));
        }
        Ok(())
    }

    /// Looks whether the topic has more partitions, or is no more, at times. For a job that is
    /// silent: librdkafka reads on in silence in both cases.
    ///
    /// # Errors
    /// Where brokers say that it is not there, or not for this user.
    pub fn look_again(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK_AGAIN_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        match partitions_of(self.client.client(), self.name) {
            Ok(partitions) if partitions < self.readers.len() as u32 => {
                // Made anew.
                self.readers.clear();
                self.read_partitions(partitions)
            }
            Ok(partitions) => self.read_partitions(partitions),
            Err(unseen) if unseen.is_final => Err(refused(unseen.why, self.name)),
            // What is wrong with the brokers is told already.
            Err(_) => Ok(()),
        }
    }

    /// Reads all that lies there.
    ///
    /// # Errors
    /// Where a broker refuses it, or none goes on answering.
    pub fn read_all(&mut self, gathered: &mut Gathered) -> Result<()> {
        self.read(gathered, READ_LIMIT, |readers, _| {
            readers.iter().all(|(_, progress)| *progress == Progress::Ended)
        })?;
        let ended = self.readers.iter().filter(|(_, it)| *it == Progress::Ended).count();
        if ended == 0 && gathered.newest().is_none() {
            let why = self.brokers.trouble();
            let why = why.unwrap_or_else(|| "the brokers hand nothing out".to_owned());
            return Err(Error::new(ErrorKind::TimedOut, reading(self.name), why)
                .remedy("look at the brokers of this topic, and at the network between"));
        }
        gathered.is_live = true;
        Ok(())
    }

    /// Reads what comes in a time, or until `is_enough`.
    ///
    /// # Errors
    /// Where a broker refuses it.
    pub fn read_on(
        &mut self,
        gathered: &mut Gathered,
        limit: Duration,
        is_enough: impl Fn(&Gathered) -> bool,
    ) -> Result<()> {
        self.read(gathered, limit, |_, gathered| is_enough(gathered))
    }

    fn read(
        &mut self,
        gathered: &mut Gathered,
        limit: Duration,
        is_enough: impl Fn(&[(PartitionReader<'a, Brokers>, Progress)], &Gathered) -> bool,
    ) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < limit && !is_enough(&self.readers, gathered) {
            let mut has_come = false;
            for (reader, progress) in &mut self.readers {
                has_come |= self::turn(reader, progress, gathered)
                    .map_err(|why| refused(why, self.name))?;
            }
            if has_come {
                self.brokers.work();
            } else {
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }
}

/// Reads some messages of a partition; whether there were any.
fn turn(
    reader: &mut PartitionReader<'_, Brokers>,
    progress: &mut Progress,
    gathered: &mut Gathered,
) -> std::result::Result<bool, String> {
    for count in 0..TURN {
        match reader.read(Duration::ZERO, |_, message| gathered.take(message)) {
            Came::Message => {}
            Came::Nothing => return Ok(count > 0),
            Came::End => {
                *progress = Progress::Ended;
                return Ok(count > 0);
            }
            Came::Trouble(why) => return Err(why),
        }
    }
    Ok(true)
}

fn reading(topic: &str) -> String {
    format!("reading the topic {topic}")
}

fn not_seen(unseen: Unseen, trouble: Option<String>, topic: &str) -> Error {
    if unseen.is_final {
        return refused(unseen.why, topic);
    }
    let why = trouble.unwrap_or(unseen.why);
    Error::new(ErrorKind::TimedOut, reading(topic), format!("no broker answers: {why}"))
        .remedy("look at --kafka, and at the certificates and passwords of --kafka-properties")
}

fn refused(why: String, topic: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, reading(topic), why).remedy(
        "name the topic of the job's summaries: --summaries-topic; the user needs Read and \
         Describe on it",
    )
}
