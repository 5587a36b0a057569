//! User and password of a store's server, from a file that only its owner can read.
//!
//! Passwords never stand in the configuration itself, and never in a message.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tidepool_proto::{Error, ErrorKind, Result};

/// What a server asks for before it obeys.
pub(crate) struct Credentials {
    pub user: Option<String>,
    pub password: String,
}

impl Credentials {
    /// Reads `user:password`, or a password alone, from the first line of a file.
    pub fn read(path: &Path) -> Result<Self> {
        let operation = || format!("reading the password file {}", path.display());
        let wrong = |what: &str, remedy: &str| {
            Error::new(ErrorKind::InvalidInput, operation(), what).remedy(remedy)
        };
        let failed = |error| Error::new(ErrorKind::InvalidInput, operation(), "").caused_by(error);
        let facts = std::fs::metadata(path).map_err(failed)?;
        if facts.mode() & 0o077 != 0 {
            return Err(wrong("other users can read it", "chmod 600"));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let line = text.lines().next().unwrap_or_default();
        let (user, password) = match line.split_once(':') {
            Some((user, password)) => (Some(user.to_owned()), password),
            None => (None, line),
        };
        if password.is_empty() || line.contains(char::is_whitespace) {
            return Err(wrong("no password in its first line", "write `user:password`"));
        }
        Ok(Credentials { user, password: password.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_password_is_read_from_a_private_file_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cases =
            [("u:p:q\n", Some(Some("u"))), ("secret", Some(None)), ("", None), ("a b", None)];
        for (text, expected) in cases {
            std::fs::write(file.path(), text).unwrap();
            let read = Credentials::read(file.path()).ok();
            assert_eq!(read.as_ref().map(|read| read.user.as_deref()), expected, "{text:?}");
        }
        std::fs::write(file.path(), "secret").unwrap();
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o644)).unwrap();
        assert!(Credentials::read(file.path()).is_err());
    }
}
