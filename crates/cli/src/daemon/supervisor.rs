//! What the process adds to the node's answers to the command line: the memory limit of the
//! machine, and which values of the configuration were changed since the start.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tidepool_control::settings::parameters;
use tidepool_control_policy::NodeFacts;
use tidepool_node::{Node, check_setting};
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService, ConfigEntry};
use tidepool_proto::config::ControlConfig;
use tidepool_proto::control::{ControlSetting, ControlStatus, parameter_options};
use tidepool_proto::option::{OptionKind, option};
use tidepool_proto::{ByteSize, Error, ErrorKind, MemorySize, NodeConfig, Result};

use super::controller::Controller;
use crate::machine::memory_limit;

/// The node as the socket and the metrics see it.
pub struct Supervisor {
    node: Arc<Node>,
    /// Values and their origins as of the start or the latest reload.
    configured: Mutex<(u64, Vec<ConfigEntry>)>,
    controller: Controller,
    control: Mutex<ControlConfig>,
}

impl Supervisor {
    /// Around a `node` that was started with `config`. Its controller does not run yet.
    pub fn new(node: Arc<Node>, config: &NodeConfig) -> Supervisor {
        Supervisor {
            node,
            configured: Mutex::new((config.capacity_bytes, config.entries.clone())),
            controller: Controller::new(config),
            control: Mutex::new(config.control.clone()),
        }
    }

    /// Runs the controller if it is wanted. The socket must be served by now.
    pub fn start_control(self: &Arc<Self>) -> Result<()> {
        let supervisor = Arc::downgrade(self);
        self.node.surround(|surroundings| {
            surroundings.control = Some(Box::new(move |status| {
                if let Some(supervisor) = supervisor.upgrade() {
                    supervisor.controller.describe(status);
                    status.warnings.extend(warnings(status));
                }
            }));
        });
        let wanted = self.control.lock().is_on;
        if wanted { self.controller.want(true, &self.node) } else { Ok(()) }
    }

    /// Waits until the controller governs, so that whoever is told of a start finds it governing.
    /// A node whose controller does not come in time serves all the same: what to tell of it.
    pub fn wait_for_control(&self) -> Option<String> {
        let wanted = self.control.lock().is_on;
        if !wanted || self.controller.wait_until_it_governs(&self.node) {
            return None;
        }
        let why = "no memory controller governs yet, and the store keeps its guaranteed part until \
                   one does: the log and `tidepool control status` say why";
        Some(why.to_owned())
    }

    /// Ends the controller.
    pub fn stop_control(&self) {
        self.controller.stop();
    }

    /// Changes a setting of the control: refused where it cannot work on this machine.
    fn set_control(&self, name: &str, value: &str) -> Result<()> {
        check_setting(name, value)?;
        let mut control = self.control.lock();
        let mut value = value.trim().to_owned();
        if name == "memory_min" {
            let bytes = value.parse::<MemorySize>()?.resolve(memory_limit()?.bytes);
            value = bytes.to_string();
        }
        self.check_parameters(name, &value)?;
        let request = AdminRequest::SetControl { name: name.to_owned(), value: value.clone() };
        self.node.admin(request, None, 0)?;
        if name == "control" {
            control.is_on = value == "on";
        }
        if control.is_on {
            self.controller.want(true, &self.node)?;
            drop(control);
            if name == "control" {
                // Where it does not come, the status says so.
                self.controller.wait_until_it_governs(&self.node);
            }
            return Ok(());
        }
        self.controller.want(false, &self.node)?;
        self.node.release_control();
        Ok(())
    }

    /// Refuses parameters under which the control would be unstable or without meaning here.
    fn check_parameters(&self, name: &str, value: &str) -> Result<()> {
        let status = self.node.control_status();
        let mut settings = parameters_of(&status);
        let Some(setting) = settings.iter_mut().find(|setting| setting.name == name) else {
            return Ok(());
        };
        setting.value = value.to_owned();
        parameters(&settings)?.check(&facts(&status)).map(drop)
    }

    /// A changed configuration was taken over: its values are no changes by command.
    pub fn reloaded(&self, config: &NodeConfig) {
        *self.configured.lock() = (config.capacity_bytes, config.entries.clone());
    }

    /// Values that were changed by command show as such.
    fn present(&self) -> Vec<ConfigEntry> {
        let (capacity_bytes, mut entries) = self.configured.lock().clone();
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
        overlay("memory", ByteSize(ceiling).to_string(), &|_| ceiling == capacity_bytes);
        for setting in status.control.settings {
            let bytes = bytes_of(&setting.name, &setting.value);
            let unchanged = |value: &str| {
                value == setting.value || bytes.is_some() && bytes_of(&setting.name, value) == bytes
            };
            let value = bytes.map_or(setting.value.clone(), |bytes| ByteSize(bytes).to_string());
            overlay(&setting.name, value, &unchanged);
        }
        entries
    }
}

impl AdminService for Supervisor {
    fn pfs_root(&self) -> PathBuf {
        self.node.pfs_root()
    }

    fn admin(
        &self,
        request: AdminRequest,
        descriptor: Option<OwnedFd>,
        user_id: u32,
    ) -> Result<AdminReply> {
        self.admin_while(request, descriptor, user_id, &|| true)
    }

    fn admin_while(
        &self,
        request: AdminRequest,
        descriptor: Option<OwnedFd>,
        user_id: u32,
        go_on: &dyn Fn() -> bool,
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
        if let AdminRequest::SetControl { name, value } = &request {
            self.set_control(name, value)?;
            return Ok(AdminReply::Done);
        }
        match self.node.admin_while(request, descriptor, user_id, go_on)? {
            AdminReply::Config(_) => Ok(AdminReply::Config(self.present())),
            reply => Ok(reply),
        }
    }

    fn control_pages(&self, fence: u64) -> Result<[OwnedFd; 2]> {
        self.node.control_pages(fence)
    }
}

/// The value of an option that is a size.
fn bytes_of(name: &str, value: &str) -> Option<u64> {
    let kind = option(name)?.kind;
    if !matches!(kind, OptionKind::Bytes { .. } | OptionKind::Memory) {
        return None;
    }
    let total_bytes = memory_limit().ok()?.bytes;
    value.trim().parse::<MemorySize>().ok().map(|size| size.resolve(total_bytes))
}

fn parameters_of(status: &ControlStatus) -> Vec<ControlSetting> {
    let is_parameter = |name: &str| parameter_options().any(|spec| spec.name == name);
    let ours = status.settings.iter().filter(|entry| is_parameter(&entry.name));
    ours.map(|entry| ControlSetting { name: entry.name.clone(), value: entry.value.clone() })
        .collect()
}

/// What the check of parameters can know of this machine.
fn facts(status: &ControlStatus) -> NodeFacts {
    let report = status.report.as_ref();
    NodeFacts {
        memory_total_bytes: memory_limit().map_or(0, |limit| limit.bytes),
        capacity_min_bytes: status.guaranteed_bytes.min(status.ceiling_bytes),
        capacity_max_bytes: status.ceiling_bytes,
        delay_ms: report.map_or(0.0, |report| report.reaction_us_median as f64 / 1e3),
        release_bytes_per_s: report.map_or(0, |report| report.release_bytes_per_s),
        ..NodeFacts::default()
    }
}

/// What the present parameters risk, one line each.
fn warnings(status: &ControlStatus) -> Vec<String> {
    if !status.enabled {
        return Vec::new();
    }
    let checked = parameters(&parameters_of(status)).and_then(|it| it.check(&facts(status)));
    match checked {
        Ok(warnings) => {
            warnings.into_iter().map(|it| format!("{}: {}", it.parameter, it.text)).collect()
        }
        Err(error) => vec![error.to_string()],
    }
}
