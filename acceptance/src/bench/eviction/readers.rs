//! The reading processes of the benchmark of eviction policies: each reads the ranges it is told,
//! one by one, so that all policies meet the same reads in the same order, also where two users
//! take turns.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use tidepool_patterns::Visit;

use crate::cleanup::{self, Guard};
use crate::{environment, process};

/// Bytes that one visit to a place reads at least.
pub const BLOCK_BYTES: u64 = 4 << 20;
/// Blocks of a file.
pub const FILE_BLOCKS: u64 = 4;
/// Another user than the one that runs this.
const OTHER: u32 = 54_321;

/// A running program.
#[derive(Debug)]
struct Reader {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    child: Child,
    kill: Option<Guard>,
}

impl Reader {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let process_id = child.id();
        let kill = cleanup::guard(move || process::signal(process_id, libc::SIGKILL));
        let input = child.stdin.take().context("its input is a pipe")?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        Ok(Reader { input, output, child, kill: Some(kill) })
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.input, "{line}")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.kill = None;
        // Killed just now.
        let _ = self.child.wait();
    }
}

/// What to tell a program for one range: its file, first byte and length.
type Words = Box<dyn Fn(&Path, u64, u64) -> String>;

/// The programs of one run, one a user.
pub struct Readers {
    readers: Vec<Reader>,
    directory: PathBuf,
    words: Words,
    answer: &'static str,
}

impl Readers {
    /// Plain programs on files below `directory`, or ones with the client library.
    pub fn native(directory: &Path, socket: Option<&Path>) -> Result<Self> {
        let start = |user: u32| {
            let mut command = Command::new(environment::target().join("release/bench-ranges"));
            if let Some(socket) = socket {
                command.arg("--socket").arg(socket);
            }
            if user != 0 && environment::is_root() {
                command.uid(user).gid(user);
            }
            Reader::start(&mut command)
        };
        let words =
            |path: &Path, offset: u64, bytes: u64| format!("{offset} {bytes} {}", path.display());
        Ok(Readers {
            readers: vec![start(0)?, start(OTHER)?],
            directory: directory.to_path_buf(),
            words: Box::new(words),
            answer: "ok",
        })
    }

    /// One virtual machine for both users: `command` starts `FsBench`.
    pub fn hadoop(command: &mut Command) -> Result<Self> {
        let words = |path: &Path, offset: u64, bytes: u64| {
            format!("range path=tide:///{} offset={offset} bytes={bytes}", path.display())
        };
        Ok(Readers {
            readers: vec![Reader::start(command)?],
            directory: PathBuf::new(),
            words: Box::new(words),
            answer: "RATE",
        })
    }

    /// Reads all ranges, one after another. Returns their bytes.
    pub fn read(&mut self, visits: &[Visit]) -> Result<u64> {
        let mut bytes = 0;
        for visit in visits {
            let path = self.directory.join(name(visit.block / FILE_BLOCKS));
            let length = visit.blocks * BLOCK_BYTES;
            let line = (self.words)(&path, visit.block % FILE_BLOCKS * BLOCK_BYTES, length);
            let number = visit.reader.min(self.readers.len() - 1);
            let answer = self.readers[number].ask(&line)?;
            anyhow::ensure!(answer.starts_with(self.answer), "{line}: {answer}");
            bytes += length;
        }
        Ok(bytes)
    }
}

/// Name of a file of the set.
pub fn name(file: u64) -> String {
    format!("eviction-{file}")
}
