//! Reads a plain file as asked on standard input, one line a pass, and answers with the seconds it
//! took: the other side of measurements whose program is not in Rust. Measures nothing by itself.
//!
//! `sequential BYTES` reads the whole file in steps of so many bytes; `random BYTES COUNT SEED`
//! reads so many pieces of so many bytes, each at a multiple of its size.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, stdin};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;

/// Times reads of a plain file.
#[derive(Debug, Parser)]
struct Arguments {
    /// The file.
    file: PathBuf,
}

fn main() -> Result<()> {
    let file = File::open(Arguments::parse().file)?;
    let length = file.metadata()?.len();
    let mut buffer = Vec::new();
    for line in stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| -> Result<u64> {
            words.get(index).context("a number is missing")?.parse().context("no number")
        };
        buffer.resize(usize::try_from(number(1)?)?, 0);
        let started = Instant::now();
        match words.first() {
            Some(&"sequential") => sequential(&file, length, &mut buffer)?,
            Some(&"random") => random(&file, length, &mut buffer, number(2)?, number(3)?)?,
            _ => bail!("`{line}` is no pass"),
        }
        println!("{}", started.elapsed().as_secs_f64());
    }
    Ok(())
}

fn sequential(file: &File, length: u64, buffer: &mut [u8]) -> Result<()> {
    let mut offset = 0;
    while offset < length {
        let bytes = file.read_at(buffer, offset)?;
        black_box(&buffer);
        offset += bytes as u64;
    }
    Ok(())
}

fn random(file: &File, length: u64, buffer: &mut [u8], count: u64, seed: u64) -> Result<()> {
    let piece_bytes = buffer.len() as u64;
    let pieces = length / piece_bytes;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.read_exact_at(buffer, state % pieces * piece_bytes)?;
        black_box(&buffer);
    }
    Ok(())
}
