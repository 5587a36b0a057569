//! The directory that a node mounts at: made where it is missing, and then removed when the node
//! ends, so that a mistyped name leaves nothing behind.

use std::path::{Path, PathBuf};

use tidepool_proto::{Error, ErrorKind, Result};

/// A directory to mount at.
pub struct MountPoint {
    path: PathBuf,
    /// What was made, the outermost first.
    made: Vec<PathBuf>,
    hides_files: bool,
}

impl MountPoint {
    /// Makes the directory if it is missing. A dead mount on it stays until the new one is ready.
    pub fn prepare(path: &Path) -> Result<MountPoint> {
        let failed = |source| {
            Error::pfs(format!("preparing the mount point {}", path.display()), source)
                .remedy("give --mount a directory that this user may write to, or make it first")
        };
        // It would be made on the PFS, and could not be removed once the other node has ended.
        if let Some(around) = tidepool_fuse::mount_around(path)? {
            let operation = format!("preparing the mount point {}", path.display());
            let detail = format!("it lies in {}, the mount of another node", around.display());
            return Err(Error::new(ErrorKind::InvalidInput, operation, detail)
                .remedy("mount outside of the mounts of other nodes"));
        }
        let mut point = MountPoint { path: path.to_owned(), made: Vec::new(), hides_files: false };
        let is_missing = |path: &&Path| {
            std::fs::symlink_metadata(path)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        let mut missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        if !missing.is_empty() {
            missing.reverse();
            for directory in missing {
                std::fs::create_dir(directory).map_err(failed)?;
                point.made.push(directory.to_owned());
            }
            return Ok(point);
        }
        if tidepool_fuse::is_stale(path)? {
            tracing::warn!(mount = %path.display(), "a node that died left its mount");
            return Ok(point);
        }
        if !std::fs::metadata(path).map_err(failed)?.is_dir() {
            let operation = format!("preparing the mount point {}", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, operation, "it is no directory")
                .remedy("give --mount a directory, or a path that does not exist yet"));
        }
        // What cannot be listed cannot be warned of.
        point.hides_files = std::fs::read_dir(path).is_ok_and(|mut names| names.next().is_some());
        Ok(point)
    }

    /// What the user that started the node may not have meant.
    pub fn notes(&self) -> Vec<String> {
        let path = self.path.display();
        let made = format!("made the directory {path}; it goes when the node stops");
        let hidden = format!("files in {path} are hidden until the node stops");
        let notes = [(!self.made.is_empty(), made), (self.hides_files, hidden)];
        notes.into_iter().filter(|(holds, _)| *holds).map(|(_, note)| note).collect()
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        for directory in self.made.iter().rev() {
            // One that is in use by now, or has files in it, stays.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MountPoint;

    #[test]
    fn what_was_made_goes_and_what_was_there_stays() {
        let top = tempfile::tempdir().unwrap();
        let place = top.path().join("a/b");
        let point = MountPoint::prepare(&place).unwrap();
        assert!(place.is_dir());
        assert!(point.notes()[0].contains("made the directory"), "{:?}", point.notes());
        drop(point);
        assert!(!top.path().join("a").exists());
        std::fs::create_dir_all(&place).unwrap();
        let point = MountPoint::prepare(&place).unwrap();
        assert!(point.notes().is_empty(), "{:?}", point.notes());
        drop(point);
        std::fs::write(place.join("file"), "").unwrap();
        let point = MountPoint::prepare(&place).unwrap();
        assert!(point.notes()[0].contains("hidden"), "{:?}", point.notes());
        drop(point);
        assert!(place.join("file").exists());
    }
}
