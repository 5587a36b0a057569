//! Jobs of Slurm on this node by their control groups: whose they are, and the memory they use.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Roots;
use super::groups::{GroupVersion, children, slurm_jobs};

/// Depth below a step's group in which its tasks are: `user/task_0`.
const TASK_DEPTH: u32 = 3;

/// A job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// Its number, as Slurm prints it.
    pub name: String,
    /// Who runs it; `None` while none of its processes can be seen.
    pub user_id: Option<u32>,
    /// Memory that is charged to it on this node.
    pub used_bytes: u64,
}

/// The jobs that run now, in the order of their groups' names; at most 64.
pub fn job_facts(roots: &Roots) -> Vec<JobFacts> {
    let mut facts: Vec<JobFacts> = Vec::new();
    for place in roots.group_places() {
        for job in slurm_jobs(place.version, &place.top) {
            let seen = job_fact(roots, place.version, &job);
            // A machine with both versions has each job twice.
            facts.extend(seen.filter(|seen| facts.iter().all(|it| it.name != seen.name)));
        }
    }
    facts
}

fn job_fact(roots: &Roots, version: GroupVersion, job: &Path) -> Option<JobFacts> {
    let name = job.file_name()?.to_str()?.strip_prefix("job_")?.to_owned();
    let (file, user_id) = match version {
        GroupVersion::V1 => {
            let user = job.parent()?.file_name()?.to_str()?.strip_prefix("uid_")?;
            ("memory.usage_in_bytes", user.parse().ok())
        }
        // Those of the steps' own daemons are root's.
        GroupVersion::V2 => {
            let steps = children(job, |name| name.starts_with("step_"));
            let tasks = steps.iter().map(|step| step.join("user"));
            ("memory.current", tasks.into_iter().find_map(|user| owner(roots, &user, TASK_DEPTH)))
        }
    };
    // One that ended meanwhile has none.
    let used_bytes = std::fs::read_to_string(job.join(file)).ok()?.trim().parse().ok()?;
    Some(JobFacts { name, user_id, used_bytes })
}

/// The owner of a process in this group or in one below it.
fn owner(roots: &Roots, group: &Path, depth: u32) -> Option<u32> {
    let processes = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let of = |id: &str| Some(std::fs::metadata(roots.path(format!("/proc/{id}"))).ok()?.uid());
    let found = processes.lines().find_map(of);
    if found.is_some() || depth == 0 {
        return found;
    }
    children(group, |_| true).iter().find_map(|below| owner(roots, below, depth - 1))
}
