//! Jobs on the node, which the job's policy `fair` goes by: Slurm's, by their control groups, with
//! the names of their users. A thread of its own looks: a directory of users may be slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use tidepool_control::sensor::{JobFacts, JobSensor};

use crate::users::Users;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The same where there are none.
const LOOK_FOR_EVERY: Duration = Duration::from_secs(5);
/// The program that tells of users.
const DIRECTORY: &str = "getent";

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
        let (mut users, mut look) = (Users::new(DIRECTORY, ending), Instant::now());
        let mut sensor = JobSensor::default();
        while !ending.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now < look {
                std::thread::park_timeout(look - now);
                continue;
            }
            let seen = sensor.look();
            look = now + if seen.is_empty() { LOOK_FOR_EVERY } else { LOOK_EVERY };
            let jobs = text(&seen, |user_id| users.name(user_id));
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
        let name = |user_id: u32| if user_id == 0 { "root".to_owned() } else { String::new() };
        assert_eq!(&*text(&[], name), "", "samples do without");
        let jobs = text(&[job("7", Some(0), 9), job("8", None, 5)], name);
        let read: serde_json::Value = serde_json::from_str(&jobs).unwrap();
        let expected = json!([
            {"name": "7", "user": "root", "bytes": 9},
            {"name": "8", "user": "", "bytes": 5},
        ]);
        assert_eq!(read, expected);
    }
}
