//! A control group with a limit of memory, in whichever version of the hierarchy counts memory
//! here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidepool_proto::mounts::{Mount, MountTable};

use crate::machine::Missing;

/// A group; removed when dropped.
#[derive(Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    limit_file: &'static str,
}

impl MemoryGroup {
    /// Makes a group below the top of the hierarchy.
    ///
    /// # Errors
    /// Where no hierarchy counts memory, or this user may make no group.
    pub fn create(limit_bytes: u64) -> Result<Self, Missing> {
        let mounts = MountTable::read().unwrap_or_default();
        let Some((top, limit_file)) = mounts.mounts().find_map(hierarchy) else {
            return Err(Missing("no control groups with a memory controller".into()));
        };
        let failed = |error: std::io::Error| Missing(format!("cannot make a group: {error}"));
        if limit_file == "memory.max" {
            // In version 2 a group counts only what its parent lets its children count.
            fs::write(top.join("cgroup.subtree_control"), "+memory").map_err(failed)?;
        }
        let path = top.join(format!("tidepool-test-{}", std::process::id()));
        fs::create_dir(&path).map_err(failed)?;
        let group = MemoryGroup { path, limit_file };
        fs::write(group.path.join(limit_file), limit_bytes.to_string()).map_err(failed)?;
        Ok(group)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the file with its limit.
    pub fn limit_file(&self) -> &'static str {
        self.limit_file
    }
}

/// Where a hierarchy that counts memory is mounted, and the file of its limits.
fn hierarchy(mount: Mount<'_>) -> Option<(PathBuf, &'static str)> {
    let top = mount.point();
    match &*mount.kind() {
        "cgroup" if mount.has_option("memory") => Some((top, "memory.limit_in_bytes")),
        "cgroup2" => {
            // Beside hierarchies of version 1 it may be there and control nothing.
            let controllers = fs::read_to_string(top.join("cgroup.controllers")).ok()?;
            let counts = controllers.split_whitespace().any(|name| name == "memory");
            counts.then_some((top, "memory.max"))
        }
        _ => None,
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The group of a process that just ended may be busy for a moment.
        for _ in 0..200 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(line: &str) -> Option<(PathBuf, &'static str)> {
        MountTable::from_text(line).mounts().find_map(hierarchy)
    }

    #[test]
    fn a_hierarchy_that_controls_nothing_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().display().to_string();
        let line = format!("36 25 0:33 / {top} rw,relatime - cgroup2 cgroup2 rw");
        assert_eq!(place(&line), None);
        fs::write(directory.path().join("cgroup.controllers"), "hugetlb\n").unwrap();
        assert_eq!(place(&line), None);
        fs::write(directory.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(place(&line), Some((directory.path().to_path_buf(), "memory.max")));
        let line = format!("30 25 0:26 / {top} rw - cgroup cgroup rw,memory");
        let found = place(&line);
        assert_eq!(found, Some((directory.path().to_path_buf(), "memory.limit_in_bytes")));
        assert_eq!(place("30 25 0:26 / /x rw - cgroup cgroup rw,cpu"), None);
    }
}
