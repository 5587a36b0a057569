//! Reads files by the client library again and again and compares every byte with what the lower
//! level had at the start, until its input ends; then prints how many files it read. Ends with an
//! error at the first byte that differs. Nobody may change the files meanwhile.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;
use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_proto::BytesByLevel;

/// Positioned reads have this length, and the last one of a file is shorter.
const READ_BYTES: usize = 300_000;

/// Compares files read by the library with the lower level.
#[derive(Debug, Parser)]
struct Arguments {
    /// Socket of the node.
    #[arg(long)]
    socket: PathBuf,
    /// Files on the lower level.
    files: Vec<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut expected = Vec::new();
    for file in &arguments.files {
        let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
        expected.push((file, bytes));
    }
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::Release);
    });
    let options = ClientOptions { socket: Some(arguments.socket), ..ClientOptions::default() };
    let client = Client::connect(options);
    let (mut levels, mut files) = (BytesByLevel::default(), 0_u64);
    while !over.load(Ordering::Acquire) {
        for (path, bytes) in &expected {
            let file = client.open(path, OpenOptions::read())?;
            let mut buffer = vec![0; READ_BYTES];
            for (index, piece) in bytes.chunks(READ_BYTES).enumerate() {
                let offset = (index * READ_BYTES) as u64;
                let outcome = file.read_at(offset, &mut buffer)?;
                levels.merge(&outcome.levels);
                let found = &buffer[..outcome.bytes];
                ensure!(found == piece, "{}: wrong bytes from {offset} on", path.display());
            }
            files += 1;
        }
    }
    println!("{}", json!({ "files": files, "levels": levels }));
    Ok(())
}
