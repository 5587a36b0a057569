//! Files of properties: `name = value` a line, as Kafka's own programs have them. Names are those
//! of librdkafka.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tidepool_proto::{Error, ErrorKind, Result};

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
const OTHERS_READ: u32 = 0o004;

/// What a file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Names with their values, in the order of the file.
    pub list: Vec<(String, String)>,
    /// What its owner should know, if anything.
    pub warning: Option<String>,
}

/// Reads a file.
///
/// # Errors
/// Where it cannot be read, or a line is none; values, which may be secrets, are not told.
pub fn read(path: &Path) -> Result<Properties> {
    let operation = || format!("reading {}", path.display());
    let failed = |error| Error::pfs(operation(), error);
    let facts = std::fs::metadata(path).map_err(failed)?;
    if facts.len() > FILE_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            operation(),
            "it is no file of properties",
        ));
    }
    let list = parse(&std::fs::read_to_string(path).map_err(failed)?)
        .map_err(|why| Error::new(ErrorKind::InvalidInput, operation(), why))?;
    let is_secret = list.iter().any(|(name, _)| name.contains("password"));
    let is_open = is_secret && facts.mode() & OTHERS_READ != 0;
    let warning = is_open.then(|| {
        let path = path.display();
        format!("every user of this machine can read the password in {path}: chmod 600 {path}")
    });
    Ok(Properties { list, warning })
}

fn parse(text: &str) -> std::result::Result<Vec<(String, String)>, String> {
    let mut list = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!("line {} is no `name = value`", number + 1));
        };
        list.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn lines_are_names_and_values() {
        let text = "# TLS\nsecurity.protocol = SASL_SSL\n\n sasl.password=a=b \n";
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = vec![pair("security.protocol", "SASL_SSL"), pair("sasl.password", "a=b")];
        assert_eq!(parse(text), Ok(expected));
        let error = parse("a = 1\nsecret").unwrap_err();
        assert!(error.contains("line 2") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_password_that_everybody_reads_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "sasl.password = x\n").unwrap();
        let chmod = |mode| {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        chmod(0o600);
        assert_eq!(read(file.path()).unwrap().warning, None);
        chmod(0o644);
        assert!(read(file.path()).unwrap().warning.unwrap().contains("chmod 600"));
        assert!(read(Path::new("/nowhere")).is_err());
    }
}
