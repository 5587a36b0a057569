//! The meta commands.

use std::io;
use std::time::Duration;

use super::classic::{facts, no_number};
use super::packets::Brought;
use super::session::{Came, Coming, ONLY_SET, Session};
use super::storing::{self, Change, Changed, Counted, Counting};
use crate::key::{PacketKey, is_of_blocks};
use crate::memory::{Item, Value};
use crate::protocol::{MetaFlags, Mode};

const NO_ROOM: &str = "SERVER_ERROR out of memory";

/// A key, decoded and as it came.
type Key<'a> = (&'a [u8], &'a [u8]);

/// `mg`, `md`, `ma`, `me`.
pub fn obey(
    session: &mut Session<'_>,
    letter: u8,
    key: Key<'_>,
    flags: &MetaFlags<'_>,
) -> io::Result<()> {
    match letter {
        b'g' => get(session, key, flags),
        b'd' => delete(session, key, flags),
        b'a' => count(session, key, flags),
        _ => debug(session, key),
    }
}

/// Flags that every answer tells back: the key, what the client sent along, that it is base64.
fn reflected(letter: u8, token: &[u8], key: Key<'_>) -> Option<Vec<u8>> {
    match letter {
        b'k' => Some([b" k", key.1].concat()),
        b'O' => Some([b" O", token].concat()),
        b'b' => Some(b" b".to_vec()),
        _ => None,
    }
}

fn answer(
    session: &mut Session<'_>,
    code: &str,
    key: Key<'_>,
    flags: &MetaFlags<'_>,
) -> io::Result<()> {
    let told = flags.iter().filter_map(|(letter, token)| reflected(letter, token, key));
    let line = [code.as_bytes().to_vec(), told.flatten().collect(), b"\r\n".to_vec()].concat();
    session.channel.raw(&line)
}

/// Seconds that are left to an item; -1 where it stays.
fn time_left(item: &Item, now: Duration) -> i64 {
    item.expires.map_or(-1, |at| at.saturating_sub(now).as_secs_f64().ceil() as i64)
}

/// What `mg` found.
struct Found {
    item: Item,
    /// Flags of the answer.
    told: Vec<u8>,
}

fn get(session: &mut Session<'_>, key: Key<'_>, flags: &MetaFlags<'_>) -> io::Result<()> {
    let (found, passes) = loop {
        match session.shared.bring(key.0) {
            Err(reason) => return session.channel.text(&format!("SERVER_ERROR {reason}\r\n")),
            Ok(Brought::Passing(item, passes)) => {
                session.shared.note_passing();
                let (mut item, now) = (*item, session.shared.memory.now());
                let told = look(&mut item, now, (key, flags), &[]);
                break (Some(Found { item, told }), Some(passes));
            }
            Ok(Brought::AsItIs) => {
                let found = find(session, key, flags)?;
                if found.is_some() || !session.shared.is_elsewhere(key.0) {
                    break (found, None);
                }
            }
        }
    };
    let Some(found) = found else {
        return if flags.has(b'q') { Ok(()) } else { answer(session, "EN", key, flags) };
    };
    let value = &found.item.value;
    let is_known = flags.number(b'C') == Some(found.item.cas);
    if !flags.has(b'v') || is_known {
        return session.channel.raw(&[b"HD", &found.told[..], b"\r\n"].concat());
    }
    session.channel.text(&format!("VA {}", value.bytes().len()))?;
    session.channel.raw(&[&found.told[..], b"\r\n"].concat())?;
    session.channel.send(value)?;
    if passes.is_some() { session.channel.flush() } else { Ok(()) }
}

/// Looks an item up, and makes one where the flags ask for it.
fn find(session: &Session<'_>, key: Key<'_>, flags: &MetaFlags<'_>) -> io::Result<Option<Found>> {
    let vivify = flags.time(b'N').map(|time| session.expires(time));
    let expires = flags.time(b'T').map(|time| session.expires(time));
    let memory = &session.shared.memory;
    // Before the place of the key is taken: others may have to be evicted.
    let room = match vivify {
        Some(_) => memory.take_room(0, Duration::ZERO).ok(),
        None => None,
    };
    let found = memory.with(key.0, |slot| {
        let now = slot.now();
        let is_bumped = !flags.has(b'u');
        let found = if is_bumped { slot.touch() } else { slot.peek() };
        if let Some(item) = found {
            let told = look(item, now, (key, flags), &[(b'T', expires)]);
            let found = Found { item: item.clone(), told };
            if is_bumped {
                (item.is_hit, item.accessed) = (true, now);
            }
            return Some(found);
        }
        let (vivify, room) = (vivify?, room?);
        let mut item = Item {
            value: Value::new(Vec::new(), room).into(),
            flags: 0,
            expires: None,
            cas: flags.number(b'E').unwrap_or_else(|| memory.next_cas()),
            accessed: now,
            is_hit: false,
            is_stale: false,
            is_won: false,
            is_key_binary: flags.has(b'b'),
            is_owed: false,
        };
        let mut told = look(&mut item, now, (key, flags), &[(b'N', Some(vivify)), (b'T', expires)]);
        if !std::mem::replace(&mut item.is_won, true) {
            told.extend_from_slice(b" W");
        }
        item.is_hit = is_bumped;
        slot.put(item.clone());
        Some(Found { item, told })
    });
    session.shared.counters.note_lookup(found.is_some());
    Ok(found)
}

/// What the flags ask of an item, in their order; its time changes where a flag sets it.
fn look(
    item: &mut Item,
    now: Duration,
    (key, flags): (Key<'_>, &MetaFlags<'_>),
    times: &[(u8, Option<storing::Expires>)],
) -> Vec<u8> {
    let mut told = Vec::new();
    let mut is_late = false;
    for (letter, token) in flags.iter() {
        let flag = match letter {
            b'c' => format!(" c{}", item.cas).into_bytes(),
            b'f' => format!(" f{}", item.flags).into_bytes(),
            b'h' => format!(" h{}", u8::from(item.is_hit)).into_bytes(),
            b'l' => format!(" l{}", now.saturating_sub(item.accessed).as_secs()).into_bytes(),
            b's' => format!(" s{}", item.value.bytes().len()).into_bytes(),
            b't' => format!(" t{}", time_left(item, now)).into_bytes(),
            b'R' => {
                let left_s = time_left(item, now);
                is_late = left_s >= 0 && flags.time(b'R').is_some_and(|limit| left_s < limit);
                continue;
            }
            b'N' | b'T' => {
                if let Some((_, Some(expires))) = times.iter().find(|(it, _)| *it == letter) {
                    item.expires = expires.for_item();
                }
                continue;
            }
            _ => match reflected(letter, token, key) {
                Some(flag) => flag,
                None => continue,
            },
        };
        told.extend_from_slice(&flag);
    }
    let was_won = item.is_won;
    item.is_won |= item.is_stale || is_late;
    let marks = [(was_won, b" Z"), (item.is_stale, b" X"), (item.is_won && !was_won, b" W")];
    marks.iter().filter(|(is_set, _)| *is_set).for_each(|(_, mark)| told.extend_from_slice(*mark));
    told
}

/// `ms`.
pub fn set(
    session: &mut Session<'_>,
    key: Key<'_>,
    flags: &MetaFlags<'_>,
    length: u64,
) -> io::Result<()> {
    let change = Change {
        mode: flags.mode().unwrap_or(Mode::Set),
        cas: flags.number(b'C'),
        is_invalidating: flags.has(b'I'),
        new_cas: flags.number(b'E'),
        flags: flags.number(b'F').unwrap_or(0) as u32,
        expires: session.expires(flags.time(b'T').unwrap_or(0)),
        vivify: flags.time(b'N').map(|time| session.expires(time)),
        is_key_binary: flags.has(b'b'),
        is_owed: false,
    };
    let changed = match session.take(Coming { key: key.0, change, length })? {
        Came::Refused(refusal) => return session.say(&refusal, false),
        Came::Changed(changed) => changed,
    };
    let (code, made) = match changed {
        Changed::Made(cas, value) => ("HD", Some((cas, value.bytes().len()))),
        Changed::NotStored => ("NS", None),
        Changed::Exists => ("EX", None),
        Changed::NotFound => ("NF", None),
    };
    if made.is_some() && flags.has(b'q') {
        return Ok(());
    }
    let mut line = code.as_bytes().to_vec();
    for (letter, token) in flags.iter() {
        match letter {
            b'c' => line.extend(format!(" c{}", made.map_or(0, |(cas, _)| cas)).bytes()),
            b's' => line.extend(made.iter().flat_map(|(_, size)| format!(" s{size}").into_bytes())),
            _ => line.extend(reflected(letter, token, key).into_iter().flatten()),
        }
    }
    line.extend_from_slice(b"\r\n");
    session.channel.raw(&line)
}

/// What became of what `md` names.
enum Deleted {
    Done,
    Missing,
    Other,
}

fn delete(session: &mut Session<'_>, key: Key<'_>, flags: &MetaFlags<'_>) -> io::Result<()> {
    let (empties, invalidates) = (flags.has(b'x'), flags.has(b'I'));
    if is_of_blocks(key.0) {
        return delete_packet(session, key, flags);
    }
    let expires = flags.time(b'T').map(|time| session.expires(time));
    let memory = &session.shared.memory;
    let room = match empties {
        true => memory.take_room(0, Duration::ZERO).ok(),
        false => None,
    };
    if empties && room.is_none() {
        return session.say(NO_ROOM, false);
    }
    let deleted = memory.with(key.0, |slot| {
        let Some(item) = slot.peek() else { return Deleted::Missing };
        if flags.number(b'C').is_some_and(|cas| cas != item.cas) {
            return Deleted::Other;
        }
        if !(empties || invalidates) {
            slot.remove();
            return Deleted::Done;
        }
        let mut item = item.clone();
        item.cas = flags.number(b'E').unwrap_or_else(|| memory.next_cas());
        if let Some(room) = room {
            item.value = Value::new(Vec::new(), room).into();
            item.flags = 0;
        }
        if invalidates {
            (item.is_stale, item.is_won) = (true, false);
            if let Some(expires) = expires {
                item.expires = expires.for_item();
            }
        }
        slot.put(item);
        Deleted::Done
    });
    match deleted {
        Deleted::Other => answer(session, "EX", key, flags),
        Deleted::Done if flags.has(b'q') => Ok(()),
        Deleted::Done => answer(session, "HD", key, flags),
        Deleted::Missing => answer(session, "NF", key, flags),
    }
}

/// A packet is removed as a whole, whatever it is.
fn delete_packet(session: &mut Session<'_>, key: Key<'_>, flags: &MetaFlags<'_>) -> io::Result<()> {
    if flags.has(b'x') || flags.has(b'I') || flags.number(b'C').is_some() {
        return session.say(ONLY_SET, false);
    }
    match session.remove(key.0, flags.has(b'q'))? {
        Ok(true) if flags.has(b'q') => Ok(()),
        Ok(true) => answer(session, "HD", key, flags),
        Ok(false) => answer(session, "NF", key, flags),
        Err(reason) => session.say(&format!("SERVER_ERROR {reason}"), false),
    }
}

fn count(session: &mut Session<'_>, key: Key<'_>, flags: &MetaFlags<'_>) -> io::Result<()> {
    if PacketKey::parse(key.0).is_some() {
        return session.say(ONLY_SET, false);
    }
    let first = flags.number(b'J').unwrap_or(0);
    let Ok(arithmetic) = flags.arithmetic() else { return Ok(()) };
    let counting = Counting {
        arithmetic,
        delta: flags.number(b'D').unwrap_or(1),
        cas: flags.number(b'C'),
        new_cas: flags.number(b'E'),
        expires: flags.time(b'T').map(|time| session.expires(time)),
        vivify: flags.time(b'N').map(|time| (first, session.expires(time))),
        is_key_binary: flags.has(b'b'),
    };
    let memory = &session.shared.memory;
    let Ok(room) = memory.take_room(storing::NUMBER_BYTES_MAX, Duration::ZERO) else {
        return session.say(NO_ROOM, false);
    };
    let item = match storing::count(memory, key.0, &counting, room) {
        Counted::Is(_, item) => item,
        Counted::Exists => return answer(session, "EX", key, flags),
        Counted::NoNumber => return session.say(no_number(), false),
        Counted::NotFound => return answer(session, "NF", key, flags),
    };
    if flags.has(b'q') {
        return Ok(());
    }
    let now = memory.now();
    let mut told = Vec::new();
    for (letter, token) in flags.iter() {
        match letter {
            b'c' => told.extend(format!(" c{}", item.cas).bytes()),
            b't' => told.extend(format!(" t{}", time_left(&item, now)).bytes()),
            _ => told.extend(reflected(letter, token, key).into_iter().flatten()),
        }
    }
    if !flags.has(b'v') {
        return session.channel.raw(&[b"HD", &told[..], b"\r\n"].concat());
    }
    session.channel.text(&format!("VA {}", item.value.bytes().len()))?;
    session.channel.raw(&[&told[..], b"\r\n"].concat())?;
    session.channel.send(&item.value)
}

fn debug(session: &mut Session<'_>, key: Key<'_>) -> io::Result<()> {
    let memory = &session.shared.memory;
    let found = memory.with(key.0, |slot| {
        let now = slot.now();
        slot.peek().map(|item| facts(item, now))
    });
    match found {
        None => session.say("EN", false),
        Some(facts) => {
            let line = [b"ME ", key.1, b" ", facts.as_bytes(), b"\r\n"].concat();
            session.channel.raw(&line)
        }
    }
}
