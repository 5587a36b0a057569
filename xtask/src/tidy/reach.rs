//! Which Rust files a crate includes, found by following `mod` from the roots that cargo names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::source::is_test;

/// Files by path in the checkout; the value tells that only tests include the file.
pub type Reached = BTreeMap<PathBuf, bool>;

/// Follows every target of every package.
pub fn from_targets(root: &Path, workspaces: &[Value]) -> Result<Reached> {
    let mut reached = Reached::new();
    for metadata in workspaces {
        follow_packages(root, metadata, &mut reached)?;
    }
    Ok(reached)
}

fn follow_packages(root: &Path, metadata: &Value, reached: &mut Reached) -> Result<()> {
    for package in metadata["packages"].as_array().context("cargo metadata: packages")? {
        for target in package["targets"].as_array().context("cargo metadata: targets")? {
            let path = target["src_path"].as_str().context("cargo metadata: src_path")?;
            let kinds = target["kind"].as_array().context("cargo metadata: kind")?;
            let in_tests = kinds.iter().any(|kind| kind == "test" || kind == "bench");
            // A target may lie outside of its package's directory.
            let path = Path::new(path).canonicalize().with_context(|| path.to_owned())?;
            let directory = path.parent().context("a file has a directory")?;
            follow(root, &path, directory, in_tests, reached)?;
        }
    }
    Ok(())
}

/// `submodules` is where `mod` of this file looks for its files.
fn follow(
    root: &Path,
    path: &Path,
    submodules: &Path,
    in_tests: bool,
    reached: &mut Reached,
) -> Result<()> {
    let Ok(name) = path.strip_prefix(root) else { return Ok(()) };
    match reached.get(name) {
        Some(false) => return Ok(()),
        Some(true) if in_tests => return Ok(()),
        _ => {}
    }
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(()) };
    reached.insert(name.to_path_buf(), in_tests);
    let syntax = syn::parse_file(&text).with_context(|| name.display().to_string())?;
    follow_items(root, path, submodules, &syntax.items, in_tests, reached)
}

fn follow_items(
    root: &Path,
    path: &Path,
    submodules: &Path,
    items: &[syn::Item],
    in_tests: bool,
    reached: &mut Reached,
) -> Result<()> {
    for item in items {
        let syn::Item::Mod(module) = item else { continue };
        let in_tests = in_tests || module.attrs.iter().any(is_test);
        let name = module.ident.to_string();
        let name = name.trim_start_matches("r#");
        let below = submodules.join(name);
        if let Some((_, items)) = &module.content {
            follow_items(root, path, &below, items, in_tests, reached)?;
        } else if let Some(given) = module.attrs.iter().find_map(path_attribute) {
            let file = path.parent().unwrap_or(root).join(given);
            let directory = file.parent().unwrap_or(root).to_path_buf();
            follow(root, &file, &directory, in_tests, reached)?;
        } else {
            follow(root, &submodules.join(format!("{name}.rs")), &below, in_tests, reached)?;
            follow(root, &below.join("mod.rs"), &below, in_tests, reached)?;
        }
    }
    Ok(())
}

fn path_attribute(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else {
        return None;
    };
    attribute.path().is_ident("path").then(|| text.value())
}

#[cfg(test)]
mod tests {
    use super::{Reached, follow};
    use std::fs;

    #[test]
    fn modules_are_followed_and_orphans_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("src/a")).unwrap();
        let files = [
            ("src/lib.rs", "mod a; #[cfg(test)] mod tests; #[path = \"odd.rs\"] mod b;"),
            ("src/a.rs", "mod inner;"),
            ("src/a/inner.rs", ""),
            ("src/tests.rs", ""),
            ("src/odd.rs", ""),
            ("src/orphan.rs", ""),
        ];
        for (name, text) in files {
            fs::write(root.join(name), text).unwrap();
        }
        let mut reached = Reached::new();
        follow(root, &root.join("src/lib.rs"), &root.join("src"), false, &mut reached).unwrap();
        let has = |name: &str| reached.get(std::path::Path::new(name)).copied();
        assert_eq!(has("src/a/inner.rs"), Some(false));
        assert_eq!(has("src/tests.rs"), Some(true));
        assert_eq!(has("src/odd.rs"), Some(false));
        assert_eq!(has("src/orphan.rs"), None);
    }
}
