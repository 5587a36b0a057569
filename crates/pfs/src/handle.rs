//! [`FileHandle`]: the name by which a file system itself finds a file again, whatever became of its
//! names. Not every file system has one, and only root may open it.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Words of the longest handle with its head.
const WORDS: usize = 20;
const HEAD_BYTES: usize = offset_of!(libc::file_handle, f_handle);

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct FileHandle([u64; WORDS]);

impl FileHandle {
    /// The handle of an open file; `None` where the file system has none.
    pub fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let mut handle = FileHandle([0; WORDS]);
        let room = (size_of_val(&handle.0) - HEAD_BYTES) as libc::c_uint;
        let head = handle.0.as_mut_ptr().cast::<libc::file_handle>();
        let mut mount = 0;
        // SAFETY: `head` points to words that are aligned for the struct and longer than it, and
        // the call is told how many bytes of a handle have room behind its head. The path is empty
        // and ends with a zero.
        let result = unsafe {
            (*head).handle_bytes = room;
            let path = c"".as_ptr();
            let flags = libc::AT_EMPTY_PATH;
            libc::name_to_handle_at(file.as_raw_fd(), path, head, &raw mut mount, flags)
        };
        (result == 0).then_some(handle)
    }

    /// Opens it to look at, in the file system of `root`; `None` where the file is gone.
    ///
    /// # Errors
    /// Where this process may not, or the file system cannot.
    pub fn open(&self, root: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        let mut words = self.0;
        let head = words.as_mut_ptr().cast::<libc::file_handle>();
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: `head` points to a whole handle that the kernel wrote; the call reads it.
        let opened = unsafe { libc::open_by_handle_at(root.as_raw_fd(), head, flags) };
        if opened >= 0 {
            // SAFETY: the descriptor was just opened and is nobody else's.
            return Ok(Some(unsafe { OwnedFd::from_raw_fd(opened) }));
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESTALE) => Ok(None),
            error => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::FileHandle;

    #[test]
    fn a_file_is_found_by_its_handle_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = File::open(directory.path()).unwrap();
        let path = directory.path().join("file");
        let file = File::create(&path).unwrap();
        let Some(handle) = FileHandle::of(file.as_fd()) else {
            println!("SKIPPED: the temporary directory has no handles");
            return;
        };
        std::fs::rename(&path, directory.path().join("moved")).unwrap();
        match handle.open(root.as_fd()) {
            Ok(found) => assert!(found.is_some()),
            Err(error) => {
                println!("SKIPPED: {error}");
                return;
            }
        }
        drop(file);
        std::fs::remove_file(directory.path().join("moved")).unwrap();
        assert!(handle.open(root.as_fd()).unwrap().is_none());
    }
}
