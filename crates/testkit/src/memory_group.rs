//! A control group with a limit of memory, in whichever version of the hierarchy counts memory
//! here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let Some((top, limit_file)) = mounts.lines().find_map(hierarchy) else {
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

/// Where a line of `mountinfo` mounts a hierarchy that counts memory, and the file of its limits.
fn hierarchy(line: &str) -> Option<(PathBuf, &'static str)> {
    let (before, after) = line.split_once(" - ")?;
    let top = Path::new(before.split(' ').nth(4)?);
    let mut after = after.split(' ');
    match (after.next()?, after.nth(1)?) {
        ("cgroup", options) if options.split(',').any(|name| name == "memory") => {
            Some((top.to_path_buf(), "memory.limit_in_bytes"))
        }
        ("cgroup2", _) => {
            // Beside hierarchies of version 1 it may be there and control nothing.
            let controllers = fs::read_to_string(top.join("cgroup.controllers")).ok()?;
            let counts = controllers.split_whitespace().any(|name| name == "memory");
            counts.then(|| (top.to_path_buf(), "memory.max"))
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

    #[test]
    fn a_hierarchy_that_controls_nothing_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().display().to_string();
        let line = format!("36 25 0:33 / {top} rw,relatime - cgroup2 cgroup2 rw");
        assert_eq!(hierarchy(&line), None);
        fs::write(directory.path().join("cgroup.controllers"), "hugetlb\n").unwrap();
        assert_eq!(hierarchy(&line), None);
        fs::write(directory.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(hierarchy(&line), Some((directory.path().to_path_buf(), "memory.max")));
        let line = format!("30 25 0:26 / {top} rw - cgroup cgroup rw,memory");
        let found = hierarchy(&line);
        assert_eq!(found, Some((directory.path().to_path_buf(), "memory.limit_in_bytes")));
        assert_eq!(hierarchy("30 25 0:26 / /x rw - cgroup cgroup rw,cpu"), None);
        assert_eq!(hierarchy("garbage"), None);
    }
}
