//! [`Gathered`]: the newest summaries of each kind, in bounded memory whatever the topic has.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::summary::{Counts, Scope, Summary};

/// Summaries of the plane that rates and counts are of: about ten seconds.
const ROUNDS: usize = 10;
/// Summaries of the plane in which it is looked for a second run of the job.
const RUNS: usize = 20;
/// The job sends up to 2,100 sums a round; those of one round before may still be there.
const GROUPS_MAX: usize = 4500;
/// Sums of one round are sent together; more than this apart they are of two.
const ROUND_MS: u64 = 2500;

/// A sum, by what it is of.
type Key = (Scope, String, String);

/// What came of the topic.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Sums of the plane, of one run of the job, the newest last.
    rounds: VecDeque<Summary>,
    /// Runs of the job that the last sums of the plane were of, the newest last.
    runs: VecDeque<String>,
    groups: BTreeMap<Key, Summary>,
    /// Messages that were no summaries.
    pub strange: u64,
    /// Whether what comes from now on is new, and not what lay there.
    pub is_live: bool,
    heard: Option<Instant>,
}

impl Gathered {
    /// Takes a message.
    pub fn take(&mut self, message: &[u8]) {
        let Some(summary) = Summary::read(message) else {
            self.strange = self.strange.saturating_add(1);
            return;
        };
        match summary.scope {
            Scope::Plane => self.take_round(summary),
            _ => self.take_group(summary),
        }
    }

    fn take_round(&mut self, summary: Summary) {
        if self.is_live {
            self.heard = Some(Instant::now());
        }
        if self.rounds.back().is_some_and(|last| last.plane() != summary.plane()) {
            self.rounds.clear();
        }
        if !summary.plane().is_empty() {
            push(&mut self.runs, RUNS, summary.plane().to_owned());
        }
        push(&mut self.rounds, ROUNDS, summary);
    }

    fn take_group(&mut self, summary: Summary) {
        let key = (summary.scope, summary.cluster().to_owned(), summary.name().to_owned());
        if !self.groups.contains_key(&key) && self.groups.len() >= GROUPS_MAX {
            self.forget_old(&summary);
            if self.groups.len() >= GROUPS_MAX {
                self.strange = self.strange.saturating_add(1);
                return;
            }
        }
        self.groups.insert(key, summary);
    }

    /// Forgets sums that are of no round of now.
    fn forget_old(&mut self, newest: &Summary) {
        self.groups.retain(|_, group| is_of_one_round(group, newest));
    }

    /// The newest sum of the plane.
    pub fn newest(&self) -> Option<&Summary> {
        self.rounds.back()
    }

    /// What was counted in the last rounds, and the time that they took.
    pub fn counts(&self) -> (Counts, u64) {
        let none = (Counts::default(), 0_u64);
        self.rounds.iter().fold(none, |(counts, span_ms), round| {
            (counts.and(round.counts), span_ms.saturating_add(round.span_ms))
        })
    }

    /// The longest lag of the last rounds.
    pub fn lag_ms(&self) -> Option<u64> {
        self.rounds.iter().filter_map(|round| round.lag_ms).max()
    }

    /// Sums of the newest round.
    pub fn groups(&self, scope: Scope) -> impl Iterator<Item = &Summary> {
        let newest = self.newest();
        self.groups.values().filter(move |group| {
            group.scope == scope && newest.is_some_and(|newest| is_of_one_round(group, newest))
        })
    }

    /// Two runs of the job that both send, if there are: one came again after the other.
    pub fn two_runs(&self) -> Option<(&str, &str)> {
        let mut ended: Vec<&str> = Vec::new();
        let mut last: Option<&str> = None;
        for run in self.runs.iter().map(String::as_str) {
            let Some(before) = last.replace(run).filter(|before| *before != run) else { continue };
            if ended.contains(&run) {
                return Some((before, run));
            }
            ended.push(before);
        }
        None
    }

    /// Time since the last sum of the plane: as it was heard, else by its own clock and that of
    /// this machine, where they agree that it was before now.
    pub fn age(&self, now: Instant, now_ms: u64) -> Option<Duration> {
        match (self.heard, self.newest()) {
            (Some(heard), _) => Some(now.saturating_duration_since(heard)),
            (None, Some(newest)) => now_ms.checked_sub(newest.at_ms).map(Duration::from_millis),
            (None, None) => None,
        }
    }
}

fn is_of_one_round(group: &Summary, newest: &Summary) -> bool {
    group.plane() == newest.plane() && group.at_ms.abs_diff(newest.at_ms) < ROUND_MS
}

fn push<T>(queue: &mut VecDeque<T>, most: usize, value: T) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::summary::tests::message;
    use super::*;

    fn take(gathered: &mut Gathered, message: &Value) {
        gathered.take(&serde_json::to_vec(message).unwrap());
    }

    fn round(plane: &str, at_s: u64) -> Value {
        let mut round = message("plane", "", "", at_s);
        round["plane"] = json!(plane);
        round
    }

    #[test]
    fn sums_are_those_of_the_newest_round() {
        let mut gathered = Gathered::default();
        take(&mut gathered, &message("rack", "site1", "gone", 1));
        for at_s in 1..=30 {
            take(&mut gathered, &message("rack", "site1", "r1", at_s));
            take(&mut gathered, &message("cluster", "site1", "", at_s));
            take(&mut gathered, &round("p1", at_s));
        }
        let racks: Vec<&str> = gathered.groups(Scope::Rack).map(Summary::name).collect();
        assert_eq!(racks, ["r1"]);
        assert_eq!(gathered.groups(Scope::Cluster).count(), 1);
        let (counts, span_ms) = gathered.counts();
        assert_eq!((counts.samples, span_ms, gathered.lag_ms()), (300, 10_000, Some(4)));
    }

    #[test]
    fn a_run_that_comes_again_after_another_is_told() {
        let runs = |runs: &[&str]| {
            let mut gathered = Gathered::default();
            runs.iter().enumerate().for_each(|(at_s, run)| {
                take(&mut gathered, &round(run, at_s as u64));
            });
            gathered.two_runs().map(|(one, other)| (one.to_owned(), other.to_owned()))
        };
        assert_eq!(runs(&["a", "a", "b", "b", "c"]), None, "started anew twice");
        assert_eq!(runs(&["a", "b", "b", "a"]), Some(("b".into(), "a".into())));
        let mut later = vec!["a", "b", "a"];
        later.extend(["a"; RUNS]);
        assert_eq!(runs(&later), None, "the other has ended");
    }

    #[test]
    fn a_hostile_producer_fills_no_memory() {
        let mut gathered = Gathered::default();
        take(&mut gathered, &round("p1", 1));
        for job in 0..2 * GROUPS_MAX {
            take(&mut gathered, &message("job", "site1", &job.to_string(), 1));
        }
        gathered.take(b"garbage");
        assert_eq!(gathered.groups.len(), GROUPS_MAX);
        assert_eq!(gathered.strange, GROUPS_MAX as u64 + 1);
        take(&mut gathered, &message("job", "site1", "of a later round", 9));
        assert_eq!(gathered.groups.len(), 1, "the old ones make room");
    }

    #[test]
    fn the_age_is_of_what_was_heard_where_clocks_differ() {
        let mut gathered = Gathered::default();
        let now = Instant::now();
        assert_eq!(gathered.age(now, 1_000_000), None);
        take(&mut gathered, &round("p1", 0));
        assert_eq!(gathered.age(now, 1_012_000), Some(Duration::from_secs(12)));
        assert_eq!(gathered.age(now, 999_999), None, "from the future");
        gathered.is_live = true;
        take(&mut gathered, &round("p1", 1));
        assert_eq!(gathered.age(now, 5_000_000), Some(Duration::ZERO));
    }
}
