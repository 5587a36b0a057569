//! Measures what the controller costs on this machine while nothing happens: share of a core,
//! resident memory, allocations and time of a tick, for a node whose full store keeps the interval
//! at its shortest and for a calm one; and what waking up costs alone. Judges nothing.
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
use tidepool_control_policy::{Parameters, Snapshot, StoreState};
use tidepool_proto::Result;

/// Capacity of the store.
const CAPACITY_BYTES: u64 = 1 << 30;

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

/// A store that stays as it is, of 1 GiB. A full one is at its target, so that the loop never
/// sleeps longer than its interval.
struct Still {
    resident_bytes: u64,
}

impl Actuator for Still {
    fn name(&self) -> &str {
        "still"
    }

    fn state(&self) -> Result<StoreState> {
        Ok(StoreState {
            capacity_bytes: CAPACITY_BYTES,
            capacity_max_bytes: CAPACITY_BYTES,
            resident_bytes: self.resident_bytes,
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

type Outcome<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |text| text.parse::<u64>())?;
    read_sensors()?;
    for line in prepare_process() {
        println!("refused: {line}");
    }
    wake_up(seconds);
    govern("full store", CAPACITY_BYTES, seconds)?;
    govern("calm node", 0, seconds)?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let lines = status.lines();
    lines
        .filter(|line| line.starts_with("VmRSS") || line.starts_with("VmLck"))
        .for_each(|line| println!("{line}"));
    Ok(())
}

/// Readings one behind the other, with warm caches.
fn read_sensors() -> Outcome {
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
    Ok(())
}

/// What a thread costs that wakes up every 10 ms and reads one clock.
fn wake_up(seconds: u64) {
    let begun = processor_seconds();
    let wakes = seconds * 100;
    for _ in 0..wakes {
        std::thread::sleep(Duration::from_millis(10));
    }
    let microseconds = (processor_seconds() - begun) * 1e6 / wakes as f64;
    println!("waking up alone: {microseconds:.1} us");
}

fn govern(what: &str, resident_bytes: u64, seconds: u64) -> Outcome {
    let log = std::env::temp_dir().join(format!("tidepool-idle-{}", std::process::id()));
    let record = JournalFile::start(JournalOptions::at(&log))?;
    let parameters = Parameters::default();
    let stores: Vec<Arc<dyn Actuator>> = vec![Arc::new(Still { resident_bytes })];
    let sensors = Box::new(Sensors::open(Roots::default())?);
    let governor = Governor::new(sensors, stores, parameters, Some(Box::new(record)))?;
    let handle = start(governor, Priority::Raised)?;
    std::thread::sleep(Duration::from_secs(2));
    let (ticks, begun) = (handle.report().ticks, processor_seconds());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(seconds));
    let used = processor_seconds() - begun;
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let report = handle.report();
    let ticks = report.ticks - ticks;
    let (percent, each) = (used / seconds as f64 * 100.0, used * 1e6 / ticks as f64);
    println!(
        "{what}: {percent:.3} % of a core, {ticks} ticks of {each:.1} us, {allocations} allocations"
    );
    let time = |share| report.tick_time.quantile_us(share);
    println!("{what}: half of the ticks below {:?} us, 99 % below {:?} us", time(0.5), time(0.99));
    report.notes.iter().for_each(|line| println!("missing: {line}"));
    drop(handle);
    println!("{what}: log of {} bytes", std::fs::metadata(&log)?.len());
    std::fs::remove_file(&log)?;
    Ok(())
}
