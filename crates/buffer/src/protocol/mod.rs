//! memcached's text and meta protocols (its `doc/protocol.txt`, as of 1.6.18): commands as a server
//! reads them.

mod command;
mod meta;

use std::fmt;

pub use self::command::{Command, Store, Verb, parse};
pub use self::meta::{Arithmetic, MetaFlags, Mode};

/// Why a line is no command, or asks for what is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no such command.
    Unknown,
    /// It has other words than the command takes.
    Line,
    /// A number of a flag is none.
    Token,
    /// A flag that the command does not have.
    Flag,
    /// A flag comes twice.
    Duplicate,
    /// What is to be told back is longer than 32 bytes.
    Opaque,
    /// A mode that the command does not have.
    Mode,
    /// A key that is no base64.
    Base64,
    /// What is to be added is no number.
    Delta,
    /// A time that is none.
    Time,
    /// `delete` with more than a key.
    Delete,
}

/// A line that is not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// What is wrong.
    pub fault: Fault,
    /// Bytes of a value that follow it, with their end of line, and are to be skipped.
    pub skipped_bytes: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Unknown => "ERROR",
            Fault::Line => "CLIENT_ERROR bad command line format",
            Fault::Token => "CLIENT_ERROR bad token in command line format",
            Fault::Flag => "CLIENT_ERROR invalid flag",
            Fault::Duplicate => "CLIENT_ERROR duplicate flag",
            Fault::Opaque => "CLIENT_ERROR opaque token too long",
            Fault::Mode => "CLIENT_ERROR invalid mode",
            Fault::Base64 => "CLIENT_ERROR error decoding key",
            Fault::Delta => "CLIENT_ERROR invalid numeric delta argument",
            Fault::Time => "CLIENT_ERROR invalid exptime argument",
            Fault::Delete => "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]",
        })
    }
}

impl From<Fault> for Malformed {
    fn from(fault: Fault) -> Self {
        Malformed { fault, skipped_bytes: 0 }
    }
}

/// A decimal number of up to 64 bits.
fn number(word: &[u8]) -> Option<u64> {
    let is_plain = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    is_plain.then(|| std::str::from_utf8(word).ok()?.parse().ok()).flatten()
}

/// The same with a sign.
fn signed(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
