//! Tests of the check of parameters.

use tidepool_control_policy::{ControlPolicy, NodeFacts, Parameters, headroom_bytes};
use tidepool_proto::ErrorKind;

use crate::node::{GIB, TOTAL};

fn facts() -> NodeFacts {
    NodeFacts {
        memory_total_bytes: TOTAL,
        watermark_high_bytes: GIB / 4,
        capacity_max_bytes: 100 * GIB,
        block_bytes: 4 << 20,
        delay_ms: 8.0,
        release_bytes_per_s: 50 * GIB,
        growth_bytes_per_s: 8 * GIB,
        ..NodeFacts::default()
    }
}

fn refused(parameters: &Parameters, facts: &NodeFacts, figure: &str) {
    let error = parameters.check(facts).expect_err(figure);
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.detail().contains(figure), "{error}");
    assert!(error.remedy_text().is_some(), "{error}");
}

fn warned(parameters: &Parameters, facts: &NodeFacts, parameter: &str, figure: &str) {
    let warnings = parameters.check(facts).unwrap();
    let found = warnings.iter().any(|w| w.parameter == parameter && w.text.contains(figure));
    assert!(found, "{parameter}, {figure}: {warnings:?}");
}

#[test]
fn the_defaults_pass_without_warning() {
    assert_eq!(Parameters::default().check(&facts()).unwrap(), []);
    assert_eq!(Parameters::default().check(&NodeFacts::default()).unwrap(), []);
}

#[test]
fn meaningless_parameters_are_refused_with_the_figure() {
    let with = |change: fn(&mut Parameters)| {
        let mut parameters = Parameters::default();
        change(&mut parameters);
        parameters
    };
    refused(&with(|p| p.interval_ms = 0), &facts(), "0 ms");
    refused(&with(|p| p.hold_max_ms = 10), &facts(), "10 ms");
    refused(&with(|p| p.gain = f64::NAN), &facts(), "NaN");
    refused(&with(|p| p.gain = 0.0), &facts(), "gain of 0");
    refused(&with(|p| p.used_share_target = 1.5), &facts(), "1.5");
    refused(&with(|p| p.growth_band_share = f64::NAN), &facts(), "NaN");
    refused(&with(|p| p.headroom_bytes = TOTAL), &facts(), "128GiB");
    refused(&with(|p| p.headroom_bytes = 100 << 20), &facts(), "100MiB");
    let crossed = NodeFacts { capacity_min_bytes: 101 * GIB, ..facts() };
    refused(&Parameters::default(), &crossed, "101GiB");
}

#[test]
fn an_unstable_gain_is_refused_for_the_measured_delay() {
    let paper = |gain, interval_ms| Parameters {
        policy: ControlPolicy::Dynims,
        gain,
        interval_ms,
        ..Parameters::default()
    };
    let facts = |delay_ms| NodeFacts { delay_ms, ..facts() };
    refused(&paper(2.5, 100), &facts(0.0), "period of 4");
    refused(&paper(0.5, 100), &facts(300.0), "0.445");
    assert!(paper(0.5, 100).check(&facts(0.0)).unwrap().is_empty());
    warned(&paper(0.5, 100), &facts(100.0), "gain", "margin of 2.0");
    warned(&paper(1.5, 100), &facts(0.0), "gain", "passes the target");
    let printed = Parameters { policy: ControlPolicy::DynimsPrinted, ..paper(0.5, 100) };
    warned(&printed, &facts(0.0), "policy", "never gives");
    let other = Parameters { gain: 2.5, ..Parameters::default() };
    assert!(other.check(&facts(8.0)).is_ok(), "only the paper's law uses it");
}

#[test]
fn poor_parameters_are_warned_of_with_the_figure() {
    let p = Parameters::default;
    warned(&Parameters { headroom_bytes: GIB / 2, ..p() }, &facts(), "headroom_bytes", "512MiB");
    warned(&Parameters { interval_ms: 200, ..p() }, &facts(), "interval_ms", "200 ms");
    warned(&Parameters { growth_bytes_per_s: 0, ..p() }, &facts(), "growth_bytes_per_s", "never");
    let slow = NodeFacts { delay_ms: 80.0, release_bytes_per_s: GIB, ..facts() };
    warned(&p(), &slow, "actuation_delay_ms", "80 ms");
    warned(&p(), &slow, "growth_bytes_per_s", "1GiB/s");
    warned(&p(), &slow, "headroom_bytes", "8GiB/s");
    let tight = NodeFacts { capacity_min_bytes: 128 * GIB, capacity_max_bytes: 0, ..facts() };
    warned(&p(), &tight, "capacity_min_bytes", "128GiB");
}

#[test]
fn the_derived_headroom_is_the_documented_sum() {
    let p = Parameters::default();
    let growth = 300_000_000;
    assert_eq!(headroom_bytes(TOTAL, &p), TOTAL / 256 + TOTAL / 512 + growth);
    assert_eq!(headroom_bytes(4 * GIB, &p), 4 * GIB / 20, "not above a twentieth");
    assert_eq!(headroom_bytes(0, &p), 0);
    let asked = Parameters { headroom_bytes: 7 * GIB, ..p };
    assert_eq!(headroom_bytes(TOTAL, &asked), 7 * GIB);
}
