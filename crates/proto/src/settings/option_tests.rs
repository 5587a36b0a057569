//! Tests of the table of options: every default obeys its own grammar, names are unique.

use super::*;

#[test]
fn every_default_is_valid() {
    for spec in OPTIONS.iter().chain(RULE_KEYS).chain(QUOTA_KEYS) {
        if let Some(default) = spec.default {
            assert_eq!(spec.kind.check(default), Ok(()), "{}", spec.name);
        }
        assert!(spec.doc.ends_with('.'), "{} has a sentence of documentation", spec.name);
    }
}

#[test]
fn names_are_unique_and_have_slots() {
    for table in [OPTIONS, RULE_KEYS, QUOTA_KEYS] {
        for (index, spec) in table.iter().enumerate() {
            assert!(table[..index].iter().all(|other| other.name != spec.name), "{}", spec.name);
        }
    }
    let mut raw = RawOptions::default();
    for spec in OPTIONS {
        *raw.slot(spec.name).unwrap() =
            Some(Setting { text: spec.name.to_owned(), origin: Origin::Default });
        assert_eq!(raw.get(spec.name).unwrap().text, spec.name);
    }
}

#[test]
fn values_outside_the_grammar_are_refused() {
    let block = option("block_bytes").unwrap().kind;
    let cases = [
        (block, "2MiB", true),
        (block, "3MiB", false),
        (block, "0", false),
        (block, "2GiB", false),
        (block, "many", false),
        (OptionKind::Count { min: 1, max: 4 }, "4", true),
        (OptionKind::Count { min: 1, max: 4 }, "5", false),
        (OptionKind::Count { min: 1, max: 4 }, "-1", false),
        (OptionKind::Share, "0.25", true),
        (OptionKind::Share, "1.25", false),
        (OptionKind::Share, "nan", false),
        (OptionKind::Switch, "yes", true),
        (OptionKind::Switch, "maybe", false),
        (OptionKind::Address, "127.0.0.1:9464", true),
        (OptionKind::Address, "[::1]:9464", true),
        (OptionKind::Address, "localhost", false),
        (OptionKind::Memory, "60%", true),
        (OptionKind::Memory, "160%", false),
        (OptionKind::Path, "", false),
    ];
    for (kind, text, valid) in cases {
        assert_eq!(kind.check(text).is_ok(), valid, "{text} as {kind:?}");
    }
}

#[test]
fn the_names_of_policies_agree() {
    assert!(POLICIES.iter().map(|(name, _)| *name).eq(POLICY_NAMES.iter().copied()));
}
