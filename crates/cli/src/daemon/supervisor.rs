//! What the process adds to the node's answers to the command line: the memory limit of the
//! machine, and which values of the configuration were changed since the start.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidepool_node::Node;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService, ConfigEntry};
use tidepool_proto::{ByteSize, Error, ErrorKind, Result};

use crate::machine::memory_limit;

/// The node as the socket and the metrics see it.
pub struct Supervisor {
    node: Arc<Node>,
    configured_capacity_bytes: u64,
}

impl Supervisor {
    /// Around a `node` that was started with a store of `configured_capacity_bytes`.
    pub fn new(node: Arc<Node>, configured_capacity_bytes: u64) -> Supervisor {
        Supervisor { node, configured_capacity_bytes }
    }

    /// Values that were changed by command show as such.
    fn present(&self, mut entries: Vec<ConfigEntry>) -> Vec<ConfigEntry> {
        let status = self.node.status();
        let store = status.store;
        let mut overlay = |name: &str, value: String, unchanged: &dyn Fn(&str) -> bool| {
            let entry = entries.iter_mut().find(|entry| entry.name == name);
            if let Some(entry) = entry.filter(|entry| !unchanged(&entry.value)) {
                entry.value = value;
                entry.origin = "live change".to_owned();
            }
        };
        let policy = store.policy.clone();
        overlay("policy", policy.clone(), &|value| value == policy);
        // What a controller does below its ceiling is no change of the configuration.
        let ceiling = status.control.ceiling_bytes;
        let started_with = self.configured_capacity_bytes;
        overlay("memory", ByteSize(ceiling).to_string(), &|_| ceiling == started_with);
        for setting in status.control.settings {
            overlay(&setting.name, setting.value.clone(), &|value| value == setting.value);
        }
        entries
    }
}

impl AdminService for Supervisor {
    fn admin(
        &self,
        request: AdminRequest,
        descriptor: Option<OwnedFd>,
        user_id: u32,
    ) -> Result<AdminReply> {
        if let AdminRequest::Resize { capacity_bytes } = request {
            let limit = memory_limit()?;
            if capacity_bytes > limit.bytes {
                let (asked, has) = (ByteSize(capacity_bytes), ByteSize(limit.bytes));
                let detail = format!("{asked} is more than {}, which is {has}", limit.source);
                return Err(Error::new(ErrorKind::InvalidInput, "resizing the store", detail)
                    .remedy("ask for less, or for a share such as 60%"));
            }
        }
        match self.node.admin(request, descriptor, user_id)? {
            AdminReply::Config(entries) => Ok(AdminReply::Config(self.present(entries))),
            reply => Ok(reply),
        }
    }
}
