//! The layers of the workspace: which crate may depend on which. The table of `ARCHITECTURE.md`
//! says it, and this check reads it there.

use std::path::{Path, PathBuf};

use acceptance::{environment, process};
use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;

/// The page with the table.
const PAGE: &str = "ARCHITECTURE.md";
/// The head of the table.
const HEAD: &str = "| crate | is | may depend on |";
/// What the table says of crates that nothing uses unless it names them.
const DEVELOPMENT: &str = "development only";
/// Libraries that one crate alone has, so that no other program is linked with them.
const APART: [(&str, &str); 1] = [("rdkafka", "plane")];

/// A row of the table.
#[derive(Debug, PartialEq)]
struct Layer {
    /// Directory of the crate, below `crates/` where it lies there.
    name: String,
    /// Its line in the page, from 1.
    line: usize,
    is_for_development: bool,
    may: May,
}

/// What a crate may depend on.
#[derive(Debug, PartialEq)]
enum May {
    /// All but what is for development.
    Any,
    /// These.
    Crates(Vec<String>),
}

/// The table of the page.
pub struct Layers(Vec<Layer>);

impl Layers {
    /// Reads the page.
    pub fn read(root: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
        let layers = Layers::parse(&text);
        anyhow::ensure!(!layers.0.is_empty(), "{PAGE} has no table `{HEAD}`");
        Ok(layers)
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().enumerate().skip_while(|(_, line)| *line != HEAD).skip(2);
        Layers(lines.map_while(|(at, line)| Layer::parse(at + 1, line)).collect())
    }

    fn of(&self, name: &str) -> Option<&Layer> {
        self.0.iter().find(|layer| layer.name == name)
    }

    /// Whether a crate may use another one.
    fn allow(&self, layer: &Layer, other: &str) -> bool {
        match &layer.may {
            May::Any => self.of(other).is_some_and(|other| !other.is_for_development),
            May::Crates(names) => names.iter().any(|name| name == other),
        }
    }
}

impl Layer {
    fn parse(line: usize, row: &str) -> Option<Self> {
        let cells: Vec<&str> = row.strip_prefix('|')?.split('|').map(str::trim).collect();
        let [name, is, may, ..] = cells[..] else { return None };
        let may = match may {
            "any" => May::Any,
            _ => May::Crates(names(may).collect()),
        };
        let is_for_development = is.contains(DEVELOPMENT);
        Some(Layer { name: names(name).next()?, line, is_for_development, may })
    }
}

/// What stands between backticks.
fn names(cell: &str) -> impl Iterator<Item = String> + '_ {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// What cargo knows of the packages of the workspace, and of those that stand outside of it.
pub fn workspaces(root: &Path, files: &[PathBuf]) -> Result<Vec<Value>> {
    let mut workspaces = vec![metadata(&root.join("Cargo.toml"))?];
    for manifest in files.iter().filter(|file| file.ends_with("Cargo.toml")) {
        let path = root.join(manifest);
        let known = workspaces.iter().flat_map(|metadata| {
            metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default()
        });
        let mut known = known.filter_map(|package| package["manifest_path"].as_str());
        if manifest != Path::new("Cargo.toml") && !known.any(|known| Path::new(known) == path) {
            workspaces.push(metadata(&path)?);
        }
    }
    Ok(workspaces)
}

fn metadata(manifest: &Path) -> Result<Value> {
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"];
    let text = process::read(environment::cargo(&arguments).arg(manifest))?;
    Ok(serde_json::from_str(&text)?)
}

/// Compares every dependency with the table, and the table with the crates.
pub fn check(layers: &Layers, root: &Path, metadata: &Value) -> Vec<Finding> {
    let none = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&none);
    let mut findings = Vec::new();
    let mut seen = Vec::new();
    for package in packages {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let name = crate_of(root, manifest.parent().unwrap_or(manifest));
        let manifest = manifest.strip_prefix(root).unwrap_or(manifest);
        seen.push(name.clone());
        let Some(layer) = layers.of(&name) else {
            let what = format!("crate `{name}` has no layer; enter it in the table of {PAGE}");
            findings.push(Finding::at(manifest, 0, what));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap_or(&none) {
            let library = dependency["name"].as_str().unwrap_or_default();
            let apart = APART.iter().find(|(it, only)| *it == library && *only != name);
            findings.extend(apart.map(|(_, only)| {
                let what =
                    format!("only `{only}` may depend on {library}; hand over to its program");
                Finding::at(manifest, 0, what)
            }));
            let Some(path) = dependency["path"].as_str() else { continue };
            let other = crate_of(root, Path::new(path));
            let in_tests = dependency["kind"] == "dev";
            if !in_tests && !layers.allow(layer, &other) {
                let what = format!(
                    "`{name}` must not depend on `{other}`; move what it needs into a lower crate"
                );
                findings.push(Finding::at(manifest, 0, what));
            }
        }
    }
    let gone = layers.0.iter().filter(|layer| !seen.contains(&layer.name));
    findings.extend(gone.map(|layer| {
        let what = format!("there is no crate `{}`; take its row away", layer.name);
        Finding::at(Path::new(PAGE), layer.line, what)
    }));
    findings
}

/// The name of a crate in the table, from its directory.
fn crate_of(root: &Path, directory: &Path) -> String {
    let below = directory.strip_prefix(root).unwrap_or(directory);
    below.strip_prefix("crates").unwrap_or(below).display().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: &str = "# Page\n\n| crate | is | may depend on |\n|---|---|---|\n\
        | `proto` | words | nothing |\n| `store` | bytes | `proto` |\n\
        | `java/native` | jni | `proto` |\n| `cli` | all | any |\n\
        | `testkit` | tests; development only | any |\n| `tasks` | it | `testkit` |\n\n\
        | another | table | |\n";

    fn findings(name: &str, dependency: &str, kind: Option<&str>) -> usize {
        let place = |name: &str| match name.contains('/') || name == "tasks" {
            true => format!("/root/{name}"),
            false => format!("/root/crates/{name}"),
        };
        let package = |one: &str| {
            let path = place(dependency);
            let uses = json!([{"name": "a", "kind": kind, "path": path}, {"name": "serde"}]);
            let none = json!([]);
            let dependencies = if one == name { uses } else { none };
            let manifest = format!("{}/Cargo.toml", place(one));
            json!({"manifest_path": manifest, "dependencies": dependencies})
        };
        let all = ["proto", "store", "java/native", "cli", "testkit", "tasks"];
        let packages: Vec<_> = all.iter().copied().chain(["new"]).map(package).collect();
        let known = &packages[..if name == "new" { 7 } else { 6 }];
        check(&Layers::parse(TABLE), Path::new("/root"), &json!({"packages": known})).len()
    }

    #[test]
    fn layers_hold() {
        assert_eq!(findings("store", "proto", None), 0);
        assert_eq!(findings("java/native", "proto", None), 0);
        assert_eq!(findings("cli", "java/native", None), 0);
        assert_eq!(findings("tasks", "testkit", None), 0);
        assert_eq!(findings("proto", "store", None), 1);
        assert_eq!(findings("cli", "testkit", None), 1, "any is not what is for development");
        assert_eq!(findings("store", "testkit", Some("dev")), 0);
        assert_eq!(findings("new", "proto", None), 1);
    }

    #[test]
    fn kafka_is_in_no_other_program() {
        let uses = json!([{"name": "rdkafka", "kind": null}]);
        let layer = |name: &str| Layer {
            name: name.to_owned(),
            line: 1,
            is_for_development: false,
            may: May::Any,
        };
        let table = Layers(vec![layer("plane"), layer("cli")]);
        let of = |name: &str| {
            let manifest = format!("/root/crates/{name}/Cargo.toml");
            json!({"manifest_path": manifest, "dependencies": uses})
        };
        let metadata = json!({"packages": [of("plane"), of("cli")]});
        assert_eq!(check(&table, Path::new("/root"), &metadata).len(), 1, "that of `cli`");
    }

    #[test]
    fn a_row_without_a_crate_is_found() {
        let found = check(&Layers::parse(TABLE), Path::new("/root"), &json!({"packages": []}));
        assert_eq!((found.len(), found[0].line), (6, 5));
    }
}
