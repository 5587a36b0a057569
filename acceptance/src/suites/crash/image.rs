//! Copies of the image below a mounted file system, as a power loss would leave it.
//!
//! A copy takes time, so it is a crash image only if the device took no write meanwhile. Nothing
//! writes in the background: the journal commits every ten minutes only, and nothing is lazily
//! initialised. The device's counters prove it; otherwise the copy is made again.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::ledger::Ledger;
use crate::loop_volume::{LoopVolume, VolumeOptions};
use crate::outcome::Outcome;
use crate::scratch::Scratch;

/// The file system under the crash tests.
pub const CRASH_VOLUME: VolumeOptions = VolumeOptions {
    file_system: "ext4",
    format_arguments: &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    size_bytes: 192 << 20,
    // Without `noauto_da_alloc` the file system would sync some forgotten files by itself.
    mount_options: "noatime,commit=600,noauto_da_alloc",
    direct: false,
};

const ATTEMPTS: usize = 20;
const PIECE_BYTES: usize = 1 << 20;

/// Copies the image at a moment when the device is at rest.
pub fn copy_quietly(volume: &LoopVolume, directory: &Path) -> Result<PathBuf> {
    let copy = directory.join("copy.img");
    for _ in 0..ATTEMPTS {
        let before = volume.traffic()?;
        if before.in_flight == 0 {
            copy_sparse(&volume.image, &copy)?;
            let after = volume.traffic()?;
            let same = after.writes == before.writes && after.in_flight == 0;
            if same && after.written_bytes == before.written_bytes {
                return Ok(copy);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    bail!("the device under {} was never at rest", volume.mount.display())
}

/// Mounts the copy and compares it with the ledger.
pub fn check_copy(moment: &str, copy: &Path, ledger: &Ledger, outcome: &mut Outcome) -> Result<()> {
    let recovered = Scratch::short()?;
    let volume = LoopVolume::attach(copy, recovered.path(), &CRASH_VOLUME)?;
    ledger.check(moment, &volume.mount, outcome);
    Ok(())
}

fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let mut source = fs::File::open(from)?;
    let length = source.metadata()?.len();
    let mut target = fs::File::create(to)?;
    target.set_len(length)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut position = 0;
    while let Ok(start) = rustix::fs::seek(&source, rustix::fs::SeekFrom::Data(position)) {
        let end = rustix::fs::seek(&source, rustix::fs::SeekFrom::Hole(start))?;
        source.seek(SeekFrom::Start(start))?;
        target.seek(SeekFrom::Start(start))?;
        let mut left = end - start;
        while left > 0 {
            let wanted = piece.len().min(left as usize);
            source.read_exact(&mut piece[..wanted])?;
            target.write_all(&piece[..wanted])?;
            left -= wanted as u64;
        }
        position = end;
    }
    Ok(())
}
