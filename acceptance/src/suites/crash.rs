//! Power loss: at the moment `close` has returned, the image below the file system is copied. The
//! copy holds what had reached the block device and nothing else. It is mounted, which recovers its
//! journal, and every file that was closed must be there, whole, under its name.
//!
//! Two controls run on the bare file system: writes that are synced must survive the same way, and
//! writes that are not must get lost, or the test would prove nothing.

mod image;
mod ledger;
mod library;

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};

use self::image::{CRASH_VOLUME, check_copy, copy_quietly};
use self::ledger::Ledger;
use super::{Places, content};
use crate::environment;
use crate::loop_volume::LoopVolume;
use crate::node::{Node, NodeOptions};
use crate::outcome::Outcome;

const KILL_ROUNDS: u64 = 4;

/// How a writer makes its bytes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// Not at all.
    None,
    /// `fsync` of the file and of its directory, as on any POSIX file system.
    Sync,
    /// `close` alone, as write mode `through` promises.
    Close,
}

/// Runs the controls on the bare file system, then the same on a node.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    if !environment::is_root() {
        let mut outcome = Outcome::new("power loss");
        outcome.skipped.push("needs root for loop devices and mounts".into());
        return Ok(vec![outcome]);
    }
    let mut outcomes = Vec::new();
    if places.wants_bare() {
        outcomes.push(control(places)?);
    }
    if places.wants_node() {
        outcomes.push(power_loss(places)?);
        outcomes.push(library::power_loss(places)?);
        outcomes.push(killed_between(places)?);
        outcomes.push(killed_within(places)?);
    }
    Ok(outcomes)
}

fn control(places: &Places) -> Result<Outcome> {
    let mut outcome = Outcome::new("power loss on bare");
    let mut lost = Outcome::new("unsynced");
    for (promise, into) in [(Promise::Sync, &mut outcome), (Promise::None, &mut lost)] {
        let (images, scratch) = places.corner()?;
        let volume = LoopVolume::create(images.path(), scratch.path(), &CRASH_VOLUME)?;
        let ledger = Ledger::default();
        every_case(&volume.mount, promise, ledger, |case, ledger| {
            let copy = copy_quietly(&volume, images.path())?;
            check_copy(case, &copy, ledger, into)
        })?;
    }
    outcome.check(!lost.failed.is_empty(), || {
        "nothing unsynced got lost: this test would not notice a missing sync".into()
    });
    outcome.notes.push(format!("{} losses without a sync, as must be", lost.failed.len()));
    Ok(outcome)
}

fn power_loss(places: &Places) -> Result<Outcome> {
    let mut outcome = Outcome::new("power loss on node");
    let (images, scratch) = places.corner()?;
    let (volume, node) = node_on_volume(images.path(), scratch.path())?;
    every_case(&node.mount, Promise::Close, Ledger::default(), |case, ledger| {
        let copy = copy_quietly(&volume, images.path())?;
        check_copy(case, &copy, ledger, &mut outcome)
    })?;
    drop(node);
    Ok(outcome)
}

fn killed_between(places: &Places) -> Result<Outcome> {
    let mut outcome = Outcome::new("kill -9 after close");
    let (images, scratch) = places.corner()?;
    let (volume, mut node) = node_on_volume(images.path(), scratch.path())?;
    let mount = node.mount.clone();
    every_case(&mount, Promise::Close, Ledger::default(), |case, ledger| {
        node.kill()?;
        let copy = copy_quietly(&volume, images.path())?;
        check_copy(case, &copy, ledger, &mut outcome)?;
        node.start_again().with_context(|| format!("after {case}"))?;
        ledger.check(&format!("{case}, through the mount again"), &node.mount, &mut outcome);
        Ok(())
    })?;
    Ok(outcome)
}

fn killed_within(places: &Places) -> Result<Outcome> {
    let mut outcome = Outcome::new("kill -9 while writing");
    let (images, scratch) = places.corner()?;
    let (volume, mut node) = node_on_volume(images.path(), scratch.path())?;
    let mut closed = 0;
    for round in 0..KILL_ROUNDS {
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let over = Arc::new(AtomicBool::new(false));
        let writer = {
            let (ledger, over, mount) = (ledger.clone(), over.clone(), node.mount.clone());
            std::thread::spawn(move || write_until(&over, &mount, round, &ledger))
        };
        std::thread::sleep(Duration::from_millis(150 + 170 * round));
        node.kill()?;
        over.store(true, Ordering::Release);
        let _ = writer.join();
        let ledger = ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        closed += ledger.len();
        let copy = copy_quietly(&volume, images.path())?;
        check_copy(&format!("round {round}"), &copy, &ledger, &mut outcome)?;
        node.start_again().with_context(|| format!("round {round}"))?;
        ledger.check(&format!("round {round}, again"), &node.mount, &mut outcome);
    }
    outcome.check(closed > 0, || "no file was closed before a kill".into());
    outcome.notes.push(format!("{closed} files closed before {KILL_ROUNDS} kills"));
    Ok(outcome)
}

fn node_on_volume(images: &Path, scratch: &Path) -> Result<(LoopVolume, Node)> {
    let volume = LoopVolume::create(images, scratch, &CRASH_VOLUME)?;
    let options =
        NodeOptions { pfs: volume.mount.clone(), memory: "64MiB".into(), arguments: Vec::new() };
    let node = Node::start(&options)?;
    Ok((volume, node))
}

/// Writes small and large files one after the other and enters each one after its close.
fn write_until(over: &AtomicBool, mount: &Path, round: u64, ledger: &Mutex<Ledger>) {
    for index in 0.. {
        if over.load(Ordering::Acquire) {
            return;
        }
        let seed = round * 1_000 + index;
        let name = PathBuf::from(format!("round-{round}-{index}"));
        let length = [700, 4_096, 90_000, 1_500_000][index as usize % 4];
        // Errors are the daemon's end; what was not closed without one is not in the ledger.
        if create(&mount.join(&name), seed, length, Promise::Close).is_err() {
            return;
        }
        let mut ledger = ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ledger.enter(&name, content::of(seed, length));
    }
}

/// Goes through the ways to change a file; calls `crash` right after each close.
fn every_case(
    root: &Path,
    promise: Promise,
    mut ledger: Ledger,
    mut crash: impl FnMut(&str, &Ledger) -> Result<()>,
) -> Result<()> {
    let lengths = [1, 4_096, 300_001, 5_000_000];
    for (index, length) in lengths.into_iter().enumerate() {
        let name = PathBuf::from(format!("new-{length}"));
        let seed = index as u64 + 1;
        create(&root.join(&name), seed, length, promise)?;
        ledger.enter(&name, content::of(seed, length));
        crash(&format!("new file of {length} bytes"), &ledger)?;
    }
    let name = PathBuf::from("new-300001");
    let path = root.join(&name);

    let mut bytes = content::of(3, 300_001);
    bytes[1_000..201_000].copy_from_slice(&content::of(70, 200_000));
    change(&path, promise, |file| write_at(file, 1_000, &content::of(70, 200_000)))?;
    ledger.enter(&name, bytes.clone());
    crash("bytes overwritten in the middle", &ledger)?;

    bytes.extend(content::of(71, 50_000));
    change(&path, promise, |file| write_at(file, 300_001, &content::of(71, 50_000)))?;
    ledger.enter(&name, bytes.clone());
    crash("bytes appended", &ledger)?;

    bytes.truncate(100_000);
    bytes.extend(content::of(72, 10));
    change(&path, promise, |file| {
        file.set_len(100_000)?;
        write_at(file, 100_000, &content::of(72, 10))
    })?;
    ledger.enter(&name, bytes);
    crash("file shortened, then written", &ledger)?;

    let directory = root.join("below");
    fs::create_dir(&directory)?;
    sync_directory(root)?;
    let name = PathBuf::from("below/inside");
    create(&root.join(&name), 80, 20_000, promise)?;
    ledger.enter(&name, content::of(80, 20_000));
    crash("new file in a subdirectory", &ledger)
}

fn create(path: &Path, seed: u64, length: usize, promise: Promise) -> Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(&content::of(seed, length))?;
    finish(file, path, promise)
}

fn change(
    path: &Path,
    promise: Promise,
    work: impl FnOnce(&mut fs::File) -> std::io::Result<()>,
) -> Result<()> {
    let mut file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    work(&mut file)?;
    finish(file, path, promise)
}

fn write_at(file: &mut fs::File, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

fn finish(file: fs::File, path: &Path, promise: Promise) -> Result<()> {
    if promise == Promise::Sync {
        file.sync_all()?;
        sync_directory(path.parent().context("a file has a directory")?)?;
    }
    close(file)
}

/// Closes and reports what `close(2)` said, which dropping a file does not.
fn close(file: fs::File) -> Result<()> {
    // Its error is the one that a mount returns from its flush.
    let descriptor: std::os::fd::OwnedFd = file.into();
    let raw = std::os::fd::IntoRawFd::into_raw_fd(descriptor);
    // SAFETY: the descriptor was ours alone until `into_raw_fd` gave it up, and is closed once.
    let result = unsafe { libc::close(raw) };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("close");
    }
    Ok(())
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory = fs::File::open(path)?;
    rustix::fs::fsync(directory.as_fd())?;
    Ok(())
}
