//! Identity and version of a file on the parallel file system.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Stat, Statx, StatxFlags, StatxTimestamp, makedev};
use serde::{Deserialize, Serialize};

/// Nanoseconds of a second.
const SECOND_NS: i128 = 1_000_000_000;

/// A file of a mounted file system: the device and inode numbers that `statx` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Device number of the mount.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// A version of a file. Two equal versions hold the same bytes, provided that the time stamps were
/// not racy when the bytes were read (see [`Version::is_racy`]).
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
    /// Time at which the file was made, nanoseconds since the epoch; 0 where it is not known. Tells
    /// a file from a later one that was given its inode number.
    pub born_ns: i128,
}

/// What somebody saw of a file that changed its metadata. The change times (`ctime`) just before
/// and just after it are in nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeTimes {
    /// Before the change.
    pub before_ns: i128,
    /// After it.
    pub after_ns: i128,
    /// Nobody had the file open for writing from the one look to the other: a lease stood for that.
    pub leased: bool,
}

/// What the program that changed the metadata of a file between two looks at it knows of the time
/// between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// Nothing.
    Unknown,
    /// The looks fit, and lie close together. A program that wrote the file in between and set its
    /// time back left no trace.
    Seen,
    /// Nothing else changed its content.
    Sure,
}

impl From<&Stat> for FileId {
    fn from(stat: &Stat) -> Self {
        FileId { device: stat.st_dev, inode: stat.st_ino }
    }
}

impl From<&Statx> for FileId {
    fn from(stat: &Statx) -> Self {
        FileId { device: makedev(stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino }
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        FileId { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Knows no birth time: stat(2) tells none.
impl From<&Stat> for Version {
    fn from(stat: &Stat) -> Self {
        Version {
            id: stat.into(),
            size: stat.st_size as u64,
            modified_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64),
            born_ns: 0,
        }
    }
}

/// Knows the birth time where it was asked for and the file system tells it.
impl From<&Statx> for Version {
    fn from(stat: &Statx) -> Self {
        let time = |time: StatxTimestamp| nanoseconds(time.tv_sec, time.tv_nsec.into());
        let knows_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        Version {
            id: stat.into(),
            size: stat.stx_size,
            modified_ns: time(stat.stx_mtime),
            changed_ns: time(stat.stx_ctime),
            born_ns: if knows_birth { time(stat.stx_btime) } else { 0 },
        }
    }
}

/// Knows no birth time, as that of [`Stat`].
impl From<&Metadata> for Version {
    fn from(metadata: &Metadata) -> Self {
        Version {
            id: metadata.into(),
            size: metadata.size(),
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            born_ns: 0,
        }
    }
}

fn nanoseconds(seconds: i64, rest: i64) -> i128 {
    i128::from(seconds) * SECOND_NS + i128::from(rest)
}

impl Version {
    /// Whether both are of equal content. A version that knows no birth time is compared without.
    pub fn agrees_with(&self, other: &Version) -> bool {
        self.is_of_same_file(other)
            && (self.size, self.modified_ns, self.changed_ns)
                == (other.size, other.modified_ns, other.changed_ns)
    }

    /// Whether they have one length and time of the last change of bytes, whatever became of names,
    /// owner and attributes in between. Of versions of one file.
    pub fn has_bytes_of(&self, other: &Version) -> bool {
        (self.size, self.modified_ns) == (other.size, other.modified_ns)
    }

    /// Whether both are of one file, as far as can be told.
    pub fn is_of_same_file(&self, other: &Version) -> bool {
        let known = self.born_ns != 0 && other.born_ns != 0;
        self.id == other.id && (!known || self.born_ns == other.born_ns)
    }

    /// This version with the birth time that an `earlier` one of the same file told, if it tells
    /// none itself.
    pub fn born_as(self, earlier: &Version) -> Version {
        let born_ns = if self.born_ns == 0 { earlier.born_ns } else { self.born_ns };
        Version { born_ns, ..self }
    }

    /// Whether a later change may leave the time stamps as they are.
    ///
    /// A file system stamps changes with a clock of limited granularity. A change within the same
    /// tick as the version's stamps, and of equal length, would give an equal version. Bytes read
    /// at `now_ns` are certain to be the last of this version only once the tick is over.
    /// `granularity_ns` is 0 where every observed change gets a new stamp (multigrain stamps).
    pub fn is_racy(&self, now_ns: i128, granularity_ns: u64) -> bool {
        let latest_ns = self.modified_ns.max(self.changed_ns);
        granularity_ns != 0 && now_ns - latest_ns <= i128::from(granularity_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version = Version {
        id: FileId { device: 1, inode: 2 },
        size: 3,
        modified_ns: 1_000,
        changed_ns: 2_000,
        born_ns: 500,
    };

    #[test]
    fn all_ways_of_asking_tell_one_version() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let at = rustix::fs::AtFlags::EMPTY_PATH;
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let statx = rustix::fs::statx(&file, "", at, flags).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let told = Version::from(&statx);
        assert_eq!(Version { born_ns: 0, ..told }, Version::from(&stat));
        assert_eq!(Version::from(&stat), Version::from(&file.metadata().unwrap()));
        assert!(told.agrees_with(&Version::from(&stat)) && told.modified_ns > SECOND_NS);
    }

    #[test]
    fn an_inode_number_given_to_another_file_is_another_file() {
        let reused = Version { born_ns: 1_500, ..VERSION };
        assert!(!VERSION.agrees_with(&reused) && !VERSION.is_of_same_file(&reused));
        let unknown = Version { born_ns: 0, ..VERSION };
        assert!(VERSION.agrees_with(&unknown) && unknown.agrees_with(&reused));
        assert_eq!(unknown.born_as(&VERSION), VERSION);
        assert_eq!(reused.born_as(&VERSION), reused);
        let changed = Version { changed_ns: 2_001, ..unknown };
        assert!(!VERSION.agrees_with(&changed) && VERSION.is_of_same_file(&changed));
    }

    #[test]
    fn a_version_is_racy_until_its_tick_is_over() {
        let version = VERSION;
        assert!(version.is_racy(2_500, 1_000));
        assert!(version.is_racy(1_000, 1_000), "a clock that jumped back proves nothing");
        assert!(!version.is_racy(3_001, 1_000));
        assert!(!version.is_racy(2_000, 0));
    }
}
