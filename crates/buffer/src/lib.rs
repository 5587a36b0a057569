//! The burst buffer: memory of buffer nodes that takes what jobs write in bursts, by the memcached
//! protocol.
//!
//! * `key`: blocks of files, cut into packets, and the keys of those.
//! * `placement`: which server has a block.
//! * `protocol`: commands and answers, as memcached's text and meta protocols have them.
//! * `memory`: what a server holds. What is *owed* to the PFS is never evicted.
//! * `disk`: what a server keeps of that on its disk, until the PFS has it.
//! * `server`: serves connections. `client`: stores on a pool of servers and fetches from it.
//!
//! Source: Islam et al., "Accelerating I/O Performance of Big Data Analytics on HPC Clusters
//! through RDMA-based Key-Value Store" (ICPP 2015), section III.

pub mod client;
pub mod disk;
pub mod key;
pub mod memory;
pub mod placement;
pub mod protocol;
pub mod server;
