//! Tests of precedence and of the configuration file: every option by every way, bad files.

use super::file::parse;
use super::*;
use tidepool_proto::option::{OptionKind, OptionSpec};

fn sample(spec: &OptionSpec) -> &'static str {
    match spec.kind {
        OptionKind::Path => "/some/path",
        OptionKind::Bytes { .. } => "64MiB",
        OptionKind::Memory => "60%",
        OptionKind::Count { .. } => "16",
        OptionKind::Share | OptionKind::Number { .. } => "0.25",
        OptionKind::Switch => "true",
        OptionKind::Choice(names) => names[names.len() - 1],
        OptionKind::Address => "127.0.0.1:9464",
        OptionKind::Names => "a,b",
        OptionKind::Text => "text",
    }
}

fn variables(pairs: &[(&str, &str)]) -> std::vec::IntoIter<(OsString, OsString)> {
    let owned: Vec<_> = pairs.iter().map(|(n, v)| (OsString::from(n), OsString::from(v))).collect();
    owned.into_iter()
}

#[test]
fn every_option_comes_by_environment_and_file() {
    for spec in OPTIONS {
        let value = sample(spec);
        let read = |raw: &RawConfig| raw.options.get(spec.name).cloned().unwrap();

        let name = spec.environment();
        let environment = variables(&[(&name, value)]);
        let (raw, warnings) = gather(None, environment, &RawOptions::default()).unwrap();
        assert_eq!(read(&raw).text, value, "{name}");
        assert_eq!(warnings, Vec::<String>::new());

        let text = format!("# a comment\n{} = \"{value}\"\n", spec.name);
        let raw = parse(&text, Path::new("t.toml")).unwrap();
        assert_eq!(read(&raw).text, value, "{text}");
        assert_eq!(read(&raw).origin, Origin::File { path: "t.toml".into(), line: 2 });
    }
}

#[test]
fn command_line_beats_environment_beats_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    std::fs::write(&path, "memory = \"1GiB\"\npolicy = \"lru\"\ntransfers = 3\n").unwrap();
    let environment = variables(&[("TIDEPOOL_MEMORY", "2GiB"), ("TIDEPOOL_POLICY", "lfu")]);
    let origin = Origin::CommandLine("memory".to_owned());
    let memory = Some(Setting { text: "3GiB".to_owned(), origin });
    let flags = RawOptions { memory, ..RawOptions::default() };
    let (raw, _) = gather(Some(&path), environment, &flags).unwrap();
    let text = |name: &str| raw.options.get(name).unwrap().text.as_str();
    assert_eq!((text("memory"), text("policy"), text("transfers")), ("3GiB", "lfu", "3"));
}

#[test]
fn a_misspelt_variable_is_told() {
    let environment = variables(&[("TIDEPOOL_MEMROY", "1GiB"), ("HOME", "/")]);
    let (_, warnings) = gather(None, environment, &RawOptions::default()).unwrap();
    assert_eq!(
        warnings,
        ["environment variable TIDEPOOL_MEMROY is no option (did you mean `TIDEPOOL_MEMORY`?)"]
    );
}

#[test]
fn toml_types_fit_their_options() {
    let text = "block_bytes = 2_097_152\npinned_share_max = 0.5\nforeground = true\n\
                [[rule]]\npath = \"a\"\nadmit = false\nstripe_servers = [3, \"ost1\"]\n\
                [[quota]]\nuser = 1000\nbytes = \"1GiB\"\n";
    let raw = parse(text, Path::new("t.toml")).unwrap();
    assert_eq!(raw.options.block_bytes.unwrap().text, "2097152");
    assert_eq!(raw.options.pinned_share_max.unwrap().text, "0.5");
    assert_eq!(raw.options.foreground.unwrap().text, "true");
    assert_eq!(raw.rules[0].stripe_servers.as_ref().unwrap().text, "3,ost1");
    assert_eq!(raw.quotas[0].user.as_ref().unwrap().text, "1000");
}

#[test]
fn a_bad_file_is_refused_with_line_and_remedy() {
    let cases = [
        ("pfs = \"/p\"\nblok_bytes = 1\n", "line 2: `blok_bytes` is no option (did you mean"),
        ("\n\nmemory = true\n", "line 3: `memory` is a TOML boolean (valid: a size such as"),
        ("memory = 1\nmemory = 2\n", "line 2: duplicate key"),
        ("memory = \n", "line 1"),
        ("pfs = \"/p\n", "line 1"),
        ("[rule]\npath = \"a\"\n", "line 1: `rule` is a list of tables (write [[rule]]"),
        ("[[rule]]\npath = \"a\"\nadmitt = true\n", "line 3: `admitt` is no key of [[rule]]"),
        ("[[quota]]\nusr = \"a\"\n", "line 2: `usr` is no key of [[quota]] (did you mean `user`?)"),
        ("transfers = 0x10\n", "line 1: `transfers` is a TOML integer"),
    ];
    for (text, expected) in cases {
        let message = parse(text, Path::new("/etc/t.toml")).unwrap_err().to_string();
        assert!(message.contains("/etc/t.toml"), "{message}");
        assert!(message.contains(expected), "{text:?} gave {message}");
    }
    let message =
        gather(Some(Path::new("/nonexistent.toml")), variables(&[]), &RawOptions::default())
            .unwrap_err()
            .to_string();
    assert!(message.contains("/nonexistent.toml") && message.contains("--config"), "{message}");
}
