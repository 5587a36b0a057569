//! Benchmark of the cluster plane of memory control: Kafka, the Flink job and agents as a site
//! would run them. One real node whose memory moves, the cost of its agent, as many simulated
//! nodes as the paper had, the gains of its figure 3-6, and a recorded demand under several laws.
//! It prints, and judges no test.

mod alluxio;
mod gains;
mod laws;
mod many_nodes;
mod one_node;
mod rig;
mod site;

use std::time::Duration;

use anyhow::Result;
use tidepool_report::bustle::{Bustle, processors};

use self::rig::Rig;
use super::row::Row;
use crate::arguments::BenchOptions;
use crate::environment;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Rounds of every measurement.
    rounds: usize,
    /// What the store of the real node holds.
    store_bytes: u64,
    /// What the job beside it takes.
    burst_bytes: u64,
    /// How long the agent is watched at rest.
    rest: Duration,
    /// Bursts while it is watched in motion.
    bursts: u32,
    /// How long a burst is watched.
    burst: Duration,
    /// How much of the recorded demand is played under each law.
    trace_s: f64,
    /// Seconds of simulated nodes before they are measured, in which Java compiles what it runs
    /// often, and while they are.
    load_s: [u64; 2],
    /// Simulated nodes, where they are to be others than those of the goals.
    nodes: Option<u32>,
}

const FULL: Scale = Scale {
    rounds: 3,
    store_bytes: 2 << 30,
    burst_bytes: 1 << 30,
    rest: Duration::from_secs(60),
    bursts: 12,
    burst: Duration::from_secs(10),
    trace_s: 60.0,
    load_s: [60, 30],
    nodes: None,
};

const QUICK: Scale = Scale {
    rounds: 1,
    store_bytes: 512 << 20,
    burst_bytes: 256 << 20,
    rest: Duration::from_secs(20),
    bursts: 3,
    burst: Duration::from_secs(5),
    trace_s: 10.0,
    load_s: [10, 10],
    nodes: Some(32),
};

/// What the measurements share.
struct Bench {
    scale: Scale,
    only: Option<String>,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// Runs the rows that the options ask for, prints the table and writes the JSON.
///
/// # Errors
/// What the plane needs and this machine does not have.
pub fn run(options: &BenchOptions) -> Result<()> {
    let mut scale = if options.quick { QUICK } else { FULL };
    scale.rounds = options.rounds.unwrap_or(scale.rounds).max(1);
    scale.nodes = options.nodes.or(scale.nodes);
    let machine = Bustle::of_load(processors(), environment::load()?);
    let bench = Bench { scale, only: options.only.clone() };
    let mut rows = Vec::new();
    let mut show = |more: Vec<Row>| {
        more.iter().for_each(|row| println!("{row}"));
        rows.extend(more);
    };
    let one_node = [one_node::is_wanted, gains::is_wanted, laws::is_wanted];
    if one_node.iter().any(|is_wanted| is_wanted(&bench)) {
        let mut rig = Rig::start(&bench, options.pfs.as_deref())?;
        show(one_node::run(&bench, &mut rig)?);
        show(gains::run(&bench, &mut rig)?);
        show(laws::run(&bench, &mut rig)?);
    }
    show(alluxio::run(&bench, options.pfs.as_deref())?);
    for case in many_nodes::CASES {
        show(many_nodes::run(&bench, &case)?);
    }
    super::tell(options, &rows, "bench-plane.json", Some(&machine))
}

/// The load of the machine now, in words.
fn load() -> Result<String> {
    Ok(format!("load {:.1} on {} processors", environment::load()?, processors()))
}
