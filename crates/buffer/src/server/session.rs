//! [`Session`]: one connection of a client, from its first command to its last.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::channel::Channel;
use super::fences::Fence;
use super::packets::Arrived;
use super::storing::{self, Change, Changed, Expires};
use super::{Shared, classic, meta};
use crate::key::{
    BlockName, PACKET_BYTES_MAX, PACKETS_MAX, PacketKey, flag, is_of_blocks, parse_epoch,
};
use crate::memory::{Room, Value};
use crate::protocol::{Command, Malformed, Mode, parse};

/// Times up to this are from now on, later ones are of the calendar (30 days, as memcached).
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;

/// Packets are whole, each time.
pub const ONLY_SET: &str = "CLIENT_ERROR a packet of a block is stored by set alone";
/// The version of memcached whose commands these are.
const PROTOCOL_VERSION: &str = "1.6.18";
const FOR_NODES: &str = "CLIENT_ERROR blocks are for nodes alone";
const NO_PACKET: &str = "CLIENT_ERROR no key of a packet";
const DURABLE_IS_OWED: &str = "CLIENT_ERROR what is to be durable is owed";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// See the module's documentation.
pub struct Session<'a> {
    /// What all sessions share.
    pub shared: Arc<Shared>,
    /// The connection.
    pub channel: Channel<'a>,
    /// Whether what comes by it is carried out.
    pub fence: Arc<Fence>,
    /// It may do nothing with blocks.
    is_guest: bool,
    /// What its client calls it.
    name: Option<Box<[u8]>>,
    /// Until when what comes waits for room, since something of what was sent at once did.
    patience_ends: Option<Instant>,
    /// Blocks of which packets were removed, and who did it has no answer yet.
    unsynced: BTreeSet<BlockName>,
}

/// A value that comes, and where it goes.
pub struct Coming<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// How it is stored.
    pub change: Change,
    /// Bytes of it.
    pub length: u64,
}

/// What became of it.
pub enum Came {
    /// It was stored or not.
    Changed(Changed),
    /// It was not, for this reason, which is an answer.
    Refused(String),
}

impl<'a> Session<'a> {
    /// One that begins.
    pub fn new(shared: Arc<Shared>, channel: Channel<'a>) -> Self {
        let (fence, unsynced, is_guest) = (Arc::default(), BTreeSet::new(), false);
        Session { shared, channel, fence, is_guest, name: None, patience_ends: None, unsynced }
    }

    /// The same of a client that may do nothing with blocks.
    pub fn of_guest(shared: Arc<Shared>, channel: Channel<'a>) -> Self {
        Session { is_guest: true, ..Session::new(shared, channel) }
    }
}

impl Session<'_> {
    /// Serves until the client ends.
    ///
    /// # Errors
    /// The connection broke, or the client stood still within a message.
    pub fn run(&mut self) -> io::Result<()> {
        while let Some(line) = self.channel.line()? {
            match parse(&line) {
                Ok(Command::Quit) => break,
                Ok(command) => self.obey(command)?,
                Err(Malformed { fault, skipped_bytes }) => {
                    self.channel.text(&format!("{fault}\r\n"))?;
                    self.channel.skip(skipped_bytes)?;
                }
            }
        }
        self.channel.flush()
    }

    fn obey(&mut self, command: Command<'_>) -> io::Result<()> {
        if self.is_guest && command.is_about_blocks() {
            return self.channel.text(&format!("{FOR_NODES}\r\n"));
        }
        match command {
            Command::Get { keys, with_cas, expires } => {
                classic::get(self, &keys, with_cas, expires)
            }
            Command::Store(store) => {
                classic::store(self, &store)?;
                self.end_of_wait(store.is_quiet);
                Ok(())
            }
            Command::Delete { key, is_quiet } => classic::delete(self, key, is_quiet),
            Command::Count { key, arithmetic, delta, is_quiet } => {
                classic::count(self, key, (arithmetic, delta), is_quiet)
            }
            Command::Touch { key, expires, is_quiet } => {
                classic::touch(self, key, expires, is_quiet)
            }
            Command::Flush { delay, is_quiet } => classic::flush(self, delay, is_quiet),
            Command::Stats(about) => classic::stats(self, about),
            Command::Dump => classic::dump(self),
            Command::Version => {
                // First that of the protocol: clients refuse what is older than they know.
                let version = env!("CARGO_PKG_VERSION");
                self.channel.text(&format!("VERSION {PROTOCOL_VERSION}-tidepool-{version}\r\n"))
            }
            Command::Verbosity { is_quiet } => self.say("OK", is_quiet),
            Command::Quit => Ok(()),
            Command::MetaNothing => self.end_of_batch(),
            Command::Meta { letter, key, key_word, flags } => {
                meta::obey(self, letter, (&key, key_word), &flags)
            }
            Command::MetaSet { key, key_word, flags, length } => {
                meta::set(self, (&key, key_word), &flags, length)?;
                self.end_of_wait(flags.has(b'q'));
                Ok(())
            }
            Command::Settle { name, packets } => self.settle(name, packets),
            Command::Forget(epoch) => self.forget(epoch),
            Command::Hello(name) => self.hello(name),
            Command::Fence(name) => {
                self.shared.fences.raise(name);
                self.channel.text("FENCED\r\n")
            }
        }
    }

    /// It has one name, and keeps it.
    fn hello(&mut self, name: &[u8]) -> io::Result<()> {
        if self.name.as_deref().is_some_and(|before| before != name) {
            return self.channel.text("CLIENT_ERROR this connection has another name\r\n");
        }
        if self.name.is_none() && !self.shared.fences.name(name, &self.fence) {
            return self.channel.text("SERVER_ERROR too many names of connections\r\n");
        }
        self.name = Some(name.into());
        self.channel.text(&format!("HELLO {:016x}\r\n", self.shared.start))
    }

    /// Answers with a line, unless the client wants none.
    pub fn say(&mut self, line: &str, is_quiet: bool) -> io::Result<()> {
        if is_quiet { Ok(()) } else { self.channel.text(&format!("{line}\r\n")) }
    }

    /// Whether its client may do anything with what has this key.
    pub fn may_use(&self, key: &[u8]) -> bool {
        !(self.is_guest && is_of_blocks(key))
    }

    /// When something expires that has this time, in seconds as memcached has them.
    pub fn expires(&self, time: i64) -> Expires {
        let now = self.shared.memory.now();
        match time {
            0 => Expires::Never,
            ..0 => Expires::At(Duration::ZERO),
            1..=RELATIVE_MAX_S => Expires::At(now + Duration::from_secs(time as u64)),
            _ => {
                let at = Duration::from_secs(time as u64);
                let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Expires::At(now + at.saturating_sub(today))
            }
        }
    }

    /// Answers that all before is done: what was removed is gone for good.
    fn end_of_batch(&mut self) -> io::Result<()> {
        self.patience_ends = None;
        match self.sync_removed() {
            Ok(()) => self.channel.text("MN\r\n"),
            Err(reason) => self.channel.text(&format!("SERVER_ERROR {reason}\r\nMN\r\n")),
        }
    }

    /// Makes what was removed gone for good; the reason where it is not.
    pub fn sync_removed(&mut self) -> Result<(), String> {
        let blocks = std::mem::take(&mut self.unsynced);
        blocks.iter().try_for_each(|block| self.shared.keeper.sync(block))
    }

    /// Removes an item; whether there was one. With `is_batch` a packet is gone for good at the end
    /// of the batch only, else now.
    pub fn remove(&mut self, key: &[u8], is_batch: bool) -> io::Result<Result<bool, String>> {
        let Some(packet) = PacketKey::parse(key) else {
            return Ok(Ok(self.shared.memory.with(key, |slot| slot.remove()).is_some()));
        };
        let was_there = match self.shared.remove_packet(&packet, &self.fence)? {
            Ok(was_there) => was_there,
            Err(reason) => return Ok(Err(reason)),
        };
        if was_there {
            self.unsynced.insert(packet.block);
        }
        Ok(if is_batch { Ok(was_there) } else { self.sync_removed().map(|()| was_there) })
    }

    /// Reads a value and stores it.
    pub fn take(&mut self, coming: Coming<'_>) -> io::Result<Came> {
        let Coming { key, mut change, length } = coming;
        let packet = PacketKey::parse(key);
        let is_set = change.mode == Mode::Set && change.cas.is_none();
        change.is_owed = packet.is_some() && is_set && change.flags & flag::OWED != 0;
        let is_sync = change.flags & flag::SYNC != 0;
        let wrong = match packet {
            _ if !self.may_use(key) => Some(FOR_NODES),
            None if is_of_blocks(key) => Some(NO_PACKET),
            Some(_) if !is_set || change.new_cas.is_some() => Some(ONLY_SET),
            Some(_) if is_sync && !change.is_owed => Some(DURABLE_IS_OWED),
            Some(_) if length > PACKET_BYTES_MAX as u64 => Some(TOO_LARGE),
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.channel.skip(length.saturating_add(2))?;
            return Ok(Came::Refused(wrong.to_owned()));
        }
        // Of all that is taken room is taken before anything is changed.
        let rooms = self.room_for(length, change.is_owed).and_then(|room| {
            let until = self.patience_end();
            let kept = match change.is_owed {
                true => self.shared.keeper.reserve(length as usize, until),
                false => Ok(None),
            };
            kept.map(|kept| (room, kept)).map_err(|reason| format!("SERVER_ERROR {reason}"))
        });
        let (room, kept_room) = match rooms {
            Ok(rooms) => rooms,
            Err(refusal) => {
                self.channel.skip(length.saturating_add(2))?;
                self.forget_old(key, &change);
                return Ok(Came::Refused(refusal));
            }
        };
        let came = self.channel.value(length as usize, |bytes| room.buffer(bytes))?;
        let Some(bytes) = came else {
            return Ok(Came::Refused("CLIENT_ERROR bad data chunk".into()));
        };
        if packet.is_some() && !flag::agrees(change.flags, key, &bytes) {
            return Ok(Came::Refused("CLIENT_ERROR the packet was changed on its way".into()));
        }
        self.shared.counters.set.fetch_add(1, Ordering::Relaxed);
        let value = Value::new(bytes, room);
        let Some(packet) = packet else {
            let is_fenced = self.fence.lock();
            if *is_fenced {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            return Ok(match storing::store(&self.shared.memory, key, &change, value) {
                Ok(changed) => Came::Changed(changed),
                Err(full) => Came::Refused(out_of_memory(&full, false)),
            });
        };
        let arrived = Arrived { key: packet, change: &change, room: kept_room, fence: &self.fence };
        Ok(match self.shared.store(arrived, value, is_sync)? {
            Ok(changed) => Came::Changed(changed),
            Err(reason) => Came::Refused(format!("SERVER_ERROR {reason}")),
        })
    }

    /// Until when what comes now waits for room: what was sent at once waits once.
    fn patience_end(&mut self) -> Instant {
        let patience = self.shared.settings.patience;
        *self.patience_ends.get_or_insert_with(|| Instant::now() + patience)
    }

    /// What was answered by itself was not sent with what comes next.
    fn end_of_wait(&mut self, is_quiet: bool) {
        if !is_quiet {
            self.patience_ends = None;
        }
    }

    fn room_for(&mut self, length: u64, is_owed: bool) -> Result<Room, String> {
        if length > self.shared.settings.value_bytes_max {
            return Err(TOO_LARGE.into());
        }
        let patience = match is_owed {
            true => self.patience_end().saturating_duration_since(Instant::now()),
            false => Duration::ZERO,
        };
        let room = self.shared.memory.take_room(length as usize, patience);
        room.map_err(|full| out_of_memory(&full, is_owed))
    }

    /// What could not be stored leaves nothing older behind, as with memcached; but what is owed
    /// stays.
    fn forget_old(&self, key: &[u8], change: &Change) {
        if change.mode == Mode::Set && change.cas.is_none() {
            self.shared.memory.with(key, |slot| {
                if slot.peek().is_some_and(|item| !item.is_owed) {
                    slot.remove();
                }
            });
        }
    }

    /// The PFS has a block.
    fn settle(&mut self, name: &[u8], packets: u64) -> io::Result<()> {
        let packets = u32::try_from(packets).ok().filter(|packets| *packets <= PACKETS_MAX);
        let (Some(block), Some(packets)) = (BlockName::parse(name), packets) else {
            return self.channel.text("CLIENT_ERROR no name of a block, or too many packets\r\n");
        };
        match self.shared.settle(&block, packets) {
            Ok(settled) => self.channel.text(&format!("SETTLED {settled}\r\n")),
            Err(reason) => self.channel.text(&format!("SERVER_ERROR {reason}\r\n")),
        }
    }
}

impl Session<'_> {
    /// Nobody needs the blocks of a time in memory.
    fn forget(&mut self, epoch: &[u8]) -> io::Result<()> {
        let Some(epoch) = parse_epoch(epoch) else {
            return self.channel.text("CLIENT_ERROR no name of a time in memory\r\n");
        };
        match self.shared.forget(epoch) {
            Ok(blocks) => self.channel.text(&format!("FORGOTTEN {blocks}\r\n")),
            Err(reason) => self.channel.text(&format!("SERVER_ERROR {reason}\r\n")),
        }
    }
}

fn out_of_memory(full: &crate::memory::Full, is_owed: bool) -> String {
    let usage = full.0;
    match is_owed {
        true => format!(
            "SERVER_ERROR full: {} of {} bytes of its memory are owed to the PFS, {} are in use",
            usage.owed_bytes, usage.capacity_bytes, usage.used_bytes
        ),
        false => "SERVER_ERROR out of memory storing object".into(),
    }
}

/// Whether a connection ended as connections do.
pub fn is_usual_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
    )
}
