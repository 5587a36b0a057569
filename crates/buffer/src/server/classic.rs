//! The classic commands: `get`, `set` and their likes, and those about the server.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::session::{Came, Coming, ONLY_SET, Session};
use super::storing::{self, Change, Changed, Counted, Counting, Expires};
use crate::key::PacketKey;
use crate::memory::Item;
use crate::protocol::{Arithmetic, Mode, Store, Verb};

const NO_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const NO_ROOM: &str = "SERVER_ERROR out of memory storing object";

/// `get`, `gets`, `gat`, `gats`.
pub fn get(
    session: &mut Session<'_>,
    keys: &[&[u8]],
    with_cas: bool,
    expires: Option<i64>,
) -> io::Result<()> {
    let expires = expires.map(|time| session.expires(time));
    for key in keys {
        let (found, passes) = match session.shared.look_up(key, |shared| shared.find(key, expires))
        {
            Ok(found) => found,
            Err(reason) => return session.channel.text(&format!("SERVER_ERROR {reason}\r\n")),
        };
        let Some(item) = found else { continue };
        let channel = &mut session.channel;
        channel.text("VALUE ")?;
        channel.raw(key)?;
        let cas = if with_cas { format!(" {}", item.cas) } else { String::new() };
        channel.text(&format!(" {} {}{cas}\r\n", item.flags, item.value.bytes().len()))?;
        channel.send(&item.value)?;
        if passes.is_some() {
            channel.flush()?;
        }
    }
    session.channel.text("END\r\n")
}

/// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
pub fn store(session: &mut Session<'_>, store: &Store<'_>) -> io::Result<()> {
    let (mode, cas) = match store.verb {
        Verb::Of(mode) => (mode, None),
        Verb::Cas(unique) => (Mode::Set, Some(unique)),
    };
    let change = Change {
        mode,
        cas,
        is_invalidating: false,
        new_cas: None,
        flags: store.flags,
        expires: session.expires(store.expires),
        vivify: None,
        is_key_binary: false,
        is_owed: false,
    };
    let came = session.take(Coming { key: store.key, change, length: store.length })?;
    match came {
        // Who wants no answer reads none, not even of what failed.
        Came::Refused(refusal) => session.say(&refusal, store.is_quiet),
        Came::Changed(changed) => {
            let answer = match changed {
                Changed::Made(..) => "STORED",
                Changed::NotStored => "NOT_STORED",
                Changed::Exists => "EXISTS",
                Changed::NotFound => "NOT_FOUND",
            };
            session.say(answer, store.is_quiet)
        }
    }
}

/// `delete`.
pub fn delete(session: &mut Session<'_>, key: &[u8], is_quiet: bool) -> io::Result<()> {
    match session.remove(key, false)? {
        Ok(true) => session.say("DELETED", is_quiet),
        Ok(false) => session.say("NOT_FOUND", is_quiet),
        Err(reason) => session.say(&format!("SERVER_ERROR {reason}"), is_quiet),
    }
}

/// `incr`, `decr`.
pub fn count(
    session: &mut Session<'_>,
    key: &[u8],
    (arithmetic, delta): (Arithmetic, u64),
    is_quiet: bool,
) -> io::Result<()> {
    if PacketKey::parse(key).is_some() {
        return session.say(ONLY_SET, is_quiet);
    }
    let counting = Counting {
        arithmetic,
        delta,
        cas: None,
        new_cas: None,
        expires: None,
        vivify: None,
        is_key_binary: false,
    };
    let memory = &session.shared.memory;
    let Ok(room) = memory.take_room(storing::NUMBER_BYTES_MAX, Duration::ZERO) else {
        return session.say(NO_ROOM, is_quiet);
    };
    match storing::count(memory, key, &counting, room) {
        Counted::Is(number, _) => session.say(&number.to_string(), is_quiet),
        Counted::NoNumber => session.say(NO_NUMBER, is_quiet),
        Counted::NotFound | Counted::Exists => session.say("NOT_FOUND", is_quiet),
    }
}

/// The answer to what is no number.
pub fn no_number() -> &'static str {
    NO_NUMBER
}

/// `touch`.
pub fn touch(
    session: &mut Session<'_>,
    key: &[u8],
    expires: i64,
    is_quiet: bool,
) -> io::Result<()> {
    let expires = session.expires(expires);
    match session.shared.look_up(key, |shared| shared.find(key, Some(expires))) {
        Ok((Some(_), _)) => session.say("TOUCHED", is_quiet),
        Ok((None, _)) => session.say("NOT_FOUND", is_quiet),
        Err(reason) => session.say(&format!("SERVER_ERROR {reason}"), is_quiet),
    }
}

/// `flush_all`: at once, or never: what is stored until then could not be told apart.
pub fn flush(session: &mut Session<'_>, delay: i64, is_quiet: bool) -> io::Result<()> {
    if delay > 0 {
        return session.say("SERVER_ERROR this server flushes at once only", false);
    }
    session.shared.memory.flush(|key| session.may_use(key));
    session.say("OK", is_quiet)
}

/// `stats`.
pub fn stats(session: &mut Session<'_>, about: &[u8]) -> io::Result<()> {
    let figures = match about {
        b"" => session.shared.figures(),
        b"settings" => session.shared.settings_told(),
        b"reset" => return session.say("RESET", false),
        // What is kept elsewhere by slabs is not here.
        b"items" | b"slabs" | b"conns" | b"sizes" => Vec::new(),
        _ => return session.say("ERROR", false),
    };
    for (name, value) in figures {
        session.channel.text(&format!("STAT {name} {value}\r\n"))?;
    }
    session.channel.text("END\r\n")
}

/// `lru_crawler metadump`: a line for each item.
pub fn dump(session: &mut Session<'_>) -> io::Result<()> {
    let (now, mut lines) = (session.shared.memory.now(), Vec::new());
    session.shared.memory.for_each(|key, item| lines.push(described(key, item, now)));
    for line in lines {
        session.channel.text(&line)?;
    }
    session.channel.text("END\r\n")
}

fn described(key: &[u8], item: &Item, now: Duration) -> String {
    use std::fmt::Write;
    let mut line = String::from("key=");
    for byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                line.push(char::from(*byte));
            }
            // Writing to a string does not fail.
            _ => _ = write!(line, "%{byte:02X}"),
        }
    }
    let facts = facts(item, now);
    line + &format!(" {facts}\n")
}

/// What is known of an item beside its value, as `me` and `metadump` tell it.
pub fn facts(item: &Item, now: Duration) -> String {
    let ttl = item.expires.map_or(-1, |at| at.saturating_sub(now).as_secs() as i64);
    format!(
        "exp={ttl} la={} cas={} fetch={} cls=1 size={}",
        now.saturating_sub(item.accessed).as_secs(),
        item.cas,
        if item.is_hit { "yes" } else { "no" },
        item.value.bytes().len()
    )
}

impl super::Shared {
    /// The item under a key, which is used from now on; sets when it expires.
    pub fn find(&self, key: &[u8], expires: Option<Expires>) -> Option<Item> {
        self.counters.get.fetch_add(1, Ordering::Relaxed);
        let found = self.memory.with(key, |slot| {
            let now = slot.now();
            let item = slot.touch()?;
            if let Some(expires) = expires {
                item.expires = expires.for_item();
            }
            let before = item.clone();
            (item.is_hit, item.accessed) = (true, now);
            Some(before)
        });
        let counter = if found.is_some() { &self.counters.hits } else { &self.counters.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }
}
