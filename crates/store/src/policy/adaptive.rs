//! The default: follows the policy that would have hit most of late. No single one is right for
//! all that iterates: loops in order, epochs in random order, sweeps forth and back, a small set
//! among scans.
//!
//! Each candidate keeps a shadow directory of a sample of the blocks ([`super::shadow`]). One that
//! hit enough more than the one that decides (a cumulative sum, Page, Biometrika 1954) takes over
//! what is resident; the others go on being watched. Sweeps forth and back favour one candidate in
//! their first half and another in the second, so where changes follow each other, more is asked of
//! the next. Memory and time for each block are bounded whatever the size of the store.

use std::collections::VecDeque;

use super::shadow::Shadow;
use super::{Entries, EvictionTerms, Offer, Offered, Policy, create};
use crate::config::PolicyKind;

/// The candidates. The first one decides until another proves better.
pub(crate) const CANDIDATES: [PolicyKind; 5] =
    [PolicyKind::Cyclic, PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::S3Fifo, PolicyKind::Fixed];
/// Entries that a shadow holds: of smaller stores all, of larger ones this many or up to twice.
const SHADOW_ENTRIES: u32 = 1024;
/// The ratios that are told forget half after so many reads as the shadow holds entries.
const HALF_LIFE_TURNOVERS: f64 = 4.0;
/// Hits more than those of the one that decides, in turnovers of the shadow, for which another one
/// takes over; the most that is asked where changes follow each other within `CALM_TURNOVERS`.
/// That is as much as a change may cost; nothing speaks for the one that decides first.
const AHEAD_TURNOVERS_FIRST: f64 = 0.4;
const AHEAD_TURNOVERS: f64 = 1.0;
const AHEAD_TURNOVERS_MAX: f64 = 4.0;
const CALM_TURNOVERS: f64 = 12.0;
/// A block that is asked for again within so many others, or an eighth of the capacity, is one read
/// in pieces, or one that read-ahead brought without room for it.
const PIECES: u32 = 32;
/// Hits of some files in a row are chance in a small store.
const CHANCE_HITS: f64 = 64.0;
/// What is less than this share of the reads is chance, and than this share of the best's hits.
const DRIFT: f64 = 0.01;
const MARGIN_OF_BEST: f64 = 0.02;

pub(crate) struct Adaptive {
    active: Box<dyn Policy>,
    chosen: usize,
    /// Takes over as soon as the entries are at hand.
    next: Option<usize>,
    shadows: Vec<Shadow>,
    /// Hits of each shadow, and reads, of late.
    hits: [f64; CANDIDATES.len()],
    reads: f64,
    /// Hits of each shadow beyond those of the one that decides, since it was last behind.
    ahead: [f64; CANDIDATES.len()],
    /// What is asked of the next that takes over, in turnovers.
    wanted_turnovers: f64,
    /// Turnovers since the last change.
    calm_turnovers: f64,
    /// The latest keys, as many as make one read in pieces.
    latest: VecDeque<u64>,
    /// One key in 2^this is in the sample.
    sample_shift: u32,
    target_entries: u32,
    shadow_entries: u32,
}

impl Default for Adaptive {
    fn default() -> Self {
        let mut this = Adaptive {
            active: create(CANDIDATES[0]),
            chosen: 0,
            next: None,
            shadows: Vec::new(),
            hits: [0.0; CANDIDATES.len()],
            reads: 0.0,
            ahead: [0.0; CANDIDATES.len()],
            wanted_turnovers: AHEAD_TURNOVERS_FIRST,
            calm_turnovers: CALM_TURNOVERS,
            latest: VecDeque::new(),
            sample_shift: 0,
            target_entries: 0,
            shadow_entries: 0,
        };
        this.rebuild();
        this
    }
}

impl Adaptive {
    fn is_sampled(&self, key: u64) -> bool {
        // Not the bits by which ghosts and maps find their places.
        (key >> 20) & ((1 << self.sample_shift) - 1) == 0
    }

    /// New shadows for a sample of another share; what was counted is as if it were of that one.
    fn rebuild(&mut self) {
        let before = self.sample_shift;
        self.sample_shift = (self.target_entries / SHADOW_ENTRIES).max(1).ilog2();
        let scale = f64::from(before).exp2() / f64::from(self.sample_shift).exp2();
        self.reads *= scale;
        self.hits.iter_mut().chain(&mut self.ahead).for_each(|count| *count *= scale);
        self.shadow_entries = self.target_entries >> self.sample_shift;
        let shadow = |kind: &PolicyKind| Shadow::new(*kind, self.shadow_entries);
        self.shadows = CANDIDATES.iter().map(shadow).collect();
    }

    /// Whether a key is another piece of a read that is counted.
    fn is_piece(&mut self, key: u64) -> bool {
        let most = PIECES.min(self.target_entries / 8) >> self.sample_shift;
        let known = self.latest.contains(&key);
        if !known {
            self.latest.push_back(key);
        }
        while self.latest.len() > most as usize {
            self.latest.pop_front();
        }
        known
    }

    /// Shows a read to the shadows.
    fn note(&mut self, key: u64) {
        if self.is_piece(key) {
            return;
        }
        let turnover = f64::from(self.shadow_entries.max(1));
        let keep = 0.5_f64.powf(1.0 / (turnover * HALF_LIFE_TURNOVERS));
        self.reads = self.reads * keep + 1.0;
        let mut was_hit = [0.0; CANDIDATES.len()];
        for (shadow, was_hit) in self.shadows.iter_mut().zip(&mut was_hit) {
            *was_hit = f64::from(u8::from(shadow.read(key)));
        }
        let decides = was_hit[self.chosen];
        for (number, was_hit) in was_hit.into_iter().enumerate() {
            self.hits[number] = self.hits[number] * keep + was_hit;
            let ahead = self.ahead[number] + was_hit - decides - DRIFT;
            self.ahead[number] = ahead.max(0.0);
        }
        self.calm_turnovers += 1.0 / turnover;
        self.compare(turnover);
    }

    /// Chooses who is to take over, if anybody.
    fn compare(&mut self, turnover: f64) {
        let chance = if self.wanted_turnovers < AHEAD_TURNOVERS { 0.0 } else { CHANCE_HITS };
        let wanted = self.wanted_turnovers * turnover + chance;
        // A loop shows one candidate's hits in one part and another's in another: the one that
        // takes over is also better in the long run.
        let is_better = |number: &usize| {
            let margin = MARGIN_OF_BEST * self.hits[*number] + DRIFT * self.reads;
            self.hits[*number] > self.hits[self.chosen] + margin
        };
        // The first of equals: the simpler one.
        let numbers = (0..self.ahead.len()).rev();
        self.next = numbers
            .filter(|number| *number != self.chosen && self.ahead[*number] > wanted)
            .filter(is_better)
            .max_by(|a, b| self.hits[*a].total_cmp(&self.hits[*b]));
    }

    /// Hands what is resident to the policy that is to take over, in the old order of eviction.
    fn take_over(&mut self, entries: &mut Entries) {
        let Some(next) = self.next.take() else { return };
        let mut order = Vec::new();
        self.active.select(entries, false, &mut |_, index| {
            order.push(index);
            Offer::Take(0)
        });
        self.active = create(CANDIDATES[next]);
        self.chosen = next;
        self.ahead = [0.0; CANDIDATES.len()];
        self.wanted_turnovers = match self.calm_turnovers < CALM_TURNOVERS {
            true => (self.wanted_turnovers * 2.0).clamp(AHEAD_TURNOVERS, AHEAD_TURNOVERS_MAX),
            false => AHEAD_TURNOVERS,
        };
        self.calm_turnovers = 0.0;
        self.active.set_target(self.target_entries);
        for index in order {
            // The new one remembers nobody yet, so the key says nothing to it.
            self.active.insert(entries, index, 0);
        }
    }
}

impl Policy for Adaptive {
    fn set_target(&mut self, target_entries: u32) {
        self.target_entries = target_entries;
        self.active.set_target(target_entries);
        let wanted = target_entries >> self.sample_shift;
        let fits = (SHADOW_ENTRIES / 4..=SHADOW_ENTRIES * 4).contains(&wanted);
        if !fits && (wanted > SHADOW_ENTRIES || self.sample_shift > 0) {
            self.rebuild();
        } else if wanted != self.shadow_entries {
            self.shadow_entries = wanted;
            self.shadows.iter_mut().for_each(|shadow| shadow.resize(wanted));
        }
    }

    fn admits(&mut self, entries: &Entries, key: u64, tick: u32) -> EvictionTerms {
        self.active.admits(entries, key, tick)
    }

    fn refused(&mut self, key: u64, tick: u32) {
        if self.is_sampled(key) {
            self.note(key);
        }
        self.active.refused(key, tick);
    }

    fn insert(&mut self, entries: &mut Entries, index: u32, key: u64) {
        if self.is_sampled(key) {
            self.note(key);
        }
        self.take_over(entries);
        self.active.insert(entries, index, key);
    }

    fn hit(&mut self, entries: &mut Entries, index: u32, key: u64, reuse: Option<u32>) {
        if reuse.is_some() && self.is_sampled(key) {
            self.note(key);
        }
        self.active.hit(entries, index, key, reuse);
    }

    fn remove(&mut self, entries: &mut Entries, index: u32) {
        self.active.remove(entries, index);
    }

    fn select(&mut self, entries: &mut Entries, cheap_only: bool, offer: Offered<'_>) {
        self.take_over(entries);
        self.active.select(entries, cheap_only, offer);
    }

    fn choice(&self) -> Option<Choice> {
        let ratio = |hits: &f64| if self.reads > 0.0 { hits / self.reads } else { 0.0 };
        let candidates = CANDIDATES.iter().zip(&self.hits);
        Some(Choice {
            chosen: CANDIDATES[self.chosen],
            would_hit: candidates.map(|(kind, hits)| (*kind, ratio(hits))).collect(),
            reads: self.reads,
        })
    }

    fn bookkeeping_bytes(&self) -> u64 {
        let shadows: u64 = self.shadows.iter().map(Shadow::bookkeeping_bytes).sum();
        let latest = (self.latest.capacity() * size_of::<u64>()) as u64;
        shadows + latest + self.active.bookkeeping_bytes()
    }
}

/// Which policy decides at present, and what each would have hit of the latest reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The one that decides.
    pub chosen: PolicyKind,
    /// Hit ratio of each candidate, by its shadow directory.
    pub would_hit: Vec<(PolicyKind, f64)>,
    /// Reads of the sample that these are shares of; older ones count less.
    pub reads: f64,
}
