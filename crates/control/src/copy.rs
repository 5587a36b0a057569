//! Copies readings into memory that is allocated already, so that a tick does not allocate.

use tidepool_control_policy::{Decision, Limit, Snapshot, StoreState};

/// Makes `to` equal to `from`.
pub(crate) fn decision(from: &Decision, to: &mut Decision) {
    let mut alarms = std::mem::take(&mut to.alarms);
    alarms.clone_from(&from.alarms);
    *to = Decision { alarms, ..*from };
}

/// Makes `to` equal to `from`.
pub(crate) fn snapshot(from: &Snapshot, to: &mut Snapshot) {
    let mut limits = std::mem::take(&mut to.limits);
    limits.resize_with(from.limits.len(), Limit::default);
    from.limits.iter().zip(&mut limits).for_each(|(from, to)| limit(from, to));
    let mut memory_nodes = std::mem::take(&mut to.memory_nodes);
    memory_nodes.clone_from(&from.memory_nodes);
    let mut stores = std::mem::take(&mut to.stores);
    stores.resize_with(from.stores.len(), StoreState::default);
    from.stores.iter().zip(&mut stores).for_each(|(from, to)| store(from, to));
    *to = Snapshot { limits, memory_nodes, stores, ..*from };
}

/// Makes `to` equal to `from`.
pub(crate) fn store(from: &StoreState, to: &mut StoreState) {
    let mut name = std::mem::take(&mut to.name);
    name.clone_from(&from.name);
    *to = StoreState { name, ..*from };
}

fn limit(from: &Limit, to: &mut Limit) {
    let mut name = std::mem::take(&mut to.name);
    name.clone_from(&from.name);
    *to = Limit { name, ..*from };
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_control_policy::MemoryNode;

    #[test]
    fn a_copy_is_equal_whatever_was_there() {
        let store = |name: &str| StoreState { name: name.to_owned(), ..StoreState::default() };
        let limit = Limit { name: "/job".to_owned(), hits: 3, ..Limit::default() };
        let big = Snapshot {
            at_ns: 7,
            available_bytes: Some(5),
            limits: vec![limit; 3],
            memory_nodes: vec![MemoryNode { number: 1, ..MemoryNode::default() }],
            stores: vec![store("first"), store("second")],
            ..Snapshot::default()
        };
        let small = Snapshot { stores: vec![store("third")], ..Snapshot::default() };
        let mut copied = Snapshot::default();
        for from in [&small, &big, &small, &Snapshot::default()] {
            snapshot(from, &mut copied);
            assert_eq!(*from, copied);
        }
    }
}
