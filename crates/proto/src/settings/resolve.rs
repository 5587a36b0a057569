//! Turns what was written in file, environment and command line into a [`NodeConfig`]: one
//! function that takes every option apart, so that none can be forgotten.
//!
//! Reads no file and asks no system call; the machine's facts come as [`Machine`].

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::others;
use crate::config::{
    Backing, ClientLimits, ControlConfig, DirectoryRule, Feature, LogFormat, LogLevel, NodeConfig,
    StripeHints, UserQuota, WriteBackCheck, memory_min_default_bytes,
};
use crate::control::{ControlSetting, check_lease, parameter_options, policy_interval_ms};
use crate::entry::ConfigEntry;
use crate::error::{Error, ErrorKind, Result};
use crate::option::{
    OPTIONS, OptionKind, OptionSpec, Origin, QUOTA_KEYS, RULE_KEYS, RawConfig, RawOptions,
    RawQuota, RawRule, Setting, Switch,
};
use crate::size::{ByteSize, MemoryLimit, MemorySize};

/// Longest path of a Unix socket in bytes, without the closing zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What the configuration needs to know of the machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Memory that this node may use at most, in bytes.
    pub memory_bytes: u64,
    /// What that limit is, in words: `the machine's memory` or the control group's path.
    pub memory_limit: String,
    /// Processors that this process may run on.
    pub processors: usize,
    /// Socket where none is set.
    pub socket: PathBuf,
    /// Directory that relative paths of the command line start from; empty where it is gone.
    pub working_directory: PathBuf,
    /// Looks a user name up.
    pub user_id: fn(&str) -> Option<u32>,
}

/// Validates `raw` for `machine`. Unset options take their defaults.
pub fn resolve(raw: RawConfig, machine: &Machine) -> Result<NodeConfig> {
    let RawConfig { options, rules, quotas } = with_defaults(raw, machine);
    let entries = entries(&options, &rules, &quotas, machine);
    let o = Reader { specs: OPTIONS, place: "option" };
    let block_bytes = o.bytes("block_bytes", &options.block_bytes)?;
    let (memory, capacity_bytes) = capacity(&o, &options.memory, block_bytes, machine)?;
    let control = control_config(&options, machine, capacity_bytes)?;
    let (cluster, buffer) = others::configs(&options, machine)?;
    let client_limits = client_limits(&options)?;
    #[rustfmt::skip]
    let RawOptions {
        pfs, mount, socket, foreground, policy, read_mode, write_mode, small_file_bytes_max,
        transfers, transfer_bytes, read_ahead_bytes_max, read_buffer_bytes, fuse_threads,
        passthrough, direct_io, huge_pages, backing, pinned_share_max, timestamp_granularity_ns,
        pfs_has_no_other_writers, write_back_bytes_per_s, write_back_check, metrics_address,
        log_level, log_format, log_file, fault,
        // Taken above.
        memory: _, block_bytes: _, control: _, memory_min: _, control_lease_ms: _,
        controlled_stores: _, control_policy: _, control_interval_ms: _, control_headroom_bytes: _,
        control_actuation_delay_ms: _, control_slope_window_ms: _, control_hold_ms: _,
        control_hold_max_ms: _, control_growth_bytes_per_s: _, control_growth_band_share: _,
        control_disagreement_share: _, control_gain: _, control_used_share_target: _, cluster_nodes:
        _, cluster_name: _, cluster_key_file: _, node_name: _, node_address: _, peer_port: _,
        peer_timeout_ms: _, peer_integrity: _, peer_tls_certificate_file: _,
        peer_tls_private_key_file: _, peer_tls_authority_file: _, buffer_bytes: _, buffer_directory:
        _, buffer_disk_bytes: _, buffer_address: _, buffer_local_bytes: _, buffer_servers: _,
        client_descriptors_max: _, user_pinned_bytes_max: _, client_requests_max: _,
        user_connections_max: _,
    } = options;
    let pfs = path(&o, "pfs", &pfs, machine)?.ok_or_else(|| o.missing("pfs", "--pfs DIR"))?;
    #[rustfmt::skip]
    let config = NodeConfig {
        rules: resolve_rules(rules, &pfs, cluster.is_some())?,
        mount: path(&o, "mount", &mount, machine)?,
        socket: path(&o, "socket", &socket, machine)?.ok_or_else(|| o.missing("socket", ""))?,
        foreground: o.switch("foreground", &foreground)?,
        policy: o.required("policy", &policy)?,
        read_mode: o.required("read_mode", &read_mode)?,
        write_mode: o.required("write_mode", &write_mode)?,
        small_file_bytes_max: o.bytes("small_file_bytes_max", &small_file_bytes_max)?,
        transfers: o.required("transfers", &transfers)?,
        transfer_bytes: o.bytes("transfer_bytes", &transfer_bytes)?,
        read_ahead_bytes_max: o.bytes("read_ahead_bytes_max", &read_ahead_bytes_max)?,
        read_buffer_bytes: o.bytes("read_buffer_bytes", &read_buffer_bytes)?,
        fuse_threads: o.required("fuse_threads", &fuse_threads)?,
        passthrough: o.required("passthrough", &passthrough)?,
        direct_io: o.required("direct_io", &direct_io)?,
        huge_pages: o.required("huge_pages", &huge_pages)?,
        backing: o.required("backing", &backing)?,
        pinned_share_max: o.required("pinned_share_max", &pinned_share_max)?,
        metrics_address: o.optional("metrics_address", &metrics_address)?,
        log_level: o.required("log_level", &log_level)?,
        log_format: o.required("log_format", &log_format)?,
        log_file: path(&o, "log_file", &log_file, machine)?,
        timestamp_granularity_ns: o
            .optional("timestamp_granularity_ns", &timestamp_granularity_ns)?,
        pfs_has_no_other_writers: o
            .switch("pfs_has_no_other_writers", &pfs_has_no_other_writers)?,
        write_back_bytes_per_s: o
            .optional::<ByteSize>("write_back_bytes_per_s", &write_back_bytes_per_s)?
            .map(|rate| rate.0),
        write_back_check: o.required("write_back_check", &write_back_check)?,
        fault: o.optional("fault", &fault)?,
        quotas: resolve_quotas(quotas, machine)?,
        capacity_bytes, pfs, memory, block_bytes, client_limits, control, cluster, buffer, entries,
    };
    check_relations(&config)?;
    Ok(config)
}

/// The configuration that a node over `pfs` has if nothing else is set: for programs that start a
/// node of their own, and for tests. The socket is `socket`; the machine is not asked for limits.
pub fn defaults(pfs: &Path, socket: &Path, capacity_bytes: u64) -> Result<NodeConfig> {
    let machine = Machine {
        memory_bytes: u64::MAX,
        memory_limit: "the largest number".to_owned(),
        processors: std::thread::available_parallelism().map_or(2, usize::from),
        socket: socket.to_owned(),
        working_directory: PathBuf::from("/"),
        user_id: |_| None,
    };
    let mut raw = RawConfig::default();
    let setting = |text: String| Some(Setting { text, origin: Origin::Default });
    raw.options.memory = setting(capacity_bytes.to_string());
    raw.options.pfs = setting("/".to_owned());
    let config = resolve(raw, &machine)?;
    Ok(NodeConfig { pfs: pfs.to_owned(), ..config })
}

fn with_defaults(mut raw: RawConfig, machine: &Machine) -> RawConfig {
    let options = &mut raw.options;
    for spec in OPTIONS {
        let computed = match spec.name {
            "socket" => Some(machine.socket.to_string_lossy().into_owned()),
            "fuse_threads" => Some(machine.processors.clamp(2, 16).to_string()),
            _ => spec.default.map(str::to_owned),
        };
        let slot = options.slot(spec.name).expect("every option of the table has a slot");
        if let (None, Some(text)) = (&slot, computed) {
            *slot = Some(Setting { text, origin: Origin::Default });
        }
    }
    raw
}

fn entries(
    options: &RawOptions,
    rules: &[RawRule],
    quotas: &[RawQuota],
    machine: &Machine,
) -> Vec<ConfigEntry> {
    let entry = |spec: &OptionSpec| {
        let setting = options.get(spec.name);
        ConfigEntry {
            name: spec.name.to_owned(),
            value: setting.map(|setting| shown(spec, setting, machine)).unwrap_or_default(),
            unit: spec.unit.to_owned(),
            origin: setting.map_or("default", |setting| setting.origin.name()).to_owned(),
            doc: spec.doc.to_owned(),
        }
    };
    let lists = rules.iter().map(rule_entry).chain(quotas.iter().map(quota_entry));
    OPTIONS.iter().map(entry).chain(lists).collect()
}

/// A rule as operators see it: its keys as they were written.
fn rule_entry(rule: &RawRule) -> ConfigEntry {
    let doc = "Rule for this directory and all below it; the longest path wins.";
    list_entry("rule", RULE_KEYS, rule.path.as_ref(), &|name| rule.get(name), doc)
}

fn quota_entry(quota: &RawQuota) -> ConfigEntry {
    let doc = "Quota of this user.";
    list_entry("quota", QUOTA_KEYS, quota.user.as_ref(), &|name| quota.get(name), doc)
}

/// An entry of a list of the file, called by `subject`, which is its first key.
fn list_entry<'a>(
    list: &str,
    specs: &[OptionSpec],
    subject: Option<&Setting>,
    get: &dyn Fn(&str) -> Option<&'a Setting>,
    doc: &str,
) -> ConfigEntry {
    let written = |spec: &OptionSpec| Some(format!("{} = {}", spec.name, get(spec.name)?.text));
    let values: Vec<String> = specs.iter().skip(1).filter_map(written).collect();
    ConfigEntry {
        name: format!("{list} {}", subject.map_or("", |setting| &setting.text)),
        value: values.join(", "),
        unit: String::new(),
        origin: subject.map_or("default", |setting| setting.origin.name()).to_owned(),
        doc: doc.to_owned(),
    }
}

/// A value as operators see it: what is relative to the working directory is of no use elsewhere.
fn shown(spec: &OptionSpec, setting: &Setting, machine: &Machine) -> String {
    match spec.kind {
        OptionKind::Path => {
            machine.working_directory.join(&setting.text).to_string_lossy().into_owned()
        }
        _ => setting.text.clone(),
    }
}

fn control_config(
    options: &RawOptions,
    machine: &Machine,
    capacity_bytes: u64,
) -> Result<ControlConfig> {
    let o = Reader { specs: OPTIONS, place: "option" };
    let memory: MemorySize = o.required("memory", &options.memory)?;
    let asked_bytes = memory.resolve(machine.memory_bytes);
    let memory_min: Option<MemorySize> = o.optional("memory_min", &options.memory_min)?;
    Ok(ControlConfig {
        is_on: o.required::<Feature>("control", &options.control)? == Feature::On,
        memory_min_bytes: match memory_min.map(|size| size.resolve(machine.memory_bytes)) {
            None => memory_min_default_bytes(capacity_bytes),
            // The same size as that of the memory is all of its whole blocks.
            Some(bytes) if bytes <= asked_bytes => bytes.min(capacity_bytes),
            Some(bytes) => bytes,
        },
        lease_ms: o.required("control_lease_ms", &options.control_lease_ms)?,
        parameters: control_parameters(options)?,
        stores_file: path(&o, "controlled_stores", &options.controlled_stores, machine)?,
    })
}

fn client_limits(options: &RawOptions) -> Result<ClientLimits> {
    let o = Reader { specs: OPTIONS, place: "option" };
    Ok(ClientLimits {
        descriptors_max: o.required("client_descriptors_max", &options.client_descriptors_max)?,
        pinned_bytes_max: o.bytes("user_pinned_bytes_max", &options.user_pinned_bytes_max)?,
        requests_max: o.required("client_requests_max", &options.client_requests_max)?,
        connections_max: o.required("user_connections_max", &options.user_connections_max)?,
    })
}

/// The parameters of the control policies as written, each checked by its grammar.
fn control_parameters(options: &RawOptions) -> Result<Vec<ControlSetting>> {
    let reader = Reader { specs: OPTIONS, place: "option" };
    let setting = |spec: &OptionSpec| {
        let written = options.get(spec.name).cloned();
        let value: String = reader.required(spec.name, &written)?;
        Ok(ControlSetting { name: spec.name.to_owned(), value })
    };
    parameter_options().map(setting).collect()
}

/// Reads settings by the rules of their table.
pub(crate) struct Reader {
    /// Its table.
    pub specs: &'static [OptionSpec],
    /// What the settings are, for errors.
    pub place: &'static str,
}

impl Reader {
    /// An error about what was written.
    pub fn invalid(&self, name: &str, setting: &Setting, why: &str, valid: &str) -> Error {
        let detail = format!("`{}` {why} ({})", setting.text, setting.origin);
        let error =
            Error::new(ErrorKind::InvalidInput, format!("reading {} `{name}`", self.place), detail);
        if valid.is_empty() { error } else { error.remedy(format!("valid: {valid}")) }
    }

    /// An error about what was not written.
    pub fn missing(&self, name: &str, remedy: &str) -> Error {
        let operation = format!("reading {} `{name}`", self.place);
        Error::new(ErrorKind::InvalidInput, operation, "it is required but not set")
            .remedy(format!("set it: {remedy}"))
    }

    /// A switch.
    pub fn switch(&self, name: &str, setting: &Option<Setting>) -> Result<bool> {
        Ok(self.required::<Switch>(name, setting)?.0)
    }

    /// A setting, if it was written.
    pub fn optional<T: FromStr>(&self, name: &str, setting: &Option<Setting>) -> Result<Option<T>> {
        let Some(setting) = setting else { return Ok(None) };
        let spec = self.specs.iter().find(|spec| spec.name == name).expect("a name of the table");
        let valid = spec.kind.valid();
        spec.kind.check(&setting.text).map_err(|why| self.invalid(name, setting, &why, &valid))?;
        let parsed = setting.text.trim().parse::<T>();
        parsed.map(Some).map_err(|_| self.invalid(name, setting, "is not valid", &valid))
    }

    /// A setting that is there.
    pub fn required<T: FromStr>(&self, name: &str, setting: &Option<Setting>) -> Result<T> {
        self.optional(name, setting)?.ok_or_else(|| self.missing(name, name))
    }

    /// A size in bytes.
    pub fn bytes(&self, name: &str, setting: &Option<Setting>) -> Result<u64> {
        self.required::<ByteSize>(name, setting).map(|size| size.0)
    }
}

/// A path, absolute.
pub(crate) fn path(
    reader: &Reader,
    name: &str,
    setting: &Option<Setting>,
    machine: &Machine,
) -> Result<Option<PathBuf>> {
    let Some(setting) = setting else { return Ok(None) };
    let spec_check = reader.optional::<PathBuf>(name, &Some(setting.clone()))?;
    let Some(path) = spec_check.filter(|path| path.is_relative()) else {
        return Ok(Some(PathBuf::from(&setting.text)));
    };
    if let Origin::File { .. } = setting.origin {
        let why = "is relative, and a file has no working directory";
        return Err(reader.invalid(name, setting, why, "an absolute path"));
    }
    let path = machine.working_directory.join(path);
    if path.is_relative() {
        let why = "is relative, and the directory that this runs in is gone";
        return Err(reader.invalid(name, setting, why, "an absolute path"));
    }
    if path.to_str().is_none() {
        // A node tells its paths as text, by which commands and clients find them.
        let why = "lies in a directory whose name is no UTF-8";
        return Err(reader.invalid(name, setting, why, "a path in UTF-8"));
    }
    Ok(Some(path))
}

fn capacity(
    reader: &Reader,
    setting: &Option<Setting>,
    block_bytes: u64,
    machine: &Machine,
) -> Result<(MemorySize, u64)> {
    let asked: MemorySize = reader.required("memory", setting)?;
    let origin = setting.as_ref().map_or(&Origin::Default, |setting| &setting.origin);
    let limit = MemoryLimit { bytes: machine.memory_bytes, source: machine.memory_limit.clone() };
    let words = format!("`{asked}` ({origin})");
    let bytes = limit.capacity_bytes(asked, block_bytes, "reading option `memory`", &words)?;
    Ok((asked, bytes))
}

fn check_relations(config: &NodeConfig) -> Result<()> {
    let refuse = |name: &str, detail: String, remedy: &str| {
        let operation = format!("reading option `{name}`");
        Err(Error::new(ErrorKind::InvalidInput, operation, detail).remedy(remedy))
    };
    if config.small_file_bytes_max >= config.block_bytes {
        let detail = format!(
            "{} is not less than a block of {}",
            ByteSize(config.small_file_bytes_max),
            ByteSize(config.block_bytes)
        );
        return refuse("small_file_bytes_max", detail, "lower it or raise block_bytes");
    }
    let parameter = |name: &str| {
        let setting = config.control.parameters.iter().find(|it| it.name == name);
        setting.map_or("", |it| it.value.trim())
    };
    let interval_ms = match parameter("control_interval_ms").parse().unwrap_or(0) {
        0 => policy_interval_ms(parameter("control_policy")),
        set => set,
    };
    check_lease(config.control.lease_ms, interval_ms)?;
    let bytes = config.control.memory_min_bytes;
    if bytes > config.capacity_bytes {
        let (min, memory) = (ByteSize(bytes), ByteSize(config.capacity_bytes));
        let detail = format!("{min} is more than the store of {memory}");
        return refuse("memory_min", detail, "lower it or raise memory");
    }
    let socket_bytes = config.socket.as_os_str().len();
    if socket_bytes > SOCKET_PATH_BYTES_MAX {
        let detail = format!("the path has {socket_bytes} bytes, a socket may have 107");
        return refuse("socket", detail, "choose a shorter path");
    }
    if let Some(mount) = &config.mount
        && (mount.starts_with(&config.pfs) || config.pfs.starts_with(mount))
    {
        let detail = format!("{} and {} overlap", mount.display(), config.pfs.display());
        return refuse("mount", detail, "mount outside of the PFS directory");
    }
    Ok(())
}

fn resolve_rules(
    raw: Vec<RawRule>,
    pfs: &Path,
    has_other_nodes: bool,
) -> Result<Vec<DirectoryRule>> {
    let mut rules: Vec<DirectoryRule> = Vec::with_capacity(raw.len());
    for rule in raw {
        let (setting, copies) = (rule.path.clone(), rule.copies.clone());
        let reader = Reader { specs: RULE_KEYS, place: "rule key" };
        others::check_write_mode(&reader, &rule.write_mode, has_other_nodes)?;
        let rule = resolve_rule(rule, pfs)?;
        if let Some(setting) = copies.filter(|_| rule.copies > 1 && !has_other_nodes) {
            let detail = "is for nodes that have others to hold copies";
            return Err(reader.invalid(
                "copies",
                &setting,
                detail,
                "1, or set `cluster_nodes` too",
            ));
        }
        if rules.iter().any(|other| other.path == rule.path)
            && let Some(setting) = setting
        {
            return Err(reader.invalid("path", &setting, "has a rule already", "one rule a path"));
        }
        rules.push(rule);
    }
    Ok(rules)
}

fn resolve_rule(raw: RawRule, pfs: &Path) -> Result<DirectoryRule> {
    #[rustfmt::skip]
    let RawRule {
        path, read_mode, write_mode, time_to_live_s, quota_bytes, admit, expendable, copies,
        stripe_bytes, stripe_count, stripe_servers,
    } = raw;
    let r = Reader { specs: RULE_KEYS, place: "rule key" };
    let seconds: Option<u64> = r.optional("time_to_live_s", &time_to_live_s)?;
    let servers: Option<String> = r.optional("stripe_servers", &stripe_servers)?;
    let expendable = r.optional::<Switch>("expendable", &expendable)?.is_some_and(|s| s.0);
    let copies_wanted = r.optional("copies", &copies)?.unwrap_or(1);
    if expendable
        && copies_wanted > 1
        && let Some(setting) = &copies
    {
        let detail = "is for bytes that are not `expendable`";
        return Err(r.invalid("copies", setting, detail, "one of both in a rule"));
    }
    Ok(DirectoryRule {
        path: rule_path(&r, &path, pfs)?,
        read_mode: r.optional("read_mode", &read_mode)?,
        write_mode: r.optional("write_mode", &write_mode)?,
        time_to_live: seconds.map(Duration::from_secs),
        quota_bytes: r.optional::<ByteSize>("quota_bytes", &quota_bytes)?.map(|size| size.0),
        admit: r.optional::<Switch>("admit", &admit)?.is_none_or(|switch| switch.0),
        expendable,
        copies: copies_wanted,
        stripe: StripeHints {
            stripe_bytes: r.optional::<ByteSize>("stripe_bytes", &stripe_bytes)?.map(|s| s.0),
            stripe_count: r.optional("stripe_count", &stripe_count)?,
            stripe_servers: servers
                .map(|names| names.split(',').map(|name| name.trim().to_owned()).collect())
                .unwrap_or_default(),
        },
    })
}

/// The path of a rule below the PFS directory: written so, as `tide:///...`, or in full; `/` alone
/// is the PFS directory.
fn rule_path(reader: &Reader, setting: &Option<Setting>, pfs: &Path) -> Result<PathBuf> {
    let text: String = reader.required("path", setting)?;
    let outside = || {
        let setting = setting.as_ref().expect("a required setting was read above");
        let valid = "a path below the PFS directory, such as `logs` or `tide:///logs`";
        reader.invalid("path", setting, "leads outside", valid)
    };
    let inner = match text.strip_prefix("tide://") {
        Some(inner) => Path::new(inner),
        None if text != "/" && Path::new(&text).is_absolute() => {
            Path::new(&text).strip_prefix(pfs).map_err(|_| outside())?
        }
        None => Path::new(&text),
    };
    let mut path = PathBuf::new();
    for component in inner.components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(outside()),
        }
    }
    Ok(path)
}

fn resolve_quotas(raw: Vec<RawQuota>, machine: &Machine) -> Result<Vec<UserQuota>> {
    let r = Reader { specs: QUOTA_KEYS, place: "quota key" };
    let mut quotas: Vec<UserQuota> = Vec::with_capacity(raw.len());
    for RawQuota { user, bytes } in raw {
        let name: String = r.required("user", &user)?;
        let setting = user.as_ref().expect("a required setting was read above");
        let user_id = name.parse().ok().or_else(|| (machine.user_id)(&name));
        let user_id = user_id.ok_or_else(|| {
            r.invalid("user", setting, "is no user of this machine", "a user name or number")
        })?;
        if quotas.iter().any(|quota| quota.user_id == user_id) {
            return Err(r.invalid("user", setting, "has a quota already", "one quota a user"));
        }
        quotas.push(UserQuota { user_id, quota_bytes: r.bytes("bytes", &bytes)? });
    }
    Ok(quotas)
}

macro_rules! parse_names {
    ($type:ty: $($name:literal => $value:expr),+) => {
        impl $type {
            /// The stable name used in options and JSON.
            pub fn name(self) -> &'static str {
                $(if self == $value { return $name; })+
                unreachable!("every value has a name")
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($name => Ok($value),)+
                    other => Err(Error::new(
                        ErrorKind::InvalidInput,
                        "reading a name",
                        format!("`{other}` is none of: {}", [$($name),+].join(", ")),
                    )),
                }
            }
        }
    };
}

parse_names!(Feature: "auto" => Feature::Auto, "on" => Feature::On, "off" => Feature::Off);
parse_names!(Backing:
    "auto" => Backing::Auto, "memfd" => Backing::Memfd, "tmpfs" => Backing::Tmpfs);
parse_names!(WriteBackCheck:
    "off" => WriteBackCheck::Off, "sampled" => WriteBackCheck::Sampled,
    "all" => WriteBackCheck::All);
parse_names!(LogLevel:
    "error" => LogLevel::Error, "warn" => LogLevel::Warn, "info" => LogLevel::Info,
    "debug" => LogLevel::Debug, "trace" => LogLevel::Trace);
parse_names!(LogFormat: "text" => LogFormat::Text, "json" => LogFormat::Json);

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
