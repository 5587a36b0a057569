//! The store: capacity, admission, eviction, and the packed small files.

use std::sync::Arc;
use std::time::Instant;

use tidepool_proto::admin::{FreeReport, StoreStatus};
use tidepool_proto::{FileId, Result, Version};

use crate::config::{Owner, PolicyKind, QuotaKey, StoreConfig};
use crate::segment::Segment;

/// The memory level of one node.
#[derive(Debug)]
pub struct Store {}

impl Store {
    /// A store that holds nothing yet.
    pub fn new(_config: StoreConfig) -> Result<Arc<Store>> {
        unimplemented!()
    }
    /// What this machine lacks, one line each.
    pub fn degradations(&self) -> Vec<String> {
        unimplemented!()
    }
    /// A sparse segment of `size_bytes`.
    pub fn create_segment(
        self: &Arc<Self>,
        _size_bytes: u64,
        _owner: Owner,
    ) -> Result<Arc<Segment>> {
        unimplemented!()
    }
    /// Packs a small file; `false`: not admitted.
    pub fn insert_small(
        &self,
        _id: FileId,
        _version: Version,
        _owner: Owner,
        _bytes: &[u8],
    ) -> Result<bool> {
        unimplemented!()
    }
    /// Reads a packed file if it is of exactly this version.
    pub fn read_small<R>(
        &self,
        _id: FileId,
        _version: &Version,
        _read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        unimplemented!()
    }
    /// Forgets a packed file.
    pub fn remove_small(&self, _id: FileId) {
        unimplemented!()
    }
    /// Lets what is packed of `before` serve `after`.
    pub fn carry_small(&self, _id: FileId, _before: &Version, _after: Version) {
        unimplemented!()
    }
    /// Version and length of a packed file.
    pub fn small_state(&self, _id: FileId) -> Option<(Version, u64)> {
        unimplemented!()
    }
    /// Sets the capacity.
    pub fn resize(&self, _capacity_bytes: u64) -> FreeReport {
        unimplemented!()
    }
    /// Evicts all that may go.
    pub fn evict_all(&self) -> FreeReport {
        unimplemented!()
    }
    /// Changes the policy.
    pub fn set_policy(&self, _kind: PolicyKind) {
        unimplemented!()
    }
    /// Facts and counters.
    pub fn stats(&self) -> StoreStatus {
        unimplemented!()
    }
    /// Drops what outlived its time to live; returns bytes.
    pub fn expire(&self, _now: Instant) -> u64 {
        unimplemented!()
    }
    /// Sets or lifts a quota.
    pub fn set_quota(&self, _key: QuotaKey, _limit_bytes: Option<u64>) {
        unimplemented!()
    }
    /// Sets what is called when clean blocks do not suffice.
    pub fn on_pressure(&self, _hook: Box<dyn Fn(u64) + Send + Sync>) {
        unimplemented!()
    }
}
