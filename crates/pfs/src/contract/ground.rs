//! The working directory of the contract suite, and the reports of its checks. Removes the
//! directory at the end, and those that killed runs left behind on this host.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidepool_proto::admin::PROBE_PREFIX;

use super::options::{ContractOptions, Outcome};
use crate::features::Features;
use crate::filesystem::FileSystem;
use crate::lower::LowerStore;
use crate::posix::{PosixOptions, PosixStore};

/// What a check found.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub outcome: Outcome,
    pub measured: String,
    pub consequence: String,
}

impl Verdict {
    pub fn ok(measured: impl Into<String>) -> Self {
        Verdict { outcome: Outcome::Ok, measured: measured.into(), consequence: String::new() }
    }

    pub fn degraded(measured: impl Into<String>, consequence: &str) -> Self {
        let consequence = consequence.to_owned();
        Verdict { outcome: Outcome::Degraded, measured: measured.into(), consequence }
    }

    pub fn failed(measured: impl Into<String>, consequence: &str) -> Self {
        let consequence = consequence.to_owned();
        Verdict { outcome: Outcome::Failed, measured: measured.into(), consequence }
    }

    pub fn skipped(why: impl Into<String>) -> Self {
        Verdict { outcome: Outcome::Skipped, measured: why.into(), consequence: String::new() }
    }

    /// `ok` if `holds`, else degraded.
    pub fn ok_or_degraded(holds: bool, measured: impl Into<String>, consequence: &str) -> Self {
        if holds { Verdict::ok(measured) } else { Verdict::degraded(measured, consequence) }
    }

    /// `ok` if `holds`, else failed.
    pub fn ok_or_failed(holds: bool, measured: impl Into<String>, consequence: &str) -> Self {
        if holds { Verdict::ok(measured) } else { Verdict::failed(measured, consequence) }
    }
}

/// Where checks work. Each gets a plot: the same ground with a directory of its own.
pub(crate) struct Ground {
    /// The directory of the check.
    pub directory: PathBuf,
    pub fs_type: String,
    pub options: ContractOptions,
    pub store: Arc<PosixStore>,
    /// The whole ground is removed when this goes.
    keeper: Arc<Keeper>,
}

/// A check: its name, what it does, and what it means if the calls themselves fail.
pub(crate) struct Check {
    pub name: &'static str,
    pub run: fn(&Ground) -> io::Result<Verdict>,
    pub if_failed: &'static str,
}

struct Keeper {
    directory: PathBuf,
    removed: AtomicBool,
}

impl Keeper {
    fn remove(&self) -> io::Result<()> {
        if self.removed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // A file that was open when it was unlinked may leave a hidden one until it is closed.
        let mut result = Ok(());
        for _ in 0..3 {
            result = match fs::remove_dir_all(&self.directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => return Ok(()),
            };
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        result
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _told_by_clean_up = self.remove();
    }
}

fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

/// Removes what suites that were killed on this host left in `root`.
fn remove_stale(root: &Path) {
    let mine = format!("{PROBE_PREFIX}{}-", host());
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(&mine)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _left_for_the_next_run = fs::remove_dir_all(entry.path());
        }
    }
}

impl Ground {
    /// Makes the directory; the error has the type of the file system, as far as known.
    pub fn prepare(root: &Path, options: ContractOptions) -> Result<Ground, (String, Verdict)> {
        let fs_type = File::open(root)
            .and_then(|file| FileSystem::of(file.as_fd()))
            .map_or_else(|_| "unknown".to_owned(), |file_system| file_system.fs_type);
        let fail = |measured: String| {
            let consequence = "a node could only read here, or not start at all";
            (fs_type.clone(), Verdict::failed(measured, consequence))
        };
        // Opening the root itself first refuses what a node would refuse, with its remedy.
        PosixStore::open(root, PosixOptions { probe: false, ..PosixOptions::default() })
            .map_err(|error| fail(error.to_string()))?;
        remove_stale(root);
        let directory = root.join(format!("{PROBE_PREFIX}{}-{}", host(), std::process::id()));
        fs::create_dir(&directory).map_err(|error| fail(error.to_string()))?;
        let keeper =
            Arc::new(Keeper { directory: directory.clone(), removed: AtomicBool::new(false) });
        let store = PosixStore::open(&directory, PosixOptions::default())
            .map_err(|error| fail(error.to_string()))?;
        Ok(Ground { directory, fs_type, options, store, keeper })
    }

    /// A directory for one check.
    pub fn plot(&self, name: &str) -> io::Result<Ground> {
        let directory = self.directory.join(name);
        fs::create_dir(&directory)?;
        Ok(Ground {
            directory,
            fs_type: self.fs_type.clone(),
            options: self.options.clone(),
            store: self.store.clone(),
            keeper: self.keeper.clone(),
        })
    }

    /// Removes everything.
    pub fn remove(&self) -> Verdict {
        match self.keeper.remove() {
            Ok(()) => Verdict::ok("everything was removed"),
            Err(error) => Verdict::degraded(
                format!("{}: {error}", self.keeper.directory.display()),
                "remove this directory by hand",
            ),
        }
    }

    pub fn features(&self) -> &Features {
        self.store.features()
    }

    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.directory.join(name.as_ref())
    }

    /// A new file, open for reading and writing.
    pub fn create(&self, name: &str) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).open(self.path(name))
    }
}
