//! Passes over a file with skips, and the probe that the predictions are made from. Times what a
//! reader sees: from the open to the last byte.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tidepool_client::{Client, OpenOptions};
use tidepool_model::{Bytes, BytesPerSecond, MountainSetting, Policy, Seconds};
use tidepool_proto::admin::{AdminRequest, Status};
use tidepool_proto::{Error, ErrorKind, Result};

use super::arguments::Via;
use crate::calibrate::file::median;
use crate::calibrate::memory::{load, small_reads};
use tidepool_cli::connection::Connection;
use tidepool_cli::target::Target;
use tidepool_terminal::interruption::check;

/// Bytes of a read: the upper buffer of the papers.
pub const REQUEST_BYTES: u64 = 1 << 20;
/// Transfers that a node has under way for a reader with skips.
const TRANSFERS: u32 = 4;
/// Shortest time that is taken for a measurement.
pub const SECONDS_MIN: f64 = 0.1;
/// Passes of each part of the probe.
const PROBE_PASSES: usize = 5;
/// How often memory and PFS are timed before they count as not to be told apart.
const PROBE_ATTEMPTS: usize = 3;
/// A byte that comes from the PFS is moved to memory before it is copied to the reader, which takes
/// no less than this share of a copy. What seems shorter was hidden by what the machine did.
const PFS_PART_MIN: f64 = 0.25;
/// Blocks whose first byte is waited for.
const PROBE_BLOCKS: u64 = 12;

/// How to reach a file.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The node.
    pub connection: Connection,
    /// Library or mount.
    pub via: Via,
    /// Where the node is mounted.
    pub mount: Option<PathBuf>,
    /// The PFS directory of the node.
    pub root: PathBuf,
}

/// What one or more passes brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pass {
    /// Bytes given to the reader.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
}

impl Pass {
    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }
}

impl Reader {
    /// Reads the first `size` bytes of a file of the PFS, leaving `skip` bytes out after each read.
    pub fn pass(
        &self,
        path: &Path,
        size: u64,
        skip: u64,
        interrupted: &AtomicBool,
    ) -> Result<Pass> {
        match self.via {
            Via::Library => library_pass(self.connection.client(), path, size, skip, interrupted),
            Via::Mount => self.mount_pass(path, size, skip, interrupted),
        }
    }

    fn mount_pass(
        &self,
        path: &Path,
        size: u64,
        skip: u64,
        interrupted: &AtomicBool,
    ) -> Result<Pass> {
        use std::os::unix::fs::FileExt;
        let failed = |source| Error::pfs("reading through the mount", source);
        let mount = self.mount.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "reading through the mount", "the node has none")
                .remedy("use --via library, or a node with a mount")
        })?;
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let begun = Instant::now();
        let file = std::fs::File::open(mount.join(below)).map_err(failed)?;
        let mut buffer = vec![0; REQUEST_BYTES as usize];
        let mut bytes = 0;
        for offset in offsets(size, skip) {
            check(interrupted)?;
            let wanted = REQUEST_BYTES.min(size - offset) as usize;
            bytes += file.read_at(&mut buffer[..wanted], offset).map_err(failed)? as u64;
        }
        Ok(Pass { bytes, seconds: begun.elapsed().as_secs_f64() })
    }

    /// Passes until the clock can tell: at least one, and a tenth of a second.
    pub fn timed(
        &self,
        path: &Path,
        size: u64,
        skip: u64,
        interrupted: &AtomicBool,
    ) -> Result<Pass> {
        let mut sum = Pass::default();
        while sum.seconds < SECONDS_MIN {
            let pass = self.pass(path, size, skip, interrupted)?;
            sum.bytes += pass.bytes;
            sum.seconds += pass.seconds;
        }
        Ok(sum)
    }

    /// Bytes that the node has read from the PFS so far.
    pub fn pfs_read_bytes(&self) -> Result<u64> {
        Ok(self.connection.status()?.pfs_read_bytes)
    }

    /// Drops what node and kernel have of a file.
    pub fn evict(&self, path: &Path) -> Result<()> {
        let target = Target::open(path)?;
        self.connection.free(AdminRequest::Evict, Some(target.descriptor()))?;
        // The node reads past the page cache where it can; this is for where it cannot.
        let _ = rustix::fs::fadvise(target.descriptor(), 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }
}

fn offsets(size: u64, skip: u64) -> impl Iterator<Item = u64> {
    let stride = REQUEST_BYTES + skip;
    (0..size.div_ceil(stride)).map(move |number| number * stride)
}

/// A pass by the client library.
pub fn library_pass(
    client: &Client,
    path: &Path,
    size: u64,
    skip: u64,
    interrupted: &AtomicBool,
) -> Result<Pass> {
    let begun = Instant::now();
    let file = client.open(path, OpenOptions::read())?;
    let mut buffer = vec![0; REQUEST_BYTES as usize];
    let mut bytes = 0;
    for offset in offsets(size, skip) {
        check(interrupted)?;
        let wanted = REQUEST_BYTES.min(size - offset) as usize;
        bytes += file.read_at(offset, &mut buffer[..wanted])?.bytes as u64;
    }
    Ok(Pass { bytes, seconds: begun.elapsed().as_secs_f64() })
}

/// Measures what the predictions need, on the file `path` of `size` bytes, which fits the store.
pub fn probe(
    reader: &Reader,
    path: &Path,
    size: u64,
    status: &Status,
    interrupted: &AtomicBool,
) -> Result<MountainSetting> {
    let operation = "measuring memory and PFS before the mountain";
    let rate = |per_byte: f64| {
        BytesPerSecond::new(1.0 / per_byte.max(1e-15))
            .map_err(|_| Error::new(ErrorKind::Internal, operation, "a pass that took no time"))
    };
    let Times { hot, opening, memory_latency, pfs } =
        told_apart(|| times(reader, path, size, interrupted))?;
    let pfs = rate(pfs)?;
    let block = status.store.block_bytes;
    let wait = first_bytes(reader, path, size, block)?;
    let pfs_latency = (wait - block as f64 / pfs.get()).max(0.0);
    Ok(MountainSetting {
        capacity: Bytes::whole(status.store.capacity_bytes),
        block: Bytes::whole(block),
        request: Bytes::whole(REQUEST_BYTES),
        opening: Seconds::new(opening)?,
        memory: rate(hot - memory_latency / REQUEST_BYTES as f64)?,
        memory_latency: Seconds::new(memory_latency)?,
        pfs,
        pfs_latency: Seconds::new(pfs_latency)?,
        transfers: TRANSFERS,
        policy: policy(&status.store.policy),
    })
}

/// Seconds of the probe.
struct Times {
    /// A byte of memory.
    hot: f64,
    /// An open.
    opening: f64,
    /// A small read of memory.
    memory_latency: f64,
    /// What a byte of the PFS takes longer than one of memory; not above 0 on a machine that
    /// changed its speed meanwhile.
    pfs: f64,
}

fn times(reader: &Reader, path: &Path, size: u64, interrupted: &AtomicBool) -> Result<Times> {
    load(&reader.connection, path)?;
    // The first pass maps the segment, and is not counted.
    reader.pass(path, size, 0, interrupted)?;
    let hot = passes(|| reader.timed(path, size, 0, interrupted))?;
    let open = passes(|| reader.timed(path, REQUEST_BYTES, 0, interrupted))?;
    let opening = ((open - hot) * REQUEST_BYTES as f64).max(0.0);
    let client = reader.connection.client();
    // A pass holds one opening beside its reads.
    let hot = (hot - opening / size as f64).max(0.5 * hot);
    let small = small_reads(&client.open(path, OpenOptions::read())?, 3)? * 1e-6;
    let memory_latency = small.min(0.5 * hot * REQUEST_BYTES as f64);
    let cold = passes(|| {
        reader.evict(path)?;
        reader.pass(path, size, 0, interrupted)
    })?;
    // A cold byte is moved and then copied; what remains is the PFS.
    Ok(Times { hot, opening, memory_latency, pfs: cold - hot })
}

/// Measures until the PFS can be told from memory.
fn told_apart(mut measure: impl FnMut() -> Result<Times>) -> Result<Times> {
    for _ in 0..PROBE_ATTEMPTS {
        let times = measure()?;
        if times.pfs >= PFS_PART_MIN * times.hot {
            return Ok(times);
        }
    }
    let detail = format!(
        "the rate of the PFS is not measurable: {PROBE_ATTEMPTS} times reads of it took hardly \
         longer than reads of memory, as on a machine that is busy"
    );
    Err(Error::new(ErrorKind::Unsupported, "measuring the PFS before the mountain", detail)
        .remedy("run it again when the machine is quiet, or hold the PFS to a rate by --pfs-rate"))
}

/// The model of the store's policy; what has none is taken as the default's.
fn policy(name: &str) -> Policy {
    match name {
        "lru" => Policy::Lru,
        "lfu" => Policy::Lfu,
        _ => Policy::Cyclic,
    }
}

/// Seconds of one byte: median of some passes.
fn passes(mut pass: impl FnMut() -> Result<Pass>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..PROBE_PASSES {
        let pass = pass()?;
        times.push(pass.seconds / pass.bytes.max(1) as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(median(&times))
}

/// Median seconds until a read gets the first bytes of a block that nobody asked for before.
fn first_bytes(reader: &Reader, path: &Path, size: u64, block: u64) -> Result<f64> {
    reader.evict(path)?;
    let file = reader.connection.client().open(path, OpenOptions::read())?;
    let blocks = (size / block).max(1);
    let mut times = Vec::new();
    let mut buffer = vec![0; 4096];
    // Backwards and with gaps, so that nothing is brought in ahead.
    for number in (0..PROBE_BLOCKS.min(blocks)).rev() {
        let place = number * blocks / PROBE_BLOCKS.min(blocks);
        let begun = Instant::now();
        file.read_at(place * block, &mut buffer)?;
        times.push(begun.elapsed().as_secs_f64());
        std::thread::sleep(Duration::from_millis(2));
    }
    times.sort_by(f64::total_cmp);
    Ok(median(&times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pfs_that_seems_as_fast_as_memory_is_not_measurable() {
        let times = |pfs| Times { hot: 1e-10, opening: 0.0, memory_latency: 0.0, pfs };
        let among = |differences: &[f64]| {
            let mut left = differences.iter();
            told_apart(|| Ok(times(*left.next().expect("no more attempts"))))
        };
        assert_eq!(among(&[1e-9]).unwrap().pfs, 1e-9);
        assert_eq!(among(&[-3e-10, 0.0, 2e-10]).unwrap().pfs, 2e-10, "the machine rested");
        let error = among(&[-3e-10, 0.0, 1e-12]).map(|times| times.pfs).unwrap_err();
        assert!(error.to_string().contains("not measurable"), "{error}");
    }

    #[test]
    fn reads_begin_a_stride_apart() {
        let mib = REQUEST_BYTES;
        assert_eq!(offsets(3 * mib, 0).collect::<Vec<_>>(), [0, mib, 2 * mib]);
        assert_eq!(offsets(5 * mib, mib).collect::<Vec<_>>(), [0, 2 * mib, 4 * mib]);
        assert_eq!(offsets(4 * mib, 64 * mib).collect::<Vec<_>>(), [0]);
    }
}
