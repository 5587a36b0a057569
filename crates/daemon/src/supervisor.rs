//! Answers the requests of the socket and of the metrics endpoint: by the node, with the facts that
//! only the process around it has (mount, clients, controller, values changed since the start).

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tidepool_control::settings::parameters;
use tidepool_control_policy::NodeFacts;
use tidepool_node::server::Server;
use tidepool_node::{Node, check_setting};
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService, ConfigEntry, Status};
use tidepool_proto::config::ControlConfig;
use tidepool_proto::control::{ControlSetting, ControlStatus, parameter_options};
use tidepool_proto::option::{OptionKind, option};
use tidepool_proto::{ByteSize, MemorySize, NodeConfig, Result, metric};

use crate::capacity::Capacity;
use crate::controller::Controller;
use crate::machine::memory_limit;

/// The node as the socket and the metrics see it.
pub struct Supervisor {
    node: Arc<Node>,
    block_bytes: u64,
    /// Values and their origins as of the start or the latest reload.
    configured: Mutex<(u64, Vec<ConfigEntry>)>,
    controller: Controller,
    control: Mutex<ControlConfig>,
    front_ends: Mutex<FrontEnds>,
    server: OnceLock<Weak<Server>>,
    on_stop: Box<dyn Fn() + Send + Sync>,
}

/// What `status` says of the front ends.
#[derive(Default)]
pub struct FrontEnds {
    /// Mount point in use.
    pub mount: Option<String>,
    /// What they lack on this machine, or what happened to them, one line each.
    pub notes: Vec<String>,
}

impl Supervisor {
    /// Around a `node` that was started with `config`. Its controller does not run yet. `on_stop`
    /// is called once a drain that is to end the node is done.
    pub fn new(
        node: Arc<Node>,
        config: &NodeConfig,
        on_stop: impl Fn() + Send + Sync + 'static,
    ) -> Supervisor {
        Supervisor {
            node,
            block_bytes: config.block_bytes,
            configured: Mutex::new((config.capacity_bytes, config.entries.clone())),
            controller: Controller::new(config),
            control: Mutex::new(config.control.clone()),
            front_ends: Mutex::default(),
            server: OnceLock::new(),
            on_stop: Box::new(on_stop),
        }
    }

    /// Counts the clients of `server` from now on.
    pub fn count_clients_of(&self, server: &Arc<Server>) {
        // There is one server a process.
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// Changes what is said of the front ends.
    pub fn change_front_ends(&self, change: impl FnOnce(&mut FrontEnds)) {
        change(&mut self.front_ends.lock());
    }

    /// Facts and counters of the node and of the process around it.
    pub fn status(&self) -> Status {
        self.complete(self.node.status())
    }

    /// Adds to a status of the node what the process around it knows.
    fn complete(&self, mut status: Status) -> Status {
        let front_ends = self.front_ends.lock();
        status.mount = front_ends.mount.clone();
        status.degraded.extend(front_ends.notes.iter().cloned());
        drop(front_ends);
        let server = self.server.get().and_then(Weak::upgrade);
        status.clients = server.map_or(0, |server| server.counts().connections);
        self.describe_control(&mut status.control);
        status
    }

    fn describe_control(&self, status: &mut ControlStatus) {
        self.controller.describe(status);
        status.warnings.extend(warnings(status));
    }

    /// Runs the controller if it is wanted. The socket must be served by now.
    pub fn start_control(&self) -> Result<()> {
        let wanted = self.control.lock().is_on;
        if wanted { self.controller.want(true, &self.node) } else { Ok(()) }
    }

    /// Waits until the controller governs, so that a caller that is told of a start finds it
    /// governing. A node whose controller does not come in time serves all the same: what to tell
    /// of it.
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

    fn admin_while(
        &self,
        request: AdminRequest,
        descriptor: Option<OwnedFd>,
        user_id: u32,
        go_on: &dyn Fn() -> bool,
    ) -> Result<AdminReply> {
        let request = match request {
            AdminRequest::SetControl { name, value } => {
                self.set_control(&name, &value)?;
                return Ok(AdminReply::Done);
            }
            AdminRequest::Resize { size } => {
                let capacity = Capacity::judge(size, self.block_bytes)?;
                let size = MemorySize::Bytes(capacity.bytes);
                let request = AdminRequest::Resize { size };
                let reply = self.node.admin_while(request, descriptor, user_id, go_on)?;
                return Ok(capacity.add_to(reply));
            }
            // Not the node's own, which knows less.
            AdminRequest::Metrics => {
                return Ok(AdminReply::Metrics(metric::render(&self.status())));
            }
            request => request,
        };
        let ends_node = matches!(request, AdminRequest::Drain { stop: true });
        let reply = match self.node.admin_while(request, descriptor, user_id, go_on)? {
            AdminReply::Status(status) => AdminReply::Status(Box::new(self.complete(*status))),
            AdminReply::Config(_) => AdminReply::Config(self.present()),
            AdminReply::Control(mut status) => {
                self.describe_control(&mut status);
                AdminReply::Control(status)
            }
            reply => reply,
        };
        if ends_node {
            (self.on_stop)();
        }
        Ok(reply)
    }

    fn control_pages(&self, fence: u64) -> Result<[OwnedFd; 2]> {
        self.node.control_pages(fence)
    }

    fn observed_page(&self) -> Result<OwnedFd> {
        self.node.observed_page()
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
