//! The files that a command is about, given as a path on the PFS, below the mount, or as
//! `tide:///`. They are opened on the PFS with the caller's own rights; the node gets the
//! descriptor.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use tidepool_proto::admin::Status;
use tidepool_proto::{Error, ErrorKind, Result};

/// What to say of a directory in which nothing was found.
pub const NO_FILE: &str =
    "no file is there: is this the directory that you mean, and is it mounted?";

/// Where the node's files are.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The PFS directory.
    pub pfs: PathBuf,
    /// The mount, if there is one.
    pub mount: Option<PathBuf>,
}

/// A regular file, open for reading on the PFS.
#[derive(Debug)]
pub struct Target {
    /// Length in bytes when it was opened.
    pub size_bytes: u64,
    descriptor: OwnedFd,
}

impl Target {
    /// Opens a file by its path on the PFS; refuses what is not a regular file.
    pub fn open(path: &Path) -> Result<Target> {
        let failed = |source| Error::pfs(format!("opening {}", path.display()), source);
        // Opening a pipe for reading would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let descriptor = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let status = rustix::fs::fstat(&descriptor).map_err(failed)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            let operation = format!("opening {}", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, operation, "it is no regular file"));
        }
        Ok(Target { size_bytes: status.st_size as u64, descriptor })
    }

    /// The open file.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Roots {
    /// The roots of the node that answered with `status`.
    pub fn of(status: &Status) -> Roots {
        let path = |text: &String| PathBuf::from(OsStr::from_bytes(text.as_bytes()));
        Roots { pfs: path(&status.pfs), mount: status.mount.as_ref().map(path) }
    }

    /// The path on the PFS of what the user named.
    pub fn locate(&self, named: &Path) -> Result<PathBuf> {
        let found = self.find(named)?;
        // A link that cannot be followed is reported by the open.
        let (Ok(real), Ok(root)) = (found.canonicalize(), self.pfs.canonicalize()) else {
            return Ok(found);
        };
        if real.starts_with(root) {
            return Ok(found);
        }
        let detail = format!("it is a link that leads to {}", real.display());
        Err(self.refused(named, &detail))
    }

    fn find(&self, named: &Path) -> Result<PathBuf> {
        if let Some(below) = named.as_os_str().as_bytes().strip_prefix(b"tide://") {
            let below = PathBuf::from(std::ffi::OsString::from_vec(below.to_vec()));
            return self.below_root(named, below.strip_prefix("/").unwrap_or(&below));
        }
        let absolute = std::path::absolute(named)
            .map_err(|source| Error::pfs(format!("locating {}", named.display()), source))?;
        if let Some(found) = self.translate(&absolute) {
            return Ok(found);
        }
        // A symbolic link may lead here from elsewhere; only the part above the last name counts.
        let parent = absolute.parent().and_then(|parent| parent.canonicalize().ok());
        let resolved = match (parent, absolute.file_name()) {
            (Some(parent), Some(name)) => parent.join(name),
            _ => return Err(self.outside(named)),
        };
        let found = self.translate(&resolved).or_else(|| self.behind_link(&resolved));
        found.ok_or_else(|| self.outside(named))
    }

    /// The same where the node was given its directory by a symbolic link.
    fn behind_link(&self, resolved: &Path) -> Option<PathBuf> {
        let root = self.pfs.canonicalize().ok()?;
        resolved.strip_prefix(root).ok().map(|below| self.pfs.join(below))
    }

    fn below_root(&self, named: &Path, below: &Path) -> Result<PathBuf> {
        if below.components().any(|part| part == std::path::Component::ParentDir) {
            return Err(self.outside(named));
        }
        Ok(self.pfs.join(below))
    }

    fn translate(&self, absolute: &Path) -> Option<PathBuf> {
        if absolute.components().any(|part| part == std::path::Component::ParentDir) {
            return None;
        }
        if let Some(below) = self.mount.as_ref().and_then(|root| absolute.strip_prefix(root).ok()) {
            return Some(self.pfs.join(below));
        }
        absolute.starts_with(&self.pfs).then(|| absolute.to_owned())
    }

    fn outside(&self, named: &Path) -> Error {
        self.refused(named, "it does not belong to this node")
    }

    fn refused(&self, named: &Path, detail: &str) -> Error {
        let mount = self.mount.as_ref();
        let mount = mount.map(|path| format!(", below {}", path.display())).unwrap_or_default();
        let operation = format!("locating {}", named.display());
        Error::new(ErrorKind::InvalidInput, operation, detail)
            .remedy(format!("name a path below {}{mount}, or tide:///...", self.pfs.display()))
    }
}

/// The regular files that `paths` name; directories are walked if `recursive`, without following
/// symbolic links. What cannot be looked at is told to `failed` and left out.
pub fn files(
    roots: &Roots,
    paths: &[PathBuf],
    recursive: bool,
    failed: &mut dyn FnMut(Error),
) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for named in paths {
        let path = roots.locate(named)?;
        let operation = || format!("looking at {}", path.display());
        let metadata =
            std::fs::metadata(&path).map_err(|source| Error::pfs(operation(), source))?;
        if !metadata.is_dir() {
            found.push(path);
        } else if recursive {
            walk(&path, &mut found, failed);
        } else {
            return Err(Error::new(ErrorKind::InvalidInput, operation(), "it is a directory")
                .remedy("add -r to take all files below it"));
        }
    }
    Ok(found)
}

fn walk(top: &Path, found: &mut Vec<PathBuf>, failed: &mut dyn FnMut(Error)) {
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        let operation = || format!("reading the directory {}", directory.display());
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(source) => {
                failed(Error::pfs(operation(), source));
                continue;
            }
        };
        for entry in entries {
            match entry.and_then(|entry| entry.file_type().map(|kind| (entry.path(), kind))) {
                Ok((path, kind)) if kind.is_dir() => waiting.push(path),
                Ok((path, kind)) if kind.is_file() => found.push(path),
                Ok(_) => {}
                Err(source) => failed(Error::pfs(operation(), source)),
            }
        }
    }
    found.sort();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots() -> Roots {
        Roots { pfs: "/pfs".into(), mount: Some("/mnt/tide".into()) }
    }

    #[test]
    fn all_three_kinds_of_names_lead_to_the_pfs() {
        for named in ["/pfs/a/b", "/mnt/tide/a/b", "tide:///a/b", "/mnt/tide//a/./b"] {
            let found = roots().locate(Path::new(named)).unwrap();
            assert_eq!(found, Path::new("/pfs/a/b"), "{named}");
        }
        assert_eq!(roots().locate(Path::new("tide:///")).unwrap(), Path::new("/pfs/"));
    }

    #[test]
    fn names_outside_are_refused() {
        for named in ["/etc/passwd", "/pfsx/a", "tide:///../etc/passwd", "/pfs/../etc/passwd"] {
            let message = roots().locate(Path::new(named)).unwrap_err().to_string();
            assert!(message.contains("does not belong to this node"), "{named}: {message}");
        }
    }

    #[test]
    fn files_of_a_directory_that_is_named_by_a_link_are_found_by_all_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("real/below")).unwrap();
        std::fs::write(top.join("real/below/file"), "x").unwrap();
        std::os::unix::fs::symlink(top.join("real"), top.join("link")).unwrap();
        let roots = Roots { pfs: top.join("link"), mount: None };
        for named in ["real/below/file", "link/below/file", "real/../link/below/file"] {
            let found = roots.locate(&top.join(named)).unwrap();
            assert_eq!(found, top.join("link/below/file"), "{named}");
        }
        assert!(roots.locate(&top.join("elsewhere")).is_err());
    }

    #[test]
    fn a_link_that_leads_out_is_refused_and_one_that_stays_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("pfs")).unwrap();
        std::fs::write(top.join("other"), "x").unwrap();
        std::fs::write(top.join("pfs/file"), "x").unwrap();
        let roots = Roots { pfs: top.join("pfs"), mount: None };
        for (name, target) in [("out", "other"), ("inside", "pfs/file"), ("dangling", "none")] {
            std::os::unix::fs::symlink(top.join(target), top.join("pfs").join(name)).unwrap();
        }
        let message = roots.locate(&top.join("pfs/out")).unwrap_err().to_string();
        assert!(
            message.contains("a link that leads to ") && message.contains("other"),
            "{message}"
        );
        assert!(roots.locate(Path::new("tide:///out")).is_err());
        assert_eq!(roots.locate(&top.join("pfs/inside")).unwrap(), top.join("pfs/inside"));
        assert!(roots.locate(Path::new("tide:///dangling")).is_ok(), "told at its opening");
    }

    #[test]
    fn directories_need_the_flag_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("d")).unwrap();
        std::fs::write(top.join("d/file"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", top.join("d/link")).unwrap();
        let roots = Roots { pfs: top.clone(), mount: None };
        let mut none = |error: Error| panic!("{error}");
        let named = [top.join("d")];
        let refused = files(&roots, &named, false, &mut none).unwrap_err().to_string();
        assert!(refused.contains("add -r"), "{refused}");
        let found = files(&roots, &named, true, &mut none).unwrap();
        assert_eq!(found, [top.join("d/file")]);
        assert!(Target::open(&top.join("d")).is_err());
        assert_eq!(Target::open(&found[0]).unwrap().size_bytes, 1);
    }
}
