//! Watches the memory of a machine and the control page of a node, twice a millisecond, until its
//! input ends; then prints one line a sample. It changes nothing and judges nothing.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::time::{ClockId, clock_gettime};
use tidepool_proto::control_page::{CONTROL_PAGE_BYTES, ControlPage};

const PERIOD: Duration = Duration::from_micros(500);
/// How the node names the memory file of its page.
const PAGE_NAME: &str = "memfd:tidepool-control";
const FIELDS: [&str; 3] = ["MemAvailable:", "MemFree:", "Cached:"];

/// Samples memory and the ledger of a node until the end of the input.
#[derive(Debug, Parser)]
struct Arguments {
    /// Process id of the node; without it only the machine is watched.
    #[arg(long)]
    node: Option<u32>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let page = arguments.node.map(map_page).transpose()?;
    // SAFETY: mapped for the life of the process, of the page's length, aligned as mappings are;
    // all words are atomics, so whatever the node writes is a valid value.
    let page: Option<&ControlPage> = page.map(|page| unsafe { page.as_ref() });
    if let Some(page) = page {
        page.check()?;
    }
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Release);
    });
    let machine = File::open("/proc/meminfo")?;
    let mut samples: Vec<[u64; 6]> = Vec::with_capacity(1 << 18);
    println!("watching");
    while !over.load(Ordering::Acquire) {
        samples.push(sample(&machine, page)?);
        std::thread::sleep(PERIOD);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    for sample in samples {
        writeln!(out, "{}", sample.map(|word| word.to_string()).join(" "))?;
    }
    Ok(out.flush()?)
}

/// Nanoseconds of the monotonic clock, bytes available, free and of files; bytes that the store
/// holds and may hold.
fn sample(machine: &File, page: Option<&ControlPage>) -> Result<[u64; 6]> {
    let mut text = [0; 1024];
    let length = machine.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..length]);
    let [available, free, cached] = FIELDS.map(|name| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_whitespace().nth(1));
        value.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0) << 10
    });
    let store = page.map_or([0, 0], |page| {
        [&page.resident_bytes, &page.capacity_bytes].map(|word| word.load(Ordering::Relaxed))
    });
    let now = clock_gettime(ClockId::Monotonic);
    let at_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    Ok([at_ns, available, free, cached, store[0], store[1]])
}

fn map_page(node: u32) -> Result<NonNull<ControlPage>> {
    let directory = format!("/proc/{node}/fd");
    for entry in std::fs::read_dir(&directory).context("the descriptors of the node")? {
        let path = entry?.path();
        let target = std::fs::read_link(&path).unwrap_or_default();
        if target.to_string_lossy().contains(PAGE_NAME) {
            let file = File::open(&path)?;
            let (length, nowhere) = (CONTROL_PAGE_BYTES as usize, std::ptr::null_mut());
            // SAFETY: the kernel chooses an unused range, so no memory of the process is replaced.
            let base =
                unsafe { mmap(nowhere, length, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
            return NonNull::new(base?.cast()).context("a page at address zero");
        }
    }
    anyhow::bail!("no control page in {directory}")
}
