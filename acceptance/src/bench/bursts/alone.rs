//! The buffer alone: what its client stores on one server through a link without a limit, beside
//! iperf3, and how fast a buffer node that crashed reads again what it owes, beside its disk.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use super::rig::{NODES, Rig};
use crate::arguments::Rate;
use crate::bench::bare;
use crate::bench::row::{Goal, Row};
use crate::cleanup;
use crate::scratch::Scratch;
use crate::{environment, process};

const LINK: &str = "client to one buffer, no limit";
const REPLAY: &str = "replay of a crashed buffer node";
const PACKETS: [(&str, u64); 2] = [("512 KiB", 512 << 10), ("1 MiB", (1 << 20) - (4 << 10))];
const PORT: u16 = 11_511;
const STREAMS: u64 = 4;

/// Builds the program that both use.
fn program() -> Result<PathBuf> {
    let build =
        ["build", "--quiet", "--release", "--package", "acceptance", "--features", "library"];
    process::show(environment::cargo(&build).args(["--bin", "bench-buffer"]))?;
    Ok(environment::target().join("release/bench-buffer"))
}

/// MB/s of packets that a client stores.
pub fn through_a_link(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(LINK) {
        return Ok(Vec::new());
    }
    if !bare::has_iperf() {
        eprintln!("x: left out, as iperf3 is not installed: {LINK}");
        return Ok(Vec::new());
    }
    let program = program()?.display().to_string();
    rig.cluster.slow("compute", Some(Rate(None)), None)?;
    let (from, to) = (NODES[0], NODES[1]);
    let address = format!("{}:{PORT}", rig.cluster.plan().node(to)?.address());
    let memory = rig.scale.memory_bytes.to_string();
    let mut serve = rig.cluster.command(to, &program)?;
    serve.args(["serve", &address, &memory]).stdout(Stdio::piped()).stdin(Stdio::null());
    let mut server = serve.spawn().context("starting a buffer")?;
    let id = server.id();
    let _server = cleanup::guard(move || process::signal(id, libc::SIGKILL));
    let mut ready = String::new();
    BufReader::new(server.stdout.take().context("a pipe")?).read_line(&mut ready)?;
    let bytes = (rig.scale.memory_bytes * 2).to_string();
    let mut figures = [const { (Vec::new(), Vec::new()) }; 2];
    for _ in 0..rig.scale.rounds {
        for (at, (_, packet)) in PACKETS.iter().enumerate() {
            let (packet, streams) = (packet.to_string(), STREAMS.to_string());
            let line = [program.as_str(), "store", &address, &packet, &bytes, &streams];
            let rate: f64 = rig.cluster.run(from, &line)?.trim().parse()?;
            figures[at].0.push(rate / 1e6);
            figures[at].1.push(bare::iperf(&rig.cluster, from, to)?);
        }
    }
    drop(_server);
    server.wait()?;
    rig.cluster.slow("compute", Some(Rate(Some(1_000_000_000))), None)?;
    let rows = PACKETS.into_iter().zip(figures).map(|((words, _), figures)| {
        let name = format!("{LINK}, packets of {words}; iperf3, {STREAMS} streams each");
        Row::rates(&name, "MB/s", figures, Goal::RatioAtLeast(0.7))
    });
    Ok(rows.collect())
}

/// MB/s of what is read and checked at a start after a crash, and of the bare files.
pub fn replayed(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(REPLAY) {
        return Ok(Vec::new());
    }
    let program = program()?;
    let directory = Scratch::below(&rig.cluster.plan().directory)?;
    let path = directory.path().join("buffer");
    let bytes = rig.scale.owed_bytes.to_string();
    process::read(Command::new(&program).arg("fill").arg(&path).arg(&bytes))?;
    let mut figures = (Vec::new(), Vec::new());
    for round in 0..rig.scale.rounds {
        for turn in 0..2 {
            rig.cluster.drop_caches()?;
            if (round + turn) % 2 == 0 {
                let said = process::read(Command::new(&program).arg("replay").arg(&path))?;
                let (bytes, seconds) = said.trim().split_once(' ').context("two figures")?;
                figures.0.push(bytes.parse::<f64>()? / seconds.parse::<f64>()? / 1e6);
            } else {
                figures.1.push(bare_read(&path)?);
            }
        }
    }
    let name = format!("{REPLAY}, {} MiB owed; its files read bare", rig.scale.owed_bytes >> 20);
    Ok(vec![Row::rates(&name, "MB/s", figures, Goal::RatioAtLeast(0.8))])
}

/// MB/s of reading all files of a directory, by as many threads as a replay has.
fn bare_read(directory: &Path) -> Result<f64> {
    let mut files = Vec::new();
    collect(directory, &mut files)?;
    let begun = Instant::now();
    let bytes: u64 = std::thread::scope(|scope| {
        let share = files.len().div_ceil(STREAMS as usize).max(1);
        let read = |files: &[PathBuf]| {
            let files = files.to_vec();
            scope.spawn(move || {
                let (mut bytes, mut piece) = (0, vec![0; 1 << 20]);
                for file in files {
                    let mut file = File::open(file)?;
                    loop {
                        match file.read(&mut piece)? {
                            0 => break,
                            count => bytes += count as u64,
                        }
                    }
                }
                Ok::<u64, std::io::Error>(bytes)
            })
        };
        let threads: Vec<_> = files.chunks(share).map(read).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, std::io::Result<u64>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).sum::<std::io::Result<u64>>()
    })?;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e6)
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => collect(&entry.path(), files)?,
            false => files.push(entry.path()),
        }
    }
    Ok(())
}
