//! Pure arithmetic: how fast storage can be. Models of the throughput of HDFS, a parallel file
//! system (PFS), memory and two-level storage, of MapReduce jobs on them, of hit ratios, of the
//! storage mountain, and the planning that follows from them.
//!
//! Nothing here reads a clock, opens a file or starts a thread; the same inputs give the same
//! numbers everywhere. Units are types ([`Bytes`], [`BytesPerSecond`], [`Seconds`]), so a size is
//! never taken for a rate. Equations are numbered as in the two-level storage paper, (1) to (7),
//! and as in the dissertation that extends it, (3-1) to (3-13); `docs/design/models.md` lists them
//! all.

mod cluster;
mod crossover;
mod demand;
mod hit_ratio;
mod mapreduce;
mod mountain;
mod plan;
mod plan_advice;
mod plan_doubt;
mod quantity;
mod recommend;
mod sensitivity;
pub mod simulator;
mod throughput;
mod workload;

pub use cluster::{Cluster, Extensions, Latency, LocalDisk, Pfs};
pub use crossover::{Crossover, GREATER_BY, read_crossover, write_crossover};
pub use demand::DemandTrace;
pub use hit_ratio::{Access, Policy, hit_ratio};
pub use mapreduce::{Job, JobCost, PhaseCost, job_cost};
pub use mountain::{MountainPoint, MountainSetting, blocks_touched, predict};
pub use plan::{NODES_MAX, Plan, Target, TargetAnswer, plan};
pub use plan_advice::Advice;
pub use plan_doubt::{Doubt, Rate, plan_in_doubt};
pub use quantity::{Bytes, BytesPerSecond, NodeCount, Seconds, Share};
pub use recommend::{Reasoned, Recommendation, recommend};
pub use sensitivity::{Input, Sensitivity, sensitivities};
pub use throughput::{Direction, Limit, Resource, Storage, aggregate, per_node};
pub use workload::{Choice, Demand, Phase, PlanInput, StorageChoice, Workload};
