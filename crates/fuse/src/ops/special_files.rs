//! FIFOs and sockets. What passes through them stays in the kernel, which opens them and connects
//! to them by itself and never asks the mount who may. So the answer to a look-up decides: callers
//! whom the PFS does not let use one get a node for it that nobody else has, with the attributes of
//! the file, behind which there is a pipe without another end and a socket that nobody listens at.
//! Who may use a FIFO in one direction only is shut out as well, because the kernel would let him
//! use it in both.

use std::ffi::CStr;
use std::sync::Arc;

use rustix::fs::{Access, Stat};

use crate::inode::attributes::kind_of;
use crate::inode::table::{Inode, InodeDescriptor, look_at};
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::EntryOut;
use crate::protocol::request::Answer;

/// Whether the kernel opens or connects to such a file without asking.
pub(crate) fn bypasses_mount(stat: &Stat) -> bool {
    matches!(kind_of(stat), libc::S_IFIFO | libc::S_IFSOCK)
}

impl Filesystem {
    /// Counts a look-up of a FIFO or socket by the present identity, and describes it.
    pub(crate) fn entry_of_special_file(
        &self,
        parent: &Arc<Inode>,
        held: &InodeDescriptor,
        name: &CStr,
    ) -> Answer<EntryOut> {
        // By one descriptor, so that the file whose rights are weighed is the one in the answer.
        let (file, stat) = look_at(held, name)?;
        let wanted = match kind_of(&stat) {
            libc::S_IFIFO => Access::READ_OK | Access::WRITE_OK,
            libc::S_IFSOCK => Access::WRITE_OK,
            // Something else took the name; it asks by itself.
            _ => return Ok(self.entry(parent, name, &stat)),
        };
        match self.check_access(&file, wanted) {
            Ok(()) => Ok(self.entry(parent, name, &stat)),
            Err(_) => Ok(self.entry_of(&self.inodes.enter_private(parent, name, &stat), &stat)),
        }
    }
}
