//! Logs of decisions: whole, cut, damaged, and decided again.

use std::time::Duration;

use proptest::prelude::*;
use tidepool_control_policy::{ControlPolicy, Journal, JournalBytes, JournalWriter, Parameters};
use tidepool_model::simulator::{PlantConfig, Simulation, Trace, simulate_observed};

const GIB: u64 = 1 << 30;

/// A log of a noisy node with a burst; the parts that the writer began.
fn log(policy: ControlPolicy, bytes_max: usize) -> Vec<Vec<u8>> {
    let mut plant = PlantConfig::node(125 * GIB, 60 * GIB);
    plant.sensor_noise_bytes = GIB / 100;
    let second = Duration::from_secs(1);
    let demand = Trace::step(40 * GIB, 90 * GIB, second, 4 * second);
    let parameters = Parameters { policy, ..Parameters::default() };
    let simulation = Simulation::new(plant, demand, parameters);
    let mut writer = JournalWriter::new(bytes_max);
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut decisions = 0;
    simulate_observed(&simulation, &mut |snapshot, parameters, decision| {
        // The operator changes a parameter in the middle.
        decisions += 1;
        let hold_ms = if decisions > 20 { 3_000 } else { parameters.hold_ms };
        let changed = Parameters { hold_ms, ..parameters.clone() };
        let parameters = if policy == ControlPolicy::Static { &changed } else { parameters };
        match writer.write(snapshot, parameters, decision).unwrap() {
            JournalBytes::Begin(bytes) => parts.push(bytes),
            JournalBytes::Append(bytes) => parts.last_mut().unwrap().extend(bytes),
        }
    });
    parts
}

#[test]
fn a_log_is_decided_again_bit_for_bit() {
    for policy in [
        ControlPolicy::Tidepool,
        ControlPolicy::Dynims,
        ControlPolicy::DynimsPrinted,
        ControlPolicy::Static,
    ] {
        let parts = log(policy, usize::MAX);
        assert_eq!(parts.len(), 1);
        let journal = Journal::read(&parts[0]).unwrap();
        assert!(journal.from_start && journal.cut_bytes == 0);
        let replay = journal.replay();
        assert!(replay.decisions > 20, "{policy:?}: {}", replay.decisions);
        assert_eq!((replay.warm_up, replay.mismatches), (0, vec![]), "{policy:?}");
        let bytes = parts[0].len() / journal.entries.len();
        println!("{policy:?}: {bytes} bytes a decision");
        assert!(bytes < 100, "{policy:?}: {bytes} bytes a decision");
    }
}

#[test]
fn parameters_are_kept_where_they_change() {
    let journal = Journal::read(&log(ControlPolicy::Static, usize::MAX)[0]).unwrap();
    let changes: Vec<usize> = (0..)
        .zip(&journal.entries)
        .filter_map(|(number, entry)| entry.parameters.as_ref().map(|_| number))
        .collect();
    assert_eq!(changes, [0, 20]);
}

#[test]
fn another_decision_is_found() {
    let mut journal = Journal::read(&log(ControlPolicy::Tidepool, usize::MAX)[0]).unwrap();
    journal.entries[7].decision.target_bytes += 1;
    let mismatches = journal.replay().mismatches;
    assert_eq!(mismatches.len(), 1);
    assert_eq!(mismatches[0].entry, 7);
    assert_eq!(mismatches[0].logged.target_bytes, mismatches[0].replayed.target_bytes + 1);
}

#[test]
fn parts_stay_within_their_bound_and_stand_alone() {
    let parts = log(ControlPolicy::Tidepool, 4_000);
    assert!(parts.len() > 2, "{}", parts.len());
    for (number, part) in (0..).zip(&parts) {
        assert!(part.len() < 5_000, "{}", part.len());
        let journal = Journal::read(part).unwrap();
        assert_eq!(journal.from_start, number == 0);
        let replay = journal.replay();
        assert_eq!(replay.mismatches, vec![]);
        assert_eq!(replay.warm_up > 0, number > 0, "history is missing");
    }
}

#[test]
fn a_cut_tail_loses_one_entry_at_most() {
    let bytes = log(ControlPolicy::Tidepool, usize::MAX).remove(0);
    let whole = Journal::read(&bytes).unwrap();
    let mut ends = Vec::new();
    for end in 11..bytes.len().min(3_000) {
        let cut = Journal::read(&bytes[..end]).unwrap();
        assert_eq!(cut.entries[..], whole.entries[..cut.entries.len()]);
        ends.push(cut.entries.len());
    }
    assert!(ends.is_sorted() && ends.last().unwrap() > &10);
    // Blocks that were allocated and not written are zeros.
    let mut torn = bytes[..2_000].to_vec();
    let length = torn.len();
    torn[length - 3..].fill(0);
    let entries = Journal::read(&torn).unwrap().entries;
    assert_eq!(entries[..], whole.entries[..entries.len()]);
}

#[test]
fn what_is_no_log_is_refused_with_the_reason() {
    let bytes = log(ControlPolicy::Tidepool, usize::MAX).remove(0);
    let with = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        bytes
    };
    for (bytes, said) in [
        (vec![], "ends within its header"),
        (b"TPDJ".to_vec(), "ends within its header"),
        (b"hello".to_vec(), "no log"),
        (with(0), "no log"),
        (with(4), "another build"),
        (with(7), "another build"),
        (with(30), "checksum"),
        (with(14), "impossible length"),
    ] {
        let error = Journal::read(&bytes).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_never_panics(
        junk in proptest::collection::vec(any::<u8>(), 0..300),
        places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut behind = LOG.with(|bytes| bytes[..11].to_vec());
        behind.extend(&junk);
        let _ = Journal::read(&behind).map(|journal| journal.replay());
        let _ = Journal::read(&junk).map(|journal| journal.replay());
        let mut damaged = LOG.with(Clone::clone);
        for (place, byte) in places {
            let at = place.index(damaged.len());
            damaged[at] = byte;
        }
        let _ = Journal::read(&damaged).map(|journal| journal.replay());
    }
}

thread_local! {
    static LOG: Vec<u8> = log(ControlPolicy::Tidepool, usize::MAX).remove(0);
}
