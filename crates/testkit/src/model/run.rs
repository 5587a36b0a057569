//! A run of the model test: operations from a seed or a log, a report when something is wrong, and
//! a shorter log that still shows it.

use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::checks::Mismatch;
use super::driver::{Applied, Driver};
use super::generator::{Cast, Generator};
use super::operation::Operation;
use crate::product::Subject;

/// How long and how much.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of the operations.
    pub seed: u64,
    /// Operations to carry out.
    pub operations: u64,
    /// Stop after this time even if operations are left.
    pub time_limit: Option<Duration>,
    /// The actors that take part.
    pub cast: Cast,
    /// Capacity that resizes vary around, in bytes.
    pub capacity_bytes: u64,
    /// The actor binary.
    pub actor: PathBuf,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Operations carried out and compared.
    pub applied: u64,
    /// Operations that made no sense when their turn came.
    pub passed_over: u64,
    /// By kind of operation.
    pub kinds: std::collections::BTreeMap<String, u64>,
}

/// A run that found something.
#[derive(Debug)]
pub struct Finding {
    /// What is wrong.
    pub mismatch: Mismatch,
    /// All operations up to it; the last one shows it.
    pub log: Vec<Operation>,
}

impl Finding {
    /// A text for a person: the mismatch, and the last operations.
    pub fn describe(&self, plan: &Plan, operations: usize) -> String {
        let mut text = format!(
            "seed {}: wrong at operation {}: {}\n",
            plan.seed,
            self.log.len(),
            self.mismatch
        );
        let mut tail: VecDeque<String> = VecDeque::new();
        for (number, operation) in self.log.iter().enumerate() {
            tail.push_back(format!("  {number}: {operation:?}\n"));
            if tail.len() > operations {
                tail.pop_front();
            }
        }
        text.extend(tail);
        text
    }
}

fn kind(operation: &Operation) -> String {
    let text = format!("{operation:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// Random operations.
pub fn random(plan: &Plan, subject: &mut dyn Subject) -> Result<Tally, Box<Finding>> {
    let mut log = Vec::new();
    let started = Instant::now();
    let over = || plan.time_limit.is_some_and(|limit| started.elapsed() > limit);
    let mut tally = Tally::default();
    let result = (|| {
        let mut driver = Driver::start(&plan.actor, subject, plan.cast)?;
        let mut generator = Generator::new(plan.seed, plan.cast, plan.capacity_bytes);
        while tally.applied < plan.operations && !over() {
            let operation = generator.next(&driver.model);
            log.push(operation);
            let operation = log.last().expect("just pushed");
            apply(&mut driver, operation, &mut tally)?;
        }
        driver.check_everything()
    })();
    match result {
        Ok(()) => Ok(tally),
        Err(mismatch) => Err(Box::new(Finding { mismatch, log })),
    }
}

fn apply(
    driver: &mut Driver<'_>,
    operation: &Operation,
    tally: &mut Tally,
) -> Result<(), Mismatch> {
    match driver.apply(operation)? {
        Applied::Yes => {
            tally.applied += 1;
            *tally.kinds.entry(kind(operation)).or_default() += 1;
        }
        Applied::PassedOver => tally.passed_over += 1,
    }
    Ok(())
}

/// The operations of a log, again.
pub fn replay(
    plan: &Plan,
    subject: &mut dyn Subject,
    log: &[Operation],
) -> Result<Tally, Box<Finding>> {
    let mut tally = Tally::default();
    let mut done = 0;
    let result = (|| {
        let mut driver = Driver::start(&plan.actor, subject, plan.cast)?;
        for operation in log {
            done += 1;
            apply(&mut driver, operation, &mut tally)?;
        }
        driver.check_everything()
    })();
    match result {
        Ok(()) => Ok(tally),
        Err(mismatch) => Err(Box::new(Finding { mismatch, log: log[..done].to_vec() })),
    }
}

/// Drops operations from the log of a finding as long as the same kind of thing stays wrong.
/// `fresh` makes a subject for each attempt.
pub fn shrink(
    plan: &Plan,
    finding: Finding,
    limit: Duration,
    fresh: &mut dyn FnMut() -> std::io::Result<Box<dyn Subject>>,
) -> Finding {
    let started = Instant::now();
    let kind = finding.mismatch.kind();
    let mut best = finding;
    let mut part = best.log.len() / 2;
    while part > 0 && started.elapsed() < limit {
        let mut start = 0;
        while start < best.log.len() && started.elapsed() < limit {
            let end = (start + part).min(best.log.len());
            let mut shorter = best.log[..start].to_vec();
            shorter.extend_from_slice(&best.log[end..]);
            let Ok(mut subject) = fresh() else { return best };
            match replay(plan, &mut *subject, &shorter) {
                Err(found) if found.mismatch.kind() == kind && found.log.len() < best.log.len() => {
                    best = *found;
                }
                _ => start = end,
            }
        }
        part /= 2;
    }
    best
}

/// Writes a log, one operation a line.
pub fn save(log: &[Operation], path: &Path) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for operation in log {
        serde_json::to_writer(&mut file, operation)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

/// Reads a log.
pub fn load(path: &Path) -> std::io::Result<Vec<Operation>> {
    let lines = std::io::BufReader::new(std::fs::File::open(path)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
