//! The journal of a cluster: what `up` is about to do, a line a step, written before the step is
//! done. `down` undoes it backwards, whatever of it was done.
//!
//! A step that was undone leaves the journal, so that a `down` that was interrupted goes on where
//! it was. What cannot be undone stays in it and is told.

use std::fs::{self, File};
use std::io::ErrorKind::{DirectoryNotEmpty, NotFound};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{disk, network, processes};
use crate::process;

/// Something that exists afterwards and did not before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// A directory with everything in it.
    Directory {
        /// Where.
        path: PathBuf,
    },
    /// A directory that stays while others have something in it.
    EmptyDirectory {
        /// Where.
        path: PathBuf,
    },
    /// A network namespace, with the links in it.
    Namespace {
        /// Its name.
        name: String,
    },
    /// A loop device.
    LoopDevice {
        /// The file it shows.
        image: PathBuf,
    },
    /// A limit of a block device, in the root group of the block controller, version 1.
    DiskLimit {
        /// `major:minor`.
        numbers: String,
    },
    /// A control group, version 2.
    ControlGroup {
        /// Its directory.
        path: PathBuf,
    },
    /// Processes of a node. Mounts in the node's own mount namespace end with the last of them.
    Processes {
        /// Network namespace that they are in.
        namespace: String,
        /// Mark in their environment; for those that have not entered the namespace yet.
        mark: String,
        /// What they are, for a reader.
        what: String,
    },
}

/// The journal of a cluster that comes up.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    count: usize,
    death: Option<Death>,
}

/// Where the process kills itself; for tests of what an `up` that was killed leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Number of the step, from 0.
    pub step: usize,
    /// Once the step is in the journal and done; otherwise before it is done.
    pub done: bool,
}

impl Journal {
    /// An empty journal in a file.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn create(path: &Path, death: Option<Death>) -> Result<Self> {
        File::create(path).with_context(|| path.display().to_string())?;
        Ok(Journal { path: path.to_path_buf(), count: 0, death })
    }

    /// Notes a step, then does it.
    ///
    /// # Errors
    /// Of the step, or where the journal cannot be written; then the step is not done.
    pub fn perform<T>(&mut self, step: &Step, action: impl FnOnce() -> Result<T>) -> Result<T> {
        self.perform_all(std::slice::from_ref(step), action)
    }

    /// Notes steps that are done at once, then does them.
    ///
    /// # Errors
    /// Of the steps, or where the journal cannot be written; then none is done.
    pub fn perform_all<T>(
        &mut self,
        steps: &[Step],
        action: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut text = String::new();
        for step in steps {
            text.push_str(&serde_json::to_string(step)?);
            text.push('\n');
        }
        let mut file = File::options().append(true).open(&self.path)?;
        file.write_all(text.as_bytes())?;
        self.die_if(false);
        let result = action()?;
        self.die_if(true);
        self.count += 1;
        Ok(result)
    }

    fn die_if(&self, done: bool) {
        if self.death == Some(Death { step: self.count, done }) {
            process::signal(std::process::id(), libc::SIGKILL);
        }
    }
}

/// Steps of a journal, oldest first. A last line that is cut off is of a step that was not begun.
///
/// # Errors
/// A file that cannot be read, or is no journal.
pub fn read(path: &Path) -> Result<Vec<Step>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == NotFound => return Ok(Vec::new()),
        result => result.with_context(|| path.display().to_string())?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(|line| {
        serde_json::from_str(line).with_context(|| format!("{}: `{line}`", path.display()))
    });
    lines.collect()
}

/// Undoes a journal from its end. Returns what could not be undone, a line each; the journal keeps
/// that.
///
/// # Errors
/// A journal that cannot be read or written.
pub fn undo(path: &Path) -> Result<Vec<String>> {
    let steps = read(path)?;
    let mut kept: Vec<Step> = Vec::new();
    let mut problems = Vec::new();
    for (at, step) in steps.iter().enumerate().rev() {
        if let Err(error) = step.undo() {
            problems.push(format!("{}: {error:#}", step.name()));
            kept.insert(0, step.clone());
        }
        write(path, steps[..at].iter().chain(&kept))?;
    }
    Ok(problems)
}

/// Writes a journal anew, whole or not at all.
fn write<'a>(path: &Path, steps: impl Iterator<Item = &'a Step>) -> Result<()> {
    let mut text = String::new();
    for step in steps {
        text.push_str(&serde_json::to_string(step)?);
        text.push('\n');
    }
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).with_context(|| fresh.display().to_string())?;
    fs::rename(&fresh, path).with_context(|| path.display().to_string())
}

impl Step {
    /// What it is about, for a reader.
    pub fn name(&self) -> String {
        match self {
            Step::Directory { path } | Step::EmptyDirectory { path } => path.display().to_string(),
            Step::Namespace { name } => format!("network namespace {name}"),
            Step::LoopDevice { image } => format!("loop device of {}", image.display()),
            Step::DiskLimit { numbers } => format!("limit of block device {numbers}"),
            Step::ControlGroup { path } => format!("control group {}", path.display()),
            Step::Processes { namespace, what, .. } => format!("{what} in {namespace}"),
        }
    }

    /// Undoes it. That it was never done, or is gone, is fine.
    fn undo(&self) -> Result<()> {
        match self {
            Step::Directory { path } => remove_directory(path),
            Step::EmptyDirectory { path } => gone(fs::remove_dir(path), DirectoryNotEmpty),
            Step::Namespace { name } => network::remove(name),
            Step::LoopDevice { image } => disk::detach(image),
            Step::DiskLimit { numbers } => disk::lift_limit(numbers),
            Step::ControlGroup { path } => gone(fs::remove_dir(path), NotFound),
            Step::Processes { namespace, mark, .. } => processes::end_all(namespace, mark),
        }
    }
}

/// Never goes through a mount: what is mounted below stays, with the directory.
fn remove_directory(path: &Path) -> Result<()> {
    if let Some(mount) = crate::scratch::mount_below(path) {
        anyhow::bail!("{} is still mounted; unmount it", mount.display());
    }
    gone(fs::remove_dir_all(path), NotFound)
}

/// Takes it as done that there is nothing, and what else is fine.
fn gone(result: std::io::Result<()>, fine: std::io::ErrorKind) -> Result<()> {
    match result {
        Err(error) if error.kind() == NotFound || error.kind() == fine => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Journal, Step, read, undo};

    #[test]
    fn a_step_is_noted_before_it_is_done_and_undone_though_it_failed() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, inner) = (scratch.path().join("journal"), scratch.path().join("inner"));
        let mut journal = Journal::create(&path, None).unwrap();
        let step = Step::Directory { path: inner.clone() };
        let error = journal.perform(&step, || -> anyhow::Result<()> {
            assert_eq!(read(&path)?, std::slice::from_ref(&step));
            fs::create_dir(&inner)?;
            anyhow::bail!("half-way")
        });
        assert!(error.is_err());
        assert_eq!(undo(&path).unwrap(), [""; 0]);
        assert!(!inner.exists());
        assert_eq!(read(&path).unwrap(), []);
    }

    #[test]
    fn what_cannot_be_undone_stays_and_the_rest_is_undone_backwards() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let mut journal = Journal::create(&at("journal"), None).unwrap();
        let outer = Step::Directory { path: at("outer") };
        journal.perform(&outer, || Ok(fs::create_dir(at("outer"))?)).unwrap();
        // A file in the place of a group: `rmdir` refuses it.
        let group = Step::ControlGroup { path: at("outer/group") };
        journal.perform(&group, || Ok(fs::write(at("outer/group"), "")?)).unwrap();
        let problems = undo(&at("journal")).unwrap();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("control group"), "{problems:?}");
        assert!(!at("outer").exists());
        assert_eq!(read(&at("journal")).unwrap(), [group]);
        // The second time it is gone.
        assert_eq!(undo(&at("journal")).unwrap(), [""; 0]);
        assert_eq!(read(&at("journal")).unwrap(), []);
    }

    #[test]
    fn a_line_that_is_cut_off_is_no_step() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("journal");
        let line = serde_json::to_string(&Step::Namespace { name: "tp-x-c1".into() }).unwrap();
        fs::write(&path, format!("{line}\n{}", &line[..9])).unwrap();
        assert_eq!(read(&path).unwrap(), [Step::Namespace { name: "tp-x-c1".into() }]);
        assert_eq!(read(&scratch.path().join("none")).unwrap(), []);
    }
}
