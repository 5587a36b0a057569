//! Tests of the jar of `tide://` beside the versions of Hadoop and Spark that are promised: one
//! program, compiled against the oldest client of Hadoop, run on each; and the commands of the
//! guide of Spark, word for word, on a stock PySpark. The oldest and the newest of each, or all by
//! `--long`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::jvm::artifacts;
use crate::jvm::daemon::last_lines;
use crate::jvm::java::{self, Java};
use crate::node::{Node, NodeOptions};
use crate::outcome::Outcome;
use crate::scratch::Scratch;
use crate::{environment, process};

/// Clients of Hadoop, oldest first.
const HADOOP: [&str; 7] = ["3.3.4", "3.3.6", "3.4.0", "3.4.1", "3.4.2", "3.4.3", "3.5.0"];
/// Packages of PySpark, oldest first.
const SPARK: [&str; 5] = ["3.5.9", "4.0.5", "4.1.4", "4.2.0", "4.3.0"];
/// The guide whose commands are run.
const GUIDE: &str = "docs/guide/spark.md";
/// What Spark 3 needs beside the jar: its Python sessions ask no jar what it brings.
const SPARK_3: &str = "spark.hadoop.fs.tide.impl";
const LIMIT: Duration = Duration::from_secs(180);

/// What the commands of the guide run.
const APPLICATION: &str = r#"
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.range(1000).write.mode("overwrite").parquet("tide:///numbers")
spark.range(10).selectExpr("cast(id as string)").write.mode("overwrite").text("tide:///lines")
numbers = spark.read.parquet("tide:///numbers").groupBy().sum("id").collect()[0][0]
lines = spark.sparkContext.textFile("tide:///lines").map(int).sum()
print("SUMS", numbers, lines)
"#;
const SUMS: &str = "SUMS 499500 45";

/// A node over a directory of its own, with the jar.
struct Scene {
    node: Node,
    jar: PathBuf,
    directory: Scratch,
}

impl Scene {
    fn new() -> Result<Self> {
        let directory = Scratch::below(&environment::target().join("versions"))?;
        let pfs = directory.path().join("pfs");
        std::fs::create_dir(&pfs)?;
        let jar = artifacts::tide_jar()?;
        let memory = "256MiB".to_owned();
        let node = Node::start_unmounted(&NodeOptions { pfs, memory, arguments: Vec::new() })?;
        Ok(Scene { node, jar, directory })
    }

    /// Bytes that the node served from memory so far.
    fn served(&self) -> Result<u64> {
        let status = self.node.status()?;
        let count = |level: &str| status["served"][level].as_u64().unwrap_or(0);
        Ok(count("mapped") + count("store"))
    }

    /// Runs `work` and makes sure that the node took part in it.
    fn through_the_node<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.served()?;
        let value = work()?;
        ensure!(self.served()? > before, "the node served nothing");
        Ok(value)
    }
}

/// Runs the oldest and the newest, or all.
pub fn run(all: bool) -> Result<Vec<Outcome>> {
    let chosen = |versions: &[&'static str]| -> Vec<&'static str> {
        match versions {
            [oldest, .., newest] if !all => vec![oldest, newest],
            versions => versions.to_vec(),
        }
    };
    let scene = Scene::new()?;
    let mut hadoop = Outcome::new("versions of Hadoop");
    for version in chosen(&HADOOP) {
        note(&mut hadoop, version, on_hadoop(&scene, version));
    }
    let mut spark = Outcome::new("versions of Spark");
    // A package of PySpark is half a gigabyte: the short way tries the newest alone.
    let versions = if all { SPARK.to_vec() } else { SPARK[SPARK.len() - 1..].to_vec() };
    for version in versions {
        for command in commands(version)? {
            let name = format!("{version}: {command}");
            note(&mut spark, &name, on_spark(&scene, version, &command));
        }
    }
    Ok(vec![hadoop, spark])
}

fn note(outcome: &mut Outcome, what: &str, result: Result<String>) {
    match result {
        Ok(said) => {
            outcome.passed += 1;
            outcome.notes.push(format!("{what}: {said}"));
        }
        Err(error) => outcome.failed.push(format!("{what}: {error:#}")),
    }
}

/// The program on one client of Hadoop; returns what it says it did.
fn on_hadoop(scene: &Scene, version: &str) -> Result<String> {
    let project = artifacts::project("clients")?;
    let dependencies = artifacts::class_path_with("clients", "client.version", version)?;
    let text = |path: &Path| path.display().to_string();
    let class_path = java::class_path(&[&text(&scene.jar), &text(&project.jar), &dependencies]);
    let mut machine = Java::new(class_path, "512m").light();
    machine.environment.push(("TIDEPOOL_SOCKET".into(), text(&scene.node.socket)));
    let log = scene.directory.path().join(format!("hadoop-{version}.log"));
    let ran = scene.through_the_node(|| {
        machine.run("io.tidepool.examples.ClientSmoke", &["tide:///"], &log)
    })?;
    let said = ran.after("DONE ").next().context("it did not come to its end")?.to_owned();
    ensure!(said.starts_with(version), "it ran on another version: {said}");
    Ok(said)
}

/// The commands of the guide for a version of Spark.
fn commands(version: &str) -> Result<Vec<String>> {
    let guide = std::fs::read_to_string(environment::checkout().join(GUIDE))?;
    let commands = guide.lines().filter(|line| line.starts_with("    spark-submit "));
    let commands = commands.filter_map(|line| line.split('#').next()).map(str::trim);
    let is_3 = version.starts_with("3.");
    let found: Vec<String> =
        commands.filter(|line| line.contains(SPARK_3) == is_3).map(str::to_owned).collect();
    ensure!(!found.is_empty(), "{GUIDE} has no command for Spark {version}");
    Ok(found)
}

/// One command of the guide on a PySpark as it comes from its registry.
fn on_spark(scene: &Scene, version: &str, command: &str) -> Result<String> {
    let package = format!("pyspark=={version}");
    let packages = environment::python_packages(&format!("pyspark-{version}"), &[&package])?;
    let place = Scratch::below(scene.directory.path())?;
    let mut run = spark_command(scene, &packages, place.path(), command)?;
    for made in ["numbers", "lines"] {
        let made = scene.directory.path().join("pfs").join(made);
        let _ = std::fs::remove_dir_all(made);
    }
    let output = scene.through_the_node(|| process::capture_within(&mut run, LIMIT))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !said.contains(SUMS) {
        let errors = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<&str> = errors.lines().filter(|line| !line.contains(" INFO ")).collect();
        bail!("{}: {said}{}", output.status, last_lines(&errors.join("\n")));
    }
    let success = scene.directory.path().join("pfs/numbers/_SUCCESS");
    ensure!(success.exists(), "the table is not in the directory of the PFS");
    Ok("right sums".to_owned())
}

/// The command as a user types it, in a directory with the application and the jar.
fn spark_command(scene: &Scene, packages: &Path, place: &Path, command: &str) -> Result<Command> {
    let version = env!("CARGO_PKG_VERSION");
    let name = scene.jar.file_name().context("a jar has a name")?;
    std::fs::copy(&scene.jar, place.join(name))?;
    crate::maven_repository::publish(&scene.jar, &place.join("maven"))?;
    std::fs::write(place.join("app.py"), APPLICATION)?;
    // Neither the cache of the user nor a repository of the network has a part in it.
    let ivy = place.join("ivy");
    let settings = place.join("ivysettings.xml");
    let caches = format!(
        "<ivysettings><caches defaultCacheDir=\"{0}/cache\"/></ivysettings>",
        ivy.display()
    );
    std::fs::write(&settings, caches)?;
    let defaults = format!(
        "spark.jars.ivy {}\nspark.jars.ivySettings {}\nspark.ui.enabled false\n",
        ivy.display(),
        settings.display()
    );
    std::fs::write(place.join("spark-defaults.conf"), defaults)?;
    let words = command.replace("VERSION", version);
    let words = words.replace("/path/of/dist", &place.display().to_string());
    let mut words = words.split_whitespace();
    let spark = packages.join("pyspark");
    let program = spark.join("bin").join(words.next().context("a command has a program")?);
    let mut run = Command::new(program);
    run.args(words).current_dir(place);
    run.env("SPARK_HOME", &spark).env("PYTHONPATH", packages).env("SPARK_CONF_DIR", place);
    run.env("SPARK_LOCAL_IP", "127.0.0.1").env("TIDEPOOL_SOCKET", &scene.node.socket);
    Ok(run)
}
