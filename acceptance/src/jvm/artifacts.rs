//! Class paths, resolved and compiled by Maven from the projects below `examples/`. Built again
//! only where a source is newer than what was built or a jar has gone from the local repository.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};

use crate::{environment, process};

const NEEDS_MAVEN: &str =
    "Maven is needed here (package `maven`), with a JDK (`openjdk-17-jdk-headless`)";

/// A project below `examples/`, built.
#[derive(Clone, Debug)]
pub struct Project {
    /// What Maven made.
    pub target: PathBuf,
    /// Its own jar.
    pub jar: PathBuf,
    /// The jars that it depends on, separated by colons.
    pub dependencies: String,
}

/// Versions that are to be others than those the projects name, as `property=version`.
static VERSIONS: OnceLock<Vec<String>> = OnceLock::new();

/// Has all projects of this run be built with these versions.
pub fn use_versions(versions: &[String]) -> Result<()> {
    for version in versions {
        let known = ["hadoop.version=", "spark.version=", "flink.version="];
        let is_known = known.iter().any(|name| version.starts_with(name));
        ensure!(is_known, "--with {version}: it takes {}VERSION", known.join("VERSION, "));
    }
    // Set once a run, before the first project.
    let _ = VERSIONS.set(versions.to_vec());
    Ok(())
}

/// Builds `examples/NAME` where need be.
pub fn project(name: &str) -> Result<Project> {
    let root = environment::checkout().join("examples");
    let project = root.join(name);
    let versions = VERSIONS.get().map_or(&[][..], Vec::as_slice);
    let variant = match versions {
        [] => String::new(),
        versions => format!("/{}", versions.join("-")),
    };
    let target = project.join(format!("target{variant}"));
    let list = target.join("class-path");
    if !is_current(&list, &[&root.join("pom.xml"), &project.join("pom.xml"), &project.join("src")])
    {
        eprintln!("x: building examples/{name} (the first time it downloads what it runs on)");
        let pom = root.join("pom.xml");
        let mut maven = process::command("mvn", &["-q", "-B", "-f"]);
        maven.arg(&pom).args(["-pl", name, "package"]).arg(format!("-Dvariant={variant}"));
        maven.args(versions.iter().map(|version| format!("-D{version}")));
        process::show(&mut maven).context(NEEDS_MAVEN)?;
        // Maven leaves a list alone that has not changed; its time tells when it was true.
        std::fs::File::options().append(true).open(&list)?.set_modified(SystemTime::now())?;
    }
    let dependencies = std::fs::read_to_string(&list)
        .with_context(|| format!("{}: not made by Maven", list.display()))?;
    let jar = target.join(format!("examples-{name}-1.jar"));
    Ok(Project { jar, target, dependencies: dependencies.trim().to_owned() })
}

/// The class path of `examples/NAME` with another value of a property of its: a version of what it
/// runs on. Nothing is compiled anew.
pub fn class_path_with(name: &str, property: &str, value: &str) -> Result<String> {
    let root = environment::checkout().join("examples");
    let list = root.join(name).join("target").join(format!("class-path-{value}"));
    if !is_current(&list, &[&root.join("pom.xml"), &root.join(name).join("pom.xml")]) {
        let mut maven = process::command("mvn", &["-q", "-B", "-f"]);
        maven.arg(root.join("pom.xml")).args(["-pl", name, "dependency:build-classpath"]);
        maven.arg(format!("-D{property}={value}")).arg("-DincludeScope=runtime");
        maven.arg(format!("-Dmdep.outputFile={}", list.display()));
        process::show(&mut maven).context(NEEDS_MAVEN)?;
    }
    let text = std::fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    Ok(text.trim().to_owned())
}

/// The jar of `tide://`, built with its native library. `TIDEPOOL_JAR` names another one.
pub fn tide_jar() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("TIDEPOOL_JAR") {
        return Ok(path.into());
    }
    environment::build_release()?;
    product_jar("hadoop")
}

/// The jar of the job of the cluster plane. `TIDEPOOL_PLANE_JAR` names another one.
pub fn plane_jar() -> Result<PathBuf> {
    /// Built once a run: measurements start the job many times.
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = std::env::var_os("TIDEPOOL_PLANE_JAR") {
        return Ok(path.into());
    }
    if let Some(path) = BUILT.get() {
        return Ok(path.clone());
    }
    let path = product_jar("plane")?;
    Ok(BUILT.get_or_init(|| path).clone())
}

/// The program by which a node speaks to Alluxio and HDFS.
pub fn stores_jar() -> Result<PathBuf> {
    product_jar("stores")
}

/// Builds `java/NAME`.
fn product_jar(name: &str) -> Result<PathBuf> {
    let java = environment::checkout().join("java");
    let mut maven = process::command("mvn", &["-q", "-B", "-f"]);
    maven.arg(java.join("pom.xml")).arg(format!("-Drevision={}", env!("CARGO_PKG_VERSION")));
    maven.args(["-pl", name, "-am"]);
    maven.arg(format!("-Dnative.dir={}", environment::target().join("release").display()));
    // Its tests are a step of their own.
    maven.args(["-Dmaven.test.skip=true", "package"]);
    process::show(&mut maven).context(NEEDS_MAVEN)?;
    Ok(java.join(format!("{name}/target/tidepool-{name}-{}.jar", env!("CARGO_PKG_VERSION"))))
}

fn is_current(list: &Path, sources: &[&Path]) -> bool {
    let Ok(built) = std::fs::metadata(list).and_then(|facts| facts.modified()) else {
        return false;
    };
    let text = std::fs::read_to_string(list).unwrap_or_default();
    sources.iter().all(|source| newest(source).is_none_or(|time| time <= built))
        && text.trim().split(':').all(|jar| Path::new(jar).is_file())
}

/// When something in a tree was last changed.
fn newest(path: &Path) -> Option<SystemTime> {
    let facts = std::fs::metadata(path).ok()?;
    let own = facts.modified().ok();
    let entries = std::fs::read_dir(path).ok().into_iter().flatten().flatten();
    entries.filter_map(|entry| newest(&entry.path())).chain(own).max()
}

#[cfg(test)]
mod tests {
    use super::is_current;

    #[test]
    fn a_changed_source_and_a_lost_jar_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let (list, jar) = (directory.path().join("class-path"), directory.path().join("a.jar"));
        let source = directory.path().join("src");
        std::fs::create_dir(&source).unwrap();
        std::fs::write(&jar, "").unwrap();
        assert!(!is_current(&list, &[&source]));
        std::fs::write(&list, jar.to_str().unwrap()).unwrap();
        assert!(is_current(&list, &[&source]));
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
        let file = std::fs::File::create(source.join("A.java")).unwrap();
        file.set_modified(later).unwrap();
        assert!(!is_current(&list, &[&source]));
        std::fs::remove_file(source.join("A.java")).unwrap();
        std::fs::remove_file(&jar).unwrap();
        assert!(!is_current(&list, &[]));
    }
}
