//! A file system of our own on a loop device: for crash images, for a lower level of known speed.
//!
//! Needs root. Everything is undone when the volume drops.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cleanup::{self, Guard};
use crate::process::{self, command};

/// What to make.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Type for `mkfs` and `mount`: `ext4`, `ext2`, `xfs`.
    pub file_system: &'static str,
    /// Further arguments of `mkfs`.
    pub format_arguments: &'static [&'static str],
    /// Size in bytes; the image is sparse.
    pub size_bytes: u64,
    /// Options for `mount -o`.
    pub mount_options: &'static str,
    /// The loop device goes past the page cache of the file system below.
    pub direct: bool,
}

/// A mounted loop volume.
#[derive(Debug)]
pub struct LoopVolume {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// The image file.
    pub image: PathBuf,
    /// The block device.
    pub device: PathBuf,
    // Dropped in this order: unmount, then detach.
    _mounted: Guard,
    _attached: Guard,
}

impl LoopVolume {
    /// Makes an image in `images`, formats it and mounts it in `directory`, whose path should be
    /// short: a socket's path has 107 bytes at most.
    pub fn create(images: &Path, directory: &Path, options: &VolumeOptions) -> Result<Self> {
        let image = images.join("volume.img");
        let file = fs::File::create(&image)?;
        file.set_len(options.size_bytes)?;
        drop(file);
        let mut format = Command::new(format!("mkfs.{}", options.file_system));
        format.args(options.format_arguments);
        process::read(format.arg(&image))?;
        Self::attach(&image, &directory.join("volume"), options)
    }

    /// Mounts an image that exists, with recovery of its journal.
    pub fn attach(image: &Path, mount: &Path, options: &VolumeOptions) -> Result<Self> {
        let mut attach = command("losetup", &["--find", "--show"]);
        if options.direct {
            attach.arg("--direct-io=on");
        }
        let device = PathBuf::from(process::read(attach.arg(image))?.trim());
        let detach = device.clone();
        let attached = cleanup::guard(move || {
            undo(Command::new("losetup").arg("--detach").arg(&detach));
        });
        fs::create_dir_all(mount)?;
        let mut mounting =
            command("mount", &["-t", options.file_system, "-o", options.mount_options]);
        process::read(mounting.arg(&device).arg(mount)).context("mounting the loop volume")?;
        let unmount = mount.to_path_buf();
        let mounted = cleanup::guard(move || unmount_hard(&unmount));
        Ok(LoopVolume {
            mount: mount.to_path_buf(),
            image: image.to_path_buf(),
            device,
            _mounted: mounted,
            _attached: attached,
        })
    }

    /// Counters of the device.
    pub fn traffic(&self) -> Result<Traffic> {
        Traffic::of(&self.device)
    }

    /// `major:minor` of the device.
    pub fn numbers(&self) -> Result<String> {
        let name = self.device.file_name().context("a device has a name")?;
        let path = Path::new("/sys/block").join(name).join("dev");
        Ok(fs::read_to_string(path)?.trim().to_owned())
    }
}

/// What went through a block device since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests completed.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests under way.
    pub in_flight: u64,
}

impl Traffic {
    /// Counters of a block device.
    pub fn of(device: &Path) -> Result<Self> {
        let name = device.file_name().context("a device has a name")?;
        let path = Path::new("/sys/block").join(name).join("stat");
        let text = fs::read_to_string(&path)?;
        let fields: Vec<u64> =
            text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        if fields.len() < 9 {
            bail!("{} has {} fields", path.display(), fields.len());
        }
        Ok(Traffic {
            read_bytes: fields[2] * 512,
            writes: fields[4],
            written_bytes: fields[6] * 512,
            in_flight: fields[8],
        })
    }
}

/// Unmounts; where something still uses the mount, detaches it lazily and says so.
pub fn unmount_hard(mount: &Path) {
    for _ in 0..50 {
        let result = process::capture(Command::new("umount").arg(mount));
        match result {
            Ok(output) if output.status.success() || !is_mounted(mount) => return,
            _ => std::thread::sleep(std::time::Duration::from_millis(100)),
        }
    }
    eprintln!("x: {} stays busy, detaching it lazily", mount.display());
    undo(command("umount", &["--lazy"]).arg(mount));
}

/// Whether something is mounted at exactly this path.
pub fn is_mounted(mount: &Path) -> bool {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let wanted = mount.to_string_lossy();
    text.lines().any(|line| line.split(' ').nth(1) == Some(&*wanted))
}

fn undo(command: &mut Command) {
    if let Err(error) = process::read(command) {
        eprintln!("x: while cleaning up: {error:#}");
    }
}
