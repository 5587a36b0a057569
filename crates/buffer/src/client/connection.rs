//! [`Connection`]: one stream to a server, whose commands are answered in their order.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use super::stream::Stream;
use super::{Fault, Kept};
use crate::key::{BlockName, PACKET_BYTES_MAX, PacketKey, flag};

const OUTPUT_BYTES: usize = 64 << 10;
const INPUT_BYTES: usize = 64 << 10;
/// Longest line of an answer.
const LINE_BYTES_MAX: u64 = 2048;

/// See the module's documentation.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    /// What is to be sent.
    output: Vec<u8>,
    until: Instant,
    limit: Duration,
    /// Something was sent whose answer was not read.
    is_owed_answers: bool,
}

impl Connection {
    /// By a way to a server. A call may take no longer than `limit`.
    pub fn new(stream: Box<dyn Stream>, limit: Duration) -> Self {
        let stream = BufReader::with_capacity(INPUT_BYTES, stream);
        let until = Instant::now() + limit;
        Connection { stream, output: Vec::new(), until, limit, is_owed_answers: false }
    }

    /// What follows is to end by then.
    pub fn begin(&mut self, until: Instant) {
        self.until = until;
    }

    /// Whether all that was sent was answered.
    pub fn is_at_rest(&self) -> bool {
        !self.is_owed_answers && self.stream.buffer().is_empty()
    }

    /// Most packets of a [`Self::fetch`].
    pub fn asked_max(&self) -> usize {
        self.stream.get_ref().asked_max()
    }

    /// Sends a packet. What is wrong with it is told at the next barrier.
    pub fn store(&mut self, key: &PacketKey, flags: u32, bytes: &[u8]) -> Result<(), Fault> {
        let head = format!("ms {key} {} F{flags} q\r\n", bytes.len());
        self.send(&[head.as_bytes(), bytes, b"\r\n"])
    }

    /// Sends that a packet is not wanted any more.
    pub fn remove(&mut self, key: &PacketKey) -> Result<(), Fault> {
        self.send(&[format!("md {key} q\r\n").as_bytes()])
    }

    /// Waits until all that was sent is done.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn barrier(&mut self) -> Result<(), Fault> {
        self.send(&[b"mn\r\n"])?;
        let mut refused = None;
        loop {
            match self.line()?.as_str() {
                "MN" => break,
                // There was none.
                "NF" => {}
                line => drop(refused.get_or_insert_with(|| refusal(line))),
            }
        }
        self.is_owed_answers = false;
        refused.map_or(Ok(()), Err)
    }

    /// Fetches packets, in their order.
    pub fn fetch(&mut self, keys: &[PacketKey]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        for key in keys {
            self.send(&[format!("mg {key} v f k q\r\n").as_bytes()])?;
        }
        self.send(&[b"mn\r\n"])?;
        let places: HashMap<&PacketKey, usize> =
            keys.iter().enumerate().map(|(at, key)| (key, at)).collect();
        let (mut fetched, mut wrong) = (vec![None; keys.len()], None);
        loop {
            let line = self.line()?;
            if line == "MN" {
                break;
            }
            let Some((length, flags, key)) = value_line(&line) else {
                wrong.get_or_insert_with(|| refusal(&line));
                if matches!(wrong, Some(Fault::Strange(_))) {
                    break; // what comes next is not known
                }
                continue;
            };
            let bytes = self.value(length)?;
            let Some(at) = places.get(&key) else { return Err(Fault::Strange(line)) };
            match flag::agrees(flags, &bytes) {
                true => fetched[*at] = Some(bytes),
                false => wrong = wrong.or(Some(Fault::Broken(key))),
            }
        }
        self.is_owed_answers = matches!(wrong, Some(Fault::Strange(_)));
        wrong.map_or(Ok(fetched), Err)
    }

    /// Tells that the PFS has a block.
    pub fn settle(&mut self, block: &BlockName, packets: u32) -> Result<(), Fault> {
        self.send(&[format!("settle {block} {packets}\r\n").as_bytes()])?;
        let line = self.line()?;
        self.is_owed_answers = false;
        match line.as_str() {
            line if line.starts_with("SETTLED ") => Ok(()),
            // Of a stock memcached, which has no such command.
            "ERROR" => Ok(()),
            line => Err(refusal(line)),
        }
    }

    /// What the server does with what is owed to the PFS.
    pub fn kept(&mut self) -> Result<Kept, Fault> {
        self.send(&[b"stats settings\r\n"])?;
        let mut kept = Kept::AsAnythingElse;
        loop {
            match self.line()?.as_str() {
                "END" => break,
                "STAT tidepool_owed memory" => kept = Kept::InMemory,
                "STAT tidepool_owed disk" => kept = Kept::OnDisk,
                line if line.starts_with("STAT ") => {}
                line => return Err(refusal(line)),
            }
        }
        self.is_owed_answers = false;
        Ok(kept)
    }

    /// Sends a command.
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), Fault> {
        self.is_owed_answers = true;
        let left = self.left()?;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let stream = self.stream.get_mut();
        let sent = stream.set_left(left).and_then(|()| {
            if bytes < OUTPUT_BYTES {
                self.output.extend(parts.iter().copied().flatten());
            }
            if self.output.len() < OUTPUT_BYTES && bytes < OUTPUT_BYTES {
                return Ok(());
            }
            stream.next_command(self.output.len())?;
            stream.write_all(&self.output)?;
            self.output.clear();
            if bytes >= OUTPUT_BYTES {
                stream.next_command(bytes)?;
                parts.iter().try_for_each(|part| stream.write_all(part))?;
            }
            Ok(())
        });
        sent.map_err(|error| self.fault(error))
    }

    /// What was gathered goes out before something is read.
    fn flush(&mut self) -> Result<(), Fault> {
        let left = self.left()?;
        let stream = self.stream.get_mut();
        let flushed = stream.set_left(left).and_then(|()| {
            stream.next_command(self.output.len())?;
            stream.write_all(&self.output)
        });
        self.output.clear();
        flushed.map_err(|error| self.fault(error))
    }

    fn line(&mut self) -> Result<String, Fault> {
        self.flush()?;
        let mut line = Vec::new();
        let read = (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(|error| self.fault(error))?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None if line.len() < LINE_BYTES_MAX as usize => {
                Err(Fault::Unreachable(ErrorKind::UnexpectedEof.into()))
            }
            None => Err(Fault::Strange(String::from_utf8_lossy(&line[..64]).into_owned())),
        }
    }

    fn value(&mut self, length: usize) -> Result<Vec<u8>, Fault> {
        let left = self.left()?;
        let mut bytes = vec![0; length + 2];
        let timed = self.stream.get_mut().set_left(left);
        let read = timed.and_then(|()| self.stream.read_exact(&mut bytes));
        read.map_err(|error| self.fault(error))?;
        match bytes.split_off(length) == b"\r\n" {
            true => Ok(bytes),
            false => Err(Fault::Strange("a value without an end".into())),
        }
    }

    fn left(&self) -> Result<Duration, Fault> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Fault::Late(self.limit)) } else { Ok(left) }
    }

    fn fault(&self, error: io::Error) -> Fault {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::Late(self.limit),
            _ => Fault::Unreachable(error),
        }
    }
}

/// Length, flags and key of a value that comes.
fn value_line(line: &str) -> Option<(usize, u32, PacketKey)> {
    let mut words = line.strip_prefix("VA ")?.split(' ');
    let length = words.next()?.parse().ok().filter(|length| *length <= PACKET_BYTES_MAX)?;
    let (mut flags, mut key) = (None, None);
    for word in words {
        match word.split_at_checked(1)? {
            ("f", number) => flags = number.parse().ok(),
            ("k", name) => key = PacketKey::parse(name.as_bytes()),
            _ => {}
        }
    }
    Some((length, flags?, key?))
}

/// What an answer means that is no success.
fn refusal(line: &str) -> Fault {
    let reason = ["SERVER_ERROR ", "CLIENT_ERROR "].iter().find_map(|it| line.strip_prefix(it));
    match reason {
        Some(reason) => Fault::Refused(reason.to_owned()),
        None if line == "NS" => Fault::Refused("it did not store a packet".to_owned()),
        None => Fault::Strange(line.chars().take(64).collect()),
    }
}
