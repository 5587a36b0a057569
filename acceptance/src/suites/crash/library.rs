//! Power loss at the moment a writer of the client library has closed a new file, which it writes
//! past the node. The writer is a program of its own: the tasks know nothing of the product.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::image::{check_copy, copy_quietly};
use super::ledger::Ledger;
use super::{Places, content, node_on_volume, sync_directory};
use crate::outcome::Outcome;
use crate::{environment, process};

/// New files of several lengths, in two directories, and one that is emptied and written anew.
pub fn power_loss(places: &Places) -> Result<Outcome> {
    let mut outcome = Outcome::new("power loss, library");
    let build = ["build", "--quiet", "--release", "--package", "tidepool-client"];
    process::show(environment::cargo(&build).args(["--example", "write_file"]))?;
    let (images, scratch) = places.corner()?;
    let (volume, node) = node_on_volume(images.path(), scratch.path())?;
    fs::create_dir(volume.mount.join("below"))?;
    sync_directory(&volume.mount)?;
    let mut ledger = Ledger::default();
    let cases = [("a", 1), ("b", 4_096), ("below/c", 300_001), ("d", 9_000_000), ("b", 70_000)];
    for (index, (name, length)) in cases.into_iter().enumerate() {
        let bytes = content::of(index as u64 + 1, length);
        write(&node.socket, &volume.mount.join(name), &bytes)?;
        ledger.enter(&PathBuf::from(name), bytes);
        let copy = copy_quietly(&volume, images.path())?;
        check_copy(&format!("{name} of {length} bytes"), &copy, &ledger, &mut outcome)?;
    }
    drop(node);
    Ok(outcome)
}

fn write(socket: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let writer = environment::target().join("release/examples/write_file");
    let mut child = Command::new(writer).arg(socket).arg(path).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().context("its input is a pipe")?.write_all(bytes)?;
    let status = child.wait()?;
    ensure!(status.success(), "the writer of {} ended with {status}", path.display());
    Ok(())
}
