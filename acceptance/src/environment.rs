//! Paths and tools: the checkout, the target directory, the release binary, tools with pinned
//! versions. Installs the tools it pins; distribution packages are the business of `./x`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// A tool from the Rust package registry.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// Name of the package and of its binary.
    pub name: &'static str,
    /// The version in use.
    pub version: &'static str,
}

/// The POSIX test suite.
pub const PJDFSTEST: Tool = Tool { name: "pjdfstest", version: "0.2.2" };
/// The file system exerciser.
pub const FSX: Tool = Tool { name: "fsx", version: "0.3.2" };

/// A tool from the Python package registry: a package that carries a program.
#[derive(Clone, Copy, Debug)]
pub struct PythonTool {
    /// Name of the package.
    pub package: &'static str,
    /// The version in use.
    pub version: &'static str,
    /// The program in it.
    pub program: &'static str,
}

/// Root of the checkout: the one that cargo runs in, wherever this program was compiled.
pub fn checkout() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}

/// The target directory in use.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => checkout().join(directory),
        None => checkout().join("target"),
    }
}

/// Cargo, running in the checkout.
pub fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = process::command(cargo, arguments);
    command.current_dir(checkout());
    command
}

/// Builds the product: the programs and the library for Java. Always all, as `cargo build` does:
/// picked one by one, packages get other features of what they depend on and compile it anew.
pub fn build_release() -> Result<()> {
    process::show(&mut cargo(&["build", "--release", "--locked"]))
}

/// The release binary, built if need be. `TIDEPOOL_BINARY` names another one.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("TIDEPOOL_BINARY") {
        return Ok(path.into());
    }
    build_release()?;
    let path = target().join("release/tidepool");
    if !path.is_file() {
        bail!("no binary at {}", path.display());
    }
    Ok(path)
}

/// The program as contributors build it, without optimisation: enough for what it generates. Built
/// for tests of the whole workspace, so that nothing is compiled again that their unit tests use.
pub fn debug_binary() -> Result<PathBuf> {
    let arguments = [
        "test",
        "--no-run",
        "--quiet",
        "--locked",
        "--workspace",
        "--test",
        "cli",
        "--test",
        "lab",
    ];
    process::show(&mut cargo(&arguments))?;
    Ok(target().join("debug/tidepool"))
}

/// Path of a tool; installs it first unless this version is there.
pub fn tool(tool: Tool) -> Result<PathBuf> {
    let root = target().join("tools").join(format!("{}-{}", tool.name, tool.version));
    let path = root.join("bin").join(tool.name);
    if path.is_file() {
        return Ok(path);
    }
    let package = format!("{}@{}", tool.name, tool.version);
    let mut install = cargo(&["install", "--quiet", "--locked", "--root"]);
    install.arg(&root).arg(&package).env("CARGO_TARGET_DIR", target().join("tools/build"));
    eprintln!("x: building {package} by cargo, into {}", root.display());
    process::show(&mut install).with_context(|| format!("installing {package}"))?;
    Ok(path)
}

/// Path of a tool; installs it first unless this version is there.
pub fn python_tool(tool: &PythonTool) -> Result<PathBuf> {
    let package = format!("{}=={}", tool.package, tool.version);
    let name = format!("{}-{}", tool.program, tool.version);
    Ok(python_packages(&name, &[&package])?.join("bin").join(tool.program))
}

/// A directory with Python packages; installs them first unless they are there.
pub fn python_packages(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let tools = target().join("tools");
    let root = tools.join(name);
    if root.is_dir() {
        return Ok(root);
    }
    std::fs::create_dir_all(&tools)?;
    let fresh = tempfile::tempdir_in(&tools)?;
    let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"];
    let mut install = process::command("python3", &arguments);
    install.arg(fresh.path()).args(packages);
    eprintln!("x: installing {} by pip, into {}", packages.join(" "), root.display());
    process::read(&mut install).with_context(|| format!("installing {}", packages.join(" ")))?;
    // Whole or not there.
    std::fs::rename(fresh.keep(), &root)?;
    Ok(root)
}

/// Whether this process may mount and make devices.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Memory that can be used without hurting others, in bytes.
pub fn memory_available_bytes() -> Result<u64> {
    memory_field("MemAvailable")
}

/// A field of `/proc/meminfo`, in bytes.
pub fn memory_field(name: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    let kibibytes: u64 = value.context("no such field in /proc/meminfo")?.parse()?;
    Ok(kibibytes << 10)
}

/// Processes that wanted a processor during the last minute.
pub fn load() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}
