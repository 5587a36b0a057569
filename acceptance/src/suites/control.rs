//! Memory control on the real kernel: a full store beside jobs that burst, controllers that die,
//! processes that end by the hundred, readers while the store grows and shrinks. It asserts order
//! and bytes, and no times.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Places, content};
use crate::environment;
use crate::hog::Step;
use crate::hog::remote::{JobOptions, RunningJob};
use crate::node::{Node, NodeOptions};
use crate::outcome::Outcome;
use crate::process;

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 8 * MIB;
const FILES: u64 = 24;
const STORE_BYTES: u64 = FILES * FILE_BYTES + 16 * MIB;
/// What the jobs here take; the store must give it all.
const BURST_BYTES: u64 = 512 * MIB;
/// Never taken from others.
const LEAVE_BYTES: u64 = 2 << 30;
/// A machine whose available memory is this near to the threshold is not short of it.
const SPREAD_BYTES: u64 = 16 * MIB;
const BREATHS: u64 = 30;
const BREATHS_LONG: u64 = 1_000;
const EXITS: usize = 128;
const LEASE_MS: &str = "400";
const DEADLINE_MS: u64 = 60_000;

type Scenario = (&'static str, fn(&Rig) -> Result<()>);
const SCENARIOS: [Scenario; 6] = [
    ("a burst on a full store", burst_on_a_full_store),
    ("a burst on a store that is not full", burst_on_a_part_of_a_store),
    ("a controller killed in a burst", killed_in_a_burst),
    ("a controller stopped in a burst", stopped_in_a_burst),
    ("node and controller stopped together", both_stopped),
    ("memory of 128 processes that end at once", hidden_pages),
];

/// A node with control, and files whose bytes are known.
struct Rig {
    node: Node,
    lower: std::path::PathBuf,
    /// As it was set last.
    headroom_bytes: AtomicU64,
}

/// Runs every scenario on a node of its own.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let mut outcome = Outcome::new("memory control");
    let room = environment::memory_available_bytes()?;
    if !places.wants_node() || room < LEAVE_BYTES + STORE_BYTES + 2 * BURST_BYTES {
        outcome.skipped.push(format!("memory control: needs a node and memory, {room} bytes left"));
        return Ok(vec![outcome]);
    }
    let out_of_memory = kernel_counter("oom_kill")?;
    let rig = Rig::start(places)?;
    for (name, scenario) in SCENARIOS {
        eprintln!("x: memory control: {name}");
        let result = rig.fill().and_then(|()| scenario(&rig)).and_then(|()| rig.calm());
        let failure = result.err().map(|error| format!("{name}: {error:#}"));
        outcome.check(failure.is_none(), || failure.unwrap_or_default());
    }
    let long = places.options.operations > 20_000;
    let breaths = if long { BREATHS_LONG } else { BREATHS };
    match rig.breathe(breaths) {
        Ok((mount, library)) => {
            outcome.check(mount > 0, || "nothing was read through the mount".into());
            outcome.check(library > 0, || "nothing was read by the library".into());
            outcome.notes.push(format!(
                "{breaths} breaths; {mount} files read through the mount and {library} by the \
                 library, every byte right"
            ));
        }
        Err(error) => outcome.check(false, || format!("readers while it breathes: {error:#}")),
    }
    let killed = kernel_counter("oom_kill")? - out_of_memory;
    outcome.check(killed == 0, || format!("{killed} processes were killed for memory"));
    Ok(vec![outcome])
}

impl Rig {
    fn start(places: &Places) -> Result<Self> {
        let lower = places.lower.join("control");
        fs::create_dir_all(&lower)?;
        for index in 0..FILES {
            fs::write(lower.join(name(index)), content::of(index, usize::try_from(FILE_BYTES)?))?;
        }
        let settings = [
            ["--control", "on"],
            ["--memory-min", "0"],
            ["--control-hold-ms", "50"],
            ["--control-hold-max-ms", "100"],
            ["--control-growth-bytes-per-s", "16GiB"],
            ["--control-lease-ms", LEASE_MS],
        ];
        let options = NodeOptions {
            pfs: lower.clone(),
            memory: STORE_BYTES.to_string(),
            arguments: settings.as_flattened().iter().map(ToString::to_string).collect(),
        };
        let rig = Rig { node: Node::start(&options)?, lower, headroom_bytes: AtomicU64::new(0) };
        rig.wait("a controller", |status| status["lease"] == "governed")?;
        Ok(rig)
    }

    fn status(&self) -> Result<Value> {
        // The exit code tells that nobody governs; the text says it as well.
        let output = process::capture(&mut self.node.command(&["control", "status", "--json"]))?;
        serde_json::from_slice(&output.stdout).context("control status")
    }

    /// Waits until the node says so.
    fn wait(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        for _ in 0..DEADLINE_MS / 20 {
            last = self.status()?;
            if holds(&last) {
                return Ok(last);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("{what} never came: {last}")
    }

    fn headroom(&self, bytes: u64) -> Result<()> {
        self.headroom_bytes.store(bytes, Ordering::Relaxed);
        self.node.ask(&["control", "set", "headroom-bytes", &bytes.to_string()]).map(drop)
    }

    /// The store may be full again.
    fn calm(&self) -> Result<()> {
        self.headroom(0)?;
        self.wait("a governed store", |status| status["lease"] == "governed").map(drop)
    }

    /// Reads all files until most of them are in memory.
    fn fill(&self) -> Result<()> {
        self.calm()?;
        for _ in 0..200 {
            let lower = self.lower.to_string_lossy().into_owned();
            process::capture(&mut self.node.command(&["load", "--recursive", &lower]))?;
            if number(&self.status()?, "resident_bytes")? >= STORE_BYTES / 4 * 3 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        anyhow::bail!("the store never filled: {}", self.status()?)
    }

    /// Puts the threshold `room` bytes beyond the present demand.
    fn threshold(&self, room: u64) -> Result<()> {
        self.headroom(environment::memory_available_bytes()?.saturating_sub(room))
    }

    /// Starts a job that takes the burst.
    fn job(&self) -> Result<RunningJob> {
        let (bytes, leave_bytes) = (BURST_BYTES, LEAVE_BYTES);
        let options = JobOptions { most_bytes: bytes, huge: true, leave_bytes };
        let mut job = RunningJob::start(&options)?;
        job.step(Step::Take { bytes, rate: bytes })?;
        Ok(job)
    }

    /// The job has all its memory, and the store has none.
    fn gave_all(&self, job: RunningJob) -> Result<()> {
        // The job still holds its memory: it ends only when its steps do.
        self.emptied(&job)?;
        let report = job.finish()?;
        ensure!(report.refused_bytes == 0, "the job missed {} bytes", report.refused_bytes);
        let got = report.held.last().map_or(0, |(_, bytes)| *bytes);
        ensure!(got == BURST_BYTES, "the job got {got} of {BURST_BYTES} bytes");
        Ok(())
    }

    /// Waits for an empty store. Memory of others that comes back only now serves the job in the
    /// store's place, and the store rightly keeps as much: the threshold then follows it. It never
    /// does while the machine is short of memory.
    fn emptied(&self, job: &RunningJob) -> Result<()> {
        let mut last = Value::Null;
        for _ in 0..DEADLINE_MS / 20 {
            last = self.status()?;
            if last["resident_bytes"] == 0 {
                return Ok(());
            }
            let available = environment::memory_available_bytes()?;
            let enough = available + SPREAD_BYTES >= self.headroom_bytes.load(Ordering::Relaxed);
            if enough && job.resident_bytes()? >= BURST_BYTES {
                self.headroom(available + STORE_BYTES)?;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("an empty store never came: {last}")
    }

    fn controller(&self) -> Result<u32> {
        Ok(u32::try_from(number(&self.status()?, "process_id")?)?)
    }

    /// Lets the store go to what is held and back, while two readers of the mount and one by the
    /// library compare every byte. Returns the numbers of files that were read.
    fn breathe(&self, breaths: u64) -> Result<(u64, u64)> {
        let library = LibraryReader::start(self)?;
        let (over, read) = (AtomicBool::new(false), AtomicU64::new(0));
        let total = environment::memory_field("MemTotal")?;
        std::thread::scope(|scope| {
            let reader = |first: u64| {
                let (over, read) = (&over, &read);
                move || self.compare(first, over, read)
            };
            let readers = [scope.spawn(reader(0)), scope.spawn(reader(FILES / 2))];
            let result = (0..breaths).try_for_each(|breath| {
                if breath % 50 == 0 {
                    eprintln!("x: memory control: breath {breath} of {breaths}");
                }
                // Every machine uses more than this, so nothing is left for the store.
                self.headroom(total - 128 * MIB)?;
                self.wait("the least store", |status| {
                    let of = |name: &str| status[name].as_u64().unwrap_or(u64::MAX);
                    of("resident_bytes") <= of("held_bytes").saturating_add(16 * MIB)
                })?;
                self.headroom(0)?;
                let half = STORE_BYTES / 2;
                self.wait("a store again", |it| it["capacity_bytes"].as_u64() >= Some(half))
                    .map(drop)
            });
            over.store(true, Ordering::Release);
            for reader in readers {
                reader.join().unwrap_or_else(|_| anyhow::bail!("a reader panicked"))?;
            }
            let by_library = library.finish()?;
            result.map(|()| (read.load(Ordering::Relaxed), by_library))
        })
    }

    fn compare(&self, first: u64, over: &AtomicBool, read: &AtomicU64) -> Result<()> {
        let mut index = first;
        while !over.load(Ordering::Acquire) {
            let expected = content::of(index, usize::try_from(FILE_BYTES)?);
            let mut found = Vec::new();
            let mut file = File::open(self.node.mount.join(name(index)))?;
            file.read_to_end(&mut found)?;
            ensure!(found == expected, "{} has wrong bytes", name(index));
            let mut word = [0; 8];
            file.read_exact_at(&mut word, FILE_BYTES / 2)?;
            let middle = usize::try_from(FILE_BYTES / 2)?;
            ensure!(word == expected[middle..middle + 8], "{}: wrong word", name(index));
            read.fetch_add(1, Ordering::Relaxed);
            index = (index + 1) % FILES;
        }
        Ok(())
    }
}

/// Another process that reads by the client library and compares every byte.
struct LibraryReader {
    child: std::process::Child,
}

impl LibraryReader {
    fn start(rig: &Rig) -> Result<Self> {
        let build =
            ["build", "--quiet", "--release", "--package", "acceptance", "--features", "library"];
        process::show(environment::cargo(&build).args(["--bin", "library-reader"]))?;
        let mut command = Command::new(environment::target().join("release/library-reader"));
        command.arg("--socket").arg(&rig.node.socket);
        command.args((0..FILES).map(|index| rig.lower.join(name(index))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(LibraryReader { child: command.spawn().context("starting library-reader")? })
    }

    /// Ends it and returns how many files it read.
    fn finish(mut self) -> Result<u64> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            output.read_to_string(&mut text)?;
        }
        ensure!(self.child.wait()?.success(), "the reader by the library failed");
        let report: Value = serde_json::from_str(&text).context("library-reader")?;
        ensure!(number(&report["levels"], "mapped")? > 0, "the library read no resident byte");
        number(&report, "files")
    }
}

impl Drop for LibraryReader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.lower);
    }
}

fn burst_on_a_full_store(rig: &Rig) -> Result<()> {
    rig.threshold(32 * MIB)?;
    rig.gave_all(rig.job()?)
}

fn burst_on_a_part_of_a_store(rig: &Rig) -> Result<()> {
    rig.node.ask(&["evict", "--all"])?;
    for index in 0..FILES / 4 {
        fs::read(rig.node.mount.join(name(index)))?;
    }
    ensure!(number(&rig.status()?, "resident_bytes")? > 0, "nothing was read in");
    rig.threshold(32 * MIB)?;
    rig.gave_all(rig.job()?)
}

fn killed_in_a_burst(rig: &Rig) -> Result<()> {
    let before = rig.controller()?;
    rig.threshold(32 * MIB)?;
    let job = rig.job()?;
    process::signal(before, libc::SIGKILL);
    rig.gave_all(job)?;
    rig.wait("another controller", |status| {
        status["lease"] == "governed" && status["process_id"].as_u64() != Some(before.into())
    })?;
    Ok(())
}

fn stopped_in_a_burst(rig: &Rig) -> Result<()> {
    let controller = rig.controller()?;
    rig.threshold(32 * MIB)?;
    process::signal(controller, libc::SIGSTOP);
    let fallen = rig.job().and_then(|job| {
        rig.wait("the end of the lease", |status| status["lease"] == "expired")?;
        rig.gave_all(job)
    });
    process::signal(controller, libc::SIGCONT);
    fallen
}

/// As a frozen container, or a virtual machine that moves: a silence in which the node did not run
/// itself is none of the controller.
fn both_stopped(rig: &Rig) -> Result<()> {
    let before = rig.status()?;
    let both = [rig.node.process_id()?, rig.controller()?];
    let each = |signal| both.into_iter().for_each(|process| process::signal(process, signal));
    each(libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(3));
    each(libc::SIGCONT);
    std::thread::sleep(Duration::from_secs(1));
    let after = rig.wait("a governed store", |status| status["lease"] == "governed")?;
    for name in ["resident_bytes", "expirations"] {
        let (before, after) = (number(&before, name)?, number(&after, name)?);
        let kept = if name == "expirations" { after == before } else { after >= before };
        ensure!(kept, "{name} was {before} before the pause and is {after} after it");
    }
    Ok(())
}

/// Pages of processes that ended stay in lists that no counter shows; no store goes for them.
fn hidden_pages(rig: &Rig) -> Result<()> {
    let bytes = 2 * MIB;
    rig.threshold(4 * EXITS as u64 * bytes)?;
    let before = number(&rig.status()?, "resident_bytes")?;
    let options = JobOptions { most_bytes: bytes, huge: false, leave_bytes: LEAVE_BYTES };
    let mut jobs = Vec::new();
    for _ in 0..EXITS {
        let mut job = RunningJob::start(&options)?;
        job.step(Step::Take { bytes, rate: 0 })?;
        jobs.push(job);
    }
    for job in jobs {
        ensure!(job.finish()?.refused_bytes == 0, "a process missed its memory");
    }
    let after = number(&rig.status()?, "resident_bytes")?;
    ensure!(after >= before, "{before} bytes were stored before, {after} after");
    Ok(())
}

fn name(index: u64) -> String {
    format!("file-{index}")
}

fn number(status: &Value, name: &str) -> Result<u64> {
    status[name].as_u64().with_context(|| format!("control status has no {name}: {status}"))
}

/// A counter of the kernel's virtual memory since boot.
fn kernel_counter(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("the kernel counts no {name}"))?.trim().parse()?)
}
