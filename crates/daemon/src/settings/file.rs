//! Reads the configuration file, keeping the line of every value. Refuses unknown keys, keys given
//! twice and values of a wrong type; whether a value makes sense is not its business.

use std::io::Read;
use std::path::Path;

use tidepool_proto::option::{
    OPTIONS, OptionKind, OptionSpec, Origin, QUOTA_KEYS, RULE_KEYS, RawConfig, RawOptions,
    RawQuota, RawRule, Setting,
};
use tidepool_proto::{Error, ErrorKind, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::did_you_mean;

/// More than any configuration has.
const BYTES_MAX: u64 = 1 << 20;

/// The settings of the file at `path`.
pub fn read(path: &Path) -> Result<RawConfig> {
    let operation = || format!("reading the configuration {}", path.display());
    let refused = |detail: String| {
        Error::new(ErrorKind::InvalidInput, operation(), detail)
            .remedy("check the path given by --config or TIDEPOOL_CONFIG")
    };
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    if read.map_err(|source| refused(String::new()).caused_by(source))? as u64 > BYTES_MAX {
        return Err(refused(format!("it has more than {BYTES_MAX} bytes")));
    }
    parse(&text, path)
}

/// The settings of a file with the content `text`; `path` is for messages.
pub fn parse(text: &str, path: &Path) -> Result<RawConfig> {
    let file = File { text, path };
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        file.error(offset, error.message())
            .remedy("the file is TOML: `name = \"value\"` lines, `[[rule]]` and `[[quota]]` tables")
    })?;
    let mut raw = RawConfig::default();
    for (key, value) in table.get_ref() {
        match key.get_ref().as_ref() {
            "rule" => {
                for table in file.tables("rule", value)? {
                    let mut rule = RawRule::default();
                    file.fill(table, "rule", RULE_KEYS, |name, setting| {
                        rule.slot(name).map(|slot| *slot = Some(setting))
                    })?;
                    if rule.path.is_none() {
                        let place = table.values().map(|value| value.span().start).min();
                        let error = file.error(place.unwrap_or(0), "a `[[rule]]` lacks its `path`");
                        return Err(error.remedy("name the directory below the PFS directory"));
                    }
                    raw.rules.push(rule);
                }
            }
            "quota" => {
                for table in file.tables("quota", value)? {
                    let mut quota = RawQuota::default();
                    file.fill(table, "quota", QUOTA_KEYS, |name, setting| {
                        quota.slot(name).map(|slot| *slot = Some(setting))
                    })?;
                    raw.quotas.push(quota);
                }
            }
            _ => file.option(&mut raw.options, key, value)?,
        }
    }
    Ok(raw)
}

struct File<'a> {
    text: &'a str,
    path: &'a Path,
}

impl File<'_> {
    fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn error(&self, offset: usize, detail: impl Into<String>) -> Error {
        let place = format!("reading {} line {}", self.path.display(), self.line(offset));
        Error::new(ErrorKind::InvalidInput, place, detail)
    }

    fn option(
        &self,
        options: &mut RawOptions,
        key: &Spanned<toml::de::DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<()> {
        let name = key.get_ref().as_ref();
        let Some(spec) = OPTIONS.iter().find(|spec| spec.name == name) else {
            let lists = ["rule", "quota"].map(str::to_owned);
            let known = OPTIONS.iter().map(|spec| spec.name.to_owned()).chain(lists);
            let meant = did_you_mean(name, known);
            return Err(self
                .error(key.span().start, format!("`{name}` is no option{meant}"))
                .remedy("`tidepool config` lists all options"));
        };
        *options.slot(name).expect("every option has a slot") = Some(self.setting(spec, value)?);
        Ok(())
    }

    /// The entries of the list `[[name]]`.
    fn tables<'v, 't>(
        &self,
        name: &str,
        value: &'v Spanned<DeValue<'t>>,
    ) -> Result<Vec<&'v DeTable<'t>>> {
        let expected = |offset| {
            self.error(offset, format!("`{name}` is a list of tables"))
                .remedy(format!("write [[{name}]] above its keys"))
        };
        let DeValue::Array(array) = value.get_ref() else {
            return Err(expected(value.span().start));
        };
        let table = |entry: &'v Spanned<DeValue<'t>>| match entry.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(expected(entry.span().start)),
        };
        array.iter().map(table).collect()
    }

    /// Gives every value of one entry of `[[list]]` to `set`, which knows the names of `specs`.
    fn fill(
        &self,
        table: &DeTable<'_>,
        list: &str,
        specs: &'static [OptionSpec],
        mut set: impl FnMut(&str, Setting) -> Option<()>,
    ) -> Result<()> {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let spec = specs.iter().find(|spec| spec.name == name);
            let Some(spec) = spec else {
                let known = specs.iter().map(|spec| spec.name.to_owned());
                let meant = did_you_mean(name, known);
                let detail = format!("`{name}` is no key of [[{list}]]{meant}");
                let names: Vec<&str> = specs.iter().map(|spec| spec.name).collect();
                return Err(self
                    .error(key.span().start, detail)
                    .remedy(format!("valid: {}", names.join(", "))));
            };
            set(name, self.setting(spec, value)?).expect("every key of the table has a slot");
        }
        Ok(())
    }

    fn setting(&self, spec: &OptionSpec, value: &Spanned<DeValue<'_>>) -> Result<Setting> {
        let line = self.line(value.span().start);
        let text = plain_text(spec.kind, value.get_ref()).ok_or_else(|| {
            let found = value.get_ref().type_str();
            self.error(value.span().start, format!("`{}` is a TOML {found}", spec.name))
                .remedy(format!("valid: {}", spec.kind.valid()))
        })?;
        Ok(Setting { text, origin: Origin::File { path: self.path.to_owned(), line } })
    }
}

/// The value as one would write it on the command line, if its type fits.
fn plain_text(kind: OptionKind, value: &DeValue<'_>) -> Option<String> {
    match (kind, value) {
        (_, DeValue::String(text)) => Some(text.clone().into_owned()),
        (
            OptionKind::Bytes { .. }
            | OptionKind::Memory
            | OptionKind::Count { .. }
            | OptionKind::Share
            | OptionKind::Number { .. }
            | OptionKind::Text,
            DeValue::Integer(integer),
        ) if integer.radix() == 10 => Some(integer.as_str().to_owned()),
        (OptionKind::Share | OptionKind::Number { .. }, DeValue::Float(float)) => {
            Some(float.as_str().to_owned())
        }
        (OptionKind::Switch, DeValue::Boolean(switch)) => Some(switch.to_string()),
        (OptionKind::Names, DeValue::Array(array)) => {
            let names = array.iter().map(|entry| plain_text(OptionKind::Text, entry.get_ref()));
            names.collect::<Option<Vec<String>>>().map(|names| names.join(","))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_configuration_is_not_read_to_its_end() {
        let endless = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(endless.contains("it has more than 1048576 bytes"), "{endless}");
    }
}
