//! The files of blocks in a directory, which no other server uses meanwhile.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, fdatasync, flock,
    fstat, fsync, ftruncate, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, pwritev};

use super::format::{self, RECORD_BYTES, Record};
use super::replay::Place;
use crate::key::BlockName;

const SUFFIX: &str = ".block";
const LOCK: &str = "lock";
/// End of the names of files that are being written anew.
const BESIDE: &str = ".new";

/// End of the names of files that were never synced, or of more than one of a block.
const ASIDE: &str = ".unsynced";
/// Files of a block that are set aside.
const ASIDE_MAX: u32 = 1000;

/// See the module's documentation.
pub struct Files {
    directory: OwnedFd,
    /// Held as long as this lives.
    _lock: OwnedFd,
}

/// How far the file of a block is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Where the next record begins; 0 where there is no file yet.
    pub end: u64,
    /// How much of it is durable.
    pub durable: u64,
    /// How often that was said.
    pub said: u64,
    /// Whether its name is durable.
    pub is_named: bool,
}

impl Files {
    /// Opens a directory, which is made where there is none.
    ///
    /// # Errors
    /// The directory cannot be had, or another server has it.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Names of blocks are nobody's business.
        if !path.exists() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = openat(&directory, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => io::Error::other(format!(
                "{} is used by another buffer server: stop it, or give this one another directory",
                path.display()
            )),
            errno => errno.into(),
        })?;
        fsync(&directory)?;
        Ok(Files { directory, _lock: lock })
    }

    /// Names of all files of blocks, each with the block that it says. What was not finished is
    /// removed; what is called otherwise is somebody else's.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<(String, BlockName)>> {
        let name = |name: &CStr| name.to_str().ok().map(str::to_owned);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            let Some(name) = name(entry?.file_name()) else { continue };
            if name.strip_suffix(BESIDE).is_some_and(|of| block_of(of).is_some()) {
                if let Err(error) = self.remove_name(&name) {
                    tracing::warn!(name, %error, "what was not finished cannot be removed");
                }
            } else if let Some(block) = block_of(&name) {
                names.push((name, block));
            }
        }
        Ok(names)
    }

    /// Opens the file of a block to read.
    ///
    /// # Errors
    /// It cannot be had, or is no file.
    pub fn open_to_read(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.directory, name, flags, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(file.into()),
            _ => Err(io::Error::other("it is no file")),
        }
    }

    /// Opens the file of a block to write, and makes it where `progress` says that there is none.
    ///
    /// # Errors
    /// It cannot be had, or there is one of which nobody knows.
    pub fn open_to_write(&self, block: &BlockName, progress: &mut Progress) -> io::Result<File> {
        let (name, mode) = (name_of(block), Mode::RUSR | Mode::WUSR);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if progress.end > 0 {
            let file = openat(&self.directory, name, flags, mode)?;
            // Whole records behind a torn one would follow what is appended, and count as later.
            ftruncate(&file, progress.end)?;
            return Ok(file.into());
        }
        let file = openat(&self.directory, &*name, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
        let header = format::header(block);
        write_all(&file, &[&header], 0).inspect_err(|_| drop(self.remove_name(&name)))?;
        progress.end = header.len() as u64;
        Ok(file.into())
    }

    /// Writes a file for a block anew beside the one that it has, with these of its packets alone,
    /// durably; it, how far it is, and where its packets are.
    ///
    /// # Errors
    /// The disk does not take it, or a packet cannot be read: nothing is left of it.
    pub fn write_beside(
        &self,
        block: &BlockName,
        packets: &[(u32, Place)],
    ) -> io::Result<(File, Progress, Vec<Place>)> {
        let (name, mode) = (format!("{}{BESIDE}", name_of(block)), Mode::RUSR | Mode::WUSR);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let written = || -> io::Result<_> {
            let file = File::from(openat(&self.directory, &*name, flags, mode)?);
            let header = format::header(block);
            write_all(&file, &[&header], 0)?;
            let mut progress = Progress { end: header.len() as u64, ..Progress::default() };
            let mut places = Vec::with_capacity(packets.len());
            for (packet, place) in packets {
                let bytes = self.read(block, place)?;
                let Place { length, flags, checksum, number, .. } = *place;
                let length = Some(length);
                let record = Record { packet: *packet, length, flags, checksum, number };
                places.push(append(&file, &mut progress, &record, &bytes)?);
            }
            fdatasync(&file)?;
            progress.durable = progress.end;
            progress.said = 1;
            let (place, slot) = format::durable(progress.said, progress.durable);
            write_all(&file, &[&slot], place)?;
            fdatasync(&file)?;
            Ok((file, progress, places))
        };
        written().inspect_err(|_| drop(self.remove_name(&name)))
    }

    /// Puts what was written beside in the place of the file of a block.
    ///
    /// # Errors
    /// The old one is there still.
    pub fn put_in_place(&self, block: &BlockName) -> io::Result<()> {
        let name = name_of(block);
        let beside = format!("{name}{BESIDE}");
        let put = renameat(&self.directory, &*beside, &self.directory, &*name);
        put.map_err(io::Error::from).inspect_err(|_| drop(self.remove_name(&beside)))
    }

    /// Gives a file a name that no server looks at.
    ///
    /// # Errors
    /// It has the old one.
    pub fn set_aside(&self, name: &str) -> io::Result<String> {
        let tried = (0..ASIDE_MAX).map(|number| match number {
            0 => format!("{name}{ASIDE}"),
            _ => format!("{name}{ASIDE}.{number}"),
        });
        for aside in tried {
            // What was set aside before stays.
            let flags = RenameFlags::NOREPLACE;
            match renameat_with(&self.directory, name, &self.directory, &*aside, flags) {
                Ok(()) => return Ok(aside),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Makes names durable, and that there are none.
    ///
    /// # Errors
    /// The disk does not say that they are.
    pub fn sync_directory(&self) -> io::Result<()> {
        Ok(fsync(&self.directory)?)
    }

    /// Removes the file of a block, if there is one.
    ///
    /// # Errors
    /// It is there still.
    pub fn remove(&self, block: &BlockName) -> io::Result<()> {
        self.remove_name(&name_of(block))
    }

    /// The same by its name.
    ///
    /// # Errors
    /// It is there still.
    pub fn remove_name(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes all that was appended to a file durable, and its name.
    ///
    /// # Errors
    /// The disk does not say that it is.
    pub fn sync(&self, file: &File, progress: &mut Progress) -> io::Result<()> {
        fdatasync(file)?;
        if !progress.is_named {
            fsync(&self.directory)?;
            progress.is_named = true;
        }
        progress.durable = progress.end;
        progress.said += 1;
        let (place, slot) = format::durable(progress.said, progress.durable);
        // It is durable with what comes next: it only tells more of what is broken.
        write_all(file, &[&slot], place)
    }

    /// Notes in a file that a sync of it failed.
    pub fn note_failed(&self, file: &File) {
        let (place, failed) = format::failed();
        if let Err(error) = write_all(file, &[&failed], place) {
            tracing::warn!(%error, "that a sync failed is not noted on the disk");
        }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// It cannot be had, or is not what was written.
    pub fn read(&self, block: &BlockName, place: &Place) -> io::Result<Vec<u8>> {
        let file = self.open_to_read(&name_of(block))?;
        let mut bytes = vec![0; place.length as usize];
        let mut read = 0;
        while read < bytes.len() {
            match pread(&file, &mut bytes[read..], place.offset + read as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => read += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        match format::checksum(&bytes) == place.checksum {
            true => Ok(bytes),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is another one")),
        }
    }
}

/// Appends a record. What an earlier try left behind the end is written over.
///
/// # Errors
/// It is not there whole.
pub fn append(
    file: &File,
    progress: &mut Progress,
    record: &Record,
    value: &[u8],
) -> io::Result<Place> {
    let header = record.encode();
    write_all(file, &[&header, value], progress.end)?;
    let offset = progress.end + RECORD_BYTES as u64;
    progress.end = offset + value.len() as u64;
    let Record { flags, checksum, number, .. } = *record;
    Ok(Place { offset, length: value.len() as u32, flags, checksum, number })
}

/// Name of the file of a block.
fn name_of(block: &BlockName) -> String {
    format!("{:016x}-{}{SUFFIX}", block.epoch, block.block)
}

/// Of which block a file is by its name; `None` where it is another one.
fn block_of(name: &str) -> Option<BlockName> {
    let (epoch, block) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let epoch = u64::from_str_radix(epoch, 16).ok()?;
    let block = BlockName { epoch, block: block.parse().ok()? };
    (name_of(&block) == name).then_some(block)
}

fn write_all(file: impl AsFd, parts: &[&[u8]], mut at: u64) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        let written = match left {
            [one] => pwrite(&file, one, at),
            _ => pwritev(&file, left, at),
        };
        match written {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
