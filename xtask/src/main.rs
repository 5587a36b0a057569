//! Project tasks: building, tests, style checks, documents. Called through `./x`, which also starts
//! by it what `acceptance` has: benchmarks, suites, examples and the demo.
//!
//! Nothing of the product is decided here, and nothing here is shipped.

mod arguments;
mod checks;
mod deny;
mod dist;
mod documents;
mod java;
mod java_reports;
mod junit;
mod oldest_compiler;
mod rust_tests;
mod skips;
mod third_party;
mod tidy;

use acceptance::{bench, cleanup, cluster, demo, environment, examples, hog, outcome, suites, vm};
use clap::Parser;

use crate::arguments::{Arguments, Task};

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    cleanup::on_interrupt();
    match run(arguments.task) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("x: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Build(options) => java::build(&options),
        Task::Suites(options) => verdict(&suites::run(&options)?),
        Task::Demo(options) => match &options.from {
            Some(json) => demo::report_from(json).map(|page| println!("{}", page.display())),
            None => demo::run(&options).map(drop),
        },
        Task::Bench(options) => bench::run(&options),
        Task::Example(options) => examples::run(&options),
        Task::Cluster(options) => cluster::run(&options),
        Task::Hog(options) => hog::run(&options),
        Task::Visit(options) => bench::visitor::run(&options),
        Task::Tree(options) => dist::lay_out(&options.binary, &options.deploy, &options.tree),
        Task::Docs => documents::write(),
        Task::Man => documents::write_man_pages(),
        Task::Tidy => judged(tidy::run(&environment::binary()?)?),
        Task::Vm(options) => {
            let outcome = vm::run(&options)?;
            println!("{outcome}\n{}", outcome.output);
            verdict(&[outcome])
        }
        Task::Deny(options) => judged(deny::run(&options)?),
        Task::Msrv => judged(oldest_compiler::check()?),
        Task::Check => checks::check(),
        Task::Test(options) => checks::run(&options),
    }
}

/// Prints an outcome and fails unless it is good.
fn judged(outcome: outcome::Outcome) -> anyhow::Result<()> {
    println!("{outcome}");
    verdict(&[outcome])
}

/// Fails unless every outcome is good.
fn verdict(outcomes: &[outcome::Outcome]) -> anyhow::Result<()> {
    let bad = outcomes.iter().filter(|outcome| !outcome.is_good()).count();
    if bad > 0 {
        anyhow::bail!("{bad} of {} failed", outcomes.len());
    }
    Ok(())
}
