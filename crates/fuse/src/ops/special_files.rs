//! FIFOs and sockets. The kernel opens and connects them by itself, with no question to the mount,
//! so the answer to the look-up has to enforce the rights of the PFS. A caller without them gets a
//! private inode with the attributes of the file, whose FIFO has no other end and whose socket has
//! no listener. A caller that may use a FIFO in one direction only gets it as well, because the
//! kernel would allow both.

use std::ffi::CStr;
use std::sync::Arc;

use rustix::fs::{Access, Stat};

use crate::inode::attributes::kind_of;
use crate::inode::pins::look_at;
use crate::inode::state::{Inode, InodeDescriptor};
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::EntryOut;
use crate::protocol::request::Answer;

/// Whether the kernel opens or connects such a file without asking the mount.
pub(crate) fn bypasses_mount(stat: &Stat) -> bool {
    matches!(kind_of(stat), libc::S_IFIFO | libc::S_IFSOCK)
}

impl Filesystem {
    /// Counts a look-up of a FIFO or socket with the present identity, and returns its entry.
    pub(crate) fn entry_of_special_file(
        &self,
        parent: &Arc<Inode>,
        held: &InodeDescriptor,
        name: &CStr,
    ) -> Answer<EntryOut> {
        // By one descriptor, so that the rights are those of the file in the answer.
        let (file, stat) = look_at(held, name)?;
        let wanted = match kind_of(&stat) {
            libc::S_IFIFO => Access::READ_OK | Access::WRITE_OK,
            libc::S_IFSOCK => Access::WRITE_OK,
            // The name leads to something else now; its opens come to the mount.
            _ => return Ok(self.entry(parent, name, &stat)),
        };
        match self.check_access(&file, wanted) {
            Ok(()) => Ok(self.entry(parent, name, &stat)),
            Err(_) => Ok(self.entry_of(&self.inodes.enter_private(parent, name, &stat), &stat)),
        }
    }
}
