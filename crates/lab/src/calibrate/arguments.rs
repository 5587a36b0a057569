//! Arguments of `tidepool calibrate`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use tidepool_proto::ByteSize;

/// Arguments of `calibrate`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").multiple(true).required(true))]
pub struct CalibrateArguments {
    /// Measure the PFS in this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, group = "what")]
    pub pfs: Option<PathBuf>,
    /// Measure a local disk in this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, group = "what")]
    pub disk: Option<PathBuf>,
    /// Measure memory as the store serves it, with a node started for that
    #[arg(long, group = "what")]
    pub memory: bool,
    /// Measure the network to a listener on another node
    #[arg(long, value_name = "ADDRESS", group = "what")]
    pub network_to: Option<SocketAddr>,
    /// Be the listener, until interrupted
    #[arg(long, value_name = "ADDRESS", group = "what",
          conflicts_with_all = ["pfs", "disk", "memory", "network_to", "output"])]
    pub network_listen: Option<SocketAddr>,
    /// Write the calibration into this file [default: print it]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Bytes of the file that is written to --pfs and to --disk [default: 1GiB; with --cautious
    /// 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub bytes_max: Option<ByteSize>,
    /// Bytes of the file that memory is measured with
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub memory_bytes: ByteSize,
    /// Seconds of one repeat, after which it is cut off [default: 20; with --cautious 5]
    #[arg(long, value_name = "SECONDS")]
    pub seconds_max: Option<f64>,
    /// How often each figure is measured [default: 5; with --cautious 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: Option<u32>,
    /// Transfers and connections at a time
    #[arg(long, value_name = "COUNT", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub streams: u32,
    /// Move less and stop sooner
    #[arg(long)]
    pub cautious: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
