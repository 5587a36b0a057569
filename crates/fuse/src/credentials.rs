//! Whose rights a thread uses on the PFS.
//!
//! Every worker thread takes the file system identity of the caller before it touches a name, and
//! the daemon's own before it calls the node. The switch is per thread (raw system calls; the C
//! library's `setgroups` would change all threads) and lazy: nothing happens when the thread
//! already has the right identity. Supplementary groups come from the calling thread's status
//! file; a caller whose groups cannot be read is refused, never served with fewer groups.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_pfs::identity;

use crate::abi::InHeader;
use crate::request::{Answer, Errno};

/// How long the groups of a thread are taken as unchanged.
const GROUPS_AGE_MAX: Duration = Duration::from_millis(250);
const GROUPS_ENTRIES_MAX: usize = 4_096;
const ROOT: u32 = 0;

type Groups = Arc<[u32]>;
/// Thread, user and group of a caller.
type Key = (u32, u32, u32);

#[derive(Clone, Debug)]
struct Present {
    uid: u32,
    gid: u32,
    groups: Option<Groups>,
    umask: Option<u32>,
    own_umask: bool,
}

thread_local! {
    static PRESENT: RefCell<Present> = const {
        RefCell::new(Present { uid: ROOT, gid: ROOT, groups: None, umask: None, own_umask: false })
    };
}

/// Switches threads between the daemon's identity and the callers'.
#[derive(Debug)]
pub struct Credentials {
    switching: bool,
    groups: Mutex<HashMap<Key, (Instant, Groups)>>,
}

impl Credentials {
    /// Switching is possible for root only; any other user's mount serves that user alone.
    pub fn new() -> Self {
        let switching = rustix::process::geteuid().is_root();
        Credentials { switching, groups: Mutex::new(HashMap::new()) }
    }

    /// Takes the caller's identity for what this thread does next on the PFS.
    pub fn become_caller(&self, caller: &InHeader) -> Answer {
        if !self.switching {
            return Ok(());
        }
        if caller.uid == ROOT {
            return become_user(ROOT, caller.gid, None);
        }
        let groups = self.groups_of(caller)?;
        become_user(caller.uid, caller.gid, Some(groups))
    }

    /// Takes the daemon's own identity.
    pub fn become_daemon(&self) -> Answer {
        if self.switching { become_user(ROOT, ROOT, None) } else { Ok(()) }
    }

    /// Applies `umask` to what this thread creates from now on. The PFS itself then weighs it
    /// against default access control lists.
    pub fn set_umask(&self, umask: u32) -> Answer {
        PRESENT.with_borrow_mut(|present| {
            if !present.own_umask {
                // The umask belongs to the process unless a thread takes its own copy.
                // SAFETY: the call changes kernel state of this thread only and takes no pointer.
                if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
                    return Err(std::io::Error::last_os_error().into());
                }
                present.own_umask = true;
            }
            if present.umask != Some(umask) {
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
                present.umask = Some(umask);
            }
            Ok(())
        })
    }

    /// Whether the caller belongs to a group, as far as can be told.
    pub fn is_in_group(&self, caller: &InHeader, gid: u32) -> bool {
        caller.gid == gid || self.groups_of(caller).is_ok_and(|groups| groups.contains(&gid))
    }

    fn groups_of(&self, caller: &InHeader) -> Answer<Groups> {
        let key = (caller.pid, caller.uid, caller.gid);
        let now = Instant::now();
        if let Some((read_at, groups)) = self.groups.lock().get(&key)
            && now.duration_since(*read_at) < GROUPS_AGE_MAX
        {
            return Ok(groups.clone());
        }
        let groups = read_groups(caller.pid)?;
        let mut entries = self.groups.lock();
        if entries.len() >= GROUPS_ENTRIES_MAX {
            entries.retain(|_, (read_at, _)| now.duration_since(*read_at) < GROUPS_AGE_MAX);
        }
        entries.insert(key, (now, groups.clone()));
        Ok(groups)
    }
}

/// The supplementary groups of a thread. A caller that is not visible here (another pid name
/// space) or gone is refused: with fewer groups it might be let in where its group is shut out.
fn read_groups(pid: u32) -> Answer<Groups> {
    let refused = || Errno(libc::EACCES);
    if pid == 0 {
        return Err(refused());
    }
    let status = std::fs::read(format!("/proc/{pid}/status")).map_err(|_| refused())?;
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Groups:"))
        .ok_or_else(refused)?;
    let text = std::str::from_utf8(line).map_err(|_| refused())?;
    text.split_ascii_whitespace().map(|word| word.parse().map_err(|_| refused())).collect()
}

fn become_user(uid: u32, gid: u32, groups: Option<Groups>) -> Answer {
    PRESENT.with_borrow_mut(|present| {
        // Root may do anything whatever its groups, so these stay until another user comes.
        if let Some(groups) = groups
            && present.groups.as_ref() != Some(&groups)
        {
            present.groups = None;
            identity::set_groups(&groups)?;
            present.groups = Some(groups);
        }
        if present.gid != gid {
            identity::set_group(gid)?;
            present.gid = gid;
        }
        if present.uid != uid {
            identity::set_user(uid)?;
            present.uid = uid;
        }
        Ok(())
    })
}

/// To be called at the start of every thread of the mount: a new thread has the identity that the
/// thread which started it had at that moment, which may be a caller's. Puts the daemon's own in
/// its place.
pub fn begin_thread() -> Answer {
    if rustix::process::geteuid().is_root() {
        identity::set_user(ROOT)?;
        identity::set_group(ROOT)?;
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
        let read = read_groups(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        assert_eq!(read.as_ref(), ours.as_slice());
        assert_eq!(read_groups(0), Err(Errno(libc::EACCES)));
        assert_eq!(read_groups(u32::MAX), Err(Errno(libc::EACCES)));
    }
}
