//! The Java parts: Maven over a native library that cargo built before. Cargo never calls Maven and
//! Maven never calls cargo; only this file knows both.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use acceptance::outcome::Outcome;
use acceptance::{environment, maven_repository, process};

use crate::arguments::BuildOptions;
use crate::java_reports;

/// The Java parts that are shipped and tested.
const PROJECTS: &str = "--projects=hadoop,plane,stores";
const LIBRARY: &str = "libtidepool_java.so";
/// The other architecture that the library is built for, where this machine has the tools.
const CROSS_TARGET: &str = "aarch64-unknown-linux-gnu";
const CROSS_LINKER: &str = "aarch64-linux-gnu-gcc";

/// Builds everything that is shipped, into `dist/`.
pub fn build(options: &BuildOptions) -> Result<()> {
    environment::build_release()?;
    let dist = environment::checkout().join("dist");
    std::fs::create_dir_all(&dist)?;
    crate::dist::of_release(&dist)?;
    if let Some(missing) = missing_tool() {
        let words = format!("no {missing} here: the jar is not built");
        if options.all {
            bail!("{words}; install {missing}");
        }
        println!("x: {words}");
        return Ok(());
    }
    let cross = cross_build()?;
    match &cross {
        Some(_) => println!("x: the jar serves x86-64 and aarch64"),
        None => println!("x: no tools for {CROSS_TARGET}: the jar serves this architecture alone"),
    }
    let native = stripped(&environment::target().join("release"), "strip", "native")?;
    let mut arguments = vec!["-DskipTests".to_owned(), PROJECTS.to_owned()];
    arguments.push("--also-make".to_owned());
    arguments.push(format!("-Dnative.dir={}", native.display()));
    arguments
        .extend(cross.map(|directory| format!("-Dnative.aarch64.dir={}", directory.display())));
    arguments.push("package".to_owned());
    process::show(maven(&arguments)?.arg("--quiet"))?;
    maven_repository::publish(&place("hadoop", &dist)?, &dist.join("maven"))?;
    place("plane", &dist)?;
    // The node starts it, and looks for it where it is installed.
    crate::dist::add_jar(&place("stores", &dist)?, &dist)?;
    println!("x: built into {}", dist.display());
    Ok(())
}

/// Copies the jar of a part into `dist/`. Answers where Maven made it.
fn place(part: &str, dist: &Path) -> Result<PathBuf> {
    let jar = format!("tidepool-{part}-{}.jar", version()?);
    let made = environment::checkout().join("java").join(part).join("target").join(&jar);
    std::fs::copy(&made, dist.join(&jar)).with_context(|| made.display().to_string())?;
    Ok(made)
}

/// The tests of the Java parts, on the release build.
pub fn test() -> Result<Vec<Outcome>> {
    let mut outcome = Outcome::new("java");
    if let Some(missing) = missing_tool() {
        outcome.skipped.push(format!("no {missing}"));
        return Ok(vec![outcome]);
    }
    environment::build_release()?;
    let native = environment::target().join("release");
    let arguments = [
        PROJECTS.to_owned(),
        "--also-make".to_owned(),
        format!("-Dnative.dir={}", native.display()),
        // All reports are there even where one part fails.
        "--fail-at-end".to_owned(),
        "test".to_owned(),
    ];
    java_reports::clear()?;
    let mut command = maven(&arguments)?;
    // One test asks for a panic; its trace would hide what a reader of the output looks for.
    command.env_remove("RUST_BACKTRACE");
    let (status, text) = process::follow(&mut command)?;
    java_reports::count(&mut outcome)?;
    if !status.success() && outcome.failed.is_empty() {
        outcome.failed.push(format!("mvn ended with {status}"));
    }
    if !outcome.failed.is_empty() {
        print!("{text}");
    }
    Ok(vec![outcome])
}

fn missing_tool() -> Option<&'static str> {
    let has = |program: &str| {
        process::capture(&mut process::command(program, &["-version"]))
            .is_ok_and(|output| output.status.success())
    };
    match (has("javac"), has("mvn")) {
        (false, _) => Some("JDK"),
        (_, false) => Some("Maven"),
        (true, true) => None,
    }
}

fn version() -> Result<String> {
    let manifest = std::fs::read_to_string(environment::checkout().join("Cargo.toml"))?;
    let manifest: toml::Table = manifest.parse()?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("the workspace has a version")?.to_owned())
}

fn maven(arguments: &[String]) -> Result<std::process::Command> {
    let mut command = process::command("mvn", &["--batch-mode", "--file"]);
    command.arg(environment::checkout().join("java/pom.xml"));
    command.arg(format!("-Drevision={}", version()?)).args(arguments);
    Ok(command)
}

/// The library for the other architecture, if this machine can build it.
fn cross_build() -> Result<Option<PathBuf>> {
    let has_linker = process::capture(&mut process::command(CROSS_LINKER, &["--version"])).is_ok();
    let sysroot = process::read(&mut process::command("rustc", &["--print", "sysroot"]))?;
    let has_target = Path::new(sysroot.trim()).join("lib/rustlib").join(CROSS_TARGET).is_dir();
    if !(has_linker && has_target && cfg!(target_arch = "x86_64")) {
        return Ok(None);
    }
    let arguments = ["build", "--release", "--locked", "-p", "tidepool-java", "--target"];
    let variable = format!("CARGO_TARGET_{}_LINKER", CROSS_TARGET.replace('-', "_").to_uppercase());
    process::show(environment::cargo(&arguments).arg(CROSS_TARGET).env(variable, CROSS_LINKER))?;
    let built = environment::target().join(CROSS_TARGET).join("release");
    let strip = CROSS_LINKER.replace("gcc", "strip");
    stripped(&built, &strip, "native-aarch64").map(Some)
}

/// The library of `built` without what only debuggers read, in a directory of its own.
fn stripped(built: &Path, strip: &str, name: &str) -> Result<PathBuf> {
    let directory = environment::target().join(name);
    std::fs::create_dir_all(&directory)?;
    let mut command = process::command(strip, &["--strip-debug", "-o"]);
    process::read(command.arg(directory.join(LIBRARY)).arg(built.join(LIBRARY)))?;
    Ok(directory)
}
