//! Stores of other makers as actuators, each against its real server, which the test starts on
//! loopback in a directory of its own. A server that is not installed skips its tests, visibly.

mod alluxio;
mod hdfs;
mod memcached;
mod page_cache;
mod redis;
mod skip;
mod support;
