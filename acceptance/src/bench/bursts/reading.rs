//! Reads: of the file system while what is owed is written back to it, and of data that the buffers
//! hold, or cannot hold.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::place::Place;
use super::rig::{ALIKE, BUFFERS, NODES, Rig};
use crate::arguments::Rate;
use crate::bench::row::{Goal, Row};

const BESIDE: &str = "reads of the PFS beside a full-rate write-back";
const TWICE: &str = "reads elsewhere of data twice the buffers";
/// Rate of disks where buffers are compared with them.
const DISK: u64 = 65_000_000;
const PIECE: usize = 1 << 20;
/// Files that are read alone, or beside the write-back.
const COLD_FILES: u64 = 3;

/// A reader of cold files on a node that owes bytes, with those bytes and without.
pub fn beside_write_back(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(BESIDE) {
        return Ok(Vec::new());
    }
    let (cold, owed) = (rig.directory(Place::Pfs)?, rig.directory(Place::Mode("alw"))?);
    let bytes = rig.scale.file_bytes;
    let names: Vec<String> = (0..COLD_FILES).map(|at| format!("cold-{at}")).collect();
    rig.cluster.slow("data", None, Some(Rate(None)))?;
    names.iter().try_for_each(|name| write(&cold.join(name), bytes))?;
    let mount = rig.cluster.mount(NODES[0])?.join("plain");
    let mut figures = [const { Vec::new() }; 2];
    for round in 0..rig.scale.rounds {
        for turn in 0..2 {
            let is_beside = (round + turn) % 2 == 1;
            rig.settle()?;
            rig.empty_stores()?;
            rig.cluster.drop_caches()?;
            rig.cluster.slow("data", None, Some(Rate(Some(ALIKE.pfs))))?;
            if is_beside {
                for at in 0..COLD_FILES {
                    write(&owed.join(format!("owed-{at}")), bytes)?;
                }
            }
            let begun = Instant::now();
            names.iter().try_for_each(|name| read(&mount.join(name), bytes))?;
            let rate = (COLD_FILES * bytes) as f64 / begun.elapsed().as_secs_f64() / 1e6;
            figures[usize::from(is_beside)].push(rate);
            rig.cluster.slow("data", None, Some(Rate(None)))?;
            rig.settle()?;
            if is_beside {
                for at in 0..COLD_FILES {
                    fs::remove_file(owed.join(format!("owed-{at}")))?;
                }
            }
        }
    }
    names.iter().try_for_each(|name| fs::remove_file(cold.join(name)))?;
    let [alone, beside] = figures;
    let row = Row::rates(BESIDE, "MB/s", (beside, alone), Goal::RatioAtLeast(0.9));
    Ok(vec![row.note(format!(
        "{} MiB are owed, {} read",
        (COLD_FILES * bytes) >> 20,
        (COLD_FILES * bytes) >> 20
    ))])
}

/// What two nodes wrote in mode `bld` and dropped is read on the two others, where it fits into the
/// buffers, and where it is twice as large.
pub fn of_twice_the_buffers(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(TWICE) {
        return Ok(Vec::new());
    }
    rig.cluster.slow("data", None, Some(Rate(Some(DISK))))?;
    let buffers = rig.scale.memory_bytes * BUFFERS.len() as u64;
    let mut figures = [const { Vec::new() }; 2];
    for round in 0..rig.scale.rounds {
        for turn in 0..2 {
            let at = (round + turn) % 2;
            let bytes = if at == 0 { buffers / 5 * 4 } else { buffers * 2 };
            figures[at].push(elsewhere(rig, bytes)?);
        }
    }
    let [fits, twice] = figures;
    let row = Row::rates(TWICE, "MB/s", (twice, fits), Goal::RatioAtLeast(0.6));
    Ok(vec![row.note("the reference is data of 0.8 times the buffers".to_owned())])
}

/// MB/s of reads by the nodes with buffers of what the others wrote.
fn elsewhere(rig: &mut Rig, bytes: u64) -> Result<f64> {
    let each = rig.scale.file_bytes / 4;
    let files = bytes / each / 2;
    let writers = &NODES[..2];
    for node in writers {
        let directory = rig.directory_on(node, Place::Mode("bld"))?;
        for at in 0..files {
            write(&directory.join(format!("{node}-{at}")), each)?;
        }
    }
    // They rest for a moment, and are compared, before others are told of them.
    std::thread::sleep(std::time::Duration::from_secs(4));
    rig.settle()?;
    rig.empty_stores()?;
    rig.cluster.drop_caches()?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let read_all = |(reader, writer): (&'static str, &'static str)| {
            let directory = rig.directory_on(reader, Place::Mode("bld"));
            scope.spawn(move || {
                let directory = directory?;
                (0..files).try_for_each(|at| read(&directory.join(format!("{writer}-{at}")), each))
            })
        };
        let pairs = BUFFERS.into_iter().zip([NODES[0], NODES[1]]);
        let threads: Vec<_> = pairs.map(read_all).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().try_for_each(join)
    })?;
    let rate = (files * each * 2) as f64 / begun.elapsed().as_secs_f64() / 1e6;
    let directory = rig.directory(Place::Mode("bld"))?;
    for node in writers {
        (0..files).try_for_each(|at| fs::remove_file(directory.join(format!("{node}-{at}"))))?;
    }
    Ok(rate)
}

fn write(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let piece: Vec<u8> = (0..PIECE).map(|at| (at / 4096) as u8 ^ at as u8).collect();
    for _ in 0..bytes / PIECE as u64 {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Reads a file, all of whose bytes are compared.
fn read(path: &Path, bytes: u64) -> Result<()> {
    let right: Vec<u8> = (0..PIECE).map(|at| (at / 4096) as u8 ^ at as u8).collect();
    let (mut file, mut piece) = (File::open(path)?, vec![0; PIECE]);
    for _ in 0..bytes / PIECE as u64 {
        file.read_exact(&mut piece)?;
        ensure!(piece == right, "{}: wrong bytes", path.display());
    }
    Ok(())
}
