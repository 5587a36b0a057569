//! Reads a small file that other users may have put there: anything but a regular file, such as a
//! pipe, is refused instead of waited for.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// More than any file that is read here takes.
const BYTES_MAX: u64 = 1 << 20;

/// The text of the file at `path`; `InvalidData` where it is no regular file of at most a MiB.
pub fn read_text(path: &Path) -> Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let facts = file.metadata()?;
    if !facts.is_file() || facts.len() > BYTES_MAX {
        let what = format!("it is no regular file of at most {BYTES_MAX} bytes");
        return Err(Error::new(ErrorKind::InvalidData, what));
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
