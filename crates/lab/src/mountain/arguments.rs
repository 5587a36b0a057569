//! Arguments of `tidepool bench mountain`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use tidepool_model::BytesPerSecond;
use tidepool_proto::ByteSize;

/// How the file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The client library.
    Library,
    /// The mount.
    Mount,
}

/// Arguments of `bench mountain`.
#[derive(Args, Debug)]
pub struct MountainArguments {
    /// Directory of the PFS to measure in; a node is started for it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
          required_unless_present = "socket", conflicts_with = "socket")]
    pub pfs: Option<PathBuf>,
    /// Measure with the node at this socket; only the files of the measurement are evicted
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Directory for results and pictures; a measurement that was interrupted goes on there
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: PathBuf,
    /// About two minutes on a small machine: less capacity, fewer points and repeats
    #[arg(long)]
    pub quick: bool,
    /// Capacity of the store [default: 1GiB; with --quick 256MiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "socket")]
    pub memory: Option<ByteSize>,
    /// Data sizes, separated by commas [default: parts and multiples of the capacity]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pub sizes: Vec<ByteSize>,
    /// Skips, separated by commas [default: from 0 to 64MiB]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pub skips: Vec<ByteSize>,
    /// Timed passes a point [default: 5; with --quick 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: Option<u32>,
    /// Seconds a point; where passes take longer, fewer are made, at least one
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds_max: u64,
    /// How the file is read
    #[arg(long, value_enum, default_value = "library")]
    pub via: Via,
    /// Hold the PFS to this rate, to see what a slower one would give
    #[arg(long, value_name = "RATE", conflicts_with = "socket")]
    pub pfs_rate: Option<BytesPerSecond>,
    /// Farthest that the node reads ahead [default: the node's own]
    #[arg(long, value_name = "SIZE", conflicts_with = "socket")]
    pub read_ahead: Option<ByteSize>,
    /// Leave out the check of equation (7) at f = 0, 0.25, 0.5, 0.75 and 1
    #[arg(long)]
    pub no_shares: bool,
    /// Only the check of equation (7), without the mountain
    #[arg(long, conflicts_with_all = ["no_shares", "socket", "sizes", "skips", "via"])]
    pub shares_only: bool,
    /// Begin anew although the directory holds results
    #[arg(long)]
    pub fresh: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
