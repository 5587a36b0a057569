//! Stores of other makers on the same node, as stores that the memory controller resizes:
//! memcached, Redis and Valkey, Alluxio, the cache of an HDFS DataNode, the page cache of a
//! directory.
//!
//! A program that is built without this crate controls Tidepool's own store alone.

mod alluxio;
mod configuration;
mod connection;
mod credentials;
mod hdfs;
mod java_program;
mod late;
mod ledger;
mod limit;
mod memcached;
mod page_cache;
mod redis;
mod residency;
mod server_process;
mod server_store;
mod settle;
mod watch;

pub use alluxio::{Alluxio, AlluxioConfiguration};
pub use configuration::{StoreConfiguration, open, read_stores};
pub use hdfs::{Hdfs, HdfsConfiguration};
pub use java_program::JavaConfiguration;
pub use late::{LateStore, Siblings};
pub use memcached::{Memcached, MemcachedConfiguration};
pub use page_cache::{PageCache, PageCacheConfiguration};
pub use redis::{Redis, RedisConfiguration};
