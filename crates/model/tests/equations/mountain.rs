//! The mountain's counting against sets of blocks, and its shape.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tidepool_model::{Bytes, MountainSetting, Policy, Seconds, blocks_touched, predict};

use crate::support::megabytes;

const MIB: u64 = 1 << 20;

fn setting() -> MountainSetting {
    MountainSetting {
        capacity: Bytes::whole(256 * MIB),
        block: Bytes::whole(4 * MIB),
        request: Bytes::whole(MIB),
        memory: megabytes(8_000.0),
        opening: Seconds::default(),
        memory_latency: Seconds::new(2e-6).unwrap(),
        pfs: megabytes(400.0),
        pfs_latency: Seconds::new(1e-3).unwrap(),
        transfers: 4,
        policy: Policy::Cyclic,
    }
}

proptest! {
    #[test]
    fn counting_matches_sets(
        size in 0_u64..5_000, request in 1_u64..40, skip in 0_u64..200, block in 1_u64..60,
    ) {
        let (mut reads, mut given, mut blocks) = (0, 0, BTreeSet::new());
        let mut offset = 0;
        while offset < size {
            let end = (offset + request).min(size);
            reads += 1;
            given += end - offset;
            blocks.extend(offset / block..=(end - 1) / block);
            offset += request + skip;
        }
        let expected = (reads, given, blocks.len() as u64);
        prop_assert_eq!(blocks_touched(size, request, skip, block), expected);
    }

    #[test]
    fn never_above_memory_and_more_capacity_never_hurts(
        size in 1_u64..4_096, skip in 0_u64..65, less in 1_u64..2_048, more in 0_u64..2_048,
    ) {
        let mut low = setting();
        low.capacity = Bytes::whole(less * MIB);
        let mut high = low;
        high.capacity = Bytes::whole((less + more) * MIB);
        let rate = |setting| predict(&setting, size * MIB, skip * MIB).unwrap().rate;
        prop_assert!(rate(low) <= rate(high).times(1.0 + 1e-12));
        prop_assert!(rate(high) <= low.memory);
    }
}

#[test]
fn two_ridges_and_a_slope() {
    let rate = |size: u64, skip: u64| {
        predict(&setting(), size * MIB, skip * MIB).unwrap().rate.get() / 1e6
    };
    let high_ridge = rate(128, 0);
    let slope = rate(320, 0);
    let low_ridge = rate(4_096, 0);
    assert!(high_ridge > 7_500.0, "{high_ridge}");
    assert!(low_ridge < 450.0, "{low_ridge}");
    assert!(low_ridge * 1.5 < slope && slope < high_ridge / 2.0, "{slope}");
    // A skip of 1 MiB makes every second byte of a block useless, where the block must be moved.
    assert!(rate(4_096, 1) < low_ridge * 0.6);
    assert!((rate(128, 1) / high_ridge - 1.0).abs() < 0.01, "memory moves no blocks");
    // So large a skip leaves most blocks alone, and the rest fits.
    assert!(rate(4_096, 64) > 7_000.0);
}

#[test]
fn without_latency_and_skip_it_is_equation_7() {
    let mut setting = setting();
    setting.memory_latency = Seconds::default();
    setting.pfs_latency = Seconds::default();
    let point = predict(&setting, 320 * MIB, 0).unwrap();
    let hits = point.hits.get();
    assert!((hits - 63.0 / 80.0).abs() < 1e-12, "{hits}");
    // A missed byte is moved and then copied, so 1/q of the lower level includes 1/nu.
    let expected = 1.0 / (1.0 / 8_000.0 + (1.0 - hits) / 400.0);
    assert!((point.rate.get() / 1e6 / expected - 1.0).abs() < 1e-9);
}

#[test]
fn opening_counts_for_small_data() {
    let slow = MountainSetting { opening: Seconds::new(1e-3).unwrap(), ..setting() };
    let rate = |setting: &MountainSetting, size| predict(setting, size, 0).unwrap().rate.get();
    assert!(rate(&slow, MIB) < rate(&setting(), MIB) * 0.15);
    assert!(rate(&slow, 200 * MIB) > rate(&setting(), 200 * MIB) * 0.9);
}

#[test]
fn nothing_to_measure_is_refused() {
    assert!(predict(&setting(), 0, 0).is_err());
    assert!(predict(&MountainSetting { transfers: 0, ..setting() }, MIB, 0).is_err());
    assert!(predict(&MountainSetting { block: Bytes::default(), ..setting() }, MIB, 0).is_err());
}
