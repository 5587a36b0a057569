//! The six modes, three ways to write and three ways to read, and the schemes of the burst
//! buffer.
//!
//! Sources: modes (a) to (f) of the two-level storage paper, section 3.2; schemes of the paper on
//! the burst buffer, section III.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Where written bytes go, and what `close` promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// Mode (a): the store only; the PFS holds a stub. Lost with the node.
    Memory,
    /// Scheme ALW of the burst buffer: as `Memory`, and a sync or close returns when another node's
    /// burst buffer has it on its disk; the PFS gets it soon after.
    Alw,
    /// Scheme ADW: as `Through`, and burst buffers get copies of what was written, for readers on
    /// other nodes.
    Adw,
    /// Scheme BLD: the same, and no more than a part of this node's memory is filled by it.
    Bld,
    /// Mode (b): straight to the PFS, nothing kept.
    Bypass,
    /// Mode (c): PFS and store together; `close` returns when the PFS has it, synced.
    #[default]
    Through,
}

impl WriteMode {
    /// Whether files that begin in this mode are in memory, and the PFS has a stub of them.
    pub fn is_in_memory(self) -> bool {
        matches!(self, WriteMode::Memory | WriteMode::Alw)
    }
}

/// Where read bytes may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadMode {
    /// Mode (d): resident bytes only, otherwise an error.
    Memory,
    /// Mode (e): straight from the PFS, nothing kept.
    Bypass,
    /// Mode (f): the nearest copy first; kept by policy.
    #[default]
    TwoLevel,
}

/// What a front end knows of how an open will be used, beyond its modes: hints that change no byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// How far the node may read ahead of this open by itself, in bytes, though no farther than it
    /// does for others; `None` is as for others.
    pub read_ahead_bytes_max: Option<u64>,
    /// Whether what this open reads and writes is worth keeping; what is kept already stays.
    pub keep: bool,
}

impl Default for Advice {
    fn default() -> Self {
        Advice { read_ahead_bytes_max: None, keep: true }
    }
}

/// What an open may do with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes.
    ReadWrite,
}

impl Access {
    /// Whether writes are allowed.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }

    /// Whether reads are allowed.
    pub fn reads(self) -> bool {
        matches!(self, Access::Read | Access::ReadWrite)
    }
}

macro_rules! named {
    ($type:ty, $what:literal, $($name:literal => $value:expr),+) => {
        impl $type {
            /// All values, in the order of the documentation.
            pub const ALL: &'static [$type] = &[$($value),+];

            /// The stable name used in options, JSON and metrics.
            pub fn name(self) -> &'static str {
                match self { $(value if value == $value => $name,)+ _ => unreachable!() }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                match text {
                    $($name => Ok($value),)+
                    other => Err(Error::new(
                        ErrorKind::InvalidInput,
                        concat!("reading a ", $what),
                        format!("`{other}` is none of: {}", [$($name),+].join(", ")),
                    )),
                }
            }
        }
    };
}

named!(WriteMode, "write mode",
    "memory" => WriteMode::Memory, "alw" => WriteMode::Alw, "adw" => WriteMode::Adw,
    "bld" => WriteMode::Bld, "bypass" => WriteMode::Bypass, "through" => WriteMode::Through);
named!(ReadMode, "read mode",
    "memory" => ReadMode::Memory, "bypass" => ReadMode::Bypass, "two-level" => ReadMode::TwoLevel);
