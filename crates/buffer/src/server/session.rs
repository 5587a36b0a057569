//! [`Session`]: one connection of a client, from its first command to its last.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::channel::Channel;
use super::storing::{self, Change, Changed, Expires};
use super::{Shared, classic, meta};
use crate::key::{BlockName, PACKETS_MAX, PacketKey, flag};
use crate::memory::{Room, Value};
use crate::protocol::{Command, Malformed, Mode, parse};

/// Times up to this are from now on, later ones are of the calendar (30 days, as memcached).
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;

/// Packets are whole, each time.
pub const ONLY_SET: &str = "CLIENT_ERROR a packet of a block is stored by set alone";

/// See the module's documentation.
pub struct Session<'a> {
    /// What all sessions share.
    pub shared: Arc<Shared>,
    /// The connection.
    pub channel: Channel<'a>,
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
        match command {
            Command::Get { keys, with_cas, expires } => {
                classic::get(self, &keys, with_cas, expires)
            }
            Command::Store(store) => classic::store(self, &store),
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
                self.channel.text(&format!("VERSION {}\r\n", env!("CARGO_PKG_VERSION")))
            }
            Command::Verbosity { is_quiet } => self.say("OK", is_quiet),
            Command::Quit => Ok(()),
            Command::MetaNothing => self.channel.text("MN\r\n"),
            Command::Meta { letter, key, key_word, flags } => {
                meta::obey(self, letter, (&key, key_word), &flags)
            }
            Command::MetaSet { key, key_word, flags, length } => {
                meta::set(self, (&key, key_word), &flags, length)
            }
            Command::Settle { name, packets } => self.settle(name, packets),
        }
    }

    /// Answers with a line, unless the client wants none.
    pub fn say(&mut self, line: &str, is_quiet: bool) -> io::Result<()> {
        if is_quiet { Ok(()) } else { self.channel.text(&format!("{line}\r\n")) }
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

    /// Reads a value and stores it.
    pub fn take(&mut self, coming: Coming<'_>) -> io::Result<Came> {
        let Coming { key, mut change, length } = coming;
        let packet = PacketKey::parse(key);
        let is_set = change.mode == Mode::Set && change.cas.is_none();
        change.is_owed = packet.is_some() && is_set && change.flags & flag::OWED != 0;
        if packet.is_some() && !is_set {
            self.channel.skip(length.saturating_add(2))?;
            return Ok(Came::Refused(ONLY_SET.into()));
        }
        let room = match self.room_for(length, change.is_owed) {
            Ok(room) => room,
            Err(refusal) => {
                self.channel.skip(length.saturating_add(2))?;
                self.forget_old(key, &change);
                return Ok(Came::Refused(refusal));
            }
        };
        let Some(bytes) = self.channel.value(length as usize)? else {
            return Ok(Came::Refused("CLIENT_ERROR bad data chunk".into()));
        };
        if packet.is_some() && !flag::agrees(change.flags, &bytes) {
            return Ok(Came::Refused("CLIENT_ERROR the packet was changed on its way".into()));
        }
        self.shared.counters.set.fetch_add(1, Ordering::Relaxed);
        let value = Value::new(bytes, room);
        let changed = match storing::store(&self.shared.memory, key, &change, value) {
            Ok(changed) => changed,
            Err(full) => return Ok(Came::Refused(out_of_memory(&full, false))),
        };
        if let (Some(packet), Changed::Made(_, value)) = (packet, &changed) {
            let is_sync = change.flags & flag::SYNC != 0;
            let keeper = &self.shared.keeper;
            if !change.is_owed {
                keeper.removed(&packet);
            } else if let Err(reason) = keeper.keep(&packet, change.flags, value, is_sync) {
                return Ok(Came::Refused(format!("SERVER_ERROR {reason}")));
            }
        }
        Ok(Came::Changed(changed))
    }

    fn room_for(&self, length: u64, is_owed: bool) -> Result<Room, String> {
        if length > self.shared.settings.value_bytes_max {
            return Err("SERVER_ERROR object too large for cache".into());
        }
        let patience = if is_owed { self.shared.settings.patience } else { Duration::ZERO };
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

    /// The PFS has all packets of a block.
    fn settle(&mut self, name: &[u8], packets: u64) -> io::Result<()> {
        let packets = u32::try_from(packets).ok().filter(|packets| *packets <= PACKETS_MAX);
        let (Some(block), Some(packets)) = (BlockName::parse(name), packets) else {
            return self.channel.text("CLIENT_ERROR no name of a block, or too many packets\r\n");
        };
        let settled = self.shared.settle(&block, packets);
        self.channel.text(&format!("SETTLED {settled}\r\n"))
    }
}

fn out_of_memory(full: &crate::memory::Full, is_owed: bool) -> String {
    let usage = full.0;
    match is_owed {
        true => format!(
            "SERVER_ERROR full: {} of {} bytes are owed to the PFS",
            usage.owed_bytes, usage.capacity_bytes
        ),
        false => "SERVER_ERROR out of memory storing object".into(),
    }
}

/// Whether a connection ended as connections do.
pub fn is_usual_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof
    )
}
