//! Prepares the process of the controller for short memory: its pages are locked, it runs before
//! jobs do, and it is the last to be killed. For the small process of the controller alone: locking
//! the pages of a node's daemon would lock its store. A step that is not permitted is one line of
//! the log, no failure.

use std::path::Path;

use rustix::mm::{MlockAllFlags, mlockall};

/// Nice value of the thread where it may not have a real-time priority.
const NICE: i32 = -15;
/// The lowest real-time priority: before all jobs, behind everything else that is real-time.
const REAL_TIME_PRIORITY: i32 = 1;
const SCORE_FILE: &str = "/proc/self/oom_score_adj";
/// The node's: killed after everything but what must never be killed.
const NODE_SCORE: i32 = -900;
/// The controller's: never killed. It has a few MiB and no store, so its end would free nothing,
/// and it is the one that gives memory back.
const CONTROLLER_SCORE: i32 = -1000;
/// Delay that the kernel may add to wake-ups, in nanoseconds.
const TIMER_SLACK_NS: u64 = 1_000;

/// Locks the pages of the calling process and protects it from the out-of-memory killer. Answers
/// what was refused and what that costs, one line each.
pub fn prepare_process() -> Vec<String> {
    let steps = [lock_pages(), survive(Path::new(SCORE_FILE), CONTROLLER_SCORE)];
    steps.into_iter().filter_map(Result::err).collect()
}

/// Makes the calling process the last that the out-of-memory killer chooses. For the node: its
/// store counts as its memory, comes back only when the process has ended, and may hold bytes that
/// are nowhere else. Not never: a node that is full of bytes that cannot go, in a group at its
/// limit, would stand still for good, and with it every program that reads through it. Answers what
/// was refused and what that costs, in one line.
pub fn survive_out_of_memory() -> Option<String> {
    survive(Path::new(SCORE_FILE), NODE_SCORE).err()
}

/// Lets the calling thread run before jobs and wake up in time; threads that it starts are
/// ordinary ones. Answers what was refused.
pub(crate) fn prepare_thread() -> Option<String> {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NS));
    raise_priority().err()
}

/// Keeps pages that were touched once: the loop touches all it needs in its first decisions, and
/// code that is never used takes no memory.
fn lock_pages() -> Result<(), String> {
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(flags).map_err(|error| {
        format!(
            "pages are not locked ({error}): decisions may wait for the disk when memory is short"
        )
    })
}

/// Real time for this thread, or at least a better nice value.
fn raise_priority() -> Result<(), String> {
    let parameters = libc::sched_param { sched_priority: REAL_TIME_PRIORITY };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the call reads one `sched_param`, which lives until it returns; 0 is this thread.
    if unsafe { libc::sched_setscheduler(0, policy, &parameters) } == 0 {
        return Ok(());
    }
    rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE)
        .map_err(|error| format!("priority is not raised ({error}): busy jobs may delay decisions"))
}

fn survive(path: &Path, wanted: i32) -> Result<(), String> {
    let present = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    let present: i32 = present.unwrap_or(0);
    if present <= wanted {
        return Ok(());
    }
    match std::fs::write(path, wanted.to_string()) {
        // A score that was inherited from the node is nearly as good.
        Err(error) if present > NODE_SCORE => Err(format!(
            "no protection from the out-of-memory killer ({error}): it may choose this process"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_better_score_stays() {
        let file = std::env::temp_dir().join(format!("tidepool-score-{}", std::process::id()));
        for (present, after) in [("0\n", "-900"), ("-999\n", "-999\n")] {
            std::fs::write(&file, present).unwrap();
            survive(&file, NODE_SCORE).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), after);
        }
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_is_refused_is_one_line() {
        let line = survive(Path::new("/proc/self/no such file"), NODE_SCORE).unwrap_err();
        assert!(line.contains("out-of-memory killer") && !line.contains('\n'), "{line}");
    }
}
