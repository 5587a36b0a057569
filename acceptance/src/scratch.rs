//! Directories that go away at the end, also after Ctrl-C. Never one with something mounted below:
//! removing its files would remove those of the mount.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cleanup::{self, Guard};

/// A new directory, removed with all that is in it when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _remove: Guard,
}

impl Scratch {
    /// With a short path, for mount points and sockets: a socket's path has 107 bytes at most.
    pub fn short() -> Result<Self> {
        Self::below(&std::env::temp_dir())
    }

    /// Below `base`, which is made if need be.
    pub fn below(base: &Path) -> Result<Self> {
        std::fs::create_dir_all(base).with_context(|| base.display().to_string())?;
        // Other users must get to what is mounted in it.
        let permissions = Permissions::from_mode(0o755);
        let directory =
            tempfile::Builder::new().prefix("tp").permissions(permissions).tempdir_in(base)?;
        let path = directory.keep();
        let remove = path.clone();
        let guard = cleanup::guard(move || remove_all(&remove));
        Ok(Scratch { path, _remove: guard })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn remove_all(path: &Path) {
    if let Some(mount) = mount_below(path) {
        eprintln!("x: {} stays, because {} is still mounted", path.display(), mount.display());
    } else if let Err(error) = std::fs::remove_dir_all(path) {
        eprintln!("x: {}: {error}", path.display());
    }
}

pub(crate) fn mount_below(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let text = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = text.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    mounts.into_iter().find(|mount| mount.starts_with(&path))
}

#[cfg(test)]
mod tests {
    use super::{Scratch, mount_below};

    #[test]
    fn it_goes_away_and_mounts_are_seen() {
        let scratch = Scratch::short().unwrap();
        let path = scratch.path().to_path_buf();
        std::fs::write(path.join("file"), "x").unwrap();
        assert_eq!(mount_below(&path), None);
        drop(scratch);
        assert!(!path.exists());
        assert!(mount_below("/".as_ref()).is_some());
    }
}
