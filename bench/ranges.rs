//! Reads ranges of files, one after another, as it is told on its standard input: through the
//! client library, or as a plain program where no socket is given. A file stays open until
//! another one is read. Answers each line with `ok`; judges nothing.

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use tidepool_client::{Client, ClientOptions, OpenOptions};

const PIECE_BYTES: usize = 1 << 20;

/// Reads lines of `OFFSET BYTES PATH`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Socket of the node; without it, files are read by system calls.
    #[arg(long)]
    socket: Option<PathBuf>,
}

/// An open file.
enum Open {
    Plain(File),
    Library(tidepool_client::File),
}

impl Open {
    fn path(path: &Path, client: Option<&Client>) -> Result<Open> {
        Ok(match client {
            Some(client) => Open::Library(client.open(path, OpenOptions::read())?),
            None => Open::Plain(File::open(path)?),
        })
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match self {
            Open::Plain(file) => file.read_exact_at(buffer, offset)?,
            Open::Library(file) => {
                let outcome = file.read_at(offset, buffer)?;
                anyhow::ensure!(outcome.bytes == buffer.len(), "short read at {offset}");
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let options = ClientOptions { socket: arguments.socket.clone(), ..ClientOptions::default() };
    let client = arguments.socket.is_some().then(|| Client::connect(options));
    let mut open: Option<(PathBuf, Open)> = None;
    let mut buffer = vec![0; PIECE_BYTES];
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().context("a line is OFFSET BYTES PATH");
        let (offset, bytes): (u64, u64) = (word()?.parse()?, word()?.parse()?);
        let path = PathBuf::from(word()?);
        if open.as_ref().is_none_or(|(known, _)| *known != path) {
            // As a program does: the last one is closed before.
            drop(open.take());
            let file = Open::path(&path, client.as_ref())?;
            open = Some((path, file));
        }
        let (_, file) = open.as_ref().context("opened above")?;
        let mut at = offset;
        while at < offset + bytes {
            let length = PIECE_BYTES.min(usize::try_from(offset + bytes - at)?);
            file.read(at, &mut buffer[..length])?;
            at += length as u64;
        }
        println!("ok");
        std::io::stdout().flush()?;
    }
    Ok(())
}
