//! Files without a name (`O_TMPFILE`), created on the PFS as the caller. Their inode has no place
//! and keeps a descriptor until a link gives the file a name.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tidepool_proto::Access;

use crate::inode::attributes::version_of;
use crate::ops::filesystem::{Disposition, Filesystem};
use crate::ops::open::{access_of, has_flag, lower_flags, lower_flags_with_read};
use crate::protocol::abi::{CreateIn, CreateOut, InHeader};
use crate::protocol::device::Device;
use crate::protocol::request::{Answer, Errno};

impl Filesystem {
    /// `TMPFILE`: a file without a name, which `LINK` may give it.
    pub(crate) fn create_nameless(
        &self,
        caller: &InHeader,
        arguments: CreateIn,
        device: &Arc<Device>,
    ) -> Answer<CreateOut> {
        let (_, held) = self.directory_for(caller, caller.nodeid)?;
        let share = self.shares.take(caller.uid)?;
        self.credentials.set_umask(arguments.umask)?;
        let lower = open_nameless(&held, arguments)?;
        let stat = rustix::fs::fstat(&lower)?;
        let (directory, number) = self.by_descriptor(&lower);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path = rustix::fs::openat(directory, number.as_str(), flags, Mode::empty())?;
        let access = access_of(arguments.flags);
        let append = has_flag(arguments.flags, libc::O_APPEND);
        // There is no name to make durable.
        let file = self.open_in_node(caller, lower, access, Disposition::Plain, append)?;
        let inode = self.inodes.enter_nameless(path, &stat, &version_of(&stat));
        let entry = self.entry_of(&inode, &stat);
        match self.admit(caller, inode, file, (access, append), share, device) {
            Ok(open) => Ok(CreateOut { entry, open }),
            Err(errno) => {
                self.forget(entry.nodeid, 1);
                Err(errno)
            }
        }
    }
}

/// Creates a file without a name. A PFS that has none answers as if a directory were written to.
fn open_nameless(directory: &impl AsFd, arguments: CreateIn) -> Answer<OwnedFd> {
    let append = has_flag(arguments.flags, libc::O_APPEND);
    let flags = match access_of(arguments.flags) {
        Access::Write if !append => lower_flags_with_read(arguments.flags),
        _ => lower_flags(arguments.flags),
    };
    let mut flags = flags | OFlags::TMPFILE;
    if has_flag(arguments.flags, libc::O_EXCL) {
        flags |= OFlags::EXCL;
    }
    let mode = Mode::from_raw_mode(arguments.mode & 0o7777);
    match rustix::fs::openat(directory, c".", flags, mode) {
        Err(rustix::io::Errno::ISDIR) => Err(Errno(libc::EOPNOTSUPP)),
        outcome => Ok(outcome?),
    }
}
