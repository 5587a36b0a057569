//! Jobs on the node, which the job's policy `fair` goes by: Slurm's, by their control groups, with
//! the names of their users. A thread of its own looks: a directory of users may be slow.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use tidepool_control::sensor::{JobFacts, JobSensor};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The same where there are none.
const LOOK_FOR_EVERY: Duration = Duration::from_secs(5);
/// Users whose names are remembered.
const NAMES_MAX: usize = 1000;

/// The jobs at one time as samples have them: a list in JSON, or nothing where there are none.
pub type Jobs = Arc<str>;

/// What was seen last.
#[derive(Debug, Default)]
pub struct ObservedJobs(Mutex<Jobs>);

impl ObservedJobs {
    /// All of them.
    pub fn last(&self) -> Jobs {
        Arc::clone(&self.0.lock())
    }

    /// Looks at jobs until `ending`; whoever sets that unparks this thread.
    pub fn watch(&self, ending: &AtomicBool) {
        let (mut names, mut look) = (HashMap::new(), Instant::now());
        let mut sensor = JobSensor::default();
        while !ending.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now < look {
                std::thread::park_timeout(look - now);
                continue;
            }
            let seen = sensor.look();
            look = now + if seen.is_empty() { LOOK_FOR_EVERY } else { LOOK_EVERY };
            let jobs = text(&seen, |user_id| {
                if names.len() >= NAMES_MAX {
                    names.clear();
                }
                names.entry(user_id).or_insert_with(|| user_name(user_id)).clone()
            });
            *self.0.lock() = jobs;
        }
    }
}

fn text(facts: &[JobFacts], mut name: impl FnMut(u32) -> String) -> Jobs {
    let jobs = facts.iter().map(|job| {
        let user = job.user_id.map_or_else(String::new, &mut name);
        json!({"name": job.name, "user": user, "bytes": job.used_bytes})
    });
    let jobs: Vec<_> = jobs.collect();
    if jobs.is_empty() { Jobs::default() } else { serde_json::Value::from(jobs).to_string().into() }
}

/// The name of a user, from wherever this machine has its users; the number where it has none.
fn user_name(user_id: u32) -> String {
    let number = user_id.to_string();
    let mut command = Command::new("getent");
    command.args(["passwd", &number]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    let line = String::from_utf8_lossy(&output);
    let name = line.split(':').next().unwrap_or_default().trim();
    if name.is_empty() { number } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_the_names_of_their_users() {
        let job = |name: &str, user_id, used_bytes| JobFacts {
            name: name.to_owned(),
            user_id,
            used_bytes,
        };
        assert_eq!(&*text(&[], user_name), "", "samples do without");
        let jobs = text(&[job("7", Some(0), 9), job("8", None, 5)], user_name);
        let read: serde_json::Value = serde_json::from_str(&jobs).unwrap();
        let expected = json!([
            {"name": "7", "user": "root", "bytes": 9},
            {"name": "8", "user": "", "bytes": 5},
        ]);
        assert_eq!(read, expected);
        assert_eq!(user_name(4_000_000_001), "4000000001", "nobody has that number");
    }
}
