//! Watches the memory of a machine and the control page of a node, twice a millisecond, until its
//! input ends; then prints one line a sample. It changes nothing and judges nothing.
//!
//! Free pages that sit in per-CPU lists are read as well: neither `MemFree` nor `MemAvailable`
//! counts them, and on two processors they can be hundreds of megabytes after a release.

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
/// While it reclaims, the kernel lets a list keep this many batches.
const FLOOR_BATCHES: u64 = 4;
const PAGE_BYTES: u64 = 4096;
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
    let zones = File::open("/proc/zoneinfo")?;
    let mut text = vec![0; 256 << 10];
    let mut samples: Vec<[u64; 7]> = Vec::with_capacity(1 << 18);
    println!("watching");
    while !over.load(Ordering::Acquire) {
        let hidden = hidden(&zones, &mut text)?;
        samples.push(sample(&machine, page, hidden)?);
        std::thread::sleep(PERIOD);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    for sample in samples {
        writeln!(out, "{}", sample.map(|word| word.to_string()).join(" "))?;
    }
    Ok(out.flush()?)
}

/// Bytes of free pages in per-CPU lists, above what stays there in any case.
fn hidden(zones: &File, text: &mut [u8]) -> Result<u64> {
    let mut length = 0;
    loop {
        match zones.read_at(&mut text[length..], length as u64)? {
            0 => break,
            read => length += read,
        }
    }
    let (mut pages, mut count) = (0, 0);
    for line in String::from_utf8_lossy(&text[..length]).lines() {
        let mut words = line.split_ascii_whitespace();
        let (name, value) = (words.next(), words.next().and_then(|word| word.parse::<u64>().ok()));
        match (name, value) {
            (Some("count:"), Some(value)) => count = value,
            (Some("batch:"), Some(value)) => {
                pages += count.saturating_sub(value * FLOOR_BATCHES);
                count = 0;
            }
            _ => {}
        }
    }
    Ok(pages * PAGE_BYTES)
}

/// Nanoseconds of the monotonic clock, bytes available, free and of files; bytes that the store
/// holds and may hold; bytes in per-CPU lists.
fn sample(machine: &File, page: Option<&ControlPage>, hidden: u64) -> Result<[u64; 7]> {
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
    Ok([at_ns, available, free, cached, store[0], store[1], hidden])
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
