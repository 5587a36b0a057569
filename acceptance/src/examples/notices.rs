//! Reads in the logs of programs what they reported of a node that went away. Reads only the lines
//! added since the last call, because it is called often while jobs run.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// How the client library begins the line, once each time that it loses its node.
const WITHOUT_A_NODE: &str = "going on without a node";

/// The logs below a directory.
#[derive(Debug)]
pub struct Notices {
    directory: PathBuf,
    /// How much of each file was read: to the end of its last whole line.
    read_bytes: HashMap<PathBuf, u64>,
    found: u32,
}

impl Notices {
    /// Of all files below `directory`.
    pub fn of(directory: &Path) -> Self {
        Notices { directory: directory.to_owned(), read_bytes: HashMap::new(), found: 0 }
    }

    /// How often programs said until now that they go on without a node.
    pub fn count(&mut self) -> Result<u32> {
        let mut directories = vec![self.directory.clone()];
        while let Some(directory) = directories.pop() {
            // Directories of tasks come and go.
            let Ok(entries) = std::fs::read_dir(&directory) else { continue };
            for entry in entries {
                let entry = entry?;
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                    Ok(kind) if kind.is_file() => self.found += self.look_at(&entry.path()),
                    _ => {}
                }
            }
        }
        Ok(self.found)
    }

    fn look_at(&mut self, path: &Path) -> u32 {
        let read_bytes = self.read_bytes.entry(path.to_owned()).or_default();
        let mut added = Vec::new();
        let read = std::fs::File::open(path).and_then(|mut file| {
            if file.metadata()?.len() < *read_bytes {
                // Begun anew by the next program.
                *read_bytes = 0;
            }
            file.seek(SeekFrom::Start(*read_bytes))?;
            file.read_to_end(&mut added)
        });
        if read.is_err() {
            // It has gone with its task.
            return 0;
        }
        let whole = added.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        *read_bytes += whole as u64;
        let text = String::from_utf8_lossy(&added[..whole]);
        text.lines().filter(|line| line.contains(WITHOUT_A_NODE)).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::Notices;

    #[test]
    fn each_line_counts_once_and_when_it_is_whole() {
        let logs = tempfile::tempdir().unwrap();
        let mut notices = Notices::of(logs.path());
        assert_eq!(notices.count().unwrap(), 0);
        std::fs::create_dir(logs.path().join("task")).unwrap();
        let mut log = std::fs::File::create(logs.path().join("task/stderr")).unwrap();
        log.write_all(b"WARN going on without a node, at the speed\nWARN going on wi").unwrap();
        assert_eq!(notices.count().unwrap(), 1);
        log.write_all(b"thout a node\nthe node is back\n").unwrap();
        assert_eq!(notices.count().unwrap(), 2);
        assert_eq!(notices.count().unwrap(), 2);
        std::fs::write(logs.path().join("task/stderr"), "going on without a node\n").unwrap();
        assert_eq!(notices.count().unwrap(), 3, "the log was begun anew");
    }
}
