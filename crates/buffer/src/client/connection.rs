//! [`Connection`]: one stream to a server, whose commands are answered in their order.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice};
use std::time::{Duration, Instant};

use super::stream::{self, Stream};
use super::{Fault, Kept, Packets};
use crate::key::{BlockName, PACKET_BYTES_MAX, PacketKey, flag};

const OUTPUT_BYTES: usize = 64 << 10;
const INPUT_BYTES: usize = 64 << 10;
/// Longest line of an answer.
const LINE_BYTES_MAX: usize = 2048;

/// See the module's documentation.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    /// What is to be sent.
    output: Vec<u8>,
    until: Instant,
    limit: Duration,
    /// Something was sent whose answer was not read.
    is_owed_answers: bool,
    /// Packets were to be removed since the last barrier.
    has_removed: bool,
    /// What the server calls it, if it knows names of connections.
    name: Option<String>,
    start: Option<u64>,
    /// Whether the server is one of ours.
    is_ours: bool,
}

impl Connection {
    /// By a way to a server. A call may take no longer than `limit`.
    pub fn new(stream: Box<dyn Stream>, limit: Duration) -> Self {
        let stream = BufReader::with_capacity(INPUT_BYTES, stream);
        let until = Instant::now() + limit;
        Connection {
            stream,
            output: Vec::new(),
            until,
            limit,
            is_owed_answers: false,
            has_removed: false,
            name: None,
            start: None,
            is_ours: true,
        }
    }

    /// Tells the server what this connection is called; stock memcached knows no names.
    pub fn introduce(&mut self, name: String) -> Result<(), Fault> {
        if self.stream.get_mut().name_messages(&name) {
            self.name = Some(name);
            return Ok(());
        }
        self.send(&[format!("hello {name}\r\n").as_bytes()])?;
        let line = self.line()?;
        self.is_owed_answers = false;
        match (stream::start_of(line.as_bytes()), line.as_str()) {
            (Some(start), _) => (self.name, self.start) = (Some(name), Some(start)),
            (None, "ERROR") => self.is_ours = false,
            (None, line) => return Err(refusal(line)),
        }
        Ok(())
    }

    /// Which start of a server of ours answers.
    pub fn start(&self) -> Option<u64> {
        self.start.or_else(|| self.stream.get_ref().start())
    }

    /// What the server calls it, where what was sent by it can be fenced.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Has nothing more be carried out that came by another connection.
    pub fn fence(&mut self, name: &str) -> Result<(), Fault> {
        self.send(&[format!("fence {name}\r\n").as_bytes()])?;
        let line = self.line()?;
        self.is_owed_answers = false;
        if line == "FENCED" { Ok(()) } else { Err(refusal(&line)) }
    }

    /// What follows is to end by then.
    pub fn begin(&mut self, until: Instant) {
        self.until = until;
    }

    /// Whether all that was sent was answered, and nothing else.
    pub fn is_at_rest(&self) -> bool {
        !self.is_owed_answers && self.stream.buffer().is_empty() && self.stream.get_ref().is_quiet()
    }

    /// Most packets of a [`Self::fetch`].
    pub fn asked_max(&self) -> usize {
        self.stream.get_ref().asked_max()
    }

    /// Sends a packet. What is wrong with it is told at the next barrier.
    pub fn store(&mut self, key: &PacketKey, flags: u32, bytes: &[u8]) -> Result<(), Fault> {
        let flags = flag::checked(flags, key.to_string().as_bytes(), bytes);
        let head = format!("ms {key} {} F{flags} q\r\n", bytes.len());
        self.send(&[head.as_bytes(), bytes, b"\r\n"])
    }

    /// Sends that a packet is not wanted any more.
    pub fn remove(&mut self, key: &PacketKey) -> Result<(), Fault> {
        self.has_removed = true;
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
                "NF" if self.has_removed => {}
                line => match refusal(line) {
                    Fault::Strange(line) => return Err(Fault::Strange(line)),
                    fault => drop(refused.get_or_insert(fault)),
                },
            }
        }
        self.has_removed = false;
        self.is_owed_answers = false;
        refused.map_or(Ok(()), Err)
    }

    /// Fetches packets, in their order.
    pub fn fetch(&mut self, keys: &[PacketKey]) -> Result<Packets, Fault> {
        for key in keys {
            self.send(&[format!("mg {key} v f k q\r\n").as_bytes()])?;
        }
        self.send(&[b"mn\r\n"])?;
        let mut places: HashMap<&PacketKey, Vec<usize>> = HashMap::new();
        keys.iter().enumerate().for_each(|(at, key)| places.entry(key).or_default().push(at));
        let (mut fetched, mut wrong) = (vec![None; keys.len()], None);
        loop {
            let line = self.line()?;
            if line == "MN" {
                break;
            }
            let Some(head) = ValueHead::parse(&line) else {
                match refusal(&line) {
                    // What comes next is not known.
                    Fault::Strange(line) => return Err(Fault::Strange(line)),
                    fault => drop(wrong.get_or_insert(fault)),
                }
                continue;
            };
            let bytes = self.value(head.length)?;
            let Some(at) = places.get(&head.key) else { return Err(Fault::Strange(line)) };
            let key = head.key.to_string();
            let is_checked = head.flags & flag::CHECKED != 0;
            match is_checked && flag::agrees(head.flags, key.as_bytes(), &bytes) {
                true => at.iter().for_each(|at| fetched[*at] = Some(bytes.clone())),
                false => wrong = wrong.or(Some(Fault::Broken(head.key))),
            }
        }
        self.is_owed_answers = false;
        wrong.map_or(Ok(fetched), Err)
    }

    /// Tells that the PFS has a block. Stock memcached is not told: it evicts it anyway.
    pub fn settle(&mut self, block: &BlockName, packets: u32) -> Result<(), Fault> {
        if !self.is_ours {
            return Ok(());
        }
        self.send(&[format!("settle {block} {packets}\r\n").as_bytes()])?;
        let line = self.line()?;
        self.is_owed_answers = false;
        if line.starts_with("SETTLED ") { Ok(()) } else { Err(refusal(&line)) }
    }

    /// Tells that nobody needs the blocks of a time in memory.
    pub fn forget(&mut self, epoch: u64) -> Result<(), Fault> {
        if !self.is_ours {
            return Ok(());
        }
        self.send(&[format!("forget {epoch:016x}\r\n").as_bytes()])?;
        let line = self.line()?;
        self.is_owed_answers = false;
        if line.starts_with("FORGOTTEN ") { Ok(()) } else { Err(refusal(&line)) }
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
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes < OUTPUT_BYTES {
            self.output.extend(parts.iter().copied().flatten());
        }
        if self.output.len() < OUTPUT_BYTES && bytes < OUTPUT_BYTES {
            return Ok(());
        }
        self.flush()?;
        if bytes >= OUTPUT_BYTES {
            self.next_command(bytes)?;
            let mut parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            self.write(&mut parts)?;
        }
        Ok(())
    }

    /// What was gathered goes out before something is read.
    fn flush(&mut self) -> Result<(), Fault> {
        let output = std::mem::take(&mut self.output);
        if output.is_empty() {
            return Ok(());
        }
        self.next_command(output.len())?;
        self.write(&mut [IoSlice::new(&output)])
    }

    fn next_command(&mut self, bytes: usize) -> Result<(), Fault> {
        let left = self.left()?;
        let stream = self.stream.get_mut();
        let next = stream.set_left(left).and_then(|()| stream.next_command(bytes));
        next.map_err(|error| self.fault(error))
    }

    /// Writes all of it. A server that takes a byte now and then does not get more time.
    fn write(&mut self, mut parts: &mut [IoSlice<'_>]) -> Result<(), Fault> {
        // Those without a byte at the front go.
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let left = self.left()?;
            let stream = self.stream.get_mut();
            let written = stream.set_left(left).and_then(|()| stream.write_vectored(parts));
            match written {
                Ok(0) => return Err(Fault::Unreachable(ErrorKind::WriteZero.into())),
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fault(error)),
            }
        }
        Ok(())
    }

    /// Waits for something that can be read.
    fn fill(&mut self) -> Result<(), Fault> {
        let left = self.left()?;
        let timed = self.stream.get_mut().set_left(left);
        match timed.and_then(|()| self.stream.fill_buf().map(<[u8]>::len)) {
            Ok(0) => Err(Fault::Unreachable(ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.fault(error)),
        }
    }

    fn line(&mut self) -> Result<String, Fault> {
        self.flush()?;
        let mut line = Vec::new();
        loop {
            if let Some(length) = memchr::memchr(b'\n', self.stream.buffer()) {
                line.extend_from_slice(&self.stream.buffer()[..length]);
                self.stream.consume(length + 1);
                let line = line.strip_suffix(b"\r").unwrap_or(&line);
                return Ok(String::from_utf8_lossy(line).into_owned());
            }
            line.extend_from_slice(self.stream.buffer());
            let length = self.stream.buffer().len();
            self.stream.consume(length);
            if line.len() > LINE_BYTES_MAX {
                return Err(Fault::Strange(shortened(&String::from_utf8_lossy(&line))));
            }
            self.fill()?;
        }
    }

    fn value(&mut self, length: usize) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::with_capacity(length + 2);
        while bytes.len() < length + 2 {
            if self.stream.buffer().is_empty() {
                self.fill()?;
            }
            let more = self.stream.buffer().len().min(length + 2 - bytes.len());
            bytes.extend_from_slice(&self.stream.buffer()[..more]);
            self.stream.consume(more);
        }
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

/// What is told of a value before it comes.
struct ValueHead {
    length: usize,
    flags: u32,
    key: PacketKey,
}

impl ValueHead {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("VA ")?.split(' ');
        let length = words.next()?.parse().ok().filter(|length| *length <= PACKET_BYTES_MAX)?;
        let (mut flags, mut key) = (None, None);
        for word in words {
            match word.split_at_checked(1)? {
                ("f", it) => flags = it.parse().ok(),
                ("k", name) => key = PacketKey::parse(name.as_bytes()),
                _ => {}
            }
        }
        Some(ValueHead { length, flags: flags?, key: key? })
    }
}

fn shortened(line: &str) -> String {
    line.chars().take(64).collect()
}

/// What an answer means that is no success.
fn refusal(line: &str) -> Fault {
    let reason = ["SERVER_ERROR ", "CLIENT_ERROR "].iter().find_map(|it| line.strip_prefix(it));
    match reason {
        Some(reason) => Fault::Refused(reason.to_owned()),
        None if line == "NS" => Fault::Refused("it did not store a packet".to_owned()),
        None => Fault::Strange(shortened(line)),
    }
}
