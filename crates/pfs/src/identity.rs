//! The identity of a thread on the file system: the user, groups and capabilities that it acts
//! with.
//!
//! Linux keeps the file system identity per thread; these are raw system calls, because the
//! wrappers of the C library would change all threads of the process. The descriptor is open
//! already, so permission to write is not asked again: what the identity decides is whether
//! set-id bits go, whether reserved space may be used and whose quota counts.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

use tidepool_proto::{Error, Identity, Result};

const ROOT: u32 = 0;
/// Asks the kernel for the present value: no such user or group exists.
const ASK: u32 = u32::MAX;
const CAPABILITY_SYS_RESOURCE: u32 = 24;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// What the kernel itself takes from a thread whose file system user is not root: `CHOWN`,
/// `DAC_OVERRIDE`, `DAC_READ_SEARCH`, `FOWNER`, `FSETID`, `LINUX_IMMUTABLE`, `MKNOD` and, in the
/// second word, `MAC_OVERRIDE`.
const CAPABILITIES_OF_FILES: [u32; 2] = [0x1f | 1 << 9 | 1 << 27, 1];
/// All capabilities that the process has.
pub const ALL: [u32; 2] = [u32::MAX; 2];

thread_local! {
    /// Supplementary groups of this thread, where it was given any. They stay until another user
    /// comes: they allow nothing that root may not do anyway.
    static GROUPS: RefCell<Option<Arc<[u32]>>> = const { RefCell::new(None) };
    static GAVE_UP_RESOURCE: Cell<bool> = const { Cell::new(false) };
    static PRESENT: Cell<Present> = const { Cell::new(UNKNOWN) };
}

/// What this thread took, where it is known: a new thread has what its parent had.
#[derive(Clone, Copy)]
struct Present {
    user: Option<u32>,
    group: Option<u32>,
    /// Those that concern files, as far as the process has them and the user is root.
    capabilities: Option<[u32; 2]>,
}

const UNKNOWN: Present = Present { user: None, group: None, capabilities: None };

/// This thread acts as another user until the value drops.
#[derive(Debug)]
pub struct Acting {
    before: u32,
    /// Not `Send`: the identity is that of one thread.
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

/// Has this thread act as `identity`. `None` where that changes nothing: for root, and in a process
/// that is not root, whose own identity the kernel weighs.
///
/// Fails where the process may not take the identity; then nothing may be done in its place.
pub fn act_as(identity: &Identity) -> Result<Option<Acting>> {
    if identity.user_id == ROOT || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    if !GAVE_UP_RESOURCE.replace(true) {
        // Taking another identity does not take this right away.
        give_up_resource_override();
    }
    // Made first: it puts back what was changed before a failure.
    let before = PRESENT.get().user.unwrap_or(ROOT);
    let acting = Acting { before, _of_this_thread: std::marker::PhantomData };
    become_user(identity)
        .map_err(|error| Error::pfs(format!("acting as user {}", identity.user_id), error))?;
    Ok(Some(acting))
}

fn become_user(identity: &Identity) -> io::Result<()> {
    take_groups(&identity.groups)?;
    take_group(identity.group_id)?;
    // Last: with it go the rights that the calls before need, and those to keep set-id bits.
    take_user(identity.user_id)
}

/// Gives this thread supplementary groups, unless it has them. All code that gives a thread groups
/// does it here, or the thread would be taken to have those that it had before.
pub fn take_groups(groups: &Arc<[u32]>) -> io::Result<()> {
    GROUPS.with_borrow_mut(|present| {
        if present.as_ref() != Some(groups) {
            *present = None;
            set_groups(groups)?;
            *present = Some(groups.clone());
        }
        Ok(())
    })
}

impl Drop for Acting {
    fn drop(&mut self) {
        // What this thread makes from now on is the node's own and must not be a user's. The group
        // stays, as the others do: each call to the kernel costs every write its time.
        if take_user(self.before).is_err() {
            std::process::abort();
        }
    }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and length describe a live slice of 32-bit group numbers, which is what
    // the system call reads. The raw call changes this thread only, which is what we want.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives this thread a user for the file system, unless it has it.
pub fn take_user(user_id: u32) -> io::Result<()> {
    let present = PRESENT.get();
    if present.user == Some(user_id) {
        return Ok(());
    }
    PRESENT.set(Present { user: None, capabilities: None, ..present });
    set_and_check(libc::SYS_setfsuid, user_id)?;
    // The kernel takes them from every user but root, and gives all back to root.
    let capabilities = present.user.map(|_| ALL);
    PRESENT.set(Present { user: Some(user_id), capabilities, ..present });
    Ok(())
}

/// Gives this thread a group for the file system, unless it has it.
pub fn take_group(group_id: u32) -> io::Result<()> {
    let present = PRESENT.get();
    if present.group == Some(group_id) {
        return Ok(());
    }
    PRESENT.set(Present { group: None, ..present });
    set_and_check(libc::SYS_setfsgid, group_id)?;
    PRESENT.set(Present { group: Some(group_id), ..present });
    Ok(())
}

/// These system calls report no failure, so the result is read back.
fn set_and_check(call: libc::c_long, value: u32) -> io::Result<()> {
    // SAFETY: `setfsuid` and `setfsgid` take a number and change this thread only.
    let now = unsafe {
        libc::syscall(call, value);
        libc::syscall(call, ASK)
    };
    if now as u32 == value { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// Gives up, for this thread and those it starts, the right to exceed quotas and reserved space.
pub fn give_up_resource_override() {
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    // Effective, permitted and inheritable sets of capabilities 0 to 31, then of the rest.
    let mut sets = [0u32; 6];
    // SAFETY: both pointers are to live values of the layout that version 3 of the calls uses, and
    // the calls concern this thread only.
    unsafe {
        if libc::syscall(libc::SYS_capget, &header, sets.as_mut_ptr()) == 0 {
            sets[0] &= !(1 << CAPABILITY_SYS_RESOURCE);
            libc::syscall(libc::SYS_capset, &header, sets.as_ptr());
        }
    }
}

/// Leaves this thread, whose user is root, those capabilities that concern files which the process
/// has and `wanted` has (by number from the lowest bit of the first word), unless it was done.
pub fn limit_capabilities(wanted: [u32; 2]) -> io::Result<()> {
    if PRESENT.get().capabilities == Some(wanted) {
        return Ok(());
    }
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let mut sets = [0u32; 6];
    // SAFETY: as in `give_up_resource_override`.
    if unsafe { libc::syscall(libc::SYS_capget, &header, sets.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for (word, of_files) in CAPABILITIES_OF_FILES.iter().enumerate() {
        let (effective, permitted) = (sets[word * 3], sets[word * 3 + 1]);
        sets[word * 3] = (effective & !of_files) | (permitted & of_files & wanted[word]);
    }
    // SAFETY: as in `give_up_resource_override`.
    if unsafe { libc::syscall(libc::SYS_capset, &header, sets.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    PRESENT.set(Present { capabilities: Some(wanted), ..PRESENT.get() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn identity(user_id: u32, groups: &[u32]) -> Identity {
        Identity { user_id, group_id: user_id, groups: groups.into() }
    }

    /// What a file made now belongs to.
    fn owner_of_a_new_file(directory: &std::path::Path, name: &str) -> (u32, u32) {
        let path = directory.join(name);
        std::fs::write(&path, name).unwrap();
        let facts = std::fs::metadata(&path).unwrap();
        (facts.uid(), facts.gid())
    }

    fn user_of_a_new_file(directory: &std::path::Path, name: &str) -> u32 {
        owner_of_a_new_file(directory, name).0
    }

    #[test]
    fn a_thread_acts_as_another_user_and_comes_back() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can act as others");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), all).unwrap();
        for (user_id, groups) in [(65_534, &[1u32, 2][..]), (54_321, &[]), (65_534, &[])] {
            let acting = act_as(&identity(user_id, groups)).unwrap();
            let name = format!("{user_id}-{}", groups.len());
            assert_eq!(owner_of_a_new_file(directory.path(), &name), (user_id, user_id));
            drop(acting);
            assert_eq!(user_of_a_new_file(directory.path(), &format!("{name}r")), 0);
        }
        assert!(act_as(&identity(ROOT, &[])).unwrap().is_none());
        take_group(ROOT).unwrap();
        assert_eq!(owner_of_a_new_file(directory.path(), "last"), (0, 0));
    }

    #[test]
    fn a_thread_comes_back_to_the_user_and_the_capabilities_that_it_had() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can act as others");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), all).unwrap();
        let shut = directory.path().join("shut");
        std::fs::write(&shut, "").unwrap();
        std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o0)).unwrap();
        std::os::unix::fs::chown(&shut, Some(54_321), None).unwrap();
        take_user(65_534).unwrap();
        drop(act_as(&identity(54_321, &[])).unwrap());
        assert_eq!(user_of_a_new_file(directory.path(), "of the first"), 65_534);
        // Root without its capabilities may not open what root with them may.
        take_user(ROOT).unwrap();
        for (capabilities, opens) in [(ALL, true), ([0; 2], false), (ALL, true), ([0; 2], false)] {
            limit_capabilities(capabilities).unwrap();
            assert_eq!(std::fs::File::open(&shut).is_ok(), opens);
            drop(act_as(&identity(54_321, &[])).unwrap());
            limit_capabilities(capabilities).unwrap();
            assert_eq!(std::fs::File::open(&shut).is_ok(), opens, "after acting as another");
        }
        limit_capabilities(ALL).unwrap();
    }
}
