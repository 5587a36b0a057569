//! Parses the options of the Hadoop front end, which Java passes as strings. The table of
//! `tidepool_proto::hadoop` defines them.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tidepool_proto::config::StripeHints;
use tidepool_proto::hadoop::{HADOOP_OPTIONS, RawHadoop, key, option_of_key};
use tidepool_proto::option::{OptionSpec, Origin, Setting, Switch};
use tidepool_proto::{ByteSize, Error, ErrorKind, ReadMode, Result, WriteMode};

/// Keys of Hadoop's own below our prefix: which class serves the scheme.
const OTHER_KEYS: &str = "fs.tide.impl";

/// Options, understood.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) pfs: Option<PathBuf>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) fall_through: bool,
    pub(crate) short_circuit: bool,
    pub(crate) retry_interval: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) open: OpenSettings,
}

/// Those of them that each open may choose for itself.
#[derive(Clone, Debug)]
pub(crate) struct OpenSettings {
    pub(crate) read_mode: Option<ReadMode>,
    pub(crate) write_mode: Option<WriteMode>,
    pub(crate) read_buffer_bytes: u64,
    pub(crate) write_buffer_bytes: u64,
    pub(crate) split_bytes: u64,
    pub(crate) stripe: StripeHints,
}

/// Reads a whole configuration; warnings name keys that are probably mistakes.
pub(crate) fn understand(pairs: Vec<(String, String)>) -> Result<(Settings, Vec<String>)> {
    let mut raw = RawHadoop::default();
    let mut warnings = Vec::new();
    for (name, value) in pairs {
        match option_of_key(&name) {
            Some(spec) => put(&mut raw, spec, &name, value)?,
            None if name.starts_with(OTHER_KEYS) => {}
            None => warnings.push(format!("{name} is no option; it is ignored")),
        }
    }
    for spec in HADOOP_OPTIONS {
        let slot = raw.slot(spec.name).expect("every option has a slot");
        if let (None, Some(default)) = (&slot, spec.default) {
            *slot = Some(Setting { text: default.to_owned(), origin: Origin::Default });
        }
    }
    Ok((settings(raw)?, warnings))
}

/// The settings of one open: those of the client with what the open asks for on top.
pub(crate) fn overlay(base: &OpenSettings, pairs: Vec<(String, String)>) -> Result<OpenSettings> {
    let mut raw = RawHadoop::default();
    for (name, value) in pairs {
        match option_of_key(&name) {
            Some(spec) if spec.live => put(&mut raw, spec, &name, value)?,
            Some(_) => {
                let detail = "it holds for a whole file system, not for one open";
                return Err(invalid(&name, detail).remedy("set it in the configuration"));
            }
            None => return Err(invalid(&name, "there is no such option")),
        }
    }
    open_settings(&raw, Some(base))
}

fn invalid(name: &str, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("reading the option {name}"), detail)
}

fn put(raw: &mut RawHadoop, spec: &OptionSpec, name: &str, value: String) -> Result<()> {
    let value = value.trim().to_owned();
    spec.kind.check(&value).map_err(|wrong| {
        invalid(name, format!("`{value}` {wrong}")).remedy(format!("valid: {}", spec.kind.valid()))
    })?;
    let setting = Setting { text: value, origin: Origin::CommandLine(name.to_owned()) };
    *raw.slot(spec.name).expect("every option has a slot") = Some(setting);
    Ok(())
}

fn settings(raw: RawHadoop) -> Result<Settings> {
    let open = open_settings(&raw, None)?;
    #[rustfmt::skip]
    let RawHadoop {
        pfs, socket, fall_through, short_circuit, retry_interval_ms, request_timeout_ms,
        // Java's own.
        host_names: _, home_prefix: _, other_users: _,
        // Those of each open are taken above.
        read_mode: _, write_mode: _, read_buffer_bytes: _, write_buffer_bytes: _, split_bytes: _,
        stripe_bytes: _, stripe_count: _, stripe_servers: _,
    } = raw;
    let milliseconds = |name, setting| required::<u64>(name, setting).map(Duration::from_millis);
    Ok(Settings {
        pfs: value("pfs", &pfs)?,
        socket: value("socket", &socket)?,
        fall_through: required::<Switch>("fall_through", &fall_through)?.0,
        short_circuit: required::<Switch>("short_circuit", &short_circuit)?.0,
        retry_interval: milliseconds("retry_interval_ms", &retry_interval_ms)?,
        request_timeout: milliseconds("request_timeout_ms", &request_timeout_ms)?,
        open,
    })
}

fn open_settings(raw: &RawHadoop, base: Option<&OpenSettings>) -> Result<OpenSettings> {
    let bytes = |name, setting: &Option<Setting>, base: Option<u64>| match (setting, base) {
        (None, Some(base)) => Ok(base),
        _ => required::<ByteSize>(name, setting).map(|size| size.0),
    };
    let servers = raw.stripe_servers.as_ref().map(|setting| {
        setting.text.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>()
    });
    let stripe_bytes = value::<ByteSize>("stripe_bytes", &raw.stripe_bytes)?.map(|size| size.0);
    let stripe_count = value("stripe_count", &raw.stripe_count)?;
    Ok(OpenSettings {
        read_mode: value("read_mode", &raw.read_mode)?.or(base.and_then(|base| base.read_mode)),
        write_mode: value("write_mode", &raw.write_mode)?.or(base.and_then(|base| base.write_mode)),
        read_buffer_bytes: bytes(
            "read_buffer_bytes",
            &raw.read_buffer_bytes,
            base.map(|base| base.read_buffer_bytes),
        )?,
        write_buffer_bytes: bytes(
            "write_buffer_bytes",
            &raw.write_buffer_bytes,
            base.map(|base| base.write_buffer_bytes),
        )?,
        split_bytes: bytes("split_bytes", &raw.split_bytes, base.map(|base| base.split_bytes))?,
        stripe: StripeHints {
            stripe_bytes: stripe_bytes.or(base.and_then(|base| base.stripe.stripe_bytes)),
            stripe_count: stripe_count.or(base.and_then(|base| base.stripe.stripe_count)),
            stripe_servers: servers
                .or_else(|| base.map(|base| base.stripe.stripe_servers.clone()))
                .unwrap_or_default(),
        },
    })
}

fn value<T: FromStr>(name: &str, setting: &Option<Setting>) -> Result<Option<T>> {
    let Some(setting) = setting else { return Ok(None) };
    let parsed = setting.text.parse().map_err(|_| {
        let spec = HADOOP_OPTIONS.iter().find(|spec| spec.name == name);
        let name = spec.map_or_else(|| name.to_owned(), key);
        invalid(&name, format!("`{}` cannot be read", setting.text))
    })?;
    Ok(Some(parsed))
}

fn required<T: FromStr>(name: &str, setting: &Option<Setting>) -> Result<T> {
    value(name, setting)?.ok_or_else(|| invalid(name, "it has neither value nor default"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn defaults_come_from_the_table_and_opens_go_before_the_client() {
        let (settings, warnings) = understand(Vec::new()).unwrap();
        assert!(warnings.is_empty() && settings.fall_through && settings.short_circuit);
        assert_eq!(settings.open.read_mode, None);
        let (settings, _) = understand(pair("fs.tide.read.mode", "bypass")).unwrap();
        assert_eq!(settings.open.read_mode, Some(ReadMode::Bypass));
        let open = overlay(&settings.open, pair("fs.tide.split.bytes", "64MiB")).unwrap();
        assert_eq!((open.read_mode, open.split_bytes), (Some(ReadMode::Bypass), 64 << 20));
        let open = overlay(&settings.open, pair("fs.tide.read.mode", "memory")).unwrap();
        assert_eq!(open.read_mode, Some(ReadMode::Memory));
    }

    #[test]
    fn mistakes_are_named() {
        let error = understand(pair("fs.tide.read.mode", "sideways")).unwrap_err().to_string();
        assert!(error.contains("fs.tide.read.mode") && error.contains("two-level"), "{error}");
        let (_, warnings) = understand(pair("fs.tide.raed.mode", "bypass")).unwrap();
        assert!(warnings[0].contains("fs.tide.raed.mode"));
        assert!(understand(pair("fs.tide.impl", "a.Class")).unwrap().1.is_empty());
        let base = understand(Vec::new()).unwrap().0.open;
        let error = overlay(&base, pair("fs.tide.socket", "/s")).unwrap_err().to_string();
        assert!(error.contains("fs.tide.socket"), "{error}");
    }
}
