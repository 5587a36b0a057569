//! Child processes of the benchmark of fairness, each with a user of its own: one opens, reads and
//! is timed, the other takes all of one resource of the node.

mod taking;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::row::median;
use crate::arguments::{VisitOptions, VisitTask};

/// Name of a file of 4 KiB in a directory that is visited.
pub const SMALL: &str = "small";
/// Name of a larger one.
pub const BIG: &str = "big";
const READ_BYTES: usize = 1 << 20;
/// So many of one directory, then of the next one.
const BATCH: usize = 8;

/// Does what the command line asks for.
pub fn run(options: &VisitOptions) -> Result<()> {
    match &options.task {
        VisitTask::Open { file, times } => {
            for _ in 0..*times {
                open_read_close_us(file)?;
            }
            Ok(())
        }
        VisitTask::Read { directories, times } => {
            println!("{}", serde_json::to_string(&read(directories, *times)?)?);
            Ok(())
        }
        VisitTask::Take { what, directory, pfs, socket } => {
            taking::run(*what, directory, pfs, socket)
        }
    }
}

/// Microseconds of opening a file, reading 4 KiB of it and closing it.
pub fn open_read_close_us(path: &Path) -> Result<f64> {
    let mut buffer = [0; 4_096];
    let started = Instant::now();
    let mut file = File::open(path)?;
    file.read_exact(&mut buffer)?;
    drop(file);
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

/// Median microseconds of open + read + close, and of a read of 1 MiB, in each of the directories.
fn read(directories: &[PathBuf], times: usize) -> Result<Vec<[f64; 2]>> {
    let bigs: Vec<File> = directories
        .iter()
        .map(|directory| File::open(directory.join(BIG)))
        .collect::<Result<_, _>>()?;
    let mut figures = vec![(Vec::new(), Vec::new()); directories.len()];
    let mut buffer = vec![0; READ_BYTES];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..times.div_ceil(BATCH) {
        for ((directory, big), (opens, reads)) in directories.iter().zip(&bigs).zip(&mut figures) {
            let pieces = big.metadata()?.len() / READ_BYTES as u64;
            for _ in 0..BATCH {
                opens.push(open_read_close_us(&directory.join(SMALL))?);
                random = random.rotate_left(7).wrapping_mul(0x2545_f491_4f6c_dd1d);
                let started = Instant::now();
                big.read_exact_at(&mut buffer, random % pieces * READ_BYTES as u64)?;
                reads.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    let middle = |values: &[f64]| median(values).context("nothing was measured");
    figures.iter().map(|(opens, reads)| Ok([middle(opens)?, middle(reads)?])).collect()
}
