//! A batch job of Flink, on a job manager and a task manager.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};

use anyhow::{Context, Result, ensure};

use super::place::Place;
use super::report::Report;
use crate::jvm::flink::Flink;

const GROUPS: u64 = 1_000;
const FILES: u64 = 4;
/// Bytes of a line, roughly.
const LINE_BYTES: u64 = 20;

/// Counts and sums by group; the same is done by plain arithmetic.
pub fn count(place: &mut Place, bytes: u64) -> Result<Report> {
    let directory = place.data().join("facts");
    std::fs::create_dir_all(&directory)?;
    let rows = (bytes / LINE_BYTES).max(1_000);
    let mut expected: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for file in 0..FILES {
        let path = directory.join(format!("facts-{file}.csv"));
        let mut output = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
        for id in (file..rows).step_by(usize::try_from(FILES)?) {
            let (group, value) = (id * 31 % GROUPS, id * 7_919 % 10_007);
            writeln!(output, "{id},{group},{value}")?;
            let answer = expected.entry(group).or_default();
            *answer = (answer.0 + 1, answer.1 + value);
        }
        output.flush()?;
        output.into_inner()?.sync_all()?;
    }
    place.publish("facts")?;
    let size = directory_bytes(&directory)?;
    let mut report = place.report("flink", size);
    let flink = Flink::start(&place.hadoop)?;
    place.disturb();
    for pass in ["first pass", "second pass"] {
        let arguments = [place.uri("facts"), place.uri(&format!("answers-{}", &pass[..1]))];
        let (stage, _) = place.stage(pass, Some(size), || flink.run("FlinkCount", &arguments))?;
        report.stages.push(stage);
    }
    place.calm(&mut report)?;
    for pass in ["f", "s"] {
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(place.plain(&format!("answers-{pass}"))?)? {
            for line in std::fs::read_to_string(entry?.path())?.lines() {
                let numbers: Vec<u64> =
                    line.split(',').map(str::parse).collect::<Result<_, _>>().context("CSV")?;
                ensure!(numbers.len() == 3, "an answer has {} columns", numbers.len());
                let before = found.insert(numbers[0], (numbers[1], numbers[2]));
                ensure!(before.is_none(), "group {} was answered twice", numbers[0]);
            }
        }
        ensure!(found == expected, "Flink's answers differ from plain arithmetic");
    }
    report.checked.push(format!("{GROUPS} groups of {rows} rows as by plain arithmetic"));
    Ok(report)
}

fn directory_bytes(directory: &std::path::Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
