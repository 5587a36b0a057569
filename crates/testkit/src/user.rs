//! Acts as another user. Linux keeps credentials per thread, so a thread of a test can become
//! another user for good while the others keep their credentials. Needs root.

use std::io;

/// The credentials to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User number.
    pub user_id: u32,
    /// Primary group.
    pub group_id: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl User {
    /// A user whose only group has the same number.
    pub fn new(id: u32) -> Self {
        User { user_id: id, group_id: id, groups: Vec::new() }
    }

    /// The same user with supplementary groups.
    pub fn in_groups(mut self, groups: &[u32]) -> Self {
        self.groups = groups.to_vec();
        self
    }

    /// Runs `act` as this user and returns its result; the panic of a failed assertion goes on.
    pub fn run<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                become_user(self).expect("root may become anybody");
                act()
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// Changes the credentials of the calling thread alone, without a way back.
fn become_user(user: &User) -> io::Result<()> {
    let check = |result: libc::c_long| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let (group, id) = (user.group_id, user.user_id);
    // SAFETY: raw system calls on numbers and one array that outlives them. The wrappers of the C
    // library would change all threads of the process; that is just what must not happen here.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()))?;
        check(libc::syscall(libc::SYS_setresgid, group, group, group))?;
        check(libc::syscall(libc::SYS_setresuid, id, id, id))
    }
}
