//! Finds the control groups: the hierarchies that count memory, the group of a process, and the
//! groups of Slurm jobs. Reads no limit.

use std::path::{Path, PathBuf};

use tidepool_proto::mounts::MountTable;

/// The two versions of the kernel's interface, which name their files differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupVersion {
    /// `memory.limit_in_bytes` and its kin.
    V1,
    /// `memory.max` and its kin.
    V2,
}

/// A process' place in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// Version of the hierarchy.
    pub version: GroupVersion,
    /// Where the hierarchy is mounted.
    pub top: PathBuf,
    /// Directory of the process' group.
    pub directory: PathBuf,
}

impl GroupPlace {
    /// The group and those above it, without the top, which has no limit of its own.
    pub fn levels(&self) -> impl Iterator<Item = &Path> {
        self.directory.ancestors().take_while(|level| level.starts_with(&self.top))
    }
}

/// For every hierarchy with the memory controller: where it is mounted, and the directory of the
/// process whose `cgroup` file is `groups`. One outside the view is at the top of what is seen.
pub fn places(groups: &str, mounts: &MountTable) -> Vec<GroupPlace> {
    find(groups, mounts, true)
}

/// The same without hierarchies in which the process is outside the view: as one of another
/// container, which is charged to no group that is seen.
pub(super) fn places_in_view(groups: &str, mounts: &MountTable) -> Vec<GroupPlace> {
    find(groups, mounts, false)
}

fn find(groups: &str, mounts: &MountTable, or_top: bool) -> Vec<GroupPlace> {
    let mut found = Vec::new();
    for mount in mounts.mounts() {
        let version = match &*mount.kind() {
            "cgroup2" => GroupVersion::V2,
            "cgroup" if mount.has_option("memory") => GroupVersion::V1,
            _ => continue,
        };
        let (root, point) = (mount.root(), mount.point());
        let Some(path) = groups.lines().find_map(|group| path_in(group, version)) else { continue };
        // Inside a container the mount shows a part of the tree; a path outside it is its top.
        let below = match Path::new(path).strip_prefix(&root) {
            Ok(below) if plain(below) => below,
            _ if or_top => Path::new(""),
            _ => continue,
        };
        let directory =
            if below.as_os_str().is_empty() { point.clone() } else { point.join(below) };
        found.push(GroupPlace { version, top: point, directory });
    }
    found
}

/// The path of a line of `/proc/PID/cgroup` if the line is about the wanted hierarchy.
fn path_in(line: &str, version: GroupVersion) -> Option<&str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let ours = match version {
        GroupVersion::V1 => controllers.split(',').any(|name| name == "memory"),
        GroupVersion::V2 => controllers.is_empty(),
    };
    ours.then_some(path)
}

/// A process outside our view of the tree has a path with `..` in it.
fn plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// Directories of the groups of Slurm's jobs under a hierarchy, sorted; at most `jobs_max`.
pub fn slurm_jobs(version: GroupVersion, top: &Path, jobs_max: usize) -> Vec<PathBuf> {
    let mut jobs = Vec::new();
    match version {
        // <top>/system.slice/[node_]slurmstepd.scope/job_<number>
        GroupVersion::V2 => {
            for scope in
                children(&top.join("system.slice"), |name| name.ends_with("slurmstepd.scope"))
            {
                jobs.extend(children(&scope, |name| name.starts_with("job_")));
            }
        }
        // <top>/slurm[_node]/uid_<number>/job_<number>
        GroupVersion::V1 => {
            for slurm in children(top, |name| name.starts_with("slurm")) {
                for user in children(&slurm, |name| name.starts_with("uid_")) {
                    jobs.extend(children(&user, |name| name.starts_with("job_")));
                }
            }
        }
    }
    jobs.sort();
    jobs.truncate(jobs_max);
    jobs
}

/// Directories below one whose names are wanted, in no order.
pub(super) fn children(directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted));
    named.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_found() {
        let mountinfo = "30 25 0:26 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n\
                         31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                         32 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let groups = "4:memory:/slurm/job1\n1:cpu:/\n0::/user.slice\n";
        let found = places(groups, &MountTable::from_text(mountinfo));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].version, GroupVersion::V1);
        assert_eq!(found[0].directory, Path::new("/sys/fs/cgroup/memory/slurm/job1"));
        assert_eq!(found[0].levels().count(), 3);
        assert_eq!(found[1].directory, Path::new("/sys/fs/cgroup/unified/user.slice"));
    }

    #[test]
    fn a_group_outside_the_view_is_the_top() {
        let contained = "30 25 0:26 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let contained = MountTable::from_text(contained);
        let top = Path::new("/sys/fs/cgroup");
        for groups in ["0::/docker/x\n", "0::/elsewhere\n", "0::/docker/x/../../y\n"] {
            assert_eq!(places(groups, &contained)[0].directory, top, "{groups}");
            assert_eq!(
                places_in_view(groups, &contained).len(),
                usize::from(groups == "0::/docker/x\n")
            );
        }
        assert!(places("garbage", &MountTable::from_text("30 - \n\n - x")).is_empty());
    }
}
