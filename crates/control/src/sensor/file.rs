//! A file of the kernel that is read again and again: opened once, read by `pread` into a buffer
//! that stays. Refuses to hand out anything when a read failed.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Files of `/proc` and `/sys` that are longer than this are cut off; their parsers survive it.
const LENGTH_MAX_BYTES: usize = 4 << 20;
/// A file that is not there is looked for at every so many readings only: looking costs more than
/// reading.
const LOOK_EVERY: u32 = 16;

/// One file and the bytes of its last reading.
pub(crate) struct SensorFile {
    path: PathBuf,
    file: Option<File>,
    /// Readings since the file was looked for in vain.
    missed: u32,
    buffer: Vec<u8>,
    /// Whether a reading that leaves room in the buffer is all of it.
    is_single: bool,
}

impl SensorFile {
    /// The file at `path`, which need not exist. `buffer_bytes` is what it usually holds.
    pub fn new(path: impl Into<PathBuf>, buffer_bytes: usize) -> Self {
        let path = path.into();
        let file = File::open(&path).ok();
        let buffer = vec![0; buffer_bytes.max(64)];
        SensorFile { path, file, missed: 0, buffer, is_single: false }
    }

    /// A file that the kernel writes in one piece: asking for more after it would be in vain.
    pub fn single(path: impl Into<PathBuf>, buffer_bytes: usize) -> Self {
        SensorFile { is_single: true, ..SensorFile::new(path, buffer_bytes) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its present content, or `None` where it is missing or cannot be read. A descriptor that went
    /// bad (a removed control group) is opened anew once.
    pub fn read(&mut self) -> Option<&[u8]> {
        let length = match self.fill() {
            Some(length) => length,
            None => {
                if self.file.is_none() {
                    self.missed += 1;
                    if self.missed < LOOK_EVERY {
                        return None;
                    }
                    self.missed = 0;
                }
                self.file = File::open(&self.path).ok();
                self.fill()?
            }
        };
        Some(&self.buffer[..length])
    }

    /// Reads until the end: files made of several records come in pieces.
    fn fill(&mut self) -> Option<usize> {
        let file = self.file.as_ref()?.as_fd();
        let mut length = 0;
        loop {
            if length == self.buffer.len() {
                if length >= LENGTH_MAX_BYTES {
                    return Some(length);
                }
                self.buffer.resize(length * 2, 0);
            }
            match rustix::io::pread(file, &mut self.buffer[length..], length as u64) {
                Ok(0) => return Some(length),
                Ok(read) => {
                    length += read;
                    if self.is_single && length < self.buffer.len() {
                        return Some(length);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}
