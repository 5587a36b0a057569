//! A lower level of known speed: a loop volume whose device is held to a rate by the block
//! controller of the kernel, for all programs that use it. Where that is not to be had, a token
//! bucket for the bare reader, and the node's own rate rule for the node.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cleanup::{self, Guard};
use crate::loop_volume::{LoopVolume, VolumeOptions};

/// The block controller of control groups, version 1, in the root group: it holds every group, and
/// write-back too.
const ROOT_GROUP: &str = "/sys/fs/cgroup/blkio";
/// Version 2 has no limits in the root group; a group of our own holds this process and all that it
/// starts.
pub(crate) const UNIFIED: &str = "/sys/fs/cgroup";

/// How the rate is held.
#[derive(Debug)]
pub enum Shaping {
    /// By the kernel, on the block device.
    Device {
        /// In words, for the report.
        how: String,
        /// Lifts the limit.
        _guard: Guard,
    },
    /// By a token bucket in the reader and a rate rule in the node.
    Buckets,
}

/// Holds `volume` to `rate` bytes a second, in both directions.
pub fn hold(volume: &LoopVolume, rate: u64) -> Result<Shaping> {
    let numbers = volume.numbers()?;
    if let Ok(guard) = hold_version_1(&numbers, rate) {
        let how = "block device limit of the root control group".to_owned();
        return Ok(Shaping::Device { how, _guard: guard });
    }
    match hold_version_2(&numbers, rate) {
        Ok(guard) => {
            let how = "block device limit of a control group for this run".to_owned();
            Ok(Shaping::Device { how, _guard: guard })
        }
        Err(error) => {
            eprintln!("x: no block device limit here ({error:#}); using token buckets");
            Ok(Shaping::Buckets)
        }
    }
}

fn hold_version_1(numbers: &str, rate: u64) -> Result<Guard> {
    let lift = numbers.to_owned();
    let guard = cleanup::guard(move || {
        // Without the controller there is nothing to lift.
        let _ = set_version_1(&lift, 0);
    });
    set_version_1(numbers, rate)?;
    Ok(guard)
}

/// Whether the root group can hold a device to a rate.
pub(crate) fn has_version_1() -> bool {
    version_1("read").is_file()
}

/// Holds a device, `major:minor`, to `rate` bytes a second in each direction; 0 lifts the limit.
pub(crate) fn set_version_1(numbers: &str, rate: u64) -> Result<()> {
    for way in ["read", "write"] {
        let file = version_1(way);
        std::fs::write(&file, format!("{numbers} {rate}"))
            .with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn version_1(way: &str) -> PathBuf {
    Path::new(ROOT_GROUP).join(format!("blkio.throttle.{way}_bps_device"))
}

fn hold_version_2(numbers: &str, rate: u64) -> Result<Guard> {
    let controllers = std::fs::read_to_string(Path::new(UNIFIED).join("cgroup.controllers"))
        .context("no unified control groups")?;
    anyhow::ensure!(
        controllers.split_whitespace().any(|name| name == "io"),
        "the io controller is not available"
    );
    std::fs::write(Path::new(UNIFIED).join("cgroup.subtree_control"), "+io")?;
    let group = Path::new(UNIFIED).join(format!("tidepool-demo-{}", std::process::id()));
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    let home = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let home = Path::new(UNIFIED).join(home.trim_start_matches('/')).join("cgroup.procs");
    std::fs::create_dir(&group)?;
    let undo = group.clone();
    let guard = cleanup::guard(move || {
        let _ = std::fs::write(&home, std::process::id().to_string());
        if let Err(error) = std::fs::remove_dir(&undo) {
            eprintln!("x: {}: {error}", undo.display());
        }
    });
    std::fs::write(group.join("io.max"), format!("{numbers} rbps={rate} wbps={rate}"))?;
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    Ok(guard)
}

/// The volume under the demo and the benchmarks.
pub const LOCAL_VOLUME: VolumeOptions = VolumeOptions {
    file_system: "ext4",
    format_arguments: &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    size_bytes: 0,
    mount_options: "noatime",
    // Past the page cache of the disk below, or that would hold a second copy of everything.
    direct: true,
};

/// Lets bytes through at a rate, shared by all threads that take from it.
#[derive(Debug)]
pub struct TokenBucket {
    rate: f64,
    state: Mutex<Instant>,
}

impl TokenBucket {
    /// Lets `rate` bytes a second through, with a burst of at most `BURST`.
    pub fn new(rate: u64) -> Self {
        TokenBucket { rate: rate as f64, state: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` may pass.
    pub fn take(&self, bytes: u64) {
        const BURST: Duration = Duration::from_millis(20);
        let due = {
            let mut free_at = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let now = Instant::now();
            let start = (*free_at).max(now - BURST);
            *free_at = start + Duration::from_secs_f64(bytes as f64 / self.rate);
            *free_at
        };
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}
