//! [`MetaFlags`]: the flags of a meta command, each a letter with what follows it.

use super::{Fault, number};

/// Most bytes of what a client wants told back.
const OPAQUE_BYTES_MAX: usize = 32;
/// Flags that every meta command takes: two of them are for proxies, and ignored.
const OF_ALL: &[u8] = b"kObqPL";

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags<'a>(Vec<(u8, &'a [u8])>);

/// What `ms` does with the item that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Puts another in its place.
    Set,
    /// Stores where there is none.
    Add,
    /// Adds bytes behind it.
    Append,
    /// Adds bytes before it.
    Prepend,
    /// Stores where there is one.
    Replace,
}

/// What `ma` does with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Adds; what is over 64 bits is lost.
    Increment,
    /// Takes away, not below 0.
    Decrement,
}

impl<'a> MetaFlags<'a> {
    /// Reads the words behind a key. `known` are letters that the command takes, those in
    /// `numbers` with a number.
    pub(super) fn parse(
        words: impl Iterator<Item = &'a [u8]>,
        known: &[u8],
        numbers: &[u8],
    ) -> Result<Self, Fault> {
        let mut flags: Vec<(u8, &[u8])> = Vec::new();
        for word in words {
            let Some((letter, token)) = word.split_first() else { continue };
            if !(known.contains(letter) || OF_ALL.contains(letter)) {
                return Err(Fault::Flag);
            }
            if flags.iter().any(|(other, _)| other == letter) {
                return Err(Fault::Duplicate);
            }
            if *letter == b'O' && token.len() > OPAQUE_BYTES_MAX {
                return Err(Fault::Opaque);
            }
            // Times may be negative.
            let is_number = number(token.strip_prefix(b"-").unwrap_or(token)).is_some();
            if numbers.contains(letter) && !is_number {
                return Err(Fault::Token);
            }
            flags.push((*letter, token));
        }
        Ok(MetaFlags(flags))
    }

    /// Whether a flag is there.
    pub fn has(&self, letter: u8) -> bool {
        self.get(letter).is_some()
    }

    /// What follows a flag.
    pub fn get(&self, letter: u8) -> Option<&'a [u8]> {
        self.0.iter().find(|(known, _)| *known == letter).map(|(_, token)| *token)
    }

    /// The number that follows a flag.
    pub fn number(&self, letter: u8) -> Option<u64> {
        number(self.get(letter)?)
    }

    /// The time that follows a flag, in seconds as memcached has them.
    pub fn time(&self, letter: u8) -> Option<i64> {
        super::signed(self.get(letter)?)
    }

    /// All flags, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &'a [u8])> + '_ {
        self.0.iter().copied()
    }

    /// How `ms` stores.
    pub fn mode(&self) -> Result<Mode, Fault> {
        Ok(match self.get(b'M') {
            None | Some(b"S" | b"s") => Mode::Set,
            Some(b"E" | b"e") => Mode::Add,
            Some(b"A" | b"a") => Mode::Append,
            Some(b"P" | b"p") => Mode::Prepend,
            Some(b"R" | b"r") => Mode::Replace,
            Some(_) => return Err(Fault::Mode),
        })
    }

    /// How `ma` counts.
    pub fn arithmetic(&self) -> Result<Arithmetic, Fault> {
        Ok(match self.get(b'M') {
            None | Some(b"I" | b"i" | b"+") => Arithmetic::Increment,
            Some(b"D" | b"d" | b"-") => Arithmetic::Decrement,
            Some(_) => return Err(Fault::Mode),
        })
    }
}
