//! [`Processes`]: number and name of the process behind a request. The kernel tells the mount the
//! number of a thread only.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long what was found of a number is believed: a program may become another by `execve`.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// Numbers that are remembered, at most.
const KNOWN_MAX: usize = 4096;

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    /// Its number; that of the thread where it cannot be seen.
    pub id: u32,
    /// Its name; empty where it is gone.
    pub name: String,
}

/// What was found lately.
#[derive(Debug, Default)]
pub(super) struct Processes(HashMap<u32, (Instant, Process)>);

impl Processes {
    /// The process of a thread. 0 is the kernel.
    pub fn of(&mut self, thread_id: u32) -> Process {
        if thread_id == 0 {
            return Process { id: 0, name: "kernel".to_owned() };
        }
        let now = Instant::now();
        if let Some((found, process)) = self.0.get(&thread_id)
            && now.duration_since(*found) < KNOWN_FOR
        {
            return process.clone();
        }
        let process = match look_up(thread_id) {
            Some(process) => process,
            // It ended since. What was known of it goes on to be, until the number is another's.
            None => match self.0.get(&thread_id) {
                Some((_, process)) => process.clone(),
                None => Process { id: thread_id, name: String::new() },
            },
        };
        if self.0.len() >= KNOWN_MAX {
            self.0.clear();
        }
        self.0.insert(thread_id, (now, process.clone()));
        process
    }

    pub fn forget(&mut self) {
        self.0 = HashMap::new();
    }
}

fn look_up(thread_id: u32) -> Option<Process> {
    let status = std::fs::read_to_string(format!("/proc/{thread_id}/status")).ok()?;
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(value.trim().to_owned())
    };
    let id = field("Tgid:")?.parse().ok()?;
    let name = match id == thread_id {
        true => field("Name:")?,
        false => std::fs::read_to_string(format!("/proc/{id}/comm")).ok()?.trim_end().to_owned(),
    };
    Some(Process { id, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_shows_as_its_process() {
        let thread = std::thread::spawn(|| {
            let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            (id, Processes::default().of(id))
        });
        let (thread_id, process) = thread.join().unwrap();
        assert_eq!(process.id, std::process::id());
        assert!(thread_id != process.id && !process.name.is_empty());
        assert_eq!(Processes::default().of(0).name, "kernel");
        assert_eq!(Processes::default().of(u32::MAX), Process { id: u32::MAX, name: "".into() });
    }
}
