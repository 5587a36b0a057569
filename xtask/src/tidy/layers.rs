//! The layers of the workspace: which crate may depend on which. `docs/ARCHITECTURE.md` draws them,
//! this table enforces them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use super::Finding;
use crate::environment;
use crate::process;

/// Crates of the product and the crates of ours they may use. `*` is any.
const LAYERS: [(&str, &[&str]); 14] = [
    ("tidepool-proto", &[]),
    ("tidepool-store", &["tidepool-proto"]),
    ("tidepool-pfs", &["tidepool-proto"]),
    ("tidepool-model", &["tidepool-proto"]),
    ("tidepool-control", &["tidepool-proto", "tidepool-model", "tidepool-client"]),
    ("tidepool-client", &["tidepool-proto", "tidepool-pfs"]),
    ("tidepool-node", &["tidepool-proto", "tidepool-store", "tidepool-pfs", "tidepool-model"]),
    ("tidepool-fuse", &["tidepool-proto", "tidepool-pfs"]),
    ("tidepool-java", &["tidepool-proto", "tidepool-pfs", "tidepool-client"]),
    ("tidepool-report", &[]),
    ("tidepool-patterns", &[]),
    ("tidepool-cli", &["*"]),
    ("tidepool-testkit", &["*"]),
    ("xtask", &["*"]),
];
/// Crates that nothing of the product may use outside its tests.
const TESTS_ONLY: [&str; 2] = ["tidepool-testkit", "xtask"];

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

/// Compares every dependency with the table.
pub fn check(metadata: &Value) -> Vec<Finding> {
    let none = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&none);
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let root = environment::checkout();
        let manifest = manifest.strip_prefix(&root).unwrap_or(manifest);
        let layer = LAYERS.iter().find(|(layer, _)| *layer == name);
        let Some((_, allowed)) = layer else {
            let what = format!("crate `{name}` has no layer; enter it in xtask/src/tidy/layers.rs");
            findings.push(Finding::at(manifest, 0, what));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap_or(&none) {
            let other = dependency["name"].as_str().unwrap_or_default();
            let in_tests = dependency["kind"] == "dev";
            if !names.contains(&other) || in_tests {
                continue;
            }
            let may = allowed.contains(&"*") || allowed.contains(&other);
            if !may || TESTS_ONLY.contains(&other) {
                let what = format!(
                    "`{name}` must not depend on `{other}`; move what it needs into a lower crate"
                );
                findings.push(Finding::at(manifest, 0, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use serde_json::json;

    fn package(name: &str, dependency: &str, kind: Option<&str>) -> serde_json::Value {
        let dependencies = json!([{"name": dependency, "kind": kind}]);
        json!({"packages": [
            {"name": name, "manifest_path": "m", "dependencies": dependencies},
            {"name": dependency, "manifest_path": "m", "dependencies": []},
        ]})
    }

    #[test]
    fn layers_hold() {
        assert!(check(&package("tidepool-store", "tidepool-proto", None)).is_empty());
        assert_eq!(check(&package("tidepool-proto", "tidepool-store", None)).len(), 1);
        assert_eq!(check(&package("tidepool-cli", "tidepool-testkit", None)).len(), 1);
        assert!(check(&package("tidepool-pfs", "tidepool-testkit", Some("dev"))).is_empty());
        assert_eq!(check(&package("new-crate", "tidepool-proto", None)).len(), 1);
    }
}
