//! Applies a changed configuration to the running node (SIGHUP). Options that a running node
//! cannot change are named, and stay as they are.

use tidepool_proto::admin::{AdminRequest, AdminService, ConfigEntry};
use tidepool_proto::config::ControlConfig;
use tidepool_proto::option::option;
use tidepool_proto::{MemorySize, NodeConfig, Result};

use crate::logging::Log;

/// Names of options whose value differs; rules and quotas are compared by themselves.
fn changed<'a>(before: &[ConfigEntry], after: &'a [ConfigEntry]) -> Vec<&'a str> {
    let differs = |entry: &&ConfigEntry| {
        before.iter().find(|old| old.name == entry.name).is_none_or(|old| old.value != entry.value)
    };
    let is_option = |entry: &&ConfigEntry| option(&entry.name).is_some();
    after.iter().filter(is_option).filter(differs).map(|entry| entry.name.as_str()).collect()
}

/// Makes `present` become `wanted` as far as a running node can, and logs each step. Returns what
/// is in force now.
pub fn apply(
    present: &NodeConfig,
    wanted: NodeConfig,
    node: &dyn AdminService,
    log: &Log,
) -> Result<NodeConfig> {
    let mut in_force = present.clone();
    for name in changed(&present.entries, &wanted.entries) {
        if !option(name).is_some_and(|spec| spec.live) {
            tracing::warn!(option = name, "this change needs a restart of the node");
            continue;
        }
        match name {
            "memory" => {
                let capacity_bytes = wanted.capacity_bytes;
                let size = MemorySize::Bytes(capacity_bytes);
                node.admin(AdminRequest::Resize { size }, None, 0)?;
                (in_force.memory, in_force.capacity_bytes) = (wanted.memory, capacity_bytes);
            }
            "policy" => {
                let policy = wanted.policy.clone();
                node.admin(AdminRequest::SetPolicy { policy: policy.clone() }, None, 0)?;
                in_force.policy = policy;
            }
            "log_level" => {
                log.set_level(wanted.log_level);
                in_force.log_level = wanted.log_level;
            }
            "memory_min" => {
                let bytes = wanted.control.memory_min_bytes;
                set_control(node, name, &bytes.to_string())?;
                in_force.control.memory_min_bytes = bytes;
            }
            // All that is left are settings of the memory control.
            name => {
                let entry = wanted.entries.iter().find(|entry| entry.name == name);
                set_control(node, name, entry.map_or("", |entry| &entry.value))?;
                in_force.control = ControlConfig {
                    memory_min_bytes: in_force.control.memory_min_bytes,
                    ..wanted.control.clone()
                };
            }
        }
        take_entry(&mut in_force.entries, &wanted.entries, name);
        tracing::info!(option = name, "changed");
    }
    if (&present.rules, &present.quotas) != (&wanted.rules, &wanted.quotas) {
        tracing::warn!("changed rules and quotas need a restart of the node");
    }
    Ok(in_force)
}

fn set_control(node: &dyn AdminService, name: &str, value: &str) -> Result<()> {
    let request = AdminRequest::SetControl { name: name.to_owned(), value: value.to_owned() };
    node.admin(request, None, 0).map(drop)
}

fn take_entry(into: &mut [ConfigEntry], from: &[ConfigEntry], name: &str) {
    let source = from.iter().find(|entry| entry.name == name);
    let target = into.iter_mut().find(|entry| entry.name == name);
    if let (Some(source), Some(target)) = (source, target) {
        *target = source.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tidepool_node::check_setting;
    use tidepool_proto::option::OPTIONS;

    #[test]
    fn every_live_option_is_one_that_a_reload_applies() {
        let live = OPTIONS.iter().filter(|spec| spec.live).map(|spec| spec.name);
        let own = ["memory", "policy", "log_level"];
        for name in live {
            let known = own.contains(&name) || check_setting(name, "").is_err_and(is_a_value);
            assert!(known, "extend `apply` by {name}");
        }
    }

    /// Whether only the empty value was refused, not the name.
    fn is_a_value(error: tidepool_proto::Error) -> bool {
        error.to_string().contains("empty")
    }

    #[test]
    fn changes_are_found_by_value() {
        let config = tidepool_proto::resolve::defaults;
        let before = config(Path::new("/pfs"), Path::new("/s"), 8 << 20).unwrap();
        let after = config(Path::new("/pfs"), Path::new("/s"), 16 << 20).unwrap();
        assert_eq!(changed(&before.entries, &after.entries), ["memory"]);
        assert!(changed(&before.entries, &before.entries).is_empty());
    }
}
