//! The Hadoop file system beside its peers, by one program that knows the Hadoop API alone: HDFS
//! with short-circuit reads, Alluxio with short-circuit reads, the raw local file system, and a
//! `pread` of tmpfs without Java. All are measured in turns; those that can share a virtual machine
//! do, Alluxio has one of its own with the same settings.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::row::{Goal, Row, median};
use super::{Bench, warm};
use crate::environment;
use crate::jvm::alluxio::Alluxio;
use crate::jvm::artifacts;
use crate::jvm::hadoop::{Hadoop, Hdfs};
use crate::jvm::java::{self, Dialogue, Java};
use crate::node::{Node, NodeOptions};
use crate::random_file::write_file;

const READ: &str = "hadoop-read";
const POSITIONED: &str = "hadoop-positioned";
const VECTORED: &str = "hadoop-vectored";
const SMALL: &str = "hadoop-small";
const LIST: &str = "hadoop-list";
const WRITE: &str = "hadoop-write";

/// A virtual machine with `FsBench`.
#[derive(Debug)]
struct Machine(Dialogue);

impl Machine {
    fn start(java: &Java, log: &Path) -> Result<Self> {
        let none: [&str; 0] = [];
        Ok(Machine(java.talk("io.tidepool.examples.FsBench", &none, log)?))
    }

    fn ask(&mut self, command: &str) -> Result<f64> {
        let line = self.0.ask(command).with_context(|| command.to_owned())?;
        match line.trim().split_once(' ') {
            Some(("RATE", number)) => Ok(number.parse()?),
            _ => bail!("{command}: {}", line.trim()),
        }
    }
}

/// All that is measured beside each other.
struct Peers<'a> {
    bench: &'a Bench,
    own: Machine,
    other: Option<Machine>,
    hdfs: Option<Hdfs>,
    alluxio: Option<Alluxio>,
    node: Node,
    _hadoop: Hadoop,
}

/// Where a file system keeps what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Peer {
    Tide,
    Hdfs,
    Alluxio,
    /// The raw local file system on the lower level's directory.
    Lower,
    /// The same on tmpfs.
    Memory,
    /// Without Java.
    Plain,
}

type Figures = BTreeMap<Peer, Vec<f64>>;

impl<'a> Peers<'a> {
    fn start(bench: &'a Bench, with: &[Peer], memory_bytes: u64) -> Result<Self> {
        let logs = environment::target().join("bench-logs");
        let base = environment::target().join("bench");
        let mut hadoop = Hadoop::new(&base, &logs)?;
        hadoop.add_jar(&artifacts::tide_jar()?);
        let node = Node::start_unmounted(&NodeOptions {
            pfs: bench.lower.clone(),
            memory: memory_bytes.to_string(),
            arguments: Vec::new(),
        })?;
        hadoop.site.set("fs.tide.socket", node.socket.display());
        hadoop.site.set("fs.tide.pfs", bench.lower.display());
        let hdfs = match with.contains(&Peer::Hdfs) {
            true => Some(Hdfs::start(&mut hadoop, &bench.lower.join("blocks"))?),
            false => None,
        };
        let own = Machine::start(&settings(hadoop.java()?), &logs.join("fs-bench.log"))?;
        let (mut alluxio, mut other) = (None, None);
        if with.contains(&Peer::Alluxio) {
            let lower = bench.lower.join("under");
            std::fs::create_dir_all(&lower)?;
            // Each of its writers takes 64 MiB at once, whatever the file has.
            let started = Alluxio::start(&lower, memory_bytes.max(512 << 20), &logs)?;
            let project = artifacts::project("hadoop")?;
            let jar = project.jar.display().to_string();
            let path = java::class_path(&[&started.class_path, &jar]);
            let java = settings(Java::new(path, "2g"));
            other = Some(Machine::start(&java, &logs.join("fs-bench-alluxio.log"))?);
            alluxio = Some(started);
        }
        Ok(Peers { bench, own, other, hdfs, alluxio, node, _hadoop: hadoop })
    }

    fn uri(&self, peer: Peer, path: &str) -> String {
        match peer {
            Peer::Tide => format!("tide:///{path}"),
            Peer::Hdfs => format!("{}/{path}", self.hdfs.as_ref().map_or("", |hdfs| &hdfs.uri)),
            Peer::Alluxio => {
                format!("{}/{path}", self.alluxio.as_ref().map_or("", |alluxio| &alluxio.uri))
            }
            Peer::Lower => format!("file://{}", self.bench.lower.join(path).display()),
            Peer::Memory | Peer::Plain => {
                format!("file://{}", self.bench.memory.join(path).display())
            }
        }
    }

    fn ask(&mut self, peer: Peer, operation: &str, path: &str, more: &str) -> Result<f64> {
        let command = format!("{operation} path={} {more}", self.uri(peer, path));
        let machine = match peer {
            Peer::Alluxio => self.other.as_mut().context("Alluxio was not started")?,
            _ => &mut self.own,
        };
        machine.ask(command.trim())
    }

    /// Measures in turns, in an order that changes from round to round, after rounds that do not
    /// count: the virtual machine compiles what it runs often.
    fn turns(
        &mut self,
        peers: &[Peer],
        warm_up: usize,
        mut measure: impl FnMut(&mut Self, Peer, usize) -> Result<f64>,
    ) -> Result<Figures> {
        let mut figures = Figures::new();
        for round in 0..self.bench.scale.rounds + warm_up {
            for turn in 0..peers.len() {
                let peer = peers[(turn + round) % peers.len()];
                let figure = measure(self, peer, round).with_context(|| format!("{peer:?}"))?;
                if round >= warm_up {
                    figures.entry(peer).or_default().push(figure);
                }
            }
        }
        Ok(figures)
    }
}

/// The same for all virtual machines.
fn settings(java: Java) -> Java {
    let mut java = java.heap("2g");
    java.options.push("-XX:+UseParallelGC".into());
    java
}

/// Our figures beside those of one peer.
fn row(
    name: &str,
    unit: &'static str,
    scale: f64,
    figures: &Figures,
    of: (Peer, Peer),
    goal: f64,
) -> Row {
    let scaled = |peer: Peer| -> Vec<f64> {
        let values = figures.get(&peer).cloned().unwrap_or_default();
        values.iter().map(|value| value / scale).collect()
    };
    let load = environment::load().unwrap_or(f64::NAN);
    Row::rates(name, unit, (scaled(of.0), scaled(of.1)), Goal::RatioAtLeast(goal))
        .note(format!("load of the machine {load:.1}"))
}

/// All rows that are asked for by name; none otherwise, because they download what they run on.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    type Part = fn(&Bench) -> Result<Vec<Row>>;
    let parts: [(&str, Part); 6] = [
        (READ, reading),
        (POSITIONED, positioned),
        (VECTORED, vectored),
        (SMALL, small),
        (LIST, listing),
        (WRITE, writing),
    ];
    for (name, part) in parts {
        if bench.names(name) {
            rows.extend(part(bench).with_context(|| name.to_owned())?);
        }
    }
    Ok(rows)
}

/// Lines of a text, 100 bytes at a time, by streams with buffers of these sizes beside the default.
pub fn buffers(bench: &Bench, name: &str, sizes: &[(&str, u64)]) -> Result<Vec<Row>> {
    let bytes = bench.scale.warm_bytes / 8;
    let mut peers = Peers::start(bench, &[Peer::Tide], bytes * 2)?;
    spread(&mut peers, &[Peer::Tide], bytes, 1)?;
    let read = |peers: &mut Peers, buffer: Option<u64>| {
        let buffer = buffer.map(|bytes| format!(" buffer={bytes}")).unwrap_or_default();
        peers.ask(Peer::Tide, "sequential-heap", "file-0", &format!("piece=100{buffer}"))
    };
    // The virtual machine compiles what it runs often.
    for _ in 0..3 {
        read(&mut peers, None)?;
    }
    let mut rows = Vec::new();
    for (words, size) in sizes {
        let (mut ours, mut usual) = (Vec::new(), Vec::new());
        for _ in 0..bench.scale.rounds {
            ours.push(read(&mut peers, Some(*size))? / 1e6);
            usual.push(read(&mut peers, None)? / 1e6);
        }
        let name = format!("{name} of {words} beside the default: Hadoop, reads of 100 bytes");
        rows.push(Row::rates(&name, "MB/s", (ours, usual), Goal::Shown));
    }
    Ok(rows)
}

/// Puts one file of the same length everywhere; that of the node is loaded.
fn spread(peers: &mut Peers, with: &[Peer], bytes: u64, threads: u64) -> Result<()> {
    let names: Vec<String> = (0..threads).map(|thread| format!("file-{thread}")).collect();
    for name in &names {
        let lower = peers.bench.lower.join(name);
        write_file(&lower, bytes)?;
        warm::load(&peers.node, &lower)?;
        super::forget(&lower)?;
        if with.iter().any(|peer| matches!(peer, Peer::Memory | Peer::Plain)) {
            std::fs::copy(&lower, peers.bench.memory.join(name))?;
        }
        super::forget(&lower)?;
        for peer in [Peer::Hdfs, Peer::Alluxio] {
            if with.contains(&peer) {
                peers.ask(peer, "write", name, &format!("bytes={bytes}"))?;
            }
        }
    }
    Ok(())
}

fn reading(bench: &Bench) -> Result<Vec<Row>> {
    let with = [Peer::Tide, Peer::Hdfs, Peer::Alluxio, Peer::Plain];
    let bytes = bench.scale.warm_bytes;
    let mut peers = Peers::start(bench, &with, bytes * 5 / 4)?;
    // One thread reads one file of the full size, two read half of it each, at once.
    spread(&mut peers, &with, bytes / 2, 2)?;
    let mut rows = Vec::new();
    let plain = bench.memory.join("file-0");
    let direct = peers.turns(&[Peer::Tide, Peer::Plain], 2, |peers, peer, _| match peer {
        Peer::Plain => Ok(warm::sequential(&plain, bytes / 2)? * 1e6),
        _ => peers.ask(peer, "sequential-direct", "file-0", ""),
    })?;
    let name = format!("{READ}, 1 MiB into a direct buffer / pread of tmpfs");
    rows.push(row(&name, "MB/s", 1e6, &direct, (Peer::Tide, Peer::Plain), 0.85));
    let mut allocated = Vec::new();
    for _ in 0..bench.scale.rounds {
        allocated.push(peers.ask(Peer::Tide, "allocated", "file-0", "")?);
    }
    let name = format!("{READ}, allocated in Java for 1 MiB into a direct buffer");
    rows.push(Row::alone(&name, "bytes", allocated, Goal::AtMost(0.0)));
    for (operation, into) in [("direct", "a direct buffer"), ("heap", "an array")] {
        for threads in [1, 2] {
            rows.extend(beside_peers(&mut peers, operation, into, threads)?);
        }
    }
    Ok(rows)
}

/// Whole files read by so many threads at once. The goals are those for direct buffers; a copy of
/// memory without any file system says what can be reached at all on this machine.
fn beside_peers(peers: &mut Peers, operation: &str, into: &str, threads: u64) -> Result<[Row; 2]> {
    let (path, more, hdfs, alluxio) = match threads {
        1 => ("file-0", String::new(), 2.0, 3.0),
        _ => ("file", format!("threads={threads}"), 1.6, 6.0),
    };
    let compared = [Peer::Tide, Peer::Hdfs, Peer::Alluxio];
    let figures = peers.turns(&compared, 2, |peers, peer, _| {
        peers.ask(peer, &format!("sequential-{operation}"), path, &more)
    })?;
    let copy = warm::memory_copy(peers.bench.scale.warm_bytes / 2, threads)? * 1e6;
    Ok([(Peer::Hdfs, hdfs), (Peer::Alluxio, alluxio)].map(|(peer, goal)| {
        let name =
            format!("{READ}, 1 MiB into {into}, threads {threads} / {peer:?} short circuit, warm");
        let shown = row(&name, "MB/s", 1e6, &figures, (Peer::Tide, peer), goal);
        let reached = figures.get(&peer).and_then(|rates| median(rates)).unwrap_or(f64::NAN);
        let shown = shown.note(format!(
            "a bare copy of memory does {:.0} MB/s here, ratio {:.2}",
            copy / 1e6,
            copy / reached
        ));
        if operation == "direct" { shown } else { Row { goal: Goal::Shown, ..shown } }
    }))
}

fn positioned(bench: &Bench) -> Result<Vec<Row>> {
    let with = [Peer::Tide, Peer::Hdfs, Peer::Alluxio, Peer::Memory];
    let bytes = bench.scale.warm_bytes / 2;
    let mut peers = Peers::start(bench, &with, bytes * 5 / 2)?;
    spread(&mut peers, &with, bytes, 1)?;
    let mut rows = Vec::new();
    for (size, goals) in [(4_096, [0.5, 40.0, 300.0]), (1 << 20, [0.85, 2.0, 10.0])] {
        let figures = peers.turns(&with, 2, |peers, peer, _| {
            peers.ask(peer, "positioned", "file-0", &format!("size={size} ms=700"))
        })?;
        for (peer, goal) in [Peer::Memory, Peer::Hdfs, Peer::Alluxio].into_iter().zip(goals) {
            let beside = match peer {
                Peer::Memory => "RawLocalFileSystem on tmpfs".to_owned(),
                _ => format!("{peer:?} short circuit"),
            };
            let name = format!("{POSITIONED}, {} KiB / {beside}", size >> 10);
            rows.push(row(&name, "reads/s", 1.0, &figures, (Peer::Tide, peer), goal));
        }
    }
    Ok(rows)
}

/// Vectored reads against a sequential read of the same file.
fn vectored(bench: &Bench) -> Result<Vec<Row>> {
    let bytes = bench.scale.warm_bytes / 2;
    let mut peers = Peers::start(bench, &[Peer::Tide], bytes * 5 / 2)?;
    spread(&mut peers, &[Peer::Tide], bytes, 1)?;
    let rounds = (bytes / (100 << 16)).max(1);
    // The second of the two stands for the reference.
    let figures = peers.turns(&[Peer::Tide, Peer::Plain], 2, |peers, peer, _| match peer {
        Peer::Plain => peers.ask(Peer::Tide, "sequential-direct", "file-0", ""),
        _ => peers.ask(peer, "vectored", "file-0", &format!("rounds={rounds}")),
    })?;
    let name = format!("{VECTORED}, 100 ranges of 64 KiB / one sequential read of the same bytes");
    Ok(vec![row(&name, "MB/s", 1e6, &figures, (Peer::Tide, Peer::Plain), 0.7)])
}

fn small(bench: &Bench) -> Result<Vec<Row>> {
    let with = [Peer::Tide, Peer::Alluxio, Peer::Lower, Peer::Hdfs];
    let mut peers = Peers::start(bench, &with, 1 << 30)?;
    let count = (bench.scale.small_files / 200).max(50);
    let created = peers.turns(&with, 1, |peers, peer, round| {
        let sync = u8::from(peer == Peer::Lower);
        let path = format!("{peer:?}-{round}");
        peers.ask(peer, "create-small", &path, &format!("files={count} sync={sync}"))
    })?;
    let mut rows = Vec::new();
    let name = format!("{SMALL}, create, write 4 KiB, close / the bare directory with fsync");
    rows.push(row(&name, "files/s", 1.0, &created, (Peer::Tide, Peer::Lower), 0.8));
    for peer in [Peer::Alluxio, Peer::Hdfs] {
        let name = format!("{SMALL}, create, write 4 KiB, close / {peer:?}");
        let shown = row(&name, "files/s", 1.0, &created, (Peer::Tide, peer), 0.0);
        rows.push(Row { goal: Goal::Shown, ..shown });
    }
    let compared = [Peer::Tide, Peer::Alluxio, Peer::Hdfs];
    let read = peers.turns(&compared, 2, |peers, peer, _| {
        peers.ask(peer, "read-small", &format!("{peer:?}-0"), &format!("files={count}"))
    })?;
    let name = format!("{SMALL}, open, read 4 KiB, close, resident / Alluxio");
    rows.push(row(&name, "files/s", 1.0, &read, (Peer::Tide, Peer::Alluxio), 10.0));
    let name = format!("{SMALL}, open, read 4 KiB, close, resident / HDFS");
    let shown = row(&name, "files/s", 1.0, &read, (Peer::Tide, Peer::Hdfs), 0.0);
    rows.push(Row { goal: Goal::Shown, ..shown });
    Ok(rows)
}

fn listing(bench: &Bench) -> Result<Vec<Row>> {
    let mut peers = Peers::start(bench, &[Peer::Tide], 1 << 30)?;
    let count = (bench.scale.small_files / 10).max(100);
    let directory = bench.lower.join("many");
    std::fs::create_dir(&directory)?;
    for index in 0..count {
        std::fs::write(directory.join(format!("file-{index:06}")), "x")?;
    }
    let figures = peers.turns(&[Peer::Tide, Peer::Lower], 2, |peers, peer, _| {
        peers.ask(peer, "list", "many", &format!("expect={count} ms=1500"))
    })?;
    let name = format!("{LIST}, directory of {count} files / RawLocalFileSystem");
    Ok(vec![row(&name, "lists/s", 1.0, &figures, (Peer::Tide, Peer::Lower), 0.8)])
}

fn writing(bench: &Bench) -> Result<Vec<Row>> {
    let bytes = bench.scale.warm_bytes;
    let mut peers = Peers::start(bench, &[Peer::Tide], bytes * 2)?;
    let figures = peers.turns(&[Peer::Tide, Peer::Lower], 1, |peers, peer, round| {
        let path = format!("written-{peer:?}-{round}");
        let sync = u8::from(peer == Peer::Lower);
        let rate = peers.ask(peer, "write", &path, &format!("bytes={bytes} sync={sync}"))?;
        remove(&peers.bench.lower.join(&path))?;
        Ok(rate)
    })?;
    let name = format!("{WRITE}, through, with close / RawLocalFileSystem with hsync");
    Ok(vec![row(&name, "MB/s", 1e6, &figures, (Peer::Tide, Peer::Lower), 0.95)])
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).with_context(|| path.display().to_string())
}

/// The middle of some figures, in words.
pub fn middle(figures: &[f64]) -> String {
    median(figures).map_or("-".into(), |value| format!("{value:.2}"))
}
