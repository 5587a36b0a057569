//! What the tests of the mount share: mounts in temporary directories, and users.

#![expect(dead_code, reason = "every test file uses a part of this")]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tidepool_fuse::{Mount, MountConfig};
use tidepool_proto::FileService;

/// A user and group that own nothing here.
pub const STRANGER: u32 = 65_534;

/// A PFS directory and a mount of it.
pub struct Mounted {
    mount: Option<Mount>,
    /// The PFS directory itself.
    pub lower: PathBuf,
    /// The mount point.
    pub upper: PathBuf,
    _directory: tempfile::TempDir,
}

impl Mounted {
    /// The mount's own interface.
    pub fn mount(&self) -> &Mount {
        self.mount.as_ref().expect("mounted until dropped")
    }

    /// A path in both views: on the PFS, through the mount.
    pub fn both(&self, name: impl AsRef<Path>) -> (PathBuf, PathBuf) {
        (self.lower.join(name.as_ref()), self.upper.join(name.as_ref()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let outcome = self.mount.take().expect("mounted until dropped").unmount();
        if !std::thread::panicking() {
            outcome.expect("the mount goes away at the end of the test");
        }
    }
}

/// Whether this machine and user can mount; says why not.
pub fn can_mount() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "not root"
    } else if !Path::new("/dev/fuse").exists() {
        "no /dev/fuse"
    } else {
        return true;
    };
    println!("SKIPPED: {reason}");
    false
}

/// First numbers of the kernel's release.
pub fn kernel_version() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

pub fn open_directory(path: &Path) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).expect("the directory opens")
}

/// Mounts a new PFS directory; `None` (with a printed line) where mounting is impossible.
pub fn mounted(service: Arc<dyn FileService>) -> Option<Mounted> {
    mounted_with(service, |_| {})
}

/// The same with other settings.
pub fn mounted_with(
    service: Arc<dyn FileService>,
    adjust: impl FnOnce(&mut MountConfig),
) -> Option<Mounted> {
    if !can_mount() {
        return None;
    }
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let lower = directory.path().join("pfs");
    let upper = directory.path().join("mount");
    for path in [directory.path(), &lower, &upper] {
        if !path.exists() {
            std::fs::create_dir(path).expect("a directory");
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let mut config = MountConfig::new(open_directory(&lower), lower.clone(), upper.clone());
    adjust(&mut config);
    let mount = tidepool_fuse::mount(service, config).expect("the mount succeeds");
    Some(Mounted { mount: Some(mount), lower, upper, _directory: directory })
}

/// Runs `work` in a thread that has another user's rights, groups included.
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // SAFETY: raw identity calls change this thread only, and read a live slice.
                let outcome = unsafe {
                    libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr())
                        | libc::syscall(libc::SYS_setresgid, gid, gid, gid)
                        | libc::syscall(libc::SYS_setresuid, uid, uid, uid)
                };
                assert_eq!(outcome, 0, "switching to user {uid}");
                work()
            })
            .join()
            .expect("the work of the other user")
    })
}

/// The errno of a failed operation.
pub fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}
