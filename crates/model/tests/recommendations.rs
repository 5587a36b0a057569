//! Recommended parameters of memory control.

use tidepool_control_policy::{ControlPolicy, NodeFacts, Parameters, headroom_bytes};
use tidepool_model::recommend;

const GIB: u64 = 1 << 30;
const TOTAL: u64 = 128 * GIB;

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

#[test]
fn recommendations_pass_their_own_check() {
    for delay_ms in [0.0, 3.0, 40.0, 900.0] {
        for release in [0, GIB, 100 * GIB] {
            for policy in [ControlPolicy::Tidepool, ControlPolicy::Dynims] {
                let facts = NodeFacts {
                    delay_ms,
                    release_bytes_per_s: release,
                    growth_bytes_per_s: 40 * GIB,
                    ..facts()
                };
                let present = Parameters { policy, ..Parameters::default() };
                let found = recommend(&facts, &present);
                assert!(found.parameters.check(&facts).is_ok(), "{found:?}");
                assert!(found.parameters.actuation_delay_ms as f64 >= delay_ms);
                assert!(headroom_bytes(TOTAL, &found.parameters) > GIB, "{found:?}");
                assert!(!found.reasons.is_empty());
            }
        }
    }
    let bad = Parameters { interval_ms: 0, ..Parameters::default() };
    assert_eq!(recommend(&facts(), &bad).risks[0].parameter, "interval_ms");
}
