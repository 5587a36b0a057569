//! The build with the oldest compiler that `Cargo.toml` promises: `rust-version`.

use acceptance::outcome::Outcome;
use acceptance::{environment, process};
use anyhow::{Context, Result};

/// Checks all crates with that compiler, in a target directory of its own. rustup installs it where
/// it is not there.
pub fn check() -> Result<Outcome> {
    let version = version()?;
    let mut installed = process::command("rustup", &["run", &version, "rustc", "--version"]);
    if !process::capture(&mut installed).context("needs rustup")?.status.success() {
        eprintln!("x: installing Rust {version} by rustup");
        let arguments = ["toolchain", "install", &version, "--profile", "minimal"];
        process::show(&mut process::command("rustup", &arguments))?;
    }
    let mut check = process::command("rustup", &["run", &version, "cargo", "check", "--quiet"]);
    check.args(["--workspace", "--all-targets", "--locked", "--target-dir"]);
    check.arg(environment::target().join("oldest-compiler"));
    // Those of the compiler that this task runs under.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        check.env_remove(name);
    }
    check.current_dir(environment::checkout());
    Ok(Outcome::of(&format!("Rust {version}"), process::read(&mut check)))
}

fn version() -> Result<String> {
    let manifest = std::fs::read_to_string(environment::checkout().join("Cargo.toml"))?;
    let manifest: toml::Table = manifest.parse()?;
    let version = manifest["workspace"]["package"]["rust-version"].as_str();
    Ok(version.context("the workspace has a rust-version")?.to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_oldest_compiler_is_read_from_the_manifest() {
        let version = super::version().unwrap();
        assert!(version.starts_with("1."), "{version}");
    }
}
