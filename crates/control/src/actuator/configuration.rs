//! What is configured of the stores to control, and how one is opened.
//!
//! A kind that is not known is refused with the list of those that are; so is a misspelt entry.

use serde::Deserialize;
use tidepool_proto::Result;

use super::Actuator;
use super::alluxio::{Alluxio, AlluxioConfiguration};
use super::hdfs::{Hdfs, HdfsConfiguration};
use super::memcached::{Memcached, MemcachedConfiguration};
use super::page_cache::{PageCache, PageCacheConfiguration};
use super::redis::{Redis, RedisConfiguration};

/// One store of this node, as an entry `kind = "..."` with the entries of that kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum StoreConfiguration {
    /// A memcached server.
    Memcached(MemcachedConfiguration),
    /// A Redis server.
    Redis(RedisConfiguration),
    /// A Valkey server, which is spoken to as Redis.
    Valkey(RedisConfiguration),
    /// The page cache of a directory.
    PageCache(PageCacheConfiguration),
    /// An Alluxio worker.
    Alluxio(AlluxioConfiguration),
    /// What an HDFS DataNode caches for a pool.
    Hdfs(HdfsConfiguration),
}

/// Opens the store: connects to it, checks that it can be controlled, and begins to watch it.
///
/// # Errors
/// `InvalidInput` for entries without meaning and stores that could only lose writes,
/// `StoreUnavailable` for a server that is not there, `PermissionDenied` where it wants a password,
/// `Protocol` for answers of something else, `Unsupported` where its memory cannot be given back.
pub fn open(configuration: &StoreConfiguration) -> Result<Box<dyn Actuator>> {
    Ok(match configuration {
        StoreConfiguration::Memcached(configuration) => Box::new(Memcached::open(configuration)?),
        StoreConfiguration::Redis(configuration) | StoreConfiguration::Valkey(configuration) => {
            Box::new(Redis::open(configuration)?)
        }
        StoreConfiguration::PageCache(configuration) => Box::new(PageCache::open(configuration)?),
        StoreConfiguration::Alluxio(configuration) => Box::new(Alluxio::open(configuration)?),
        StoreConfiguration::Hdfs(configuration) => Box::new(Hdfs::open(configuration)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "name = 's'\naddress = '/s'\ncapacity_min_bytes = 0\n\
                         capacity_max_bytes = '1GiB'\n";

    #[test]
    fn an_unknown_kind_is_answered_with_the_known_ones() {
        let read =
            |kind: &str| toml::from_str::<StoreConfiguration>(&format!("kind = '{kind}'\n{ENTRY}"));
        assert!(read("redis").is_ok());
        let error = read("riak").unwrap_err().to_string();
        for kind in ["riak", "memcached", "redis", "valkey", "page-cache", "alluxio", "hdfs"] {
            assert!(error.contains(kind), "{error}");
        }
    }

    #[test]
    fn a_misspelt_entry_is_refused() {
        let text = format!("kind = 'memcached'\ncapacity_maximum = 1\n{ENTRY}");
        let error = toml::from_str::<StoreConfiguration>(&text).unwrap_err().to_string();
        assert!(error.contains("capacity_maximum"), "{error}");
    }
}
