//! What the mount costs over raw tmpfs, side by side in one run: resident reads by passthrough and
//! by direct reply, small files, and uncached reads and writes. Prints medians and ratios. The
//! service is that of the tests, so the node's own costs are not in it.
//!
//! `mount_bench [FILE_MIB] [SMALL_FILES] [THREADS]`, by default 2048, 10000 and 2. Needs root and
//! memory for two copies of the file.

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tidepool_fake_node::FakeService;
use tidepool_fuse::{Mount, MountConfig};
use tidepool_proto::FileService;

const ROUNDS: usize = 5;
const TRANSFER_BYTES: usize = 1 << 20;
const RANDOM_READS: usize = 100_000;
const RANDOM_BYTES: usize = 4 << 10;
const WRITE_BYTES: usize = 256 << 20;

type Bytes = Vec<u8>;

/// Seconds that `work` takes.
fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn sequential(path: &Path) -> f64 {
    let mut file = File::open(path).expect("a file of the benchmark");
    let mut buffer: Bytes = vec![0; TRANSFER_BYTES];
    seconds(|| while file.read(&mut buffer).expect("a file of the benchmark") > 0 {})
}

fn random(path: &Path) -> f64 {
    let file = File::open(path).expect("a file of the benchmark");
    let blocks = file.metadata().expect("a file of the benchmark").len() / RANDOM_BYTES as u64;
    let mut buffer: Bytes = vec![0; RANDOM_BYTES];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    seconds(|| {
        for _ in 0..RANDOM_READS {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            file.read_exact_at(&mut buffer, state % blocks * RANDOM_BYTES as u64)
                .expect("a file of the benchmark");
        }
    })
}

fn small(directory: &Path, files: usize) -> f64 {
    let mut buffer: Bytes = vec![0; RANDOM_BYTES];
    let names: Vec<_> = (0..files).map(|index| directory.join(format!("small{index}"))).collect();
    seconds(|| {
        for name in &names {
            let file = File::open(name).expect("a file of the benchmark");
            assert_eq!(
                file.read_at(&mut buffer, 0).expect("a file of the benchmark"),
                RANDOM_BYTES
            );
        }
    })
}

fn write(path: &Path) -> f64 {
    let buffer: Bytes = vec![1; TRANSFER_BYTES];
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .expect("a file of the benchmark");
    let taken = seconds(|| {
        for step in 0..WRITE_BYTES / TRANSFER_BYTES {
            file.write_all_at(&buffer, (step * TRANSFER_BYTES) as u64)
                .expect("a file of the benchmark");
        }
    });
    drop(file);
    fs::remove_file(path).expect("a file of the benchmark");
    taken
}

/// Seconds of processor time that this process, mount included, has used so far.
fn processor_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the structure that the pointer leads to.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct View {
    name: &'static str,
    path: std::path::PathBuf,
    _mount: Option<Mount>,
}

fn view(
    name: &'static str,
    lower: &Path,
    root: &Path,
    threads: usize,
    service: Arc<dyn FileService>,
) -> View {
    let path = root.join(name);
    fs::create_dir(&path).expect("a file of the benchmark");
    let mut config = MountConfig::new(support::open_directory(lower), lower.into(), path.clone());
    config.threads = threads;
    let mount = tidepool_fuse::mount(service, config).expect("the mount succeeds");
    for note in mount.notes() {
        println!("{name}: {note}");
    }
    View { name, path, _mount: Some(mount) }
}

/// Runs one measurement on all views in turn, several times, and prints it.
fn compare(title: &str, unit: &str, amount: f64, views: &[View], run: impl Fn(&Path) -> f64) {
    for view in views {
        run(&view.path);
    }
    let mut taken = vec![(Vec::new(), Vec::new()); views.len()];
    for _ in 0..ROUNDS {
        for (view, (elapsed, processor)) in views.iter().zip(&mut taken) {
            let before = processor_seconds();
            elapsed.push(run(&view.path));
            processor.push(processor_seconds() - before);
        }
    }
    let medians: Vec<(f64, f64)> = taken.into_iter().map(|(a, b)| (median(a), median(b))).collect();
    for (view, (seconds, processor)) in views.iter().zip(&medians) {
        let rate = amount / seconds;
        let ratio = medians[0].0 / seconds;
        let busy = processor / amount;
        println!(
            "{title:<28}{:<13}{rate:>9.2} {unit:<6} ratio {ratio:<7.3} processor s {busy:.4}/{}",
            view.name,
            unit.trim_end_matches("/s")
        );
    }
}

fn main() {
    if !support::can_mount() {
        return;
    }
    let arguments: Vec<usize> = std::env::args().skip(1).flat_map(|word| word.parse()).collect();
    let file_mib = arguments.first().copied().unwrap_or(2048);
    let small_files = arguments.get(1).copied().unwrap_or(10_000);
    let threads = arguments.get(2).copied().unwrap_or(2);
    let tmpfs = tempfile::tempdir_in("/dev/shm").expect("a file of the benchmark");
    let mounts = tempfile::tempdir().expect("a file of the benchmark");
    let big = File::create(tmpfs.path().join("big")).expect("a file of the benchmark");
    let block: Bytes = (0..TRANSFER_BYTES).map(|index| index as u8).collect();
    for step in 0..file_mib {
        big.write_all_at(&block, (step * TRANSFER_BYTES) as u64).expect("a file of the benchmark");
    }
    for index in 0..small_files {
        fs::write(tmpfs.path().join(format!("small{index}")), &block[..RANDOM_BYTES])
            .expect("a file of the benchmark");
    }
    let make = |name, service| view(name, tmpfs.path(), mounts.path(), threads, service);
    let raw = View { name: "tmpfs", path: tmpfs.path().into(), _mount: None };
    let memory: Arc<dyn FileService> = FakeService::memory();
    let direct: Arc<dyn FileService> = FakeService::memory_without_pins();
    let views = [raw, make("passthrough", memory)];
    let gib = file_mib as f64 / 1024.0;
    let big_file = |path: &Path| path.join("big");
    let million = RANDOM_READS as f64 / 1e6;
    compare("sequential 1 MiB", "GiB/s", gib, &views, |path| sequential(&big_file(path)));
    compare("random 4 KiB", "M/s", million, &views, |path| random(&big_file(path)));
    let [raw, passing] = views;
    drop(passing);
    let views = [raw, make("direct", direct)];
    compare("sequential 1 MiB", "GiB/s", gib, &views, |path| sequential(&big_file(path)));
    compare("random 4 KiB", "M/s", million, &views, |path| random(&big_file(path)));
    let thousands = small_files as f64 / 1e3;
    compare("open, read 4 KiB, close", "k/s", thousands, &views, |path| small(path, small_files));
    let [raw, direct] = views;
    drop(direct);
    let views = [raw, make("bypass", FakeService::bypass())];
    compare("sequential 1 MiB, uncached", "GiB/s", gib, &views, |path| sequential(&big_file(path)));
    let written = WRITE_BYTES as f64 / (1 << 30) as f64;
    compare("write 1 MiB", "GiB/s", written, &views, |path| write(&path.join("written")));
}
