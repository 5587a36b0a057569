//! Rules of the fault store and their text form. A rule names operations, an effect and a trigger:
//!
//! `read:errno=EIO@3;write:enospc-after=8MiB;io:rate=400MB/s;sync:slow=5ms;lose-unsynced;seed=7`
//!
//! Triggers: none (always), `@3` (the third matching call), `@3+` (from the third on), `@5%`
//! (each call with that probability, from the seed). Nothing here acts; it only decides.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidepool_proto::{ByteSize, Error, ErrorKind, Result};

use super::rate::RateLimiter;

/// An operation that a rule can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Taking over a descriptor.
    Open,
    /// Asking for the version.
    Version,
    /// Reading, by blocks or not.
    Read,
    /// Writing and appending.
    Write,
    /// Setting the length, and allocating.
    SetSize,
    /// Syncing content.
    Sync,
    /// Syncing the directory entry.
    SyncDirectory,
    /// Extended attributes.
    Xattr,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 8] = [
        Operation::Open,
        Operation::Version,
        Operation::Read,
        Operation::Write,
        Operation::SetSize,
        Operation::Sync,
        Operation::SyncDirectory,
        Operation::Xattr,
    ];

    /// The name in rules.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Open => "open",
            Operation::Version => "version",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::SetSize => "set-size",
            Operation::Sync => "sync",
            Operation::SyncDirectory => "sync-directory",
            Operation::Xattr => "xattr",
        }
    }
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultEffect {
    /// The call takes this much longer.
    Slow(Duration),
    /// All operations of the rule together move at most this many bytes a second.
    Rate {
        /// Bytes a second, shared by all threads.
        bytes_per_second: u64,
    },
    /// A read returns half of what it read, as if the file ended there.
    Short,
    /// The call fails with this errno and does nothing.
    Errno(i32),
    /// A version may be this old, as with clients that cache attributes; changes through the same
    /// store show at once.
    Stale(Duration),
    /// After this many bytes writes fail with `ENOSPC`; the part that fits is written.
    NoSpaceAfter {
        /// Bytes that may be written in total.
        bytes: u64,
    },
}

/// When a rule acts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    /// At every call.
    Always,
    /// At the call of this number alone, counted from 1.
    Nth(u64),
    /// At the call of this number and all later ones.
    From(u64),
    /// At each call with this probability, 0 to 1.
    Probability(f64),
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    /// The operations that it counts and acts on.
    pub operations: Vec<Operation>,
    /// What it does.
    pub effect: FaultEffect,
    /// When.
    pub trigger: Trigger,
}

/// Whether what was not synced can be lost, and where the memory of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoseUnsynced {
    /// In a temporary directory, for as long as the store lives.
    WhileRunning,
    /// In this directory (outside the PFS), so that [`super::roll_back`] can act after the process
    /// was killed.
    Journal(PathBuf),
}

/// All rules of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultRules {
    /// In the order in which they are asked.
    pub rules: Vec<FaultRule>,
    /// Seed of the probabilities.
    pub seed: u64,
    /// Remember how to forget what was not synced.
    pub lose_unsynced: Option<LoseUnsynced>,
}

/// Names of the errnos that rules can give.
const ERRNOS: [(&str, i32); 12] = [
    ("EIO", libc::EIO),
    ("ENOSPC", libc::ENOSPC),
    ("ESTALE", libc::ESTALE),
    ("EACCES", libc::EACCES),
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EAGAIN", libc::EAGAIN),
    ("EDQUOT", libc::EDQUOT),
    ("EROFS", libc::EROFS),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("ENOTCONN", libc::ENOTCONN),
    ("ENOTSUP", libc::ENOTSUP),
];

fn invalid(text: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "reading fault rules", format!("`{text}` {why}")).remedy(
        "rules look like read:errno=EIO@3;write:enospc-after=8MiB;io:rate=400MB/s;sync:slow=5ms",
    )
}

fn parse_operations(text: &str) -> Result<Vec<Operation>> {
    let mut operations = Vec::new();
    for name in text.split('+').map(str::trim) {
        match name {
            "io" => operations.extend([Operation::Read, Operation::Write]),
            "any" => operations.extend(Operation::ALL),
            _ => operations.push(
                Operation::ALL
                    .into_iter()
                    .find(|operation| operation.name() == name)
                    .ok_or_else(|| invalid(name, "is no operation"))?,
            ),
        }
    }
    Ok(operations)
}

fn parse_rate(text: &str) -> Result<u64> {
    let rate = text.strip_suffix("/s").ok_or_else(|| invalid(text, "is no rate (400MB/s)"))?;
    match rate.parse::<ByteSize>()?.0 {
        0 => Err(invalid(text, "would stop everything")),
        bytes_per_second => Ok(bytes_per_second),
    }
}

fn parse_duration(text: &str) -> Result<Duration> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .ok_or_else(|| invalid(text, "is no duration (5ms, 2s, 100us)"))?;
    let seconds: f64 = number.trim().parse().map_err(|_| invalid(text, "is no duration"))?;
    Duration::try_from_secs_f64(seconds * factor).map_err(|_| invalid(text, "is no duration"))
}

fn parse_trigger(text: &str) -> Result<Trigger> {
    let wrong = || invalid(text, "is no trigger (3, 3+ or 5%)");
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().map_err(|_| wrong())?;
        return match percent {
            percent if (0.0..=100.0).contains(&percent) => {
                Ok(Trigger::Probability(percent / 100.0))
            }
            _ => Err(wrong()),
        };
    }
    let (number, from) = match text.strip_suffix('+') {
        Some(number) => (number, true),
        None => (text, false),
    };
    match number.parse::<u64>().map_err(|_| wrong())? {
        0 => Err(wrong()),
        number if from => Ok(Trigger::From(number)),
        number => Ok(Trigger::Nth(number)),
    }
}

fn parse_effect(text: &str, operations: &[Operation]) -> Result<FaultEffect> {
    let only = |allowed: &[Operation]| match operations.iter().all(|one| allowed.contains(one)) {
        true => Ok(()),
        false => Err(invalid(text, "does not go with these operations")),
    };
    if text == "short" {
        only(&[Operation::Read])?;
        return Ok(FaultEffect::Short);
    }
    let (name, value) = text.split_once('=').ok_or_else(|| invalid(text, "is no effect"))?;
    match name {
        "errno" => ERRNOS
            .iter()
            .find(|(known, _)| *known == value)
            .map(|(_, number)| *number)
            .or_else(|| value.parse().ok().filter(|number| (1..4096).contains(number)))
            .map(FaultEffect::Errno)
            .ok_or_else(|| invalid(value, "is no errno")),
        "slow" => Ok(FaultEffect::Slow(parse_duration(value)?)),
        "stale" => {
            only(&[Operation::Version])?;
            Ok(FaultEffect::Stale(parse_duration(value)?))
        }
        "rate" => {
            only(&[Operation::Read, Operation::Write])?;
            Ok(FaultEffect::Rate { bytes_per_second: parse_rate(value)? })
        }
        "enospc-after" => {
            only(&[Operation::Write])?;
            Ok(FaultEffect::NoSpaceAfter { bytes: value.parse::<ByteSize>()?.0 })
        }
        _ => Err(invalid(name, "is no effect")),
    }
}

impl FromStr for FaultRules {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut rules = FaultRules::default();
        for item in text.split(';').map(str::trim).filter(|item| !item.is_empty()) {
            if let Some(seed) = item.strip_prefix("seed=") {
                rules.seed = seed.parse().map_err(|_| invalid(item, "is no seed"))?;
            } else if item == "lose-unsynced" {
                rules.lose_unsynced = Some(LoseUnsynced::WhileRunning);
            } else if let Some(path) = item.strip_prefix("lose-unsynced=") {
                rules.lose_unsynced = Some(LoseUnsynced::Journal(PathBuf::from(path)));
            } else {
                // `rate=400MB/s` alone limits reads and writes together.
                let (names, rest) = item.split_once(':').unwrap_or(("io", item));
                let operations = parse_operations(names)?;
                let (effect, trigger) = match rest.split_once('@') {
                    Some((effect, trigger)) => (effect, parse_trigger(trigger.trim())?),
                    None => (rest, Trigger::Always),
                };
                let effect = parse_effect(effect.trim(), &operations)?;
                rules.rules.push(FaultRule { operations, effect, trigger });
            }
        }
        Ok(rules)
    }
}

/// What is to happen to one call.
#[derive(Default)]
pub(crate) struct Decision<'a> {
    pub delay: Duration,
    pub errno: Option<i32>,
    pub short: bool,
    /// How old the answer may be.
    pub stale: Duration,
    /// Bytes of a write that still fit, if not all of them do.
    pub room: Option<usize>,
    pub limiters: Vec<&'a RateLimiter>,
}

struct ActiveRule {
    rule: FaultRule,
    calls: AtomicU64,
    written: AtomicU64,
    limiter: Option<RateLimiter>,
}

/// Rules with their counts.
pub(crate) struct ActiveRules {
    rules: Vec<ActiveRule>,
    random: Mutex<u64>,
}

impl ActiveRules {
    pub fn new(rules: &FaultRules) -> Self {
        let active = |rule: &FaultRule| ActiveRule {
            rule: rule.clone(),
            calls: AtomicU64::new(0),
            written: AtomicU64::new(0),
            limiter: match rule.effect {
                FaultEffect::Rate { bytes_per_second } => Some(RateLimiter::new(bytes_per_second)),
                _ => None,
            },
        };
        ActiveRules {
            rules: rules.rules.iter().map(active).collect(),
            random: Mutex::new(rules.seed ^ 0x9E37_79B9_7F4A_7C15),
        }
    }

    /// A number from 0 to 1; the sequence depends on the seed alone.
    fn random(&self) -> f64 {
        let mut state = self.random.lock();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Decides on one call that would move `bytes`.
    pub fn decide(&self, operation: Operation, bytes: usize) -> Decision<'_> {
        let mut decision = Decision::default();
        for active in self.rules.iter().filter(|one| one.rule.operations.contains(&operation)) {
            let call = active.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let acts = match active.rule.trigger {
                Trigger::Always => true,
                Trigger::Nth(number) => call == number,
                Trigger::From(number) => call >= number,
                Trigger::Probability(probability) => self.random() < probability,
            };
            if !acts {
                continue;
            }
            match active.rule.effect {
                FaultEffect::Slow(delay) => decision.delay += delay,
                FaultEffect::Rate { .. } => decision.limiters.extend(&active.limiter),
                FaultEffect::Short => decision.short = true,
                FaultEffect::Stale(age) => decision.stale = decision.stale.max(age),
                FaultEffect::Errno(errno) => decision.errno = decision.errno.or(Some(errno)),
                FaultEffect::NoSpaceAfter { bytes: limit } => {
                    let before = active.written.fetch_add(bytes as u64, Ordering::Relaxed);
                    let room = limit.saturating_sub(before);
                    if room < bytes as u64 {
                        // The part that fits is written, so nothing is left for later ones.
                        decision.room = Some(room as usize);
                    }
                }
            }
        }
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_parse() {
        let text = "read:errno=EIO@3; write:enospc-after=8MiB;rate=400MB/s;sync:slow=5ms;\
                    read+version:slow=100us@2+;read:short@5%;version:stale=1s;\
                    lose-unsynced=/tmp/j;seed=7";
        let rules: FaultRules = text.parse().unwrap();
        assert_eq!(rules.seed, 7);
        assert_eq!(rules.lose_unsynced, Some(LoseUnsynced::Journal("/tmp/j".into())));
        let effects: Vec<_> = rules.rules.iter().map(|rule| rule.effect.clone()).collect();
        assert_eq!(
            effects,
            [
                FaultEffect::Errno(libc::EIO),
                FaultEffect::NoSpaceAfter { bytes: 8 << 20 },
                FaultEffect::Rate { bytes_per_second: 400_000_000 },
                FaultEffect::Slow(Duration::from_millis(5)),
                FaultEffect::Slow(Duration::from_micros(100)),
                FaultEffect::Short,
                FaultEffect::Stale(Duration::from_secs(1)),
            ]
        );
        assert_eq!(rules.rules[0].trigger, Trigger::Nth(3));
        assert_eq!(rules.rules[2].operations, [Operation::Read, Operation::Write]);
        assert_eq!(rules.rules[4].trigger, Trigger::From(2));
        assert_eq!(rules.rules[5].trigger, Trigger::Probability(0.05));
        assert_eq!("".parse::<FaultRules>().unwrap(), FaultRules::default());
    }

    #[test]
    fn rules_without_meaning_are_refused() {
        for text in [
            "read",
            "read:",
            "read:boom",
            "fly:errno=EIO",
            "read:errno=EWHAT",
            "read:errno=0",
            "read:errno=EIO@0",
            "read:errno=EIO@x",
            "read:errno=EIO@200%",
            "write:short",
            "read:enospc-after=1",
            "sync:rate=1MB/s",
            "rate=0B/s",
            "rate=5",
            "sync:slow=5",
            "sync:slow=-5ms",
            "read:stale=1s",
            "seed=x",
            "read:errno=EIO@nan%",
        ] {
            let error = text.parse::<FaultRules>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        }
    }

    #[test]
    fn triggers_count_matching_calls_alone() {
        let rules: FaultRules = "read:errno=EIO@2;version:errno=ESTALE@2+".parse().unwrap();
        let active = ActiveRules::new(&rules);
        let errno = |operation| active.decide(operation, 1).errno;
        assert_eq!(errno(Operation::Read), None);
        assert_eq!(errno(Operation::Version), None);
        assert_eq!(errno(Operation::Read), Some(libc::EIO));
        assert_eq!(errno(Operation::Read), None);
        assert_eq!(errno(Operation::Version), Some(libc::ESTALE));
        assert_eq!(errno(Operation::Version), Some(libc::ESTALE));
    }

    #[test]
    fn probabilities_follow_the_seed() {
        let hits = |seed: u64| -> Vec<bool> {
            let text = format!("read:errno=EIO@25%;seed={seed}");
            let active = ActiveRules::new(&text.parse().unwrap());
            (0..4000).map(|_| active.decide(Operation::Read, 1).errno.is_some()).collect()
        };
        assert_eq!(hits(1), hits(1));
        assert_ne!(hits(1), hits(2));
        let share = hits(3).iter().filter(|hit| **hit).count();
        assert!((900..1100).contains(&share), "{share} of 4000");
    }

    #[test]
    fn space_runs_out_once_and_partly() {
        let rules: FaultRules = "write:enospc-after=100".parse().unwrap();
        let active = ActiveRules::new(&rules);
        let room = |bytes| active.decide(Operation::Write, bytes).room;
        assert_eq!(room(60), None);
        assert_eq!(room(60), Some(40));
        assert_eq!(room(1), Some(0));
    }
}
