//! Socket and directory of the node from its configuration file, for the time when no node answers.
//! A file that is missing or cannot be read gives neither: the node itself reports its mistakes.

use std::path::{Path, PathBuf};

/// Where the service of a machine has its configuration.
const SYSTEM_FILE: &str = "/etc/tidepool/node.toml";

/// Socket and directory of a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFile {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) pfs: Option<PathBuf>,
}

/// Reads the file that `TIDEPOOL_CONFIG` names, or that of the machine.
pub(crate) fn read() -> NodeFile {
    let named = std::env::var_os("TIDEPOOL_CONFIG").filter(|name| !name.is_empty());
    read_from(Path::new(&named.unwrap_or_else(|| SYSTEM_FILE.into())))
}

fn read_from(path: &Path) -> NodeFile {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let of = |name: &str| table.get(name).and_then(toml::Value::as_str).map(PathBuf::from);
    NodeFile { socket: of("socket"), pfs: of("pfs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_and_directory_are_found_and_mistakes_say_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("node.toml");
        assert_eq!(read_from(&file), NodeFile::default());
        std::fs::write(&file, "pfs = \"/lustre\"\nmemory = \"50%\"\n[[rule]]\npath = \"a\"\n")
            .unwrap();
        assert_eq!(read_from(&file), NodeFile { socket: None, pfs: Some("/lustre".into()) });
        std::fs::write(&file, "pfs = ").unwrap();
        assert_eq!(read_from(&file), NodeFile::default());
    }
}
