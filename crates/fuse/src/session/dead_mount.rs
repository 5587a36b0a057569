//! Mounts whose daemon died, and mount points that are in use otherwise.
//!
//! Only the mount table is trusted. A mount that may still have a daemon is never removed.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use tidepool_proto::mounts::{Mount, MountTable};
use tidepool_proto::{Error, ErrorKind, Result};

/// How long a mount may take to answer before its daemon is taken for stuck.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const OPERATION: &str = "looking at the mount point";
/// Dead mounts that may be stacked on one mount point.
const STACKED_MAX: usize = 64;

/// Removes a dead mount from `mount_point` (several, if they are stacked) and returns whether there
/// was one.
///
/// # Errors
/// `InUse` if a mount that lives, or one of another file system, is on it; the message names it.
/// `TimedOut` if the daemon of the mount lives and does not answer. `InvalidInput` if the mount
/// point is no directory.
pub fn recover_stale(mount_point: &Path) -> Result<bool> {
    let mount_point = resolve(mount_point)?;
    let mut recovered = false;
    for _ in 0..STACKED_MAX {
        if !is_stale(&mount_point)? {
            return Ok(recovered);
        }
        remove_top(&mount_point)?;
        recovered = true;
    }
    Err(Error::new(ErrorKind::InUse, OPERATION, "dead mounts are stacked on it without end"))
}

/// Whether a dead mount is on `mount_point`. It is left in place, where it hides the bare directory
/// from programs.
///
/// # Errors
/// As [`recover_stale`].
pub fn is_stale(mount_point: &Path) -> Result<bool> {
    let mount_point = resolve(mount_point)?;
    let table = read_table()?;
    let Some(mounted) = table.at(&mount_point) else { return Ok(false) };
    if is_dead(&mount_point)? { Ok(true) } else { Err(in_use(&mount_point, &mounted)) }
}

fn remove_top(mount_point: &Path) -> Result<()> {
    rustix::mount::unmount(mount_point, UnmountFlags::DETACH).or_else(|error| {
        crate::session::mounting::unmount_by_helper(mount_point, true).map_err(|_| {
            Error::new(ErrorKind::InUse, "removing a dead mount", describe(mount_point))
                .caused_by(error)
                .remedy("unmount it as root: umount --lazy")
        })
    })
}

/// Moves a detached mount to a place that has only dead mounts on it, and removes these. Returns
/// whether there were any.
pub(crate) fn replace(mount_point: &Path, prepared: &OwnedFd) -> Result<bool> {
    let fail = |error: std::io::Error| {
        Error::new(ErrorKind::Unsupported, "mounting", describe(mount_point)).caused_by(error)
    };
    let place = |below| crate::session::mounting::place(prepared, mount_point, below);
    let is_stale = is_stale(mount_point)?;
    // Placed below several, it would stay below.
    if is_stale && count_at(mount_point)? == 1 && place(true).is_ok() {
        remove_top(mount_point)?;
        return Ok(true);
    }
    recover_stale(mount_point)?;
    place(false).map_err(fail)?;
    Ok(is_stale)
}

/// The mount point without symbolic links. Its last component is not resolved: on a dead mount
/// every system call fails.
pub(crate) fn resolve(mount_point: &Path) -> Result<PathBuf> {
    let fail = |error: std::io::Error| {
        Error::new(ErrorKind::InvalidInput, OPERATION, describe(mount_point))
            .caused_by(error)
            .remedy("give an existing directory")
    };
    match mount_point.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let absolute = std::path::absolute(mount_point).map_err(fail)?;
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
                return Err(fail(error));
            };
            Ok(parent.canonicalize().map_err(fail)?.join(name))
        }
        Err(error) => Err(fail(error)),
    }
}

fn describe(mount_point: &Path) -> String {
    mount_point.display().to_string()
}

fn in_use(mount_point: &Path, mounted: &Mount<'_>) -> Error {
    let whose = if mounted.is_of_a_node() { "a live Tidepool mount" } else { "a mount" };
    let detail = format!(
        "{} is in use by {whose} of {} (type {})",
        mount_point.display(),
        mounted.source(),
        mounted.kind()
    );
    Error::new(ErrorKind::InUse, OPERATION, detail)
        .remedy("stop the node that serves it, unmount it, or choose another mount point")
}

/// Whether every call on the mount fails because its daemon is gone. Another thread asks, in case
/// the daemon is alive and stuck.
fn is_dead(mount_point: &Path) -> Result<bool> {
    let (sender, receiver) = mpsc::channel();
    let path = mount_point.to_owned();
    std::thread::spawn(move || {
        let _ = sender.send(rustix::fs::stat(&path));
    });
    match receiver.recv_timeout(ANSWER_MAX) {
        Ok(Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)) => Ok(true),
        Ok(_) => Ok(false),
        Err(_) => Err(Error::new(
            ErrorKind::TimedOut,
            OPERATION,
            format!("the daemon of the mount at {} does not answer", mount_point.display()),
        )
        .remedy("end that daemon; the mount is recovered at the next start")),
    }
}

fn read_table() -> Result<MountTable> {
    MountTable::read().map_err(|error| {
        Error::new(ErrorKind::Unsupported, "reading the mount table", "").caused_by(error)
    })
}

/// The mount of a node that contains `path`, which need not exist. A mount on `path` itself does
/// not count.
///
/// # Errors
/// As reading the mount table.
pub fn mount_around(path: &Path) -> Result<Option<PathBuf>> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut above = absolute.ancestors().skip(1);
    let Some(above) = above.find_map(|directory| directory.canonicalize().ok()) else {
        return Ok(None);
    };
    let table = read_table()?;
    Ok(table.around(&above).filter(Mount::is_of_a_node).map(|mount| mount.point()))
}

/// How many mounts are stacked at a place.
fn count_at(mount_point: &Path) -> Result<usize> {
    Ok(read_table()?.mounts().filter(|mount| mount.is_at(mount_point)).count())
}

/// The places where the mount with a device number is now.
pub(crate) fn places_of(device: (u32, u32)) -> Result<Vec<PathBuf>> {
    Ok(places_in(&read_table()?, device))
}

fn places_in(table: &MountTable, device: (u32, u32)) -> Vec<PathBuf> {
    table.mounts().filter(|mount| mount.device == device).map(|mount| mount.point()).collect()
}

/// The places where a process sees the mount with this device number. In a mount namespace of its
/// own, as containers have, they may differ, and may outlast the mount here. Empty for processes
/// that the caller may not look at.
pub fn places_for(process_id: u32, device: (u32, u32)) -> Vec<PathBuf> {
    places_in(&MountTable::of_process(process_id).unwrap_or_default(), device)
}

/// A process in each other mount namespace that holds the mount with this device number, and where.
pub(crate) fn held_elsewhere(device: (u32, u32)) -> Vec<(u32, PathBuf)> {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen = vec![namespace("self")];
    let processes = std::fs::read_dir("/proc").into_iter().flatten();
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut holders = Vec::new();
    for id in ids {
        let its = namespace(&id.to_string());
        if its.is_none() || seen.contains(&its) {
            continue;
        }
        seen.push(its);
        if let Some(place) = places_for(id, device).into_iter().next() {
            let root = format!("/proc/{id}/root");
            holders.push((id, Path::new(&root).join(place.strip_prefix("/").unwrap_or(&place))));
        }
    }
    holders
}
