//! As much of Kafka's protocol as simulated nodes need: one connection that asks and waits for the
//! answer. Kafka's own clients have threads and timers for each connection, which a thousand nodes
//! on one machine would be measured with.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};

const PRODUCE: (i16, i16) = (0, 3);
const FETCH: (i16, i16) = (1, 4);
const LIST_OFFSETS: (i16, i16) = (2, 1);
const CLIENT: &str = "bench";
/// The offset behind the last message.
const LATEST: i64 = -1;
const PRODUCE_TIMEOUT_MS: i32 = 30_000;
const ANSWER_BYTES_MAX: i32 = 1 << 20;
/// Of a batch: all in front of what its length counts, and of what its checksum covers.
const BATCH_HEAD_BYTES: usize = 12;
const CHECKED_FROM: usize = 21;
const FORM_OF_BATCHES: u8 = 2;
const COMPRESSION: i16 = 7;
/// CRC-32C, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A connection to the broker.
pub struct Connection {
    stream: TcpStream,
    number: i32,
}

/// Messages of a partition, and where to go on.
pub struct Fetched {
    /// Key and bytes of each.
    pub messages: Vec<(Vec<u8>, Vec<u8>)>,
    /// Offset behind the last of them.
    pub next: i64,
}

impl Connection {
    /// Connects.
    pub fn open(address: &str) -> Result<Connection> {
        let stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, number: 0 })
    }

    /// Sends a message and waits until the broker has it.
    pub fn produce(&mut self, topic: &str, partition: i32, key: &str, value: &[u8]) -> Result<()> {
        let mut body = Writer::default();
        body.i16(-1).i16(1).i32(PRODUCE_TIMEOUT_MS);
        body.i32(1).text(topic).i32(1).i32(partition).bytes(&batch(key.as_bytes(), value));
        let answer = self.ask(PRODUCE, &body.0)?;
        let mut answer = Reader(&answer);
        answer.topic_and_partition()?;
        let error = answer.i16()?;
        ensure!(error == 0, "the broker refuses a message: error {error}");
        Ok(())
    }

    /// The offset behind the last message.
    pub fn end_of(&mut self, topic: &str, partition: i32) -> Result<i64> {
        let mut body = Writer::default();
        body.i32(-1).i32(1).text(topic).i32(1).i32(partition).i64(LATEST);
        let answer = self.ask(LIST_OFFSETS, &body.0)?;
        let mut answer = Reader(&answer);
        answer.topic_and_partition()?;
        let (error, _, offset) = (answer.i16()?, answer.i64()?, answer.i64()?);
        ensure!(error == 0, "the broker tells no offset: error {error}");
        Ok(offset)
    }

    /// Messages from `offset` on; waits for the first one.
    pub fn fetch(
        &mut self,
        topic: &str,
        partition: i32,
        offset: i64,
        wait_ms: i32,
    ) -> Result<Fetched> {
        let mut body = Writer::default();
        body.i32(-1).i32(wait_ms).i32(1).i32(ANSWER_BYTES_MAX).bytes_as_they_are(&[0]);
        body.i32(1).text(topic).i32(1).i32(partition).i64(offset).i32(ANSWER_BYTES_MAX);
        let answer = self.ask(FETCH, &body.0)?;
        let mut answer = Reader(&answer);
        answer.i32()?;
        answer.topic_and_partition()?;
        let error = answer.i16()?;
        ensure!(error == 0, "the broker gives no messages: error {error}");
        answer.take(16)?;
        for _ in 0..answer.i32()?.max(0) {
            answer.take(16)?;
        }
        let length = answer.i32()?;
        let batches = answer.take(usize::try_from(length.max(0))?)?;
        let mut fetched = Fetched { messages: Vec::new(), next: offset };
        read_batches(batches, offset, &mut fetched)?;
        Ok(fetched)
    }

    fn ask(&mut self, (key, version): (i16, i16), body: &[u8]) -> Result<Vec<u8>> {
        self.number = self.number.wrapping_add(1);
        let mut request = Writer::default();
        request.i32(0).i16(key).i16(version).i32(self.number).text(CLIENT).bytes_as_they_are(body);
        let mut request = request.0;
        let length = u32::try_from(request.len() - 4)?;
        request[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&request)?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut answer)?;
        let number = Reader(&answer).i32()?;
        ensure!(number == self.number, "answer {number} to request {}", self.number);
        Ok(answer.split_off(4))
    }
}

/// A batch of one message.
fn batch(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = Writer::default();
    record.bytes_as_they_are(&[0]).varint(0).varint(0);
    record.varint(key.len() as i64).bytes_as_they_are(key);
    record.varint(value.len() as i64).bytes_as_they_are(value).varint(0);
    let mut batch = Writer::default();
    batch.i64(0).i32(0).i32(-1).bytes_as_they_are(&[FORM_OF_BATCHES]).i32(0);
    // The broker stamps it.
    batch.i16(0).i32(0).i64(0).i64(0).i64(-1).i16(-1).i32(-1).i32(1);
    batch.varint(record.0.len() as i64).bytes_as_they_are(&record.0);
    let mut batch = batch.0;
    let length = (batch.len() - BATCH_HEAD_BYTES) as u32;
    batch[8..BATCH_HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    let sum = checksum(&batch[CHECKED_FROM..]);
    batch[CHECKED_FROM - 4..CHECKED_FROM].copy_from_slice(&sum.to_be_bytes());
    batch
}

fn read_batches(mut bytes: &[u8], offset: i64, fetched: &mut Fetched) -> Result<()> {
    while bytes.len() > CHECKED_FROM {
        let mut head = Reader(bytes);
        let (base, length) = (head.i64()?, usize::try_from(head.i32()?)?);
        // The last one may be cut.
        let Some(whole) = bytes.get(..BATCH_HEAD_BYTES + length) else { return Ok(()) };
        bytes = &bytes[whole.len()..];
        let mut batch = Reader(&whole[CHECKED_FROM..]);
        let (attributes, last) = (batch.i16()?, batch.i32()?);
        ensure!(attributes & COMPRESSION == 0, "a batch is compressed");
        batch.take(30)?;
        for _ in 0..batch.i32()? {
            let length = usize::try_from(batch.varint()?)?;
            let mut record = Reader(batch.take(length)?);
            record.take(1)?;
            let (_, delta) = (record.varint()?, record.varint()?);
            let key = record.counted()?.to_vec();
            let value = record.counted()?.to_vec();
            if base + delta >= offset {
                fetched.messages.push((key, value));
            }
        }
        fetched.next = fetched.next.max(base + i64::from(last) + 1);
    }
    Ok(())
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
        }
    }
    !sum
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn i16(&mut self, value: i16) -> &mut Self {
        self.bytes_as_they_are(&value.to_be_bytes())
    }

    fn i32(&mut self, value: i32) -> &mut Self {
        self.bytes_as_they_are(&value.to_be_bytes())
    }

    fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes_as_they_are(&value.to_be_bytes())
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.i16(text.len() as i16).bytes_as_they_are(text.as_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.i32(bytes.len() as i32).bytes_as_they_are(bytes)
    }

    fn bytes_as_they_are(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn varint(&mut self, value: i64) -> &mut Self {
        let mut left = (value << 1 ^ value >> 63) as u64;
        while left >= 0x80 {
            self.0.push(left as u8 | 0x80);
            left >>= 7;
        }
        self.0.push(left as u8);
        self
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("an answer is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.take(2)?.try_into()?))
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into()?))
    }

    fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.take(8)?.try_into()?))
    }

    fn varint(&mut self) -> Result<i64> {
        let mut value = 0_u64;
        for place in 0..10 {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        bail!("a number has no end")
    }

    fn counted(&mut self) -> Result<&'a [u8]> {
        let length = self.varint()?;
        self.take(usize::try_from(length.max(0))?)
    }

    /// One topic and one partition, as they were asked for.
    fn topic_and_partition(&mut self) -> Result<()> {
        self.i32()?;
        let length = self.i16()?;
        self.take(usize::try_from(length)?)?;
        self.i32()?;
        self.i32()?;
        Ok(())
    }
}
