//! [`Credentials`]: gives a thread the rights of the calling user on the PFS.
//!
//! A worker takes the file system identity of the caller before it touches a name, and the
//! daemon's own before it calls the node. The switch is per thread (raw system calls; the C
//! library's `setgroups` would change all threads) and lazy: nothing happens when the thread
//! already has the right identity. Supplementary groups come from the status file of the calling
//! thread. A caller whose groups cannot be read is refused, never served with fewer groups.
//!
//! Root has the rights of its capabilities, which are in the same file. Where it lacks some (in a
//! container, in another user name space) the thread gives up its own for the call.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_pfs::identity::{self, ALL};
use tidepool_proto::Identity;

use crate::protocol::abi::InHeader;
use crate::protocol::request::{Answer, Errno};

/// For how long the groups of a thread are taken as unchanged.
const GROUPS_AGE_MAX: Duration = Duration::from_millis(250);
const GROUPS_ENTRIES_MAX: usize = 4_096;
const ROOT: u32 = 0;
/// Capabilities without which root is not served as root: `CHOWN`, `DAC_OVERRIDE`, `FOWNER`,
/// `FSETID` and `MKNOD`.
const ROOT_CAPABILITIES: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 27;
const NONE: [u32; 2] = [0; 2];
/// `CAP_FSETID`: set-id bits stay when a file is written.
const CAP_FSETID: u32 = 1 << 4;

type Groups = Arc<[u32]>;

/// What a caller may do beyond the rights of its user and group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights {
    groups: Groups,
    /// Effective capabilities.
    capabilities: [u32; 2],
}

/// Thread, user and group of a caller.
type Key = (u32, u32, u32);

thread_local! {
    /// The umask of this thread, if it has one of its own.
    static UMASK: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Switches threads between the daemon's identity and the callers'.
#[derive(Debug)]
pub struct Credentials {
    switching: bool,
    rights: Mutex<HashMap<Key, (Instant, Rights)>>,
    user_name_space: Option<PathBuf>,
}

impl Credentials {
    /// Only root can switch; the mount of any other user serves that user alone.
    pub fn new() -> Self {
        let switching = rustix::process::geteuid().is_root();
        let user_name_space = std::fs::read_link("/proc/self/ns/user").ok();
        Credentials { switching, rights: Mutex::default(), user_name_space }
    }

    /// Takes the caller's identity for what this thread does next on the PFS.
    pub fn become_caller(&self, caller: &InHeader) -> Answer {
        if !self.switching {
            return Ok(());
        }
        let Rights { groups, capabilities } = self.rights_of(caller)?;
        if caller.uid == ROOT && capabilities[0] & ROOT_CAPABILITIES == ROOT_CAPABILITIES {
            // Root with these capabilities passes whatever its groups, so they stay as they are.
            identity::take_group(caller.gid)?;
            return become_root(ALL);
        }
        identity::take_groups(&groups)?;
        identity::take_group(caller.gid)?;
        match caller.uid {
            ROOT => become_root(capabilities),
            user => Ok(identity::take_user(user)?),
        }
    }

    /// As [`Self::become_caller`], for a file that the kernel then writes with these rights for
    /// everybody who uses the descriptor: set-id bits go with each write, also of root.
    pub fn become_writer(&self, caller: &InHeader) -> Answer {
        self.become_caller(caller)?;
        if !self.switching || caller.uid != ROOT {
            return Ok(());
        }
        let Rights { capabilities: [low, high], .. } = self.rights_of(caller)?;
        become_root([low & !CAP_FSETID, high])
    }

    /// Takes the daemon's own identity. The groups stay: nothing is created with it.
    pub fn become_daemon(&self) -> Answer {
        if self.switching { become_root(ALL) } else { Ok(()) }
    }

    /// Applies `umask` to what this thread creates from now on. The PFS weighs it against default
    /// access control lists.
    pub fn set_umask(&self, umask: u32) -> Answer {
        let present = UMASK.get();
        // The umask belongs to the process unless a thread takes its own copy.
        // SAFETY: the call changes kernel state of this thread only and takes no pointer.
        if present.is_none() && unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        if present != Some(umask) {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
            UMASK.set(Some(umask));
        }
        Ok(())
    }

    /// Whether the node changes files as `user` for opens of that user, not as itself.
    pub fn acts_for(&self, user: u32) -> bool {
        self.switching && user != ROOT
    }

    /// The identity with which the node changes files for the caller; `None` is its own.
    pub fn changes_as(&self, caller: &InHeader) -> Answer<Option<Identity>> {
        if !self.acts_for(caller.uid) {
            return Ok(None);
        }
        let Rights { groups, .. } = self.rights_of(caller)?;
        Ok(Some(Identity { user_id: caller.uid, group_id: caller.gid, groups }))
    }

    /// Whether the caller belongs to a group, as far as can be told.
    pub fn is_in_group(&self, caller: &InHeader, gid: u32) -> bool {
        let belongs = |rights: Rights| rights.groups.contains(&gid);
        caller.gid == gid || self.rights_of(caller).is_ok_and(belongs)
    }

    fn rights_of(&self, caller: &InHeader) -> Answer<Rights> {
        let key = (caller.pid, caller.uid, caller.gid);
        let now = Instant::now();
        if let Some((read_at, rights)) = self.rights.lock().get(&key)
            && now.duration_since(*read_at) < GROUPS_AGE_MAX
        {
            return Ok(rights.clone());
        }
        let mut rights = match read_rights(caller.pid) {
            // Root outside of our pid name space: it owns its files and has no capabilities.
            Err(Errno(libc::EACCES)) if caller.uid == ROOT => {
                Rights { groups: Arc::new([]), capabilities: NONE }
            }
            rights => rights?,
        };
        if caller.uid == ROOT && !self.shares_user_name_space(caller.pid) {
            rights.capabilities = NONE;
        }
        let mut entries = self.rights.lock();
        if entries.len() >= GROUPS_ENTRIES_MAX {
            entries.retain(|_, (read_at, _)| now.duration_since(*read_at) < GROUPS_AGE_MAX);
        }
        entries.insert(key, (now, rights.clone()));
        Ok(rights)
    }

    /// Whether the capabilities of a thread count in our user name space.
    fn shares_user_name_space(&self, pid: u32) -> bool {
        self.user_name_space.as_ref().is_none_or(|own| {
            std::fs::read_link(format!("/proc/{pid}/ns/user")).is_ok_and(|theirs| theirs == *own)
        })
    }
}

/// Supplementary groups and capabilities of a thread. A caller that is gone or not visible here
/// (another pid name space) is refused: with fewer groups it might pass where its group is denied.
fn read_rights(pid: u32) -> Answer<Rights> {
    let refused = || Errno(libc::EACCES);
    if pid == 0 {
        return Err(refused());
    }
    let status = std::fs::read(format!("/proc/{pid}/status")).map_err(|error| {
        match error.raw_os_error() {
            // Our own limit was reached; the caller may well have the right.
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Errno(libc::ENFILE),
            _ => refused(),
        }
    })?;
    let value = |name: &[u8]| {
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name));
        line.and_then(|line| std::str::from_utf8(line).ok()).ok_or_else(refused)
    };
    let groups = value(b"Groups:")?
        .split_ascii_whitespace()
        .map(|word| word.parse().map_err(|_| refused()))
        .collect::<Answer<_>>()?;
    let capabilities = u64::from_str_radix(value(b"CapEff:")?.trim(), 16).map_err(|_| refused())?;
    Ok(Rights { groups, capabilities: [capabilities as u32, (capabilities >> 32) as u32] })
}

fn become_root(capabilities: [u32; 2]) -> Answer {
    identity::take_user(ROOT)?;
    Ok(identity::limit_capabilities(capabilities)?)
}

/// Takes the daemon's identity. Every thread of the mount calls this first: a new thread has the
/// identity that its creator had at that moment, which may be a caller's.
pub fn begin_thread() -> Answer {
    if rustix::process::geteuid().is_root() {
        identity::take_group(ROOT)?;
        become_root(ALL)?;
    }
    identity::give_up_resource_override();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_this_thread_are_found_and_a_missing_thread_is_refused() {
        let ours: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        let read = read_rights(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        assert_eq!(read.groups.as_ref(), ours.as_slice());
        assert_eq!(read_rights(0), Err(Errno(libc::EACCES)));
        assert_eq!(read_rights(u32::MAX), Err(Errno(libc::EACCES)));
    }
}
