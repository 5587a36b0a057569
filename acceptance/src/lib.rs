//! Acceptance tests and benchmarks of the product from outside: benchmarks, test suites of other
//! projects, examples on real Hadoop, Spark and Flink, kernels in an emulator, a test cluster, and
//! the demo. The tasks of `./x` call it.
//!
//! Nothing of the product is decided here, and nothing here is shipped. What drives the product
//! knows it by its programs alone; only the programs of `bench/` link its crates.

pub mod arguments;
pub mod bench;
pub mod cleanup;
pub mod cluster;
pub mod demo;
pub mod environment;
pub mod examples;
pub mod hog;
mod jvm;
mod kmeans;
mod loop_volume;
pub mod maven_repository;
mod node;
pub mod outcome;
pub mod process;
mod random_file;
mod scratch;
mod shaping;
pub mod suites;
pub mod versions;
pub mod vm;
