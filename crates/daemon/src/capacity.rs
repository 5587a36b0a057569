//! Checks a requested capacity, for every way to ask for one: within the memory that the node may
//! use, and in whole blocks.

use tidepool_proto::admin::AdminReply;
use tidepool_proto::size::MemoryLimit;
use tidepool_proto::{ByteSize, MemorySize, Result};

use crate::machine::memory_limit;

/// A capacity that the store can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Bytes in whole blocks.
    pub bytes: u64,
    /// Bytes as they were asked for.
    asked_bytes: u64,
}

impl Capacity {
    /// Of a store of blocks of `block_bytes`, within the limit as it is now.
    ///
    /// # Errors
    /// `InvalidInput` for more than the limit, and for less than a block that is not 0.
    pub fn judge(size: MemorySize, block_bytes: u64) -> Result<Capacity> {
        Capacity::within(&memory_limit()?, size, block_bytes.max(1))
    }

    fn within(limit: &MemoryLimit, size: MemorySize, block_bytes: u64) -> Result<Capacity> {
        let asked_bytes = size.resolve(limit.bytes);
        let asked = ByteSize(asked_bytes).to_string();
        let bytes = limit.capacity_bytes(size, block_bytes, "resizing the store", &asked)?;
        Ok(Capacity { bytes, asked_bytes })
    }

    /// The node's answer, with what was asked for.
    pub fn add_to(self, reply: AdminReply) -> AdminReply {
        match reply {
            AdminReply::Resized(report) => {
                AdminReply::Resized(tidepool_proto::admin::ResizeReport {
                    asked_bytes: self.asked_bytes,
                    ..report
                })
            }
            reply => reply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_whole_blocks_within_the_limit() {
        let limit = MemoryLimit { bytes: 1000, source: "the limit of the test".to_owned() };
        let judge = |size| Capacity::within(&limit, size, 100);
        let bytes = |size| judge(size).map(|capacity| (capacity.asked_bytes, capacity.bytes));
        assert_eq!(bytes(MemorySize::Bytes(1000)).unwrap(), (1000, 1000));
        assert_eq!(bytes(MemorySize::Bytes(399)).unwrap(), (399, 300));
        assert_eq!(bytes(MemorySize::Percent(55.0)).unwrap(), (550, 500));
        assert_eq!(bytes(MemorySize::Bytes(0)).unwrap(), (0, 0));
        let error = judge(MemorySize::Bytes(1001)).unwrap_err();
        assert!(error.to_string().contains("the limit of the test"), "{error}");
        let error = judge(MemorySize::Bytes(99)).unwrap_err();
        assert!(error.to_string().contains("less than one block"), "{error}");
    }
}
