//! [`Command`]: one line of a client.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::meta::{Arithmetic, MetaFlags, Mode};
use super::{Fault, Malformed, number, signed};
use crate::key::{KEY_BYTES_MAX, is_of_blocks};

/// Letters that commands take, and of these the ones with a number.
const GET_FLAGS: (&[u8], &[u8]) = (b"cCfhlstuvENRT", b"CENRT");
const SET_FLAGS: (&[u8], &[u8]) = (b"cCEFIsTMN", b"CEFTN");
const DELETE_FLAGS: (&[u8], &[u8]) = (b"CEITx", b"CET");
const ARITHMETIC_FLAGS: (&[u8], &[u8]) = (b"CENJDTMtcv", b"CENJDT");

/// No value has as many bytes: memcached has them in 31 bits, with the two of its end.
const VALUE_BYTES_END: u64 = i32::MAX as u64 - 1;

/// How a classic command stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// As its name says.
    Of(Mode),
    /// Only in the place of the item with this number.
    Cas(u64),
}

/// A classic command that brings a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// How.
    pub verb: Verb,
    /// Its key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// When it expires, in seconds as memcached has them.
    pub expires: i64,
    /// Bytes of the value.
    pub length: u64,
    /// It is not answered.
    pub is_quiet: bool,
}

/// What a client asks for. Values follow those that store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`: several items, with their numbers or not, whose time is set.
    Get {
        /// Their keys.
        keys: Vec<&'a [u8]>,
        /// Tells their numbers.
        with_cas: bool,
        /// New time.
        expires: Option<i64>,
    },
    /// `set` and its likes.
    Store(Store<'a>),
    /// `delete`.
    Delete {
        /// Which.
        key: &'a [u8],
        /// It is not answered.
        is_quiet: bool,
    },
    /// `incr`, `decr`.
    Count {
        /// Which.
        key: &'a [u8],
        /// Up or down.
        arithmetic: Arithmetic,
        /// How far.
        delta: u64,
        /// It is not answered.
        is_quiet: bool,
    },
    /// `touch`: sets a time.
    Touch {
        /// Which.
        key: &'a [u8],
        /// New time.
        expires: i64,
        /// It is not answered.
        is_quiet: bool,
    },
    /// `flush_all`, after some seconds.
    Flush {
        /// Seconds.
        delay: i64,
        /// It is not answered.
        is_quiet: bool,
    },
    /// `stats`, of something.
    Stats(&'a [u8]),
    /// `lru_crawler metadump`: all keys.
    Dump,
    /// `version`.
    Version,
    /// `verbosity`, which changes nothing.
    Verbosity {
        /// It is not answered.
        is_quiet: bool,
    },
    /// `quit`.
    Quit,
    /// `mn`.
    MetaNothing,
    /// `mg`, `md`, `ma` and `me`, by this letter behind the `m`.
    Meta {
        /// Which.
        letter: u8,
        /// Its key, decoded.
        key: Cow<'a, [u8]>,
        /// As it came.
        key_word: &'a [u8],
        /// Its flags.
        flags: MetaFlags<'a>,
    },
    /// `ms`.
    MetaSet {
        /// Its key, decoded.
        key: Cow<'a, [u8]>,
        /// As it came.
        key_word: &'a [u8],
        /// Its flags.
        flags: MetaFlags<'a>,
        /// Bytes of the value.
        length: u64,
    },
    /// `settle NAME PACKETS` of ours: the PFS has the block, or nobody needs it.
    Settle {
        /// The name of the block.
        name: &'a [u8],
        /// How many packets it has at most.
        packets: u64,
    },
    /// `forget EPOCH` of ours: nobody needs a block of this time in memory, but for the last one.
    Forget(&'a [u8]),
    /// `hello NAME` of ours: what the client calls this connection.
    Hello(&'a [u8]),
    /// `fence NAME` of ours: the client gave that connection up.
    Fence(&'a [u8]),
}

impl Command<'_> {
    /// Whether it tells, changes or names blocks; values are looked at when they come.
    pub fn is_about_blocks(&self) -> bool {
        match self {
            Command::Get { keys, .. } => keys.iter().any(|key| is_of_blocks(key)),
            Command::Delete { key, .. }
            | Command::Count { key, .. }
            | Command::Touch { key, .. } => is_of_blocks(key),
            Command::Meta { key, .. } => is_of_blocks(key),
            Command::Settle { .. } | Command::Forget(_) | Command::Fence(_) | Command::Dump => true,
            _ => false,
        }
    }
}

/// Reads a line, without its end.
///
/// # Errors
/// It is none, or what it says is wrong; how much of what follows belongs to it.
pub fn parse(line: &[u8]) -> Result<Command<'_>, Malformed> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|it| !it.is_empty()).collect();
    let Some((name, rest)) = words.split_first() else { return Err(Fault::Unknown.into()) };
    match (*name, rest.len()) {
        (b"get" | b"gets", 1..) => get(rest, *name == b"gets", None),
        (b"gat" | b"gats", 2..) => {
            let expires = signed(rest[0]).ok_or(Fault::Time)?;
            get(&rest[1..], *name == b"gats", Some(expires))
        }
        (b"set" | b"add" | b"replace" | b"append" | b"prepend", 4..) => store(name, rest),
        (b"cas", 4..) => cas(rest),
        (b"delete", 1..) => {
            let (rest, is_quiet) = quiet(rest);
            match rest {
                [key] | [key, b"0"] => Ok(Command::Delete { key: checked(key)?, is_quiet }),
                _ => Err(Fault::Delete.into()),
            }
        }
        (b"incr" | b"decr", 2..) => {
            let (rest, is_quiet) = quiet(rest);
            let [key, delta] = rest else { return Err(Fault::Line.into()) };
            let delta = number(delta).ok_or(Fault::Delta)?;
            let arithmetic = match *name {
                b"incr" => Arithmetic::Increment,
                _ => Arithmetic::Decrement,
            };
            Ok(Command::Count { key: checked(key)?, arithmetic, delta, is_quiet })
        }
        (b"touch", 2..) => {
            let (rest, is_quiet) = quiet(rest);
            let [key, expires] = rest else { return Err(Fault::Line.into()) };
            let expires = signed(expires).ok_or(Fault::Time)?;
            Ok(Command::Touch { key: checked(key)?, expires, is_quiet })
        }
        (b"mg" | b"md" | b"ma" | b"me", 1..) => meta(name[1], rest),
        (b"ms", 1..) => meta_set(rest),
        (b"mn", _) => Ok(Command::MetaNothing),
        _ => manage(name, rest),
    }
}

/// Commands that are about the server.
fn manage<'a>(name: &[u8], rest: &[&'a [u8]]) -> Result<Command<'a>, Malformed> {
    let (rest, is_quiet) = quiet(rest);
    Ok(match (name, rest) {
        (b"version", []) => Command::Version,
        (b"quit", []) => Command::Quit,
        (b"verbosity", [level, ..]) if number(level).is_none() => return Err(Fault::Line.into()),
        (b"verbosity", [_, ..]) => Command::Verbosity { is_quiet },
        (b"stats", []) => Command::Stats(b""),
        (b"stats", [about, ..]) => Command::Stats(about),
        (b"flush_all", []) => Command::Flush { delay: 0, is_quiet },
        (b"flush_all", [delay]) => {
            Command::Flush { delay: signed(delay).ok_or(Fault::Time)?, is_quiet }
        }
        (b"lru_crawler", [b"metadump", b"all" | b"hash"]) => Command::Dump,
        (b"settle", [name, packets]) => {
            Command::Settle { name, packets: number(packets).ok_or(Fault::Line)? }
        }
        (b"forget", [epoch]) => Command::Forget(epoch),
        (b"hello", [name]) => Command::Hello(checked(name)?),
        (b"fence", [name]) => Command::Fence(checked(name)?),
        // A browser that was led here: what follows is no command either.
        (_, [.., last]) if last.starts_with(b"HTTP/") => Command::Quit,
        _ => return Err(Fault::Unknown.into()),
    })
}

fn checked(key: &[u8]) -> Result<&[u8], Fault> {
    if key.len() > KEY_BYTES_MAX { Err(Fault::Line) } else { Ok(key) }
}

/// Takes the word `noreply` off.
fn quiet<'w, 'a>(words: &'w [&'a [u8]]) -> (&'w [&'a [u8]], bool) {
    match words {
        [rest @ .., b"noreply"] => (rest, true),
        _ => (words, false),
    }
}

fn get<'a>(
    keys: &[&'a [u8]],
    with_cas: bool,
    expires: Option<i64>,
) -> Result<Command<'a>, Malformed> {
    keys.iter().try_for_each(|key| checked(key).map(drop))?;
    Ok(Command::Get { keys: keys.to_vec(), with_cas, expires })
}

/// A line that is wrong, with the value that its client sends all the same.
fn with_value(fault: Fault, length: Option<u64>) -> Malformed {
    Malformed { fault, skipped_bytes: length.map_or(0, |length| length.saturating_add(2)) }
}

fn store<'a>(name: &[u8], words: &[&'a [u8]]) -> Result<Command<'a>, Malformed> {
    let (words, is_quiet) = quiet(words);
    let mode = match name {
        b"add" => Mode::Add,
        b"replace" => Mode::Replace,
        b"append" => Mode::Append,
        b"prepend" => Mode::Prepend,
        _ => Mode::Set,
    };
    let [key, flags, expires, length] = words else { return Err(Fault::Line.into()) };
    values(Verb::Of(mode), (key, flags, expires, length), is_quiet)
}

fn cas<'a>(words: &[&'a [u8]]) -> Result<Command<'a>, Malformed> {
    let (words, is_quiet) = quiet(words);
    match words {
        [key, flags, expires, length, unique] => {
            let unique = number(unique).ok_or_else(|| with_value(Fault::Line, number(length)))?;
            values(Verb::Cas(unique), (key, flags, expires, length), is_quiet)
        }
        // Without a number it is no command, and neither is the line behind it.
        [_, _, _, _] => Err(Fault::Unknown.into()),
        _ => Err(Fault::Line.into()),
    }
}

type Words<'w, 'a> = (&'w &'a [u8], &'w &'a [u8], &'w &'a [u8], &'w &'a [u8]);

fn values<'a>(
    verb: Verb,
    (key, flags, expires, length): Words<'_, 'a>,
    is_quiet: bool,
) -> Result<Command<'a>, Malformed> {
    // What no server takes is not waited for either.
    let length = number(length).filter(|length| *length < VALUE_BYTES_END);
    let wrong = || with_value(Fault::Line, length);
    let flags = number(flags).and_then(|flags| u32::try_from(flags).ok()).ok_or_else(wrong)?;
    let expires = signed(expires).ok_or_else(wrong)?;
    let key = checked(key).map_err(|_| wrong())?;
    let length = length.ok_or(Fault::Line)?;
    Ok(Command::Store(Store { verb, key, flags, expires, length, is_quiet }))
}

fn decoded<'a>(word: &'a [u8], flags: &MetaFlags<'_>) -> Result<Cow<'a, [u8]>, Fault> {
    let word = checked(word)?;
    match flags.has(b'b') {
        true => Ok(STANDARD.decode(word).map_err(|_| Fault::Base64)?.into()),
        false => Ok(word.into()),
    }
}

fn meta<'a>(letter: u8, words: &[&'a [u8]]) -> Result<Command<'a>, Malformed> {
    let (key_word, rest) = (words[0], words[1..].iter().copied());
    let (known, numbers) = match letter {
        b'g' => GET_FLAGS,
        b'd' => DELETE_FLAGS,
        b'a' => ARITHMETIC_FLAGS,
        _ => (&b""[..], &b""[..]),
    };
    let flags = MetaFlags::parse(rest, known, numbers)?;
    if letter == b'a' {
        flags.arithmetic()?;
    }
    Ok(Command::Meta { letter, key: decoded(key_word, &flags)?, key_word, flags })
}

fn meta_set<'a>(words: &[&'a [u8]]) -> Result<Command<'a>, Malformed> {
    let [key_word, length, rest @ ..] = words else { return Err(Fault::Line.into()) };
    let length = number(length).ok_or(Fault::Line)?;
    let wrong = |fault| with_value(fault, Some(length));
    let flags = MetaFlags::parse(rest.iter().copied(), SET_FLAGS.0, SET_FLAGS.1).map_err(wrong)?;
    flags.mode().map_err(wrong)?;
    if flags.number(b'F').is_some_and(|flags| flags > u32::MAX.into()) {
        return Err(wrong(Fault::Token));
    }
    let key = decoded(key_word, &flags).map_err(wrong)?;
    Ok(Command::MetaSet { key, key_word, flags, length })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(line: &str) -> (String, u64) {
        let Malformed { fault, skipped_bytes } = parse(line.as_bytes()).unwrap_err();
        (fault.to_string(), skipped_bytes)
    }

    #[test]
    fn what_is_wrong_is_named_and_its_value_skipped() {
        let line = "CLIENT_ERROR bad command line format".to_owned();
        for wrong in ["set k x 0 5", "set k 0 x 5", "cas k 0 0 5 x", "set k -1 0 5"] {
            assert_eq!(fault(wrong), (line.clone(), 7), "{wrong}");
        }
        for wrong in [
            "set k 0 0 x",
            "set k 0 0 -1",
            "set k 0 0 2147483647",
            "set k 0 0 4294967295",
            "ms k",
            "ms k x",
            "verbosity x",
        ] {
            assert_eq!(fault(wrong), (line.clone(), 0), "{wrong}");
        }
        for wrong in
            ["", "   ", "bogus", "get", "set k", "cas k 0 0 5", "incr k", "mg", "flush", "shutdown"]
        {
            assert_eq!(fault(wrong), ("ERROR".into(), 0), "{wrong}");
        }
        let long = "k".repeat(KEY_BYTES_MAX + 1);
        assert_eq!(fault(&format!("set {long} 0 0 5")), (line.clone(), 7));
        assert_eq!(fault(&format!("get a {long}")), (line.clone(), 0));
        assert_eq!(fault("ms k 5 MZ").1, 7);
        assert_eq!(fault("ms k 5 F4294967296").1, 7);
        assert_eq!(fault("mg k m").0, "CLIENT_ERROR invalid flag");
        assert_eq!(fault("mg k v v").0, "CLIENT_ERROR duplicate flag");
        assert_eq!(fault("mg k Tx").0, "CLIENT_ERROR bad token in command line format");
        assert_eq!(fault("mg *** b").0, "CLIENT_ERROR error decoding key");
        let usage = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
        assert_eq!(fault("delete a 1").0, usage);
        assert_eq!(fault("flush_all x").0, "CLIENT_ERROR invalid exptime argument");
        assert_eq!(fault("incr k x").0, "CLIENT_ERROR invalid numeric delta argument");
    }

    #[test]
    fn a_browser_is_hung_up_on() {
        for line in ["GET / HTTP/1.0", "PUT /a HTTP/1.1", "DELETE HTTP/1.1"] {
            assert_eq!(parse(line.as_bytes()), Ok(Command::Quit), "{line}");
        }
        assert_eq!(fault("GET / HTTQ").0, "ERROR");
    }

    #[test]
    fn commands_are_read() {
        let stored = parse(b"cas key 7 -1 10 99 noreply").unwrap();
        let expected = Store {
            verb: Verb::Cas(99),
            key: b"key",
            flags: 7,
            expires: -1,
            length: 10,
            is_quiet: true,
        };
        assert_eq!(stored, Command::Store(expected));
        let keys = vec![&b"a"[..], b"b"];
        let several = Command::Get { keys, with_cas: true, expires: Some(5) };
        assert_eq!(parse(b"gats 5 a  b ").unwrap(), several);
        let Command::MetaSet { key, key_word, flags, length } =
            parse(b"ms Zm9v 3 b T30 MA").unwrap()
        else {
            panic!("another command")
        };
        assert_eq!((&*key, key_word, length), (&b"foo"[..], &b"Zm9v"[..], 3));
        assert_eq!((flags.time(b'T'), flags.mode()), (Some(30), Ok(Mode::Append)));
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&line);
        }

        #[test]
        fn nor_do_words(
            command in "get|set|cas|ms|mg|ma|md|me|gat|incr|touch|delete",
            words in "( [a-zA-Z0-9=+-]{0,9}){0,8}",
        ) {
            let line = command + &words;
            let _ = parse(line.as_bytes());
        }
    }
}
