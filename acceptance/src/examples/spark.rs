//! Spark 4 on a standalone cluster of one master and one worker: K-means, regressions and tables.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::place::Place;
use super::regression;
use super::report::{Report, Stage};
use super::tables;
use crate::jvm::daemon::{Daemon, free_ports};
use crate::jvm::java::{Java, Ran};
use crate::jvm::spark::SparkHome;
use crate::kmeans::cluster::Centroids;
use crate::kmeans::data::{DIMENSIONS, DataSet};
use crate::kmeans::pass;

const CORES: u32 = 2;
const EXECUTOR_MEMORY: &str = "1500m";
const DRIVER_HEAP: &str = "1g";
/// Files of the generated data.
const FILES: u64 = 8;
const SEED: u64 = 42;
/// Passes of K-means.
const PASSES: usize = 5;
/// Iterations of each regression.
const ITERATIONS: u32 = 4;
/// Questions to each table.
const QUESTIONS: u64 = 3;

/// A running cluster.
#[derive(Debug)]
pub struct Spark {
    master: String,
    log: PathBuf,
    _worker: Daemon,
    _master: Daemon,
    home: SparkHome,
}

/// One pass, as the programs tell it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Pass {
    /// Seconds.
    pub seconds: f64,
    /// Tasks that ended.
    pub tasks: u64,
    /// Of them, on the node that holds their data.
    pub local_tasks: u64,
}

impl Spark {
    /// Starts master and worker with the storage's file system and configuration.
    pub fn start(place: &Place) -> Result<Self> {
        let [port, master_page, worker_port, worker_page] = free_ports()?;
        let home = SparkHome::new(&place.hadoop)?;
        let mut java = home.daemon("512m");
        java.environment.push(("SPARK_LOCAL_IP".into(), "127.0.0.1".into()));
        let logs = &place.hadoop.logs;
        let address = |port: u16, page: u16| {
            ["--host", "127.0.0.1", "--port", &port.to_string(), "--webui-port", &page.to_string()]
                .map(String::from)
                .to_vec()
        };
        let main = "org.apache.spark.deploy.master.Master";
        let mut command = java.command(main, &address(port, master_page));
        let master_daemon = Daemon::start("spark-master", &mut command, logs)?;
        master_daemon.wait_for_port(port)?;
        let master = format!("spark://127.0.0.1:{port}");
        let mut worker = address(worker_port, worker_page);
        worker[1].clone_from(&place.hadoop.host);
        let more = ["--cores", &CORES.to_string(), "--memory", "3g", &master].map(String::from);
        worker.extend(more);
        let mut command = java.command("org.apache.spark.deploy.worker.Worker", &worker);
        let worker = Daemon::start("spark-worker", &mut command, logs)?;
        worker.wait_for_port(worker_port)?;
        Ok(Spark {
            master,
            home,
            log: logs.join("spark-driver.log"),
            _worker: worker,
            _master: master_daemon,
        })
    }

    fn java(&self, name: &str) -> Java {
        self.home
            .driver(DRIVER_HEAP, &self.master, name)
            .property("spark.driver.host", "127.0.0.1")
            .property("spark.executor.memory", EXECUTOR_MEMORY)
            .property("spark.hadoop.mapreduce.input.fileinputformat.split.minsize", 0)
    }

    /// Runs a program; before each pass `before` is called with its number, after it `after`.
    pub fn run(
        &self,
        name: &str,
        arguments: &[String],
        mut before: impl FnMut(u32) -> Result<()>,
        mut after: impl FnMut(Pass) -> Result<()>,
    ) -> Result<Ran> {
        let java = self.java(name).property("passes.wait", true);
        let main = format!("io.tidepool.examples.{name}");
        let mut driver = java.talk(&main, arguments, &self.log)?;
        let mut text = String::new();
        while let Some(line) = driver.hear()? {
            if let Some(number) = line.strip_prefix("READY ") {
                before(number.trim().parse()?)?;
                // Where the program has ended meanwhile, its status tells why.
                let _ = driver.say("");
            } else if let Some(pass) = line.strip_prefix("PASS ") {
                after(serde_json::from_str(pass)?)?;
            }
            text.push_str(&line);
            text.push('\n');
        }
        driver.end()?;
        Ok(Ran { text })
    }

    /// Runs a program and makes a stage of each pass, called by `names` in turn.
    fn passes(
        &self,
        place: &Place,
        name: &str,
        arguments: &[String],
        names: &dyn Fn(usize) -> (String, Option<u64>),
    ) -> Result<(Vec<Stage>, Ran)> {
        let stages = std::cell::RefCell::new(Vec::new());
        let served = std::cell::Cell::new(None);
        let ran = self.run(
            name,
            arguments,
            |_| {
                served.set(place.served());
                Ok(())
            },
            |pass| {
                let mut stages = stages.borrow_mut();
                let (name, bytes) = names(stages.len());
                eprintln!("x: {name}: {:.2} s", pass.seconds);
                let since = place.served().zip(served.get());
                stages.push(Stage {
                    name,
                    seconds: pass.seconds,
                    bytes,
                    served: since.and_then(|(now, before)| now.since(&before)),
                    local_tasks: Some((pass.local_tasks, pass.tasks)),
                    task_seconds: None,
                    task_megabytes_s: None,
                    notes: Vec::new(),
                });
                Ok(())
            },
        )?;
        Ok((stages.into_inner(), ran))
    }
}

/// Generates the data set below the storage, with the first centroids in a plain file.
pub fn kmeans_data(place: &Place, bytes: u64) -> Result<(DataSet, Centroids, PathBuf)> {
    let directory = place.data().join("records");
    std::fs::create_dir_all(&directory)?;
    let data = DataSet::generate(&directory, bytes, bytes.div_ceil(FILES), SEED)?;
    place.publish("records")?;
    let start = pass::start(&data)?;
    let mut text = String::new();
    for point in start.points() {
        let words: Vec<String> = point.iter().map(|value| format!("{value}")).collect();
        text.push_str(&words.join(" "));
        text.push('\n');
    }
    let file = place.hadoop.logs.join("centroids");
    std::fs::write(&file, text)?;
    Ok((data, start, file))
}

/// MLlib's K-means, compared with that of this program on the plain files.
pub fn kmeans(place: &mut Place, bytes: u64) -> Result<Report> {
    let (data, mut centroids, start) = kmeans_data(place, bytes)?;
    let spark = Spark::start(place)?;
    let mut report = place.report("spark-kmeans", data.bytes);
    place.disturb();
    let arguments = [place.uri("records"), start.display().to_string(), PASSES.to_string()];
    let name = |index: usize| (format!("pass {}", index + 1), Some(data.bytes));
    let (stages, ran) = spark.passes(place, "SparkKMeans", &arguments, &name)?;
    place.calm(&mut report)?;
    report.stages = stages;
    for _ in 0..PASSES {
        centroids = pass::run(&data, &centroids, 2, None)?.means(&centroids);
    }
    let found: Vec<Vec<f64>> = ran.after("CENTROID").map(numbers).collect::<Result<_>>()?;
    let expected = centroids.points();
    ensure!(found.len() == expected.len(), "{} centroids", found.len());
    for (found, expected) in found.iter().zip(&expected) {
        ensure!(found.len() == DIMENSIONS, "a centroid of {} features", found.len());
        for (found, expected) in found.iter().zip(expected) {
            let expected = f64::from(*expected);
            let near = (found - expected).abs() <= 1e-3 * expected.abs().max(1.0);
            ensure!(near, "a centroid is at {found} instead of {expected}");
        }
    }
    let count = expected.len();
    report.checked.push(format!("{count} centroids as found in the plain files without Spark"));
    Ok(report)
}

/// Gradient descents of MLlib, compared with plain arithmetic on the plain files.
pub fn regression(place: &mut Place, bytes: u64) -> Result<Report> {
    let (data, _, _) = kmeans_data(place, bytes)?;
    let spark = Spark::start(place)?;
    let mut report = place.report("spark-regression", data.bytes);
    place.disturb();
    let arguments = [place.uri("records"), ITERATIONS.to_string()];
    let read = data.bytes * u64::from(ITERATIONS);
    let name = |index: usize| (regression::KINDS[index].name().to_owned(), Some(read));
    let (stages, ran) = spark.passes(place, "SparkRegression", &arguments, &name)?;
    place.calm(&mut report)?;
    report.stages = stages;
    let mut checked = 0;
    for line in ran.after("WEIGHTS ") {
        let (name, rest) = line.split_once(' ').context("weights without a name")?;
        let kind = regression::KINDS.iter().find(|kind| kind.name() == name);
        let kind = kind.with_context(|| format!("weights of {name}"))?;
        let expected = regression::descend(&data, *kind, ITERATIONS)?;
        let found = numbers(rest)?;
        ensure!(found.len() == expected.len(), "{name} has {} weights", found.len());
        for (found, expected) in found.iter().zip(&expected) {
            let near = (found - expected).abs() <= 1e-6 * expected.abs().max(1e-3);
            ensure!(near, "{name}: a weight is {found} instead of {expected}");
        }
        checked += 1;
    }
    ensure!(checked == regression::KINDS.len(), "only {checked} regressions were done");
    report.checked.push(format!("weights of {checked} regressions as by plain arithmetic"));
    Ok(report)
}

/// Tables written and asked; the answers follow from how the rows are made.
pub fn sql(place: &mut Place, bytes: u64) -> Result<Report> {
    // What a row takes in these formats, roughly.
    let rows = (bytes / 16).max(200_000);
    let spark = Spark::start(place)?;
    let mut report = place.report("spark-sql", bytes);
    place.disturb();
    let arguments = [place.uri("tables"), rows.to_string(), QUESTIONS.to_string()];
    let steps = QUESTIONS as usize + 1;
    let name = |index: usize| {
        let format = ["Parquet", "ORC"][index / steps % 2];
        let step = match index % steps {
            0 => "write".to_owned(),
            question => format!("question {question}"),
        };
        (format!("{format}, {step}"), None)
    };
    let (stages, ran) = spark.passes(place, "SparkTables", &arguments, &name)?;
    place.calm(&mut report)?;
    report.stages = stages;
    let lines: Vec<&str> = ran.after("ROW ").collect();
    report.checked.push(tables::check_answers(&lines, rows, &["parquet", "orc"], QUESTIONS)?);
    for (format, mark) in [("parquet", "PAR1"), ("orc", "ORC")] {
        tables::check_files(&place.plain(&format!("tables/{format}"))?, mark)?;
    }
    Ok(report)
}

fn numbers(line: &str) -> Result<Vec<f64>> {
    line.split_whitespace().map(|word| Ok(word.parse()?)).collect()
}
