//! Where a cluster keeps what it is: the journal, and the plan once it is complete. One process at
//! a time works on it; the lock goes with the process, however that ends.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

use super::journal;
use super::plan::Plan;

/// States of all clusters; gone after the next boot, as the clusters are.
const ROOT: &str = "/run/tidepool-cluster";

/// The state of a cluster, held by this process.
#[derive(Debug)]
pub struct State {
    directory: PathBuf,
    // Dropped last.
    _lock: Option<File>,
}

impl State {
    /// Takes a name, whether it has a state or not.
    ///
    /// # Errors
    /// Where another process works on it.
    pub fn claim(name: &str) -> Result<Self> {
        let directory = Path::new(ROOT).join(name);
        loop {
            fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
            match lock(&directory, name)? {
                Some(lock) => return Ok(State { directory, _lock: Some(lock) }),
                None => continue,
            }
        }
    }

    /// Takes a name that has a state.
    ///
    /// # Errors
    /// Where another process works on it.
    pub fn find(name: &str) -> Result<Option<Self>> {
        let directory = Path::new(ROOT).join(name);
        if !directory.is_dir() {
            return Ok(None);
        }
        let lock = lock(&directory, name)?;
        Ok(lock.map(|lock| State { directory, _lock: Some(lock) }))
    }

    /// The state of a cluster that this process itself makes or has.
    pub fn reopen(name: &str) -> Result<Self> {
        Ok(State { directory: Path::new(ROOT).join(name), _lock: None })
    }

    /// The plan of a complete cluster.
    ///
    /// # Errors
    /// Where there is none of this name, with the remedy.
    pub fn plan(name: &str) -> Result<Plan> {
        let directory = Path::new(ROOT).join(name);
        let path = plan_file(&directory);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).context("the plan of the cluster"),
            Err(_) if directory.is_dir() => bail!(
                "cluster {name} is half-made: wait for its `up`, or ./x cluster --name {name} down"
            ),
            Err(_) => bail!("no cluster {name} is up: ./x cluster --name {name} up"),
        }
    }

    /// The journal's file.
    pub fn journal(&self) -> PathBuf {
        self.directory.join("journal")
    }

    /// Whether a cluster is up.
    pub fn is_complete(&self) -> bool {
        plan_file(&self.directory).exists()
    }

    /// Notes that a cluster is up.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn complete(&self, plan: &Plan) -> Result<()> {
        write_plan(&self.directory, plan)
    }

    /// Undoes what the journal says; the state stays.
    ///
    /// # Errors
    /// A journal that cannot be read or written.
    pub fn undo(&self) -> Result<Vec<String>> {
        journal::undo(&self.journal())
    }

    /// Undoes everything, and removes the state if that went well.
    ///
    /// # Errors
    /// A journal that cannot be read or written.
    pub fn remove(self) -> Result<Vec<String>> {
        // From now on it is half-made.
        let _ = fs::remove_file(plan_file(&self.directory));
        let problems = self.undo()?;
        if problems.is_empty() {
            let gone = fs::remove_dir_all(&self.directory);
            match gone {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error)?,
                _ => {}
            }
            // Only when no other cluster is in it.
            let _ = fs::remove_dir(ROOT);
        }
        Ok(problems)
    }
}

/// Notes a change of a cluster that is up.
///
/// # Errors
/// Where it cannot be written.
pub fn change(plan: &Plan) -> Result<()> {
    write_plan(&Path::new(ROOT).join(&plan.name), plan)
}

/// Whole or not at all.
fn write_plan(directory: &Path, plan: &Plan) -> Result<()> {
    let fresh = directory.join("plan.new");
    fs::write(&fresh, serde_json::to_string_pretty(plan)?)?;
    fs::rename(&fresh, plan_file(directory)).context("the plan of the cluster")
}

fn plan_file(directory: &Path) -> PathBuf {
    directory.join("plan.json")
}

/// Locks a state; none if it was removed meanwhile.
fn lock(directory: &Path, name: &str) -> Result<Option<File>> {
    let path = directory.join("lock");
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    let file = match opened {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        result => result.with_context(|| path.display().to_string())?,
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another command works on cluster {name}; wait for its end");
    }
    let same = fs::metadata(&path).is_ok_and(|found| {
        file.metadata().is_ok_and(|held| (held.dev(), held.ino()) == (found.dev(), found.ino()))
    });
    Ok(same.then_some(file))
}
