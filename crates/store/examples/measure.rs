//! Measures the store on this machine: fill, read, pin, free. Prints figures; asserts nothing.
//! Reads and pins in processor time, fills and freeing by the clock.
//!
//! `cargo run --release -p tidepool-store --example measure [GIB]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tidepool_store::{BackingChoice, BlockState, FillStart, Owner, Segment, Store, StoreConfig};

const MIB: u64 = 1 << 20;

fn meminfo_kib(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("a Linux machine");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn fill(segment: &Segment) {
    for block in 0..segment.blocks() {
        match segment.begin_fill(block) {
            FillStart::Started(mut fill) => {
                fill.fill(block as u8);
                fill.commit(BlockState::Clean);
            }
            other => panic!("block {block}: {other:?}"),
        }
    }
}

fn read_all(segment: &Segment, size: u64) -> f64 {
    let mut buffer = vec![0; MIB as usize];
    let start = thread_seconds();
    for offset in (0..size).step_by(MIB as usize) {
        rustix::io::pread(segment.descriptor(), &mut buffer, offset).expect("a read");
    }
    size as f64 / (thread_seconds() - start) / 1e9
}

/// Processor time of this thread: other programs on the machine do not count.
fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn nanoseconds_each(count: u64, mut action: impl FnMut(u64)) -> f64 {
    let start = thread_seconds();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..count {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        action(random);
    }
    (thread_seconds() - start) * 1e9 / count as f64
}

fn measure(name: &str, backing: BackingChoice, huge_pages: bool, size: u64) {
    let config =
        StoreConfig { capacity_bytes: size, backing, huge_pages, ..StoreConfig::default() };
    let store = match Store::new(config) {
        Ok(store) => store,
        Err(error) => return println!("{name}: {error}"),
    };
    let segment: Arc<Segment> = store.create_segment(size, Owner::default()).expect("a segment");
    let start = Instant::now();
    fill(&segment);
    let fill_rate = size as f64 / start.elapsed().as_secs_f64() / 1e9;
    let huge_share = meminfo_kib("ShmemHugePages") as f64 / meminfo_kib("Shmem").max(1) as f64;
    let reads: Vec<f64> = (0..3).map(|_| read_all(&segment, size)).collect();
    let mut small = [0; 4096];
    let pread_ns = nanoseconds_each(200_000, |random| {
        let offset = random % (size / 4096) * 4096;
        rustix::io::pread(segment.descriptor(), &mut small, offset).expect("a read");
    });
    let pin_ns = nanoseconds_each(2_000_000, |random| {
        black_box(segment.pin_block(random % segment.blocks()).expect("resident")[0]);
    });
    let same_pin_ns = nanoseconds_each(2_000_000, |_| {
        black_box(segment.pin_block(0).expect("resident")[0]);
    });
    let report = store.resize(0);
    println!(
        "{name:<22} fill {fill_rate:5.2} GB/s, 2MiB pages {:3.0} %, pread 1MiB {:5.1} GB/s, \
         4KiB {pread_ns:4.0} ns, pin random {pin_ns:3.0} ns, same {same_pin_ns:3.0} ns, \
         free {:6.1} ms",
        huge_share * 100.0,
        reads.iter().fold(0.0, |best: f64, rate| best.max(*rate)),
        report.elapsed_ms,
    );
    store.degradations().iter().for_each(|line| println!("    {line}"));
}

fn main() {
    let gib = std::env::args().nth(1).map_or(1, |text| text.parse().expect("GiB"));
    let size = gib * (1 << 30);
    println!("{gib} GiB, blocks of 4 MiB");
    measure("warm-up", BackingChoice::Auto, true, size);
    measure("tmpfs, 2MiB pages", BackingChoice::Tmpfs, true, size);
    measure("tmpfs, 4KiB pages", BackingChoice::Tmpfs, false, size);
    measure("memfd, 2MiB if given", BackingChoice::Memfd, true, size);
}
