//! Disks of data nodes: an image, a loop device, an ext4 file system, a rate for all that goes
//! through the device. The file system is mounted in the node's own mount namespace alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::plan::{Node, Plan};
use super::wait_until;
use crate::arguments::Rate;
use crate::loop_volume::Traffic;
use crate::process::{self, command};
use crate::shaping;

/// Counters of the device before the disk was made.
const BEFORE: &str = "disk-before";
const DETACH_LIMIT: Duration = Duration::from_secs(15);

/// Makes the image of a node's disk and formats it.
pub fn format(plan: &Plan, node: &Node) -> Result<()> {
    let image = plan.image(node);
    let file = fs::File::create(&image).with_context(|| image.display().to_string())?;
    file.set_len(plan.disk_bytes)?;
    drop(file);
    // Nothing is written later that a measurement would count.
    let all_now = "lazy_itable_init=0,lazy_journal_init=0";
    let format = ["-q", "-F", "-I", "512", "-E", all_now];
    process::read(command("mkfs.ext4", &format).arg(&image)).map(drop)
}

/// Shows the image of a node as a block device, past the page cache of the disk below where that
/// can be.
pub fn attach(plan: &Plan, node: &Node) -> Result<()> {
    let image = plan.image(node);
    let direct = ["--find", "--show", "--direct-io=on"];
    if process::read(command("losetup", &direct).arg(&image)).is_err() {
        process::read(command("losetup", &["--find", "--show"]).arg(&image))?;
    }
    // The device counts on from whoever had it before.
    let before = Traffic::of(&device_of(plan, node)?)?;
    let text = format!("{} {}", before.read_bytes, before.written_bytes);
    Ok(fs::write(plan.files(node).join(BEFORE), text)?)
}

/// The loop device of an image, which may be deleted by now; its path has no links in it.
pub fn device(image: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name()).filter(|name| {
        let path = Path::new("/sys/block").join(name).join("loop/backing_file");
        fs::read_to_string(path).is_ok_and(|text| {
            let shown = text.trim_end_matches('\n');
            Path::new(shown.strip_suffix(" (deleted)").unwrap_or(shown)) == image
        })
    });
    names.next().map(|name| Path::new("/dev").join(name))
}

/// Takes the loop device of an image away; that there is none is fine.
pub fn detach(image: &Path) -> Result<()> {
    let mut problem = None;
    // The kernel lets go of a mount some time after the last process of its namespace.
    let gone = wait_until(DETACH_LIMIT, || {
        let Some(device) = device(image) else { return true };
        problem = process::read(command("losetup", &["--detach"]).arg(device)).err();
        false
    });
    match (gone, problem) {
        (Err(_), Some(problem)) => Err(problem),
        (gone, _) => gone.context("the device stays in use"),
    }
}

/// The block device of a node's disk.
///
/// # Errors
/// A node without one.
pub fn device_of(plan: &Plan, node: &Node) -> Result<PathBuf> {
    device(&plan.image(node)).with_context(|| {
        format!("{} has no disk; data nodes have one while they are up", node.name)
    })
}

/// `major:minor` of a block device.
pub fn numbers(device: &Path) -> Result<String> {
    let name = device.file_name().context("a device has a name")?;
    let path = Path::new("/sys/block").join(name).join("dev");
    Ok(fs::read_to_string(&path).with_context(|| path.display().to_string())?.trim().to_owned())
}

/// Bytes that went through a disk since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskTraffic {
    /// Read from it.
    pub read_bytes: u64,
    /// Written to it.
    pub written_bytes: u64,
}

/// What went through the disk of a node since it was made.
pub fn traffic(plan: &Plan, node: &Node) -> Result<DiskTraffic> {
    let path = plan.files(node).join(BEFORE);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let before: Vec<u64> = text.split(' ').map_while(|word| word.parse().ok()).collect();
    let [read_bytes, written_bytes] = before[..] else { bail!("{} is damaged", path.display()) };
    let now = Traffic::of(&device_of(plan, node)?)?;
    Ok(DiskTraffic {
        read_bytes: now.read_bytes.saturating_sub(read_bytes),
        written_bytes: now.written_bytes.saturating_sub(written_bytes),
    })
}

/// How disks are held to a rate here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limiter {
    /// By the root group of version 1: whoever reads or writes, write-back too.
    RootGroup,
    /// By a group of version 2 with the servers of the node in it.
    OwnGroup,
}

impl Limiter {
    /// What this machine has.
    ///
    /// # Errors
    /// Why it has nothing.
    pub fn find() -> Result<Self> {
        if shaping::has_version_1() {
            return Ok(Limiter::RootGroup);
        }
        let list = Path::new(shaping::UNIFIED).join("cgroup.controllers");
        let list = fs::read_to_string(list).context("no control groups for disks")?;
        anyhow::ensure!(list.split_whitespace().any(|name| name == "io"), "no io controller");
        Ok(Limiter::OwnGroup)
    }
}

/// Directory of the group of a node, version 2.
pub fn group(plan: &Plan, node: &Node) -> PathBuf {
    Path::new(shaping::UNIFIED).join(plan.namespace(node))
}

/// Makes the group of a node.
pub fn make_group(plan: &Plan, node: &Node) -> Result<()> {
    fs::write(Path::new(shaping::UNIFIED).join("cgroup.subtree_control"), "+io")?;
    fs::create_dir(group(plan, node)).context("the control group of the disk")
}

/// Holds a disk to a rate in each direction, or lifts the limit.
pub fn limit(plan: &Plan, node: &Node, rate: Rate) -> Result<()> {
    let numbers = numbers(&device_of(plan, node)?)?;
    match Limiter::find()? {
        Limiter::RootGroup => shaping::set_version_1(&numbers, rate.0.unwrap_or(0)),
        Limiter::OwnGroup => {
            let rate = rate.0.map_or("max".to_owned(), |rate| rate.to_string());
            let line = format!("{numbers} rbps={rate} wbps={rate}");
            fs::write(group(plan, node).join("io.max"), line).context("the limit of the disk")
        }
    }
}

/// Holds how many bytes for a disk the kernel keeps in memory until it writes them, or lifts that.
/// Only writers to this disk wait: nodes share a kernel here, whose limit for all would have them
/// wait for the disks of each other.
///
/// # Errors
/// The kernel has no such limit, as before Linux 6.2.
pub fn hold_dirty(device: &Path, bytes: Option<u64>) -> Result<()> {
    let of_device = Path::new("/sys/class/bdi").join(numbers(device)?);
    let set = |name: &str, value: &str| {
        let path = of_device.join(name);
        fs::write(&path, value).with_context(|| path.display().to_string())
    };
    match bytes {
        Some(bytes) => {
            set("max_bytes", &bytes.to_string())?;
            set("strict_limit", "1")
        }
        None => {
            set("strict_limit", "0")?;
            set("max_ratio", "100")
        }
    }
}

/// Lifts a limit of version 1. Without the controller there is none.
pub fn lift_limit(numbers: &str) -> Result<()> {
    if shaping::has_version_1() { shaping::set_version_1(numbers, 0) } else { Ok(()) }
}
