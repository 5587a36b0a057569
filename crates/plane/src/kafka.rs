//! Clients of Kafka as agents and operators want them: few wake-ups, bounded memory, nothing that
//! waits. What they find out about brokers goes to the link that they are of.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseProducer, ProducerContext};
use tidepool_cli::plane::AgentArguments;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::properties;
use crate::shared::{Link, Shared, State, say};

/// A sample that was not sent by then is of no use any more: this bounds the queue, the oldest go
/// first.
const SAMPLE_TIMEOUT_MS: u64 = 3000;
/// More messages than come in that time.
const QUEUE_MESSAGES_MAX: u64 = 1000;
const QUEUE_KIB_MAX: u64 = 1024;
/// How long a broker holds back the answer where there are no ceilings.
const FETCH_WAIT_MS: u64 = 20_000;
/// Longer than that.
const SOCKET_TIMEOUT_MS: u64 = 30_000;

/// Properties of both clients that files may change.
const DEFAULTS: [(&str, &str); 6] = [
    ("client.id", "tidepool-agent"),
    ("reconnect.backoff.ms", "250"),
    ("reconnect.backoff.max.ms", "5000"),
    ("socket.keepalive.enable", "true"),
    ("log.connection.close", "false"),
    // Who asks about a topic must not make it, with a broker's defaults.
    ("allow.auto.create.topics", "false"),
];

/// Which link a client is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Samples to Kafka.
    Samples,
    /// Ceilings from Kafka.
    Ceilings,
}

/// Hears what a client finds out.
pub struct Ear {
    shared: Arc<Shared>,
    direction: Direction,
    /// Events that were told.
    heard: AtomicU64,
}

/// Sends samples.
pub type Producer = BaseProducer<Ear>;
/// Reads ceilings.
pub type Consumer = BaseConsumer<Ear>;

impl Ear {
    fn new(shared: &Arc<Shared>, direction: Direction) -> Ear {
        Ear { shared: Arc::clone(shared), direction, heard: AtomicU64::new(0) }
    }

    /// Events that were told so far: a poll that adds none had nothing to tell.
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    fn link<'a>(&self, state: &'a mut State) -> &'a mut Link {
        match self.direction {
            Direction::Samples => &mut state.samples_link,
            Direction::Ceilings => &mut state.ceilings_link,
        }
    }
}

impl ClientContext for Ear {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {
        // What matters comes as an error as well.
        self.hear();
    }

    fn error(&self, error: KafkaError, reason: &str) {
        use RDKafkaErrorCode::{
            AllBrokersDown, Authentication, BrokerTransportFailure, Resolve, SSL,
        };
        self.hear();
        let code = error.rdkafka_error_code();
        // One broker of several may be away; librdkafka says when all are.
        let is_end = matches!(code, Some(AllBrokersDown | Authentication | SSL));
        let mut state = self.shared.state();
        let link = self.link(&mut state);
        match code {
            Some(BrokerTransportFailure | Resolve) => link.remember(reason),
            _ if is_end => link.broke(reason),
            _ => {}
        }
    }
}

impl ConsumerContext for Ear {}

impl ProducerContext for Ear {
    /// Samples in the message.
    type DeliveryOpaque = Box<u64>;

    fn delivery(&self, result: &DeliveryResult<'_>, samples: Box<u64>) {
        self.hear();
        let mut state = self.shared.state();
        match result {
            Ok(_) => {
                state.samples.sent += *samples;
                state.samples_link.works();
            }
            Err((error, message)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::MessageTimedOut) => {
                    state.samples.dropped += *samples;
                    state.samples_link.broke("they were not taken in time");
                }
                // The agent ends.
                Some(RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight) => {}
                _ => {
                    state.samples.failed += *samples;
                    // As where its user may not write there.
                    state.samples_link.broke(&format!("{}: {error}", message.topic()));
                }
            },
        }
    }
}

/// Makes clients of one agent.
pub struct Kafka<'a> {
    arguments: &'a AgentArguments,
    properties: Vec<(String, String)>,
}

impl<'a> Kafka<'a> {
    /// Reads the properties that the arguments name.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn new(arguments: &'a AgentArguments) -> Result<Kafka<'a>> {
        let read = |path: &Path| properties::read(path);
        let read = arguments.kafka_properties.as_deref().map(read).transpose()?;
        let read = read.unwrap_or_default();
        read.warning.iter().for_each(|warning| say(warning));
        Ok(Kafka { arguments, properties: read.list })
    }

    fn config(&self) -> ClientConfig {
        config(&self.arguments.kafka, &self.properties)
    }

    /// A client that sends samples.
    ///
    /// # Errors
    /// `InvalidInput` for properties that cannot work.
    pub fn producer(&self, shared: &Arc<Shared>) -> Result<Producer> {
        self.producer_of(shared, Direction::Samples)
    }

    /// A client that only asks about topics.
    ///
    /// # Errors
    /// As [`Kafka::producer`].
    pub fn looker(&self, shared: &Arc<Shared>) -> Result<Producer> {
        self.producer_of(shared, Direction::Ceilings)
    }

    fn producer_of(&self, shared: &Arc<Shared>, direction: Direction) -> Result<Producer> {
        let mut config = self.config();
        config
            .set("acks", self.arguments.acks.property())
            .set("linger.ms", "0")
            .set("message.timeout.ms", SAMPLE_TIMEOUT_MS.to_string())
            .set("queue.buffering.max.messages", QUEUE_MESSAGES_MAX.to_string())
            .set("queue.buffering.max.kbytes", QUEUE_KIB_MAX.to_string());
        let ear = Ear::new(shared, direction);
        Producer::from_config_and_context(&config, ear).map_err(|error| refused(&error))
    }

    /// A client that reads ceilings. It belongs to no group: each node wants its own.
    ///
    /// # Errors
    /// As [`Kafka::producer`].
    pub fn consumer(&self, shared: &Arc<Shared>) -> Result<Consumer> {
        let mut config = self.config();
        config
            .set("fetch.wait.max.ms", FETCH_WAIT_MS.to_string())
            .set("queued.min.messages", "10")
            .set("queued.max.messages.kbytes", QUEUE_KIB_MAX.to_string())
            .set("auto.offset.reset", "latest")
            .set("enable.auto.commit", "false");
        let ear = Ear::new(shared, Direction::Ceilings);
        Consumer::from_config_and_context(&config, ear).map_err(|error| refused(&error))
    }
}

/// What all clients have in common.
pub fn config(brokers: &str, properties: &[(String, String)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    let given = properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in DEFAULTS.into_iter().chain(given) {
        config.set(name, value);
    }
    config.set("bootstrap.servers", brokers);
    config.set("socket.timeout.ms", SOCKET_TIMEOUT_MS.to_string());
    config.set("statistics.interval.ms", "0");
    // Lines of the log would come one a poll, before what matters, and pile up.
    config.set_log_level(RDKafkaLogLevel::Emerg);
    config
}

/// Properties that cannot work.
pub fn refused(error: &KafkaError) -> Error {
    let operation = "making a client of Kafka";
    Error::new(ErrorKind::InvalidInput, operation, error.to_string())
        .remedy("properties are those of librdkafka, such as ssl.ca.location")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseRecord, DefaultProducerContext};
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use tidepool_control::actuator::ObservedStore;

    use super::*;
    use crate::ceilings::Ceilings;
    use crate::rhythm::Rhythm;
    use crate::sample::Origin;

    const TOPIC: &str = "a-topic";
    const LIMIT: Duration = Duration::from_secs(60);

    fn shared(cluster: &MockCluster<'_, DefaultProducerContext>) -> Arc<Shared> {
        let store = ObservedStore::new(Path::new("/nowhere/node.sock"), None);
        let rhythm = Rhythm::new(100, None, None).unwrap();
        Arc::new(Shared::new(Origin::default(), rhythm, cluster.bootstrap_servers(), store))
    }

    fn cluster(refused: RDKafkaApiKey) -> MockCluster<'static, DefaultProducerContext> {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, 1, 1).unwrap();
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        cluster.request_errors(refused, &[error; 8]);
        cluster
    }

    #[test]
    fn no_client_makes_topics() {
        let config = config("broker:9092", &[]);
        assert_eq!(config.get("allow.auto.create.topics"), Some("false"));
    }

    #[test]
    fn a_user_who_may_not_write_is_told_the_topic() {
        let cluster = cluster(RDKafkaApiKey::Produce);
        let shared = shared(&cluster);
        let ear = Ear::new(&shared, Direction::Samples);
        let config = config(&cluster.bootstrap_servers(), &[]);
        let producer = Producer::from_config_and_context(&config, ear).unwrap();
        let record = BaseRecord::with_opaque_to(TOPIC, Box::new(7)).key("n").payload("{}");
        producer.send(record).map_err(|(error, _)| error).unwrap();
        let began = Instant::now();
        while shared.status().samples.failed == 0 && began.elapsed() < LIMIT {
            producer.poll(Duration::from_millis(20));
        }
        let status = shared.status();
        assert_eq!(status.samples.failed, 7);
        let why = status.samples_trouble.unwrap().why;
        assert!(why.contains(TOPIC) && why.contains("authorization"), "{why}");
    }

    #[test]
    fn a_user_who_may_not_read_is_told_the_topic() {
        let cluster = cluster(RDKafkaApiKey::Fetch);
        let shared = shared(&cluster);
        // The refusals end, and then it works: what is told meanwhile counts.
        let why = RefCell::new(String::new());
        read_until(&cluster, &shared, |shared| {
            let trouble = shared.status().ceilings_trouble;
            let told = trouble.map(|it| it.why).filter(|why| why.contains("authorization"));
            let is_told = told.is_some();
            told.into_iter().for_each(|told| _ = why.replace(told));
            is_told
        });
        let why = why.into_inner();
        assert!(why.contains(TOPIC) && why.contains("authorization"), "{why}");
    }

    /// Takes ceilings until `holds`, or for a minute.
    fn read_until(
        cluster: &MockCluster<'_, DefaultProducerContext>,
        shared: &Arc<Shared>,
        holds: impl Fn(&Shared) -> bool,
    ) {
        let config = config(&cluster.bootstrap_servers(), &[]);
        let ear = |direction| Ear::new(shared, direction);
        let client = Consumer::from_config_and_context(&config, ear(Direction::Ceilings)).unwrap();
        let looker = Producer::from_config_and_context(&config, ear(Direction::Samples)).unwrap();
        let ceilings = Ceilings {
            shared: Arc::clone(shared),
            client: &client,
            looker: &looker,
            topic: TOPIC,
            sends_samples: true,
        };
        let ending = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| ceilings.run(&ending));
            let began = Instant::now();
            while !holds(shared) && began.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(20));
            }
            ending.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
