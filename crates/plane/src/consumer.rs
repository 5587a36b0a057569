//! [`PartitionReader`]: reads one partition, from its end or from shortly before it. It is of no
//! consumer group: no coordinator is asked, no offset is kept, and no user needs rights for one.
//! `rdkafka` wraps only consumers with a group, so librdkafka's own functions for single partitions
//! are called here.

use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use std::time::Duration;

use rdkafka::bindings as native;
use rdkafka::client::{Client, ClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::types::RDKafkaRespErr;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::kafka::Ear;
use crate::partition;

/// Time for an answer of the brokers about a topic.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// What came of a partition.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// Nothing in the time that was given.
    Nothing,
    /// A message, which was handed on.
    Message,
    /// All that the partition has was read; told only by clients that ask for it.
    End,
    /// Why no message can come.
    Trouble(String),
}

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Behind the last message.
    End,
    /// So many messages before it, or at the first one.
    Last(u32),
}

impl From {
    fn offset(self) -> i64 {
        match self {
            From::End => native::RD_KAFKA_OFFSET_END.into(),
            // As the macro RD_KAFKA_OFFSET_TAIL has it.
            From::Last(count) => i64::from(native::RD_KAFKA_OFFSET_TAIL_BASE) - i64::from(count),
        }
    }
}

/// Reads a partition.
pub struct PartitionReader<'a, C: ConsumerContext + 'static = Ear> {
    topic: NonNull<native::rd_kafka_topic_t>,
    partition: i32,
    /// Lives longer than the topic, which is a part of it.
    client: &'a BaseConsumer<C>,
}

impl<'a, C: ConsumerContext> PartitionReader<'a, C> {
    /// Begins to read a partition.
    ///
    /// # Errors
    /// Where librdkafka refuses the name or the partition.
    pub fn start(
        client: &'a BaseConsumer<C>,
        topic: &str,
        partition: i32,
        from: From,
    ) -> Result<Self> {
        let failed = || {
            // SAFETY: no argument; tells of the last call of this thread.
            let code = unsafe { native::rd_kafka_last_error() };
            Error::new(ErrorKind::InvalidInput, format!("reading the topic {topic}"), words(code))
        };
        let name = CString::new(topic).map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "reading a topic", "its name has a zero in it")
        })?;
        let raw = client.client().native_ptr();
        // SAFETY: the client lives, the name ends with a zero and is copied; no configuration is
        // given.
        let topic = unsafe { native::rd_kafka_topic_new(raw, name.as_ptr(), std::ptr::null_mut()) };
        let topic = NonNull::new(topic).ok_or_else(failed)?;
        // SAFETY: the topic was made above and was not given back.
        let started =
            unsafe { native::rd_kafka_consume_start(topic.as_ptr(), partition, from.offset()) };
        if started != 0 {
            let error = failed();
            // SAFETY: as above; nobody uses it behind this.
            unsafe { native::rd_kafka_topic_destroy(topic.as_ptr()) };
            return Err(error);
        }
        Ok(PartitionReader { topic, partition, client })
    }

    /// The partition that is read.
    pub fn number(&self) -> i32 {
        self.partition
    }

    /// Waits for a message and hands its key and bytes to `take`.
    pub fn read(&mut self, timeout: Duration, take: impl FnOnce(&[u8], &[u8])) -> Came {
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `self.topic` is valid as long as `self`, and its partition was started.
        let message =
            unsafe { native::rd_kafka_consume(self.topic.as_ptr(), self.partition, timeout_ms) };
        // What the client tells of brokers.
        while self.client.poll(Duration::ZERO).is_some() {}
        let Some(message) = NonNull::new(message) else { return Came::Nothing };
        let message = Owned(message);
        match message.facts().err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {
                take(message.key(), message.payload());
                Came::Message
            }
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__PARTITION_EOF => Came::End,
            code => Came::Trouble(words(code)),
        }
    }
}

impl<C: ConsumerContext> Drop for PartitionReader<'_, C> {
    fn drop(&mut self) {
        // SAFETY: started and made by `start`; nobody uses them behind this.
        unsafe {
            native::rd_kafka_consume_stop(self.topic.as_ptr(), self.partition);
            native::rd_kafka_topic_destroy(self.topic.as_ptr());
        }
    }
}

/// A message of librdkafka, given back when this is dropped.
struct Owned(NonNull<native::rd_kafka_message_t>);

impl Owned {
    fn facts(&self) -> &native::rd_kafka_message_t {
        // SAFETY: it came from librdkafka and is ours until it is given back.
        unsafe { self.0.as_ref() }
    }

    fn key(&self) -> &[u8] {
        self.bytes(self.facts().key.cast(), self.facts().key_len)
    }

    fn payload(&self) -> &[u8] {
        self.bytes(self.facts().payload.cast(), self.facts().len)
    }

    fn bytes(&self, begin: *const u8, length: usize) -> &[u8] {
        if begin.is_null() || length == 0 {
            return &[];
        }
        // SAFETY: librdkafka says that so many bytes begin there; they live as long as the message.
        unsafe { std::slice::from_raw_parts(begin, length) }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses it behind this.
        unsafe { native::rd_kafka_message_destroy(self.0.as_ptr()) };
    }
}

/// The partition of a topic in which messages with `key` are.
///
/// # Errors
/// As [`partitions_of`].
pub fn partition_of<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    key: &str,
) -> std::result::Result<i32, Unseen> {
    let partitions = partitions_of(client, topic)?;
    Ok(partition::of_key(key.as_bytes(), partitions))
}

/// A topic that is not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// What the brokers, or the lack of them, say.
    pub why: String,
    /// Whether a broker said so, who will not say something else in a moment.
    pub is_final: bool,
}

/// How many partitions a topic has, which is never 0. Brokers answer a connection in order: a
/// client whose own requests wait for messages hears of it only behind them.
///
/// # Errors
/// Where the topic is not there, is not for this user, or no broker answers.
pub fn partitions_of<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
) -> std::result::Result<u32, Unseen> {
    let unseen = |is_final| move |why: String| Unseen { why, is_final };
    let metadata = client.fetch_metadata(Some(topic), METADATA_TIMEOUT);
    let metadata = metadata.map_err(|error| unseen(false)(error.to_string()))?;
    let found = metadata.topics().iter().find(|it| it.name() == topic);
    let found = found.ok_or_else(|| unseen(true)(format!("there is no topic {topic}")))?;
    if let Some(code) = found.error() {
        return Err(unseen(true)(format!("{topic}: {}", words(code))));
    }
    match u32::try_from(found.partitions().len()) {
        Ok(partitions) if partitions > 0 => Ok(partitions),
        _ => Err(unseen(true)(format!("the topic {topic} has no partitions"))),
    }
}

fn words(code: RDKafkaRespErr) -> String {
    // SAFETY: a text that lives as long as the program, for any code.
    let text = unsafe { native::rd_kafka_err2str(code) };
    if text.is_null() {
        return "an unknown error".to_owned();
    }
    // SAFETY: not null, and it ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
