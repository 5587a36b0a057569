//! Finds the processes that use a mount, for messages about a busy one. Sees what `/proc` shows to
//! the caller: all processes for root, the own ones for others.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use tidepool_fuse::places_for;

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Process id.
    pub process_id: u32,
    /// Name of the program.
    pub command: String,
    /// One of the paths that it uses.
    pub path: PathBuf,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {}, {})", self.command, self.process_id, self.path.display())
    }
}

/// Processes with an open file, a mapping or a directory below `mount`, this one left out. Those of
/// a container are found by what the mount is called there; what is mounted over it there is none
/// of ours.
pub fn users_of(mount: &Path) -> Vec<User> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let others = ids.filter(|id| *id != std::process::id());
    let device = tidepool_fuse::mounted_device(mount);
    let mut users: Vec<User> = others
        .filter_map(|id| {
            let mut places = device.map(|device| places_for(id, device)).unwrap_or_default();
            places.push(mount.to_owned());
            user(id, device, &places)
        })
        .collect();
    users.sort_by_key(|user| user.process_id);
    users
}

fn user(process_id: u32, device: Option<(u32, u32)>, places: &[PathBuf]) -> Option<User> {
    let directory = PathBuf::from(format!("/proc/{process_id}"));
    let links = ["cwd", "root", "exe"].map(|name| directory.join(name)).into_iter();
    let descriptors = ["fd", "map_files"].into_iter().flat_map(|name| {
        let entries = fs::read_dir(directory.join(name)).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    });
    let path = links.chain(descriptors).find_map(|link| {
        let target = fs::read_link(&link).ok()?;
        let is_below = places.iter().any(|place| target.starts_with(place));
        let is_other =
            || device.is_some() && device_of(&link).is_some_and(|its| Some(its) != device);
        (is_below && !is_other()).then_some(target)
    })?;
    let command = fs::read_to_string(directory.join("comm")).unwrap_or_default();
    Some(User { process_id, command: command.trim_end().to_owned(), path })
}

/// The device of what a link of `/proc` leads to. Asks no daemon, which may be stuck.
fn device_of(link: &Path) -> Option<(u32, u32)> {
    let facts = rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    Some((facts.stx_dev_major, facts.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_with_its_directory_inside_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        assert_eq!(users_of(&path), []);
        let mut child =
            Command::new("cat").current_dir(&path).stdin(Stdio::piped()).spawn().unwrap();
        let users = users_of(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(users.len(), 1);
        assert_eq!((users[0].process_id, users[0].command.as_str()), (child.id(), "cat"));
        assert_eq!(users[0].path, path);
    }
}
