//! Services for programs of the Java machine, out of Maven artifacts that `examples/` names: HDFS,
//! YARN, Alluxio, Flink and Kafka, and the Java programs that run on them.
//!
//! Every daemon has free ports on the loopback interface and a directory of its own, and ends with
//! the task, also after Ctrl-C. Logs stay in the target directory. Nothing here is for production:
//! heaps are small and there is no security but where a test is about it.

pub mod alluxio;
pub mod artifacts;
pub mod daemon;
pub mod flink;
pub mod hadoop;
pub mod java;
pub mod kafka;
pub mod plane;
pub mod site;
pub mod spark;
pub mod talk;
