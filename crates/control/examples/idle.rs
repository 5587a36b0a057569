//! Measures what the controller costs on this machine while nothing happens: share of a core,
//! resident memory, allocations and time of a tick. Prints figures, judges nothing.
//!
//! `cargo run --release -p tidepool-control --example idle -- [seconds]`

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidepool_control::actuator::{Actuator, Resized};
use tidepool_control::sensor::{Roots, Sense, Sensors};
use tidepool_control::{Governor, JournalFile, JournalOptions, Priority, prepare_process, start};
use tidepool_model::control::{Parameters, Snapshot, StoreState};
use tidepool_proto::Result;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: hands every request to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A full store that stays at its target, so that the loop never sleeps longer than its interval.
struct Still;

impl Actuator for Still {
    fn name(&self) -> &str {
        "still"
    }

    fn state(&self) -> Result<StoreState> {
        Ok(StoreState {
            name: "still".to_owned(),
            capacity_bytes: 1 << 30,
            capacity_max_bytes: 1 << 30,
            resident_bytes: 1 << 30,
            block_bytes: 4 << 20,
            ..StoreState::default()
        })
    }

    fn resize(&self, _: u64, _: Duration) -> Result<Resized> {
        Ok(Resized::default())
    }
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |text| text.parse::<u64>())?;
    let mut sensors = Sensors::open(Roots::default())?;
    let mut snapshot = Snapshot::default();
    let mut at_ns = 0;
    let (before, begun) = (ALLOCATIONS.load(Ordering::Relaxed), processor_seconds());
    for _ in 0..1000 {
        at_ns += 10_000_000;
        sensors.read(at_ns, 0, &mut snapshot);
    }
    let microseconds = (processor_seconds() - begun) * 1e3;
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    println!("sensors: {microseconds:.1} us a reading, {allocations} allocations in 1000 readings");

    let log = std::env::temp_dir().join(format!("tidepool-idle-{}", std::process::id()));
    let record = JournalFile::start(JournalOptions::at(&log))?;
    let parameters = Parameters::default();
    let stores: Vec<Arc<dyn Actuator>> = vec![Arc::new(Still)];
    let governor = Governor::new(Box::new(sensors), stores, parameters, Some(Box::new(record)))?;
    for line in prepare_process() {
        println!("refused: {line}");
    }
    let handle = start(governor, Priority::Raised)?;
    std::thread::sleep(Duration::from_secs(2));
    let (ticks, begun) = (handle.report().ticks, processor_seconds());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(seconds));
    let percent = (processor_seconds() - begun) / seconds as f64 * 100.0;
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let report = handle.report();
    let ticks = report.ticks - ticks;
    println!("loop: {percent:.3} % of a core, {ticks} ticks, {allocations} allocations");
    println!(
        "ticks: half below {:?} us, 99 % below {:?} us",
        report.tick_time.quantile_us(0.5),
        report.tick_time.quantile_us(0.99)
    );
    for line in report.notes {
        println!("missing: {line}");
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .filter(|line| line.starts_with("VmRSS") || line.starts_with("VmLck"))
        .for_each(|line| println!("{line}"));
    drop(handle);
    println!("log: {} bytes", std::fs::metadata(&log)?.len());
    std::fs::remove_file(&log)?;
    Ok(())
}
