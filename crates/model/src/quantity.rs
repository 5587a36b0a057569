//! Quantities with units: bytes, bytes per second, seconds, shares, node counts. Only valid values
//! exist: finite, never negative, rates above zero. Decimal and binary units are told apart by
//! their names and never guessed: `MB` is 10^6, `MiB` is 2^20, and a bare `M` is refused.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::{Add, Div, Mul};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidepool_proto::{Error, ErrorKind, Result};

/// An amount of data in bytes; finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Bytes(f64);

/// A throughput in bytes per second; finite and above zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct BytesPerSecond(f64);

/// A time in seconds; finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(f64);

/// A part of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Share(f64);

/// A number of nodes, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeCount(NonZeroU32);

/// Names of units and their factors. Longer names come first where one ends another.
const UNITS: [(&str, f64); 16] = [
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("PiB", 1_125_899_906_842_624.0),
    ("kbit", 125.0),
    ("Mbit", 125_000.0),
    ("Gbit", 125_000_000.0),
    ("Tbit", 125_000_000_000.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("PB", 1e15),
    ("B", 1.0),
];

fn refuse(what: &str, text: &str, why: &str, example: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("reading {what}"), format!("`{text}` {why}"))
        .remedy(format!("write it like {example}"))
}

/// Splits `12.5GB` into the number and the factor of its unit.
fn amount(what: &str, text: &str, bare: &str, example: &str) -> Result<f64> {
    let trimmed = bare.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let number: f64 = number.parse().map_err(|_| refuse(what, text, "is no number", example))?;
    let unit = unit.trim();
    if unit.is_empty() {
        return Err(refuse(what, text, "has no unit", example));
    }
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let factor = factor.ok_or_else(|| refuse(what, text, "has an unknown unit", example))?;
    Ok(number * factor)
}

/// `value` with three or more significant figures and the largest fitting decimal unit.
fn decimal(value: f64, suffix: &str) -> String {
    const STEPS: [(f64, &str); 5] =
        [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let (factor, unit) =
        STEPS.into_iter().find(|(factor, _)| value >= *factor).unwrap_or((1.0, "B"));
    let value = value / factor;
    let digits = if value >= 100.0 { 0 } else { usize::from(value < 10.0) + 1 };
    format!("{value:.digits$} {unit}{suffix}")
}

impl Bytes {
    const EXAMPLE: &'static str = "8GiB or 400MB";

    /// `value` bytes.
    pub fn new(value: f64) -> Result<Self> {
        if value.is_finite() && value >= 0.0 {
            return Ok(Bytes(value));
        }
        Err(refuse("a size", &value.to_string(), "is not a size in bytes", Self::EXAMPLE))
    }

    /// A whole number of bytes.
    pub fn whole(value: u64) -> Self {
        Bytes(value as f64)
    }

    /// The number of bytes.
    pub fn get(self) -> f64 {
        self.0
    }

    /// What is left of `self` without `other`, zero where nothing is.
    #[must_use]
    pub fn less(self, other: Bytes) -> Bytes {
        Bytes((self.0 - other.0).max(0.0))
    }

    /// `self` as a share of `whole`, at most 1; 1 of nothing.
    pub fn share_of(self, whole: Bytes) -> Share {
        if whole.0 <= self.0 { Share(1.0) } else { Share(self.0 / whole.0) }
    }
}

impl BytesPerSecond {
    const EXAMPLE: &'static str = "1170MB/s, 1.2GiB/s or 10Gbit/s";

    /// `value` bytes per second; refuses zero and less.
    pub fn new(value: f64) -> Result<Self> {
        if value.is_finite() && value > 0.0 {
            return Ok(BytesPerSecond(value));
        }
        Err(refuse("a rate", &value.to_string(), "is not a rate above zero", Self::EXAMPLE))
    }

    /// `value` times 10^6 bytes per second.
    pub fn megabytes(value: f64) -> Result<Self> {
        Self::new(value * 1e6)
    }

    /// Bytes per second.
    pub fn get(self) -> f64 {
        self.0
    }

    /// `1 / factor` of the rate; the factor counts sharers and is at least 1.
    #[must_use]
    pub fn shared_by(self, factor: f64) -> Self {
        debug_assert!(factor >= 1.0, "a rate is shared by one or more");
        BytesPerSecond(self.0 / factor.max(1.0))
    }

    /// The rate of `count` such resources together; the count is above zero.
    #[must_use]
    pub fn times(self, count: f64) -> Self {
        debug_assert!(count.is_finite() && count > 0.0, "a number of resources");
        BytesPerSecond(self.0 * count)
    }

    /// The lower of two rates.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        if other.0 < self.0 { other } else { self }
    }
}

impl Seconds {
    /// `value` seconds.
    pub fn new(value: f64) -> Result<Self> {
        if value.is_finite() && value >= 0.0 {
            return Ok(Seconds(value));
        }
        Err(refuse("a time", &value.to_string(), "is not a time in seconds", "1.5"))
    }

    /// The number of seconds.
    pub fn get(self) -> f64 {
        self.0
    }

    /// The longer of two times.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if other.0 > self.0 { other } else { self }
    }
}

impl Share {
    /// Nothing.
    pub const NONE: Share = Share(0.0);
    /// All.
    pub const ALL: Share = Share(1.0);

    /// `value` from 0 to 1.
    pub fn new(value: f64) -> Result<Self> {
        if (0.0..=1.0).contains(&value) {
            return Ok(Share(value));
        }
        Err(refuse("a share", &value.to_string(), "is not between 0 and 1", "0.5"))
    }

    /// `value`, moved into 0 to 1 where rounding left it outside.
    pub(crate) fn clamped(value: f64) -> Self {
        Share(if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) })
    }

    /// From 0 to 1.
    pub fn get(self) -> f64 {
        self.0
    }

    /// What is left to the whole.
    #[must_use]
    pub fn rest(self) -> Self {
        Share(1.0 - self.0)
    }
}

impl NodeCount {
    /// One node.
    pub const ONE: NodeCount = NodeCount(NonZeroU32::MIN);

    /// `count` nodes; refuses none.
    pub fn new(count: u32) -> Result<Self> {
        let refused = || refuse("a number of nodes", "0", "is not at least 1", "16");
        NonZeroU32::new(count).map(NodeCount).ok_or_else(refused)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// The number, for arithmetic.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0.get())
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;

    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.0 / rate.0)
    }
}

impl Mul<Share> for Bytes {
    type Output = Bytes;

    fn mul(self, share: Share) -> Bytes {
        Bytes(self.0 * share.0)
    }
}

impl Mul<f64> for Bytes {
    type Output = Bytes;

    /// A factor is a count or a ratio; a negative or undefined one counts as none.
    fn mul(self, factor: f64) -> Bytes {
        Bytes(self.0 * factor.max(0.0))
    }
}

impl Mul<f64> for Seconds {
    type Output = Seconds;

    /// A factor is a count or a ratio; a negative or undefined one counts as none.
    fn mul(self, factor: f64) -> Seconds {
        Seconds(self.0 * factor.max(0.0))
    }
}

impl Add for Bytes {
    type Output = Bytes;

    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl Add for Seconds {
    type Output = Seconds;

    fn add(self, other: Seconds) -> Seconds {
        Seconds(self.0 + other.0)
    }
}

impl std::iter::Sum for Seconds {
    fn sum<I: Iterator<Item = Seconds>>(times: I) -> Seconds {
        times.fold(Seconds(0.0), Add::add)
    }
}

impl FromStr for Bytes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let value = amount("a size", text, text, Self::EXAMPLE)?;
        if text.contains("bit") {
            return Err(refuse("a size", text, "counts bits", Self::EXAMPLE));
        }
        Bytes::new(value)
    }
}

impl FromStr for BytesPerSecond {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bare = text.trim().strip_suffix("/s");
        let bare =
            bare.ok_or_else(|| refuse("a rate", text, "is not per second", Self::EXAMPLE))?;
        BytesPerSecond::new(amount("a rate", text, bare, Self::EXAMPLE)?)
    }
}

impl FromStr for Share {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || refuse("a share", text, "is not between 0 and 1", "0.5");
        Share::new(text.trim().parse().map_err(|_| refused())?).map_err(|_| refused())
    }
}

impl FromStr for NodeCount {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || refuse("a number of nodes", text, "is not a whole number from 1", "16");
        NodeCount::new(text.trim().parse().map_err(|_| refused())?).map_err(|_| refused())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal(self.0, ""))
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal(self.0, "/s"))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            time if time >= 1000.0 => format!("{time:.0} s"),
            time if time >= 10.0 => format!("{time:.1} s"),
            time if time >= 0.1 || time == 0.0 => format!("{time:.2} s"),
            time if time >= 1e-4 => format!("{:.2} ms", time * 1e3),
            time => format!("{:.2} µs", time * 1e6),
        };
        f.pad(&text)
    }
}

impl fmt::Display for NodeCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Serialises as the plain number, and reads a checked number or, where given, text with a unit.
macro_rules! serialised {
    ($type:ident, $number:ty, $make:expr, $get:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $get(*self).serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(untagged)]
                enum Either {
                    Number($number),
                    Text(String),
                }
                let value = match Either::deserialize(deserializer)? {
                    Either::Number(number) => $make(number),
                    Either::Text(text) => text.parse(),
                };
                value.map_err(serde::de::Error::custom)
            }
        }
    };
}

serialised!(Bytes, f64, Bytes::new, Bytes::get);
serialised!(BytesPerSecond, f64, BytesPerSecond::new, BytesPerSecond::get);
serialised!(Share, f64, Share::new, Share::get);
serialised!(NodeCount, u32, NodeCount::new, NodeCount::get);

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Seconds::new(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_units_differ_and_ambiguous_ones_are_refused() {
        let rate = |text: &str| text.parse::<BytesPerSecond>().map(BytesPerSecond::get);
        assert_eq!(rate("1170MB/s").unwrap(), 1.17e9);
        assert_eq!(rate("1.5 GiB/s").unwrap(), 1.5 * 1_073_741_824.0);
        assert_eq!(rate("10Gbit/s").unwrap(), 1.25e9);
        for text in [
            "1170",
            "1170MB",
            "10G/s",
            "10M/s",
            "0MB/s",
            "-1MB/s",
            "xMB/s",
            "1e3MB/s",
            "10furlong/s",
            "",
            "/s",
            "1170mb/s",
            "MB/s",
            "1..2MB/s",
        ] {
            let error = rate(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(error.remedy_text().is_some(), "{text}");
        }
        assert_eq!("8GiB".parse::<Bytes>().unwrap(), Bytes::whole(8 << 30));
        for text in ["8", "8G", "8Gbit", "-8GB", "8GB/s"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn values_outside_their_range_do_not_exist() {
        for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Share::new(value).is_err(), "{value}");
        }
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(BytesPerSecond::new(value).is_err(), "{value}");
        }
        assert!(Bytes::new(f64::NAN).is_err() && Seconds::new(-1.0).is_err());
        assert!(NodeCount::new(0).is_err() && "0".parse::<NodeCount>().is_err());
        assert!("1.5".parse::<NodeCount>().is_err() && "1.5".parse::<Share>().is_err());
    }

    #[test]
    fn files_may_write_text_or_numbers() {
        #[derive(Deserialize)]
        struct Pair {
            rate: BytesPerSecond,
            size: Bytes,
        }
        let pair: Pair = toml::from_str("rate = \"10GB/s\"\nsize = 5").unwrap();
        assert_eq!((pair.rate.get(), pair.size.get()), (1e10, 5.0));
        assert!(toml::from_str::<Pair>("rate = \"10G\"\nsize = 5").is_err());
        assert!(toml::from_str::<Pair>("rate = 0.0\nsize = 5").is_err());
    }

    #[test]
    fn quantities_read_well() {
        assert_eq!(BytesPerSecond(1.17e9).to_string(), "1.17 GB/s");
        assert_eq!(BytesPerSecond(6.267e9).to_string(), "6.27 GB/s");
        assert_eq!(BytesPerSecond(50e9).to_string(), "50.0 GB/s");
        assert_eq!(BytesPerSecond(237e6).to_string(), "237 MB/s");
        assert_eq!(Bytes(512.0).to_string(), "512 B");
        assert_eq!(Seconds(0.002).to_string(), "2.00 ms");
        assert_eq!(Seconds(12.34).to_string(), "12.3 s");
    }
}
