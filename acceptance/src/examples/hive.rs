//! Hive over external tables: CSV that is there is written to tables in ORC and Parquet, which are
//! then asked. Metastore and Tez run in the process of the program; there is no server.

use std::io::{BufWriter, Write};

use anyhow::Result;

use super::place::Place;
use super::report::Report;
use super::tables;
use crate::jvm::artifacts;
use crate::jvm::java::{self, Java};

const FILES: u64 = 4;
/// Bytes of a line, roughly.
const LINE_BYTES: u64 = 25;
/// Questions to each table.
const QUESTIONS: u64 = 3;
const HEAP: &str = "2g";

/// Writes and asks both tables.
pub fn run(place: &mut Place, bytes: u64) -> Result<Report> {
    let directory = place.data().join("hive");
    let lines = directory.join("lines");
    std::fs::create_dir_all(&lines)?;
    let rows = (bytes / LINE_BYTES).max(200_000);
    for file in 0..FILES {
        let path = lines.join(format!("lines-{file}.csv"));
        let mut output = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
        for id in (file..rows).step_by(usize::try_from(FILES)?) {
            writeln!(output, "{}", tables::row(id))?;
        }
        output.into_inner()?.sync_all()?;
    }
    place.publish("hive")?;
    let project = artifacts::project("hive")?;
    place.hadoop.site.write(&place.hadoop.configuration())?;
    let class_path = java::class_path(&[
        &place.hadoop.configuration().display().to_string(),
        place.hadoop.jars(),
        &project.jar.display().to_string(),
        &project.dependencies,
    ]);
    let work = place.hadoop.configuration().with_file_name("hive");
    std::fs::create_dir_all(&work)?;
    let mut java = Java::new(class_path, HEAP)
        .property("java.net.preferIPv4Stack", true)
        .property("derby.stream.error.file", work.join("derby.log").display())
        .property("org.apache.logging.log4j.level", "WARN");
    java.directory = Some(work.clone());
    let arguments = [place.uri("hive"), work.display().to_string(), QUESTIONS.to_string()];
    let mut report = place.report("hive", bytes);
    place.disturb();
    let log = place.hadoop.logs.join("hive.log");
    let main = "io.tidepool.examples.HiveTables";
    let (mut stage, ran) = place.stage("Hive", None, || java.run(main, &arguments, &log))?;
    place.calm(&mut report)?;
    stage.notes = ran.after("STEP ").map(|line| format!("{line} (seconds, step)")).collect();
    report.stages.push(stage);
    let answers: Vec<&str> = ran.after("ROW ").collect();
    report.checked.push(tables::check_answers(&answers, rows, &["orc", "parquet"], QUESTIONS)?);
    for (format, mark) in [("orc", "ORC"), ("parquet", "PAR1")] {
        tables::check_files(&place.plain(&format!("hive/{format}"))?, mark)?;
    }
    Ok(report)
}
