//! Arguments of `tidepool bench compare`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use tidepool_proto::ByteSize;

/// What one thread does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Reads one file from start to end, 1 MiB at a time.
    Sequential,
    /// Reads 4 KiB at random places of one file.
    Random,
    /// Opens, reads and closes file after file of 1 MiB.
    Scan,
    /// Writes a new file, 1 MiB at a time, and closes it as durably as the way promises.
    Write,
}

impl Pattern {
    /// The stable name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Sequential => "sequential",
            Pattern::Random => "random",
            Pattern::Scan => "scan",
            Pattern::Write => "write",
        }
    }
}

/// Arguments of `bench compare`.
#[derive(Args, Debug)]
pub struct CompareArguments {
    /// Directory of the PFS to measure in, with a node of its own, instead of the node at --socket
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub pfs: Option<PathBuf>,
    /// Bytes that each pattern reads or writes
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub size: ByteSize,
    /// Rounds; each measures every way once, in changing order
    #[arg(long, value_name = "COUNT", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Measure these patterns only, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    pub pattern: Vec<Pattern>,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: tidepool_cli::arguments::Facts,
}
