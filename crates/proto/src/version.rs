//! Identity and version of a file on the parallel file system.

use serde::{Deserialize, Serialize};

/// A file of a mounted file system: the device and inode numbers that `statx` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Device number of the mount.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// A version of a file. Two equal versions hold the same bytes, provided that the timestamps had
/// settled when the bytes were read (see [`Version::is_settled`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    /// Which file.
    pub id: FileId,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change of content, nanoseconds since the epoch.
    pub modified_ns: i128,
    /// Time of the last change of content or metadata, nanoseconds since the epoch.
    pub changed_ns: i128,
}

impl Version {
    /// Whether a later change must show in the timestamps.
    ///
    /// A file system stamps changes with a clock of limited granularity. A change within the same
    /// tick as the version's stamps, and of equal length, would give an equal version. Bytes read
    /// at `now_ns` are certain to be the last of this version only if the tick is over.
    /// `granularity_ns` is 0 where every observed change gets a new stamp (multigrain stamps).
    pub fn is_settled(&self, now_ns: i128, granularity_ns: u64) -> bool {
        let latest_ns = self.modified_ns.max(self.changed_ns);
        granularity_ns == 0 || now_ns - latest_ns > i128::from(granularity_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_settles_after_its_tick() {
        let version = Version {
            id: FileId { device: 1, inode: 2 },
            size: 3,
            modified_ns: 1_000,
            changed_ns: 2_000,
        };
        assert!(!version.is_settled(2_500, 1_000));
        assert!(!version.is_settled(1_000, 1_000), "a clock that jumped back settles nothing");
        assert!(version.is_settled(3_001, 1_000));
        assert!(version.is_settled(2_000, 0));
    }
}
