//! Every check that a change must pass, in one run, with counts. A check that was left out is
//! printed with its reason; where a list says what this machine lacks, any other is a failure.

use std::time::Instant;

use anyhow::{Context, Result};

use acceptance::arguments::{DemoOptions, ExampleOptions, Storage, SuiteOptions, VmOptions};
use acceptance::outcome::Outcome;
use acceptance::{demo, environment, examples, process, suites, versions, vm};

use crate::arguments::{DenyOptions, TestOptions};
use crate::skips::ExpectedSkips;
use crate::{deny, java, oldest_compiler, rust_tests, tidy};

type Step = (&'static str, fn(&TestOptions) -> Result<Vec<Outcome>>);

/// What needs neither root nor a mount, and minutes at most.
const QUICK: [Step; 5] = [
    ("format", format),
    ("clippy", clippy),
    ("rustdoc", rustdoc),
    ("unit tests", |_| rust_tests::units()),
    ("tidy", |_| Ok(vec![tidy::run(&environment::debug_binary()?)?])),
];

const STEPS: [Step; 16] = [
    ("format", format),
    ("build", |_| Ok(vec![Outcome::of("release build", environment::build_release())])),
    ("clippy", clippy),
    ("rustdoc", rustdoc),
    ("tests", rust_tests::run),
    ("java", run_java),
    ("versions", |options| versions::run(options.long)),
    ("tidy", |_| Ok(vec![tidy::run(&environment::binary()?)?])),
    ("suites", run_suites),
    ("applications", run_applications),
    ("plane", run_plane),
    ("vm", run_vm),
    ("examples", run_examples),
    ("demo", run_demo),
    ("oldest compiler", |options| when_long(options, oldest_compiler::check)),
    ("libraries of others", |options| when_long(options, || deny::run(&DenyOptions::default()))),
];

/// A contributor's loop.
pub fn check() -> Result<()> {
    walk(&QUICK, &TestOptions { long: false, only: None, skips: None, record: false })
}

/// The whole truth.
pub fn run(options: &TestOptions) -> Result<()> {
    walk(&STEPS, options)
}

/// Runs every step, also after a failure, and prints what came of them.
fn walk(steps: &[Step], options: &TestOptions) -> Result<()> {
    let mut skips = options.skips.as_deref().map(ExpectedSkips::read).transpose()?;
    let started = Instant::now();
    let mut outcomes = Vec::new();
    for (name, step) in steps {
        if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        eprintln!("x: {name}");
        let began = Instant::now();
        let new = step(options).unwrap_or_else(|error| vec![Outcome::of::<()>(name, Err(error))]);
        for mut outcome in new {
            if let Some(skips) = &mut skips {
                skips.judge(&mut outcome);
            }
            println!("{outcome}");
            outcomes.push(outcome);
        }
        eprintln!("x: {name}: {:.0} s", began.elapsed().as_secs_f64());
    }
    anyhow::ensure!(!outcomes.is_empty(), "no step has this name");
    if let (Some(skips), None) = (&skips, &options.only) {
        outcomes.extend(skips.missed());
    }
    summarise(&outcomes, started)
}

fn summarise(outcomes: &[Outcome], started: Instant) -> Result<()> {
    println!("\nSummary");
    for outcome in outcomes {
        println!("{}", outcome.line());
    }
    for outcome in outcomes.iter().filter(|outcome| !outcome.output.is_empty()) {
        println!("\nWhat failures of {} printed\n{}", outcome.name, outcome.output);
    }
    let flaky: Vec<&String> = outcomes.iter().flat_map(|outcome| &outcome.flaky).collect();
    if !flaky.is_empty() {
        let list = environment::target().join(rust_tests::FLAKY_LIST);
        println!("\nPassed only when run again; kept in {}", list.display());
        flaky.iter().for_each(|line| println!("FLAKY {line}"));
    }
    let passed: u64 = outcomes.iter().map(|outcome| outcome.passed).sum();
    let failed: usize = outcomes.iter().map(|outcome| outcome.failed.len()).sum();
    let skipped: usize = outcomes.iter().map(|outcome| outcome.skipped.len()).sum();
    println!(
        "{passed} passed, {failed} failed, {skipped} skipped, {:.1} minutes",
        started.elapsed().as_secs_f64() / 60.0
    );
    let bad = outcomes.iter().filter(|outcome| !outcome.is_good()).count();
    anyhow::ensure!(bad == 0, "{bad} of {} steps failed", outcomes.len());
    Ok(())
}

/// A step that installs or compiles much, so that only `--long` has it.
fn when_long(
    options: &TestOptions,
    step: impl FnOnce() -> Result<Outcome>,
) -> Result<Vec<Outcome>> {
    if options.long { Ok(vec![step()?]) } else { Ok(Vec::new()) }
}

fn format(_: &TestOptions) -> Result<Vec<Outcome>> {
    let result = process::read(&mut environment::cargo(&["fmt", "--all", "--check"]));
    Ok(vec![Outcome::of("format", result.context("run `cargo fmt`"))])
}

fn clippy(_: &TestOptions) -> Result<Vec<Outcome>> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    let all = Outcome::of("clippy", process::read(&mut environment::cargo(&arguments)));
    // The build without stores of other makers, which nothing else compiles.
    let small = ["check", "--quiet", "--package", "tidepool-cli", "--no-default-features"];
    let small = process::read(&mut environment::cargo(&small));
    Ok(vec![all, Outcome::of("clippy: without features", small)])
}

/// Documents of the code, whose links all lead somewhere.
fn rustdoc(_: &TestOptions) -> Result<Vec<Outcome>> {
    let arguments = ["doc", "--workspace", "--no-deps", "--quiet", "--document-private-items"];
    let mut command = environment::cargo(&arguments);
    command.env("RUSTDOCFLAGS", "-D warnings");
    Ok(vec![Outcome::of("rustdoc", process::read(&mut command))])
}

fn run_java(options: &TestOptions) -> Result<Vec<Outcome>> {
    let outcomes = java::test()?;
    if options.record {
        let whole = SuiteOptions { on: "both".into(), ..SuiteOptions::default() };
        suites::record::keep("hadoop", &whole, &outcomes)?;
    }
    Ok(outcomes)
}

fn run_suites(options: &TestOptions) -> Result<Vec<Outcome>> {
    let seed = if options.long { (1..=8).collect() } else { Vec::new() };
    let operations = if options.long { 200_000 } else { 10_000 };
    let names = Vec::new();
    let on = "both".into();
    suites::run(&SuiteOptions { names, on, seed, operations, ..SuiteOptions::default() })
}

/// Applications that take seconds, while the store grows and shrinks, and tests of memcached's own
/// that take moments.
fn run_applications(_: &TestOptions) -> Result<Vec<Outcome>> {
    let names = vec!["applications-short".to_owned(), "memcached-short".to_owned()];
    suites::run(&SuiteOptions { names, on: "both".into(), ..SuiteOptions::default() })
}

/// The cluster plane of memory control: Kafka, the job, collectd, nodes and their agents.
fn run_plane(_: &TestOptions) -> Result<Vec<Outcome>> {
    let (names, on) = (vec!["plane".to_owned()], "node".into());
    suites::run(&SuiteOptions { names, on, ..SuiteOptions::default() })
}

/// The oldest kernel that is common, emulated.
fn run_vm(_: &TestOptions) -> Result<Vec<Outcome>> {
    let options = VmOptions { kernel: "6.1".into(), only: None, long: false };
    Ok(vec![vm::run(&options)?])
}

/// One job of Hadoop under fault injection; with `--long`, Spark and Flink too.
fn run_examples(options: &TestOptions) -> Result<Vec<Outcome>> {
    let names = ["terasort-local", "spark-kmeans", "flink"];
    let count = if options.long { names.len() } else { 1 };
    let run = |name: &&str| {
        let result = examples::report(
            name,
            &ExampleOptions {
                name: Some((*name).to_owned()),
                size: (!options.long).then_some(16 << 20),
                storage: Storage::Tide,
                pfs: None,
                turmoil: true,
                seed: None,
                forget_before: None,
                with: Vec::new(),
                json: None,
            },
        );
        let notes = result
            .as_ref()
            .map_or(Vec::new(), |report| report.turmoil.clone().into_iter().collect());
        let mut outcome = Outcome::of(&format!("example {name}"), result);
        outcome.notes = notes;
        outcome
    };
    Ok(names[..count].iter().map(run).collect())
}

fn run_demo(options: &TestOptions) -> Result<Vec<Outcome>> {
    let report = tempfile::tempdir()?;
    let result = demo::run(&DemoOptions {
        pfs: None,
        size: if options.long { 3 << 30 } else { 256 << 20 },
        quick: !options.long,
        iterations: 10,
        rate: 400_000_000,
        from: None,
        report: Some(report.path().to_path_buf()),
    });
    Ok(vec![Outcome::of("demo", result)])
}
