//! Plans from rates that were measured badly: the advice stands only where the lowest and the
//! highest of them give the same one. Measures nothing.

use tidepool_proto::Result;

use crate::cluster::{Cluster, LocalDisk, Pfs};
use crate::plan::{Plan, plan};
use crate::plan_advice::Advice;
use crate::quantity::BytesPerSecond;
use crate::workload::PlanInput;

/// A rate of a [`Cluster`] that can be in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// [`Cluster::network`].
    Network,
    /// [`Cluster::memory_read`].
    MemoryRead,
    /// [`Cluster::memory_write`].
    MemoryWrite,
    /// Reads of [`Cluster::disk`].
    DiskRead,
    /// Writes of [`Cluster::disk`].
    DiskWrite,
    /// Reads of an aggregate [`Cluster::pfs`].
    PfsRead,
    /// Writes of an aggregate [`Cluster::pfs`].
    PfsWrite,
}

impl Rate {
    /// In words, as what was measured.
    pub fn name(self) -> &'static str {
        match self {
            Rate::Network => "the network",
            Rate::MemoryRead => "memory (reads)",
            Rate::MemoryWrite => "memory (writes)",
            Rate::DiskRead => "the local disk (reads)",
            Rate::DiskWrite => "the local disk (writes)",
            Rate::PfsRead => "the PFS (reads)",
            Rate::PfsWrite => "the PFS (writes)",
        }
    }

    /// Puts it into a cluster; one that has no such part stays as it is.
    fn put(self, cluster: &mut Cluster, rate: BytesPerSecond) {
        match (self, &mut cluster.disk, &mut cluster.pfs) {
            (Rate::Network, ..) => cluster.network = rate,
            (Rate::MemoryRead, ..) => cluster.memory_read = rate,
            (Rate::MemoryWrite, ..) => cluster.memory_write = rate,
            (Rate::DiskRead, Some(LocalDisk { read, .. }), _)
            | (Rate::PfsRead, _, Pfs::Aggregate { read, .. }) => *read = rate,
            (Rate::DiskWrite, Some(LocalDisk { write, .. }), _)
            | (Rate::PfsWrite, _, Pfs::Aggregate { write, .. }) => *write = rate,
            _ => {}
        }
    }
}

/// A rate and the range in which it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Doubt {
    /// Which one.
    pub rate: Rate,
    /// Lowest measurement.
    pub lowest: BytesPerSecond,
    /// Highest measurement.
    pub highest: BytesPerSecond,
}

/// Makes a plan whose advice holds for every choice of lowest and highest among `doubts`, or says
/// that nothing can be said. With `contradictions`, sentences of what the rates cannot be, it says
/// so in any case. There are 2^`doubts` plans to make, so a rate must not come twice.
///
/// # Errors
///
/// As [`plan`].
pub fn plan_in_doubt(
    input: &PlanInput,
    doubts: &[Doubt],
    contradictions: &[String],
) -> Result<Plan> {
    let mut found = plan(input)?;
    let unsure = |reason: String, speedup: f64| Advice {
        use_storage: None,
        worth_it: None,
        speedup,
        text: format!(
            "Cannot say: {reason} Calibrate again while the node is idle, or give the rate."
        ),
    };
    if !contradictions.is_empty() {
        found.advice = unsure(format!("{}.", contradictions.join("; ")), found.advice.speedup);
        return Ok(found);
    }
    let (mut least, mut most) = (found.advice.clone(), found.advice.clone());
    for choice in 1..1_u32 << doubts.len() {
        let mut at = PlanInput { target: None, ..input.clone() };
        for (place, doubt) in doubts.iter().enumerate() {
            let rate = if choice >> place & 1 == 0 { doubt.lowest } else { doubt.highest };
            doubt.rate.put(&mut at.cluster, rate);
        }
        let advice = plan(&at)?.advice;
        if advice.speedup < least.speedup {
            least = advice;
        } else if advice.speedup > most.speedup {
            most = advice;
        }
    }
    if least.worth_it != most.worth_it {
        let ranges = doubts.iter().map(|doubt| {
            format!("{} between {} and {}", doubt.rate.name(), doubt.lowest, doubt.highest)
        });
        let ranges = ranges.collect::<Vec<_>>().join(", ");
        let reason = format!(
            "measured was {ranges}, and that decides. At worst: {} At best: {}",
            least.text, most.text
        );
        found.advice = unsure(reason, found.advice.speedup);
    }
    Ok(found)
}
