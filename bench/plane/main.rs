//! Nodes as the cluster plane sees them: so many that send samples and read their ceilings, each by
//! connections of its own; or a listener to the ceilings of one node. It prints what it saw, and
//! judges nothing.

mod load;
mod wire;

use std::io::{Read, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::{Args, Parser};
use tidepool_plane::partition;

use crate::load::LoadOptions;
use crate::wire::Connection;

const CEILINGS: &str = "tidepool-ceilings";
/// As an agent waits.
const FETCH_WAIT_MS: i32 = 20_000;
/// How often a broker is asked for the end of a partition, and the time between.
const TRIES: u32 = 600;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Parser)]
enum Arguments {
    /// Nodes that send samples for a while.
    Load(LoadOptions),
    /// Prints each ceiling of a node, behind the time at which it came, until the input ends.
    Listen(ListenOptions),
}

#[derive(Args, Debug)]
struct ListenOptions {
    /// The broker.
    #[arg(long)]
    kafka: String,
    /// The node.
    #[arg(long)]
    node: String,
    /// Partitions of the topic of ceilings.
    #[arg(long)]
    partitions: u32,
}

fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Load(options) => load::run(&options),
        Arguments::Listen(options) => listen(&options),
    }
}

fn listen(options: &ListenOptions) -> Result<()> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    println!("listening");
    follow(&options.kafka, &options.node, options.partitions, |message| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{} {}", wall_clock_ns(), String::from_utf8_lossy(message))?;
        Ok(out.flush()?)
    })
}

/// Hands on each ceiling of a node, as they come.
fn follow(
    kafka: &str,
    node: &str,
    partitions: u32,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let partition = partition::of_key(node.as_bytes(), partitions);
    let mut connection = Connection::open(kafka)?;
    let mut tries = 0;
    let mut offset = loop {
        // A broker that was just given many partitions does not lead all of them yet.
        match connection.end_of(CEILINGS, partition) {
            Err(_) if tries < TRIES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            end => break end?,
        }
    };
    loop {
        let fetched = connection.fetch(CEILINGS, partition, offset, FETCH_WAIT_MS)?;
        offset = fetched.next;
        for (key, message) in &fetched.messages {
            if key == node.as_bytes() {
                take(message)?;
            }
        }
    }
}

/// Nanoseconds since the epoch.
fn wall_clock_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
