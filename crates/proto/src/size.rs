//! Sizes as people write them: `8GiB`, `400MB`, `60%`. Bytes inside, always.
//!
//! Binary suffixes (`KiB`) are powers of 1,024, decimal ones (`KB`) powers of 1,000; the two are
//! never mixed silently.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 14] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

fn invalid(text: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "reading a size", format!("`{text}` {why}"))
        .remedy("write sizes like 8GiB, 400MB or 4096")
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let trimmed = text.trim();
        if trimmed.starts_with('-') {
            return Err(invalid(text, "is negative"));
        }
        let digits_end =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, suffix) = trimmed.split_at(digits_end);
        let suffix = suffix.trim();
        let factor = if suffix.is_empty() || suffix.eq_ignore_ascii_case("B") {
            1
        } else {
            UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(suffix))
                .map(|(_, factor)| *factor)
                .ok_or_else(|| invalid(text, "has an unknown unit"))?
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole
                .checked_mul(factor)
                .map(ByteSize)
                .ok_or_else(|| invalid(text, "does not fit 64 bits"));
        }
        let value: f64 = number.parse().map_err(|_| invalid(text, "is not a size"))?;
        let bytes = value * factor as f64;
        if !bytes.is_finite() || bytes >= u64::MAX as f64 {
            return Err(invalid(text, "does not fit 64 bits"));
        }
        Ok(ByteSize(bytes.round() as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BINARY: [(&str, u64); 5] = [
            ("PiB", 1 << 50),
            ("TiB", 1 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        for (name, factor) in BINARY {
            if self.0 >= factor {
                let value = self.0 as f64 / factor as f64;
                return if self.0.is_multiple_of(factor) {
                    f.pad(&format!("{}{name}", self.0 / factor))
                } else {
                    f.pad(&format!("{value:.2}{name}"))
                };
            }
        }
        f.pad(&format!("{}B", self.0))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer).map(ByteSize);
        }
        match Either::deserialize(deserializer)? {
            Either::Number(bytes) => Ok(ByteSize(bytes)),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A memory size: bytes, or a share of the memory that this node may use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum MemorySize {
    /// A number of bytes.
    Bytes(u64),
    /// Percent of the machine's memory, or of the memory control group's limit if that is lower.
    Percent(f64),
}

impl MemorySize {
    /// The size in bytes where `total_bytes` are what the node may use.
    pub fn resolve(self, total_bytes: u64) -> u64 {
        match self {
            MemorySize::Bytes(bytes) => bytes,
            MemorySize::Percent(percent) => (total_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

/// A limit of memory and what sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// What sets it, in words: `the machine's memory`, or the control group's path.
    pub source: String,
}

impl MemoryLimit {
    /// Capacity in bytes of a store that `size` is asked for: whole blocks of `block_bytes`. Errors
    /// call the operation `operation` and the size `asked`.
    ///
    /// # Errors
    /// `InvalidInput` for more than the limit, and for less than a block that is not 0.
    pub fn capacity_bytes(
        &self,
        size: MemorySize,
        block_bytes: u64,
        operation: &str,
        asked: &str,
    ) -> Result<u64, Error> {
        let refused = |detail| Error::new(ErrorKind::InvalidInput, operation, detail);
        let asked_bytes = size.resolve(self.bytes);
        if asked_bytes > self.bytes {
            let detail =
                format!("{asked} is more than {}, which is {}", self.source, ByteSize(self.bytes));
            return Err(refused(detail).remedy("ask for less, or for a share such as 60%"));
        }
        let bytes = asked_bytes / block_bytes * block_bytes;
        if bytes == 0 && asked_bytes > 0 {
            let detail = format!("{asked} is less than one block of {}", ByteSize(block_bytes));
            return Err(refused(detail).remedy("ask for at least one block, or for 0 for none"));
        }
        Ok(bytes)
    }
}

impl FromStr for MemorySize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some(number) = text.trim().strip_suffix('%') else {
            return text.parse::<ByteSize>().map(|size| MemorySize::Bytes(size.0));
        };
        match number.trim().parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(MemorySize::Percent(percent)),
            Ok(percent) if percent > 100.0 => Err(invalid(text, "is more than 100%")),
            _ => Err(invalid(text, "is not a percentage between 0% and 100%")),
        }
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemorySize::Bytes(bytes) => ByteSize(*bytes).fmt(f),
            MemorySize::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print() {
        let cases = [
            ("8GiB", 8 << 30),
            ("8G", 8 << 30),
            ("400MB", 400_000_000),
            ("4096", 4096),
            ("0", 0),
            ("1.5KiB", 1536),
            (" 2 mib ", 2 << 20),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse::<ByteSize>().unwrap(), ByteSize(bytes), "{text}");
        }
        assert_eq!(ByteSize(8 << 30).to_string(), "8GiB");
        assert_eq!(ByteSize(1536).to_string(), "1.50KiB");
        for text in
            ["", "GiB", "8XB", "-1", "1e400", "99999999999999999999", "18446744073709551615K"]
        {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn percentages_are_bounded() {
        assert_eq!("60%".parse::<MemorySize>().unwrap().resolve(1000), 600);
        for text in ["101%", "-1%", "%", "nan%", "-1", "-2GiB"] {
            assert!(text.parse::<MemorySize>().is_err(), "{text}");
        }
        let said = |text: &str| text.parse::<MemorySize>().unwrap_err().to_string();
        assert!(said("200%").contains("`200%` is more than 100%"), "{}", said("200%"));
        assert!(said("-1").contains("`-1` is negative"), "{}", said("-1"));
    }
}
