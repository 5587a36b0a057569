//! One thread, one step at a time: what each operation promises.

use super::support::*;
use crate::{BlockState, FillStart};

#[test]
fn a_block_is_filled_read_evicted() {
    let store = store(4);
    let segment = segment(&store, 3 * BLOCK + 5);
    assert_eq!((segment.blocks(), segment.size()), (4, 3 * BLOCK + 5));
    assert!(segment.pin_block(0).is_none());
    for block in 0..4 {
        assert!(fill_clean(&segment, block, block as u8 + 1));
    }
    assert!(matches!(segment.begin_fill(1), FillStart::Resident));
    assert!(matches!(segment.begin_fill(4), FillStart::NotAdmitted), "beyond the end");
    assert_eq!(segment.pin_block(3).unwrap().len(), 5);
    assert_eq!(segment.resident_bytes(), 3 * BLOCK + 5);
    assert!(segment.is_wholly_resident());
    for block in 0..4 {
        assert_holds(&segment, block, block as u8 + 1);
    }
    assert!(segment.evict_block(1));
    assert_eq!(segment.state(1), BlockState::Absent);
    assert!(!segment.is_wholly_resident());
    assert_eq!(segment.evict(), 2 * BLOCK + 4096);
    assert_eq!(store.stats().resident_bytes, 0);
}
