//! Proof of the harness: every suite must report a failure that is planted in it.

use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::Result;

use super::{Places, fio, fsx, pjdfstest};
use crate::environment;
use crate::loop_volume::{LoopVolume, VolumeOptions};
use crate::outcome::Outcome;

/// Operations that the exerciser leaves out, one a run; among them are some that must show.
const LEFT_OUT: [u64; 8] = [5, 6, 8, 9, 10, 16, 20, 21];

/// Its inodes have no room for parts of a second, nor for years past 2038.
const OLD_EXT2: VolumeOptions = VolumeOptions {
    file_system: "ext2",
    format_arguments: &["-q", "-F", "-I", "128"],
    size_bytes: 64 << 20,
    mount_options: "noatime",
    direct: false,
};

/// Lets each suite meet an error that it must find.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let mut outcome = Outcome::new("the suites find errors");
    places.on_bare("proof", |subject| {
        let file = subject.directory.join("left-out");
        let found = LEFT_OUT
            .iter()
            .filter(|step| fsx::exercise(&file, "small", 1, 300, Some(**step)).is_err())
            .count();
        outcome.check(found > 0, || "fsx accepts a file that misses operations".into());
        outcome.notes.push(format!("fsx found {found} of {} left-out steps", LEFT_OUT.len()));

        let directory = subject.directory.join("flipped");
        fs::create_dir(&directory)?;
        fio::fio(&directory, false)?;
        flip_one_byte(&directory)?;
        let found = fio::fio(&directory, true).is_err();
        outcome.check(found, || "fio accepts a file with a flipped byte".into());
        Ok(())
    })?;
    if environment::is_root() {
        let (images, scratch) = places.corner()?;
        let volume = LoopVolume::create(images.path(), scratch.path(), &OLD_EXT2)?;
        let failures = pjdfstest::failures_in(&volume.mount)?;
        outcome.check(failures > 0, || "pjdfstest finds nothing wrong with old ext2".into());
        outcome.notes.push(format!("pjdfstest found {failures} failures of old ext2"));
    } else {
        outcome.skipped.push("pjdfstest on ext2: needs root for a loop device".into());
    }
    Ok(vec![outcome])
}

fn flip_one_byte(directory: &std::path::Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.to_string_lossy().contains("sequential-1m") {
            let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
            let mut byte = [0];
            file.read_exact_at(&mut byte, 1_234_567)?;
            byte[0] ^= 0x40;
            file.write_all_at(&byte, 1_234_567)?;
            return Ok(());
        }
    }
    anyhow::bail!("fio left no file to damage")
}
