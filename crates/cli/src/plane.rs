//! The commands of the cluster plane and their arguments. What they do is in a program of its own,
//! `tidepool-plane`, which has Kafka's client; `tidepool` hands them over to it.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tidepool_proto::Result;
use tidepool_terminal::exit::Outcome;

use crate::companion::Companion;
use crate::connection::SocketArgument;
use crate::facts::Facts;

const PLANE: Companion = Companion {
    program: "tidepool-plane",
    remedy: "install it: package tidepool-plane, or `./x build` in the sources",
};

/// Goes on as the program of the plane, with the arguments behind `plane`. Returns only if it is
/// not there.
///
/// # Errors
/// `Unsupported` where it is not installed, or what is installed as it is this program.
pub fn hand_over() -> Result<Outcome> {
    PLANE.hand_over(2)
}

/// Commands of the cluster plane.
#[derive(Debug, Subcommand)]
pub enum PlaneCommand {
    /// Send samples of this node to Kafka, and hold it below the ceilings that come back
    Agent(Box<AgentArguments>),
    /// Show what the agent of this node has sent, taken and refused
    Status(Facts),
    /// Show the plane's own state: nodes, ceilings and alarms of the whole site, as the job says
    Site(SiteArguments),
}

/// Longest name of a node or a cluster, as in DNS.
const NAME_BYTES_MAX: usize = 253;
/// Longest name of a rack.
const RACK_BYTES_MAX: usize = 128;

/// Arguments of `plane agent`.
#[derive(Args, Clone, Debug)]
pub struct AgentArguments {
    /// Brokers of Kafka
    #[arg(long, value_name = "HOST:PORT,...")]
    pub kafka: String,
    /// Name of the cluster that this node is of
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub cluster: String,
    /// Name of this node in samples and ceilings [default: the name of the host]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// Rack of this node, for sums
    #[arg(long, value_name = "NAME", value_parser = rack)]
    pub rack: Option<String>,
    /// Where the node is.
    #[command(flatten)]
    pub socket: SocketArgument,
    /// Time between two samples in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub interval_ms: u64,
    /// Samples in one message while nothing moves [default: those of a second, 10 at most]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    pub batch: Option<u64>,
    /// Send the sample with the least available memory of so many milliseconds instead
    #[arg(long, value_name = "MS", conflicts_with = "no_samples")]
    #[arg(value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub summary_ms: Option<u64>,
    /// Send no samples, because collectd does; take ceilings alone
    #[arg(long)]
    pub no_samples: bool,
    /// What a broker must have done before a sample counts as sent
    #[arg(long, value_name = "WHAT", default_value = "1")]
    pub acks: Acks,
    /// More properties of Kafka's client (librdkafka), one `name = value` a line: TLS, SASL
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub kafka_properties: Option<PathBuf>,
    /// Topic of the samples
    #[arg(long, value_name = "NAME", default_value = "tidepool-samples", value_parser = name)]
    pub samples_topic: String,
    /// Topic of the ceilings
    #[arg(long, value_name = "NAME", default_value = "tidepool-ceilings", value_parser = name)]
    pub ceilings_topic: String,
}

/// Arguments of `plane site`.
#[derive(Args, Clone, Debug)]
pub struct SiteArguments {
    /// Brokers of Kafka
    #[arg(long, value_name = "HOST:PORT,...")]
    pub kafka: String,
    /// More properties of Kafka's client (librdkafka), one `name = value` a line: TLS, SASL
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub kafka_properties: Option<PathBuf>,
    /// Topic of the summaries
    #[arg(long, value_name = "NAME", default_value = "tidepool-summaries", value_parser = name)]
    pub summaries_topic: String,
    /// How many sites, racks and jobs are shown, those with the most demand first
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub top: u16,
    /// Show it again every second, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// Print JSON; with --watch a line each second
    #[arg(long)]
    pub json: bool,
    /// Print metrics as Prometheus reads them, for the text files of its node exporter
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub metrics: bool,
}

/// What a broker must have done before a sample counts as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Acks {
    /// Nothing: it is sent.
    #[value(name = "0", help = "nothing: it is sent")]
    None,
    /// The leader of the partition has it.
    #[value(name = "1", help = "the leader of the partition has it")]
    Leader,
    /// All replicas in sync have it.
    #[value(name = "all", help = "all replicas in sync have it")]
    All,
}

impl Acks {
    /// The value of the property.
    pub fn property(self) -> &'static str {
        match self {
            Acks::None => "0",
            Acks::Leader => "1",
            Acks::All => "all",
        }
    }
}

fn name(text: &str) -> std::result::Result<String, String> {
    checked(text, NAME_BYTES_MAX)
}

fn rack(text: &str) -> std::result::Result<String, String> {
    checked(text, RACK_BYTES_MAX)
}

/// A name that the job takes.
fn checked(text: &str, bytes_max: usize) -> std::result::Result<String, String> {
    if text.is_empty() || text.len() > bytes_max || text.chars().any(char::is_control) {
        let what = "a name has no characters of control and from 1 to";
        return Err(format!("{what} {bytes_max} bytes"));
    }
    Ok(text.to_owned())
}
