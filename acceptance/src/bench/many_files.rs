//! Benchmark of programs that use a tree of many small files, on the mount, on libfuse's
//! pass-through example over the same directory, and on the bare directory.
//!
//! In mode `through` every file is synced at its close, which the example does not do; so that mode
//! is shown, and `bypass`, which promises what the directory promises, is what is compared. What
//! the syncs take by themselves is a row of its own.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::pass_through::PassThrough;
use super::row::{Goal, Row, median};
use super::{Bench, in_turns, time};
use crate::process;

const NAME: &str = "many-files";
const FILES_PER_DIRECTORY: u64 = 100;
/// One in so many files is larger than the others.
const LARGE_EVERY: u64 = 50;
/// Ours may take a tenth more than the example.
const GOAL: f64 = 0.91;

/// What is done in a directory, in this order, and each once a round.
const STEPS: [(&str, Step); 5] = [
    ("git clone", clone),
    ("git grep", grep),
    ("tar x", extract),
    ("tar c", pack),
    ("rm -r", remove),
];

type Step = fn(&Path, &Source) -> Result<()>;

/// What the steps start from, in memory.
struct Source {
    repository: PathBuf,
    archive: PathBuf,
}

/// Where the steps run.
struct Place {
    name: &'static str,
    directory: PathBuf,
}

/// Every step in every place.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.wants(NAME) {
        return Ok(Vec::new());
    }
    let count = bench.scale.small_files / 10;
    let source = source(&bench.memory.join("many"), count)?;
    let memory = 1 << 30;
    let modes = ["bypass", "through"];
    let nodes = modes.map(|mode| bench.node(memory, &["--write-mode", mode]));
    let [bypass, through] = nodes;
    let (bypass, through) = (bypass?, through?);
    let example = PassThrough::mount(&bench.lower)?;
    let roots = [
        ("bypass", &bypass.mount),
        ("through", &through.mount),
        ("libfuse's pass-through", &example.mount),
        ("bare directory", &bench.lower),
    ];
    let places: Vec<Place> = roots
        .into_iter()
        .map(|(name, root)| Place { name, directory: root.join(format!("many-{}", &name[..4])) })
        .collect();
    let mut figures = vec![vec![Vec::new(); places.len()]; STEPS.len()];
    for round in 0..bench.scale.rounds {
        for turn in 0..places.len() {
            let index = (round + turn) % places.len();
            let place = &places[index];
            for ((name, step), of_step) in STEPS.iter().zip(&mut figures) {
                prepare(name, &place.directory)?;
                let seconds = time(|| step(&place.directory, &source))
                    .with_context(|| format!("{name}, {}", place.name))?;
                of_step[index].push(seconds);
            }
            fs::remove_dir(&place.directory)?;
        }
    }
    let syncs = in_turns(bench.scale.rounds, &[true, false], |sync| {
        writes(&bench.lower.join("synced"), count, *sync)
    })?;
    drop((bypass, through, example));
    fs::remove_dir_all(bench.memory.join("many"))?;
    let mut rows: Vec<Row> =
        STEPS.iter().zip(figures).map(|((step, _), figures)| row(step, count, figures)).collect();
    rows.push(syncs_row(count, syncs));
    Ok(rows)
}

/// One tree at a time: the example holds a descriptor of each file.
fn prepare(step: &str, directory: &Path) -> Result<()> {
    match step {
        "git clone" => fs::create_dir(directory)?,
        "tar x" => {
            fs::remove_dir_all(directory.join("clone"))?;
            fs::create_dir(directory.join("tree"))?;
        }
        _ => {}
    }
    Ok(())
}

fn row(step: &str, count: u64, mut figures: Vec<Vec<f64>>) -> Row {
    let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
    let (through, bare) = (middle(&figures[1]), middle(&figures[3]));
    let reference = figures.swap_remove(2);
    let example = middle(&reference);
    let ours = figures.swap_remove(0);
    let name = format!("{NAME}: {step}, {count} files");
    let row = Row::rates(&name, "s", (ours, reference), Goal::RatioAtLeast(GOAL));
    Row { larger_is_better: false, ..row }
        .note("mode bypass; reference: libfuse's pass-through on the same directory")
        .note(format!(
            "mode through {through:.2} s, {:.2} times the reference; bare directory {bare:.2} s",
            through / example
        ))
}

fn syncs_row(count: u64, mut figures: Vec<Vec<f64>>) -> Row {
    let without = figures.pop().unwrap_or_default();
    let with = figures.pop().unwrap_or_default();
    let name = format!("{NAME}: {count} bare files written and synced one by one");
    let row = Row::rates(&name, "s", (with, without), Goal::Shown);
    Row { larger_is_better: false, ..row }.note("reference: the same without the syncs")
}

/// A repository of so many files, packed, and an archive of them.
fn source(place: &Path, count: u64) -> Result<Source> {
    let tree = place.join("tree");
    write_tree(&tree, count, false)?;
    let repository = place.join("repository");
    git(&["init", "--quiet", "--bare"], &repository)?;
    let inside = |words: &[&str]| -> Result<()> {
        let mut git = git_command();
        git.arg("--git-dir").arg(&repository).arg("--work-tree").arg(&tree).args(words);
        process::read(&mut git).map(drop)
    };
    inside(&["add", "--all"])?;
    inside(&["commit", "--quiet", "--message", "files"])?;
    inside(&["repack", "-a", "-d", "-q"])?;
    let archive = place.join("files.tar");
    let mut tar = process::command("tar", &["--create", "--file"]);
    process::read(tar.arg(&archive).arg("--directory").arg(&tree).arg("."))?;
    Ok(Source { repository, archive })
}

fn write_tree(tree: &Path, count: u64, sync: bool) -> Result<()> {
    for number in 0..count {
        let directory = tree.join(format!("directory-{}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        let lines = if number % LARGE_EVERY == 0 { 2_000 } else { 40 + number % 160 };
        let line = |line| format!("line {line} of file {number}: some words that make it longer\n");
        let mut file = File::create(directory.join(format!("file-{number}.txt")))?;
        file.write_all((0..lines).map(line).collect::<String>().as_bytes())?;
        if sync {
            file.sync_all()?;
        }
    }
    Ok(())
}

fn writes(tree: &Path, count: u64, sync: bool) -> Result<f64> {
    let seconds = time(|| write_tree(tree, count, sync))?;
    fs::remove_dir_all(tree)?;
    Ok(seconds)
}

/// Git as itself: nobody's settings, no maintenance beside.
fn git_command() -> Command {
    let mut git = Command::new("git");
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for (name, value) in [("user.name", "bench"), ("user.email", "bench@localhost")] {
        git.args(["-c", &format!("{name}={value}")]);
    }
    git.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "safe.directory=*"]);
    git
}

fn git(words: &[&str], last: &Path) -> Result<()> {
    process::read(git_command().args(words).arg(last)).map(drop)
}

fn clone(directory: &Path, source: &Source) -> Result<()> {
    let mut clone = git_command();
    clone.args(["clone", "--quiet", "--no-local"]).arg(&source.repository);
    process::read(clone.arg(directory.join("clone"))).map(drop)
}

fn grep(directory: &Path, _: &Source) -> Result<()> {
    let mut grep = git_command();
    grep.arg("-C").arg(directory.join("clone")).args(["grep", "--count", "line 39 of"]);
    let found = process::read(&mut grep)?;
    anyhow::ensure!(!found.is_empty(), "the files have such lines");
    Ok(())
}

fn extract(directory: &Path, source: &Source) -> Result<()> {
    let tree = directory.join("tree");
    let mut tar = process::command("tar", &["--extract", "--file"]);
    process::read(tar.arg(&source.archive).arg("--directory").arg(tree)).map(drop)
}

/// Through a pipe: into `/dev/null` itself tar reads nothing.
fn pack(directory: &Path, source: &Source) -> Result<()> {
    let mut tar = process::command("tar", &["--create", "--file", "-", "--directory"]);
    let output = process::capture(tar.arg(directory.join("tree")).arg("."))?;
    let expected = fs::metadata(&source.archive)?.len();
    let packed = output.stdout.len() as u64;
    anyhow::ensure!(output.status.success() && packed == expected, "an archive of {packed} bytes");
    Ok(())
}

fn remove(directory: &Path, _: &Source) -> Result<()> {
    let mut remove = process::command("rm", &["-r"]);
    process::read(remove.arg(directory.join("tree"))).map(drop)
}
