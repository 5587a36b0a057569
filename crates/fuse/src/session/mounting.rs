//! Mounts and unmounts: by system call as root, by `fusermount3` as any other user.
//!
//! If the kernel can, a mount is made detached and moved to its place once threads serve it: below
//! a dead mount that is there, which is unmounted then. So the mount point never leads to the bare
//! directory.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tidepool_proto::mounts::MOUNT_TYPE;

use crate::protocol::device::Device;
use crate::session::config::MountConfig;

const SUBTYPE: &str = "tidepool";
const HELPER: &str = "fusermount3";
const HELPER_SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts, and returns the descriptor from which requests are read.
pub fn attach(config: &MountConfig) -> io::Result<OwnedFd> {
    match attach_as_root(config) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => attach_by_helper(config),
        outcome => outcome,
    }
}

/// Makes a detached mount. Returns the descriptor from which requests are read, and the mount.
pub fn prepare(config: &MountConfig) -> io::Result<(OwnedFd, OwnedFd)> {
    let device = Device::open_unconnected()?;
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: String| {
        rustix::mount::fsconfig_set_string(&context, key, value.as_str())
    };
    rustix::mount::fsconfig_set_string(&context, "source", config.pfs_path.as_path())?;
    set("subtype", SUBTYPE.to_owned())?;
    set("fd", device.as_raw_fd().to_string())?;
    set("rootmode", format!("{:o}", libc::S_IFDIR))?;
    set("user_id", rustix::process::geteuid().as_raw().to_string())?;
    set("group_id", rustix::process::getegid().as_raw().to_string())?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    if config.allow_other {
        rustix::mount::fsconfig_set_flag(&context, "allow_other")?;
    }
    if config.read_only {
        rustix::mount::fsconfig_set_flag(&context, "ro")?;
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    rustix::mount::fsconfig_create(&context)?;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok((device, mount))
}

/// Moves a detached mount to its place: on top of what is there, or below it.
pub fn place(prepared: &OwnedFd, mount_point: &Path, below: bool) -> io::Result<()> {
    let mut flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if below {
        flags |= MoveMountFlags::MOVE_MOUNT_BENEATH;
    }
    Ok(rustix::mount::move_mount(prepared, "", CWD, mount_point, flags)?)
}

fn attach_as_root(config: &MountConfig) -> io::Result<OwnedFd> {
    let device = Device::open_unconnected()?;
    let mut options = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        libc::S_IFDIR,
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw()
    );
    if config.allow_other {
        options.push_str(",allow_other");
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if config.read_only {
        flags |= MountFlags::RDONLY;
    }
    let options = CString::new(options)?;
    let source = CString::new(config.pfs_path.as_os_str().as_bytes())?;
    rustix::mount::mount(
        source.as_c_str(),
        &config.mount_point,
        MOUNT_TYPE,
        flags,
        Some(options.as_c_str()),
    )?;
    Ok(device)
}

/// The helper mounts and passes the descriptor back over a socket.
fn attach_by_helper(config: &MountConfig) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // Commas separate options; a backslash protects them.
    let source = config.pfs_path.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("nosuid,nodev,fsname={source},subtype={SUBTYPE}");
    if config.allow_other {
        options.push_str(",allow_other");
    }
    if config.read_only {
        options.push_str(",ro");
    }
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(options).arg("--").arg(&config.mount_point);
    let socket = theirs.as_raw_fd();
    command.env(HELPER_SOCKET_VARIABLE, socket.to_string());
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(move || match libc::fcntl(socket, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let spawned = command.stderr(std::process::Stdio::piped()).spawn();
    let child = spawned.map_err(|error| {
        // Without an errno, which would be taken for that of the device.
        let why = match error.kind() {
            io::ErrorKind::NotFound => "is not installed".to_owned(),
            io::ErrorKind::PermissionDenied => "this user may not run".to_owned(),
            _ => format!("does not start ({error})"),
        };
        io::Error::other(format!("only root mounts without {HELPER}, which {why}"))
    })?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    received.map_err(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim();
        if said.is_empty() { error } else { io::Error::other(said.to_owned()) }
    })
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other(format!("{HELPER} passed no descriptor")))
}

/// The device number of a mount, by any descriptor of it. Asks only the kernel, because the
/// caller may be the one that serves the mount.
pub fn device_number(mount: &OwnedFd) -> io::Result<(u32, u32)> {
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let facts = rustix::fs::statx(mount, c"", at, StatxFlags::TYPE)?;
    Ok((facts.stx_dev_major, facts.stx_dev_minor))
}

/// The device number of what is mounted at `place`; `None` if nothing is. Asks only the kernel.
pub fn mounted_device(place: &Path) -> Option<(u32, u32)> {
    let at = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
    let facts = rustix::fs::statx(CWD, place, at, StatxFlags::TYPE).ok()?;
    let mounted = facts.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    mounted.then_some((facts.stx_dev_major, facts.stx_dev_minor))
}

/// How hard to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only if nobody uses the mount.
    No,
    /// End every request first, then detach: programs that use the mount get errors, none hangs.
    Yes,
}

/// Unmounts. A mount that is gone already is no error.
pub fn detach(mount_point: &Path, force: Force) -> io::Result<()> {
    let flags = match force {
        Force::No => UnmountFlags::NOFOLLOW,
        Force::Yes => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(rustix::io::Errno::PERM) => unmount_by_helper(mount_point, force == Force::Yes),
        Err(error) => Err(error.into()),
    }
}

/// Unmounts by the helper, as the user who mounted.
pub fn unmount_by_helper(mount_point: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u").arg("-q");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mount_point).output()?;
    if output.status.success() {
        return Ok(());
    }
    // It is nearly always in use. If a forced unmount fails as well, the helper's words say more.
    let said = String::from_utf8_lossy(&output.stderr);
    match said.trim() {
        said if lazy && !said.is_empty() => Err(io::Error::other(said.to_owned())),
        _ => Err(io::Error::from_raw_os_error(libc::EBUSY)),
    }
}
