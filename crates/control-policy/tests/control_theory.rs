//! The policy of the DynIMS paper behaves in a loop as control theory predicts. The loop here is
//! the smallest one: a store that is always full and obeys at once, and a reading that is late by
//! whole intervals.

use tidepool_control_policy::analysis::{
    behaviour, gain_margin, monotone_limit, ramp_error_bytes, settling_intervals, stability_limit,
};
use tidepool_control_policy::{Behaviour, ControlPolicy, Parameters, Snapshot, StoreState, policy};

const TOTAL: u64 = 128 << 30;
const GOAL: f64 = 0.5 * TOTAL as f64;

/// Errors of used memory, interval by interval, as shares of the goal. The demand starts at 0.3 of
/// the goal, and the store `start` of the goal off the target.
fn errors(kind: ControlPolicy, gain: f64, delay: usize, start: f64, steps: usize) -> Vec<f64> {
    // Half of the node as goal: used memory may pass it without the node being full.
    let parameters =
        Parameters { policy: kind, gain, used_share_target: 0.5, ..Parameters::default() };
    let demand = (0.3 * GOAL) as u64;
    let mut law = policy(kind);
    let mut capacity = (GOAL * (0.7 + start)) as u64;
    let mut used = vec![demand + capacity; delay + 1];
    let mut errors = Vec::with_capacity(steps);
    for step in 0..steps {
        let late = used[used.len() - 1 - delay];
        let store = StoreState {
            resident_bytes: capacity,
            capacity_bytes: capacity,
            capacity_max_bytes: TOTAL,
            block_bytes: 1,
            ..StoreState::default()
        };
        let snapshot = Snapshot {
            at_ns: step as u64 * 100_000_000,
            memory_total_bytes: TOTAL,
            available_bytes: Some(TOTAL.saturating_sub(late)),
            stores: vec![store],
            ..Snapshot::default()
        };
        capacity = law.decide(&snapshot, &parameters).target_bytes;
        used.push(demand + capacity);
        errors.push((demand + capacity) as f64 / GOAL - 1.0);
    }
    errors
}

fn settled(errors: &[f64]) -> bool {
    errors[errors.len() - 200..].iter().all(|error| error.abs() < 1e-6)
}

/// The smallest period of the end of a series; `None` where there is none up to 16.
fn period(errors: &[f64]) -> Option<usize> {
    let end = &errors[errors.len() - 256..];
    (1..=16).find(|period| end.windows(period + 1).all(|w| (w[0] - w[*period]).abs() < 1e-5))
}

#[test]
fn limits_are_those_of_theory() {
    let stable = [2.0, 1.0, 0.618, 0.445, 0.347, 0.285];
    let monotone = [1.0, 0.25, 0.148, 0.105, 0.082, 0.067];
    for delay in 0..6 {
        assert!((stability_limit(delay) - stable[delay as usize]).abs() < 5e-4, "{delay}");
        assert!((monotone_limit(delay) - monotone[delay as usize]).abs() < 5e-4, "{delay}");
    }
    assert!((gain_margin(0.5, 0) - 4.0).abs() < 1e-12);
    assert!(gain_margin(0.5, 3) < 1.0, "300 ms of delay at 100 ms ring for ever");
    // The limit stays positive and falls for delays of any length.
    assert!(monotone_limit(10_000) > 0.0 && monotone_limit(10_000) < stability_limit(10_000));
}

#[test]
fn the_law_behaves_as_predicted_for_every_gain_and_delay() {
    for gain in [0.1, 0.5, 1.0, 2.0, 2.45, 2.5] {
        for delay in 0..6 {
            let limit = stability_limit(delay);
            if (gain - limit).abs() < 1e-9 {
                continue;
            }
            let small = errors(ControlPolicy::Dynims, gain, delay as usize, 1e-4, 4000);
            let found = behaviour(gain, delay);
            assert_eq!(settled(&small), found.settles(), "gain {gain}, delay {delay}: {found:?}");
            let passes = small.iter().any(|error| *error < -1e-6);
            assert_eq!(passes, found != Behaviour::Monotone, "gain {gain}, delay {delay}");
        }
    }
}

#[test]
fn the_limit_of_stability_is_sharp_for_every_delay() {
    for delay in 0..6 {
        let limit = stability_limit(delay);
        let below = errors(ControlPolicy::Dynims, 0.98 * limit, delay as usize, 0.001, 8000);
        let above = errors(ControlPolicy::Dynims, 1.02 * limit, delay as usize, 0.001, 8000);
        assert!(settled(&below), "below the limit at delay {delay}");
        assert!(!settled(&above), "above the limit at delay {delay}");
        let monotone = monotone_limit(delay);
        let small = errors(ControlPolicy::Dynims, 0.95 * monotone, delay as usize, 0.001, 8000);
        assert!(small.iter().all(|error| *error > -1e-7), "no overshoot at delay {delay}");
        let large = errors(ControlPolicy::Dynims, 1.3 * monotone, delay as usize, 0.001, 8000);
        assert!(large.iter().any(|error| *error < -1e-7), "overshoot at delay {delay}");
    }
}

#[test]
fn without_delay_the_law_is_the_logistic_map() {
    for (gain, expected) in [(2.2, 2), (2.45, 4), (2.5, 4), (2.55, 8)] {
        let errors = errors(ControlPolicy::Dynims, gain, 0, 0.1, 40_000);
        assert_eq!(period(&errors), Some(expected), "gain {gain}");
        assert_eq!(behaviour(gain, 0), Behaviour::Cycle(expected as u32), "gain {gain}");
    }
    let chaotic = errors(ControlPolicy::Dynims, 2.7, 0, 0.1, 40_000);
    assert_eq!(period(&chaotic), None);
    assert_eq!(behaviour(2.7, 0), Behaviour::Unstable);
    assert_eq!(behaviour(3.1, 0), Behaviour::Escapes);
    // The map itself: v' = v (1 + λ (1 - v / V)).
    let series = errors(ControlPolicy::Dynims, 0.5, 0, 0.1, 20);
    for pair in series.windows(2) {
        let used = 1.0 + pair[0];
        let next = used * (1.0 + 0.5 * (1.0 - used)) - 1.0;
        assert!((pair[1] - next).abs() < 1e-9);
    }
    // At a gain of 2 the swing dies out, but slower than any power of the interval's number.
    let margin = errors(ControlPolicy::Dynims, 2.0, 0, 0.1, 1000);
    assert!(margin[999].abs() > 1e-3 && margin[999].abs() < margin[9].abs());
}

#[test]
fn settling_takes_the_predicted_intervals() {
    // The thesis: sluggish at 0.1, good at 0.5.
    assert_eq!(settling_intervals(0.1, 0, 0.05), Some(29));
    assert_eq!(settling_intervals(0.5, 0, 0.05), Some(5));
    assert_eq!(settling_intervals(1.0, 0, 0.05), Some(1));
    assert_eq!(settling_intervals(2.5, 0, 0.05), None);
    for (gain, delay) in [(0.1, 0), (0.5, 0), (1.0, 0), (1.6, 0), (0.5, 1), (0.3, 2), (0.1, 5)] {
        let predicted = settling_intervals(gain, delay, 0.05).expect("stable") as usize;
        let start = 1e-4;
        let errors = errors(ControlPolicy::Dynims, gain, delay as usize, start, 4000);
        let outside = errors.iter().rposition(|error| error.abs() > 0.05 * start);
        let found = outside.map_or(1, |last| last + 2);
        assert!(predicted.abs_diff(found) <= 1, "gain {gain}, delay {delay}: {predicted}, {found}");
    }
}

#[test]
fn a_ramp_is_followed_with_the_predicted_lag() {
    assert!((ramp_error_bytes(10e9, 0.1, 0.5) - 2e9).abs() < 1.0);
    assert!((ramp_error_bytes(20e9, 0.1, 0.5) - 4e9).abs() < 1.0);
    let parameters = Parameters {
        policy: ControlPolicy::Dynims,
        gain: 0.5,
        used_share_target: 0.95,
        ..Parameters::default()
    };
    let goal = 0.95 * TOTAL as f64;
    let mut law = policy(ControlPolicy::Dynims);
    let mut demand = 0.3 * TOTAL as f64;
    let mut capacity = (goal - demand) as u64;
    let mut excess = 0.0;
    for step in 0..40 {
        demand += 1e9;
        let used = demand as u64 + capacity;
        excess = used as f64 - goal;
        let store = StoreState {
            resident_bytes: capacity,
            capacity_bytes: capacity,
            capacity_max_bytes: TOTAL,
            block_bytes: 1,
            ..StoreState::default()
        };
        let snapshot = Snapshot {
            at_ns: step * 100_000_000,
            memory_total_bytes: TOTAL,
            available_bytes: Some(TOTAL - used),
            stores: vec![store],
            ..Snapshot::default()
        };
        capacity = law.decide(&snapshot, &parameters).target_bytes;
    }
    // The quadratic term of the control law makes the error a little smaller than that of the
    // integrator.
    assert!((excess / 2e9 - 1.0).abs() < 0.05, "{excess}");
}

#[test]
fn the_printed_law_never_gives_capacity_back() {
    let printed = errors(ControlPolicy::DynimsPrinted, 0.5, 0, -0.2, 300);
    assert!(printed.iter().all(|error| (error + 0.2).abs() < 1e-9));
    let corrected = errors(ControlPolicy::Dynims, 0.5, 0, -0.2, 300);
    assert!(settled(&corrected));
    // Shrinking it does, down to its dead band of two blocks.
    let above = errors(ControlPolicy::DynimsPrinted, 0.5, 0, 0.2, 300);
    assert!(settled(&above));
}
