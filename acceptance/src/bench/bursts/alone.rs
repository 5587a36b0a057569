//! The buffer alone: what its client stores on one server through a link without a limit, beside
//! iperf3, and how fast a buffer node that crashed reads again what it owes, beside its disk.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::rig::{NODES, Rig};
use crate::arguments::Rate;
use crate::bench::row::{Goal, Row};
use crate::bench::{bare, wait_until};
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

/// MB/s of packets that a client stores on a server of ours and on stock memcached, beside iperf3:
/// once into memory that nothing used before, then where older packets were.
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
    let host = rig.cluster.plan().node(NODES[1])?.address();
    let memory = rig.scale.memory_bytes;
    let address = format!("{host}:{PORT}");
    let ours = [&program, "serve", &address, &memory.to_string()].map(str::to_owned);
    let mut rows = stored(rig, &program, &ours, "a buffer")?;
    let (port, megabytes) = (PORT.to_string(), (memory >> 20).to_string());
    let options = ["-l", &host, "-p", &port, "-m", &megabytes, "-I", "2m", "-u", "nobody"];
    match process::capture(&mut process::command("memcached", &["--version"])) {
        Ok(_) => {
            let words = [&["memcached"], &options[..]].concat();
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            let theirs = stored(rig, &program, &words, "stock memcached")?;
            rows.extend(theirs.into_iter().map(|row| Row { goal: Goal::Shown, ..row }));
        }
        Err(_) => eprintln!("x: left out, as it is not installed: memcached"),
    }
    rig.cluster.slow("compute", Some(Rate(Some(1_000_000_000))), None)?;
    Ok(rows)
}

/// The rows of one server, which is started anew for each length of packets: sizes that change
/// cost any of them its memory's order.
fn stored(rig: &Rig, program: &str, serve: &[String], of: &str) -> Result<Vec<Row>> {
    let (mut fresh, mut again) = (Vec::new(), Vec::new());
    for (words, packet) in PACKETS {
        let (first, more) = stored_of(rig, program, serve, packet)?;
        let row = |what: &str, figures, goal| {
            let name =
                format!("{LINK}, {of}, packets of {words}{what}; iperf3, {STREAMS} streams each");
            Row::rates(&name, "MB/s", figures, goal)
        };
        fresh.push(row(", fresh memory", first, Goal::Shown));
        again.push(row("", more, Goal::RatioAtLeast(0.7)));
    }
    fresh.extend(again);
    Ok(fresh)
}

/// Figures of a server and of iperf3.
type Figures = (Vec<f64>, Vec<f64>);

/// Those of packets of one length: into fresh memory, and where older packets were.
fn stored_of(
    rig: &Rig,
    program: &str,
    serve: &[String],
    packet: u64,
) -> Result<(Figures, Figures)> {
    let (from, to) = (NODES[0], NODES[1]);
    let mut command = rig.cluster.command(to, &serve[0])?;
    command.args(&serve[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = command.spawn().context("starting a server")?;
    let id = server.id();
    let stop = cleanup::guard(move || process::signal(id, libc::SIGKILL));
    let address = format!("{}:{PORT}", rig.cluster.plan().node(to)?.address());
    let streams = STREAMS.to_string();
    let store = |packet: u64, bytes: u64| -> Result<f64> {
        let (packet, bytes) = (packet.to_string(), bytes.to_string());
        let line = [program, "store", &address, &packet, &bytes, &streams];
        Ok(rig.cluster.run(from, &line)?.trim().parse::<f64>()? / 1e6)
    };
    wait_until("the server to listen", Duration::from_secs(10), || {
        Ok(store(4096, 4096 * STREAMS).is_ok())
    })?;
    let bytes = rig.scale.memory_bytes;
    let iperf = || bare::iperf(&rig.cluster, from, to);
    let fresh = (vec![store(packet, bytes)?], vec![iperf()?]);
    let mut again = (Vec::new(), Vec::new());
    for _ in 0..rig.scale.rounds {
        again.0.push(store(packet, bytes * 2)?);
        again.1.push(iperf()?);
    }
    drop(stop);
    server.wait()?;
    Ok((fresh, again))
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
