//! Names of files: `tide:///a/b` and paths of the parallel file system. Touches no file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use tidepool_proto::{Error, ErrorKind, Result};

const SCHEME: &[u8] = b"tide://";

/// A name as the user gave it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// Below the directory that `tide:///` stands for.
    Tide(PathBuf),
    /// A path of the machine.
    Plain(PathBuf),
}

fn invalid(path: &Path, detail: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("reading the name {}", path.display()), detail)
        .remedy("write tide:///directory/file, or a path of the parallel file system")
}

impl Name {
    /// Reads a name. Names of the parallel file system are bytes, so nothing is decoded.
    pub(crate) fn parse(path: &Path) -> Result<Name> {
        let bytes = path.as_os_str().as_bytes();
        let Some(rest) = bytes.strip_prefix(SCHEME) else {
            return Ok(Name::Plain(path.to_owned()));
        };
        let Some(relative) = rest.strip_prefix(b"/") else {
            return Err(invalid(path, "a tide name has no host: three slashes"));
        };
        let relative = Path::new(OsStr::from_bytes(relative));
        let mut clean = PathBuf::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => clean.push(name),
                Component::CurDir | Component::RootDir => {}
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(invalid(path, "`..` has no meaning in a tide name"));
                }
            }
        }
        if clean.as_os_str().is_empty() {
            return Err(invalid(path, "it names no file"));
        }
        Ok(Name::Tide(clean))
    }
}

/// Whether a path lies below `root`, as far as its text says.
pub(crate) fn is_below(path: &Path, root: &Path) -> bool {
    if path.is_absolute() {
        path.starts_with(root)
    } else {
        std::env::current_dir().is_ok_and(|directory| directory.join(path).starts_with(root))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tide(text: &str) -> Option<PathBuf> {
        match Name::parse(Path::new(text)) {
            Ok(Name::Tide(path)) => Some(path),
            _ => None,
        }
    }

    #[test]
    fn tide_names_stay_below_the_root() {
        assert_eq!(tide("tide:///a/b"), Some("a/b".into()));
        assert_eq!(tide("tide:////a/./b//c"), Some("a/b/c".into()));
        for text in ["tide://host/a", "tide:///../etc/passwd", "tide:///a/../../b", "tide:///"] {
            let error = Name::parse(Path::new(text)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        }
        let raw = OsStr::from_bytes(b"tide:///\xff%41");
        let expected = PathBuf::from(OsStr::from_bytes(b"\xff%41"));
        assert_eq!(Name::parse(Path::new(raw)).unwrap(), Name::Tide(expected));
        let plain = Name::parse(Path::new("/lustre/../x")).unwrap();
        assert_eq!(plain, Name::Plain("/lustre/../x".into()));
    }

    #[test]
    fn below_is_by_whole_components() {
        let root = Path::new("/lustre/project");
        assert!(is_below(Path::new("/lustre/project/a"), root));
        assert!(!is_below(Path::new("/lustre/projects/a"), root));
    }
}
