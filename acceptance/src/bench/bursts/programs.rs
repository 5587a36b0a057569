//! Whole jobs, from their start to their end: RandomWriter and Sort, and three programs of PUMA,
//! whose answers are compared with each other, byte by byte.

use std::io::Write;

use anyhow::{Context, Result, ensure};

use super::place::Place;
use super::rig::{ALIKE, NODES, POOR_LOCAL, Rig, Shaping};
use crate::bench::row::{Goal, Row};

const EXAMPLES: &str = "org.apache.hadoop.examples";
const PUMA: &str = "io.tidepool.examples.puma";
/// Files of a generated input.
const FILES: u64 = 4;

/// A job that is timed, and of which ratios are expected: of the reference's time to ours.
struct Step {
    /// For tables.
    name: &'static str,
    /// What it reads.
    input: Option<&'static str>,
    /// What it writes.
    output: &'static str,
    /// Against the file system, and against HDFS.
    goals: [Goal; 2],
    /// Whether its answer is the same in each run.
    is_compared: bool,
}

/// Jobs that follow each other.
struct Series {
    name: &'static str,
    mode: &'static str,
    shaping: Shaping,
    /// Generators, which are not timed.
    inputs: &'static [&'static str],
    steps: Vec<Step>,
}

/// A goal that the paper's job of `percent` less time sets.
fn less(percent: f64) -> Goal {
    Goal::RatioAtLeast(100.0 / (100.0 - percent))
}

fn step(
    name: &'static str,
    input: Option<&'static str>,
    output: &'static str,
    goals: [Goal; 2],
) -> Step {
    Step { name, input, output, goals, is_compared: false }
}

/// The series: the paper ran the first and the last by `alw`, and Sort by `bld` as well.
fn series() -> Vec<Series> {
    let compared = |step: Step| Step { is_compared: true, ..step };
    let random = |goals| step("RandomWriter", None, "random", goals);
    let sort = |goals| step("Sort", Some("random"), "sorted", goals);
    let puma = vec![
        step("SequenceCount", Some("text"), "sequences", [less(34.0), less(40.0)]),
        step("RankedInvertedIndex", Some("sequences"), "index", [less(27.0), less(48.0)]),
        step("HistogramRatings", Some("ratings"), "histogram", [less(17.0), Goal::Shown]),
    ];
    vec![
        Series {
            name: "writing",
            mode: "alw",
            shaping: ALIKE,
            inputs: &[],
            steps: vec![random([less(36.0), less(39.0)]), sort([less(20.0), less(18.0)])],
        },
        Series {
            name: "writing",
            mode: "bld",
            shaping: POOR_LOCAL,
            inputs: &[],
            steps: vec![random([Goal::Shown, Goal::Shown]), sort([less(30.0), less(19.0)])],
        },
        Series {
            name: "PUMA",
            mode: "alw",
            shaping: ALIKE,
            inputs: &["text", "ratings"],
            steps: puma.into_iter().map(compared).collect(),
        },
    ]
}

/// The rows.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for series in series() {
        if rig.wants(&series.title()) {
            rig.start_services()?;
            rows.extend(measure(rig, &series)?);
        }
    }
    Ok(rows)
}

impl Series {
    fn title(&self) -> String {
        format!("jobs, {}, {}", self.name, self.mode)
    }
}

fn measure(rig: &mut Rig, series: &Series) -> Result<Vec<Row>> {
    let places = [Place::Mode(series.mode), Place::Pfs, Place::Hdfs];
    let mut seconds = vec![[const { Vec::new() }; 3]; series.steps.len()];
    let mut answers: Vec<Option<u64>> = vec![None; series.steps.len()];
    for round in 0..rig.scale.rounds {
        for turn in 0..places.len() {
            let at = (round + turn) % places.len();
            visit(rig, series, places[at], |number, took, answer| {
                seconds[number][at].push(took);
                let known = answers[number].get_or_insert(answer);
                let name = series.steps[number].name;
                ensure!(*known == answer, "{name} answers otherwise on {}", places[at].name());
                Ok(())
            })?;
        }
    }
    let mut rows = Vec::new();
    for (number, step) in series.steps.iter().enumerate() {
        for (reference, goal) in [1, 2].into_iter().zip(step.goals) {
            let other = places[reference].name();
            let name = format!("{}: {}; {other}", series.title(), step.name);
            let figures = (seconds[number][0].clone(), seconds[number][reference].clone());
            let row = Row::rates(&name, "s", figures, goal);
            let disks = format!(
                "disks of {} MB/s, below HDFS {}",
                series.shaping.pfs / 1_000_000,
                series.shaping.hdfs / 1_000_000
            );
            rows.push(Row { larger_is_better: false, ..row }.note(disks));
        }
    }
    Ok(rows)
}

/// All jobs in one place; `take` is given the number of each, its seconds and what it answers.
fn visit(
    rig: &mut Rig,
    series: &Series,
    place: Place,
    mut take: impl FnMut(usize, f64, u64) -> Result<()>,
) -> Result<()> {
    rig.shape_for(place, Shaping { pfs: 500_000_000, hdfs: 500_000_000 })?;
    for input in series.inputs {
        generate(rig, place, input)?;
    }
    rig.settle()?;
    rig.cluster.drop_caches()?;
    rig.shape_for(place, series.shaping)?;
    for (number, step) in series.steps.iter().enumerate() {
        let words = step.words(rig, place)?;
        let (_, took) = rig.job(&words)?;
        let answer = if step.is_compared { answer(rig, place, step.output)? } else { 0 };
        take(number, took, answer)?;
    }
    rig.settle()?;
    for name in ["random", "sorted", "text", "ratings", "sequences", "index", "histogram"] {
        let is_ours = |step: &Step| step.output == name;
        if series.inputs.contains(&name) || series.steps.iter().any(is_ours) {
            rig.remove(place, name)?;
        }
    }
    Ok(())
}

impl Step {
    fn words(&self, rig: &Rig, place: Place) -> Result<Vec<String>> {
        let output = place.uri(&rig.cluster, self.output)?;
        let input = self.input.map(|input| place.uri(&rig.cluster, input)).transpose()?;
        let (bytes, nodes) = (rig.scale.node_bytes, NODES.len());
        let words: Vec<String> = match (self.name, input) {
            ("RandomWriter", _) => vec![
                format!("{EXAMPLES}.RandomWriter"),
                format!("-Dmapreduce.randomwriter.totalbytes={}", bytes * nodes as u64),
                format!("-Dmapreduce.randomwriter.bytespermap={bytes}"),
                output,
            ],
            ("Sort", Some(input)) => {
                let reduces = nodes.to_string();
                vec![format!("{EXAMPLES}.Sort"), "-r".into(), reduces, input, output]
            }
            (name, Some(input)) => {
                let reduces = if name == "HistogramRatings" { 1 } else { nodes };
                let reduces = format!("-Dmapreduce.job.reduces={reduces}");
                vec![format!("{PUMA}.{name}"), reduces, input, output]
            }
            (name, None) => anyhow::bail!("{name} reads nothing"),
        };
        let replicas = "-Ddfs.replication=2".to_owned();
        Ok([&words[..1], &[replicas], &words[1..]].concat())
    }
}

fn generate(rig: &mut Rig, place: Place, name: &str) -> Result<()> {
    let (program, bytes) = match name {
        "text" => ("TextGenerator", rig.scale.text_bytes),
        _ => ("RatingsGenerator", rig.scale.ratings_bytes),
    };
    let output = place.uri(&rig.cluster, name)?;
    let each = bytes.div_ceil(FILES);
    let words = [format!("{PUMA}.{program}"), output, bytes.to_string(), each.to_string()];
    rig.job(&words).map(drop)
}

/// A sum over all that a job answered, in whatever order.
fn answer(rig: &mut Rig, place: Place, name: &str) -> Result<u64> {
    if place != Place::Hdfs {
        let directory = rig.directory(place)?.join(name);
        let mut sum = 0;
        for entry in std::fs::read_dir(&directory).with_context(|| name.to_owned())? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("part-") {
                sum += sum_of_lines(&std::fs::read(entry.path())?);
            }
        }
        return Ok(sum);
    }
    let pattern = format!("{}/part-*", place.uri(&rig.cluster, name)?);
    let beside = crate::scratch::Scratch::short()?;
    let file = beside.path().join("answer");
    let words = ["fs", "-getmerge", &pattern, &file.display().to_string()].map(str::to_owned);
    rig.job(&words)?;
    let bytes = std::fs::read(&file)?;
    std::io::stdout().flush()?;
    Ok(sum_of_lines(&bytes))
}

fn sum_of_lines(bytes: &[u8]) -> u64 {
    bytes.split(|byte| *byte == b'\n').map(|line| u64::from(crc32fast::hash(line))).sum()
}
