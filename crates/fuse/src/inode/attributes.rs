//! Converts file attributes of the PFS to those of FUSE and to the [`Version`] of the node.

use std::ops::Deref;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Stat, StatxFlags};
use tidepool_proto::{ChangeBegin, FileId, Version};

use crate::protocol::abi::Attributes;
use crate::protocol::request::Answer;

const NANOSECONDS: i128 = 1_000_000_000;

pub fn id_of(stat: &Stat) -> FileId {
    stat.into()
}

/// Version of the file, without its birth time.
pub fn version_of(stat: &Stat) -> Version {
    stat.into()
}

/// Identity and file type bits of an open file. They never change, so the PFS is not asked.
pub fn identity_of(file: &impl AsFd) -> Answer<(FileId, u32)> {
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, c"", at, StatxFlags::TYPE | StatxFlags::INO)?;
    Ok((FileId::from(&stat), u32::from(stat.stx_mode) & libc::S_IFMT))
}

/// Attributes of a file that this machine has just asked the PFS for; it is not asked again.
pub fn attributes_known(file: &impl AsFd) -> Answer<Stat> {
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let known = rustix::fs::statx(file, c"", at, StatxFlags::BASIC_STATS)?;
    // SAFETY: the structure has integers only, for which zero is a value.
    let mut stat: Stat = unsafe { std::mem::zeroed() };
    stat.st_dev = rustix::fs::makedev(known.stx_dev_major, known.stx_dev_minor);
    stat.st_rdev = rustix::fs::makedev(known.stx_rdev_major, known.stx_rdev_minor);
    stat.st_ino = known.stx_ino;
    stat.st_mode = known.stx_mode.into();
    stat.st_nlink = known.stx_nlink.into();
    stat.st_uid = known.stx_uid;
    stat.st_gid = known.stx_gid;
    stat.st_size = known.stx_size as i64;
    stat.st_blocks = known.stx_blocks as i64;
    stat.st_blksize = known.stx_blksize.into();
    stat.st_atime = known.stx_atime.tv_sec;
    stat.st_mtime = known.stx_mtime.tv_sec;
    stat.st_ctime = known.stx_ctime.tv_sec;
    stat.st_atime_nsec = known.stx_atime.tv_nsec.into();
    stat.st_mtime_nsec = known.stx_mtime.tv_nsec.into();
    stat.st_ctime_nsec = known.stx_ctime.tv_nsec.into();
    Ok(stat)
}

pub fn kind_of(stat: &Stat) -> u32 {
    stat.st_mode & libc::S_IFMT
}

/// Whether this is a regular file, the only kind that has data of its own here.
pub fn is_regular(stat: &Stat) -> bool {
    kind_of(stat) == libc::S_IFREG
}

/// The attributes of a file before a change of its metadata.
#[derive(Clone, Copy)]
pub struct Before {
    /// When they were asked for.
    pub begin: ChangeBegin,
    stat: Stat,
}

impl Before {
    /// For attributes that were asked for at `begin`.
    pub fn seen(begin: ChangeBegin, stat: Stat) -> Self {
        Before { begin, stat }
    }

    /// Asks for the attributes now.
    pub fn look<E>(stat: impl FnOnce() -> Result<Stat, E>) -> Result<Self, E> {
        let begin = ChangeBegin::now();
        Ok(Before { begin, stat: stat()? })
    }
}

impl Deref for Before {
    type Target = Stat;

    fn deref(&self) -> &Stat {
        &self.stat
    }
}

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
    /// Takes the length of bytes that are in memory only.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
        self.blocks = size.div_ceil(512);
    }

    /// Takes length and modification time from `version`.
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
    fn what_is_known_of_a_file_is_what_the_kernel_tells() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(12_345).unwrap();
        let (known, asked) = (attributes_known(&file).unwrap(), rustix::fs::fstat(&file).unwrap());
        assert_eq!(format!("{known:?}"), format!("{asked:?}"));
        let device = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(attributes_known(&device).unwrap().st_rdev, rustix::fs::makedev(1, 3));
    }

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 256), (4095, 0xf_ffff)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device, "{major}:{minor}");
        }
    }
}
