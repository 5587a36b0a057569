//! Where segment memory comes from: files on a private tmpfs, or memfd, in 2 MiB pages where the
//! kernel gives them. It keeps no account of the memory; the budget does that.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use tidepool_proto::{Error, ErrorKind, HUGE_PAGE_BYTES, Result};

use crate::config::BackingChoice;
use crate::mapping::Mapping;

/// Chooses the signal that tells of a lease; the C library's headers have it, `libc` does not.
const F_SETSIG: libc::c_int = 10;

/// Unit of memory in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A source of memory files.
pub(crate) struct Backing {
    /// The root of a tmpfs that no name leads to; `None` uses memfd.
    mount: Option<OwnedFd>,
    advise_huge_pages: bool,
    huge_pages: bool,
    degradations: Vec<String>,
}

impl Backing {
    /// Opens what `choice` asks for, or for `Auto` the best that works, and notes what is lost.
    pub fn open(choice: BackingChoice, want_huge_pages: bool) -> Result<Backing> {
        let mut degradations = Vec::new();
        let mount = match choice {
            BackingChoice::Memfd => None,
            BackingChoice::Tmpfs => {
                Some(mount_tmpfs(want_huge_pages, UNLIMITED).map_err(|errno| {
                    Error::new(ErrorKind::Unsupported, "mounting a private tmpfs", "")
                        .caused_by(errno)
                        .remedy("run the node as root, or use the backing `memfd`")
                })?)
            }
            BackingChoice::Auto => mount_tmpfs(want_huge_pages, UNLIMITED)
                .inspect_err(|errno| {
                    degradations.push(format!(
                        "store: no private tmpfs ({errno}); using memfd: start as root for 2MiB \
                         pages regardless of the system's shmem_enabled"
                    ));
                })
                .ok(),
        };
        let advise_huge_pages = want_huge_pages && mount.is_none();
        let mut backing = Backing { mount, advise_huge_pages, huge_pages: false, degradations };
        if want_huge_pages {
            backing.huge_pages = backing.gives_huge_pages()?;
            if !backing.huge_pages {
                backing.degradations.push(
                    "store: the kernel gives no 2MiB pages, so reads and freeing are slower; as \
                     root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
                        .to_owned(),
                );
            }
        }
        Ok(backing)
    }

    /// A tmpfs that has room for `limit_bytes` only, so that the kernel runs out of memory.
    /// `None` without the right to mount.
    #[cfg(test)]
    pub fn open_limited(limit_bytes: u64) -> Option<Backing> {
        let mount = Some(mount_tmpfs(false, &limit_bytes.to_string()).ok()?);
        let degradations = Vec::new();
        Some(Backing { mount, advise_huge_pages: false, huge_pages: false, degradations })
    }

    pub fn name(&self) -> &'static str {
        if self.mount.is_some() { "tmpfs" } else { "memfd" }
    }

    /// Whether a trial block came in 2 MiB pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    pub fn degradations(&self) -> &[String] {
        &self.degradations
    }

    /// A new file of `size_bytes` that holds no memory yet. Its mode is 0000, so that who gets a
    /// read-only descriptor cannot open it for writing by way of `/proc`.
    pub fn create(&self, size_bytes: u64) -> Result<MemoryFile> {
        let created = match &self.mount {
            Some(mount) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
                rustix::fs::openat(mount, ".", flags, Mode::empty())
            }
            None => counted_memfd("tidepool-segment"),
        };
        let write = created.map_err(|errno| no_descriptor("creating a segment", errno))?;
        let file = MemoryFile { write, read: Mutex::default() };
        file.set_len(size_bytes)?;
        Ok(file)
    }

    /// Asks for 2 MiB pages where the backing needs to be asked, for whole ones only: beyond the
    /// end of a file they would be memory that nobody counts.
    pub fn advise(&self, mapping: &Mapping, start: u64, length: u64) {
        let whole = length - length % HUGE_PAGE_BYTES;
        if self.advise_huge_pages && whole > 0 {
            mapping.advise_huge_pages(start, whole);
        }
    }

    fn gives_huge_pages(&self) -> Result<bool> {
        let length = 2 * HUGE_PAGE_BYTES;
        let file = self.create(length)?;
        let mapping = file.map(length)?;
        self.advise(&mapping, 0, length);
        if mapping.populate(0, length).is_err() {
            return Ok(false);
        }
        Ok(mapping.has_huge_pages())
    }
}

/// The budget limits the memory; the default limit of half the machine would be a second one.
const UNLIMITED: &str = "0";

fn mount_tmpfs(huge_pages: bool, size: &str) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // `within_size` leaves the tail of a file in small pages, so that accounting is exact. A
    // kernel without huge pages refuses the option; the probe then tells.
    if huge_pages {
        _ = rustix::mount::fsconfig_set_string(&context, "huge", "within_size");
    }
    for (option, value) in [("size", size), ("nr_inodes", "0"), ("mode", "0700")] {
        rustix::mount::fsconfig_set_string(&context, option, value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn memfd(name: &str, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | flags)?;
    rustix::fs::fchmod(&file, Mode::empty())?;
    Ok(file)
}

/// A memfd that the kernel counts as open for writing once, which it does not where it makes one.
fn counted_memfd(name: &str) -> Result<OwnedFd, Errno> {
    let made = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    let path = format!("/proc/self/fd/{}", made.as_raw_fd());
    // Without `/proc` nobody can tell who has it mapped, and what is borrowed stays.
    let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let file = file.unwrap_or(made);
    rustix::fs::fchmod(&file, Mode::empty())?;
    Ok(file)
}

fn no_descriptor(operation: &str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::MFILE | Errno::NFILE => ErrorKind::LimitReached,
        _ => ErrorKind::Unsupported,
    };
    Error::new(kind, operation, "")
        .caused_by(errno)
        .remedy("raise the limit of open files of the node (ulimit -n), or cache fewer files")
}

/// A file that exists in memory only.
pub(crate) struct MemoryFile {
    write: OwnedFd,
    /// What copies for other processes are made of.
    read: Mutex<Option<OwnedFd>>,
}

impl MemoryFile {
    /// A file of fixed size for words shared with clients, sealed against changes of its length.
    pub fn create_shared(name: &str, size_bytes: u64) -> Result<MemoryFile> {
        let describe = |errno| no_descriptor("creating a table for clients", errno);
        let write = memfd(name, MemfdFlags::ALLOW_SEALING).map_err(describe)?;
        let file = MemoryFile { write, read: Mutex::default() };
        file.set_len(size_bytes)?;
        rustix::fs::fcntl_add_seals(&file.write, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(describe)?;
        Ok(file)
    }

    /// Forbids further seals, which any process that may write could set: nobody stops the node's
    /// writes.
    pub fn seal_as_it_is(&self) -> Result<()> {
        rustix::fs::fcntl_add_seals(&self.write, SealFlags::SEAL)
            .map_err(|errno| no_descriptor("sealing a page for clients", errno))
    }

    /// Forbids writing through any mapping or descriptor but the mappings that exist now.
    pub fn seal_writes(&self) -> Result<()> {
        rustix::fs::fcntl_add_seals(&self.write, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(|errno| no_descriptor("sealing a table for clients", errno))
    }

    pub fn set_len(&self, size_bytes: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.write, size_bytes).map_err(|errno| {
            Error::new(ErrorKind::Unsupported, "setting the length of a segment", "")
                .caused_by(errno)
        })
    }

    /// Writes bytes, growing the file with them.
    pub fn write_all_at(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.write, bytes, offset) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Gives the memory of a range back; the length stays. Parts of pages at its ends are zeroed.
    pub fn punch(&self, start: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        while let Err(errno) = rustix::fs::fallocate(&self.write, flags, start, length) {
            // Punching memory files cannot fail otherwise on the kernels that have O_TMPFILE.
            assert!(errno == Errno::INTR, "punching a hole into a memory file: {errno}");
        }
    }

    /// Frees the memory behind the first `length` bytes of the range up to `end`. Where that is
    /// part of a huge page which the kernel cannot split at this moment, the whole range is freed
    /// and the first bytes are returned, to be written back. Nobody may use the range meanwhile.
    pub fn free_tail(&self, start: u64, length: u64, end: u64) -> Option<Vec<u8>> {
        self.punch(start + length, end - start - length);
        let first_page = (start + length).next_multiple_of(PAGE_BYTES);
        // Moves the descriptor's offset, which nobody uses.
        let data = rustix::fs::seek(&self.write, SeekFrom::Data(first_page));
        if !data.is_ok_and(|data| data < end) {
            return None;
        }
        let mut kept = vec![0; length as usize];
        let mut done = 0;
        while let Ok(count @ 1..) =
            rustix::io::pread(&self.write, &mut kept[done..], start + done as u64)
        {
            done += count;
        }
        assert!(done == kept.len(), "reading memory that is there");
        self.punch(start, end - start);
        Some(kept)
    }

    /// Puts bytes back whose memory was freed just now.
    pub fn write_back(&self, start: u64, kept: &[u8]) {
        let mut written = 0;
        while written < kept.len() {
            match rustix::io::pwrite(&self.write, &kept[written..], start + written as u64) {
                Ok(count) => written += count,
                // More than this was freed: memory comes back, and the bytes are safe here.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    pub fn map(&self, length: u64) -> Result<Mapping> {
        Mapping::new(self.write.as_fd(), length)
    }

    /// The descriptor of the node itself.
    pub fn read_write(&self) -> BorrowedFd<'_> {
        self.write.as_fd()
    }

    /// A copy of the descriptor for writing, for files that clients write.
    pub fn writable_copy(&self) -> Result<OwnedFd> {
        duplicate(self.write.as_fd())
    }

    /// A read-only descriptor for another process.
    pub fn read_only_copy(&self) -> Result<OwnedFd> {
        let mut read = self.read.lock();
        if read.is_none() {
            let opened = open_read_only(&self.write)
                .map_err(|errno| no_descriptor("opening a segment for reading", errno))?;
            *read = Some(opened);
        }
        duplicate(read.as_ref().expect("opened above").as_fd())
    }

    /// Who has the file open or mapped beside the node. Forgets the node's own read-only
    /// descriptor, which would count. The kernel tells nobody of an unmap; but it grants a write
    /// lease only where nobody else has the file open, and a mapping keeps a file open.
    pub fn others(&self) -> Others {
        drop(self.read.lock().take());
        // Whoever opens the file between the two leases has this process told: by a signal that
        // does nothing, where the usual one would end it.
        let granted = self
            .control(F_SETSIG, libc::SIGURG)
            .and_then(|()| self.control(libc::F_SETLEASE, libc::F_WRLCK));
        match granted {
            Ok(()) => match self.control(libc::F_SETLEASE, libc::F_UNLCK) {
                Ok(()) => Others::None,
                Err(_) => Others::Unknown,
            },
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => Others::Some,
            Err(_) => Others::Unknown,
        }
    }

    fn control(&self, command: libc::c_int, argument: libc::c_int) -> Result<(), Errno> {
        // SAFETY: the descriptor is open, and these commands take a number and touch no memory.
        match unsafe { libc::fcntl(self.write.as_raw_fd(), command, argument) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
            _ => Ok(()),
        }
    }
}

/// Who beside the node has a memory file open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Nobody.
    None,
    /// Somebody, or it cannot be told at this moment.
    Some,
    /// This kernel does not tell.
    Unknown,
}

fn duplicate(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(descriptor, 0)
        .map_err(|errno| no_descriptor("duplicating a descriptor", errno))
}

fn open_read_only(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        // Without root, mode 0000 binds the node too: lift it for the length of this call.
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(file, Mode::RUSR)?;
            let opened = rustix::fs::open(&path, flags, Mode::empty());
            rustix::fs::fchmod(file, Mode::empty())?;
            opened
        }
        other => other,
    }
}

/// The limit on mappings of a process.
pub(crate) fn mappings_max() -> usize {
    let read = |path| std::io::read_to_string(File::open(path)?);
    read("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65_530)
}
