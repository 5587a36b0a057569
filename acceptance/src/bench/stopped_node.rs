//! Benchmark of a node that is stopped, as by a debugger or by swapping, under a Java program with
//! eight reading threads: how long each kind of call stands still. Run only when named.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::row::{Goal, Row};
use super::{Bench, forget, warm};
use crate::jvm::artifacts;
use crate::jvm::hadoop::Hadoop;
use crate::node::{Node, NodeOptions};
use crate::random_file::write_file;
use crate::{cleanup, environment, process};

const NAME: &str = "hadoop-stopped-node";
const BYTES: u64 = 16 << 20;
/// Time in each of the two states, in seconds.
const SECONDS: u64 = 10;
/// What is measured, with its goal in milliseconds.
const KINDS: [(&str, &str, f64); 5] = [
    ("elsewhere", "a thread without tide://", 20.0),
    ("resident", "a read of resident bytes", 100.0),
    ("open", "an open for reading", 2000.0),
    ("rename", "a rename", 2000.0),
    ("delete", "a delete", 2000.0),
];

type Longest = BTreeMap<String, f64>;

/// The longest that each kind took, in milliseconds: with the node running, and stopped.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.names(NAME) {
        return Ok(Vec::new());
    }
    let mut rounds = Vec::new();
    for _ in 0..bench.scale.rounds {
        rounds.push(round(bench)?);
    }
    let load = environment::load().unwrap_or(f64::NAN);
    let of = |kind: &str, state: fn(&(Longest, Longest)) -> &Longest| -> Vec<f64> {
        rounds.iter().filter_map(|round| state(round).get(kind).copied()).collect()
    };
    Ok(KINDS
        .iter()
        .map(|(kind, what, goal)| {
            let name = format!("{NAME}, longest of {what}");
            let running = of(kind, |round| &round.0);
            let most = running.iter().copied().fold(0.0, f64::max);
            Row::alone(&name, "ms", of(kind, |round| &round.1), Goal::AtMost(*goal))
                .note(format!("with the node running at most {most:.1} ms; load {load:.1}"))
        })
        .collect())
}

fn round(bench: &Bench) -> Result<(Longest, Longest)> {
    let logs = environment::target().join("bench-logs");
    let mut hadoop = Hadoop::new(&environment::target().join("bench"), &logs)?;
    hadoop.add_jar(&artifacts::tide_jar()?);
    let node = Node::start_unmounted(&NodeOptions {
        pfs: bench.lower.clone(),
        memory: "256MiB".to_owned(),
        arguments: Vec::new(),
    })?;
    hadoop.site.set("fs.tide.socket", node.socket.display());
    hadoop.site.set("fs.tide.pfs", bench.lower.display());
    let file = bench.lower.join("stopped");
    write_file(&file, BYTES)?;
    warm::load(&node, &file)?;
    forget(&file)?;
    let arguments = ["tide:///stopped".to_owned(), SECONDS.to_string()];
    let log = logs.join("stopped-node.log");
    let main = "io.tidepool.examples.StoppedNode";
    let mut program = hadoop.java()?.talk(main, &arguments, &log)?;
    let running = longest(&program.answer()?)?;
    let process_id = node.process_id()?;
    let go_on = cleanup::guard(move || process::signal(process_id, libc::SIGCONT));
    process::signal(process_id, libc::SIGSTOP);
    program.say("")?;
    let stopped = program.answer();
    drop(go_on);
    let stopped = longest(&stopped?)?;
    program.end()?;
    Ok((running, stopped))
}

/// Reads `LONGEST kind=ms ...`.
fn longest(line: &str) -> Result<Longest> {
    let words = line.strip_prefix("LONGEST ").with_context(|| line.to_owned())?;
    let pairs = words.split(' ').map(|word| {
        let (kind, figure) = word.split_once('=').with_context(|| line.to_owned())?;
        Ok((kind.to_owned(), figure.parse()?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::longest;

    #[test]
    fn figures_are_read() {
        let found = longest("LONGEST elsewhere=1.5 open=1900.25").unwrap();
        assert_eq!((found["elsewhere"], found["open"]), (1.5, 1900.25));
        assert!(longest("else").is_err());
    }
}
