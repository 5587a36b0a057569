//! The configuration of the stores to control, and how each kind is opened.
//!
//! A kind that is not known is refused with the list of those that are; so is a misspelt entry.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use tidepool_proto::control::{NAME_BYTES_MAX, STORES_MAX};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::alluxio::{Alluxio, AlluxioConfiguration};
use crate::hdfs::{Hdfs, HdfsConfiguration};
use crate::memcached::{Memcached, MemcachedConfiguration};
use crate::page_cache::{PageCache, PageCacheConfiguration};
use crate::redis::{Redis, RedisConfiguration};
use tidepool_control::actuator::{Actuator, LimitBefore};
use tidepool_control::regular_file::read_text;

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

impl StoreConfiguration {
    /// Name of the store.
    pub fn name(&self) -> &str {
        match self {
            StoreConfiguration::Memcached(configuration) => &configuration.name,
            StoreConfiguration::Redis(configuration)
            | StoreConfiguration::Valkey(configuration) => &configuration.name,
            StoreConfiguration::PageCache(configuration) => &configuration.name,
            StoreConfiguration::Alluxio(configuration) => &configuration.name,
            StoreConfiguration::Hdfs(configuration) => &configuration.name,
        }
    }

    /// Where it is, whatever it is called; empty where it has no limit to put back.
    pub(crate) fn place(&self) -> String {
        match self {
            StoreConfiguration::Memcached(configuration) => {
                format!("memcached {}", configuration.address)
            }
            StoreConfiguration::Redis(configuration)
            | StoreConfiguration::Valkey(configuration) => {
                format!("redis {}", configuration.address)
            }
            StoreConfiguration::Hdfs(configuration) => {
                format!("hdfs {} {}", configuration.pool, configuration.pid_file.display())
            }
            StoreConfiguration::PageCache(_) | StoreConfiguration::Alluxio(_) => String::new(),
        }
    }

    /// What stays in it though it is asked back.
    pub(crate) fn keeps(&self) -> &'static str {
        match self {
            StoreConfiguration::Alluxio(_) => {
                "blocks that are not persisted yet, pinned ones, and those that are being read"
            }
            StoreConfiguration::Hdfs(_) => "what other pools cache, and blocks that are being read",
            StoreConfiguration::PageCache(_) => "dirty pages, and what shares their 2 MiB",
            StoreConfiguration::Memcached(_)
            | StoreConfiguration::Redis(_)
            | StoreConfiguration::Valkey(_) => "",
        }
    }
}

/// A file of stores: tables `[[store]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoresFile {
    #[serde(default)]
    store: Vec<StoreConfiguration>,
}

/// Reads the stores that a file names. Never waits for a writer of the file, as reading a pipe
/// would.
///
/// # Errors
/// `InvalidInput` for entries without meaning, too many of them, names that are none, two stores
/// of one name, and what is no regular file of a sensible size; `Pfs` with the errno of a file
/// that cannot be read.
pub fn read_stores(path: &Path) -> Result<Vec<StoreConfiguration>> {
    let operation = || format!("reading the stores to control from {}", path.display());
    let wrong = |what: String| {
        Error::new(ErrorKind::InvalidInput, operation(), what)
            .remedy("docs/guide/other-stores.md shows what an entry has")
    };
    let text = read_text(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => wrong(error.to_string()),
        _ => Error::pfs(operation(), error),
    })?;
    let stores = toml::from_str::<StoresFile>(&text)
        .map_err(|error| wrong(error.to_string().trim().to_owned()))?
        .store;
    if stores.len() >= STORES_MAX {
        let (count, most) = (stores.len(), STORES_MAX - 1);
        return Err(wrong(format!("{count} stores: a node controls {most} at most")));
    }
    let is_name =
        |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
    if let Some(store) = stores.iter().find(|store| !is_name(store.name())) {
        let shown: String = store.name().chars().take(NAME_BYTES_MAX).collect();
        let bounds = format!("a name has 1 to {NAME_BYTES_MAX} bytes without control characters");
        return Err(wrong(format!("{shown:?}: {bounds}")));
    }
    let mut names = BTreeSet::from([tidepool_control::actuator::OWN_STORE]);
    match stores.iter().find(|store| !names.insert(store.name())) {
        Some(twice) => Err(wrong(format!("`{}` is the name of another store too", twice.name()))),
        None => Ok(stores),
    }
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

/// Puts back what a killed controller left on a server that is not opened, because it must not be
/// governed any more, or because there is no time for more.
pub(crate) fn put_back_left(configuration: &StoreConfiguration, left: LimitBefore) -> Result<()> {
    match configuration {
        StoreConfiguration::Memcached(configuration) => {
            Memcached::put_back_left(configuration, left)
        }
        StoreConfiguration::Redis(configuration) | StoreConfiguration::Valkey(configuration) => {
            Redis::put_back_left(configuration, left)
        }
        StoreConfiguration::Hdfs(configuration) => Hdfs::put_back_left(configuration, left),
        // A page cache has no limit, and a worker of Alluxio drops it with the program.
        StoreConfiguration::PageCache(_) | StoreConfiguration::Alluxio(_) => Ok(()),
    }
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
    fn stores_are_read_from_a_regular_file_and_mistakes_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stores.toml");
        let entry = |name: &str| {
            format!("[[store]]\nkind = 'redis'\n{}", ENTRY.replace("'s'", &format!("'{name}'")))
        };
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_stores(&path)
        };
        let error = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(read(&(entry("a") + &entry("b"))).unwrap().len(), 2);
        assert!(read("").unwrap().is_empty());
        assert!(error("[[store]]\nkind = 'riak'").contains("memcached"));
        assert!(error(&entry("a").repeat(2)).contains("`a`"), "limits are put back by name");
        assert!(error(&entry("tidepool")).contains("`tidepool`"));
        for name in ["", "a\\u0007", &"n".repeat(NAME_BYTES_MAX + 1)] {
            let text = entry("s").replace("name = 's'", &format!("name = \"{name}\""));
            assert!(error(&text).contains("control characters"), "{name}");
        }
        let many = |count: usize| (0..count).map(|it| entry(&it.to_string())).collect::<String>();
        assert_eq!(read(&many(STORES_MAX - 1)).unwrap().len(), STORES_MAX - 1);
        assert!(error(&many(STORES_MAX)).contains("at most"));
        assert!(read("[[shop]]").is_err());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_stores(&path).unwrap_err().errno(), 2);
        assert!(read_stores(directory.path()).is_err());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(read_stores(&path).unwrap_err().to_string().contains("regular"), "and at once");
    }

    #[test]
    fn a_misspelt_entry_is_refused() {
        let text = format!("kind = 'memcached'\ncapacity_maximum = 1\n{ENTRY}");
        let error = toml::from_str::<StoreConfiguration>(&text).unwrap_err().to_string();
        assert!(error.contains("capacity_maximum"), "{error}");
    }
}
