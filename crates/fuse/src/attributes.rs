//! From what the PFS says of a file to what the kernel and the node want to hear.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Stat, StatxFlags};
use tidepool_proto::{FileId, Version};

use crate::abi::Attributes;
use crate::request::Answer;

const NANOSECONDS: i128 = 1_000_000_000;

/// Identity of the file.
pub fn id_of(stat: &Stat) -> FileId {
    FileId { device: stat.st_dev, inode: stat.st_ino }
}

/// Identity and file type bits of what is open. They never change, so the PFS is not asked.
pub fn identity_of(file: &impl AsFd) -> Answer<(FileId, u32)> {
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, c"", at, StatxFlags::TYPE | StatxFlags::INO)?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok((FileId { device, inode: stat.stx_ino }, u32::from(stat.stx_mode) & libc::S_IFMT))
}

/// File type bits of the mode.
pub fn kind_of(stat: &Stat) -> u32 {
    stat.st_mode & libc::S_IFMT
}

/// Whether this is a regular file, the only kind that has data of its own here.
pub fn is_regular(stat: &Stat) -> bool {
    kind_of(stat) == libc::S_IFREG
}

/// Version of the file.
pub fn version_of(stat: &Stat) -> Version {
    let nanoseconds =
        |seconds: i64, rest: i64| i128::from(seconds) * NANOSECONDS + i128::from(rest);
    Version {
        id: id_of(stat),
        size: stat.st_size as u64,
        modified_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
        changed_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64),
        born_ns: 0,
    }
}

/// The kernel's form of the attributes.
pub fn attributes_of(stat: &Stat) -> Attributes {
    Attributes {
        inode: stat.st_ino,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: stat.st_atime,
        mtime: stat.st_mtime,
        ctime: stat.st_ctime,
        atime_ns: stat.st_atime_nsec as u32,
        mtime_ns: stat.st_mtime_nsec as u32,
        ctime_ns: stat.st_ctime_nsec as u32,
        mode: stat.st_mode,
        // Some file systems report no link count; zero would mean a deleted file.
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: encode_device(stat.st_rdev),
        block_size: stat.st_blksize as u32,
        flags: 0,
    }
}

impl Attributes {
    /// Takes length and time of content from `version`.
    pub fn show(&mut self, version: &Version) {
        self.size = version.size;
        self.mtime = version.modified_ns.div_euclid(NANOSECONDS) as i64;
        self.mtime_ns = version.modified_ns.rem_euclid(NANOSECONDS) as u32;
    }
}

/// A device number in the 32-bit form of the protocol.
pub fn encode_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The inverse of [`encode_device`].
pub fn decode_device(encoded: u32) -> u64 {
    let major = (encoded & 0xf_ff00) >> 8;
    let minor = (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00);
    rustix::fs::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 256), (4095, 0xf_ffff)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device, "{major}:{minor}");
        }
    }
}
