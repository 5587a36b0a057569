//! How a file and its version are called between nodes: without what differs from node to node,
//! such as the number of the device.

use tidepool_cluster::{FileKey, SharedVersion};
use tidepool_peer::BlockRequest;
use tidepool_proto::{FileId, Version};

use crate::core::Core;
use crate::file::cached_version::CachedVersion;

/// A version as it is called between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Which file.
    pub file: FileKey,
    /// Which version of it.
    pub version: SharedVersion,
}

impl Shared {
    /// What a cached version is called, if other nodes may have to do with it. They may not where
    /// its time stamps are racy, its bytes are in memory alone, here or elsewhere, it is not the
    /// file's any more, or it lies on a file system that is mounted below the PFS directory; nor
    /// before what was sent of it as clean copies was compared with the PFS.
    pub fn of(core: &Core, cached: &CachedVersion) -> Option<Shared> {
        let is_sound = !cached.is_racy()
            && !cached.is_memory_only()
            && cached.owed().is_none()
            && !cached.is_lost()
            && !cached.is_invalidated()
            && !cached.writing.lock().as_ref().is_some_and(|it| it.is_doubtful());
        let version = cached.version();
        (is_sound && version.id.device == core.pfs.device()).then(|| Shared::named(&version))
    }

    /// What a version is called.
    pub fn named(version: &Version) -> Shared {
        Shared {
            file: FileKey { inode: version.id.inode, generation: version.born_ns as u64 },
            version: SharedVersion {
                size: version.size,
                mtime_ns: version.modified_ns as i64,
                ctime_ns: version.changed_ns as i64,
            },
        }
    }

    /// As it is sent: inode number, generation, length, and times of the last changes of bytes and
    /// of attributes.
    pub fn words(&self) -> ([u64; 2], [i64; 3]) {
        let SharedVersion { size, mtime_ns, ctime_ns } = self.version;
        ([self.file.inode, self.file.generation], [size as i64, mtime_ns, ctime_ns])
    }

    /// What was sent so.
    pub fn from_words([inode, generation]: [u64; 2], version: [i64; 3]) -> Shared {
        let [size, mtime_ns, ctime_ns] = version;
        Shared {
            file: FileKey { inode, generation },
            version: SharedVersion { size: size as u64, mtime_ns, ctime_ns },
        }
    }

    /// What another node is asked for.
    pub fn request(&self, offset: u64, length: usize, may_fill: bool) -> BlockRequest {
        let (file, version) = self.words();
        BlockRequest { file, version, offset, length: length as u32, may_fill }
    }

    /// What a request of another node is about.
    pub fn asked(request: &BlockRequest) -> Shared {
        Shared::from_words(request.file, request.version)
    }

    /// Its number here.
    pub fn id(&self, core: &Core) -> FileId {
        FileId { device: core.pfs.device(), inode: self.file.inode }
    }
}
