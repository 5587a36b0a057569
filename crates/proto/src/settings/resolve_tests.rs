//! Tests of validation: what is refused, with which words, and what the defaults come to.

use super::*;
use crate::mode::{ReadMode, WriteMode};

fn machine() -> Machine {
    Machine {
        memory_bytes: 16 << 30,
        memory_limit: "the machine's memory".to_owned(),
        processors: 8,
        socket: PathBuf::from("/run/tidepool/node.sock"),
        working_directory: PathBuf::from("/work"),
        user_id: |name| (name == "alice").then_some(1001),
    }
}

fn flag(name: &str, text: &str) -> Option<Setting> {
    Some(Setting { text: text.to_owned(), origin: Origin::CommandLine(name.to_owned()) })
}

fn raw(settings: &[(&str, &str)]) -> RawConfig {
    let mut raw = RawConfig::default();
    raw.options.pfs = flag("pfs", "/pfs");
    for (name, text) in settings {
        *raw.options.slot(name).unwrap() = flag(name, text);
    }
    raw
}

fn refusal(settings: &[(&str, &str)]) -> String {
    resolve(raw(settings), &machine()).unwrap_err().to_string()
}

#[test]
fn the_defaults_are_complete() {
    let config = resolve(raw(&[]), &machine()).unwrap();
    assert_eq!(config.capacity_bytes, 8 << 30);
    assert_eq!(config.block_bytes, 4 << 20);
    assert_eq!((config.read_mode, config.write_mode), (ReadMode::TwoLevel, WriteMode::Through));
    assert_eq!(config.fuse_threads, 8);
    assert_eq!(config.transfers, 8);
    assert_eq!(config.socket, Path::new("/run/tidepool/node.sock"));
    assert_eq!(config.mount, None);
    assert_eq!(config.entries.len(), OPTIONS.len());
    let origin =
        |name: &str| config.entries.iter().find(|entry| entry.name == name).unwrap().origin.clone();
    assert_eq!((origin("pfs").as_str(), origin("memory").as_str()), ("command line", "default"));
}

#[test]
fn memory_never_exceeds_the_machine() {
    let message = refusal(&[("memory", "17GiB")]);
    assert!(message.contains("the machine's memory, which is 16GiB"), "{message}");
    assert!(refusal(&[("memory", "1MiB")]).contains("less than one block"));
    let config = resolve(raw(&[("memory", "100%")]), &machine()).unwrap();
    assert_eq!(config.capacity_bytes, 16 << 30);
    let config = resolve(raw(&[("memory", "9MiB")]), &machine()).unwrap();
    assert_eq!(config.capacity_bytes, 8 << 20, "whole blocks");
    assert_eq!(resolve(raw(&[("memory", "0")]), &machine()).unwrap().capacity_bytes, 0);
}

#[test]
fn a_refusal_names_option_origin_and_remedy() {
    let message = refusal(&[("block_bytes", "3MiB")]);
    let expected = "while reading option `block_bytes`: `3MiB` is not a multiple of 2MiB \
                    (--block_bytes) (valid: a size from 2MiB to 1GiB, a multiple of 2MiB)";
    assert_eq!(message, expected);
    let message = resolve(RawConfig::default(), &machine()).unwrap_err().to_string();
    assert!(message.contains("`pfs`: it is required"), "{message}");
}

#[test]
fn options_must_fit_each_other() {
    assert!(refusal(&[("small_file_bytes_max", "4MiB")]).contains("not less than a block"));
    assert!(refusal(&[("mount", "/pfs/below")]).contains("overlap"));
    assert!(refusal(&[("mount", "/")]).contains("overlap"));
    let long = format!("/{}", "s".repeat(107));
    assert!(refusal(&[("socket", &long)]).contains("108 bytes"));
}

#[test]
fn relative_paths_start_at_the_working_directory_but_not_in_a_file() {
    let config = resolve(raw(&[("mount", "tide")]), &machine()).unwrap();
    assert_eq!(config.mount.unwrap(), Path::new("/work/tide"));
    let shown = config.entries.iter().find(|entry| entry.name == "mount").unwrap();
    assert_eq!(shown.value, "/work/tide", "operators stand elsewhere");
    let mut raw = raw(&[]);
    let origin = Origin::File { path: PathBuf::from("/etc/t.toml"), line: 3 };
    raw.options.mount = Some(Setting { text: "tide".to_owned(), origin });
    let message = resolve(raw, &machine()).unwrap_err().to_string();
    assert!(message.contains("/etc/t.toml line 3") && message.contains("relative"), "{message}");
}

#[test]
fn a_path_that_cannot_be_told_as_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let named = std::ffi::OsStr::from_bytes(b"/work/\xff");
    let odd = Machine { working_directory: PathBuf::from(named), ..machine() };
    let error = resolve(raw(&[("mount", "mnt")]), &odd).unwrap_err().to_string();
    assert!(error.contains("mount") && error.contains("no UTF-8"), "{error}");
}

#[test]
fn a_relative_path_without_a_working_directory_is_refused() {
    let nowhere = Machine { working_directory: PathBuf::new(), ..machine() };
    for name in ["pfs", "mount"] {
        let config = raw(&[(name, ".")]);
        let message = resolve(config, &nowhere).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("is gone"), "{message}");
    }
    resolve(raw(&[]), &nowhere).unwrap();
}

fn rule(settings: &[(&str, &str)]) -> RawRule {
    let mut rule = RawRule::default();
    for (name, text) in settings {
        *rule.slot(name).unwrap() = flag(name, text);
    }
    rule
}

#[test]
fn the_longest_rule_wins() {
    let mut raw = raw(&[]);
    raw.rules = vec![
        rule(&[("path", "tide:///a"), ("write_mode", "memory")]),
        rule(&[("path", "/pfs/a/b"), ("time_to_live_s", "60"), ("stripe_servers", "0, 3")]),
        rule(&[("path", "/"), ("admit", "no")]),
    ];
    let config = resolve(raw, &machine()).unwrap();
    let rule_of = |path: &str| config.rule_for(Path::new(path)).unwrap().0;
    assert_eq!((rule_of("a/c"), rule_of("a/b/c"), rule_of("ab")), (0, 1, 2));
    assert_eq!(config.rules[1].time_to_live, Some(Duration::from_secs(60)));
    assert_eq!(config.rules[1].stripe.stripe_servers, ["0", "3"]);
    assert!(config.rules[0].admit && !config.rules[2].admit);
}

#[test]
fn bad_rules_and_quotas_are_refused() {
    let refused = |rules: Vec<RawRule>, quotas: Vec<RawQuota>| {
        let mut raw = raw(&[]);
        (raw.rules, raw.quotas) = (rules, quotas);
        resolve(raw, &machine()).unwrap_err().to_string()
    };
    let quota = |user: &str| RawQuota { user: flag("user", user), bytes: flag("bytes", "1GiB") };
    for outside in ["../x", "tide:///../x", "/etc", "/pfs2/x"] {
        assert!(refused(vec![rule(&[("path", outside)])], vec![]).contains("leads outside"));
    }
    assert!(refused(vec![rule(&[("admit", "no")])], vec![]).contains("`path`: it is required"));
    let twice = vec![rule(&[("path", "a")]), rule(&[("path", "/pfs/a/")])];
    assert!(refused(twice, vec![]).contains("has a rule already"));
    let alw = vec![rule(&[("path", "a"), ("write_mode", "alw")])];
    assert!(refused(alw, vec![]).contains("set `cluster_nodes` too"));
    assert!(refused(vec![], vec![quota("bob")]).contains("no user of this machine"));
    assert!(refused(vec![], vec![quota("alice"), quota("1001")]).contains("has a quota already"));
}

#[test]
fn the_guaranteed_part_may_be_the_same_size_as_the_memory() {
    let config = |memory: &str, min: &str| {
        resolve(raw(&[("memory", memory), ("memory_min", min)]), &machine())
    };
    let same = config("33.3%", "33.3%").unwrap();
    assert_eq!(same.control.memory_min_bytes, same.capacity_bytes);
    assert_eq!(config("9MiB", "9MiB").unwrap().control.memory_min_bytes, 8 << 20);
    assert_eq!(config("9MiB", "3MiB").unwrap().control.memory_min_bytes, 3 << 20, "as it is set");
    assert!(config("9MiB", "10MiB").unwrap_err().to_string().contains("is more than the store"));
    assert!(refusal(&[("memory", "120%")]).contains("`120%` is more than 100%"));
}

#[test]
fn a_burst_buffer_is_whole_or_none_and_listens_on_loopback_only() {
    let buffer = |settings: &[(&str, &str)]| resolve(raw(settings), &machine()).map(|it| it.buffer);
    assert_eq!(buffer(&[]).unwrap(), None);
    let bytes = ("buffer_bytes", "64MiB");
    let whole = buffer(&[bytes, ("buffer_directory", "/disk")]).unwrap().unwrap();
    assert_eq!((whole.memory_bytes, whole.disk_bytes), (64 << 20, 64 << 30));
    assert_eq!(whole.directory.as_deref(), Some(Path::new("/disk")));
    let refused = |settings: &[(&str, &str)]| buffer(settings).unwrap_err().to_string();
    assert!(refused(&[("buffer_directory", "/disk")]).contains("`buffer_bytes`"));
    assert!(refused(&[bytes, ("buffer_address", "10.0.0.1:11211")]).contains("is not on loopback"));
    assert!(buffer(&[bytes, ("buffer_address", "[::1]:11211")]).is_ok());
    assert!(refused(&[("buffer_bytes", "1PiB")]).contains("is more than"));
    assert!(refused(&[("write_mode", "alw")]).contains("set `cluster_nodes` too"));
}
