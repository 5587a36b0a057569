//! Jobs of Slurm on this node by their control groups: whose they are, and the memory they use.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Roots;
use super::groups::{GroupPlace, GroupVersion, children, slurm_jobs};

/// Jobs that are told: as many as the plane takes of a node at most, and far more than run on one.
const JOBS_MAX: usize = 1000;
/// Depth below a step's group in which its tasks are: `user/task_0`.
const TASK_DEPTH: u32 = 3;
/// Looks at jobs for each at where hierarchies of groups are mounted: that costs more, and hardly
/// ever changes.
const LOOKS_AT_PLACES: u32 = 30;

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

/// Looks at jobs, again and again.
#[derive(Debug, Default)]
pub struct JobSensor {
    roots: Roots,
    places: Vec<GroupPlace>,
    /// Looks until the places are found anew.
    looks_left: u32,
    /// Owners of jobs that run, by their groups: they stay the same.
    owners: BTreeMap<PathBuf, u32>,
}

impl JobSensor {
    /// Of the machine below `roots`.
    pub fn new(roots: Roots) -> JobSensor {
        JobSensor { roots, ..JobSensor::default() }
    }

    /// The jobs that run now, in the order of their groups' names; at most 1,000.
    pub fn look(&mut self) -> Vec<JobFacts> {
        if self.looks_left == 0 {
            self.places = self.roots.group_places();
            self.looks_left = LOOKS_AT_PLACES;
        }
        self.looks_left -= 1;
        let mut facts: Vec<JobFacts> = Vec::new();
        let before = std::mem::take(&mut self.owners);
        for place in &self.places {
            for job in slurm_jobs(place.version, &place.top, JOBS_MAX) {
                let known = before.get(&job).copied();
                let Some(seen) = job_fact(&self.roots, place.version, &job, known) else {
                    continue;
                };
                if let Some(user_id) = seen.user_id {
                    self.owners.insert(job, user_id);
                }
                // A machine with both versions has each job twice.
                if facts.iter().all(|it| it.name != seen.name) {
                    facts.push(seen);
                }
            }
        }
        facts
    }
}

fn job_fact(
    roots: &Roots,
    version: GroupVersion,
    job: &Path,
    known_user_id: Option<u32>,
) -> Option<JobFacts> {
    let name = job.file_name()?.to_str()?.strip_prefix("job_")?.to_owned();
    let (file, user_id) = match version {
        GroupVersion::V1 => {
            let user = job.parent()?.file_name()?.to_str()?.strip_prefix("uid_")?;
            ("memory.usage_in_bytes", user.parse().ok())
        }
        GroupVersion::V2 => ("memory.current", known_user_id.or_else(|| task_owner(roots, job))),
    };
    // One that ended meanwhile has none.
    let used_bytes = std::fs::read_to_string(job.join(file)).ok()?.trim().parse().ok()?;
    Some(JobFacts { name, user_id, used_bytes })
}

/// The owner of a task of a job. Those of the steps' own daemons are root's.
fn task_owner(roots: &Roots, job: &Path) -> Option<u32> {
    let steps = children(job, |name| name.starts_with("step_"));
    let mut tasks = steps.iter().map(|step| step.join("user"));
    tasks.find_map(|user| owner(roots, &user, TASK_DEPTH))
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
