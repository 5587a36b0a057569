//! Benchmark of writes that are on two nodes when `fsync` returns, beside those that are on the
//! file system.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::rig::{BLOCK, Rig, names};
use crate::bench::row::{Goal, Row};

const NAME: &str = "write and fsync of files";
const WRITER: &str = "c1";
const READER: &str = "c2";
/// Where the rule of the test cluster asks for a copy on another node.
const DIRECTORY: &str = "copies";
const FILES: usize = 24;

/// Rates with links and disks as they are, and the bytes that the other nodes read then.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(NAME) {
        return Ok(Vec::new());
    }
    rig.empty()?;
    let directories = [rig.cluster.mount(WRITER)?.join(DIRECTORY), rig.cluster.pfs(WRITER)?];
    std::fs::create_dir(&directories[0])?;
    let mut figures = [const { Vec::new() }; 2];
    for round in 0..rig.scale.rounds {
        for turn in 0..figures.len() {
            let at = (round + turn) % figures.len();
            figures[at].push(write(&directories[at], round)?);
        }
        compare(rig, round)?;
        let names = names(&format!("copied-{round}"), FILES);
        for directory in &directories {
            names.iter().try_for_each(|name| std::fs::remove_file(directory.join(name)))?;
        }
        rig.empty()?;
    }
    std::fs::remove_dir(&directories[0])?;
    let [copies, bare] = figures;
    let name = format!("{NAME} of 4 MiB: in the memory of two nodes; bare on the file system");
    Ok(vec![Row::rates(&name, "MB/s", (copies, bare), Goal::Shown)])
}

/// Writes files one after the other. Returns MB/s.
fn write(directory: &Path, round: usize) -> Result<f64> {
    let begun = Instant::now();
    for (number, name) in names(&format!("copied-{round}"), FILES).iter().enumerate() {
        let mut file = File::create(directory.join(name))?;
        file.write_all(&content(number))?;
        file.sync_all()?;
    }
    let bytes = FILES as u64 * BLOCK;
    Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
}

/// Reads on another node what is in memory alone.
fn compare(rig: &Rig, round: usize) -> Result<()> {
    let directory = rig.cluster.mount(READER)?.join(DIRECTORY);
    for (number, name) in names(&format!("copied-{round}"), FILES).iter().enumerate() {
        let is_right = std::fs::read(directory.join(name))? == content(number);
        ensure!(is_right, "{READER} reads wrong bytes of {name}");
    }
    Ok(())
}

fn content(number: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| (at / 4096) as u8 ^ at as u8 ^ number as u8).collect()
}
