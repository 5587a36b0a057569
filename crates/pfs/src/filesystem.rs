//! Which file system a descriptor lies on, and what is known of its type beforehand. Facts that
//! can be measured are measured elsewhere; this table holds the rest.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use tidepool_proto::mounts::{MOUNT_TYPE, MountTable};

use crate::features::{FsyncReach, GRANULARITY_SAFE_NS};

/// Magic numbers of `statfs(2)`; see statfs(2) and the kernel's `magic.h`.
pub(crate) mod magic {
    pub const LUSTRE: u64 = 0x0BD0_0BD0;
    pub const CEPH: u64 = 0x00C3_6400;
    pub const GPFS: u64 = 0x4750_4653;
    pub const BEEGFS: u64 = 0x1983_0326;
    pub const ORANGEFS: u64 = 0x2003_0528;
    pub const FUSE: u64 = 0x6573_5546;
    pub const BTRFS: u64 = 0x9123_683E;
    pub const OVERLAY: u64 = 0x794C_7630;
    pub const TMPFS: u64 = 0x0102_1994;
}

const ORANGEFS_STAMPS: &str = "the client that writes moves the time stamps, OrangeFS's servers \
     do not: changes of equal length by its library (MPI-IO, pvfs2-cp) are not seen";
const PVFS2FUSE_ATTRIBUTES: &str = "pvfs2fuse keeps attributes: lengths changed on other machines \
     show up to 10 s late, names up to 60 s (PVFS2_ACACHE_TIMEOUT=0 and PVFS2_NCACHE_TIMEOUT=0 in \
     its environment cure names, not lengths)";

/// A mounted file system.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileSystem {
    pub magic: u64,
    pub mount_id: u64,
    pub fs_type: String,
    pub source: String,
}

impl FileSystem {
    /// Of the file or directory behind `descriptor`.
    pub fn of(descriptor: BorrowedFd<'_>) -> std::io::Result<FileSystem> {
        let magic = rustix::fs::fstatfs(descriptor)?.f_type as u64;
        let mount_id = mount_id_of(descriptor)?;
        let table = MountTable::read().unwrap_or_default();
        let (fs_type, source) = find_mount(&table, mount_id)
            .unwrap_or_else(|| (format!("unknown-{magic:#x}"), String::new()));
        Ok(FileSystem { magic, mount_id, fs_type: exact_type(fs_type, &source), source })
    }

    /// Like [`of`](Self::of), but without asking the file system anything, so that a dead server
    /// cannot hold the answer. The magic number is left out.
    pub fn without_contact(path: &std::path::Path) -> std::io::Result<FileSystem> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty())?;
        let mount_id = mount_id_of(descriptor.as_fd())?;
        let table = MountTable::read()?;
        let (fs_type, source) = find_mount(&table, mount_id).unwrap_or_default();
        Ok(FileSystem { magic: 0, mount_id, fs_type, source })
    }

    /// Whether this is a mount of Tidepool itself.
    pub fn is_tidepool(&self) -> bool {
        self.fs_type == MOUNT_TYPE
            || (self.fs_type.starts_with("fuse") && self.source.starts_with("tidepool"))
    }

    /// What is known of file systems of this type.
    pub fn known(&self) -> Known {
        // Of GlusterFS, seen: with its default options pages outlive an open that finds new stamps.
        let keeps_stale_pages = self.fs_type.starts_with("fuse") || self.magic == magic::FUSE;
        Known { keeps_stale_pages, ..self.known_by_type() }
    }

    fn known_by_type(&self) -> Known {
        let local = Known {
            remote: false,
            granularity_ns: GRANULARITY_SAFE_NS,
            fsync_reach: FsyncReach::Storage,
            fsync_is_per_open: false,
            keeps_stale_pages: false,
            multigrain: false,
            device_per_file: false,
            writes_move_stamps: None,
            notes: &[],
        };
        let remote = Known { remote: true, fsync_reach: FsyncReach::Unknown, ..local };
        let durable = Known { fsync_reach: FsyncReach::Storage, ..remote };
        match self.fs_type.as_str() {
            "ext4" | "xfs" => Known { multigrain: true, ..local },
            "btrfs" => Known { multigrain: true, device_per_file: true, ..local },
            "tmpfs" | "ramfs" => Known {
                multigrain: self.fs_type == "tmpfs",
                fsync_reach: FsyncReach::Nothing,
                notes: &["memory only: nothing here survives a power failure"],
                ..local
            },
            "overlay" => Known { device_per_file: true, ..local },
            "ext2" | "ext3" | "f2fs" | "zfs" | "bcachefs" | "jfs" => local,
            "lustre" => {
                Known { granularity_ns: 1_000_000_000, writes_move_stamps: Some(true), ..durable }
            }
            "orangefs" => Known { notes: &[ORANGEFS_STAMPS], ..durable },
            "ceph" | "fuse.ceph-fuse" | "gpfs" | "beegfs" | "panfs" => durable,
            "nfs" | "nfs4" | "fuse.glusterfs" => durable,
            "fuse.mfs" | "fuse.mfsmount" => Known {
                fsync_reach: FsyncReach::ServerCache,
                fsync_is_per_open: true,
                notes: &[
                    "fsync ends in the memory of a chunk server: a power failure loses it",
                    "fsync of one open leaves what others wrote: new files are written by the \
                     node, not by the kernel",
                ],
                ..remote
            },
            "fuse.pvfs2fuse" | "fuse.pvfs2" => Known {
                fsync_reach: FsyncReach::Nothing,
                writes_move_stamps: Some(false),
                notes: &[
                    "fsync is an empty stub of pvfs2fuse: close promises nothing durable",
                    PVFS2FUSE_ATTRIBUTES,
                ],
                ..remote
            },
            _ => self.known_by_magic(local, remote),
        }
    }

    fn known_by_magic(&self, local: Known, remote: Known) -> Known {
        match self.magic {
            magic::LUSTRE => Known { granularity_ns: 1_000_000_000, ..remote },
            magic::TMPFS => Known { fsync_reach: FsyncReach::Nothing, ..local },
            magic::BTRFS | magic::OVERLAY => Known { device_per_file: true, ..local },
            // What is not known of a client in user space is not relied on.
            magic::FUSE => Known { fsync_is_per_open: true, ..remote },
            _ if !self.source.starts_with("/dev/") => remote,
            _ => Known { fsync_reach: FsyncReach::Unknown, ..local },
        }
    }
}

/// FUSE servers that give no subtype are known by their source.
fn exact_type(fs_type: String, source: &str) -> String {
    match fs_type.as_str() {
        "fuse" if source.starts_with("mfs#") => "fuse.mfs".to_owned(),
        "fuse" if source.contains("pvfs2") => "fuse.pvfs2fuse".to_owned(),
        _ => fs_type,
    }
}

fn mount_id_of(descriptor: BorrowedFd<'_>) -> std::io::Result<u64> {
    // Taken from the mount, not from the file, so what is cached of the file will do.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(descriptor, "", flags, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// What is known of a type of file system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Known {
    /// Other machines may change files.
    pub remote: bool,
    /// Granularity of time stamps to assume where it cannot be measured.
    pub granularity_ns: u64,
    pub fsync_reach: FsyncReach,
    /// See [`crate::Features::fsync_is_per_open`].
    pub fsync_is_per_open: bool,
    /// See [`crate::Features::keeps_stale_pages`].
    pub keeps_stale_pages: bool,
    /// Since Linux 6.13 every change that follows a look at the stamps gets a new stamp.
    pub multigrain: bool,
    /// `stat` reports other device numbers for some files than for the root.
    pub device_per_file: bool,
    /// Whether a write moves the time stamps of its file, where that need not be tried.
    pub writes_move_stamps: Option<bool>,
    /// What users should know.
    pub notes: &'static [&'static str],
}

/// Type and source of a mount.
fn find_mount(table: &MountTable, mount_id: u64) -> Option<(String, String)> {
    let mount = table.mounts().find(|mount| mount.id == mount_id)?;
    Some((mount.kind().into_owned(), mount.source().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 27 0:21 / /proc rw,relatime - proc proc rw
36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root\\040disk rw,errors=continue
90 27 0:51 / /mnt/tide rw - fuse.tidepool tidepool rw,user_id=0\n";

    #[test]
    fn the_mount_table_is_read() {
        let table = MountTable::from_text(TABLE);
        let found = find_mount(&table, 36).unwrap();
        assert_eq!(found, ("ext3".to_owned(), "/dev/root disk".to_owned()));
        assert_eq!(find_mount(&table, 37), None);
        let (fs_type, source) = find_mount(&table, 90).unwrap();
        let mount = FileSystem { magic: magic::FUSE, mount_id: 90, fs_type, source };
        assert!(mount.is_tidepool());
    }

    #[test]
    fn fuse_servers_without_a_subtype_are_known() {
        assert_eq!(exact_type("fuse".to_owned(), "mfs#10.77.0.1:9421"), "fuse.mfs");
        assert_eq!(exact_type("fuse".to_owned(), "pvfs2fuse"), "fuse.pvfs2fuse");
        assert_eq!(exact_type("fuse".to_owned(), "other"), "fuse");
        assert_eq!(exact_type("lustre".to_owned(), "mfs#x"), "lustre");
    }

    #[test]
    fn unknown_types_are_taken_for_remote_unless_on_a_device() {
        let mut mount = FileSystem {
            magic: 1,
            mount_id: 1,
            fs_type: "newfs".to_owned(),
            source: "server:/volume".to_owned(),
        };
        assert!(mount.known().remote);
        assert_eq!(mount.known().granularity_ns, GRANULARITY_SAFE_NS);
        mount.source = "/dev/sdb1".to_owned();
        assert!(!mount.known().remote);
        mount.fs_type = "lustre".to_owned();
        assert_eq!(mount.known().granularity_ns, 1_000_000_000);
        assert_eq!(mount.known().writes_move_stamps, Some(true));
        assert!(!mount.known().keeps_stale_pages);
        mount.fs_type = "fuse.pvfs2fuse".to_owned();
        assert!(mount.known().keeps_stale_pages);
        assert_eq!(mount.known().writes_move_stamps, Some(false));
    }
}
